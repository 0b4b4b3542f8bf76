"""Whether to try again: `retry_if_exception_type(OSError) | retry_if_result(is_empty)`. Any function of the state will do.

Invariant: a condition is asked about exceptions below `Exception` and about results, never about cancellation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.faults import InvalidError
from holdfast.runtime.callables import is_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.compat.tenacity.state import Future, RetryCallState

__all__ = [
    "Condition",
    "retry_all",
    "retry_always",
    "retry_any",
    "retry_base",
    "retry_if_exception",
    "retry_if_exception_cause_type",
    "retry_if_exception_message",
    "retry_if_exception_type",
    "retry_if_not_exception_message",
    "retry_if_not_exception_type",
    "retry_if_not_result",
    "retry_if_result",
    "retry_never",
    "retry_unless_exception_type",
]

Condition: TypeAlias = "Callable[[RetryCallState], Any]"
Types: TypeAlias = "type[BaseException] | tuple[type[BaseException], ...]"


class retry_base:
    """What can be combined with `|` and `&`. Derive from it for conditions of your own."""

    def __call__(self, retry_state: RetryCallState) -> bool:
        raise NotImplementedError

    def __or__(self, other: Condition) -> retry_any:
        return retry_any(self, other)

    def __ror__(self, other: Condition) -> retry_any:
        return retry_any(other, self)

    def __and__(self, other: Condition) -> retry_all:
        return retry_all(self, other)

    def __rand__(self, other: Condition) -> retry_all:
        return retry_all(other, self)


class retry_any(retry_base):
    """Again where one of them says so."""

    def __init__(self, *retries: Condition) -> None:
        self.retries = retries

    def __call__(self, retry_state: RetryCallState) -> bool:
        return any(condition(retry_state) for condition in self.retries)


class retry_all(retry_base):
    """Again where all of them say so."""

    def __init__(self, *retries: Condition) -> None:
        self.retries = retries

    def __call__(self, retry_state: RetryCallState) -> bool:
        return all(condition(retry_state) for condition in self.retries)


class _retry_constant(retry_base):
    def __init__(self, answer: bool) -> None:  # noqa: FBT001 - it is the answer
        self.answer = answer

    def __call__(self, retry_state: RetryCallState) -> bool:
        return self.answer


retry_always = _retry_constant(True)  # noqa: FBT003 - ditto
"""Again, whatever happened."""
retry_never = _retry_constant(False)  # noqa: FBT003 - ditto
"""Never again."""


class retry_if_exception(retry_base):
    """Again where a function of the exception says so."""

    after_result = False
    """What it says of an attempt that ended in a result."""

    def __init__(self, predicate: Callable[[BaseException], Any]) -> None:
        self.predicate = _plain("retry_if_exception", predicate)

    def __call__(self, retry_state: RetryCallState) -> bool:
        error = _ended(retry_state).exception()
        return self.after_result if error is None else bool(self.predicate(error))


class retry_if_exception_type(retry_if_exception):
    """Again after exceptions of these types."""

    def __init__(self, exception_types: Types = Exception) -> None:
        self.exception_types = exception_types
        super().__init__(lambda error: isinstance(error, exception_types))


class retry_if_not_exception_type(retry_if_exception):
    """Again after exceptions of any other type."""

    def __init__(self, exception_types: Types = Exception) -> None:
        self.exception_types = exception_types
        super().__init__(lambda error: not isinstance(error, exception_types))


class retry_unless_exception_type(retry_if_not_exception_type):
    """Again until an exception of these types is raised: also after results."""

    after_result = True


class retry_if_exception_cause_type(retry_if_exception):
    """Again where a cause of the exception, however far back, is of these types."""

    def __init__(self, exception_types: Types = Exception) -> None:
        self.exception_cause_types = exception_types
        super().__init__(lambda error: any(isinstance(cause, exception_types) for cause in _causes(error)))


class retry_if_exception_message(retry_if_exception):
    """Again where the exception's text is `message`, or begins with a match of `match`."""

    def __init__(self, message: str | None = None, match: str | re.Pattern[str] | None = None) -> None:
        if (message is None) == (match is None):
            raise InvalidError.saying(
                type(self).__name__, "either message or match", "neither" if message is None else "both"
            )
        pattern = None if match is None else re.compile(match)
        super().__init__(lambda error: str(error) == message if pattern is None else pattern.match(str(error)))


class retry_if_not_exception_message(retry_if_exception_message):
    """Again until the exception's text is that: also after results."""

    after_result = True

    def __init__(self, message: str | None = None, match: str | re.Pattern[str] | None = None) -> None:
        super().__init__(message, match)
        is_said = self.predicate
        self.predicate = lambda error: not is_said(error)


class retry_if_result(retry_base):
    """Again where a function of the result says so."""

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        self.predicate = _plain("retry_if_result", predicate)

    def __call__(self, retry_state: RetryCallState) -> bool:
        outcome = _ended(retry_state)
        return not outcome.failed and bool(self.predicate(outcome.result()))


class retry_if_not_result(retry_base):
    """Again where a function of the result does not say so."""

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        self.predicate = _plain("retry_if_not_result", predicate)

    def __call__(self, retry_state: RetryCallState) -> bool:
        outcome = _ended(retry_state)
        return not outcome.failed and not self.predicate(outcome.result())


def _ended(retry_state: RetryCallState) -> Future:
    if retry_state.outcome is None:
        raise InvalidError.saying("retry_state.outcome", "an attempt that has ended", "none")
    return retry_state.outcome


def _plain(path: str, predicate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Refuse what would always be true: a coroutine. An async condition is given to `retry=` itself."""
    if not callable(predicate):
        raise InvalidError.at(path, "a function", predicate)
    if is_async(predicate):
        raise InvalidError.saying(path, "a plain function; AsyncRetrying takes an async one as retry=", "an async one")
    return predicate


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    cause = error.__cause__
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__
    return causes
