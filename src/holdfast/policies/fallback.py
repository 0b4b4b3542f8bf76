"""The condition of a fallback step: which failures it answers. Whether a step is taken is decided in `decide`."""

from __future__ import annotations

from inspect import iscoroutine, iscoroutinefunction
from typing import TYPE_CHECKING, Literal, TypeAlias

from holdfast.faults import CATALOG, Category, Code, InvalidError
from holdfast.faults.catalog import suggested_codes

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Fault

__all__ = ["CategoryName", "Consent", "When", "check_when", "meets"]

CategoryName: TypeAlias = Literal[
    "rate_limit",
    "timeout",
    "network",
    "unavailable",
    "auth",
    "invalid",
    "not_found",
    "overflow",
    "tool_error",
    "agent_crash",
    "validation",
    "unknown",
    "cancelled",
]
"""A category as people type it; `Category` has the same words."""

When: TypeAlias = (
    "Code | Category | CategoryName | tuple[Code | Category | CategoryName, ...] | Callable[[Fault, Fault], bool]"
)
"""Codes or categories, met by the latest failure or the primary one; or a function of both, the latest first."""

Consent: TypeAlias = Literal["configured", "ask"]
"""`configured`: the step in the code is the user's consent. `ask`: the user must agree each time."""


def meets(when: When | None, latest: Fault, primary: Fault) -> bool:
    """Whether a step's condition holds for these failures. Raises what a condition of the user's own raises."""
    if when is None:
        return True
    if callable(when):
        verdict: object = when(latest, primary)
        if iscoroutine(verdict):
            # Nobody will await it, and Python warns about a coroutine that is neither awaited nor closed.
            verdict.close()
            raise InvalidError.saying("what when returned", "True or False", "a coroutine")
        return bool(verdict)
    words = when if isinstance(when, tuple) else (when,)
    # The primary failure counts too: a step for rate limits still answers after an earlier step has failed differently.
    return any(fault.code in words or fault.category in words for fault in (latest, primary))


def check_when(path: str, when: When | None) -> None:
    """Raise `InvalidError` for a condition that could never be met, or always: a coroutine is true."""
    if when is None:
        return
    if callable(when):
        # An object with an async `__call__` is such a condition too.
        if iscoroutinefunction(when) or iscoroutinefunction(type(when).__call__):
            raise InvalidError.saying(path, "a plain function of the two faults", "an async function")
        return
    # The annotation is not enforced at run time, so any object may arrive here.
    words: tuple[object, ...] = when if isinstance(when, tuple) else (when,)
    for word in words:
        if not isinstance(word, str) or (word not in CATALOG and word not in set(Category)):
            raise InvalidError.at(path, f"a code, a category or a function ({suggested_codes(word)})", word)
