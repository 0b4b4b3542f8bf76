"""A second call when the first is late; whichever answers first wins.

Invariant: when the attempt is over no call of it is left running, and every call that was added is charged. Added calls are
held to the places and the pace of the name like any other, but do not wait for them: late help is none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.policies.hedge import next_hedge
from holdfast.runtime.drivers import limited
from holdfast.runtime.results import throw_away_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.policies.hedge import Hedge, HedgeMachine
    from holdfast.runtime.operation import Operation

__all__ = ["hedging"]


def hedging(hedge: Hedge, machine: HedgeMachine) -> Callable[..., Awaitable[Any]]:
    """Return the way of making an attempt that adds calls to a late one."""

    async def race(
        op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        running = {_start(fn, args, kwargs)}
        done: set[asyncio.Task[Any]] = set()
        winner: asyncio.Task[Any] | None = None
        added = most = 0
        try:
            while winner is None:
                wait = _next(op, hedge, machine, most)
                done, running = await asyncio.wait(running, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                winner = _winner(done, running)
                if done:
                    continue
                most += 1
                if _may_add(op):
                    added += 1
                    running.add(_start(fn, args, kwargs))
                else:
                    most = hedge.most
            _took(op, machine)
            return winner.result()
        finally:
            try:
                await _stop(op, (running | done) - {winner})
            finally:
                _give_back(op, added)
            # A task in a frame that its exception passes through keeps that exception alive.
            del done, winner

    async def hedged(
        op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return await limited(op, race, (op, fn, args, kwargs), {})

    return hedged


def _start(fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> asyncio.Task[Any]:
    async def call() -> Any:
        return await fn(*args, **kwargs)

    return asyncio.create_task(call())


def _next(op: Operation, hedge: Hedge, machine: HedgeMachine, added: int) -> float | None:
    with op.plan.line.lock:
        after = machine.after()
    return next_hedge(
        hedge,
        after=after,
        started=op.attempt_started,
        added=added,
        now=op.plan.monotonic(),
        quota_allows=True,
    )


def _took(op: Operation, machine: HedgeMachine) -> None:
    with op.plan.line.lock:
        machine.took(op.plan.monotonic() - op.attempt_started)


def _give_back(op: Operation, added: int) -> None:
    """Leave the places of the calls that were added, and charge them.

    What they used nobody knows; the one that answers is charged with its answer (R90).
    """
    limiter = op.plan.limiter
    for _ in range(added):
        if limiter is not None:
            limiter.release(0)
        if op.budget is not None:
            op.budget.attempt_ended(None, again=True)


def _may_add(op: Operation) -> bool:
    """A refusal keeps the next call from being added and leaves those that run alone (R37)."""
    now = op.plan.monotonic()
    if op.budget is not None and op.budget.exhausted(now) is not None:
        return False
    if op.plan.rationed and not op.plan.line.may_retry(now):
        return False
    if op.plan.limiter is not None and not op.plan.limiter.try_acquire(now):
        return False
    if op.budget is not None:
        op.budget.attempt_begun(again=True)
    return True


def _winner(done: set[asyncio.Task[Any]], running: set[asyncio.Task[Any]]) -> asyncio.Task[Any] | None:
    """Return the call that decides: one that answered, or a failed one where no other is left."""
    # Each is asked for its exception: one that nobody asks for is logged as lost.
    good = [task for task in done if not task.cancelled() and task.exception() is None]
    if good:
        return good[0]
    return next(iter(done), None) if not running else None


async def _stop(op: Operation, others: set[asyncio.Task[Any]]) -> None:
    """Stop the calls that lost; an answer that came all the same is closed, since nobody will see it (R27)."""
    for task in others:
        task.cancel()
    if others:
        for answer in await asyncio.gather(*others, return_exceptions=True):
            if not isinstance(answer, BaseException):
                await throw_away_async(op, answer)
