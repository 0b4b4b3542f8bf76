"""Usage limits that say when they end park the run, and one process goes on after it, where it was (G7)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from typing import Any

import anthropic
import pytest
from agents_kit import Scripted, World
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from holdfast import Budget, Err, Fault, HoldfastError, InvalidError, fault_of, tool
from holdfast.agents import Done, FellBack, FunctionAgent, Parked, ParkedError, Role
from holdfast.agents.usage_limit import limit_end, waits
from holdfast.cli.app import app
from holdfast.cli.store.sessions import sessions_ls
from holdfast.events import AgentFallback, Retry
from holdfast.faults import NextActor
from holdfast.manager import ResilienceManager
from holdfast.policies.backoff import Tries
from holdfast.providers import ModelChain
from holdfast.sessions.admin import overview, unpark_runs
from holdfast.sessions.log import RunParked
from holdfast.stores import open_store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider import Turn

HOURS = 7200.0
LIMIT = "429;retry-after=7200"


class Desk:
    """A tool with an effect that can be counted."""

    def __init__(self) -> None:
        self.booked: list[int] = []

    def tool(self):
        @tool(effect="unsafe")
        async def book(day: int) -> str:
            """Book a day."""
            self.booked.append(day)
            return f"booked {day}"

        return book


def world(faults: str = f"ok, {LIMIT}, ok", **more) -> World:
    """The first answer calls a tool, then the limit is met, then the last answer comes."""
    return World(Turn(tool="book", arguments={"day": 3}), "Booked.", faults=faults, **more)


async def run_once(world: World, store, desk: Desk, *, prompt: str = "book day 3", mode: str = "yolo", **more):
    async with world.session(store, mode=mode) as session:
        return await world.agent(desk.tool(), **more).run(prompt, session=session)


# In virtual time: a store on disk works in threads, and virtual time passes while they do.
@pytest.fixture
def store():
    return MemoryStore()


# --- the decision ---


LIMITS = (
    ("PROVIDER_QUOTA_EXHAUSTED", 5.0, True),
    ("PROVIDER_DAILY_LIMIT", 5.0, True),
    ("PROVIDER_RATE_LIMITED", 61.0, True),
    ("PROVIDER_RATE_LIMITED", 60.0, False),
    ("PROVIDER_QUOTA_EXHAUSTED", None, False),
    ("PROVIDER_OVERLOADED", 7200.0, False),
    ("PROVIDER_BILLING", 7200.0, False),
    ("CIRCUIT_OPEN", 7200.0, False),
)


@pytest.mark.parametrize(("code", "wait", "parks"), LIMITS)
def test_G7_only_usage_limits_with_an_end_park(code, wait, parks):
    assert limit_end(Fault.of(code, retry_after=wait), 1000.0) == (1000.0 + wait if parks else None)


def test_G7_a_circuit_that_a_limit_has_opened_ends_with_it():
    opened = Fault.of("CIRCUIT_OPEN", retry_after=100.0, context={"reason": "PROVIDER_RATE_LIMITED"})
    assert limit_end(opened, 1000.0) == 1100.0
    down = Fault.of("CIRCUIT_OPEN", retry_after=100.0, context={"reason": "PROVIDER_OVERLOADED"})
    assert limit_end(down, 1000.0) is None


def test_G7_a_chain_whose_other_model_is_only_down_does_not_park():
    def failed(code):
        return Fault.of(
            "PROVIDER_QUOTA_EXHAUSTED", retry_after=HOURS, context={"fallbacks": [{"step": "gpt-5", "code": code}]}
        )

    assert limit_end(failed("PROVIDER_OVERLOADED"), 0.0) is None
    assert limit_end(failed("PROVIDER_QUOTA_EXHAUSTED"), 0.0) == HOURS


@given(st.sampled_from(["auto", "wait", "raise"]), st.floats(0, 1e6), st.none() | st.floats(0, 1e6))
def test_G7_nobody_waits_beyond_a_deadline_and_auto_waits_only_within_one(on_limit, wait, left):
    chosen = waits(on_limit, wait, left)
    if chosen:
        assert on_limit != "raise"
        assert left is None or wait < left
    if on_limit == "auto" and left is None:
        assert not chosen
    if on_limit == "wait" and left is None:
        assert chosen


# --- parked, refused, resumed ---


def test_G7_the_run_parks_with_the_time_and_the_providers_own_error(store):
    here, desk = world(), Desk()
    with pytest.raises(anthropic.RateLimitError) as raised:
        here.run(run_once(here, store, desk))
    fault = fault_of(raised.value)
    assert fault.code == "PROVIDER_RATE_LIMITED"
    assert fault.context["parked_until"] == pytest.approx(here.runtime.clock.wall() + HOURS, abs=5)
    assert fault.next_actor is NextActor.MACHINE
    assert "coder is parked until" in "".join(raised.value.__notes__)
    assert (here.received, desk.booked) == (2, [3])


def test_G7_before_the_time_another_start_sends_nothing_and_after_it_goes_on_where_it_was(tmp_path):
    store, desk = f"sqlite:{tmp_path / 'work.db'}", Desk()
    first = world()
    with pytest.raises(anthropic.RateLimitError):
        first.run(run_once(first, store, desk))
    began = first.runtime.clock.wall()

    early = world("")
    early.runtime.clock.jump(began - early.runtime.clock.wall() + HOURS / 2)
    with pytest.raises(ParkedError) as refused:
        early.run(run_once(early, store, desk))
    assert refused.value.fault.code == "PROVIDER_RATE_LIMITED"
    assert refused.value.until == pytest.approx(began + HOURS, abs=600)
    assert refused.value.fault.retry_after == pytest.approx(HOURS / 2, abs=600)
    assert early.received == 0

    late = world("")
    late.runtime.clock.jump(began - late.runtime.clock.wall() + HOURS + 600)
    reply = late.run(run_once(late, store, desk))
    assert (reply.text, reply.turns, reply.tool_calls) == ("Booked.", 2, 1)
    assert late.received == 1, "the first answer is stored"
    assert desk.booked == [3], "the tool is not called again"


def test_G7_in_the_same_session_a_second_run_goes_on_too_and_pays_nothing_twice(store):
    here, desk = world(), Desk()

    async def work():
        async with here.session(store, mode="yolo") as session:
            agent = here.agent(desk.tool())
            with pytest.raises(anthropic.RateLimitError):
                await agent.run("book day 3", session=session)
            with pytest.raises(ParkedError):
                await agent.run("book day 3", session=session)
            assert here.received == 2
            here.runtime.clock.advance(HOURS + 10)
            reply = await agent.run("book day 3", session=session)
            assert session.parked.all() == ()
            return reply

    assert here.run(work()).text == "Booked."
    assert (here.received, desk.booked) == (3, [3])


def test_G7_with_wait_the_run_waits_durably_and_goes_on(store):
    here, desk = world(), Desk()
    reply = here.run(run_once(here, store, desk, on_limit="wait"))
    assert reply.text == "Booked."
    assert here.runtime.clock.monotonic() == pytest.approx(HOURS, abs=5)
    assert (here.received, desk.booked) == (3, [3])
    (retry,) = here.of(Retry)
    assert retry.operation == "coder"
    assert retry.why.startswith("parked until 20")


@pytest.mark.parametrize(("seconds", "waited"), [(3 * HOURS, True), (HOURS / 2, False)])
def test_G7_auto_waits_if_the_limit_ends_before_the_deadline_of_the_budget(store, seconds, waited):
    here, desk = world(), Desk()

    async def work():
        with Budget(seconds=seconds, runtime=here.runtime):
            return await run_once(here, store, desk)

    if waited:
        assert here.run(work()).text == "Booked."
    else:
        with pytest.raises(anthropic.RateLimitError):
            here.run(work())
        assert here.runtime.clock.monotonic() < 1


def test_G7_without_a_session_wait_waits_and_the_others_raise_the_error_as_it_was():
    here, desk = world(), Desk()
    agent = here.agent(desk.tool(), on_limit="wait")
    assert here.run(agent.run("book day 3")).text == "Booked."
    there = world()
    with pytest.raises(anthropic.RateLimitError) as raised:
        there.run(there.agent(desk.tool()).run("book day 3"))
    assert "parked_until" not in fault_of(raised.value).context


def test_G7_cancelled_while_it_waits_the_run_is_parked_and_goes_on_later(store):
    here, desk = world(), Desk()

    async def cut():
        async with asyncio.timeout(100):
            await run_once(here, store, desk, on_limit="wait")

    with pytest.raises(TimeoutError):
        here.run(cut())
    assert here.received == 2
    assert here.run(run_once(here, store, desk, on_limit="wait")).text == "Booked."
    assert here.runtime.clock.monotonic() == pytest.approx(HOURS, abs=5)
    assert (here.received, desk.booked) == (3, [3])


def test_G7_a_limit_that_is_met_again_parks_again():
    here, desk = world(f"ok, {LIMIT}, {LIMIT}, ok"), Desk()
    assert here.run(run_once(here, MemoryStore(), desk, on_limit="wait")).text == "Booked."
    assert here.runtime.clock.monotonic() == pytest.approx(2 * HOURS, abs=10)
    assert (here.received, desk.booked) == (4, [3])


def test_G7_the_stream_says_until_when():
    here, desk = world(), Desk()

    async def read():
        async with (
            here.session(MemoryStore(), mode="yolo") as session,
            here.agent(desk.tool(), on_limit="wait").stream("book day 3", session=session) as parts,
        ):
            return [part async for part in parts]

    parts = here.run(read())
    (parked,) = [part for part in parts if isinstance(part, Parked)]
    assert parked.fault.code == "PROVIDER_RATE_LIMITED"
    assert parked.until == pytest.approx(here.runtime.clock.wall(), abs=10)
    assert isinstance(parts[-1], Done)


def test_G7_the_outcome_is_an_err_with_the_time():
    here, desk = world(), Desk()

    async def work():
        async with here.session(MemoryStore(), mode="yolo") as session:
            return await here.agent(desk.tool()).outcome("book day 3", session=session)

    outcome = here.run(work())
    assert isinstance(outcome, Err)
    assert outcome.fault.context["parked_until"]


def test_G7_another_agent_of_the_same_session_is_not_held_back():
    here, desk, store = world(f"ok, {LIMIT}, ok*9"), Desk(), MemoryStore()
    with pytest.raises(anthropic.RateLimitError):
        here.run(run_once(here, store, desk))

    async def other():
        async with here.session(store, mode="yolo") as session, session.turn("else", unfinished="abandon"):
            return await here.agent(name="reviewer", model=here.model("gpt-5")).run("hello", session=session)

    assert here.run(other()).agent == "reviewer"


def test_G7_somebody_who_raised_the_limit_lets_it_go_on_at_once(store):
    here, desk = world(), Desk()
    with pytest.raises(anthropic.RateLimitError):
        here.run(run_once(here, store, desk))

    async def lift():
        async with here.session(store, mode="yolo") as session:
            (parked,) = session.parked.all()
            assert isinstance(parked, RunParked)
            assert (parked.agent, parked.code) == ("coder", "PROVIDER_RATE_LIMITED")
            assert await session.parked.unpark("coder", by="ann")
            assert not await session.parked.unpark("coder")

    here.run(lift())
    # The circuit of the key knows the limit too; in the next process it does not.
    there = world("")
    there.runtime.clock.jump(here.runtime.clock.wall() - there.runtime.clock.wall())
    assert there.run(run_once(there, store, desk)).text == "Booked."
    assert (there.received, desk.booked) == (1, [3])


def test_G7_the_next_model_of_a_chain_answers_instead_of_parking():
    here, desk = world(f"ok, {LIMIT}, ok"), Desk()
    chain = ModelChain([here.model(), here.model("gpt-5")], runtime=here.runtime)

    async def read():
        async with (
            here.session(MemoryStore(), mode="yolo") as session,
            here.agent(desk.tool(), model=chain).stream("book day 3", session=session) as parts,
        ):
            return [part async for part in parts]

    parts = here.run(read())
    assert parts[-1].reply.text == "Booked."
    assert [part.to for part in parts if isinstance(part, FellBack)] == ["openai/gpt-5"]
    assert not [part for part in parts if isinstance(part, Parked)]


def test_an_unknown_choice_is_invalid():
    with pytest.raises(InvalidError, match=r"agent\.on_limit"):
        world().agent(on_limit="sleep")


def test_G7_a_process_that_waits_goes_on_when_somebody_raises_the_limit(store):
    limit = HoldfastError(Fault.of("PROVIDER_QUOTA_EXHAUSTED", retry_after=HOURS))
    here = World()
    agent = here.agent(model=Scripted(limit, "Done."), on_limit="wait")

    async def main() -> float:
        async with here.session(store) as session:
            begun = here.runtime.clock.monotonic()
            running = asyncio.ensure_future(agent.run("go", session=session))
            while not session.parked.all():  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(1)
            assert [run.agent for run in await unpark_runs(store, "s", "coder", by="ann")] == ["coder"]
            assert (await running).text == "Done."
            return here.runtime.clock.monotonic() - begun

    assert here.run(main()) < 70


def holdfast(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_G7_the_command_line_shows_who_is_parked_and_lifts_it(tmp_path):
    store, desk, here = f"sqlite:{tmp_path / 'work.db'}", Desk(), world()
    with pytest.raises(anthropic.RateLimitError):
        here.run(run_once(here, store, desk))
    shown = " ".join(holdfast("sessions", "show", "s", "--store", store).output.split())
    assert "coder is parked until" in shown
    assert "holdfast sessions unpark s coder" in shown
    wrong = holdfast("sessions", "unpark", "s", "nobody", "--store", store)
    assert wrong.exit_code != 0
    assert "an agent or a run that is parked in session s (coder)" in " ".join(wrong.output.split())
    assert '"agent": "coder"' in holdfast("sessions", "unpark", "s", "--store", store, "--json").stdout

    async def look():
        async with open_store(store) as opened:
            return await overview(opened, "s")

    seen = asyncio.run(look())
    assert (seen.parked, seen.manifest.parked_until) == ((), None)


# --- the store ---


def test_G7_a_list_of_sessions_shows_who_waits_without_reading_their_logs(tmp_path, capsys):
    store, desk, here = f"sqlite:{tmp_path / 'work.db'}", Desk(), world()
    with pytest.raises(anthropic.RateLimitError):
        here.run(run_once(here, store, desk))

    async def look():
        opened = open_store(store, clock=here.runtime.clock)
        async with opened:
            await sessions_ls(opened, state=None, limit=None, as_json=True, as_jsonl=False)
            return await overview(opened, "s")

    seen = asyncio.run(look())
    assert '"parked_until": "20' in capsys.readouterr().out
    assert seen.manifest.parked_until == pytest.approx(here.runtime.clock.wall() + HOURS, abs=600)
    assert [run.agent for run in seen.parked] == ["coder"]


# --- real processes ---

PROGRAM = """
    import asyncio, sys, time
    from pathlib import Path
    from holdfast import Agent, Fault, HoldfastError, Runtime, Session, fault_of, tool
    from holdfast.providers import Offers, Reply, ToolCall
    from holdfast.runtime.runtime import SystemClock

    def count(what):
        with open(what, "a") as file:
            file.write("x")
        return len(Path(what).read_text())

    class Later(SystemClock):
        def wall(self):
            return time.time() + float(sys.argv[1])

    class Plan:
        name, offers = "own/plan", Offers(streaming=False)

        async def exchange(self, request):
            number = count("requests")
            if number == 2:
                raise HoldfastError(Fault.of("PROVIDER_QUOTA_EXHAUSTED", retry_after=7200))
            calls = (ToolCall(id="c", name="book", arguments={}),) if number == 1 else ()
            return Reply(text="Booked.", calls=calls, stop="tools" if calls else "end")

        def stream(self, request, *, after_first="raise"): ...

    @tool(effect="unsafe")
    async def book() -> str:
        count("booked")
        return "booked"

    async def main():
        runtime = Runtime(clock=Later())
        agent = Agent("coder", Plan(), [book], runtime=runtime)
        async with Session.open("s", store="sqlite:work.db", mode="yolo", runtime=runtime) as session:
            if "answer" not in session.context:
                session.context["answer"] = (await agent.run("book day 3", session=session)).text
            print(session.context["answer"])

    try:
        asyncio.run(main())
    except Exception as error:
        print(fault_of(error).code, "parked" if "parked_until" in fault_of(error).context else "")
        sys.exit(1)
