"""Partial results: what a failed operation had already produced (C26, S2-20, S3-6 to S3-9).

Invariant: a partial result never looks like a whole one. It travels on a Fault, and what failed stands beside it, item
by item, as faults of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults.masking import shown

if TYPE_CHECKING:
    from holdfast.faults.fault import Fault

__all__ = ["ItemError", "Partial"]


class ItemError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item of a batch that failed (S2-20)."""

    item: Any
    """Which one: its index, URL or id, as the tool names it."""
    code: str
    message: str
    classed: str = ""
    """Document 002's `Class/Code`."""
    retryable: bool = False

    __repr__ = shown

    @classmethod
    def of(cls, item: Any, fault: Fault) -> ItemError:
        """Return the entry for `item`, which failed with `fault`."""
        return cls(
            item=item,
            code=fault.code,
            message=fault.message,
            classed=fault.entry.classed,
            retryable=fault.retryable,
        )


class Partial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there is: the payload in its declared shape, and typed errors for what is missing from it."""

    payload: Any = None
    """In the shape the operation declares; text for a stream, a list for a batch, bindings for a workflow."""
    errors: tuple[ItemError, ...] = ()
    complete: int | None = None
    """How many items succeeded, where that can be counted."""
    expected: int | None = None
    """How many there should have been."""
    truncated: bool = False
    """Older results were dropped to keep the size in bounds (S3-8)."""

    __repr__ = shown

    @property
    def is_empty(self) -> bool:
        """Nothing was produced and nothing is known to be missing."""
        return not self.errors and self.payload in (None, "", [], {}, ())
