"""Budgets: one ledger for everything inside, whether calls are nested, hedged or retried."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import pydoc
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, reset

from holdfast import Budget, BudgetError, DeadlineError, Hedge, InvalidError, Policy, fault_of
from holdfast.events import BudgetWarning, Failed, Fallback, RetryDenied
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.runtime import use_runtime

STEADY = Policy(circuit=LOOSE)


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose runtime is the default one, so that budgets read its clock."""
    world = World()
    with use_runtime(world.runtime):
        yield world


def answer(tokens: int) -> dict[str, Any]:
    return {"model": "claude-opus-4-1", "usage": {"input_tokens": tokens, "output_tokens": 0}}


def test_every_attempt_is_charged_and_failed_ones_too(world: World) -> None:
    with Budget(attempts=10) as budget:
        world.recover("a", STEADY).call(Flaky(reset(), reset()))
        assert budget.left().attempts == 7
        assert (budget.spend().attempts, budget.spend().recovery_attempts) == (3, 2)


def test_R35_a_spent_budget_denies_the_retry_and_the_original_error_surfaces(world: World) -> None:
    work = Always(reset)
    with Budget(attempts=2), pytest.raises(ConnectionResetError) as failed:
        world.recover("a", STEADY).call(work)
    assert work.calls == 2
    assert failed.value is work.raised[-1]
    assert "budget" in failed.value.__notes__[0]
    assert [event.because for event in world.of(RetryDenied)] == ["SYS_BUDGET_EXHAUSTED"]
    assert [event.exhausted for event in world.of(Failed)] == [False]


def test_a_spent_budget_stops_the_next_call_before_it_is_made(world: World) -> None:
    work = Flaky()
    with Budget(attempts=1):
        world.recover("a", STEADY).call(work)
        with pytest.raises(BudgetError) as failed:
            world.recover("a", STEADY).call(work)
    assert work.calls == 1
    assert fault_of(failed.value).context["unit"] == "attempts"
    assert world.state("provider:a")._breaker.failures == 0


@pytest.mark.parametrize("option", ["attempts", "usd", "tokens", "turns"])
def test_R71_zero_means_nothing_may_be_spent(world: World, option: str) -> None:
    work = Flaky()
    with Budget(**{option: 0}), pytest.raises(BudgetError):
        world.recover("a", STEADY).call(work)
    assert work.calls == 0


def test_reported_usage_is_charged_by_the_price_table(world: World) -> None:
    with Budget(tokens=1000, usd=10) as budget:
        world.recover("a", STEADY).call(lambda: answer(400))
        assert budget.left().tokens == 600
        spent = budget.spend()
        assert spent.usd > 0
        world.recover("a", STEADY).call(lambda: answer(600))
        with pytest.raises(BudgetError):
            world.recover("a", STEADY).call(lambda: answer(1))


def test_R90_unknown_usage_is_estimated_not_free_and_blocks_nothing(world: World) -> None:
    with Budget(tokens=10_000) as budget:
        world.recover("a", STEADY).call(Flaky(reset(), value=answer(100)))
        spend = budget.spend()
        assert (spend.unknown, spend.tokens, spend.recovery_tokens) == (1, 200, 100)


def test_R90_a_failed_attempt_with_nothing_to_estimate_by_does_not_block_the_retry(world: World) -> None:
    with Budget(usd=0.01):
        assert world.recover("a", STEADY).call(Flaky(reset(), reset())) == "ok"


def test_a_nested_budget_can_spend_no_more_than_the_outer_has_left(world: World) -> None:
    with Budget(attempts=3) as outer, Budget(attempts=100) as inner:
        assert inner.left().attempts == 3
        for _ in range(3):
            world.recover("a", STEADY).call(Flaky())
        with pytest.raises(BudgetError):
            world.recover("a", STEADY).call(Flaky())
        assert (outer.spend().attempts, inner.spend().attempts) == (3, 3)


def test_a_budget_around_a_budget_is_restored(world: World) -> None:
    with Budget(attempts=5) as outer:
        with Budget(attempts=1):
            world.recover("a", STEADY).call(Flaky())
        world.recover("a", STEADY).call(Flaky())
        assert outer.spend().attempts == 2
    assert AMBIENT.get() is None
    assert world.recover("a", STEADY).call(Flaky()) == "ok"