"""


def test_G7_of_several_processes_after_the_reset_exactly_one_goes_on(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(shift: float) -> subprocess.Popen:
        argv = [sys.executable, "program.py", str(shift)]
        return subprocess.Popen(argv, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    def end(process: subprocess.Popen) -> str:
        return process.communicate(timeout=120)[0].strip()

    def counted(what: str) -> int:
        return len((tmp_path / what).read_text())

    assert end(start(0)) == "PROVIDER_QUOTA_EXHAUSTED parked"
    assert end(start(HOURS / 2)) == "PROVIDER_QUOTA_EXHAUSTED parked"
    assert counted("requests") == 2, "the second process sent nothing"
    outputs = [end(process) for process in [start(HOURS + 60) for _ in range(2)]]
    assert (counted("requests"), counted("booked")) == (3, 1)
    assert "Booked." in outputs
    assert {one for one in outputs if one != "Booked."} <= {"SESS_LEASE_LOST"}


# --- roles ---


def circuit_of(world: World, name: str) -> Any:
    return ResilienceManager(runtime=world.runtime).get_circuit(name)


def test_G7_a_role_around_a_parked_agent_counts_no_failure_and_sends_nothing(store):
    limited, desk = world(), Desk()
    told: list[Fault] = []

    async def main() -> None:
        role = Role("builder", limited.agent(desk.tool()), notify=told.append, runtime=limited.runtime)
        # Five failures in a row would open its circuit.
        for attempt in range(7):
            async with limited.session(store) as session:
                with pytest.raises((ParkedError, anthropic.APIStatusError)) as raised:
                    await role.run("book day 3", session=session)
                assert "parked_until" in fault_of(raised.value).context, attempt
        assert limited.received == 2
        state = circuit_of(limited, "agent:builder")
        assert (state.state, state.failures) == ("closed", 0)
        assert told == []
        await asyncio.sleep(HOURS + 5)
        async with limited.session(store) as session:
            assert (await role.run("book day 3", session=session)).text == "Booked."

    limited.run(main())
    assert desk.booked == [3]


def test_G7_the_understudies_of_a_parked_agent_work_and_its_circuit_stays_closed(store):
    limited, desk = world(), Desk()

    async def main() -> None:
        role = Role(
            "builder",
            limited.agent(desk.tool()),
            understudies=[FunctionAgent("by-hand", lambda prompt: f"by hand: {prompt}")],
            runtime=limited.runtime,
        )
        for day in range(7):
            async with limited.session(store) as session:
                reply = await role.run(f"book day {day}", session=session)
                assert reply.text == f"by hand: book day {day}"
        state = circuit_of(limited, "agent:builder")
        assert (state.state, state.failures) == ("closed", 0)

    limited.run(main())
    assert [event.to for event in limited.of(AgentFallback)] == ["by-hand"] * 7


def test_G7_a_parked_understudy_counts_no_failure_and_the_next_one_works(store):
    limited, desk = world(), Desk()

    def broken(prompt: str) -> str:
        raise ConnectionResetError(prompt)

    async def main() -> None:
        role = Role(
            "builder",
            FunctionAgent("broken", broken),
            understudies=[limited.agent(desk.tool()), FunctionAgent("by-hand", lambda prompt: "by hand")],
            retry=Tries(attempts=1),
            runtime=limited.runtime,
        )
        async with limited.session(store) as session:
            assert (await role.run("book day 3", session=session)).text == "by hand"
        state = circuit_of(limited, "agent:coder")
        assert (state.state, state.failures) == ("closed", 0)

    limited.run(main())
