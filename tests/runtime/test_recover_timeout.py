"""Time limits: of an attempt, of the whole operation, and of nested operations."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, reset

from holdfast import BATCH, PATIENT, Budget, BudgetError, DeadlineError, Policy, Runtime, fault_of, recover, tool
from holdfast.events import AttemptEnded, Failed, Retry
from holdfast.runtime.runtime import use_runtime


def test_S1_32_a_late_attempt_is_cancelled_and_named() -> None:
    world = World()
    ended: list[str] = []

    async def hangs() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(TimeoutError) as failed:
        world.run(world.recover("tool:bash", Policy(timeout=120, deadline=200, attempts=1)).call(hangs))
    assert ended == ["cancelled"]
    assert isinstance(failed.value, DeadlineError)
    assert isinstance(failed.value.__cause__, asyncio.CancelledError)
    assert failed.value.fault.code == "TOOL_TIMEOUT"
    assert "120 s" in str(failed.value)
    assert world.now == 120


@pytest.mark.parametrize(
    ("target", "code"),
    [("claude", "PROVIDER_TIMEOUT"), ("tool:bash", "TOOL_TIMEOUT"), ("agent:x", "SYS_TIMEOUT"), (None, "SYS_TIMEOUT")],
)
def test_S1_20_the_code_of_a_timeout_names_the_kind_of_target(target: str | None, code: str) -> None:
    world = World()
    with pytest.raises(DeadlineError) as failed:
        world.run(world.recover(target, Policy(timeout=1, attempts=1)).call(Flaky(takes=5).acall))
    assert failed.value.fault.code == code


@pytest.mark.parametrize("seconds", [120, 600])
def test_FR27_a_tool_that_uses_up_its_own_limit_is_late_itself(seconds: float) -> None:
    world = World()

    @world.recover("tool:build", Policy(attempts=1))
    @tool(effect="read", timeout=seconds)
    async def build() -> None:
        await asyncio.sleep(10_000)

    with pytest.raises(DeadlineError) as failed:
        world.run(build())
    assert (failed.value.fault.code, world.now) == ("TOOL_TIMEOUT", seconds)


def test_R65_an_inner_timeout_error_keeps_its_identity() -> None:
    world = World()
    own = TimeoutError("mine")
    with pytest.raises(TimeoutError) as failed:
        world.run(world.recover("a", Policy(timeout=10, attempts=1)).call(Flaky(own).acall))
    assert failed.value is own


def test_each_attempt_has_the_whole_limit() -> None:
    world = World()
    with pytest.raises(DeadlineError):
        world.run(world.recover("a", Policy(timeout=5, circuit=LOOSE)).call(Flaky(takes=50).acall))
    assert [event.took for event in world.of(AttemptEnded)] == [5, 5, 5]
    assert world.now == 5 + 1 + 5 + 2 + 5


def test_R66_a_deadline_in_the_wait_starts_no_further_attempt() -> None:
    world = World()
    work = Always(reset, takes=1)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await world.recover("a").call(work.acall)
        await asyncio.sleep(100)

    world.run(main())
    assert work.calls == 1


def test_R66_the_last_attempt_gets_the_rest_of_the_deadline() -> None:
    world = World()
    work = Flaky(reset(), takes=4)
    with pytest.raises(DeadlineError) as failed:
        world.run(world.recover("a", Policy(timeout=6, deadline=7)).call(work.acall))
    assert world.now == 7
    assert failed.value.fault.code == "SYS_DEADLINE_EXCEEDED"
    assert [attempt.code for attempt in fault_of(failed.value).attempts] == ["CONN_RESET", "SYS_DEADLINE_EXCEEDED"]


def test_the_deadline_around_clips_everything_below() -> None:
    world = World()
    inner = world.recover("inner", Policy(timeout=None, patience=None))(Flaky(takes=1000).acall)

    async def outer() -> None:
        await inner()

    with pytest.raises(DeadlineError):
        world.run(world.recover("outer", Policy(timeout=None, deadline=30)).call(outer))
    assert world.now == 30


def test_the_deadline_around_clips_a_wait_below_in_sync_code() -> None:
    world = World()
    work = Always(reset)
    inner = world.recover("inner", Policy(patience=None, attempts=50, circuit=LOOSE))(work)
    with pytest.raises(ConnectionResetError):
        world.recover("outer", Policy(timeout=None, deadline=10)).call(inner)
    assert world.now == 7  # 1 + 2 + 4; eight more seconds would pass the deadline
    assert work.calls == 4


def test_a_budget_between_two_recoveries_does_not_hide_the_outer_deadline() -> None:
    """A scope is never wider than the one around it."""
    world = World()
    work = Always(reset)
    inner = world.recover("inner", Policy(patience=None, attempts=50, circuit=LOOSE))(work)

    def between() -> None:
        with Budget(attempts=100):
            inner()

    with use_runtime(world.runtime), pytest.raises(ConnectionResetError):
        world.recover("outer", Policy(timeout=None, deadline=10)).call(between)
    assert (work.calls, world.now) == (4, 7)


def test_R15_a_budget_between_two_recoveries_does_not_multiply_the_attempts() -> None:
    world = World()
    work = Always(reset)
    inner = world.recover("inner", Policy(circuit=LOOSE))(work)

    def between() -> None:
        with Budget(usd=100):
            inner()

    with use_runtime(world.runtime), pytest.raises(ConnectionResetError):
        world.recover("outer", Policy(circuit=LOOSE)).call(between)
    assert work.calls == 3


def test_the_seconds_of_a_budget_are_a_deadline() -> None:
    world = World()

    async def main() -> None:
        with Budget(seconds=5), pytest.raises(DeadlineError):
            await world.recover("a").call(Flaky(takes=60).acall)
        assert world.now == 5

    with use_runtime(world.runtime):
        world.run(main())


def test_R71_a_budget_of_no_seconds_allows_no_call() -> None:
    world = World()
    work = Flaky()
    with use_runtime(world.runtime), Budget(seconds=0), pytest.raises(DeadlineError):
        world.recover("a").call(work)
    assert work.calls == 0


def test_many_calls_with_one_limit_each_end_in_their_own_time() -> None:
    """One timer serves them all; each expires by its own start."""
    world = World()
    recovery = world.recover("a", Policy(timeout=10, attempts=1, circuit=LOOSE))
    ends: list[float] = []

    async def one(number: int) -> None:
        await asyncio.sleep(number)
        with pytest.raises(DeadlineError):
            await recovery.call(Flaky(takes=60).acall)
        ends.append(world.now)

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in (3, 1, 2, 1)))
        # The timer is free again, and a call in time is left alone.
        assert await recovery.call(Flaky(takes=9).acall) == "ok"

    world.run(main())
    assert ends == [11, 11, 12, 13]


def test_S1_20_a_tools_own_limit_wins_over_the_policys() -> None:
    world = World()

    @tool(effect="read", timeout=200)
    async def slow() -> str:
        await asyncio.sleep(150)
        return "done"

    assert world.run(world.recover("tool:slow", Policy(timeout=10, deadline=20)).call(slow)) == "done"


def test_R70_one_recovery_made_at_import_serves_two_loops_in_two_threads() -> None:
    runtime = Runtime(waits=False)
    recovery = recover("a", Policy(timeout=0.02, concurrency=2, per_second=10_000, circuit=LOOSE), runtime=runtime)
    results: list[Any] = []
    ready = threading.Barrier(2)

    async def main() -> None:
        await asyncio.gather(*(recovery.call(Flaky(reset()).acall) for _ in range(20)))
        with pytest.raises(DeadlineError):
            await recovery.call(Flaky(takes=60).acall)
        results.append("done")

    def thread() -> None:
        ready.wait()
        asyncio.run(main())

    threads = [threading.Thread(target=thread) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert results == ["done", "done"]
    assert asyncio.run(recovery.call(Flaky(value="third loop").acall)) == "third loop"


def test_R70_a_hundred_loops_one_after_the_other_leave_no_wheels_behind() -> None:
    recovery = recover("a", Policy(timeout=5), runtime=Runtime(waits=False))
    for _ in range(100):
        asyncio.run(recovery.call(Flaky().acall))
    assert len(recovery._plan.wheels._by_loop) <= 1


def test_sync_code_has_no_time_limit_without_threads() -> None:
    world = World()

    def slow() -> str:
        world.clock.advance(1000)
        return "done"

    assert world.recover("a", Policy(timeout=1, deadline=5)).call(slow) == "done"
    assert not world.of(Failed)
    assert not world.of(Retry)


def test_a_coroutine_awaited_later_has_its_whole_time_from_then_on() -> None:
    """A coroutine may wait behind a semaphore before it is awaited. That is not the callee's time."""
    world = World()

    async def main() -> str:
        call = world.recover("a", Policy(timeout=5, deadline=10)).call(Flaky(takes=4).acall)
        await asyncio.sleep(100)
        return await call

    assert world.run(main()) == "ok"


