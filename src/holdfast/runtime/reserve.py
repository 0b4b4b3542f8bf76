"""Reserve what a call may cost before it is sent. Drivers do this before each call under a budget.

Invariant: a call that has a reservation never waits for another call.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_module
from holdfast.faults import BudgetError, HoldfastError
from holdfast.policies.models.quote import quote_of
from holdfast.policies.reservation import Claim, rank_of
from holdfast.runtime import errors
from holdfast.runtime.event_loop import present_owner, running_loop, runs_loop
from holdfast.runtime.limiter import CHECK_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping

    from holdfast.policies.budget import Short
    from holdfast.policies.models.quote import Quote
    from holdfast.runtime.operation import Operation
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["reserve", "reserve_async", "reserve_copy"]

_REQUESTS = ("messages", "input", "prompt", "contents")
"""The arguments in which functions take what a model is asked."""


async def reserve_async(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Reserve what the call may cost, and wait until it fits. Raises `BudgetError` if it never will.

    The wait ends at the deadline, with the caller's signal, or by cancellation.
    """
    claim = _claim(op, args, kwargs)
    if claim is None:
        return
    assert op.charges is not None
    reservations = op.charges.reservations
    loop = running_loop()
    decided: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not decided.done():
            decided.set_result(None)

    def wake() -> None:
        loop.call_soon_threadsafe(finish)

    if not reservations.join(claim, wake):
        timer = None if op.deadline is None else loop.call_later(max(0.0, op.deadline - op.plan.monotonic()), finish)
        try:
            while op.abort is not None and not decided.done():
                op.raise_if_aborted()
                await asyncio.wait((decided,), timeout=CHECK_S)
            await decided
        except BaseException:
            reservations.leave(claim)
            raise
        finally:
            if timer is not None:
                timer.cancel()
    _hold(op, claim)


def reserve(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """The same as `reserve_async`, in a thread, which blocks during the wait.

    In a thread that runs an event loop nothing can wait. A function that may return something to await makes its reservation when that is
    awaited; every other call that does not fit now is rejected.
    """
    claim = _claim(op, args, kwargs)
    if claim is None:
        return
    if op.adapter is None and runs_loop():
        # What it returns may be awaited in another task.
        claim.owner = claim
    assert op.charges is not None
    reservations = op.charges.reservations
    # A bare lock: unlike an Event, it can be released while this very thread is about to wait for it.
    turn = threading.Lock()
    turn.acquire()
    if not reservations.join(claim, turn.release):
        if runs_loop():
            reservations.leave(claim)
            if op.adapter is None:
                return
            claim.short = claim.ledger.short_of(claim.reservation, claim.owner)
        else:
            try:
                left = math.inf if op.deadline is None else max(0.0, op.deadline - op.plan.monotonic())
                any(turn.acquire(timeout=-1 if part == math.inf else part) for part in _parts(op, left))
            except BaseException:
                reservations.leave(claim)
                raise
    _hold(op, claim)


def _parts(op: Operation, seconds: float) -> Iterator[float]:
    if op.abort is None:
        yield seconds
        return
    while seconds > 0:
        op.raise_if_aborted()
        yield min(seconds, CHECK_S)
        seconds -= CHECK_S


def _claim(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Claim | None:
    """Return the claim of the call that is about to be made; None: its budgets limit neither money nor tokens."""
    charges = op.charges
    assert charges is not None
    outer = op.outer
    if outer is not None and outer.charges is not None and not op.attempts:
        # This operation makes the calls, so the outer attempt is not charged, and has nothing reserved while this one waits.
        outer.charges.take_back()
    charges.take_over()
    if not charges.reserves:
        charges.is_sent = True
        return None
    charges.release()
    quote = _quote(op, args, kwargs)
    reservation = charges.prepare(quote)
    return Claim(charges.ledger, reservation, rank_of(op.plan.policy.priority, op.started), present_owner())


def reserve_copy(op: Operation) -> bool:
    """Reserve a copy of the present call if it fits now; never wait. `Charges.end_copy` gives the reservation back."""
    charges = op.charges
    if charges is None or charges.copied is None:
        return True
    turn = rank_of(op.plan.policy.priority, op.started)
    copy = Claim(charges.ledger, charges.copied, turn, present_owner())
    # Without waiting, a claim that is not served at once is withdrawn.
    charges.reservations.join(copy, lambda: None)
    if copy.served:
        charges.copies.append(copy)
        return True
    charges.reservations.leave(copy)
    return False


def _quote(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Quote | None:
    """Return what a call may use at most, as its adapter or its arguments say it; None: nobody knows."""
    if op.adapter is not None and (quote := op.adapter.quote(op, args, kwargs)) is not None:
        return quote
    model = op.plan.target.model
    if any(name in kwargs for name in _REQUESTS):
        return quote_of(kwargs, model=model if op.plan.through_client else "")
    # A request of our own providers is an argument that says how long its answer may be.
    request = next((one for one in args if hasattr(one, "messages") and isinstance(_max_output(one), int)), None)
    return None if request is None else quote_of(request, model=model, max_output=_max_output(request))


def _max_output(request: Any) -> Any:
    return getattr(request, "max_output", None)


def _hold(op: Operation, claim: Claim) -> None:
    """Go on with a claim that was served; raise if it was not."""
    charges = op.charges
    assert charges is not None
    rejection = _rejection(op, claim)
    if rejection is not None:
        charges.reservations.leave(claim)
        raise rejection
    charges.hold(claim)


def _rejection(op: Operation, claim: Claim) -> HoldfastError | None:
    """Return why a call must not be made; None: its claim was served."""
    charges = op.charges
    assert charges is not None
    if claim.short is not None:
        return _too_dear(claim.short, "" if charges.sent is None else charges.sent.model)
    if op.abort is not None and op.abort.is_set():
        return errors.aborted(op)
    if not claim.served:
        return errors.deadline_passed(op)
    # Others may have spent the rest while it waited.
    spent = charges.exhausted()
    return None if spent is None else BudgetError.because(**spent)


def _too_dear(short: Short, model: str) -> BudgetError:
    money = short.unit == "usd"
    price, left, limit = (
        f"${amount:.6g}" if money else f"{amount:g} tokens" for amount in (short.price, short.left, short.limit)
    )
    message = (
        f"This call{f' of {model}' if model else ''} may use up to {price}, and {left} of the budget of {limit} is left: "
        "lower max_tokens, shorten the request, or raise the budget"
    )
    facts: dict[str, Any] = {"unit": short.unit, "limit": short.limit, "price": short.price, "left": short.left}
    if model:
        facts["model"] = model
    return BudgetError.because(message, **facts)
