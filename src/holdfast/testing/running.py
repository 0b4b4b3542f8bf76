"""`run`: a coroutine from start to end in virtual time, and whatever recovers inside it on the same clock.

Invariant: event loop and runtime never measure by different clocks here. A limit that the one calls due and the other does
not would be set again for ever.
"""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.runtime.runtime import Runtime, default_runtime, use_runtime
from holdfast.testing.chance import seeded
from holdfast.testing.clock import VirtualClock
from holdfast.testing.loop import loop_factory
from holdfast.testing.selector import IO_WAIT, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")

__all__ = ["run"]


def run(
    coroutine: Coroutine[Any, Any, T],
    *,
    clock: VirtualClock | None = None,
    patience: float = PATIENCE,
    io_wait: float = IO_WAIT,
) -> T:
    """Run a coroutine to its end in virtual time, as `asyncio.run` does in real time.

    Recoveries inside use the default runtime where that is on `clock` already, else one of their own, with circuits of
    its own and no readers. To read its events or to keep its circuits over several runs, be the one who makes it:
    `with use_runtime(Runtime(clock=VirtualClock())) as runtime: runtime.on(capture); run(…)`.
    """
    with _virtual_time(clock) as shared, closing(_runner(shared, patience, io_wait)) as runner:
        return runner.run(coroutine)


def _runner(clock: VirtualClock, patience: float, io_wait: float) -> asyncio.Runner:
    # Not entered: that would make the loop at once, also where it cannot run because another does.
    return asyncio.Runner(loop_factory=loop_factory(clock, patience=patience, io_wait=io_wait))


@contextmanager
def _virtual_time(clock: VirtualClock | None) -> Iterator[VirtualClock]:
    """Give the clock that the default runtime is on for as long as the block runs."""
    current = default_runtime()
    if isinstance(current.clock, VirtualClock) and clock in (None, current.clock):
        yield current.clock
        return
    own = VirtualClock() if clock is None else clock
    with use_runtime(Runtime(clock=own, rng=seeded(0), waits=current.waits, enabled=current.enabled)):
        yield own
