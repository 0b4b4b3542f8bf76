"""The limiter of a target: places and starts, also when a waiting caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import HoldfastError, Runtime
from holdfast.runtime.limiter import limiter_for
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
