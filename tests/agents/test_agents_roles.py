"""Roles: isolation by circuits, understudies in order, consent, one notification (S1-14, S1-17 to S1-19, S1-31, N1-7, G26)."""

from __future__ import annotations

import asyncio
import logging

import pytest
from agents_roles_kit import Person, Scripted, World, refused

from holdfast import (
    Backoff,
    Budget,
    BudgetError,
    Circuit,
    CircuitOpenError,
    DeadlineError,
    Err,
    InvalidError,
    Ok,
    OutcomeUnknownError,
    Tries,
    fault_of,
    tool,
)
from holdfast.agents import AgentReply, Done, FellBack, FunctionAgent, Retrying, Role, Text
from holdfast.events import AgentFallback, CircuitState, Failed, Recovered, UserNotified
from holdfast.faults import AbortedError, Fault, HoldfastError
from holdfast.sessions import Session
from holdfast.sinks.live import LiveLine, LiveWord, watch_live
from holdfast.stores import MemoryStore

ONCE = Tries(attempts=1)
THRICE = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, jitter=0))


# --- S1-19, to the letter ---


def test_S1_19_an_agent_that_answers_needs_no_other():
    world = World()
    builder, simple = Scripted("builder", "built"), Scripted("builder-simple", "simple")
    reply = world.run(world.role(builder, simple).run("a house"))
    assert (reply.text, reply.agent) == ("builder: built", "builder")
    assert simple.calls == 0
    assert world.events.of(AgentFallback) == []
    assert world.manager.get_circuit("agent:builder").successes == 1


def test_S1_19_retries_first_then_the_understudies_with_an_event_for_each():
    world = World()
    builder, simple, manual = (
        Scripted("builder", refused()),
        Scripted("builder-simple", refused()),
        Scripted("manual-mode", "by hand"),
    )
    reply = world.run(world.role(builder, simple, manual, retry=THRICE).run("a house"))
    assert (reply.text, reply.agent) == ("manual-mode: by hand", "manual-mode")
    assert (builder.calls, simple.calls, manual.calls) == (3, 1, 1)
    # Backoff between the attempts of the agent itself, and no wait before an understudy.
    assert world.clock.monotonic() == pytest.approx(3)
    assert [(event.from_, event.to) for event in world.events.of(AgentFallback)] == [
        ("builder", "builder-simple"),
        ("builder", "manual-mode"),
    ]
    assert world.counted("builder", "builder-simple", "manual-mode") == [1, 1, 0]
    assert [event.via for event in world.events.of(Recovered) if event.operation == "agent:builder"] == ["manual-mode"]


def test_S1_19_a_failed_run_counts_once_whatever_the_failure_is():
    world = World()
    ends = [HoldfastError(Fault.of("TASK_LOOP_BOUND")), HoldfastError(Fault.of("AUTH_FAILED")), refused(), refused()]
    role = world.role(
        Scripted("builder", *ends), Scripted("simple", "ok"), retry=Tries(attempts=2, backoff=Backoff(initial=0))
    )
    for expected in (1, 2, 3):
        world.run(role.run("a house"))
        assert world.counted("builder") == [expected]


def test_S1_19_while_the_circuit_is_open_the_understudy_takes_over_at_once():
    world = World()
    builder, simple = Scripted("builder", *[refused()] * 5, "back"), Scripted("builder-simple", "simple")
    role = world.role(builder, simple, retry=ONCE)
    for _ in range(5):
        world.run(role.run("a house"))
    assert world.manager.get_circuit("agent:builder").state is CircuitState.OPEN
    before = world.clock.monotonic()
    assert world.run(role.run("a house")).agent == "builder-simple"
    assert (builder.calls, world.clock.monotonic()) == (5, before)
    # A probe after 30 s finds the agent well again.
    world.clock.advance(30)
    assert world.run(role.run("a house")).text == "builder: back"
    assert world.manager.get_circuit("agent:builder").state is CircuitState.CLOSED


def test_S1_19_without_understudies_an_open_circuit_names_the_role():
    world = World()
    role = world.role(Scripted("builder", "built"))
    world.manager.get_circuit("agent:builder").force_open()
    with pytest.raises(CircuitOpenError) as caught:
        world.run(role.run("a house"))
    assert caught.value.circuit == "agent:builder"


