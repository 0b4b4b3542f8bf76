"""Hedge: a second call when the first is late. Whichever answers first wins.

Invariant: when the attempt is over, none of its calls is left running, except one that ignores its cancellation: it is reported
and left behind. Every added call is charged. Added calls need a
place and a start of the target's limiter like any other call, but they never wait for these, because a hedge that waits
is too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_module
from holdfast.policies.hedge import next_hedge
from holdfast.runtime.budgets.reserve import reserve_copy
from holdfast.runtime.event_loop import running_loop
from holdfast.runtime.leaks import leave_behind
from holdfast.runtime.limits import CANCEL_GRACE_S
from holdfast.runtime.operation.answers import throw_away_async

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.policies.hedge import Hedge
    from holdfast.runtime.operation.operation import Operation
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["race"]


async def race(
    op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make one attempt, and add calls to it while it is late."""
    hedge = op.plan.hedge
    assert hedge is not None
    first = _start(fn, args, kwargs)
    running = {first}
    done: set[asyncio.Task[Any]] = set()
    winner: asyncio.Task[Any] | None = None
    added = considered = 0
    try:
        while winner is None:
            wait = _next(op, hedge, considered)
            done, running = await asyncio.wait(running, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            winner = _winner(first, done, running)
            if done:
                continue
            considered += 1
            if _may_add(op):
                added += 1
                running.add(_start(fn, args, kwargs))
            else:
                # One rejection ends hedging for this attempt: the limits will hardly be free a moment later.
                considered = hedge.most
        op.plan.state.answered_in(op.plan.monotonic() - op.attempt_started)
        return winner.result()
    finally:
        try:
            await _stop(op, (running | done) - {winner})
        finally:
            _release(op, added)
        # These tasks hold exceptions whose tracebacks refer to this frame. Without `del`, that cycle would keep them
        # alive.
        del done, first, winner


def _start(fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> asyncio.Task[Any]:
    async def call() -> Any:
        return await fn(*args, **kwargs)

    return running_loop().create_task(call())


def _next(op: Operation, hedge: Hedge, considered: int) -> float | None:
    return next_hedge(
        hedge,
        after=op.plan.state.hedges_after(),
        started=op.attempt_started,
        added=considered,
        now=op.plan.monotonic(),
    )


def _release(op: Operation, added: int) -> None:
    """Release the places of the added calls and charge the calls.

    Their usage is not known; the call that answers is charged with its answer (R90).
    """
    limiter = op.plan.limiter
    for _ in range(added):
        if limiter is not None:
            limiter.release_added()
        if op.charges is not None:
            op.charges.end_copy()


def _may_add(op: Operation) -> bool:
    """Whether budget, quota and limiter allow one more call. If not, the calls that run go on (R37)."""
    now = op.plan.monotonic()
    if op.budget is not None and op.budget.exhausted() is not None:
        return False
    if op.plan.rationed and not op.plan.state.withdraw_retry(now):
        return False
    if not reserve_copy(op):
        return False
    if op.plan.limiter is not None and not op.plan.limiter.try_acquire(now):
        if op.charges is not None:
            op.charges.release_copy()
        return False
    if op.budget is not None:
        op.budget.attempt_begun(again=True)
    return True


def _winner(
    first: asyncio.Task[Any], done: set[asyncio.Task[Any]], running: set[asyncio.Task[Any]]
) -> asyncio.Task[Any] | None:
    """Return the call that decides: a call that answered or, if all calls failed, the first one.

    The first call is the one that the caller made, so its error surfaces and not that of a copy.
    """
    # Reading each task's exception marks it as seen; asyncio logs an exception that nobody reads.
    good = [task for task in done if not task.cancelled() and task.exception() is None]
    if good:
        return good[0]
    return None if running else first


async def _stop(op: Operation, others: set[asyncio.Task[Any]]) -> None:
    """Stop the calls that lost. If one of them has answered meanwhile, its answer is closed (R27)."""
    if not others:
        return
    for task in others:
        task.cancel()
    try:
        # Waiting for their end keeps the promise that no call runs on after its attempt. A call that ignores its
        # cancellation must not keep the winner's answer back.
        await asyncio.wait(others, timeout=CANCEL_GRACE_S)
    finally:
        for task in others:
            if not task.done():
                leave_behind(op, task)
    for task in others:
        if task.done() and not task.cancelled() and task.exception() is None:
            await throw_away_async(op, task.result())