@pytest.mark.parametrize("form", ["decorated", "fallback", "block", "stream", "given later"])
def test_a_task_that_outlives_the_call_it_was_started_in_is_free_of_its_deadline(form: str) -> None:
    world = World()
    policy = Policy(timeout=5, deadline=10, circuit=LOOSE, attempts=1)
    inner = world.recover("inner", Policy(timeout=None, patience=None))(Flaky(takes=1).acall)
    tasks: list[asyncio.Task[Any]] = []

    async def outlives() -> Any:
        await asyncio.sleep(100)
        return await inner()

    async def start() -> str:
        tasks.append(asyncio.create_task(outlives()))
        return await inner()

    async def starting() -> Any:
        yield await start()

    async def main() -> Any:
        recovery = world.recover("outer", policy)
        if form == "decorated":
            await recovery(start)()
        elif form == "fallback":
            failing = recovery(Always(reset).acall)
            failing.fallback(start)
            await failing()
        elif form == "block":
            async for attempt in recovery:
                async with attempt:
                    await start()
        elif form == "stream":
            async with recovery.stream(starting)() as stream:
                assert [item async for item in stream] == ["ok"]
        else:
            await recovery.call(start)
        return await tasks[0]

    assert world.run(main()) == "ok"


def test_a_task_that_outlives_its_call_still_sees_the_deadline_around_that() -> None:
    world = World()
    inner = world.recover("inner", Policy(timeout=None, patience=None))(Flaky(takes=100).acall)

    async def outer() -> None:
        task = await world.recover("middle", Policy(timeout=5, deadline=10)).call(start)
        await task

    async def start() -> asyncio.Task[Any]:
        return asyncio.create_task(inner())

    with pytest.raises(DeadlineError):
        world.run(world.recover("outer", Policy(timeout=None, deadline=30, attempts=1)).call(outer))
    assert world.now == 30