@pytest.mark.parametrize("with_session", [False, True])
def test_G26_S1_31_all_fail_builders_error_surfaces_and_the_user_is_notified_once(with_session, caplog):
    caplog.set_level(logging.INFO, logger="holdfast")
    world = World(log=True)
    person, called = Person(), []
    error = refused("builder's own")
    agents = [
        Scripted("builder", error),
        Scripted("builder-simple", refused()),
        Scripted("manual-mode", ValueError("?")),
    ]
    role = world.role(*agents, retry=THRICE, notify=called.append)

    async def work() -> None:
        if not with_session:
            await role.run("a house")
            return
        async with Session.open("s", store=MemoryStore(), runtime=world.runtime, interactors=[person]) as session:
            await role.run("a house", session=session)

    with pytest.raises(ConnectionResetError) as caught:
        world.run(work())
    assert caught.value is error
    assert [agent.calls for agent in agents] == [3, 1, 1]
    assert world.counted("builder", "builder-simple", "manual-mode") == [1, 1, 1]
    fallbacks = fault_of(error).context["fallbacks"]
    assert [step["step"] for step in fallbacks] == ["builder-simple", "manual-mode"]
    assert sum("fallback builder-simple" in note for note in error.__notes__) == 1
    # Once: the function, the event, the log, and the interactor if there is one.
    assert [fault.code for fault in called] == ["SYS_FALLBACKS_EXHAUSTED"]
    (event,) = world.events.of(UserNotified)
    assert (event.agent, event.tried, event.people) == ("builder", ("builder-simple", "manual-mode"), int(with_session))
    assert event.fault is not None
    assert event.fault.code == "CONN_RESET"
    lines = [record.getMessage() for record in caplog.records if "the user was notified" in record.getMessage()]
    assert lines == [
        "the user was notified: builder and its understudies builder-simple, manual-mode failed (CONN_RESET)"
    ]
    assert [
        notice.text.startswith("builder failed, and so did builder-simple, manual-mode.") for notice in person.notices
    ] == [True] * with_session


def test_S1_31_a_role_without_understudies_notifies_too_and_its_error_is_unchanged():
    world = World()
    called = []

    async def tell(fault: Fault) -> None:
        called.append(fault.code)

    error = refused()
    with pytest.raises(ConnectionResetError) as caught:
        world.run(world.role(Scripted("builder", error), retry=ONCE, notify=tell).run("a house"))
    assert caught.value is error
    assert called == ["CONN_RESET"]
    assert [event.tried for event in world.events.of(UserNotified)] == [()]


def test_a_notification_that_raises_does_not_hide_the_error():
    def broken(fault: Fault) -> None:
        raise RuntimeError("pager is down")

    for others in ((), (Scripted("simple", refused()),)):
        world = World()
        with pytest.raises(ConnectionResetError):
            world.run(world.role(Scripted("builder", refused()), *others, retry=ONCE, notify=broken).run("a house"))
        assert len(world.events.of(UserNotified)) == 1


def test_a_nested_role_answers_for_itself_and_only_the_outer_one_notifies():
    world = World()
    last = Scripted("last", refused())
    inner = world.role(Scripted("inner", refused()), last, retry=ONCE)
    outer = Role("outer", Scripted("x", refused()).agent, understudies=[inner], retry=ONCE, runtime=world.runtime)
    with pytest.raises(ConnectionResetError):
        world.run(outer.run("a house"))
    assert last.calls == 1
    assert [event.agent for event in world.events.of(UserNotified)] == ["outer"]
    assert world.counted("outer", "inner", "last") == [1, 1, 1]
    # The inner role's circuit is open: its own understudy still answers.
    world.manager.get_circuit("agent:inner").force_open()
    last.ends = ["saved"]
    assert world.run(outer.run("a house")).agent == "last"


def test_an_understudy_whose_circuit_is_open_is_left_out():
    world = World()
    simple, manual = Scripted("simple", "no"), Scripted("manual", "by hand")
    role = world.role(Scripted("builder", refused()), simple, manual, retry=ONCE)
    world.manager.get_circuit("agent:simple").force_open()
    assert world.run(role.run("a house")).agent == "manual"
    assert simple.calls == 0


# --- S1-17: time limits, retries, circuits ---


def test_S1_17_the_time_limit_holds_for_each_attempt_and_each_understudy_and_counts():
    world = World()
    role = world.role(
        Scripted("builder", 1000), Scripted("simple", 1000), Scripted("manual", "ok"), retry=ONCE, timeout=5
    )
    assert world.run(role.run("a house")).agent == "manual"
    assert world.clock.monotonic() == pytest.approx(10)
    assert world.counted("builder", "simple", "manual") == [1, 1, 0]


