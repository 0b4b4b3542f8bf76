"""`AsyncRetrying`, and conditions whose predicates are async.

For example:
    from holdfast.compat.tenacity.asyncio import AsyncRetrying, retry_if_result

    AsyncRetrying(retry=retry_if_result(is_not_ready))
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.compat.tenacity.retrier import AsyncRetrying
from holdfast.compat.tenacity.retry import outcome_of, retry_base

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.compat.tenacity.retry import Condition
    from holdfast.compat.tenacity.state import RetryCallState

__all__ = ["AsyncRetrying", "async_retry_base", "retry_all", "retry_any", "retry_if_exception", "retry_if_result"]

_Predicate: TypeAlias = "Callable[[Any], Awaitable[Any]]"


class async_retry_base(retry_base):
    """The base of async conditions. They combine with `|` and `&`, also with plain ones."""

    async def __call__(self, retry_state: RetryCallState) -> bool:
        raise NotImplementedError

    def __or__(self, other: Condition) -> retry_any:  # type: ignore[override] # as in tenacity
        return retry_any(self, other)

    def __ror__(self, other: Condition) -> retry_any:  # type: ignore[override] # as in tenacity
        return retry_any(other, self)

    def __and__(self, other: Condition) -> retry_all:  # type: ignore[override] # as in tenacity
        return retry_all(self, other)

    def __rand__(self, other: Condition) -> retry_all:  # type: ignore[override] # as in tenacity
        return retry_all(other, self)


class retry_if_exception(async_retry_base):
    """Retry if an async function of the exception returns true: `retry_if_exception(is_temporary)`."""

    def __init__(self, predicate: _Predicate) -> None:
        self.predicate = predicate

    async def __call__(self, retry_state: RetryCallState) -> bool:
        error = outcome_of(retry_state).exception()
        return error is not None and bool(await self.predicate(error))


class retry_if_result(async_retry_base):
    """Retry if an async function of the result returns true: `retry_if_result(is_not_ready)`."""

    def __init__(self, predicate: _Predicate) -> None:
        self.predicate = predicate

    async def __call__(self, retry_state: RetryCallState) -> bool:
        outcome = outcome_of(retry_state)
        return not outcome.failed and bool(await self.predicate(outcome.result()))


class retry_any(async_retry_base):
    """Retry if any of the conditions holds; each may be async or plain."""

    def __init__(self, *retries: Condition) -> None:
        self.retries = retries

    async def __call__(self, retry_state: RetryCallState) -> bool:
        for condition in self.retries:
            if await _awaited(condition(retry_state)):
                return True
        return False


class retry_all(async_retry_base):
    """Retry if all of the conditions hold; each may be async or plain."""

    def __init__(self, *retries: Condition) -> None:
        self.retries = retries

    async def __call__(self, retry_state: RetryCallState) -> bool:
        for condition in self.retries:
            if not await _awaited(condition(retry_state)):
                return False
        return True


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
