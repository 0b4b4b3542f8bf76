"""Results as values: `Ok | Err`, for callers who would rather match than catch.

Invariant: a result is frozen; an `Err` always carries a fault, and the original exception when there was one.
"""

from __future__ import annotations

from typing import Generic, NoReturn, TypeAlias, TypeVar

import msgspec

from holdfast.faults.errors import HoldfastError
from holdfast.faults.fault import Attempt, Fault
from holdfast.faults.masking import PRINTING

__all__ = ["Err", "Ok", "Outcome"]

T_co = TypeVar("T_co", covariant=True)


class _How(msgspec.Struct, frozen=True, kw_only=True):
    via: str = "primary"
    """Which step answered: `primary`, or the name of the fallback."""
    attempts: tuple[Attempt, ...] = ()


class Ok(_How, Generic[T_co], frozen=True):
    """It worked."""

    value: T_co

    @property
    def ok(self) -> bool:
        return True

    def unwrap(self) -> T_co:
        """Return the value."""
        return self.value

    # How many attempts it took is the way, not the result.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ok) and (self.value, self.via) == (other.value, other.via)

    def __hash__(self) -> int:
        return hash((Ok, self.value, self.via))

    def __repr__(self) -> str:
        return f"Ok({self.value!r}, via={self.via!r})"


class Err(msgspec.Struct, frozen=True):
    """It failed."""

    fault: Fault
    error: BaseException | None = None
    """The original exception, unchanged."""

    @property
    def ok(self) -> bool:
        return False

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.fault.attempts

    def unwrap(self) -> NoReturn:
        """Raise the original exception, or one that carries the fault."""
        raise self.error if self.error is not None else HoldfastError(self.fault)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Err) and self.fault == other.fault

    def __hash__(self) -> int:
        # A fault's context is a dict; what names the failure is enough to find it by.
        return hash((Err, self.fault.code, self.fault.message))

    def __repr__(self) -> str:
        return f"Err({self.fault.code}: {PRINTING.redactor().text(self.fault.message)!r})"


Outcome: TypeAlias = Ok[T_co] | Err
"""What `.outcome()` returns; match on it."""