def test_the_note_on_an_error_names_the_limit_that_ended_the_call() -> None:
    world = World()
    with pytest.raises(DeadlineError) as failed:
        world.run(world.recover("a", Policy(timeout=None, deadline=5)).call(Flaky(takes=9).acall))
    assert "its time is over" in failed.value.__notes__[0]
    with use_runtime(world.runtime), Budget(attempts=0), pytest.raises(BudgetError) as spent:
        world.recover("a").call(Flaky())
    assert "the budget is spent" in spent.value.__notes__[0]


@pytest.mark.parametrize(("timeout", "failures"), [(10, 1), (10.05, 1), (20, 0)])
def test_a_hang_ended_by_the_outer_limit_counts_on_the_inner_circuit_if_it_was_late_there(
    timeout: float, failures: int
) -> None:
    world = World()
    inner = world.recover("claude", Policy(timeout=timeout, attempts=1))(Flaky(takes=50).acall)
    outer = world.recover("agent:asker", Policy(timeout=10, attempts=1))
    with pytest.raises(DeadlineError):
        world.run(outer.call(inner))
    breaker = world.runtime.registry.get("provider:claude")._breaker
    assert (breaker.failures, breaker.cancelled) == (failures, 1 - failures)


# A time limit that cuts each answer


@pytest.mark.parametrize(
    "policy",
    [
        Policy(timeout=5),
        BATCH,
        PATIENT,
        PATIENT.replace(timeout=5),
        Policy(patience=900),
        Policy(timeout=5, deadline=900),
    ],
)
def test_a_time_limit_that_cuts_each_answer_is_met_three_times_whatever_the_policy(policy):
    world = World(defaults=True)
    made = []

    @world.recover("claude", policy)
    async def ask():
        made.append(world.now)
        async with asyncio.timeout(5):
            await asyncio.sleep(45)

    with pytest.raises(TimeoutError):
        world.run(ask())
    assert len(made) == 3


@pytest.mark.parametrize("policy", [Policy(timeout=30, patience=900), PATIENT.replace(timeout=30), BATCH])
def test_who_named_a_time_sits_out_an_outage_that_hangs(policy):
    """After answers of a second, thirty seconds of silence show that the service is ill."""
    world = World(defaults=True)

    @world.recover("claude", policy)
    async def ask():
        async with asyncio.timeout(30):
            await asyncio.sleep(1 if world.now < 20 or world.now > 300 else 1000)
        return "hi"

    async def act():
        for _ in range(20):
            await ask()
        return await ask()

    assert world.run(act()) == "hi"
    assert world.now < 340


def test_a_number_of_attempts_holds_for_time_limits_too():
    world = World(defaults=True)
    made = []

    @world.recover("claude", Policy(timeout=5, attempts=5))
    async def ask():
        made.append(world.now)
        await asyncio.sleep(45)

    with pytest.raises(TimeoutError):
        world.run(ask())
    assert len(made) == 5
