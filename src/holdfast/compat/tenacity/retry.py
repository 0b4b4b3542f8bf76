"""Whether to make another attempt: `retry_if_exception_type(OSError) | retry_if_result(is_empty)`.

Any function of the state may be used instead. The decorator `retry` is in `retrier`.

Invariant: a condition sees results and subclasses of `Exception`, never a cancellation.
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
    "outcome_of",
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
    """The base of conditions that can be combined with `|` and `&`. Derive your own conditions from it.

    For example:
        class retry_in_daytime(retry_base):
            def __call__(self, retry_state: RetryCallState) -> bool:
                return not is_night()
    """

    # Any: an async condition returns an awaitable.
    def __call__(self, retry_state: RetryCallState) -> Any:
        raise NotImplementedError

    # An async condition cannot be evaluated here: its own `__ror__` combines both.
    def __or__(self, other: Condition) -> retry_any:
        return NotImplemented if is_async(other) else retry_any(*_parts(self, retry_any), other)

    def __ror__(self, other: Condition) -> retry_any:
        return retry_any(other, self)

    def __and__(self, other: Condition) -> retry_all:
        return NotImplemented if is_async(other) else retry_all(*_parts(self, retry_all), other)

    def __rand__(self, other: Condition) -> retry_all:
        return retry_all(other, self)


class retry_any(retry_base):
    """Retry if any of the conditions holds: `retry_any(retry_if_result(is_empty), retry_if_exception_type(OSError))`."""

    def __init__(self, *retries: Condition) -> None:
        self.retries = retries

    def __call__(self, retry_state: RetryCallState) -> bool:
        return any(condition(retry_state) for condition in self.retries)


class retry_all(retry_base):
    """Retry if all of the conditions hold: `retry_all(retry_if_exception_type(OSError), is_daytime)`."""

    def __init__(self, *retries: Condition) -> None:
        self.retries = retries

    def __call__(self, retry_state: RetryCallState) -> bool:
        return all(condition(retry_state) for condition in self.retries)


class _retry_constant(retry_base):
    def __init__(self, answer: bool) -> None:  # noqa: FBT001 - the class is this one boolean
        self.answer = answer

    def __call__(self, retry_state: RetryCallState) -> bool:
        return self.answer


retry_always = _retry_constant(True)  # noqa: FBT003 - the class is this one boolean
"""Retry after every outcome, also after a result."""
retry_never = _retry_constant(False)  # noqa: FBT003 - the class is this one boolean
"""Never retry."""


class retry_if_exception(retry_base):
    """Retry if a function of the exception returns true: `retry_if_exception(lambda error: error.code == 503)`.

    Raises `InvalidError` if the predicate is async: `holdfast.compat.tenacity.asyncio` has the condition for it.
    """

    after_result = False
    """Whether an attempt that returned a result is repeated."""

    def __init__(self, predicate: Callable[[BaseException], Any]) -> None:
        self.predicate = _sync("retry_if_exception", predicate)

    def __call__(self, retry_state: RetryCallState) -> bool:
        error = outcome_of(retry_state).exception()
        return self.after_result if error is None else bool(self.predicate(error))


class retry_if_exception_type(retry_if_exception):
    """Retry after exceptions of these types: `retry_if_exception_type((OSError, TimeoutError))`."""

    def __init__(self, exception_types: Types = Exception) -> None:
        self.exception_types = exception_types
        super().__init__(self._is_one)

    # A method and not a lambda, here and below, so that a condition can be pickled for another process.
    def _is_one(self, error: BaseException) -> bool:
        return isinstance(error, self.exception_types)


class retry_if_not_exception_type(retry_if_exception):
    """Retry after exceptions of all other types: `retry_if_not_exception_type(ValueError)`."""

    def __init__(self, exception_types: Types = Exception) -> None:
        self.exception_types = exception_types
        super().__init__(self._is_none)

    def _is_none(self, error: BaseException) -> bool:
        return not isinstance(error, self.exception_types)


class retry_unless_exception_type(retry_if_not_exception_type):
    """Retry until an exception of these types is raised, also after results: `retry_unless_exception_type(StopError)`."""

    after_result = True


class retry_if_exception_cause_type(retry_if_exception):
    """Retry if any `__cause__` in the chain has one of these types: `retry_if_exception_cause_type(OSError)`."""

    def __init__(self, exception_types: Types = Exception) -> None:
        self.exception_cause_types = exception_types
        super().__init__(self._has_cause)

    def _has_cause(self, error: BaseException) -> bool:
        return any(isinstance(cause, self.exception_cause_types) for cause in _causes(error))


class retry_if_exception_message(retry_if_exception):
    """Retry if the exception's text equals `message`, or starts with a match of the pattern `match`.

    `retry_if_exception_message(match="rate limit")`. Raises `InvalidError` unless exactly one of the two is given.
    """

    def __init__(self, message: str | None = None, match: str | re.Pattern[str] | None = None) -> None:
        if (message is None) == (match is None):
            raise InvalidError.saying(
                type(self).__name__, "either message or match", "neither" if message is None else "both"
            )
        self.message = message
        # The pattern is compiled once here, so that a wrong pattern raises where it is written.
        self.match = None if match is None else re.compile(match)
        super().__init__(self._matches)

    def _matches(self, error: BaseException) -> bool:
        return str(error) == self.message if self.match is None else self.match.match(str(error)) is not None


class retry_if_not_exception_message(retry_if_exception_message):
    """Retry until the exception has this text, also after results: `retry_if_not_exception_message("not found")`."""

    after_result = True

    def __init__(self, message: str | None = None, match: str | re.Pattern[str] | None = None) -> None:
        super().__init__(message, match)
        self.predicate = self._differs

    def _differs(self, error: BaseException) -> bool:
        return not self._matches(error)


class retry_if_result(retry_base):
    """Retry if a function of the result returns true: `retry_if_result(lambda result: result is None)`."""

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        self.predicate = _sync("retry_if_result", predicate)

    def __call__(self, retry_state: RetryCallState) -> bool:
        outcome = outcome_of(retry_state)
        return not outcome.failed and bool(self.predicate(outcome.result()))


class retry_if_not_result(retry_base):
    """Retry if a function of the result returns false: `retry_if_not_result(is_complete)`."""

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        self.predicate = _sync("retry_if_not_result", predicate)

    def __call__(self, retry_state: RetryCallState) -> bool:
        outcome = outcome_of(retry_state)
        return not outcome.failed and not self.predicate(outcome.result())


def outcome_of(retry_state: RetryCallState) -> Future:
    """Return the outcome of the last attempt. Raises `InvalidError` while an attempt runs."""
    if retry_state.outcome is None:
        raise InvalidError.saying("retry_state.outcome", "an attempt that has ended", "none")
    return retry_state.outcome


def _sync(path: str, predicate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the predicate.

    Raises `InvalidError` if it is async: nobody awaits it here, and a coroutine is always true.
    """
    if not callable(predicate):
        raise InvalidError.at(path, "a function", predicate)
    if is_async(predicate):
        raise InvalidError.saying(path, f"a plain function; tenacity.asyncio.{path} takes async ones", "an async one")
    return predicate


def _parts(condition: retry_base, kind: type[retry_any | retry_all]) -> tuple[Condition, ...]:
    """Return the conditions that are combined in this way, so that `a | b | c` is one condition of three."""
    return condition.retries if isinstance(condition, kind) else (condition,)


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    cause = error.__cause__
    # A chain of causes may be circular.
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__
    return causes