def test_S1_17_without_a_time_limit_an_agent_may_work_for_hours():
    world = World()
    assert world.run(world.role(Scripted("builder", 7200)).run("a house")).text == "builder: late"


def test_S1_17_a_circuit_of_its_own():
    world = World()
    role = world.role(
        Scripted("builder", refused()), Scripted("simple", "ok"), retry=ONCE, circuit=Circuit(failures=2, rate=None)
    )
    for _ in range(2):
        world.run(role.run("a house"))
    assert world.manager.get_circuit("agent:builder").state is CircuitState.OPEN


def test_all_late_raises_the_roles_own_deadline_error():
    world = World()
    role = world.role(Scripted("builder", 1000), Scripted("simple", 1000), retry=ONCE, timeout=5)
    with pytest.raises(DeadlineError):
        world.run(role.run("a house"))


def test_S1_25_switched_off_nobody_takes_over():
    world = World()
    world.runtime.enabled = False
    simple = Scripted("simple", "ok")
    with pytest.raises(ConnectionResetError):
        world.run(world.role(Scripted("builder", refused()), simple).run("a house"))
    assert simple.calls == 0


def test_S1_18_no_magic_names_a_role_called_builder_has_no_understudies_by_itself():
    world = World()
    role = world.role(Scripted("builder", refused()), retry=ONCE)
    assert role.understudies == ()
    with pytest.raises(ConnectionResetError):
        world.run(role.run("a house"))
    assert world.events.of(AgentFallback) == []


# --- what no understudy may answer ---


def test_a_defect_of_the_agent_itself_surfaces_at_once():
    world = World()
    simple = Scripted("simple", "ok")
    with pytest.raises(AttributeError):
        world.run(world.role(Scripted("builder", AttributeError("x")), simple).run("a house"))
    assert simple.calls == 0


def test_nobody_is_notified_of_a_defect_or_of_a_run_that_somebody_stopped():
    for error in (AttributeError("x"), AbortedError(Fault.of("TOOL_CANCELLED"))):
        for others in ((), (Scripted("simple", "ok"),)):
            world = World()
            with pytest.raises(type(error)):
                world.run(world.role(Scripted("builder", error), *others, retry=ONCE).run("a house"))
            assert world.events.of(UserNotified) == []


def test_an_unsafe_call_that_may_have_happened_is_not_repeated_by_an_understudy():
    world = World()
    simple = Scripted("simple", "ok")
    error = HoldfastError(Fault.of("TOOL_OUTCOME_UNKNOWN"))
    with pytest.raises(HoldfastError):
        world.run(world.role(Scripted("builder", error), simple).run("a house"))
    assert simple.calls == 0


def test_a_cancelled_run_counts_nothing_notifies_nobody_and_falls_back_to_nobody():
    world = World()
    simple = Scripted("simple", "ok")
    role = world.role(Scripted("builder", 1000), simple)

    async def work() -> None:
        task = asyncio.ensure_future(role.run("a house"))
        await asyncio.sleep(1)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        world.run(work())
    assert (simple.calls, world.counted("builder")) == (0, [0])
    assert world.events.of(UserNotified) == []


def test_in_a_task_group_the_others_are_cancelled_and_the_first_error_surfaces():
    world = World()
    slow = world.role(Scripted("slow", 1000))
    broken = world.role(Scripted("broken", refused()), Scripted("simple", refused()), retry=ONCE)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(slow.run("a"))
            group.create_task(broken.run("b"))

    with pytest.raises(ExceptionGroup) as caught:
        world.run(work())
    assert isinstance(caught.value.exceptions[0], ConnectionResetError)
    assert world.clock.monotonic() < 1
    assert world.counted("slow", "broken", "simple") == [0, 1, 1]


def test_a_spent_budget_starts_no_understudy():
    world = World()
    simple = Scripted("simple", "ok")
    role = world.role(Scripted("builder", refused()), simple, retry=ONCE)

    async def work() -> None:
        with Budget(attempts=1):
            await role.run("a house")

    with pytest.raises((ConnectionResetError, BudgetError)):
        world.run(work())
    assert simple.calls == 0


def test_a_reply_that_reports_usage_is_not_charged_a_second_time():
    from holdfast.policies.models.usage import Usage  # noqa: PLC0415

    world = World()
    reply = AgentReply(text="ok", usage=Usage(input=1000, output=1000), model="claude-opus-4-1", usd=0.1)
    role = Role("builder", FunctionAgent("builder", lambda _: reply), runtime=world.runtime)

    async def work() -> float | None:
        with Budget(usd=1.0) as budget:
            await role.run("a house")
        return budget.spend().usd

    assert not world.run(work())