def test_R14_fifty_tasks_do_not_overdraw_together(world: World) -> None:
    works = [Flaky(takes=1) for _ in range(50)]

    async def main() -> list[Any]:
        with Budget(attempts=20) as budget:
            calls = [world.recover("a", STEADY).call(work.acall) for work in works]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert budget.spend().attempts == 20
            return ends

    ends = world.run(main())
    assert sum(work.calls for work in works) == 20
    assert [isinstance(end, BudgetError) for end in ends].count(True) == 30


def test_R14_fifty_threads_do_not_overdraw_together(world: World) -> None:
    works = [Flaky() for _ in range(50)]
    ends: list[str] = []
    ready = threading.Barrier(50)

    def one(work: Flaky) -> None:
        ready.wait()
        try:
            ends.append(world.recover("a", STEADY).call(work))
        except BudgetError:
            ends.append("over budget")

    with Budget(attempts=20) as budget:
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(one, work)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert budget.spend().attempts == 20
    assert sum(work.calls for work in works) == 20
    assert ends.count("over budget") == 30


def test_R37_a_spent_budget_suppresses_only_the_new_hedge(world: World) -> None:
    running = most = 0

    async def slow() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(10)
        running -= 1
        return "ok"

    policy = Policy(circuit=LOOSE, hedge=Hedge(after=1, most=5))

    async def main() -> str:
        with Budget(attempts=3):
            return await world.recover("a", policy, effect="read").call(slow)

    assert world.run(main()) == "ok"
    assert most == 3


def test_hedges_are_charged_and_their_usage_is_unknown(world: World) -> None:
    async def slow() -> dict[str, Any]:
        await asyncio.sleep(10)
        return answer(100)

    policy = Policy(circuit=LOOSE, hedge=Hedge(after=1, most=2))

    async def main() -> None:
        with Budget(attempts=100) as budget:
            await world.recover("a", policy, effect="read").call(slow)
            spend = budget.spend()
            assert (spend.attempts, spend.recovery_attempts) == (3, 2)
            assert (spend.unknown, spend.tokens) == (2, 300)

    world.run(main())


@pytest.mark.parametrize("reported", [0, 100])
def test_a_tool_uses_what_its_answer_reports_and_otherwise_nothing(world: World, reported: int) -> None:
    async def slow() -> Any:
        await asyncio.sleep(10)
        return answer(reported) if reported else "done"

    async def broken() -> None:
        raise reset()

    policy = Policy(circuit=LOOSE, hedge=Hedge(after=1, most=2))

    async def main() -> None:
        with Budget(attempts=100, estimate_tokens=5) as budget:
            await world.recover("tool:build", policy, effect="read").call(slow)
            with pytest.raises(ConnectionResetError):
                await world.recover("tool:test", Policy(attempts=2, circuit=LOOSE), effect="read").call(broken)
            spend = budget.spend()
            assert (spend.tokens, spend.unknown) == (reported, 0)
            assert (spend.attempts, spend.recovery_attempts) == (5, 3)

    world.run(main())


def test_fallbacks_are_charged(world: World) -> None:
    decorated = world.recover("a", Policy(attempts=1, circuit=LOOSE))(Always(reset))
    decorated.fallback(Flaky())
    with Budget(attempts=10) as budget:
        assert decorated() == "ok"
        assert (budget.spend().attempts, budget.spend().recovery_attempts) == (2, 1)
    assert len(world.of(Fallback)) == 1


@pytest.mark.parametrize("between", [False, True])
def test_a_call_inside_a_recovery_inside_a_recovery_is_charged_once(world: World, between: bool) -> None:
    inner = world.recover("inner", STEADY)(lambda: answer(1000))

    def outer() -> Any:
        if between:
            with Budget(attempts=5) as small:
                found = inner()
                assert (small.spend().attempts, small.spend().tokens) == (1, 1000)
                return found
        return inner()

    with Budget(attempts=1, usd=9) as budget:
        world.recover("outer", STEADY).call(outer)
        spend = budget.spend()
    assert (spend.attempts, spend.tokens, spend.unknown) == (1, 1000, 0)


def test_usage_of_an_outer_attempt_beside_its_inner_recoveries_is_charged(world: World) -> None:
    inner = world.recover("inner", STEADY)(lambda: answer(1000))

    def outer() -> Any:
        inner()
        inner()
        return answer(500)

    with Budget(attempts=9) as budget:
        world.recover("outer", STEADY).call(outer)
        spend = budget.spend()
    assert (spend.attempts, spend.tokens, spend.unknown) == (2, 2500, 0)


