"""Results as values: `Ok | Err`, for callers who would rather match than catch.

Invariant: an `Err` always carries a fault, and the original exception when there was one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NoReturn, TypeAlias, TypeVar

from holdfast.faults.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.faults.fault import Attempt, Fault

__all__ = ["Err", "Ok", "Outcome"]

T_co = TypeVar("T_co", covariant=True)


class Ok(Generic[T_co]):
    """It worked."""

    __match_args__ = ("value",)
    __slots__ = ("attempts", "value", "via")

    value: T_co
    via: str
    """Which step answered: `primary`, or the name of the fallback."""
    attempts: tuple[Attempt, ...]

    def __init__(self, value: T_co, *, via: str = "primary", attempts: tuple[Attempt, ...] = ()) -> None:
        self.value = value
        self.via = via
        self.attempts = attempts

    @property
    def ok(self) -> bool:
        return True

    def unwrap(self) -> T_co:
        """Return the value."""
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ok) and (self.value, self.via) == (other.value, other.via)

    def __hash__(self) -> int:
        return hash((Ok, self.value, self.via))

    def __repr__(self) -> str:
        return f"Ok({self.value!r}, via={self.via!r})"


class Err:
    """It failed."""

    __match_args__ = ("fault",)
    __slots__ = ("error", "fault")

    fault: Fault
    error: BaseException | None
    """The original exception, unchanged."""

    def __init__(self, fault: Fault, error: BaseException | None = None) -> None:
        self.fault = fault
        self.error = error

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
        return hash((Err, self.fault.code, self.fault.message))

    def __repr__(self) -> str:
        return f"Err({self.fault.code}: {self.fault.message!r})"


Outcome: TypeAlias = Ok[T_co] | Err
"""What `.outcome()` returns; match on it."""
