"""Results as values: `Ok | Err`, for callers who prefer `match` to `except`.

Invariant: a result is frozen. An `Err` always carries a fault, and the original exception if there was one.
"""

from __future__ import annotations

from typing import Generic, NoReturn, TypeAlias, TypeVar

import msgspec

from holdfast.faults.errors import HoldfastError
from holdfast.faults.fault import Attempt, Fault
from holdfast.faults.redaction import PRINTING

T_co = TypeVar("T_co", covariant=True)


class _Way(msgspec.Struct, frozen=True, kw_only=True):
    via: str = "primary"
    """The step that answered: `primary`, or the name of the fallback."""
    attempts: tuple[Attempt, ...] = ()
    """Every call that was made, in order; the last one succeeded."""


class Ok(_Way, Generic[T_co], frozen=True):
    """A success: `value` is the result, `via` names the step that answered.

    For example:
        match await ask.outcome(prompt):
            case Ok(value=reply, via=via):
                print(reply, via)
            case Err(fault=fault):
                print(fault.for_user())
    """

    value: T_co

    @property
    def ok(self) -> bool:
        """Always True: `if result.ok:` works for both `Ok` and `Err`."""
        return True

    def unwrap(self) -> T_co:
        """Return the value; never raises."""
        return self.value

    # Two results are equal if their values are equal. The number of attempts does not matter.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ok) and (self.value, self.via) == (other.value, other.via)

    def __hash__(self) -> int:
        return hash((Ok, self.value, self.via))

    def __repr__(self) -> str:
        return f"Ok({self.value!r}, via={self.via!r})"


class Err(msgspec.Struct, frozen=True):
    """A failure: `fault` describes it, `error` is the original exception.

    For example:
        result = await ask.outcome(prompt)
        if not result.ok:
            print(result.fault.code, len(result.attempts))
    """

    fault: Fault
    error: BaseException | None = None
    """The original exception, unchanged."""

    @property
    def ok(self) -> bool:
        """Always False: `if result.ok:` works for both `Ok` and `Err`."""
        return False

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every call that was made, in order: `len(result.attempts)` calls failed."""
        return self.fault.attempts

    def unwrap(self) -> NoReturn:
        """Raise the original exception, or a `HoldfastError` with the fault if there was none."""
        raise self.error if self.error is not None else HoldfastError(self.fault)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Err) and self.fault == other.fault

    def __hash__(self) -> int:
        # A fault's context is a dict and has no hash. Code and message are enough to find an equal result.
        return hash((Err, self.fault.code, self.fault.message))

    def __repr__(self) -> str:
        return f"Err({self.fault.code}: {PRINTING.redactor().text(self.fault.message)!r})"


Outcome: TypeAlias = Ok[T_co] | Err
"""What `.outcome()` returns. It raises nothing for a failure of the call; match on it or test `.ok`:

    outcome: Outcome[str] = await ask.outcome(prompt)
"""