def test_a_fallback_that_recovers_by_itself_is_charged_once(world: World) -> None:
    decorated = world.recover("a", Policy(attempts=1, circuit=LOOSE))(Always(reset))
    decorated.fallback(world.recover("b", STEADY)(lambda: answer(1000)))
    with Budget(attempts=2, tokens=9000, estimate_usd=0.0) as budget:
        decorated()
        spend = budget.spend()
    assert (spend.attempts, spend.recovery_attempts, spend.unknown) == (2, 1, 1)
    assert spend.tokens == 2000  # the attempt that failed is estimated


def test_an_attempt_whose_inner_recovery_failed_is_charged_once(world: World) -> None:
    inner = world.recover("inner", Policy(attempts=3, circuit=LOOSE))(Always(reset))
    with Budget(attempts=9) as budget, pytest.raises(ConnectionResetError):
        world.recover("outer", STEADY).call(inner)
    assert (budget.spend().attempts, budget.spend().unknown) == (3, 3)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_spent_budget_skips_the_fallbacks_but_not_the_degraded_answer(world: World, form: str) -> None:
    work, step = Always(reset), Flaky()
    decorated: Any = world.recover("a", Policy(attempts=1, circuit=LOOSE))(work if form == "sync" else work.acall)
    decorated.fallback(step if form == "sync" else step.acall)
    with Budget(attempts=1), pytest.raises(ConnectionResetError) as failed:
        world.run(decorated()) if form == "async" else decorated()
    assert step.calls == 0
    assert fault_of(failed.value).context["fallbacks"][0]["skipped"] == "the budget is spent"
    decorated.degraded(lambda _: "sorry")
    with Budget(attempts=1):
        assert (world.run(decorated()) if form == "async" else decorated()) == "sorry"


def test_N3_6_at_eighty_percent_one_warning_is_emitted(world: World) -> None:
    with Budget(attempts=5):
        for _ in range(5):
            world.recover("a", STEADY).call(Flaky())
    assert [(event.unit, event.used, event.limit) for event in world.of(BudgetWarning)] == [("attempts", 4, 5)]


def test_every_option_in_the_reference_page_is_an_option_of_budget(world: World) -> None:
    budget = Budget(usd=1.0, estimate_usd=0.5, estimate_tokens=10, warn_at=0.4)
    assert repr(budget) == "Budget(usd=1.0, warn_at=0.4, estimate_usd=0.5, estimate_tokens=10)"
    with budget, pytest.raises(ConnectionResetError):
        world.recover("a", Policy(attempts=1, circuit=LOOSE)).call(Always(reset))
    assert (budget.spend().usd, budget.spend().tokens) == (0.5, 10)
    assert [event.unit for event in world.of(BudgetWarning)] == ["usd"]


def test_turns_are_charged_by_hand(world: World) -> None:
    with Budget(turns=2) as budget:
        budget.charge(turns=1)
        assert world.recover("a", STEADY).call(Flaky()) == "ok"
        budget.charge(turns=1)
        with pytest.raises(BudgetError):
            world.recover("a", STEADY).call(Flaky())


def test_a_budget_is_an_async_context_manager_too(world: World) -> None:
    async def main() -> None:
        async with Budget(attempts=1) as budget:
            await world.recover("a", STEADY).call(Flaky().acall)
            assert budget.left().attempts == 0
        assert AMBIENT.get() is None

    world.run(main())


def test_an_answer_whose_attributes_raise_is_estimated(world: World) -> None:
    class Hostile:
        @property
        def usage(self) -> Any:
            raise RuntimeError("no")

    with Budget(attempts=5) as budget:
        assert isinstance(world.recover("a", STEADY).call(Hostile), Hostile)
        assert budget.spend().unknown == 1


def test_misuse_raises_an_error_that_names_it(world: World) -> None:
    budget = Budget(attempts=1)
    with pytest.raises(InvalidError, match="never entered"):
        budget.left()
    budget.__exit__()  # a block that was never entered: there is nothing to leave


@pytest.mark.parametrize("option", ["seconds", "usd", "tokens", "turns", "attempts", "estimate_usd"])
@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "5", True])
def test_R71_bad_options_of_a_budget_fail_where_they_are_written(option: str, bad: Any) -> None:
    with pytest.raises(InvalidError, match=f"budget.{option}"):
        Budget(**{option: bad})


def test_R71_prices_must_be_prices() -> None:
    with pytest.raises(InvalidError, match=r"budget\.prices"):
        Budget(usd=1, prices={"claude": 1})  # type: ignore[arg-type]


