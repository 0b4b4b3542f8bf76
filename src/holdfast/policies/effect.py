"""What a call does to the world, and so whether it may be made twice.

Invariant: an unsafe call that may have happened is never repeated; an unknown failure is repeated only where repeating
is declared harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from holdfast.faults import Fault

__all__ = ["EFFECTS", "Effect", "leaves_outcome_unknown", "repeats_unknown"]

Effect: TypeAlias = Literal["read", "idempotent", "keyed", "unsafe"]
"""`read` changes nothing; `idempotent` may be repeated; `keyed` may be repeated with the same key; `unsafe` may not."""

EFFECTS: tuple[Effect, ...] = get_args(Effect)


def leaves_outcome_unknown(effect: Effect | None, fault: Fault) -> bool:
    """Whether somebody must look before this call is made again."""
    return effect == "unsafe" and fault.maybe_executed


def repeats_unknown(effect: Effect | None) -> bool:
    """Whether a failure nobody recognised may be answered with one more call."""
    return effect in {"read", "idempotent", "keyed"}
