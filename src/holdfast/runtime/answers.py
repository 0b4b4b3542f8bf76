"""Accept or reject an answer, and close an answer that the caller will not get.

Invariant: an answer is closed before it is thrown away. An accepted answer is never closed (R27).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from holdfast.faults import CATALOG, Fault, InvalidError, Partial
from holdfast.runtime import reports

if TYPE_CHECKING:
    from holdfast.runtime.operation import Operation
    from holdfast.runtime.plan import Accept

__all__ = ["close_answer", "close_answer_async", "fault_in", "throw_away", "throw_away_async"]


def fault_in(op: Operation, answer: Any) -> Fault | None:
    """Return why `accept` rejects an answer, as a fault that carries the answer; None if it is accepted.

    If `accept` raises, its error is reported and the answer is accepted (R25).
    """
    accept = op.plan.accept
    try:
        return None if accept is None else _fault_in(accept, answer)
    except Exception as error:  # noqa: BLE001 - `accept` is the user's and may raise anything
        reports.suppressed(op, error, "`accept` raised")
        return None


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


def _fault_in(accept: Accept, answer: Any) -> Fault | None:
    verdict = accept(answer)
    if verdict is None or verdict is True:
        return None
    if isinstance(verdict, Fault):
        return verdict
    code = "PROVIDER_OUTPUT_INVALID" if verdict is False else verdict
    if code not in CATALOG:
        # This is a mistake in `accept` itself, so `fault_in` reports it and accepts the answer.
        raise InvalidError.at("what accept returned", "True, False, None, a code of the catalog or a Fault", verdict)
    return Fault.of(code, "The answer was not accepted", retryable=True, partial=Partial(payload=answer))