# --- the runtime of a budget (FR17) ---


def at(seconds: float) -> World:
    """A world whose clock starts at `seconds`: readings of two clocks must never be compared."""
    world = World()
    world.clock.advance(seconds)
    return world


def test_FR17_a_budget_uses_the_clock_and_the_events_of_its_runtime() -> None:
    mine, default = at(1000), at(5)
    with use_runtime(default.runtime), Budget(seconds=10, attempts=1, runtime=mine.runtime) as budget:
        default.clock.advance(100)
        assert budget.left().seconds == 10
        mine.clock.advance(4)
        assert budget.left().seconds == 6
        assert mine.recover("a", STEADY).call(Flaky()) == "ok"
    assert [event.unit for event in mine.of(BudgetWarning)] == ["attempts"]
    assert [event.at for event in mine.of(BudgetWarning)] == [mine.clock.wall()]
    assert default.of(BudgetWarning) == []


def test_FR17_the_seconds_of_a_budget_end_by_its_own_clock() -> None:
    mine, default = at(1000), at(5)
    with use_runtime(default.runtime), Budget(seconds=10, runtime=mine.runtime):
        mine.clock.advance(10)
        for world in (mine, default):
            with pytest.raises(DeadlineError):
                world.recover("a", STEADY).call(Flaky())


@pytest.mark.parametrize("form", ["sync", "async"])
def test_FR17_a_call_on_another_runtime_has_as_many_seconds_as_the_budget_has_left(form: str) -> None:
    mine, other = at(1000), at(5)
    work = Always(reset)
    patient = other.recover("a", Policy(patience=None, attempts=50, circuit=LOOSE))

    async def main() -> None:
        await patient.call(work.acall)

    with Budget(seconds=10, runtime=mine.runtime) as budget, pytest.raises(ConnectionResetError):
        other.run(main()) if form == "async" else patient.call(work)
    assert (work.calls, other.now) == (4, 5 + 7)  # 1 + 2 + 4; eight more seconds would pass the deadline
    assert budget.left().seconds == 10
    assert budget.spend().attempts == 4


def test_FR17_a_deadline_around_holds_on_another_runtime_too() -> None:
    outer, inner = at(1000), at(5)
    work = Always(reset)
    calling = inner.recover("inner", Policy(patience=None, attempts=50, circuit=LOOSE))(work)
    with pytest.raises(ConnectionResetError):
        outer.recover("outer", Policy(timeout=None, deadline=10, attempts=1)).call(calling)
    assert (work.calls, inner.now) == (4, 5 + 7)


def test_FR17_nested_budgets_are_each_measured_by_their_own_clock() -> None:
    slow, fast = at(1000), at(5)
    with Budget(seconds=10, runtime=slow.runtime) as outer, Budget(seconds=60, runtime=fast.runtime) as inner:
        assert inner.left().seconds == 10
        fast.clock.advance(55)
        assert (inner.left().seconds, outer.left().seconds) == (5, 10)
        slow.clock.advance(8)
        assert (inner.left().seconds, outer.left().seconds) == (2, 2)
        inner.charge(turns=1)
        assert [event.limit for event in slow.of(BudgetWarning)] == [10]
        assert [event.limit for event in fast.of(BudgetWarning)] == [60]
        slow.clock.advance(2)
        with pytest.raises(DeadlineError):
            fast.recover("a", STEADY).call(Flaky())


def test_FR17_a_budget_keeps_its_clock_when_the_default_runtime_is_replaced() -> None:
    first, second = at(1000), at(5)
    with use_runtime(first.runtime), Budget(seconds=10) as budget, use_runtime(second.runtime):
        second.clock.advance(100)
        assert budget.left().seconds == 10


def test_FR17_the_runtime_of_a_budget_must_be_a_runtime() -> None:
    with pytest.raises(InvalidError, match=r"budget\.runtime: expected a Runtime or None, got 'mine'"):
        Budget(seconds=1, runtime="mine")  # type: ignore[arg-type]


def test_FU3_the_help_on_a_budget_does_not_print_the_price_table() -> None:
    assert "Price(" not in pydoc.render_doc(Budget)


# --- tasks that outlive their budget ---


