"""The exceptions Holdfast raises itself. Foreign exceptions pass through unchanged and are never wrapped in these.

    HoldfastError               a failure that is ours; `.fault` says which
    ├── CircuitOpenError        the circuit is open: `.circuit`, `.retry_at`
    ├── DeadlineError           our deadline passed (also a TimeoutError)
    ├── BudgetError             the budget is spent
    ├── StreamCutError          a stream broke off; `.fault.partial` holds what arrived
    ├── OutcomeUnknownError     a call may have happened: `.key`
    ├── AbortedError            the caller's own signal said stop: cancelled, not failed
    └── InvalidError            what we were given makes no sense (also a ValueError)

Invariant: `str(error)` starts with the code and, like `repr`, shows no secret; the error survives pickling with its fault.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.faults.fault import Fault
from holdfast.faults.masking import PRINTING
from holdfast.faults.redact import REDACTOR

if TYPE_CHECKING:
    from holdfast.faults.codes import Code
    from holdfast.faults.partial import Partial

__all__ = [
    "AbortedError",
    "BudgetError",
    "CircuitOpenError",
    "DeadlineError",
    "HoldfastError",
    "InvalidError",
    "OutcomeUnknownError",
    "StreamCutError",
]


class HoldfastError(Exception):
    """A failure that is ours. Catch this, or a leaf, or match on `error.fault.code`."""

    fault: Fault
    code: ClassVar[Code] = "SYS_INTERNAL_ERROR"
    """The code of a leaf when it is built without a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault

    @classmethod
    def because(
        cls,
        message: str | None = None,
        *,
        partial: Partial | None = None,
        retry_after: float | None = None,
        **context: Any,
    ) -> Self:
        """Return the error with its class's own code, the catalog's wording and these facts."""
        return cls(Fault.of(cls.code, message, partial=partial, retry_after=retry_after, context=context))

    def __str__(self) -> str:
        return f"{self.fault.code}  {PRINTING.redactor().text(self.fault.message)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class CircuitOpenError(HoldfastError):
    """The circuit `circuit` is open until `retry_at` (wall clock); the call was not made."""

    code = "CIRCUIT_OPEN"

    @property
    def circuit(self) -> str:
        return str(self.fault.context.get("circuit", ""))

    @property
    def retry_at(self) -> float | None:
        at = self.fault.context.get("retry_at")
        return float(at) if isinstance(at, (int, float)) else None


class DeadlineError(HoldfastError, TimeoutError):
    """Our own deadline passed. A callee's TimeoutError keeps its identity and is not this."""

    code = "SYS_DEADLINE_EXCEEDED"


class BudgetError(HoldfastError):
    """The ambient budget of seconds, money, tokens, turns or attempts is spent."""

    code = "SYS_BUDGET_EXHAUSTED"


class StreamCutError(HoldfastError):
    """A stream broke off after its first item. `partial` holds what arrived."""

    code = "PROVIDER_STREAM_CUT"

    @property
    def partial(self) -> Partial | None:
        return self.fault.partial


class OutcomeUnknownError(HoldfastError):
    """An unsafe call was cut midway; it may or may not have happened. It is never repeated by itself."""

    code = "TOOL_OUTCOME_UNKNOWN"

    @property
    def key(self) -> str:
        """The stable key of the logical call, to look its effect up by."""
        return str(self.fault.context.get("key", ""))


class AbortedError(HoldfastError):
    """The caller's abort signal is set: nothing more is tried. A cancellation, never a timeout (N1-9)."""

    code = "SYS_CANCELLED"


class InvalidError(HoldfastError, ValueError):
    """What we were given makes no sense: the message says what was expected, what came and where."""

    code: ClassVar[Code] = "CONFIG_OPTION_INVALID"

    @classmethod
    def at(cls, path: str, expected: str, received: Any, code: Code | None = None) -> Self:
        """Return the error for the value `received` at `path`; of a value that is no plain one, only its type shows."""
        shown = repr(received) if isinstance(received, (str, int, float)) else type(received).__name__
        return cls.saying(path, expected, shown, code)

    @classmethod
    def saying(cls, path: str, expected: str, received: str, code: Code | None = None) -> Self:
        """Return the error for `path` in these very words."""
        path, received = REDACTOR.text(path), REDACTOR.text(received)
        context = {"path": path, "expected": expected, "received": received}
        return cls(Fault.of(code or cls.code, f"{path}: expected {expected}, got {received}", context=context))

    @classmethod
    def from_msgspec(cls, error: Exception, code: Code | None = None) -> Self:
        """Return the error of a value msgspec refused; its one line holds what was expected, what came and where."""
        account = str(error)
        place = _PLACE.search(account)
        path = place["path"] if place else "$"
        if missing := _MISSING.match(account):
            return cls.saying(f"{path}.{missing['field']}", "a value", "nothing", code)
        if misfit := _MISFIT.match(account):
            return cls.saying(path, misfit["expected"], misfit["received"], code)
        told = account[: place.start() if place else None]
        if told.startswith("Expected "):
            return cls.saying(path, told.removeprefix("Expected ").replace("`", ""), "something else", code)
        # What is left is a word outside a closed list: "Invalid enum value 'x'".
        word = told.removeprefix("Invalid enum value ").removeprefix("Invalid value ")
        return cls.saying(path, "one of the words known here", word, code)


_MISFIT = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<received>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_PLACE = re.compile(r" - at `(?P<path>\$[^`]*)`$")
