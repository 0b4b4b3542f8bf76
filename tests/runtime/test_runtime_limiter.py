"""The limiter of a target: places and starts, also when a waiting caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import HoldfastError, Policy, Runtime, recover
from holdfast.faults import AbortedError
from holdfast.runtime.operation.drivers import drive, drive_async
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.targets.limiter import limiter_for
from holdfast.testing import VirtualClock, run


@pytest.mark.parametrize("message", ["late", "", None])
def test_FR17_a_cancelled_wait_is_a_cancellation_whatever_its_message(message: str | None) -> None:
    async def main() -> None:
        runtime = Runtime(clock=VirtualClock())
        limiter = limiter_for("provider:a", 1, None, None)
        held = await limiter.acquire_async(runtime, None)
        waiting = asyncio.ensure_future(limiter.acquire_async(runtime, 1e9))
        await asyncio.sleep(0)
        waiting.cancel(message)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        limiter.release(held)
        assert limiter.try_acquire(0.0), "the cancelled caller left the queue"

    asyncio.run(main())


def test_a_wait_that_reaches_the_deadline_is_rejected_and_leaves_the_queue() -> None:
    async def main() -> None:
        runtime = Runtime(clock=VirtualClock())
        limiter = limiter_for("provider:a", 1, None, None)
        held = await limiter.acquire_async(runtime, None)
        with pytest.raises(HoldfastError) as rejected:
            await limiter.acquire_async(runtime, runtime.clock.monotonic())
        assert rejected.value.fault.code == "SYS_BULKHEAD_FULL"
        limiter.release(held)
        assert limiter.try_acquire(0.0)

    run(main())


def test_a_place_that_is_returned_while_this_thread_holds_the_lock_is_free_afterwards() -> None:
    """The garbage collector may close a dropped stream, which returns its place, in the middle of any method."""
    runtime = Runtime(clock=VirtualClock())
    limiter = limiter_for("provider:a", 1, None, None)
    held = limiter.acquire(runtime, None)
    places = limiter._places
    assert places is not None

    class Collecting:
        def try_acquire(self) -> bool:
            limiter.release(held)
            return places.try_acquire()

        def release(self, ticket: int) -> int | None:
            return places.release(ticket)

    limiter._places = Collecting()  # type: ignore[assignment] # one method of it is called
    assert not limiter.try_acquire(0.0), "the place was not free yet"
    limiter._places = places
    assert limiter.try_acquire(0.0)


def test_a_place_passes_by_waiters_whose_event_loop_is_closed() -> None:
    runtime = Runtime(clock=VirtualClock())
    limiter = limiter_for("provider:a", 1, None, None)
    held = limiter.acquire(runtime, None)
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        await limiter.acquire_async(runtime, None)

    waiting = [loop.create_task(wait()) for _ in range(2000)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    limiter.release(held)
    assert limiter.try_acquire(0.0), "all of them are passed by, however many there are"
    for task in waiting:
        task._log_destroy_pending = False  # type: ignore[attr-defined] # the loop was closed on purpose


@pytest.mark.parametrize("limits", [(1, None), (None, 0.01)], ids=["a place", "a start"])
def test_an_abort_ends_the_wait_for_a_place_or_a_start_in_a_task(limits: tuple[int | None, float | None]) -> None:
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    concurrency, per_second = limits
    policy = Policy(concurrency=concurrency, per_second=per_second, patience=None, timeout=None)
    recovery = recover("a", policy, runtime=runtime)
    called: list[str] = []

    async def work(name: str, seconds: float) -> str:
        called.append(name)
        await asyncio.sleep(seconds)
        return name

    async def main() -> None:
        first = asyncio.ensure_future(recovery.call(work, "first", 100.0))
        await asyncio.sleep(1)
        signal = asyncio.Event()
        op = Operation(recovery._plan, abort=signal)
        second = asyncio.ensure_future(drive_async(op, work, ("second", 0.0), {}))
        await asyncio.sleep(1)
        signal.set()
        with pytest.raises(AbortedError):
            await second
        assert clock.monotonic() == pytest.approx(2, abs=0.2)
        assert await first == "first"
        assert await recovery.call(work, "third", 0.0) == "third"

    run(main(), clock=clock)
    assert called == ["first", "third"]


@pytest.mark.parametrize("limits", [(1, None), (None, 0.001)], ids=["a place", "a start"])
def test_an_abort_ends_the_wait_for_a_place_or_a_start_in_a_thread(limits: tuple[int | None, float | None]) -> None:
    runtime = Runtime()
    concurrency, per_second = limits
    policy = Policy(concurrency=concurrency, per_second=per_second, patience=None, timeout=None)
    recovery = recover("a", policy, runtime=runtime)
    begun, go_on, signal = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(10)

    def aborted() -> None:
        drive(Operation(recovery._plan, abort=signal), begun.is_set, (), {})

    with ThreadPoolExecutor() as pool:
        first = pool.submit(recovery.call, hold)
        assert begun.wait(10)
        second = pool.submit(aborted)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        signal.set()
        with pytest.raises(AbortedError):
            second.result(10)
        go_on.set()
        first.result(10)
    limiter = runtime.registry.get("provider:a").limiter
    assert limiter is not None
    assert limiter._wakers == {}
