"""The exceptions Holdfast raises itself. Foreign exceptions pass through unchanged and are never wrapped in these.

    HoldfastError               a failure of Holdfast's own; `.fault` describes it
    ├── CircuitOpenError        the circuit is open: `.circuit`, `.retry_at`
    ├── DeadlineError           the operation's deadline passed (also a TimeoutError)
    ├── BudgetError             the budget is spent
    ├── StreamCutError          a stream broke off; `.partial` holds the part that arrived
    ├── OutcomeUnknownError     nobody knows whether the call took effect: `.key`
    ├── AbortedError            the caller's own signal stopped the call: cancelled, not failed
    └── InvalidError            an argument, option or document is wrong (also a ValueError)

Invariant: `str(error)` starts with the code and, like `repr`, shows no secret. Pickling keeps the fault.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.faults.fault import Fault
from holdfast.faults.redaction import PRINTING, REDACTOR

if TYPE_CHECKING:
    from holdfast.faults.codes import Code
    from holdfast.faults.fault import Partial


class HoldfastError(Exception):
    """A failure of Holdfast's own. Catch this or a subclass, or compare `error.fault.code`.

        try:
            reply = await ask(prompt)
        except HoldfastError as error:
            print(error.fault.for_user())

    Exceptions of SDKs and of your own code are never wrapped in it: `fault_of(error)` describes those.
    """

    fault: Fault
    code: ClassVar[Code] = "SYS_INTERNAL_ERROR"
    """The code that `because` gives to an error of this class."""

    # There is one positional argument, so that pickle can rebuild the error from `args`.
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
        """Return the error with the code of its class. Without `message`, it has the catalog's text.

        For example:
            raise BudgetError.because(limit_usd=5)
        """
        return cls(Fault.of(cls.code, message, partial=partial, retry_after=retry_after, context=context))

    def __str__(self) -> str:
        return f"{self.fault.code}  {PRINTING.redactor().text(self.fault.message)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class CircuitOpenError(HoldfastError):
    """The circuit is open, so the call was not made. Raised by `recover` if no fallback is left.

    For example:
        except CircuitOpenError as error:
            print(f"{error.circuit} is down until {error.retry_at}")
    """

    code = "CIRCUIT_OPEN"

    # In an outage thousands of these are made, and `super().__init__` would double the time: `__new__` has set `args` already.
    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    @property
    def circuit(self) -> str:
        """The name of the circuit that is open; empty if it is not known.

        `recover("claude")` has the circuit `provider:claude`, and `recover("tool:bash")` has `tool:bash`. `@recover` without a
        name has one for its function, such as `function:answer`.
        """
        return str(self.fault.context.get("circuit", ""))

    @property
    def retry_at(self) -> float | None:
        """When the circuit lets a probe through (wall clock, seconds since the epoch); None if it is not known."""
        at = self.fault.context.get("retry_at")
        return float(at) if isinstance(at, (int, float)) else None


class DeadlineError(HoldfastError, TimeoutError):
    """The deadline of the operation passed. A `TimeoutError` that the called function raises passes through unchanged.

    For example:
        except DeadlineError as error:
            print(f"gave up after {len(error.fault.attempts)} attempts")
    """

    code = "SYS_DEADLINE_EXCEEDED"


class BudgetError(HoldfastError):
    """The budget of seconds, money, tokens, turns or attempts is spent. Raised by every call inside that budget.

    For example:
        with Budget(usd=1.0):
            await ask(prompt)  # raises BudgetError once a dollar is spent
    """

    code = "SYS_BUDGET_EXHAUSTED"


class StreamCutError(HoldfastError):
    """A stream broke off after its first item. Items are never repeated silently, so the caller decides.

    For example:
        except StreamCutError as error:
            print(error.partial.payload)
    """

    code = "PROVIDER_STREAM_CUT"

    @property
    def partial(self) -> Partial | None:
        """What arrived before the stream broke off; None if nothing was kept."""
        return self.fault.partial


class OutcomeUnknownError(HoldfastError):
    """A call with side effects was interrupted, so nobody knows whether it took effect.

    Holdfast never repeats such a call.

    For example:
        except OutcomeUnknownError as error:
            paid = await look_up_payment(error.key)
    """

    code = "TOOL_OUTCOME_UNKNOWN"

    @property
    def key(self) -> str:
        """The key of the logical call. It is the same for every attempt; use it to look up the effect."""
        return str(self.fault.context.get("key", ""))


class AbortedError(HoldfastError):
    """The caller's abort signal is set, so no further attempt is made. This is a cancellation, never a timeout.

    For example:
        except AbortedError:
            return  # the user closed the tab
    """

    code = "SYS_CANCELLED"


class InvalidError(HoldfastError, ValueError):
    """An argument, option or document is wrong. The message names the place, what was expected and what was received.

    >>> Budget(usd="one")
    InvalidError: CONFIG_OPTION_INVALID  budget.usd: expected a finite number ≥ 0 or None, got 'one'
    """

    code: ClassVar[Code] = "CONFIG_OPTION_INVALID"

    @classmethod
    def at(cls, path: str, expected: str, received: Any, code: Code | None = None) -> Self:
        """Return the error for the value `received` at `path`. A value that is not plain is shown by its type only."""
        # The repr of an arbitrary object may be huge, slow or contain secrets.
        shown = repr(received) if isinstance(received, (str, int, float)) else type(received).__name__
        return cls.saying(path, expected, shown, code)

    @classmethod
    def saying(cls, path: str, expected: str, received: str, code: Code | None = None) -> Self:
        """Return the error for `path` with these texts."""
        path, received = REDACTOR.text(path), REDACTOR.text(received)
        context = {"path": path, "expected": expected, "received": received}
        return cls(Fault.of(code or cls.code, f"{path}: expected {expected}, got {received}", context=context))

    @classmethod
    def from_msgspec(cls, error: Exception, code: Code | None = None) -> Self:
        """Return the error for a value that msgspec rejected.

        It names the place, what was expected and what was received.
        """
        account = str(error)
        place = _PLACE.search(account)
        path = place["path"] if place else "$"
        if missing := _MISSING.match(account):
            return cls.saying(f"{path}.{missing['field']}", "a value", "nothing", code)
        if misfit := _MISFIT.match(account):
            return cls.saying(path, misfit["expected"], misfit["received"], code)
        message = account[: place.start() if place else None]
        if message.startswith("Expected "):
            expected, _, received = message.removeprefix("Expected ").replace("`", "").partition(", got ")
            return cls.saying(path, expected, received or "something else", code)
        if wrong := _WRONG_FORM.match(message):
            return cls.saying(path, f"a valid {wrong['form']}", "something else", code)
        # In the only other case the word is not in a closed list: "Invalid enum value 'x'".
        word = message.removeprefix("Invalid enum value ").removeprefix("Invalid value ")
        return cls.saying(path, "one of the known values", word, code)


# msgspec's one-line messages have four forms.
_WRONG_FORM = re.compile(r"Invalid (?P<form>(?!enum value|value)[A-Za-z0-9].*)")
_MISFIT = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<received>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_PLACE = re.compile(r" - at `(?P<path>\$[^`]*)`$")