# --- consent ---


@pytest.mark.parametrize("agrees", [True, False])
def test_consent_without_a_session_is_the_runtimes(agrees):
    asked = []
    world = World(consent=lambda *given: asked.append(given[:2]) or agrees)
    role = world.role(Scripted("builder", refused()), Scripted("simple", "ok"), retry=ONCE, consent="ask")
    if agrees:
        assert world.run(role.run("a house")).agent == "simple"
    else:
        with pytest.raises(ConnectionResetError) as caught:
            world.run(role.run("a house"))
        assert fault_of(caught.value).context["fallbacks"] == [{"step": "simple", "skipped": "consent was not given"}]
    assert asked == [("agent:builder", "simple")]


def test_consent_that_nobody_can_give_is_not_given():
    world = World()
    with pytest.raises(ConnectionResetError):
        world.run(
            world.role(Scripted("builder", refused()), Scripted("simple", "ok"), retry=ONCE, consent="ask").run(
                "a house"
            )
        )


def test_a_person_may_take_longer_than_the_time_limit_of_an_attempt():
    world = World()

    class Slow(Person):
        async def ask(self, question):
            await asyncio.sleep(3600)
            return await super().ask(question)

    person = Slow(True)
    role = world.role(Scripted("builder", refused()), Scripted("simple", "ok"), retry=ONCE, consent="ask", timeout=5)

    async def work() -> AgentReply:
        async with Session.open(
            "s", store=MemoryStore(), runtime=world.runtime, interactors=[person], lease=7200
        ) as session:
            return await role.run("a house", session=session)

    assert world.run(work()).agent == "simple"
    assert len(person.asked) == 1
    assert "builder failed" in person.asked[0]
    assert "Let simple take over?" in person.asked[0]


# --- stream and outcome ---


async def parts_of(role: Role, **options: object) -> list[object]:
    async with role.stream("a house", **options) as parts:
        return [part async for part in parts]


def test_a_stream_has_the_parts_of_whoever_answers_with_what_happened_between():
    world = World()
    role = world.role(
        Scripted("builder", refused()), Scripted("simple", refused()), Scripted("manual", "ok"), retry=THRICE
    )
    parts = world.run(parts_of(role))
    assert [type(part) for part in parts] == [Retrying, Retrying, FellBack, FellBack, Text, Done]
    assert [(part.line, part.attempt, part.restarts_text) for part in parts[:2]] == [
        ("Retrying... (2/3)", 1, False),
        ("Retrying... (3/3)", 2, False),
    ]
    assert [(part.from_, part.to, part.fault.code) for part in parts[2:4]] == [
        ("builder", "simple", "CONN_RESET"),
        ("simple", "manual", "CONN_RESET"),
    ]
    assert parts[-1].reply.agent == "manual"


def test_a_stream_shows_a_retry_before_its_wait():
    world = World()
    role = world.role(Scripted("builder", refused(), "ok"), retry=THRICE)

    async def work() -> float:
        async with role.stream("a house") as parts:
            async for part in parts:
                if isinstance(part, Retrying):
                    return world.clock.monotonic()
        raise AssertionError

    assert world.run(work()) == 0


def test_a_stream_of_which_all_fail_raises_the_first_error():
    world = World()
    error = refused()
    with pytest.raises(ConnectionResetError) as caught:
        world.run(parts_of(world.role(Scripted("builder", error), Scripted("simple", refused()), retry=ONCE)))
    assert caught.value is error
    assert len(world.events.of(UserNotified)) == 1


def test_leaving_a_stream_early_ends_the_agent_and_counts_nothing():
    world = World()
    ended = []

    async def slow(prompt: str) -> str:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(world.clock.monotonic())
        return "?"

    role = Role(
        "builder", FunctionAgent("builder", slow), understudies=[Scripted("simple", "ok").agent], runtime=world.runtime
    )

    async def work() -> None:
        async with role.stream("a house"):
            await asyncio.sleep(1)

    world.run(work())
    assert ended == [1]
    assert world.counted("builder") == [0]
    assert world.events.of(Failed) == []