def test_FR17_a_task_that_outlives_its_budget_is_free_of_its_seconds() -> None:
    world = World()
    work = world.recover("a", Policy(timeout=None, deadline=None))(Flaky(takes=1).acall)

    async def outlives() -> Any:
        await asyncio.sleep(100)
        return await work()

    async def main() -> Any:
        with Budget(seconds=5, attempts=2, runtime=world.runtime) as budget:
            task = asyncio.create_task(outlives())
            await asyncio.sleep(1)
        assert budget.left().seconds == 4
        assert await task == "ok"
        assert budget.left().seconds == 4
        # What it spends is still the budget's.
        assert budget.spend().attempts == 1
        return budget

    world.run(main())


def test_FR17_the_other_limits_of_a_budget_hold_for_a_task_that_outlives_it() -> None:
    world = World()
    work = world.recover("a", Policy(timeout=None, deadline=None))(Flaky(takes=1).acall)

    async def outlives() -> None:
        await asyncio.sleep(100)
        await work()
        with pytest.raises(BudgetError):
            await work()

    async def main() -> None:
        with Budget(seconds=5, attempts=1, runtime=world.runtime):
            task = asyncio.create_task(outlives())
        await task

    world.run(main())


def test_FR17_a_task_that_outlives_an_inner_budget_keeps_the_outer_seconds() -> None:
    world = World()
    work = world.recover("a", Policy(timeout=None, deadline=None))(Flaky(takes=20).acall)

    async def main() -> None:
        with Budget(seconds=30, runtime=world.runtime):
            with Budget(seconds=5, runtime=world.runtime):
                task = asyncio.create_task(work())
            await asyncio.sleep(0)
            assert await asyncio.create_task(_later(work, 5)) == "ok"
            with pytest.raises(DeadlineError):
                await work()
            task.cancel()
        assert world.now == 30

    world.run(main())


