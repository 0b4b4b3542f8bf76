"""Whether a fallback step is tried: its condition, what it can do, its circuit, and consent (S1-15, S1-16, C28).

Invariant: a mistake in the calling code, and a call that may have happened, are never answered by another way of doing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast.faults import CATALOG, Category, Code, InvalidError
from holdfast.faults.catalog import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Fault

__all__ = ["Ask", "CategoryName", "Consent", "Skip", "Try", "When", "answerable", "check_when", "consider", "meets"]

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
"""A step that was configured is agreed to; `ask` asks each time."""


class Try(msgspec.Struct, frozen=True):
    """Go ahead."""


class Ask(msgspec.Struct, frozen=True):
    """Go ahead if the user agrees."""


class Skip(msgspec.Struct, frozen=True):
    """Leave this step out."""

    reason: str


_NOT_ANSWERED: frozenset[Code] = frozenset({"SYS_PROGRAMMING_ERROR", "TOOL_OUTCOME_UNKNOWN", "SYS_CANCELLED"})


def answerable(fault: Fault) -> bool:
    """Whether a fallback may answer this failure at all."""
    return fault.code not in _NOT_ANSWERED


def consider(
    *,
    met: bool,
    needs: frozenset[str],
    offers: frozenset[str] | None,
    circuit_open: bool,
    consent: Consent,
) -> Try | Ask | Skip:
    """Return what to do about the next step. `offers` None: the step was not asked what it can do."""
    if not met:
        return Skip("its condition is not met")
    if offers is not None and (missing := needs - offers):
        return Skip(f"it lacks {', '.join(sorted(missing))}")
    if circuit_open:
        return Skip("its circuit is open")
    return Ask() if consent == "ask" else Try()


def meets(when: When | None, latest: Fault, primary: Fault) -> bool:
    """Whether a step's condition holds for these failures."""
    if when is None:
        return True
    if callable(when):
        return bool(when(latest, primary))
    words = when if isinstance(when, tuple) else (when,)
    return any(fault.code in words or fault.category in words for fault in (latest, primary))


def check_when(path: str, when: When | None) -> None:
    """Refuse a condition that could never be met."""
    if when is None or callable(when):
        return
    # What was written need not be what the types say.
    words: tuple[object, ...] = when if isinstance(when, tuple) else (when,)
    for word in words:
        if not isinstance(word, str) or (word not in CATALOG and word not in set(Category)):
            raise InvalidError.at(path, f"a code, a category or a function ({', '.join(nearest(str(word)))}?)", word)