def test_a_slow_reader_holds_an_agent_back():
    world = World()
    made = []

    class Talker:
        name = "talker"

        async def run(self, prompt, *, session=None):
            raise NotImplementedError

        outcome = run

        def stream(self, prompt, *, session=None):
            from contextlib import asynccontextmanager  # noqa: PLC0415

            @asynccontextmanager
            async def opened():
                async def parts():
                    for n in range(1000):
                        made.append(n)
                        yield Text(text=str(n))
                    yield Done(reply=AgentReply(text="all"))

                yield parts()

            return opened()

    async def work() -> tuple[int, int]:
        async with Role("talker", Talker(), runtime=world.runtime).stream("x") as parts:
            await anext(parts)
            await asyncio.sleep(10)
            ahead = len(made)
            return ahead, sum([1 async for part in parts if isinstance(part, Text)])

    ahead, rest = world.run(work())
    assert ahead < 300
    assert rest == 999


def test_an_outcome_says_who_answered_and_what_was_tried():
    world = World()
    role = world.role(Scripted("builder", refused()), Scripted("simple", "ok"), retry=THRICE)
    outcome = world.run(role.outcome("a house"))
    assert isinstance(outcome, Ok)
    assert (outcome.via, outcome.value.agent) == ("simple", "simple")
    assert [attempt.code for attempt in outcome.attempts] == ["CONN_RESET"] * 3 + [None]
    failed = world.run(world.role(Scripted("other", refused()), retry=ONCE).outcome("a house"))
    assert isinstance(failed, Err)
    assert failed.fault.code == "CONN_RESET"


# --- bad input ---


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda a: Role("", a), "role.name"),
        (
            lambda a: Role("builder", str),
            r"role\.agent: expected an agent: an Agent, a CommandAgent, a FunctionAgent or a Role",
        ),
        (lambda a: Role("builder", a, understudies=["simple"]), r"role\.understudies: expected an agent"),
        (lambda a: Role("a", a, understudies=[a]), r"other names than the role's own"),
        (lambda a: Role("builder", a, understudies=[a, a]), r"role\.understudies: expected each name once"),
        (lambda a: Role("builder", a, timeout=-1), r"role\.timeout"),
        (lambda a: Role("builder", a, consent="yes"), r"role\.consent"),
        (lambda a: Role("builder", a, retry=3), r"role\.retry: expected a Tries or None"),
        (lambda a: Role("builder", a, notify=3), r"role\.notify"),
    ],
)
def test_wrong_options_say_what_is_wrong(make, says):
    with pytest.raises(InvalidError, match=says):
        make(FunctionAgent("a", str))


def test_a_fallback_names_the_agent_that_failed_and_its_failure_and_not_the_role():
    world = World()
    claude = Scripted("guide-claude", HoldfastError(Fault.of("PROVIDER_OVERLOADED")))
    gpt = Scripted("guide-gpt", HoldfastError(Fault.of("AUTH_FAILED")))
    by_hand = Scripted("by-hand", "ok")
    agents = [claude.agent, gpt.agent, by_hand.agent]
    role = Role("guide", agents[0], understudies=agents[1:], retry=ONCE, runtime=world.runtime)
    lines: list[LiveLine] = []
    with watch_live(lines.append, world.runtime):
        parts = world.run(parts_of(role))
    assert [(part.from_, part.fault.code, part.to) for part in parts if isinstance(part, FellBack)] == [
        ("guide-claude", "PROVIDER_OVERLOADED", "guide-gpt"),
        ("guide-gpt", "AUTH_FAILED", "by-hand"),
    ]
    assert [(line.text, line.code) for line in lines if line.state == LiveWord.FALLBACK] == [
        ("fallback guide-claude → guide-gpt", "PROVIDER_OVERLOADED"),
        ("fallback guide-gpt → by-hand", "AUTH_FAILED"),
    ]


def test_one_agent_is_not_a_list_of_understudies():
    with pytest.raises(InvalidError) as caught:
        Role("guide", Scripted("a", "ok").agent, understudies=Scripted("b", "ok").agent)
    assert "role.understudies: expected a list of agents" in str(caught.value)


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), ValueError("no receipt")])
def test_no_understudy_does_what_an_unsafe_function_may_have_done(error: Exception, in_session: bool):
    world, bought = World(), []

    @tool(effect="unsafe")
    async def buy(prompt: str) -> str:
        bought.append(prompt)
        raise error

    async def buy_elsewhere(prompt: str) -> str:
        bought.append(prompt)
        return "bought"

    other = FunctionAgent("other", buy_elsewhere)
    role = Role("buyer", FunctionAgent("one", buy), understudies=[other], retry=THRICE, runtime=world.runtime)

    async def main() -> None:
        if not in_session:
            await role.run("a house")
            return
        async with Session.open("s", store=MemoryStore()) as session:
            await role.run("a house", session=session)

    with pytest.raises((type(error), OutcomeUnknownError)):
        world.run(main())
    assert bought == ["a house"]
