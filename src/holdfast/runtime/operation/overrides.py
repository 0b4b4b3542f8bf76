"""`retry_on` and `never_retry`: the caller's rules for exceptions that the classifier cannot know.

Invariant: neither can name a cancellation. If a predicate raises, it is ignored and logged once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.faults import InvalidError
from holdfast.runtime.callables import is_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.runtime import Runtime

__all__ = ["Overrides", "RetryOn", "overrides_of"]

RetryOn: TypeAlias = "type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]"
"""Which exceptions: a type, several types, or a predicate of the exception."""


class Overrides:
    """Both options of a recovery."""

    __slots__ = ("_never", "_on")

    def __init__(self, on: RetryOn | None, never: RetryOn | None) -> None:
        self._on = on
        self._never = never

    def of(self, error: Exception, runtime: Runtime, run: str) -> bool | None:
        """Return True to retry `error`, False not to, None to leave it to the classifier."""
        # `never_retry` comes first: it wins if both name the error.
        if self._names(self._never, "never_retry", error, runtime, run):
            return False
        return True if self._names(self._on, "retry_on", error, runtime, run) else None

    @staticmethod
    def _names(named: RetryOn | None, option: str, error: Exception, runtime: Runtime, run: str) -> bool:
        if named is None:
            return False
        if isinstance(named, (type, tuple)):
            return isinstance(error, named)
        try:
            return bool(named(error))
        except Exception as broken:  # noqa: BLE001 - the failure that matters is the call's (R25)
            # A lambda that is made for each call is one hook, known by its code: it is reported once, and it is not kept.
            hook = getattr(named, "__code__", named)
            runtime.bus.hook_raised(hook, option, broken, at=runtime.clock.wall(), run=run)
            return False


def overrides_of(on: RetryOn | None, never: RetryOn | None) -> Overrides | None:
    """Check both options and return them; None where neither is given. Raises `InvalidError`."""
    _check("recover.retry_on", on)
    _check("recover.never_retry", never)
    return None if on is None and never is None else Overrides(on, never)


def _check(path: str, named: Any) -> None:
    if named is None:
        return
    if callable(named) and not isinstance(named, type):
        if is_async(named):
            # A coroutine object is always true: such a predicate would match every error.
            raise InvalidError.saying(path, "a plain function of the exception", "an async function")
        return
    kinds = named if isinstance(named, tuple) else (named,)
    # Only failures can be named: a cancellation or an interrupt must surface, and neither is an `Exception`.
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            shown = kind.__name__ if isinstance(kind, type) else repr(kind)
            raise InvalidError.saying(path, "types below Exception, or a function of the exception", shown)
