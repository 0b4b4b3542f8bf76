"""`retry`, the decorator: `@retry`, `@retry()` or `@retry(stop=…, wait=…)`, on sync and async functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from holdfast.compat.tenacity.retrying import AsyncRetrying, Options, Retrying
from holdfast.faults import InvalidError
from holdfast.runtime.callables import is_async

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from holdfast.compat.tenacity.retrying import BaseRetrying

__all__ = ["Retried", "retry"]

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


class Retried(Protocol[P, T_co]):
    """A decorated function: a real function of the same kind, with its settings on it."""

    __name__: str
    __qualname__: str
    retry: BaseRetrying
    """Its settings; they may be changed, in tests for instance."""
    statistics: dict[str, Any]
    """The numbers of the call that began last."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    def retry_with(self, **changes: Unpack[Options]) -> Retried[P, T_co]:
        """Return the same function with other settings."""
        ...


@overload
def retry(fn: Callable[P, T_co], /) -> Retried[P, T_co]: ...
@overload
def retry(**options: Unpack[Options]) -> Callable[[Callable[P, T_co]], Retried[P, T_co]]: ...
def retry(fn: Any = None, /, **options: Unpack[Options]) -> Any:
    """Call the function again where `retry` says so, after `wait`, until `stop`. See `Options` for all arguments."""
    if fn is None:
        return lambda later: _wrapped(later, options)
    return _wrapped(fn, options)


def _wrapped(fn: Any, options: Options) -> Any:
    if not callable(fn):
        raise InvalidError.at("retry", "a function, and arguments by name", fn)
    awaits = is_async(fn) or is_async(options.get("sleep"))
    return (AsyncRetrying if awaits else Retrying)(**options).wraps(fn)