async def _later(work: Any, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return await work()


def test_FR17_while_the_block_runs_its_tasks_have_its_seconds() -> None:
    world = World()
    work = world.recover("a", Policy(timeout=None, deadline=None))(Flaky(takes=20).acall)

    async def main() -> None:
        with Budget(seconds=5, runtime=world.runtime):
            task = asyncio.create_task(work())
            await asyncio.sleep(10)
            assert isinstance(task.exception(), DeadlineError)
            with pytest.raises(DeadlineError):
                await asyncio.create_task(work())

    world.run(main())


# --- one budget, several blocks ---


def test_a_budget_that_is_entered_again_goes_on_with_its_spend(world: World) -> None:
    today, ends = Budget(attempts=3), []
    for _ in range(5):
        with today:
            try:
                ends.append(world.recover("a", STEADY).call(Flaky()))
            except BudgetError:
                ends.append("over budget")
    assert ends == ["ok"] * 3 + ["over budget"] * 2
    assert today.spend().attempts == 3
    assert AMBIENT.get() is None


@pytest.mark.parametrize("between", [False, True])
def test_a_budget_inside_of_itself_is_charged_once(world: World, between: bool) -> None:
    today, small = Budget(attempts=5), Budget(attempts=3)
    with today:
        with small if between else today, today:
            world.recover("a", STEADY).call(Flaky())
            assert today.left().attempts == (2 if between else 4)
        assert (today.spend().attempts, today.left().attempts) == (1, 4)
        world.recover("a", STEADY).call(Flaky())
    assert today.spend().attempts == 2


def test_R14_fifty_threads_with_blocks_of_their_own_share_one_ledger(world: World) -> None:
    """Threads do not inherit the block of the thread that starts them, so each of them enters the budget."""
    works, ends = [Flaky() for _ in range(50)], []
    ready, today = threading.Barrier(50), Budget(attempts=20)

    def one(work: Flaky) -> None:
        ready.wait()
        try:
            with today:
                ends.append(world.recover("a", STEADY).call(work))
        except BudgetError:
            ends.append("over budget")

    threads = [threading.Thread(target=one, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (today.spend().attempts, sum(work.calls for work in works), ends.count("over budget")) == (20, 20, 30)


@pytest.mark.skipif(getattr(sys.flags, "thread_inherit_context", False), reason="threads inherit the context here")
@pytest.mark.parametrize(("how", "answered"), [("plain", 9), ("with", 3), ("context", 3), ("to_thread", 3)])
def test_which_threads_are_inside_of_a_budget(world: World, how: str, answered: int) -> None:
    """As the page says: a thread that does not enter the budget, and has no copy of the context, is outside."""

    def ask() -> str:
        return world.recover("a", STEADY).call(Flaky())

    def inside() -> str:
        with budget:
            return ask()

    async def main() -> list[Any]:
        return await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(9)), return_exceptions=True)

    with Budget(attempts=3) as budget:
        if how == "to_thread":
            ends = asyncio.run(main())
        else:
            with ThreadPoolExecutor(4) as pool:
                works = [inside if how == "with" else ask] * 9
                contexts = [contextvars.copy_context() for _ in works]
                calls = [
                    pool.submit(each.run, work) if how == "context" else pool.submit(work)
                    for each, work in zip(contexts, works, strict=True)
                ]
            ends = [call.exception() or call.result() for call in calls]
    assert ends.count("ok") == answered
    assert budget.spend().attempts == (0 if how == "plain" else 3)


def test_R14_tasks_with_blocks_of_their_own_share_one_ledger(world: World) -> None:
    today = Budget(attempts=20)

    async def one() -> str:
        with today:
            return await world.recover("a", STEADY).call(Flaky(takes=1).acall)

    async def main() -> list[Any]:
        with Budget(attempts=10) as outer:
            inside = asyncio.gather(*(one() for _ in range(15)), return_exceptions=True)
        ends = await inside + await asyncio.gather(*(one() for _ in range(15)), return_exceptions=True)
        assert outer.spend().attempts == 10
        return ends

    ends = world.run(main())
    assert [isinstance(end, BudgetError) for end in ends].count(True) == 10
    assert today.spend().attempts == 20


def test_the_seconds_of_a_budget_run_while_a_block_of_it_is_open() -> None:
    world = World()
    budget = Budget(seconds=10, runtime=world.runtime)
    with budget:
        world.clock.sleep(4)
        with budget:
            world.clock.sleep(2)
        assert budget.left().seconds == 4
    world.clock.sleep(100)
    assert budget.left().seconds == 4
    with budget:
        world.clock.sleep(3)
        assert budget.left().seconds == 1
        world.clock.sleep(2)
        with pytest.raises(DeadlineError):
            world.recover("a").call(Flaky())
    with budget, pytest.raises(DeadlineError):
        world.recover("a").call(Flaky())


# --- blocks that are left elsewhere ---


def apart(test: Any) -> Any:
    """Run a test in a context of its own, because it leaves a block in it."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        contextvars.copy_context().run(test, **given)

    return run


@pytest.mark.parametrize("kept", [False, True])
def test_a_budget_in_a_generator_that_is_dropped_limits_nothing_later(
    world: World, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    work = world.recover("a", STEADY)(Flaky(takes=1).acall)
    budget = Budget(attempts=1)

    async def pages() -> Any:
        with budget if kept else Budget(attempts=1):
            while True:
                yield await work()

    async def main() -> None:
        async for _ in pages():
            break
        # At once: its event loop has not closed it yet.
        for _ in range(3):
            assert await work() == "ok"
        assert await asyncio.gather(work(), work()) == ["ok", "ok"]
        with Budget(attempts=5) as other:
            await work()
        assert other.left().attempts == 4
        if kept:
            with budget, pytest.raises(BudgetError):
                await work()

    world.run(main())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@apart
def test_a_generator_that_ends_inside_of_another_block_leaves_that_block_in_force(world: World) -> None:
    def pages() -> Iterator[int]:
        with Budget(attempts=1):
            yield 1

    reading = pages()
    next(reading)
    with Budget(attempts=7) as other:
        reading.close()
        assert AMBIENT.get() is not None
        assert other.left().attempts == 1  # entered inside of the generator's block
    assert world.recover("a", STEADY).call(Flaky()) == "ok"
    assert world.recover("a", STEADY).call(Flaky()) == "ok"


@apart
def test_a_block_may_be_left_in_another_thread(world: World) -> None:
    with Budget(attempts=3) as outer:
        budget = Budget(attempts=1)
        budget.__enter__()
        thread = threading.Thread(target=budget.__exit__)
        thread.start()
        thread.join()
        for _ in range(2):
            assert world.recover("a", STEADY).call(Flaky()) == "ok"
    assert (budget.spend().attempts, outer.spend().attempts) == (0, 2)


@apart
def test_the_block_that_a_dropped_generator_leaves_is_its_own(world: World) -> None:
    """A budget of the day with a block in a generator, and one around a request."""
    today = Budget(attempts=2)

    def pages() -> Iterator[int]:
        with today:
            yield 1

    reading = pages()
    next(reading)
    with today:
        reading.close()
        world.recover("a", STEADY).call(Flaky())
        assert today.spend().attempts == 1
    world.recover("a", STEADY).call(Flaky())
    assert today.spend().attempts == 1
