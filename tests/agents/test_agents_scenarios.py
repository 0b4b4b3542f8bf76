"""The scenarios of document 001 (S1-28 to S1-32) and the flow of document 002 (S2-6), with agents over the real SDKs."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import anthropic
import pytest
from agents_kit import World
from agents_roles_kit import Person

from holdfast import Backoff, Circuit, CircuitOpenError, Err, Ok, Policy, Runtime, Tries, fault_of, tool
from holdfast.agents import Agent, CommandAgent, Done, FellBack, FunctionAgent, Retrying, Role, ToolReturned
from holdfast.events import AgentFallback, CircuitState, CircuitStateChange, Fallback, Retry, UserNotified
from holdfast.manager import ResilienceManager
from holdfast.runtime.runtime import SystemClock
from holdfast.stores import MemoryStore
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall

ONCE = Policy(profile="stud", attempts=1)


async def parts_of(agent: Any, prompt: str, **more: Any) -> list[Any]:
    async with agent.stream(prompt, **more) as parts:
        return [part async for part in parts]


def circuit(world: World, name: str) -> Any:
    return ResilienceManager(world.runtime).get_circuit(name)


def failing(world: World, name: str, **more: Any) -> Agent:
    """Return an agent whose provider answers 503 for ever."""
    down = World("never", faults="503*99")
    down.runtime = world.runtime
    return down.agent(name=name, **more)


def test_S1_28_retry_on_a_transient_error():
    # Given an agent that calls Claude, when the API returns 503
    world = World("Hello.", faults="503, 503")
    parts = world.run(parts_of(world.agent(), "hi"))
    # Then it is retried up to 3 times, each with exponential backoff
    assert parts[-1].reply.text == "Hello."
    assert world.received == 3
    assert [event.delay for event in world.of(Retry)] == [1, 2]
    # And the UI shows "Retrying... (2/3)"
    assert [part.line for part in parts if isinstance(part, Retrying)] == ["Retrying... (2/3)", "Retrying... (3/3)"]


def test_S1_28_it_is_retried_three_times_and_no_more():
    world = World("never", faults="503*9")
    with pytest.raises(anthropic.InternalServerError):
        world.run(world.agent().run("hi"))
    assert world.received == 3


@pytest.mark.parametrize("openai_is_configured", [True, False])
def test_S1_29_the_circuit_opens_after_repeated_failures(openai_is_configured):
    # Given 5 consecutive errors from Claude
    world, other = World("never", faults="503*5"), World("From OpenAI.")
    claude = world.model(policy=ONCE)
    for _ in range(5):
        with pytest.raises(anthropic.InternalServerError):
            world.run(world.agent(model=claude).run("hi"))
    assert circuit(world, "provider:anthropic").state is CircuitState.OPEN
    before = world.runtime.clock.monotonic()
    # When a new call is made, then it fails immediately, and the fallback is attempted
    if openai_is_configured:
        other.runtime = world.runtime
        reply = world.run(world.agent(model=[claude, other.model("gpt-5", policy=ONCE)]).run("hi"))
        assert reply.text == "From OpenAI."
        assert [event.to for event in world.of(Fallback)] == ["openai/gpt-5"]
    else:
        with pytest.raises(CircuitOpenError):
            world.run(world.agent(model=claude).run("hi"))
    assert world.received == 5
    assert world.runtime.clock.monotonic() == before


def test_S1_30_the_circuit_recovers():
    # Given an open circuit
    world = World("Back.", faults="503*5")
    agent = world.agent(model=world.model(policy=ONCE))
    for _ in range(5):
        with pytest.raises(anthropic.InternalServerError):
            world.run(agent.run("hi"))
    # When 30 seconds pass
    world.runtime.clock.advance(29.9)
    with pytest.raises(CircuitOpenError):
        world.run(agent.run("hi"))
    world.runtime.clock.advance(0.1)
    # Then it becomes half-open, the next call is a probe, and its success closes the circuit
    assert circuit(world, "provider:anthropic").state is CircuitState.HALF_OPEN
    assert world.run(agent.run("hi")).text == "Back."
    changes = [event.to for event in world.of(CircuitStateChange) if event.circuit == "provider:anthropic"]
    assert changes == ["open", "half-open", "closed"]


@pytest.mark.parametrize("simple_works", [True, False])
def test_S1_31_the_builder_falls_back_to_a_simpler_agent_and_else_the_user_is_notified(simple_works):
    # Given the builder agent fails
    world = World("A simple house.")
    builder = failing(world, "builder")
    simple = world.agent(name="builder-simple") if simple_works else failing(world, "builder-simple")
    role = Role("builder", builder, understudies=[simple], runtime=world.runtime)
    person = Person()

    async def work() -> Any:
        async with world.session(MemoryStore(), interactors=[person]) as session:
            return await role.run("a house", session=session)

    # When its retries are exhausted, then builder-simple is tried
    if simple_works:
        reply = world.run(work())
        assert (reply.text, reply.agent) == ("A simple house.", "builder-simple")
        assert (person.notices, world.of(UserNotified)) == ([], [])
    else:
        # And if it fails, the user is notified; what surfaces is the builder's own error
        with pytest.raises(anthropic.InternalServerError) as failed:
            world.run(work())
        assert [step["step"] for step in fault_of(failed.value).context["fallbacks"]] == ["builder-simple"]
        assert len(person.notices) == len(world.of(UserNotified)) == 1
        assert person.notices[0].text.startswith("builder failed, and so did builder-simple.")
    assert [(event.from_, event.to) for event in world.of(AgentFallback)] == [("builder", "builder-simple")]
    # The model has retried; the role did not multiply its attempts.
    assert [event.attempt for event in world.of(Retry) if event.operation.startswith("agent:")] == []
    assert [circuit(world, f"agent:{name}").failures for name in ("builder", "builder-simple")] == [1, 1 - simple_works]


def test_S1_32_a_tool_that_takes_too_long_is_cancelled_and_the_model_gets_a_typed_result():
    # Given a tool call
    cancelled: list[float] = []
    world = World(Turn(tool="command", arguments={}), "It took too long.")

    @tool(effect="unsafe")
    async def command() -> str:
        """Run a command."""
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(world.runtime.clock.monotonic())
            raise
        return "?"

    # When it takes more than 120 seconds
    parts = world.run(parts_of(world.agent(command), "run it"))
    # Then it is cancelled with a TimeoutError, and the model can act on it
    assert cancelled == [pytest.approx(120)]
    (result,) = [part for part in parts if isinstance(part, ToolReturned)]
    assert result.is_error
    assert result.fault.code in ("TOOL_TIMEOUT", "TOOL_OUTCOME_UNKNOWN")
    assert parts[-1].reply.text == "It took too long."


# --- S2-6: without a stage machine ---


@tool(effect="read")
async def read_file(path: str) -> str:
    """Read a file."""
    raise FileNotFoundError(path)


def test_S2_6_a_transient_failure_of_the_provider_is_retried():
    world = World("Hello.", faults="529, 500")
    assert world.run(world.agent().run("hi")).text == "Hello."
    assert world.received == 3


def test_S2_6_a_terminal_failure_of_a_tool_goes_to_the_model_which_gives_up_or_asks():
    world = World(
        Turn(tool="read_file", arguments={"path": "/nowhere"}), "There is no such file. Which one do you mean?"
    )
    parts = world.run(parts_of(world.agent(read_file), "read it"))
    (result,) = [part for part in parts if isinstance(part, ToolReturned)]
    assert result.is_error
    assert result.fault.code == "TOOL_FILE_NOT_FOUND"
    assert isinstance(parts[-1], Done)
    assert "TOOL_FILE_NOT_FOUND" in world.sent[1]["messages"][-1]["content"][0]["content"]


def test_S2_6_the_model_may_retry_the_tool_with_other_arguments():
    @tool(effect="read")
    async def look(path: str) -> str:
        """Read a file."""
        if path == "a":
            raise FileNotFoundError(path)
        return "found"

    calls = [Turn(tool="look", arguments={"path": path}) for path in ("a", "b")]
    world = World(*calls, "Found it.")
    assert world.run(world.agent(look).run("read it")).text == "Found it."


@pytest.mark.parametrize("in_a_turn", [True, False])
def test_S2_6_a_persistent_failure_ends_the_turn_with_an_error_that_the_user_can_read(in_a_turn):
    world = World("never", faults="401*99")
    store = MemoryStore()

    async def work() -> Any:
        async with world.session(store) as session:
            if not in_a_turn:
                ended = await world.agent().outcome("hi", session=session)
            else:
                async with session.turn("hi"):
                    ended = await world.agent().outcome("hi", session=session)
            return ended, session.in_flight

    ended, _ = world.run(work())
    assert isinstance(ended, Err)
    assert ended.fault.code.startswith("AUTH_")
    assert ended.fault.for_user()
    assert "Traceback" not in ended.fault.for_user()
    # Sending the same request again cannot help, so it was sent once.
    assert world.received == 1


# --- roles over agents ---


def test_a_role_streams_the_parts_of_whoever_answers():
    world = World(Turn(tool="add", arguments={"a": 1, "b": 2}), "It is 3.")

    @tool(effect="read")
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    role = Role(
        "counter", failing(world, "counter"), understudies=[world.agent(add, name="simple")], runtime=world.runtime
    )
    parts = world.run(parts_of(role, "1 + 2?"))
    kinds = [type(part).__name__ for part in parts]
    assert kinds[:3] == ["Retrying", "Retrying", "FellBack"]
    assert [(part.from_, part.to) for part in parts if isinstance(part, FellBack)] == [("counter", "simple")]
    assert "ToolCalled" in kinds
    assert parts[-1].reply.agent == "simple"


def test_a_role_among_the_tools_of_an_agent():
    world = World(Turn(calls=(ToolCall("helper", {"prompt": "help"}),)), "Done.")
    helper = Role(
        "helper",
        failing(world, "helper"),
        understudies=[FunctionAgent("manual", lambda prompt: f"by hand: {prompt}")],
        runtime=world.runtime,
    )
    outcome = world.run(world.agent(helper).outcome("go"))
    assert isinstance(outcome, Ok)
    assert "by hand: help" in str(world.sent[1]["messages"][-1])


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("in_a_turn", [True, False])
def test_killed_while_an_understudy_works_it_goes_on_where_it_was_and_nothing_is_paid_twice(in_a_turn):
    store = MemoryStore()
    ran: list[str] = []
    for started in (1, 2):
        world = World(Turn(tool="one", arguments={}), Turn(tool="two", arguments={}), "Done.")

        @tool(effect="unsafe")
        async def one() -> str:
            """Do the first."""
            ran.append("one")
            return "ok"

        @tool(effect="read")
        async def two(started: int = started) -> str:
            """Do the second."""
            if started == 1:
                raise Killed
            return "ok"

        builder = failing(world, "builder")
        simple = world.agent(one, two, name="simple")
        role = Role(
            "builder", builder, understudies=[simple], retry=Tries(attempts=1, backoff=Backoff()), runtime=world.runtime
        )

        async def work(role: Role = role, world: World = world) -> Any:
            async with world.session(store, mode="yolo") as session:
                if in_a_turn:
                    async with session.turn("message 1"):
                        return await role.run("build", session=session)
                return await role.run("build", session=session)

        if started == 1:
            with pytest.raises(Killed):
                world.run(work())
        else:
            reply = world.run(work())
            assert (reply.text, reply.agent) == ("Done.", "simple")
            # The two answers before the kill are stored; only the last request is new.
            assert world.received == 1
            assert world.of(Retry) == []
    assert ran == ["one"]


@pytest.mark.parametrize("in_a_turn", [True, False])
def test_an_attempt_that_is_late_is_continued_by_the_next_one_and_repeats_nothing(in_a_turn):
    world = World(Turn(tool="pay", arguments={}), "Paid.", faults="ok, hang")
    paid: list[int] = []

    @tool(effect="unsafe")
    async def pay() -> str:
        """Pay."""
        paid.append(1)
        return "ok"

    two = Tries(attempts=2, backoff=Backoff(initial=1, jitter=0))
    simple = FunctionAgent("simple", lambda _: "never")
    role = Role(
        "payer", world.agent(pay, name="payer"), understudies=[simple], timeout=20, retry=two, runtime=world.runtime
    )

    async def work() -> Any:
        async with world.session(MemoryStore(), mode="yolo") as session:
            if not in_a_turn:
                return await role.run("pay", session=session)
            async with session.turn("message"):
                return await role.run("pay", session=session)

    reply = world.run(work())
    assert (reply.text, reply.agent) == ("Paid.", "payer")
    assert (len(paid), world.received) == (1, 3)
    assert world.runtime.clock.monotonic() == pytest.approx(21)
    assert circuit(world, "agent:payer").failures == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs sh")
def test_a_command_line_agent_counts_once_in_its_role_and_comes_back_after_a_probe(tmp_path):
    class Clock(SystemClock):
        ahead = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead

    runtime = Runtime(clock=(clock := Clock()))
    manager = ResilienceManager(runtime)
    command = ["sh", "-c", f'test -e {tmp_path}/up && echo works || {{ echo "it is broken" >&2; exit 3; }}']
    coder = CommandAgent(command, name="coder", form="plain", policy=Policy(attempts=1), runtime=runtime)
    other = CommandAgent(["sh", "-c", "exit 4"], name="other", form="plain", policy=Policy(attempts=1), runtime=runtime)
    role = Role(
        "coder",
        coder,
        understudies=[other, FunctionAgent("by-hand", lambda _: "by hand")],
        circuit=Circuit(failures=1, rate=None, open_for=600),
        retry=Tries(attempts=1),
        runtime=runtime,
    )

    async def work() -> list[str]:
        agents = [(await role.run("x")).agent]
        assert manager.get_circuit("agent:coder").state is CircuitState.OPEN
        assert [manager.get_circuit(f"agent:{name}").failures for name in ("coder", "other")] == [1, 1]
        (tmp_path / "up").touch()
        clock.ahead = 600.0
        agents.append((await role.run("x")).agent)
        return agents

    assert asyncio.run(work()) == ["by-hand", "coder"]
    assert manager.get_circuit("agent:coder").state is CircuitState.CLOSED


def test_G7_while_an_agent_is_parked_at_a_usage_limit_its_understudy_works_and_no_request_is_sent():
    world = World("Back.", faults="429;retry-after=7200")
    role = Role(
        "coder", world.agent(), understudies=[FunctionAgent("simple", lambda _: "simple")], runtime=world.runtime
    )

    async def work() -> list[str]:
        async with world.session(MemoryStore()) as session:
            agents = [(await role.run("one", session=session)).agent, (await role.run("two", session=session)).agent]
            world.runtime.clock.advance(7300)
            return [*agents, (await role.run("three", session=session)).agent]

    assert world.run(work()) == ["simple", "simple", "coder"]
    assert world.received == 2
    assert world.of(UserNotified) == []
