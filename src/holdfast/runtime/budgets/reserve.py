"""Reserve what a call may cost before it is sent. Drivers do this before each call under a budget.

Nothing but a limit that somebody named ends the wait for money that other calls have reserved. There is one exception: a function, or a
stream that nobody reads, may itself wait for the call that waits for it, and nobody can see that. See `_Watch`.

Invariant: a call that has a reservation never waits for another call.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_module
from holdfast.faults import BudgetError, HoldfastError
from holdfast.policies.models.quote import quote_of
from holdfast.runtime.budgets.reservations import CallClaim
from holdfast.runtime.event_loop import running_loop, runs_loop
from holdfast.runtime.operation import errors, reports
from holdfast.runtime.operation.facts import named_wait_end
from holdfast.runtime.targets.limiter import CHECK_S

if TYPE_CHECKING:
    import asyncio
    import logging
    from collections.abc import Iterator, Mapping

    from holdfast.policies.budget import Short
    from holdfast.policies.models.quote import Quote
    from holdfast.runtime.operation.operation import Operation
else:
    asyncio = lazy_module("asyncio", globals())
    logging = lazy_module("logging", globals())

__all__ = ["reserve", "reserve_async", "reserve_copy"]

_REQUESTS = ("messages", "input", "prompt", "contents")
"""The arguments in which functions take what a model is asked."""

_WARN_S, _VAIN_S = 60.0, 900.0
"""After so many seconds in which nothing ends or goes on, a wait for functions and streams is warned of, and given up."""


async def reserve_async(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Reserve what the call may cost, and wait until it fits. Raises `BudgetError` if it never will.

    The wait ends at a limit that somebody named, with the caller's signal, or by cancellation.
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

    try:
        if not reservations.join(claim, wake):
            watch = _Watch(op, claim)
            for part in watch.parts():
                await asyncio.wait((decided,), timeout=None if part == math.inf else part)
                if decided.done():
                    break
            watch.end()
        _hold(op, claim)
    except BaseException:
        reservations.leave(claim)
        raise


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
    try:
        if not reservations.join(claim, turn.release):
            if runs_loop():
                reservations.leave(claim)
                if op.adapter is None:
                    return
                claim.short = claim.ledger.short_of(claim.reservation, claim.owner)
            else:
                watch = _Watch(op, claim)
                any(turn.acquire(timeout=-1 if part == math.inf else part) for part in watch.parts())
                watch.end()
        _hold(op, claim)
    except BaseException:
        reservations.leave(claim)
        raise


class _Watch:
    """The wait of one call for money that other calls have reserved.

    A client's call that is under way ends by itself. A function may have handed its request to another task, and a stream may not be
    read, until the call that waits here is made. If only such calls are in the way and none of them moves, the wait is warned of, and
    ends after 15 minutes.
    """

    def __init__(self, op: Operation, claim: CallClaim) -> None:
        self._op = op
        self._claim = claim
        self._began = self._moved = op.plan.monotonic()
        self._seen: list[tuple[CallClaim, int]] = []
        self._warned = False
        reports.waiting(op, "money", claim.name)

    def parts(self) -> Iterator[float]:
        """Yield the seconds to wait, part by part; end when the wait has to. Raises if the caller aborts, or waits in vain."""
        op, now = self._op, self._op.plan.monotonic
        while True:
            op.raise_if_aborted()
            until = named_wait_end(op)
            left = math.inf if until is None else until - now()
            if left <= 0 or self._claim.is_decided:
                return
            self._check(now())
            yield min(left, math.inf if op.abort is None else CHECK_S, _WARN_S)

    def end(self) -> None:
        """The wait is over. It was for the caller's own limit, so the time for retries stood still."""
        self._op.shift_window(self._op.plan.monotonic() - self._began)

    def _holders(self) -> list[CallClaim]:
        found: list[Any] = self._claim.charges.reservations.holders(self._claim)
        return found

    def _check(self, now: float) -> None:
        """Warn, or raise, if nothing that is in the way has moved for long."""
        reservations = self._claim.charges.reservations
        reservations.look_again()
        reservations.end_abandoned(self._claim)
        holders = self._holders()
        seen = [(other, other.parts) for other in holders]
        if seen != self._seen or any(other.ends_by_itself for other in holders):
            self._seen, self._moved = seen, now
            return
        waited = now - self._moved
        if waited < _WARN_S:
            return
        names = ", ".join(dict.fromkeys(other.name for other in holders)) or "other calls"
        why = (
            f"for money that is reserved for {names}, and nothing of that has moved since: if one of these waits for this call, raise the "
            "budget, or make this call inside of it"
        )
        if waited >= _VAIN_S:
            short = self._claim.ledger.short_of(self._claim.reservation, self._claim.owner)
            facts: dict[str, Any] = (
                {} if short is None else {"unit": short.unit, "limit": short.limit, "price": short.price}
            )
            raise BudgetError.because(f"{self._claim.name} waited {waited:.0f} s {why}", **facts)
        if not self._warned:
            self._warned = True
            logging.getLogger("holdfast").warning("%s has waited %.0f s %s", self._claim.name, waited, why)


def _claim(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallClaim | None:
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
    return CallClaim(op, charges, _quote(op, args, kwargs))


def reserve_copy(op: Operation) -> bool:
    """Reserve a copy of the present call if it fits now; never wait. `Charges.end_copy` gives the reservation back."""
    charges = op.charges
    if charges is None or charges.copied is None:
        return True
    copy = charges.copied.copy()
    # Without waiting, a claim that is not served at once is withdrawn.
    charges.reservations.join(copy, lambda: None)
    if copy.served:
        charges.hold_copy(copy)
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


def _hold(op: Operation, claim: CallClaim) -> None:
    """Go on with a claim that was served; raise if it was not."""
    charges = op.charges
    assert charges is not None
    rejection = _rejection(op, claim)
    if rejection is not None:
        raise rejection
    charges.hold(claim)


def _rejection(op: Operation, claim: CallClaim) -> HoldfastError | None:
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
