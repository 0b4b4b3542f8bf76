"""`holdfast.compat.tenacity` as a type checker sees it. Checked by mypy strict and basedpyright, never run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from holdfast import recover
from holdfast.compat.tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_fixed,
    wait_random,
)


def note(retry_state: RetryCallState) -> None:
    assert_type(retry_state.attempt_number, int)


@retry
def plain(x: int) -> str:
    return str(x)


@retry(
    stop=stop_after_attempt(3) | stop_after_delay(timedelta(minutes=1)),
    wait=wait_fixed(1) + wait_random(0, 2),
    retry=retry_if_exception_type((OSError, ValueError)) | retry_if_result(lambda value: value is None),
    before_sleep=note,
    reraise=True,
)
def with_options(x: int, *, y: str = "") -> float:
    return x + len(y)


@retry(wait=wait_exponential(max=30))
async def later(x: int) -> bytes:
    return bytes(x)


assert_type(plain(1), str)
assert_type(with_options(1, y=""), float)
assert_type(plain.retry_with(stop=stop_after_attempt(1))(1), str)
assert_type(plain.statistics, dict[str, Any])

plain("1")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
retry(stop=3)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
retry(attempts=3)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]

for attempt in Retrying(stop=stop_after_attempt(3)):
    with attempt:
        assert_type(attempt.retry_state, RetryCallState)


async def block() -> None:
    assert_type(await later(1), bytes)
    async for attempt in AsyncRetrying():
        with attempt:
            pass


class Shop:
    @retry(stop=stop_after_attempt(3))
    def order(self, item: str) -> int:
        return len(item)

    @retry
    async def order_later(self, item: str) -> int:
        return len(item)

    @classmethod
    @retry
    def made(cls, number: int) -> int:
        return number


async def methods(shop: Shop) -> None:
    assert_type(shop.order("tea"), int)
    assert_type(await shop.order_later("tea"), int)
    assert_type(Shop.made(3), int)
    assert_type(shop.order.statistics, dict[str, Any])
    assert_type(Shop.order(shop, "tea"), int)
    shop.order(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


class MyError(Exception):
    pass


recover("shop", retry_on=MyError, never_retry=(KeyError, ValueError))
recover("shop", retry_on=lambda error: "busy" in str(error))
recover("shop", retry_on=KeyboardInterrupt)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
