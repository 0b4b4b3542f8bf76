"""Blocks as loops of attempts, and async functions."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect

import pytest
from tenacity_calls import Calls, block, broken

from holdfast import InvalidError
from holdfast.compat.tenacity import (
    AsyncRetrying,
    RetryError,
    Retrying,
    retry,
    retry_if_result,
    stop_after_attempt,
    wait_fixed,
)
from holdfast.events import Failed, Recovered, SuppressedError
from holdfast.testing import run

# Blocks


def test_a_block_is_a_loop_of_attempts(now):
    numbers = []
    for attempt in Retrying(wait=wait_fixed(1)):
        with attempt:
            numbers.append(attempt.retry_state.attempt_number)
            if len(numbers) < 3:
                raise OSError
    assert (numbers, now()) == ([1, 2, 3], 2.0)


def test_a_block_that_never_works_ends_like_a_call():
    with pytest.raises(RetryError) as caught:
        block(Retrying(stop=stop_after_attempt(2)), Calls(OSError()))
    assert caught.value.last_attempt.attempt_number == 2
    with pytest.raises(OSError, match="mine"):
        block(Retrying(stop=stop_after_attempt(2), reraise=True), Calls(OSError("mine")))


def test_a_blocks_result_is_set_after_it():
    for attempt in Retrying(retry=retry_if_result(lambda value: value < 3)):
        with attempt:
            value = attempt.retry_state.attempt_number
        if not attempt.retry_state.outcome.failed:
            attempt.retry_state.set_result(value)
    assert value == 3


def test_a_block_left_by_return_has_recovered(events):
    def fetch():
        for attempt in Retrying():
            with attempt:
                if attempt.retry_state.attempt_number == 1:
                    raise OSError
                return "done"
        return "left"

    assert fetch() == "done"
    assert events.assert_recovered(attempts=2)


def test_a_block_left_after_a_failure_is_no_failure_and_no_recovery(events):
    for attempt in Retrying():
        with attempt:
            raise OSError
        break
    gc.collect()
    assert events.of(Recovered) == events.of(Failed) == []


def test_an_attempt_without_with_raises():
    with pytest.raises(InvalidError, match="`with attempt:` around the block"):
        for _ in Retrying():
            pass


def test_a_blocks_stop_iteration_does_not_look_like_success():
    with pytest.raises(RuntimeError):
        block(Retrying(stop=stop_after_attempt(1), reraise=True), Calls(StopIteration()))


# Async functions and blocks


def test_an_async_function_is_awaited_and_stays_one(now):
    calls = broken(2)

    @retry(wait=wait_fixed(3))
    async def fetch(x):
        return await calls.later(x)

    assert inspect.iscoroutinefunction(fetch)
    assert run(fetch(1)) == "done"
    assert (calls.count, now()) == (3, 6.0)


def test_657_partials_callable_objects_and_whatever_returns_an_awaitable_are_awaited():
    class Fetcher:
        def __init__(self):
            self.calls = broken(1)

        async def __call__(self, *args):
            return await self.calls.later(*args)

    assert run(retry(functools.partial(Fetcher().__call__, 1))()) == "done"
    assert run(retry(Fetcher())()) == "done"
    assert run(retry(functools.partial(Fetcher(), 1))()) == "done"
    fetcher = Fetcher()
    assert run(AsyncRetrying()(lambda: fetcher(1))) == "done"
    assert run(AsyncRetrying()(broken(1))) == "done"


def test_657_a_generator_raises_since_its_body_runs_outside():
    def items():
        yield 1

    with pytest.raises(InvalidError, match="a generator function"):
        retry(items)


def test_async_hooks_and_strategies_are_awaited(now):
    seen = []

    def later(answer):
        async def strategy(retry_state):
            await asyncio.sleep(1)
            seen.append(retry_state.attempt_number)
            return answer(retry_state)

        return strategy

    retrying = AsyncRetrying(
        retry=later(lambda s: s.outcome.failed),
        stop=later(lambda s: s.attempt_number >= 3),
        wait=later(lambda s: 10),
        before=later(lambda s: None),
        after=later(lambda s: None),
        before_sleep=later(lambda s: None),
        retry_error_callback=later(lambda s: "in the end"),
    )
    assert run(retrying(Calls(OSError()).later)) == "in the end"
    assert seen == [1] * 6 + [2] * 6 + [3] * 6
    assert now() == len(seen) + 20


def test_an_async_hook_that_raises_changes_nothing(events):
    async def faulty(retry_state):
        raise RuntimeError("my own mistake")

    assert run(AsyncRetrying(before_sleep=faulty)(broken(1).later)) == "done"
    assert len(events.of(SuppressedError)) == 1


@pytest.mark.parametrize("option", ["stop", "wait", "retry", "before", "after", "before_sleep", "sleep"])
def test_async_functions_raise_where_nothing_is_awaited(option):
    async def strategy(retry_state):
        return False

    with pytest.raises(InvalidError, match=rf"retry\.{option}: expected a plain function; AsyncRetrying"):
        Retrying(**{option: strategy})


def test_an_async_sleep_makes_the_function_async():
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    assert run(retry(sleep=sleep, wait=wait_fixed(2))(broken(1))()) == "done"
    assert slept == [2.0]


def test_an_async_block_is_a_loop_with_a_plain_with(now):
    async def main():
        async for attempt in AsyncRetrying(wait=wait_fixed(1)):
            with attempt:
                if attempt.retry_state.attempt_number < 3:
                    raise OSError
        async for attempt in AsyncRetrying(wait=wait_fixed(1)):
            async with attempt:
                if attempt.retry_state.attempt_number < 2:
                    raise OSError
        return attempt.retry_state.attempt_number

    assert (run(main()), now()) == (2, 3.0)


def test_an_async_block_ends_like_a_call(events):
    async def main(**options):
        async for attempt in AsyncRetrying(stop=stop_after_attempt(2), **options):
            with attempt:
                raise OSError("down")

    with pytest.raises(RetryError):
        run(main())
    with pytest.raises(OSError, match="down"):
        run(main(reraise=True))
    with pytest.raises(OSError, match="down"):
        run(main(enabled=False))
    run(main(retry_error_callback=lambda retry_state: None))
    assert len(events.of(Failed)) == 3


def test_an_async_block_left_by_return_has_recovered(events):
    async def main():
        async for attempt in AsyncRetrying():
            with attempt:
                if attempt.retry_state.attempt_number == 1:
                    raise OSError
                return "done"
        return "left"

    assert run(main()) == "done"
    assert events.assert_recovered(attempts=2)


def test_an_async_blocks_stop_async_iteration_does_not_look_like_success():
    async def main():
        async for attempt in AsyncRetrying(stop=stop_after_attempt(1), reraise=True):
            with attempt:
                raise StopAsyncIteration

    with pytest.raises(RuntimeError):
        run(main())


def test_for_over_an_async_retry_raises():
    with pytest.raises(InvalidError, match="expected async for, got for"):
        iter(AsyncRetrying())
