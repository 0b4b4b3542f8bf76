"""Answers that were not accepted: what is wrong with them, and letting go of what they hold.

Invariant: an answer that is thrown away is closed first, the accepted one never (R27).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.faults import CATALOG, Code, Fault, InvalidError, Partial
from holdfast.runtime import reports

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.operation import Operation

__all__ = ["Accept", "discard", "discard_async", "refusal", "throw_away", "throw_away_async"]

Accept: TypeAlias = "Callable[[Any], bool | Code | Fault | None]"
"""Looks at an answer: True or None accepts it; False, a code or a Fault asks for another."""


def refusal(op: Operation, value: Any) -> Fault | None:
    """Ask what stands at `accept` about an answer: None if it is good, else the fault, which carries the answer.

    A question that cannot be answered is reported and changes nothing: the answer stands (R25).
    """
    accept = op.plan.accept
    try:
        return None if accept is None else _refusal(accept, value)
    except Exception as error:  # noqa: BLE001 - whatever a callback of the user's raises
        reports.suppressed(op, error, "what looks at the answers raised")
        return None


def throw_away(op: Operation, value: Any) -> None:
    """Close an answer that was not accepted; that it will not close is reported and changes nothing."""
    try:
        discard(value)
    except Exception as error:  # noqa: BLE001 - a foreign object's own
        reports.suppressed(op, error, "closing an answer that was not accepted failed")
    except BaseException as stop:
        op.stopped(stop)
        raise


async def throw_away_async(op: Operation, value: Any) -> None:
    """The same in a task."""
    try:
        await discard_async(value)
    except Exception as error:  # noqa: BLE001 - ditto
        reports.suppressed(op, error, "closing an answer that was not accepted failed")
    except BaseException as stop:
        op.stopped(stop)
        raise


def discard(value: Any) -> None:
    """Close an answer that nobody will see."""
    close = getattr(value, "close", None)
    if callable(close):
        close()


async def discard_async(value: Any) -> None:
    """Close an answer that nobody will see, whichever way it closes."""
    close = getattr(value, "aclose", None) or getattr(value, "close", None)
    if callable(close):
        closing = close()
        if inspect.isawaitable(closing):
            await closing


def _refusal(accept: Accept, value: Any) -> Fault | None:
    verdict = accept(value)
    if verdict is None or verdict is True:
        return None
    if isinstance(verdict, Fault):
        return verdict
    code = "PROVIDER_OUTPUT_INVALID" if verdict is False else verdict
    if code not in CATALOG:
        raise InvalidError.at("what accept returned", "True, False, None, a code of the catalog or a Fault", verdict)
    return Fault.of(code, "The answer was not accepted", retryable=True, partial=Partial(payload=value))
