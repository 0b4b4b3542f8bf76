"""Answers that were not accepted: what is wrong with them, and letting go of what they hold.

Invariant: an answer that is thrown away is closed first, the accepted one never (R27).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.faults import CATALOG, Code, Fault, InvalidError, Partial

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Accept", "discard", "discard_async", "refusal"]

Accept: TypeAlias = "Callable[[Any], bool | Code | Fault | None]"
"""Looks at an answer: True or None accepts it; False, a code or a Fault asks for another."""


def refusal(accept: Accept, value: Any) -> Fault | None:
    """Ask `accept` about an answer: None if it is good, else the fault, which carries the answer."""
    verdict = accept(value)
    if verdict is None or verdict is True:
        return None
    if isinstance(verdict, Fault):
        return verdict
    code = "PROVIDER_OUTPUT_INVALID" if verdict is False else verdict
    if code not in CATALOG:
        raise InvalidError.at("what accept returned", "True, False, None, a code of the catalog or a Fault", verdict)
    return Fault.of(code, "The answer was not accepted", retryable=True, partial=Partial(payload=value))


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
