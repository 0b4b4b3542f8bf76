"""Stages on sessions: phases in order, each once; retries from Setup; parallel stages; resolutions; and a run goes on after any stop."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from holdfast import (
    Backoff,
    Err,
    Fault,
    HoldfastError,
    InvalidError,
    Ok,
    OutcomeUnknownError,
    Runtime,
    Session,
    Stage,
    StageMachine,
    Tries,
    call_key,
    fault_of,
)
from holdfast.events import SessionTurnEnd, SessionTurnStart, StagePostFired, StagePreFired
from holdfast.faults import AbortedError, BudgetError, Redactor
from holdfast.runtime.tool import NOT_HAPPENED, Happened, tool
from holdfast.sessions.later import run_due
from holdfast.sessions.parked_runs import ParkedError
from holdfast.stores import MemoryStore
from holdfast.stores.errors import unavailable
from holdfast.tasks.stages import END, Go, StageError
from holdfast.testing import VirtualClock
from holdfast.workflow.stage_lifecycle import PHASES

ONCE = Tries(attempts=1)


async def echo(work):
    return f"{work.stage}({work.prompt})"


async def broken(work):
    raise ConnectionError(f"{work.stage} is down")


def code_of(error):
    return error.value.fault.code


def watched(*kinds):
    runtime, seen = Runtime(), []
    runtime.on(seen.append, *kinds)
    return runtime, seen


# --- definitions ---


@pytest.mark.parametrize("cap", [0, -1])
def test_N2_6_a_turn_cap_below_one_is_rejected(cap):
    with pytest.raises(HoldfastError, match=f"at least 1, got {cap}") as error:
        Stage("a", echo, turn_cap=cap)
    assert code_of(error) == "TASK_TURN_CAP_TOO_LOW"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"files": {"type": "list"}}}, "$.properties.files"),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}}, "#/$defs/X is not in the schema"),
        ({"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}}, "pattern"),
        ({"type": "object", "properties": ["x"]}, "$.properties"),
        ({"type": "array"}, "expected 'object'"),
        (object, ""),
    ],
)
def test_N2_6_a_completion_schema_that_checks_nothing_is_rejected(schema, reason):
    with pytest.raises(HoldfastError) as error:
        Stage("a", echo, completion=schema)
    assert code_of(error) == "TASK_COMPLETION_SCHEMA_INVALID"
    assert reason in error.value.fault.message


@pytest.mark.parametrize(
    "options",
    [
        {"id": " "},
        {"act": 7},
        {"turn_cap": "20"},
        {"retry": Tries(attempts=None)},
        {"resolution": "retry"},
        {"detail": "all"},
        {"allowed_tools": "search"},
        {"setup": 7},
        {"body": 7},
        {"next": 7},
        {"completion_tool": "a b"},
    ],
)
def test_other_wrong_options_say_what_was_expected(options):
    with pytest.raises(InvalidError):
        Stage(**{"id": "a", "act": echo, **options})


@pytest.mark.parametrize("name", ["act", "setup", "init", "check_gate", "assert_", "exit", "next", "grant"])
def test_generator_functions_are_rejected_because_nobody_would_run_them(name):
    def plain(ctx):
        yield 1

    async def asynchronous(ctx):
        yield 1

    for given in (plain, asynchronous):
        with pytest.raises(InvalidError, match=f"stage a: {name}.*a generator function"):
            Stage(**{"id": "a", "act": echo, name: given})


def test_a_type_may_be_the_completion():
    class Plan(msgspec.Struct):
        files: list[str]

    assert Stage("a", echo, completion=Plan).completion_schema["properties"]["files"]["type"] == "array"


# --- one stage ---


async def test_N2_5_events_name_each_phase_the_session_and_the_step():
    runtime, seen = watched(StagePreFired, StagePostFired, SessionTurnStart, SessionTurnEnd)
    machine = StageMachine([Stage("plan", echo, check_gate=lambda ctx: "proceed")], runtime=runtime)
    async with Session.open("s", store=MemoryStore(), runtime=runtime) as session:
        await machine.run(session)
    assert isinstance(seen[0], SessionTurnStart)
    assert isinstance(seen[-1], SessionTurnEnd)
    assert (seen[0].stages, seen[-1].outcome) == (("plan",), "ok")
    fired = [(type(event), event.phase) for event in seen[1:-1]]
    assert fired == [(kind, phase) for phase in PHASES for kind in (StagePreFired, StagePostFired)]
    assert {event.session for event in seen} == {"s"}
    assert [event.step.rpartition("/")[2] for event in seen[1:-1:2]] == [f"plan.{phase}" for phase in PHASES]
    assert [event.outcome for event in seen[2:-1:2]] == ["", "", "proceed", "", "ok", "", ""]


async def test_N2_5_only_setup_writes_and_later_stages_read_what_it_wrote():
    seen = {}

    def setup(ctx):
        ctx["files"] = ["a.py"]
        ctx["drafts"] = ctx.get("drafts", 0) + 1

    def look(ctx):
        seen[ctx.phase] = (ctx["files"], ctx.results, ctx.act.value, ctx.outcome)

    first = Stage("plan", echo, body="go {drafts}", setup=setup, check_gate=look, assert_=look, exit=look)
    ended = await StageMachine([first, Stage("build", echo, body="{plan} with {files}")]).run()
    assert ended.value == 'build(plan(go 1) with ["a.py"])'
    assert ended.context == {"files": ["a.py"], "drafts": 1}
    assert seen["CheckGate"] == (["a.py"], {}, None, "")
    assert seen["Exit"] == (["a.py"], {}, "plan(go 1)", "ok")


def _writes(ctx):
    ctx["x"] = 1


def _deletes(ctx):
    del ctx["x"]


def _appends(ctx):
    ctx["list"].append(1)


def _sorts(ctx):
    ctx["deep"]["list"].sort()


def _updates(ctx):
    ctx.update(x=1)


@pytest.mark.parametrize("change", [_writes, _deletes, _appends, _sorts, _updates, lambda ctx: ctx.results.clear()])
@pytest.mark.parametrize("phase", ["init", "check_gate", "assert_", "exit", "next"])
async def test_N2_5_a_change_outside_of_setup_is_rejected_and_the_corrected_stage_goes_on(phase, change):
    store, ran = MemoryStore(), []

    async def act(work):
        ran.append(work.attempt)

    context = {"x": 0, "list": [2], "deep": {"list": [2, 1]}}

    async def start(**functions):
        async with Session.open("s", store=store) as session:
            return await StageMachine([Stage("a", act, **functions)]).run(session, inputs=context)

    with pytest.raises(HoldfastError) as error:
        await start(**{phase: change})
    assert code_of(error) == "TASK_CONTEXT_MUTATION"
    assert error.value.fault.context["phase"].casefold().startswith(phase[:4].rstrip("_").replace("chec", "check"))
    assert (await start()).context == context
    assert ran == [1], "an Act that is stored is not made again"


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0), ([1], [True])])
async def test_setup_may_write_what_python_calls_equal(before, after):
    def setup(ctx):
        ctx["n"] = after

    ended = await StageMachine([Stage("a", echo, setup=setup)]).run(inputs={"n": before})
    assert repr(ended.context["n"]) == repr(after)


async def test_setup_that_fails_has_changed_nothing():
    def setup(ctx):
        ctx["list"].append(1)
        if ctx.attempt == 1:
            raise ValueError("no")

    ended = await StageMachine([Stage("a", echo, setup=setup)]).run(inputs={"list": []})
    assert ended.context == {"list": [1]}
    assert ended.executions[0].attempts == 2


async def test_a_body_that_names_what_nobody_set_does_not_run():
    with pytest.raises(HoldfastError, match=r"ticket_id.*has ticketId") as error:
        await StageMachine([Stage("a", echo, body="Do {ticket_id}")]).run(inputs={"ticketId": 7})
    assert code_of(error) == "TASK_STAGE_CONTEXT_UNRESOLVED"


async def test_init_may_return_the_text_for_act():
    ended = await StageMachine([Stage("a", echo, init=lambda ctx: f"do {ctx['x']}")]).run(inputs={"x": 3})
    assert ended.value == "a(do 3)"


@pytest.mark.parametrize("verdict", ["skip", "retry"])
async def test_N2_5_a_gate_leaves_out_act(verdict):
    ran = []

    async def act(work):
        ran.append(work.attempt)

    gates = iter([verdict, "proceed"])
    machine = StageMachine([Stage("a", act, check_gate=lambda ctx: next(gates))])
    ended = await machine.run()
    assert ended.executions[0].outcome == ("skip" if verdict == "skip" else "ok")
    assert ran == ([] if verdict == "skip" else [2])


async def test_N2_4_the_turn_cap_ends_act_and_is_no_error():
    seen = []

    async def act(work):
        while work.attempt == 1:
            work.turn()
        return "done"

    stage = Stage("a", act, turn_cap=3, assert_=lambda ctx: seen.append(ctx.act) or None)
    ended = await StageMachine([stage]).run()
    assert [(act.cap_hit, act.turns) for act in seen] == [(True, 3), (False, 0)]
    assert (ended.value, ended.executions[0].attempts) == ("done", 2)


async def test_what_act_returned_cannot_be_changed_in_assert():
    def change(ctx):
        ctx.act.value["x"].append(2)

    async def act(work):
        return {"x": [1]}

    with pytest.raises(HoldfastError) as error:
        await StageMachine([Stage("a", act, assert_=change)]).run()
    assert code_of(error) == "TASK_CONTEXT_MUTATION"


@pytest.mark.parametrize("unit", ["turns", "model turns"])
async def test_the_bound_of_an_agent_that_a_function_runs_is_not_the_cap_of_the_stage(unit):
    async def act(work):
        work.turn()
        raise HoldfastError(Fault.of("TASK_LOOP_BOUND", context={"limit": 2, "unit": unit}))

    with pytest.raises(StageError) as error:
        await StageMachine([Stage("a", act, retry=ONCE)]).run()
    assert error.value.fault.context["cause"] == "TASK_LOOP_BOUND"


async def test_a_word_that_assert_cannot_say_is_rejected_before_it_is_stored():
    store = MemoryStore()

    async def start(word):
        async with Session.open("s", store=store) as session:
            return await StageMachine([Stage("a", echo, assert_=lambda ctx: word)]).run(session)

    with pytest.raises(InvalidError, match="what Assert returns"):
        await start("maybe")
    assert (await start("ok")).value == "a()"


async def test_S2_4_attempts_begin_with_setup_wait_between_and_are_counted():
    clock, phases = [], []
    loop = asyncio.get_running_loop()

    async def act(work):
        clock.append(loop.time())
        raise ConnectionError("down")

    stage = Stage(
        "a",
        act,
        setup=lambda ctx: phases.append(("Setup", ctx.attempt)),
        retry=Tries(attempts=3, backoff=Backoff(initial=5, curve="linear", jitter="none")),
    )
    with pytest.raises(StageError) as error:
        await StageMachine([stage]).run()
    assert phases == [("Setup", 1), ("Setup", 2), ("Setup", 3)]
    assert [later - clock[0] for later in clock] == [0, 5, 15]
    fault = error.value.fault
    assert (fault.code, fault.context["attempts"], fault.context["stage"]) == ("TASK_STAGE_FAILED", 3, "a")
    assert fault.context["cause"] == fault_of(ConnectionError("down")).code


async def test_the_wait_before_a_retry_does_not_begin_anew_after_a_restart():
    store, times, loop = MemoryStore(), [], asyncio.get_running_loop()

    async def act(work):
        times.append(loop.time())
        if work.attempt == 1:
            raise ConnectionError("down")

    wait = Backoff(initial=100, jitter="none", cap=100)
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    machine = StageMachine([Stage("a", act, retry=Tries(attempts=2, backoff=wait))], runtime=runtime)
    async with Session.open("s", store=store) as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await machine.run(session)
        clock.advance(60)
        await machine.run(session)
    assert times[1] - times[0] == pytest.approx(100)


ROUTES = [
    {},
    {"retry": Tries(attempts=3)},
    {"resolution": "skip"},
    {"resolution": "retry-later"},
    {"resolution": "retry-later", "ask": True},
    {"next": lambda ctx: "other" if ctx.outcome == "fail" else END},
]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("route", ROUTES)
async def test_nothing_follows_from_an_unsafe_act_that_may_have_happened(route, stored):
    ran, store = [], MemoryStore()

    @tool(effect="unsafe")
    async def pay(work):
        ran.append("paid")
        raise TimeoutError("no answer")

    async def pay_elsewhere(work):
        ran.append("paid elsewhere")

    machine = StageMachine([Stage("pay", pay, **route), Stage("other", pay_elsewhere)])
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match=r"pay.*no answer"):
            if stored:
                async with Session.open("s", store=store) as session:
                    await machine.run(session)
            else:
                await machine.run()
    assert ran == (["paid"] if stored else ["paid", "paid"]), "once in each run"
    if not stored:
        return
    async with Session.open("s", store=store) as session:
        (key,) = session.unknown
        await session.resolve(key, happened=True, result="receipt")
        assert (await machine.run(session)).results["pay"] == "receipt"


@pytest.mark.parametrize(
    ("verdict", "then"), [(NOT_HAPPENED, ["pay", "pay", "other"]), (Happened("receipt"), ["pay", "other"])]
)
async def test_verify_settles_an_unsafe_act_that_failed(verdict, then):
    ran, asked = [], []

    def look(key, work):
        asked.append((key == keys[0], work.stage, work.attempt))
        return verdict

    keys = []

    @tool(effect="unsafe", verify=look)
    async def pay(work):
        ran.append("pay")
        keys.append(call_key())
        if len(ran) == 1:
            raise ConnectionResetError("the answer is lost")
        return "receipt"

    async def other(work):
        ran.append("other")

    async with Session.open("s", store=MemoryStore()) as session:
        ended = await StageMachine([Stage("pay", pay), Stage("other", other)]).run(session)
        assert session.unknown == ()
    assert (ended.results["pay"], ran) == ("receipt", then)
    # What it does not find by the key that was sent may have another one.
    assert asked == [(True, "pay", 1), (False, "pay", 1)][: 2 if verdict is NOT_HAPPENED else 1]


# --- where a stage leads ---


async def test_S2_3_next_routes_a_failed_attempt_to_a_repair_stage():
    async def build(work):
        if "repaired" not in work.prompt:
            raise ConnectionError("red")
        return "green"

    def after_build(ctx):
        return "repair" if ctx.outcome == "fail" else END

    def prompt(ctx):
        return "repaired" if "repair" in ctx.results else ""

    machine = StageMachine([Stage("build", build, init=prompt, next=after_build), Stage("repair", echo, next="build")])
    ended = await machine.run()
    assert ended.value == "green"
    assert [(each.stage, each.outcome) for each in ended.executions] == [
        ("build", "fail"),
        ("repair", "ok"),
        ("build", "ok"),
    ]


async def test_S2_5_skip_goes_on_without_the_stage_and_later_ones_see_why():
    seen = []
    machine = StageMachine(
        [
            Stage("a", broken, resolution="skip"),
            Stage("b", echo, setup=lambda ctx: seen.append((dict(ctx.results), ctx.failures["a"].code))),
        ]
    )
    assert (await machine.run()).value == "b()"
    assert seen == [({}, "TASK_STAGE_FAILED")]


async def test_S2_5_abort_ends_the_run_with_what_there_is():
    machine = StageMachine([Stage("a", echo), Stage("b", broken), Stage("c", echo)])
    with pytest.raises(StageError, match="Stage b cannot recover after 2 attempts") as error:
        await machine.run()
    assert error.value.ended.results == {"a": "a()"}


async def test_an_aborted_run_has_ended_it_is_the_same_after_a_restart_and_the_next_call_is_another_run():
    store, ran = MemoryStore(), []

    async def act(work):
        ran.append(1)
        if len(ran) < 3:
            raise ConnectionError("down")
        return "up"

    machine = StageMachine([Stage("a", act, retry=ONCE)])
    for _ in range(2):
        async with Session.open("s", store=store) as session:
            with pytest.raises(StageError):
                await machine.run(session)
    assert len(ran) == 1
    async with Session.open("s", store=store) as session:
        for _ in range(2):
            with pytest.raises(StageError):
                await machine.run(session)
        assert (await machine.run(session)).value == "up"


# --- retry later ---


def down_until(count):
    ran = []

    async def act(work):
        ran.append(work.execution)
        if len(ran) < count:
            raise ConnectionError("down")
        return "up"

    return act, ran


def later(**options):
    backoff = Backoff(initial=100, curve="fixed", jitter="none", cap=100)
    return {"retry": ONCE, "resolution": "retry-later", "later": Tries(attempts=3, backoff=backoff), **options}


async def test_S2_5_retry_later_is_a_durable_timer_that_others_see():
    clock, store = VirtualClock(), MemoryStore()
    runtime = Runtime(clock=clock)
    act, ran = down_until(2)
    before = []

    async def first(work):
        before.append(1)

    machine = StageMachine([Stage("first", first), Stage("a", act, **later())], runtime=runtime)

    async def start():
        async with Session.open("s", store=store, runtime=runtime) as session:
            try:
                return await machine.run(session)
            finally:
                parked.append([run.until for run in session.parked.all()])

    parked: list[Any] = []
    with pytest.raises(ParkedError) as error:
        await start()
    assert error.value.until == clock.wall() + 100
    assert error.value.fault.code == "TASK_STAGE_FAILED"
    assert parked == [[error.value.until]]
    clock.advance(50)
    with pytest.raises(ParkedError) as error:
        await start()
    assert error.value.fault.retry_after == 50
    assert len(ran) == 1, "before its time nothing is done"
    clock.advance(50)
    assert (await start()).value == "up"
    assert parked[-1] == []
    assert len(set(ran)) == 2, "it is another execution"
    assert before == [1]


async def test_S2_5_a_due_run_that_another_machine_of_its_name_takes_stops_before_anything_is_done():
    clock, store, done = VirtualClock(), MemoryStore(), []
    runtime = Runtime(clock=clock)
    act, _ = down_until(2)
    machine = StageMachine([Stage("a", act, **later())], runtime=runtime)
    other = StageMachine([Stage("b", lambda _: done.append(1))], runtime=runtime)
    with pytest.raises(ParkedError):
        async with Session.open("s", store=store, runtime=runtime) as session:
            await machine.run(session)
    clock.advance(100)
    (due,) = [run async for run in run_due(store, other, runtime=runtime)]
    assert due.outcome.fault.code == "SESS_STEP_DRIFT"
    assert done == []
    # It is still there for the machine that it belongs to.
    clock.advance(600)
    (due,) = [run async for run in run_due(store, machine, runtime=runtime)]
    assert due.outcome.value.value == "up"


async def test_any_process_that_knows_the_machine_goes_on_when_a_stage_is_due():
    clock, store = VirtualClock(), MemoryStore()
    runtime = Runtime(clock=clock)
    act, _ = down_until(2)
    machine = StageMachine([Stage("a", act, body="{x}", **later())], name="release", runtime=runtime)
    with pytest.raises(ParkedError):
        async with Session.open("s", store=store, runtime=runtime) as session:
            await machine.run(session, inputs={"x": 1})
    assert [run async for run in run_due(store, machine, runtime=runtime)] == []
    clock.advance(100)
    (due,) = [run async for run in run_due(store, machine, runtime=runtime)]
    assert (due.program, due.outcome.value.value) == ("stages release", "up")


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_longer_time_that_the_provider_says_counts_for_retry_later(parallel):
    async def act(work):
        raise HoldfastError(Fault.of("PROVIDER_RATE_LIMITED", retry_after=3600))

    runtime = Runtime(clock=VirtualClock())
    stage = Stage("a", act, **later())
    machine = StageMachine(fan(stage, Stage("b", echo)) if parallel else [stage], runtime=runtime)
    async with Session.open("s", store=MemoryStore(), runtime=runtime) as session:
        with pytest.raises(ParkedError) as error:
            await machine.run(session)
    assert error.value.until == runtime.clock.wall() + 3600


@pytest.mark.parametrize("again", [600, 50])
async def test_a_due_run_that_a_used_up_budget_or_usage_limit_stops_comes_again_later(again):
    """A usage limit says when it ends. After another failure that does not end the run, it is ten minutes."""
    clock, store = VirtualClock(), MemoryStore()
    runtime = Runtime(clock=clock)
    until, ran = clock.wall() + 100 + again, []

    async def act(work):
        ran.append(clock.wall())
        if len(ran) == 1:
            raise ConnectionError("down")
        if clock.wall() < until:
            limit = Fault.of("PROVIDER_QUOTA_EXHAUSTED", context={"parked_until": until})
            raise ParkedError(limit) if again == 50 else BudgetError(Fault.of("SYS_BUDGET_EXHAUSTED"))
        return "up"

    async def due():
        return [run.outcome async for run in run_due(store, machine, runtime=runtime)]

    machine = StageMachine([Stage("a", act, **later())], runtime=runtime)
    with pytest.raises(ParkedError):
        async with Session.open("s", store=store, runtime=runtime) as session:
            await machine.run(session)
    clock.advance(100)
    (outcome,) = await due()
    assert isinstance(outcome, Err)
    clock.advance(again - 1)
    assert await due() == []
    clock.advance(1)
    (outcome,) = await due()
    assert isinstance(outcome, Ok)
    assert len(ran) == 3
    assert await due() == []


async def test_a_machine_that_is_parked_inside_of_another_one_goes_on_with_that_one():
    clock, store = VirtualClock(), MemoryStore()
    runtime = Runtime(clock=clock)
    act, ran = down_until(2)
    inner = StageMachine([Stage("a", act, **later())], name="inner", runtime=runtime)

    async def release(work):
        return (await inner.run(work.session)).value

    outer = StageMachine([Stage("release", release), Stage("report", echo)], name="outer", runtime=runtime)
    with pytest.raises(ParkedError):
        async with Session.open("s", store=store, runtime=runtime) as session:
            await outer.run(session)
    clock.advance(100)
    assert [run async for run in run_due(store, inner, runtime=runtime)] == []
    (due,) = [run async for run in run_due(store, inner, outer, runtime=runtime)]
    assert isinstance(due.outcome, Ok)
    assert (due.program, due.outcome.value.results["release"]) == ("stages outer", "up")
    assert len(ran) == 2
    assert [run async for run in run_due(store, inner, outer, runtime=runtime)] == []


async def test_a_stage_that_was_put_off_goes_on_earlier_if_somebody_lets_it():
    runtime, store = Runtime(clock=VirtualClock()), MemoryStore()
    act, _ = down_until(2)
    machine = StageMachine([Stage("a", act, **later())], runtime=runtime)
    async with Session.open("s", store=store, runtime=runtime) as session:
        with pytest.raises(ParkedError):
            await machine.run(session)
        await session.parked.unpark(session.parked.all()[0].agent, by="ann")
        assert (await machine.run(session)).value == "up"


@pytest.mark.parametrize(("count", "ends"), [(3, "up"), (9, None)])
async def test_without_a_session_a_run_waits_for_its_stages_and_ends_after_the_last_attempt(count, ends):
    act, ran = down_until(count)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    machine = StageMachine([Stage("a", act, **later())])
    if ends is None:
        with pytest.raises(StageError):
            await machine.run()
    else:
        assert (await machine.run()).value == ends
    assert (len(ran), loop.time() - begun) == (3, 200)


async def test_with_ask_the_operator_decides_after_the_last_attempt():
    store, (act, ran) = MemoryStore(), down_until(2)
    machine = StageMachine([Stage("a", act, **later(ask=True, later=ONCE))])
    async with Session.open("s", store=store) as session:
        with pytest.raises(HoldfastError) as error:
            await machine.run(session)
        assert code_of(error) == "SESS_NO_INTERACTOR"
        await session.answer(session.pending[0].id, approved=True, by="ann")
        assert (await machine.run(session)).value == "up"
    assert len(ran) == 2


# --- parallel stages ---


def fan(*siblings, **merge):
    ids = tuple(stage.id for stage in siblings)
    split = Stage("split", echo, next=Go(stages=ids, execution="parallel", join="merge"))
    return [split, *siblings, Stage("merge", echo, **merge), Stage("done", echo)]


async def test_N2_7_siblings_run_at_the_same_time_as_one_compound_turn_and_the_join_has_their_values():
    runtime, seen = watched(SessionTurnStart, SessionTurnEnd)
    loop = asyncio.get_running_loop()
    begun = loop.time()

    async def act(work):
        await asyncio.sleep(10)
        return work.stage

    def setup(ctx):
        ctx[f"by_{ctx.stage}"] = ctx.stage

    stages = fan(Stage("a", act, setup=setup), Stage("b", act, setup=setup), body="{a} {b} {by_a} {by_b}")
    ended = await StageMachine(stages, runtime=runtime).run()
    assert loop.time() - begun == 10
    assert ended.results["merge"] == "merge(a b a b)"
    assert [event.stages for event in seen if isinstance(event, SessionTurnStart)] == [
        ("split",),
        ("a", "b"),
        ("merge",),
        ("done",),
    ]


async def test_N2_7_the_first_failure_stops_the_others_and_the_join_does_not_run():
    ended = []

    async def slow(work):
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(work.stage)

    async def fails(work):
        await asyncio.sleep(1)
        raise ConnectionError("red")

    runtime, seen = watched(SessionTurnEnd)
    machine = StageMachine(fan(Stage("a", slow), Stage("b", fails, retry=ONCE), Stage("c", slow)), runtime=runtime)
    with pytest.raises(StageError, match="Parallel stage b failed") as error:
        await machine.run()
    assert (error.value.fault.code, error.value.fault.context["stage"]) == ("TASK_SIBLING_FAILED", "b")
    assert sorted(ended) == ["a", "c"]
    assert "merge" not in error.value.ended.results
    assert [event.outcome for event in seen] == ["ok", "fail"]


async def test_N2_7_a_failed_fan_out_fails_in_the_same_way_after_a_restart_and_nobody_runs_again():
    store, ran = MemoryStore(), []

    async def slow(work):
        ran.append(work.stage)
        await asyncio.sleep(100)

    async def fails(work):
        ran.append(work.stage)
        await asyncio.sleep(1)
        raise ConnectionError("red")

    machine = StageMachine(fan(Stage("a", slow), Stage("b", fails, retry=ONCE), Stage("c", echo)))
    for _ in range(2):
        async with Session.open("s", store=store) as session:
            with pytest.raises(StageError) as error:
                await machine.run(session)
            assert code_of(error) == "TASK_SIBLING_FAILED"
            ends = [(each.stage, each.outcome, each.value) for each in error.value.ended.executions]
            assert ends == [("split", "ok", "split()"), ("c", "ok", "c()"), ("b", "fail", None)]
    assert ran == ["a", "b"]


async def test_N2_7_a_fan_out_whose_failed_stage_is_skipped_goes_on_after_its_join():
    ended = await StageMachine(fan(Stage("a", echo), Stage("b", broken, resolution="skip"))).run()
    assert [each.stage for each in ended.executions if each.outcome == "ok"][-1] == "done"
    assert "merge" not in ended.results


async def test_a_sibling_that_skips_itself_violates_the_join():
    machine = StageMachine(fan(Stage("a", echo), Stage("b", echo, check_gate=lambda ctx: "skip")))
    with pytest.raises(HoldfastError) as error:
        await machine.run()
    assert code_of(error) == "TASK_JOIN_VIOLATED"


async def test_a_branch_goes_on_with_its_own_stages_and_fans_out_itself():
    inner = Go(stages=("x", "y"), execution="parallel", join="inner")
    stages = fan(Stage("a", echo, next=inner), Stage("b", echo))
    stages += [Stage("x", echo), Stage("y", echo), Stage("inner", echo, body="{x}{y}", next=END)]
    ended = await StageMachine(stages).run()
    assert ended.results["inner"] == "inner(x()y())"
    assert ended.results["done"] == "done()"


def unsafe_act(ran, seconds=100):
    @tool(effect="unsafe")
    async def pay(work):
        ran.append(work.execution)
        await asyncio.sleep(seconds)
        return "paid"

    return pay


async def late_failure(work):
    await asyncio.sleep(1)
    raise ConnectionError("red")


@pytest.mark.parametrize("stored", [True, False])
async def test_an_unsafe_sibling_that_was_stopped_is_reported(stored):
    ran, store = [], MemoryStore()
    machine = StageMachine(fan(Stage("pay", unsafe_act(ran)), Stage("b", late_failure, retry=ONCE)))
    for _ in range(2):
        with pytest.raises(StageError, match=r"This may have happened: .*pay\.Act") as error:
            if stored:
                async with Session.open("s", store=store) as session:
                    await machine.run(session)
            else:
                await machine.run()
        assert error.value.fault.maybe_executed
        assert [key.endswith("pay.Act") for key in error.value.fault.context["in_doubt"]] == [True]
    assert len(ran) == (1 if stored else 2), "once in each run"


async def test_after_skipped_siblings_later_stages_see_why_and_what_may_have_happened():
    seen, ran = [], []
    stages = fan(Stage("pay", unsafe_act(ran)), Stage("b", late_failure, retry=ONCE, resolution="skip"))
    stages[-1] = Stage("done", echo, setup=lambda ctx: seen.append(ctx.failures["b"]))
    async with Session.open("s", store=MemoryStore()) as session:
        await StageMachine(stages).run(session)
    (fault,) = seen
    assert (fault.code, fault.maybe_executed) == ("TASK_SIBLING_FAILED", True)
    assert [key.endswith("pay.Act") for key in fault.context["in_doubt"]] == [True]


@pytest.mark.parametrize("seconds", [0, 100])
async def test_siblings_of_a_stage_that_is_put_off_go_on_and_nothing_unsafe_happens_twice(seconds):
    clock, store, ran, down = VirtualClock(), MemoryStore(), [], [1]
    runtime = Runtime(clock=clock)

    async def flaky(work):
        await asyncio.sleep(1)
        if down:
            raise ConnectionError("red")
        return "green"

    machine = StageMachine(fan(Stage("pay", unsafe_act(ran, seconds)), Stage("b", flaky, **later())), runtime=runtime)

    async def start():
        async with Session.open("s", store=store, runtime=runtime) as session:
            return await machine.run(session)

    with pytest.raises(ParkedError):
        await start()
    clock.advance(100)
    down.clear()
    if seconds:
        with pytest.raises(OutcomeUnknownError) as error:
            await start()
        async with Session.open("s", store=store, runtime=runtime) as session:
            await session.resolve(error.value.key, happened=True, result="paid")
    ended = await start()
    assert len(ran) == 1
    assert (ended.results["pay"], ended.results["b"]) == ("paid", "green")
    assert [each.stage for each in ended.executions].count("pay") == 1


async def test_an_unsafe_sibling_stays_reported_while_another_one_is_put_off_again():
    ran = []
    tries = Tries(attempts=3, backoff=Backoff(initial=0))
    failing = Stage("b", late_failure, retry=ONCE, resolution="retry-later", later=tries)
    async with Session.open("s", store=MemoryStore()) as session:
        with pytest.raises(StageError) as error:
            await StageMachine(fan(Stage("pay", unsafe_act(ran)), failing)).run(session)
        assert error.value.fault.context["in_doubt"] == list(session.unknown)
    assert len(ran) == 1


async def test_siblings_that_failed_together_are_both_executed_again():
    clock, store, ran = VirtualClock(), MemoryStore(), []
    runtime = Runtime(clock=clock)

    async def flaky(work):
        ran.append(work.stage)
        await asyncio.sleep(1)
        if len(ran) <= 2:
            raise ConnectionError("red")
        return "green"

    machine = StageMachine(fan(Stage("a", flaky, **later()), Stage("b", flaky, **later())), runtime=runtime)
    async with Session.open("s", store=store, runtime=runtime) as session:
        with pytest.raises(ParkedError):
            await machine.run(session)
        clock.advance(100)
        ended = await machine.run(session)
    assert sorted(ran) == ["a", "a", "b", "b"]
    assert (ended.results["a"], ended.results["b"]) == ("green", "green")


async def test_a_question_in_one_sibling_lets_the_others_finish():
    ran, store = [], MemoryStore()

    async def asks(work):
        return await work.session.confirm("sure?")

    machine = StageMachine(fan(Stage("a", asks), Stage("pay", unsafe_act(ran, 10))))
    for _ in range(2):
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError) as error:
                await machine.run(session)
            assert code_of(error) == "SESS_NO_INTERACTOR"
            assert session.unknown == ()
    assert len(ran) == 1


async def test_a_sibling_of_unknown_outcome_lets_the_others_finish():
    ran, other, store = [], [], MemoryStore()
    both = [Stage("pay", unsafe_act(ran, 5)), Stage("post", unsafe_act(other, 10))]
    async with Session.open("s", store=store) as session:
        running = asyncio.ensure_future(StageMachine(fan(*both)).run(session))
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await session.resolve(next(key for key in session.unknown if "post" in key), happened=False)
    for _ in range(2):
        async with Session.open("s", store=store) as session:
            with pytest.raises(OutcomeUnknownError, match="pay"):
                await StageMachine(fan(*both)).run(session)
    assert (len(ran), len(other)) == (1, 2)


async def test_N2_7_a_branch_that_fans_out_to_the_outer_join_does_not_run_it_early():
    inner = Go(stages=("x", "y"), execution="parallel", join="merge")
    stages = [*fan(Stage("a", echo, next=inner), Stage("b", echo)), Stage("x", echo), Stage("y", echo)]
    with pytest.raises(HoldfastError, match="a is in a branch of it") as error:
        await StageMachine(stages).run()
    assert code_of(error) == "TASK_JOIN_VIOLATED"


async def test_stages_that_fan_out_again_and_again_end_at_the_limit_of_the_machine():
    ran = []

    async def act(work):
        ran.append(work.stage)

    # Each round fans out in every branch, so a limit for each branch would allow 20 to the power of the rounds.
    stages = fan(Stage("a", act, next="more"), Stage("b", act, next="more"))
    stages += [Stage("more", act, next=Go(stages=("x", "y"), execution="parallel", join="inner"))]
    stages += [Stage("x", act, next="x"), Stage("y", act, next="y"), Stage("inner", act, next="more")]
    with pytest.raises(HoldfastError) as error:
        await StageMachine(stages, limit=20).run()
    assert code_of(error) == "TASK_LOOP_BOUND"
    assert len(ran) < 20


# --- cancellation ---


async def test_a_stage_that_is_cancelled_stops_the_run_and_goes_on_there():
    store, began = MemoryStore(), []

    async def act(work):
        began.append(work.stage)
        if len(began) == 2:
            await asyncio.sleep(100)
        return work.stage

    machine = StageMachine([Stage("a", act), Stage("b", act)])
    async with Session.open("s", store=store) as session:
        running = asyncio.ensure_future(machine.run(session))
        await asyncio.sleep(1)
        assert machine.cancel("b")
        assert not machine.cancel("a")
        with pytest.raises(AbortedError) as error:
            await running
        assert code_of(error) == "TASK_STAGE_CANCELLED"
        assert (await machine.run(session)).value == "b"
    assert began == ["a", "b", "b"]


async def test_a_plain_act_that_was_cancelled_ends_before_it_begins_again():
    log, begun, may_end = [], asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def act(work):
        log.append("begin")
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(10)
        log.append("end")
        return len(log)

    machine = StageMachine([Stage("a", act)])
    async with Session.open("s", store=MemoryStore()) as session:
        running = asyncio.ensure_future(machine.run(session))
        await begun.wait()
        machine.cancel("a")
        with pytest.raises(AbortedError):
            await running
        assert log == ["begin"]
        for cancels in (True, False):
            again = asyncio.ensure_future(machine.run(session))
            for _ in range(50):
                await asyncio.sleep(0)
            assert log == ["begin"], "it waits for the function that still runs"
            if cancels:
                again.cancel()
                await asyncio.wait([again])
        may_end.set()
        assert (await again).value == 4
    assert log == ["begin", "end"] * 2


async def test_a_cancelled_stage_has_the_ends_of_its_phase_and_turn():
    runtime, seen = watched(StagePreFired, StagePostFired, SessionTurnStart, SessionTurnEnd)

    async def slow(work):
        await asyncio.sleep(100)

    machine = StageMachine([Stage("a", slow)], runtime=runtime)
    running = asyncio.ensure_future(machine.run())
    await asyncio.sleep(1)
    machine.cancel("a")
    with pytest.raises(AbortedError):
        await running
    assert isinstance(seen[-1], SessionTurnEnd)
    assert isinstance(seen[-2], StagePostFired)
    assert (seen[-1].outcome, seen[-2].outcome, seen[-2].phase) == ("cancelled", "cancelled", "Act")


async def test_a_stage_that_waits_for_a_person_has_the_ends_of_its_phase_and_turn():
    runtime, seen = watched(StagePostFired, SessionTurnEnd)

    async def asks(work):
        return await work.session.confirm("sure?")

    with pytest.raises(HoldfastError):
        async with Session.open("s", store=MemoryStore(), runtime=runtime) as session:
            await StageMachine([Stage("a", asks)], runtime=runtime).run(session)
    assert [(event.outcome, event.fault.code) for event in seen[-2:]] == [("waiting", "SESS_NO_INTERACTOR")] * 2


async def test_a_run_that_is_cancelled_leaves_nothing_running():
    ended = []

    async def slow(work):
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(work.stage)

    running = asyncio.ensure_future(StageMachine(fan(Stage("a", slow), Stage("b", slow))).run())
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == ["a", "b"]


# --- tools and grants of functions ---


def tools(ran):
    @tool(effect="unsafe")
    async def deploy(version: str) -> str:
        ran.append(version)
        return f"deployed {version}"

    @tool(effect="read")
    async def read(path: str) -> str:
        raise FileNotFoundError(path)

    return [deploy, read]


async def test_S2_3_a_failed_tool_call_is_typed_and_assert_sees_it():
    seen = []

    async def act(work):
        answer = await work.call("read", path="gone.txt")
        return answer.fault.code

    stage = Stage("a", act, assert_=lambda ctx: seen.extend(ctx.act.failures) or "ok")
    ended = await StageMachine([stage], tools=tools([])).run()
    assert ended.value == seen[0].code
    assert seen[0].code.startswith("TOOL_")


async def test_a_tool_that_the_stage_does_not_allow_is_not_called():
    ran = []

    async def act(work):
        return (await work.call("deploy", version="4.2")).fault.code

    machine = StageMachine([Stage("a", act, allowed_tools=["read"])], tools=tools(ran))
    assert (await machine.run()).value == "TOOL_APPROVAL_DENIED"
    assert ran == []


async def test_N2_8_a_grant_is_for_one_call_with_exactly_its_arguments():
    ran, codes, proposals = [], [], []

    def grant(proposal):
        proposals.append(proposal)
        return {"4.2": "approve", "5": "deny", "6": "defer"}[proposal.arguments["version"]]

    async def act(work):
        token = await work.propose("deploy", version="4.2")
        for version, given in (("4.3", token), ("4.2", "grant-of-nobody"), ("4.2", token), ("4.2", token)):
            answer = await work.call("deploy", grant=given, version=version)
            codes.append(None if answer.fault is None else answer.fault.code)
        return [await work.propose("deploy", version="5"), await work.propose("deploy", version="6")]

    ended = await StageMachine([Stage("a", act, grant=grant)], tools=tools(ran)).run()
    assert codes == ["TASK_GRANT_INVALID", "TASK_GRANT_INVALID", None, "TASK_GRANT_CONSUMED"]
    assert ran == ["4.2"]
    assert ended.value == [None, None], "defer denies, too"
    assert (proposals[0].attempt, proposals[0].tool) == (1, "deploy")


@pytest.mark.parametrize("decision", ["deny", "defer", None])
async def test_N2_8_a_call_without_a_grant_does_not_run_in_a_stage_that_has_a_grant_function(decision):
    ran, seen = [], []

    async def act(work):
        denied = await work.call("deploy", grant=await work.propose("deploy", version="5"), version="5")
        unasked = await work.call("deploy", version="5")
        return [denied.fault.code, unasked.fault.code]

    stage = Stage("a", act, grant=lambda proposal: decision, assert_=lambda ctx: seen.extend(ctx.act.failures))
    ended = await StageMachine([stage], tools=tools(ran)).run()
    assert ended.value == ["TASK_GRANT_INVALID"] * 2
    assert ran == []
    assert "work.propose" in seen[0].message


async def test_equal_proposals_at_the_same_time_ask_once():
    asked = []

    async def grant(proposal):
        asked.append(proposal.id)
        await asyncio.sleep(1)
        return "approve"

    async def act(work):
        return len(set(await asyncio.gather(*[work.propose("deploy", version="1") for _ in range(3)])))

    assert (await StageMachine([Stage("a", act, grant=grant)], tools=tools([])).run()).value == 1
    assert len(asked) == 1


def test_a_tool_that_the_machine_does_not_have_cannot_be_allowed_to_a_function():
    with pytest.raises(InvalidError, match="did you mean `deploy`"):
        StageMachine([Stage("a", echo, allowed_tools=["deplyo"])], tools=tools([]))


async def test_N2_8_a_grant_ends_with_its_attempt():
    tokens, codes = [], []

    async def act(work):
        tokens.append(await work.propose("deploy", version="4.2"))
        answer = await work.call("deploy", grant=tokens[0], version="4.2")
        codes.append(None if answer.fault is None else answer.fault.code)
        if work.attempt == 1:
            raise ConnectionError("down")

    ran = []
    await StageMachine([Stage("a", act, grant=lambda proposal: "approve")], tools=tools(ran)).run()
    assert codes == [None, "TASK_GRANT_EXPIRED"]


async def test_N2_8_a_used_grant_stays_used_after_a_crash():
    store, ran, codes = MemoryStore(), [], []

    async def act(work):
        token = await work.propose("deploy", version="4.2")
        for _ in range(2):
            answer = await work.call("deploy", grant=token, version="4.2")
            codes.append(answer.content if answer.fault is None else answer.fault.code)
            if len(codes) == 1:
                raise Killed
        return codes[-2:]

    machine = StageMachine([Stage("a", act, grant=lambda proposal: "approve")], tools=tools(ran))
    with pytest.raises(Killed):
        async with Session.open("s", store=store) as session:
            await machine.run(session)
    async with Session.open("s", store=store) as session:
        # The call that was made has its stored result; another call with the grant is not made.
        assert (await machine.run(session)).value == ["deployed 4.2", "TASK_GRANT_CONSUMED"]
    assert ran == ["4.2"]


async def test_two_calls_with_one_grant_one_of_them_runs():
    ran = []

    async def act(work):
        token = await work.propose("deploy", version="4.2")
        answers = await asyncio.gather(*[work.call("deploy", grant=token, version="4.2") for _ in range(3)])
        return sorted(answer.fault is None for answer in answers)

    async with Session.open("s", store=MemoryStore()) as session:
        machine = StageMachine([Stage("a", act, grant=lambda proposal: "approve")], tools=tools(ran))
        assert (await machine.run(session)).value == [False, False, True]
    assert ran == ["4.2"]


def deploying(ran, **options):
    """A machine whose Act calls an unsafe tool, which the first time ends with its process."""

    @tool(effect="unsafe", **options)
    async def deploy(version: str) -> str:
        ran.append(version)
        if len(ran) == 1:
            raise Killed
        return "deployed again"

    async def act(work):
        answer = await work.call("deploy", version="4.2")
        return [answer.content, answer.value]

    return StageMachine([Stage("a", act)], tools=[deploy])


@pytest.mark.parametrize(
    ("resolution", "value"),
    [
        ({"happened": True, "result": "deployed"}, ["deployed", "deployed"]),
        ({"happened": True, "result": {"fault": 1}}, ['{"fault":1}', {"fault": 1}]),
        ({"happened": True}, ["null", None]),
        ({"happened": False}, ["deployed again", "deployed again"]),
    ],
)
async def test_an_unsafe_call_of_a_function_that_was_cut_goes_on_with_what_a_person_says(resolution, value):
    store, ran = MemoryStore(), []
    machine = deploying(ran)
    with pytest.raises(Killed):
        async with Session.open("s", store=store) as session:
            await machine.run(session)
    async with Session.open("s", store=store) as session:
        with pytest.raises(OutcomeUnknownError):
            await machine.run(session)
        await session.resolve(session.unknown[0], by="ann", **resolution)
        ended = await machine.run(session)
    assert (ended.value, ended.executions[0].attempts) == (value, 1)
    assert len(ran) == (1 if resolution["happened"] else 2)


async def test_the_verify_of_a_tool_settles_a_call_of_a_function_that_was_cut():
    store, ran, keys = MemoryStore(), [], []

    def verify(key, version):
        keys.append(key)
        return Happened(f"verified {version}")

    machine = deploying(ran, verify=verify)
    with pytest.raises(Killed):
        async with Session.open("s", store=store) as session:
            await machine.run(session)
    async with Session.open("s", store=store) as session:
        assert (await machine.run(session)).value == ["verified 4.2", "verified 4.2"]
    assert ran == ["4.2"]
    assert keys[0].endswith("deploy/1"), "the key that the tool sent"


async def test_a_secret_in_the_result_of_a_tool_is_masked_and_the_tool_runs_once():
    secret = "zq9-" + "Ab3dEf9hIj" * 4
    ran, store = [], MemoryStore(redactor=Redactor.knowing([secret]))

    @tool(effect="unsafe")
    async def show() -> dict[str, str]:
        ran.append(1)
        return {"key": secret}

    async def act(work):
        return (await work.call("show")).value["key"]

    async with Session.open("s", store=store) as session:
        ended = await StageMachine([Stage("a", act)], tools=[show]).run(session)
    assert ran == [1]
    assert secret not in ended.value


async def test_an_unsafe_call_whose_result_cannot_be_stored_is_not_made_again():
    ran = []

    class Full(MemoryStore):
        """The disk is full as soon as the call has been made."""

        async def commit(self, commit):
            if ran and not free:
                raise unavailable("the disk is full")
            return await super().commit(commit)

    @tool(effect="unsafe")
    async def show() -> str:
        ran.append(1)
        return "shown"

    async def act(work):
        return (await work.call("show")).is_error

    store, free = Full(), False
    with pytest.raises(HoldfastError):
        async with Session.open("s", store=store) as session:
            await StageMachine([Stage("a", act)], tools=[show]).run(session)
    free = True
    async with Session.open("s", store=store) as session:
        with pytest.raises(OutcomeUnknownError):
            await StageMachine([Stage("a", act)], tools=[show]).run(session)
    assert ran == [1]


@pytest.mark.parametrize("stored", [True, False])
async def test_an_unsafe_call_whose_outcome_is_unknown_is_not_made_again_in_another_attempt(stored):
    ran = []

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        ran.append(amount)
        raise TimeoutError("no answer")

    async def act(work):
        answer = await work.call("pay", amount=7)
        return {"paid": answer.value}

    machine = StageMachine(
        [Stage("a", act, assert_=lambda ctx: "ok" if ctx.act.value["paid"] else "retry")], tools=[pay]
    )
    if not stored:
        with pytest.raises(OutcomeUnknownError):
            await machine.run()
        assert ran == [7]
        return
    async with Session.open("s", store=MemoryStore()) as session:
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError):
                await machine.run(session)
        assert ran == [7]
        await session.resolve(session.unknown[0], happened=True, result="receipt 9", by="ann")
        assert (await machine.run(session)).value == {"paid": "receipt 9"}
    assert ran == [7]


async def test_a_result_of_another_form_fails_the_attempt():
    async def act(work):
        return {"ok": "yes" if work.attempt == 1 else True}

    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    ended = await StageMachine([Stage("a", act, completion=schema)]).run()
    assert (ended.value, ended.executions[0].attempts) == ({"ok": True}, 2)


# --- a stop at any moment ---


class Killed(BaseException):
    """The process ends here."""


class World:
    """Functions of stages that count what ran, and stop where a test wants it."""

    def __init__(self):
        self.ran = []
        self.calls = 0
        self.stops_at = None

    def enter(self):
        if self.calls == self.stops_at:
            self.calls += 1
            raise Killed
        self.calls += 1

    def function(self, word=None):
        def call(ctx):
            self.enter()
            return word

        return call

    async def act(self, work):
        self.enter()
        await asyncio.sleep(0)
        self.enter()
        self.ran.append((work.stage, work.attempt, work.execution.rpartition("/")[2]))
        if (work.stage, work.attempt) in {("b", 1), ("e", 1), ("e", 2)}:
            raise ConnectionError(f"{work.stage} is down")
        return f"{work.stage}({work.prompt})"

    def setup(self, ctx):
        self.enter()
        ctx[f"of_{ctx.stage}"] = [*ctx.get(f"of_{ctx.stage}", []), ctx.attempt]

    def machine(self):
        def stage(name, **options):
            given = {"setup": self.setup, "check_gate": self.function("proceed"), "exit": self.function()}
            return Stage(name, self.act, **{**given, **options})

        def route(ctx):
            self.enter()
            return "f" if ctx.outcome == "fail" else None

        split = Go(stages=("a", "b", "c"), execution="parallel", join="d")
        return StageMachine(
            [
                stage("start", body="{goal}", next=split),
                stage("a", body="{start}"),
                stage("b", assert_=self.function("ok")),
                stage("c", body="{of_c}"),
                stage("d", body="{a} {b} {c} {of_b}"),
                stage("e", next=route),
                stage("f", body="{d}", next=END),
            ]
        )


async def test_interrupted_at_any_step_and_resumed_a_machine_ends_as_if_it_was_not():
    whole = World()
    ended = await whole.machine().run(inputs={"goal": "g"})
    assert ended.value == "f(d(a(start(g)) b() c([1]) [2]))"
    for stop in range(whole.calls):
        world, store = World(), MemoryStore()
        world.stops_at = stop
        with pytest.raises(Killed):
            async with Session.open("s", store=store) as session:
                await world.machine().run(session, inputs={"goal": "g"})
        async with Session.open("s", store=store) as session:
            again = await world.machine().run(session, inputs={"goal": "g"})
        assert (again.value, again.results, again.context) == (ended.value, ended.results, ended.context)
        assert sorted(world.ran) == sorted(whole.ran), f"stopped at {stop}: an act that was done ran again"


async def test_an_unsafe_act_that_was_cut_stops_the_run_until_somebody_knows():
    store, ran = MemoryStore(), []

    @tool(effect="unsafe")
    async def deploy(work):
        ran.append(1)
        raise Killed

    machine = StageMachine([Stage("a", deploy)])
    with pytest.raises(Killed):
        async with Session.open("s", store=store) as session:
            await machine.run(session)
    async with Session.open("s", store=store) as session:
        with pytest.raises(OutcomeUnknownError):
            await machine.run(session)
        await session.resolve(session.unknown[0], happened=True, result="deployed", by="ann")
        assert (await machine.run(session)).value == "deployed"
    assert ran == [1]


# --- an edited machine goes on, or says why not ---


class Cut:
    """Stages of which `pay` is unsafe. The first `build` is cut, and the machine is edited after that."""

    def __init__(self):
        self.ran, self.cuts, self.store = [], True, MemoryStore()

    def stage(self, name, **options):
        async def act(work):
            self.ran.append(name)
            if name == "build" and self.cuts:
                raise Killed
            return name

        return Stage(name, tool(effect="unsafe")(act) if name.startswith("pay") else act, **options)

    async def run(self, *stages):
        async with Session.open("s", store=self.store) as session:
            return await StageMachine([each if isinstance(each, Stage) else self.stage(each) for each in stages]).run(
                session
            )

    async def edited(self, before, after):
        with pytest.raises(Killed):
            await self.run(*before)
        self.cuts = False
        self.ran.clear()
        return await self.run(*after)


PARALLEL = Go(stages=("pay", "build"), execution="parallel", join="join")


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (["pay", "build"], ["lint", "pay", "build"], ("1", "pay", "lint")),
        (["lint", "pay", "build"], ["pay", "build"], ("1", "lint", "pay")),
        (["pay", "build"], ["pays", "build"], ("1", "pay", "pays")),
        (["pay", "build"], ["build", "pay"], ("1", "pay", "build")),
        (["a", "pay", "build", "join"], ["a", "b", "build"], ("2", "pay", "b")),
    ],
)
async def test_an_edited_machine_does_not_repeat_work_under_another_number(before, after, changed):
    cut = Cut()
    with pytest.raises(HoldfastError, match="in a new session") as error:
        await cut.edited(before, after)
    assert code_of(error) == "SESS_STEP_DRIFT"
    assert tuple(error.value.fault.context[name] for name in ("number", "before", "now")) == changed
    assert cut.ran == []
    cut.cuts = False
    await cut.run(*before)
    assert cut.ran[0] == "build", "the machine as it was goes on"


async def test_parallel_stages_that_were_cut_are_not_run_as_a_sequence():
    cut = Cut()
    parallel = [cut.stage("a", next=PARALLEL), "pay", "build", "join"]
    with pytest.raises(HoldfastError) as error:
        await cut.edited(parallel, ["a", "pay", "build", "join"])
    assert code_of(error) == "SESS_STEP_DRIFT"
    assert cut.ran == []


@pytest.mark.parametrize("name", ["pay", "payment"])
async def test_a_doubtful_act_is_not_run_again_under_another_name(name):
    store, ran = MemoryStore(), []

    @tool(effect="unsafe")
    async def pay(work):
        ran.append(1)
        raise Killed

    with pytest.raises(Killed):
        async with Session.open("s", store=store) as session:
            await StageMachine([Stage("pay", pay)]).run(session)
    async with Session.open("s", store=store) as session:
        with pytest.raises(HoldfastError) as error:
            await StageMachine([Stage(name, pay)]).run(session)
    assert code_of(error) == ("TOOL_OUTCOME_UNKNOWN" if name == "pay" else "SESS_STEP_DRIFT")
    assert ran == [1]


async def test_stages_that_come_later_and_texts_may_change():
    cut = Cut()
    after = [cut.stage("pay", body="another text"), cut.stage("build", retry=ONCE), "lint"]
    assert (await cut.edited(["pay", "build", "test"], after)).value == "lint"
    assert cut.ran == ["build", "lint"]


async def test_calls_of_a_function_are_the_same_calls_in_another_order():
    store, ran, order = MemoryStore(), [], ["a", "b", "a"]

    @tool(effect="unsafe")
    async def send(to: str) -> str:
        ran.append(to)
        return f"{to} {len(ran)}"

    async def act(work):
        sent = [(await work.call("send", to=to)).content for to in order]
        if len(order) == 3:
            raise Killed
        return sent

    machine = StageMachine([Stage("a", act)], tools=[send])
    with pytest.raises(Killed):
        async with Session.open("s", store=store) as session:
            await machine.run(session)
    order[:] = ["c", "b", "a", "a"]
    async with Session.open("s", store=store) as session:
        assert (await machine.run(session)).value == ["c 4", "b 2", "a 1", "a 3"]
    assert ran == ["a", "b", "a", "c"]


async def test_inside_turns_a_machine_runs_once_per_turn():
    ran = []

    async def act(work):
        ran.append(1)

    machine = StageMachine([Stage("a", act)])
    async with Session.open("s", store=MemoryStore()) as session:
        for message in ("one", "two"):
            async with session.turn(message):
                await machine.run(session)
    assert len(ran) == 2


# --- around a machine ---


async def test_a_budget_around_a_run_ends_it_and_a_larger_one_goes_on():
    store, ran = MemoryStore(), []

    async def act(work):
        ran.append(work.stage)
        if len(ran) == 2:
            raise BudgetError.because()
        return work.stage

    machine = StageMachine([Stage("a", act), Stage("b", act)])
    with pytest.raises(BudgetError):
        async with Session.open("s", store=store) as session:
            await machine.run(session)
    async with Session.open("s", store=store) as session:
        assert (await machine.run(session)).value == "b"
    assert ran == ["a", "b", "b"], "it is no failed attempt"


async def test_a_deadline_around_a_run_stops_it_and_it_goes_on_there():
    store, ran = MemoryStore(), []

    async def act(work):
        ran.append(work.stage)
        if len(ran) == 2:
            await asyncio.sleep(100)
        return work.stage

    machine = StageMachine(fan(Stage("a", act), Stage("b", act)))
    async with Session.open("s", store=store) as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await machine.run(session)
        assert (await machine.run(session)).results["merge"] == "merge()"
    assert ran == ["a", "b", "b"], "only the stage that was cut off runs again"


async def test_plain_functions_may_be_act_and_phases_may_be_async():
    async def check(ctx):
        await asyncio.sleep(0)
        return "ok" if ctx.act.value == "plain" else "fail"

    assert (await StageMachine([Stage("a", lambda work: "plain", assert_=check)]).run()).value == "plain"


async def test_two_machines_and_two_inputs_in_one_session_do_not_share_what_is_stored():
    ran = []

    async def act(work):
        ran.append(work.prompt)
        return work.prompt

    first = StageMachine([Stage("a", act, body="{x}")], name="first")
    second = StageMachine([Stage("a", act, body="second {x}")], name="second")
    async with Session.open("s", store=MemoryStore()) as session:
        for machine, x in ((first, 1), (first, 2), (second, 1)):
            await machine.run(session, inputs={"x": x})
    assert ran == ["1", "2", "second 1"]


async def test_a_result_that_json_cannot_hold_fails_the_attempt_and_says_where():
    async def act(work):
        return object()

    with pytest.raises(StageError, match="stage a: what act returns"):
        await StageMachine([Stage("a", act, retry=ONCE)]).run()


async def test_N2_5_the_phases_are_in_the_audit_trail_of_the_session():
    store = MemoryStore()
    async with Session.open("s", store=store) as session:
        await StageMachine([Stage("a", echo)]).run(session)
    kinds = [record.kind for record in await store.audit("session:s")]
    assert kinds.count("StageExecution") == 2 * len(PHASES)


async def test_XK10_the_result_of_a_stage_is_a_value_of_its_completion():
    async def review(work):
        return {"title": "tides", "ok": True}

    @dataclass
    class Verdict:
        title: str
        ok: bool

    typed, untyped = Stage("typed", review, completion=Verdict), Stage("untyped", review)
    ended = await StageMachine([typed, untyped]).run()
    assert ended.result_of(typed) == Verdict("tides", ok=True)
    assert ended.result_of(untyped) == ended.results["typed"] == {"title": "tides", "ok": True}
    with pytest.raises(KeyError):
        ended.result_of(Stage("other", review))


@pytest.mark.parametrize(
    ("code", "attempts"), [("AUTH_FAILED", 1), ("PROVIDER_BILLING", 1), ("PROVIDER_OVERLOADED", 3)]
)
async def test_XL3_what_only_a_person_can_end_is_not_tried_again(code, attempts):
    made = []

    async def act(work):
        made.append(work.attempt)
        raise HoldfastError(Fault.of(code))

    machine = StageMachine(
        [Stage("a", act, setup=lambda ctx: None, retry=Tries(attempts=3, backoff=Backoff(initial=0)))]
    )
    async with Session.open("s", store=MemoryStore()) as session:
        with pytest.raises(StageError) as caught:
            await machine.run(session)
    assert made == list(range(1, attempts + 1))
    assert code in caught.value.fault.message
