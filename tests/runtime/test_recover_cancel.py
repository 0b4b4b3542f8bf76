"""Cancellation at every await: it surfaces, nothing is counted, and nothing is left behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import anyio
import pytest
from recover_kit import LOOSE, Always, Flaky, World, cancel_everywhere, probes_out, reset

from holdfast import Circuit, DeadlineError, Hedge, Policy
from holdfast.events import AttemptEnded, AttemptStarted, Cancelled, CircuitState, Failed, Retry

TWICE = Policy(circuit=LOOSE)


class Closing:
    """An answer that has to be closed, slowly."""

    async def aclose(self) -> None:
        await asyncio.sleep(1)


async def _retried(world: World) -> None:
    await world.recover("a", TWICE).call(Flaky(reset(), reset(), takes=2).acall)


async def _timed_out(world: World) -> None:
    with suppress(DeadlineError):
        await world.recover("a", Policy(circuit=LOOSE, timeout=1)).call(Flaky(reset(), takes=5).acall)


async def _per_operation(world: World) -> None:
    await world.recover("a", Policy(circuit=LOOSE, counts="operation")).call(Flaky(reset(), takes=2).acall)


_per_operation.per_operation = True  # type: ignore[attr-defined] # one permit for all attempts


async def _gated(world: World) -> None:
    policy = Policy(circuit=LOOSE, concurrency=1, per_second=0.5)
    recovery = world.recover("a", policy)
    # Another call holds the place for a while, and the pace makes the retry wait again.
    limiter = recovery._plan.limiter
    assert limiter is not None
    assert limiter._places is not None
    limiter._places.acquire()
    asyncio.get_running_loop().call_later(3, limiter.release_added)
    asyncio.get_running_loop().call_later(4_000, lambda: None)
    try:
        await recovery.call(Flaky(reset(), takes=1).acall)
    finally:
        if asyncio.get_running_loop().time() < 3:
            limiter.release_added()
            limiter.release_added = lambda: None  # type: ignore[method-assign] # the other one has left already


async def _hedged(world: World) -> None:
    policy = Policy(circuit=LOOSE, hedge=Hedge(after=1, most=2))
    await world.recover("a", policy, effect="read").call(Flaky(reset(), takes=5).acall)


async def _fallen_back(world: World) -> None:
    primary = world.recover("a", Policy(circuit=LOOSE, attempts=2))(Always(reset, takes=1).acall)

    async def second() -> str:
        await asyncio.sleep(1)
        raise reset()

    async def third() -> str:
        await asyncio.sleep(1)
        return "third"

    primary.fallback(second)
    primary.fallback(third)
    await primary()


async def _streamed(world: World) -> None:
    source = Flaky(reset(), takes=1)

    async def numbers() -> Any:
        await source.acall()
        try:
            for number in range(2):
                yield number
                await asyncio.sleep(1)
        finally:
            await asyncio.sleep(1)

    policy = Policy(circuit=LOOSE, concurrency=1, per_second=10)
    async with world.recover("a", policy).stream(numbers)() as stream:
        async for _ in stream:
            await asyncio.sleep(1)


async def _opened_slowly(world: World) -> None:
    async def numbers() -> Any:
        yield 1

    async def opened() -> Any:
        await asyncio.sleep(2)
        return numbers()

    async with world.recover("a", TWICE).stream(opened, first=5)() as stream:
        async for _ in stream:
            pass


async def _block(world: World) -> None:
    work = Flaky(reset(), takes=1)
    async for attempt in world.recover("a", Policy(circuit=LOOSE, concurrency=1, per_second=0.1)):
        async with attempt:
            await work.acall()


async def _not_accepted(world: World) -> None:
    answers = iter([Closing(), "good"])

    async def answer() -> Any:
        await asyncio.sleep(1)
        return next(answers)

    policy = Policy(circuit=LOOSE, counts="operation")
    await world.recover("a", policy, accept=lambda value: value == "good").call(answer)


_not_accepted.per_operation = True  # type: ignore[attr-defined] # read by `cancel_everywhere`

SCENARIOS = [
    _retried,
    _timed_out,
    _per_operation,
    _gated,
    _hedged,
    _fallen_back,
    _streamed,
    _opened_slowly,
    _block,
    _not_accepted,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.strip("_"))
def test_R17_R45_R65_cancelled_at_every_await_nothing_is_left_behind(scenario: Any) -> None:
    runs = cancel_everywhere(scenario, names=("provider:a",))
    for events in runs:
        assert len([event for event in events if isinstance(event, Cancelled)]) <= 1
        assert not [event for event in events if isinstance(event, Failed)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.strip("_"))
def test_S2_10_the_cancellation_of_a_call_under_way_is_reported_once(scenario: Any) -> None:
    """Also in a fallback: a reader that waits for the end of an operation must get an event."""
    for events in cancel_everywhere(scenario, names=("provider:a",)):
        assert [type(event) for event in events if isinstance(event, Cancelled)] == [Cancelled]


def test_R17_a_cancelled_backoff_ends_at_once() -> None:
    world = World()
    work = Always(reset)

    async def main() -> None:
        task = asyncio.create_task(world.recover("a").call(work.acall))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.now == 0.5

    world.run(main())
    assert work.calls == 1
    assert [type(event) for event in world.events] == [AttemptStarted, AttemptEnded, Retry, Cancelled]


def test_R45_a_cancelled_probe_gives_its_place_back_and_the_next_caller_probes() -> None:
    world = World()
    policy = Policy(circuit=Circuit(failures=1), attempts=1)

    async def main() -> None:
        with pytest.raises(ConnectionResetError):
            await world.recover("a", policy).call(Always(reset).acall)
        await asyncio.sleep(30)
        probe = asyncio.create_task(world.recover("a", policy).call(Flaky(takes=100).acall))
        await asyncio.sleep(1)
        assert probes_out(world.state("provider:a")) == 1
        probe.cancel()
        await asyncio.wait([probe])
        assert probes_out(world.state("provider:a")) == 0
        assert world.circuit_state("provider:a") is CircuitState.HALF_OPEN
        assert await world.recover("a", policy).call(Flaky(value="next").acall) == "next"
        assert world.circuit_state("provider:a") is CircuitState.CLOSED

    world.run(main())
    breaker = world.state("provider:a")._breaker
    assert (breaker.successes, breaker.failures, breaker.cancelled) == (1, 1, 1)


@pytest.mark.parametrize("first", ["cancel", "timer"])
def test_R65_when_timeout_and_outer_cancel_race_the_outer_cancel_wins(first: str) -> None:
    """Both come in one turn of the loop, in either order."""
    world = World()
    balance: list[int] = []

    async def victim() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await world.recover("a", Policy(timeout=5, attempts=1)).call(Flaky(takes=60).acall)
        finally:
            balance.append(task.cancelling())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        if first == "cancel":
            loop.call_at(5, lambda: task.cancel())  # noqa: PLW0108 - there is no task yet
        task = asyncio.create_task(victim())
        await asyncio.sleep(0)
        if first == "timer":
            loop.call_at(5, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.now == 5

    world.run(main())
    assert balance == [1]
    assert world.state("provider:a")._breaker.cancelled == 1
    assert not world.of(Failed)


def test_R65_cancelling_is_zero_after_our_own_timeout() -> None:
    world = World()

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(DeadlineError):
            await world.recover("a", Policy(timeout=5, attempts=1)).call(Flaky(takes=60).acall)
        await asyncio.sleep(100)
        return task.cancelling()

    assert world.run(main()) == 0


def test_R65_an_outer_timeout_is_distinguished_from_ours() -> None:
    """asyncio.timeout around the call, sooner and later than our own limit."""
    world = World()

    async def main() -> None:
        call = world.recover("a", Policy(timeout=5, attempts=1)).call
        with pytest.raises(TimeoutError) as outer:
            async with asyncio.timeout(3):
                await call(Flaky(takes=60).acall)
        assert not isinstance(outer.value, DeadlineError)
        with pytest.raises(DeadlineError):
            async with asyncio.timeout(8):
                await call(Flaky(takes=60).acall)

    world.run(main())
    assert len(world.of(Cancelled)) == 1


def test_R65_if_two_of_our_limits_end_at_one_moment_the_outer_one_counts() -> None:
    world = World()
    inner = world.recover("inner", Policy(timeout=5, attempts=1))(Flaky(takes=60).acall)
    outer = world.recover("outer", Policy(timeout=5, attempts=1))

    async def main() -> None:
        with pytest.raises(DeadlineError) as failed:
            await outer.call(inner)
        assert "outer" in str(failed.value)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(100)

    world.run(main())
    # Both were late, and both circuits count it. Otherwise a service that hangs would never open the inner one.
    assert world.state("provider:inner")._breaker.failures == 1
    assert world.state("provider:outer")._breaker.failures == 1


def test_R65_a_function_that_swallows_our_cancellation_is_late_and_no_cancellation_stays_pending() -> None:
    world = World()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "finished anyway"
        return "never"

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(DeadlineError):
            await world.recover("a", Policy(timeout=5, attempts=1)).call(stubborn)
        assert task.cancelling() == 0
        await asyncio.sleep(1)

    world.run(main())


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.5, 2.5])
def test_R65_anyio_scope_around_the_call_is_respected(seconds: float) -> None:
    """In the first attempt, at its end, in the wait, in the second attempt."""
    world = World()

    async def main() -> None:
        with anyio.move_on_after(seconds) as scope:
            await world.recover("a").call(Always(reset, takes=1).acall)
        assert scope.cancelled_caught
        assert world.now == seconds
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError), anyio.fail_after(seconds):
            await world.recover("a").call(Always(reset, takes=1).acall)
        await asyncio.sleep(100)

    world.run(main())
    assert [type(event) for event in world.events].count(Cancelled) == 2


def test_R65_anyio_scope_cancelled_from_within_the_call_ends_the_call() -> None:
    world = World()
    calls = 0

    async def main() -> None:
        nonlocal calls
        with anyio.CancelScope() as scope:

            async def gives_up() -> None:
                nonlocal calls
                calls += 1
                scope.cancel()
                await asyncio.sleep(1)

            await world.recover("a").call(gives_up)
        assert scope.cancelled_caught

    world.run(main())
    assert calls == 1
    assert len(world.of(Cancelled)) == 1


def test_R65_anyio_scope_inside_the_call_is_not_touched() -> None:
    world = World()

    async def impatient() -> str:
        with anyio.move_on_after(1) as scope:
            await asyncio.sleep(60)
        if scope.cancelled_caught:
            with anyio.fail_after(1):
                await asyncio.sleep(60)
        return "never"

    async def main() -> None:
        with pytest.raises(TimeoutError) as failed:
            await world.recover("a", Policy(attempts=2)).call(impatient)
        assert not isinstance(failed.value, DeadlineError)

    world.run(main())
    assert len(world.of(Retry)) == 1
    assert not world.of(Cancelled)


def test_R65_our_timeout_inside_a_shielded_anyio_scope_still_ends_the_call() -> None:
    world = World()

    async def main() -> None:
        with anyio.CancelScope(shield=True):
            with pytest.raises(DeadlineError):
                await world.recover("a", Policy(timeout=5, attempts=1)).call(Flaky(takes=60).acall)
            await asyncio.sleep(1)

    world.run(main())


def test_R17_an_anyio_task_group_cancels_the_calls_in_it() -> None:
    world = World()

    async def fails() -> None:
        await asyncio.sleep(0.5)
        raise LookupError("the sibling's failure")

    async def siblings() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(world.recover("a").call, Flaky(takes=60).acall)
            group.start_soon(fails)

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as failed:
            await siblings()
        assert [type(error) for error in failed.value.exceptions] == [LookupError]

    world.run(main())
    assert len(world.of(Cancelled)) == 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_R18_an_interrupt_is_never_retried_nor_counted(stop: type[BaseException]) -> None:
    world = World()
    work = Flaky(stop())
    everything = Policy(attempts=9)
    with pytest.raises(stop):
        world.recover("a", everything, effect="read").call(work)
    assert work.calls == 1
    assert world.state("provider:a")._breaker.cancelled == 1
    assert [type(event) for event in world.events] == [AttemptStarted, Cancelled]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_R18_an_interrupt_during_the_wait_ends_it(stop: type[BaseException], monkeypatch: Any) -> None:
    world = World()
    work = Always(reset)

    def interrupted(*_: object) -> None:
        raise stop

    monkeypatch.setattr(type(world.clock), "sleep", interrupted)
    with pytest.raises(stop):
        world.recover("a", Policy(counts="operation")).call(work)
    assert work.calls == 1
    assert world.state("provider:a")._breaker.cancelled == 1
    assert len(world.of(Cancelled)) == 1


def test_R18_a_coroutine_closed_half_way_settles_its_permit() -> None:
    world = World()
    coroutine = world.recover("a").call(Flaky(takes=60).acall)

    async def main() -> None:
        coroutine.__await__().send(None)
        coroutine.close()

    world.run(main())
    breaker = world.state("provider:a")._breaker
    assert breaker.cancelled == 1
