"""Accept or reject an answer, and close an answer that the caller will not get.

Invariant: an answer is closed before it is thrown away. An accepted answer is never closed (R27). An answer that could not
be checked is not accepted.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._lazy import lazy_module
from holdfast.faults import CATALOG, Fault, InvalidError, Partial
from holdfast.runtime.operation import reports

if TYPE_CHECKING:
    import logging

    from holdfast.runtime.operation.operation import Operation
else:
    logging = lazy_module("logging", globals())

__all__ = ["close_answer", "close_answer_async", "fault_in", "throw_away", "throw_away_async"]


def fault_in(op: Operation, answer: Any) -> Fault | None:
    """Return why `accept` rejects an answer, as a fault that carries the answer; None if it is accepted.

    If `accept` raises or returns something else than a verdict, the answer is rejected as if it had returned False. The
    defect is reported once per recovery.
    """
    accept = op.plan.accept
    if accept is None:
        return None
    verdict: Any  # its annotation is a promise of the user's that nobody has checked
    try:
        verdict = accept(answer)
    except Exception as error:  # noqa: BLE001 - `accept` is the user's and may raise anything
        return _defect(op, answer, f"`accept` raised {type(error).__name__}", error)
    if verdict is None or verdict is True:
        return None
    if verdict is False:
        return _rejected(op, answer, "PROVIDER_OUTPUT_INVALID", "The answer was not accepted")
    if isinstance(verdict, Fault):
        return verdict
    if isinstance(verdict, str) and verdict in CATALOG:
        return _rejected(op, answer, verdict, "The answer was not accepted")
    return _senseless(op, answer, verdict)


def throw_away(op: Operation, answer: Any) -> None:
    """Close an answer that was not accepted. An error while closing it is reported and changes nothing."""
    try:
        close_answer(answer)
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything
        reports.suppressed(op, error, "closing an answer that was not accepted failed")
    except BaseException as stop:
        # An interrupt ends the operation here, and no later step would report that.
        op.stopped(stop)
        raise


async def throw_away_async(op: Operation, answer: Any) -> None:
    """Do the same as `throw_away`, in a task."""
    try:
        await close_answer_async(answer)
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything
        reports.suppressed(op, error, "closing an answer that was not accepted failed")
    except BaseException as stop:
        op.stopped(stop)
        raise


def close_answer(answer: Any) -> None:
    """Close an answer that the caller will not get."""
    close = getattr(answer, "close", None)
    if callable(close):
        close()


async def close_answer_async(answer: Any) -> None:
    """Close an answer that the caller will not get, whether its `close` is async or not."""
    # Some async clients call their coroutine `close`, others `aclose`; a plain `close` works for both kinds of answer.
    close = getattr(answer, "aclose", None) or getattr(answer, "close", None)
    if callable(close):
        closing = close()
        if inspect.isawaitable(closing):
            await closing


def _senseless(op: Operation, answer: Any, verdict: object) -> Fault:
    if inspect.iscoroutine(verdict):
        # Nobody will await it, and Python warns about a coroutine that is neither awaited nor closed.
        verdict.close()
    # Only the type is named: the value may be the answer itself, which belongs into no log.
    kind = type(verdict).__name__
    error = InvalidError.saying(
        "what accept returned", "True, False, None, a code of the catalog or a Fault", f"a value of type {kind}"
    )
    return _defect(op, answer, f"`accept` returned a value of type {kind}", error)


def _defect(op: Operation, answer: Any, what: str, error: Exception) -> Fault:
    # An answer that could not be checked is not accepted: a defect of `accept` must not switch the check off.
    if what not in op.plan.reported:
        op.plan.reported.add(what)
        reason = f"{what}, so the answer is rejected"
        # The runtime's own log has no events of this kind.
        logging.getLogger("holdfast").error("%s: %s", op.plan.name or "recover", reason)
        reports.suppressed(op, error, reason)
    return _rejected(op, answer, "PROVIDER_OUTPUT_INVALID", f"The answer was not accepted: {what}")


def _rejected(op: Operation, answer: Any, code: Any, message: str) -> Fault:
    fault = Fault.of(code, message, retryable=True, partial=Partial(payload=answer))
    # It came back, so it was made. Whether it may be made again is for its effect to say. Only a Fault of the user's own can say more.
    return msgspec.structs.replace(fault, maybe_executed=True) if op.plan.effect == "unsafe" else fault
