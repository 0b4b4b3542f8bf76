"""Where the layer differs from tenacity on purpose (numbers are tenacity's issues), and what it adds."""

from __future__ import annotations

import asyncio
import gc
import importlib
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from tenacity_calls import Calls, block, broken

from holdfast import InvalidError, OutcomeUnknownError, fault_of, recover, tool
from holdfast.compat import tenacity
from holdfast.compat.tenacity import (
    AsyncRetrying,
    RetryError,
    Retrying,
    retry,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    wait_chain,
    wait_exponential,
    wait_fixed,
)
from holdfast.events import Cancelled, Failed, Retry, RetryDenied
from holdfast.faults import AbortedError
from holdfast.testing import run

# Differences


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_529_cancellation_and_its_kin_are_never_retried(stop, events):
    calls = Calls(stop())
    with pytest.raises(stop):
        Retrying(retry=retry_if_not_exception_type(ValueError))(calls)
    with pytest.raises(stop):
        block(Retrying(retry=retry_if_exception_type(BaseException)), calls)
    assert calls.count == 2
    assert [event.reason for event in events.of(Cancelled)] == [stop.__name__] * 2
    assert events.of(Failed) == []


@pytest.mark.parametrize("where", ["call", "sleep", "hook"])
def test_529_a_cancelled_task_ends_at_once(where, events, now):
    async def hang(*_):
        await asyncio.sleep(1000)

    options = {"call": {}, "sleep": {"wait": wait_fixed(1000)}, "hook": {"before_sleep": hang}}[where]

    async def main():
        fn = hang if where == "call" else broken(9).later
        task = asyncio.create_task(AsyncRetrying(**options)(fn))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert run(main())
    assert now() == 1.0
    assert len(events.of(Cancelled)) == 1


def test_93_one_object_serves_fifty_threads_each_with_its_own_count():
    retrying = Retrying(stop=stop_after_attempt(3))
    together = threading.Barrier(50)

    def one(number):
        calls = Calls(OSError(str(number)))

        def fetch():
            together.wait(timeout=30)
            return calls()

        try:
            retrying(fetch)
        except RetryError as error:
            return calls.count, str(error.last_attempt.exception()) == str(number), error.last_attempt.attempt_number

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(one, range(50))) == [(3, True, 3)] * 50


def test_93_one_object_serves_fifty_tasks_and_loops_each_with_its_own_count():
    retrying = AsyncRetrying(wait=wait_chain(wait_fixed(1), wait_fixed(5)))
    own = []

    async def call(number):
        calls = broken(number % 5)
        await retrying(calls.later)
        return calls.count

    async def loop(number):
        async for attempt in retrying:
            with attempt:
                await asyncio.sleep(number / 100)
                if attempt.retry_state.attempt_number <= number % 5:
                    raise OSError
        own.append(attempt.retry_state.statistics["attempt_number"])
        return attempt.retry_state.attempt_number

    async def main():
        return await asyncio.gather(*map(call, range(50)), *map(loop, range(50)))

    assert run(main()) == [number % 5 + 1 for number in range(50)] * 2
    assert sorted(own) == sorted(number % 5 + 1 for number in range(50))


def test_93_statistics_show_the_call_that_began_last_and_no_mixture():
    retrying = AsyncRetrying(wait=wait_fixed(10))

    async def main():
        first = asyncio.create_task(retrying(broken(3).later))
        await asyncio.sleep(1)
        await retrying(broken(1).later)
        shown = dict(retrying.statistics)
        await first
        return shown, dict(retrying.statistics)

    before, after = run(main())
    assert before == after
    assert (before["attempt_number"], before["idle_for"]) == (2, 10.0)


def test_720_a_call_inside_itself_counts_for_itself():
    seen = []

    @retry(stop=stop_after_attempt(3))
    def dive(depth):
        if depth == 0:
            raise OSError
        try:
            dive(depth - 1)
        except RetryError as error:
            seen.append((depth, error.last_attempt.attempt_number))
            raise

    with pytest.raises(RetryError) as caught:
        dive(2)
    assert caught.value.last_attempt.attempt_number == 3
    assert seen == [(1, 3), (1, 3), (1, 3), (2, 3)] * 3


def test_nested_retries_multiply_as_in_tenacity_but_not_under_a_recovery_of_ours():
    calls = Calls(OSError("down"))
    inner = retry(stop=stop_after_attempt(2))(calls)
    with pytest.raises(RetryError):
        Retrying(stop=stop_after_attempt(3))(inner)
    assert calls.count == 6
    with pytest.raises(RetryError):
        recover("disk", effect="read").call(inner)
    assert calls.count == 8


@pytest.mark.parametrize("reraise", [False, True])
@pytest.mark.parametrize("world", ["sync", "async"])
def test_a_dropped_error_is_freed_without_the_garbage_collector(world, reraise):
    class Heavy(Exception):
        pass

    def fetch():
        raise Heavy

    async def fetch_later():
        raise Heavy

    gone = []
    options = {"stop": stop_after_attempt(2), "reraise": reraise}

    def attempt():
        try:
            Retrying(**options)(fetch)
        except (Heavy, RetryError) as error:
            gone.append(weakref.ref(error.__cause__ or error))

    async def attempt_later():
        try:
            await AsyncRetrying(**options)(fetch_later)
        except (Heavy, RetryError) as error:
            gone.append(weakref.ref(error.__cause__ or error))

    gc.collect()
    gc.disable()
    try:
        attempt() if world == "sync" else run(attempt_later())
        assert gone[0]() is None
    finally:
        gc.enable()


def test_an_abort_of_a_recovery_inside_is_cancellation_too(events):
    calls = Calls(AbortedError.because())
    with pytest.raises(AbortedError):
        Retrying()(calls)
    assert calls.count == 1
    assert len(events.of(Cancelled)) == 1
    assert events.of(Failed) == []


# Events, faults, effects


def test_it_reports_like_every_recovery(events):
    fetch = retry(wait=wait_fixed(2), stop=stop_after_attempt(5), name="fetch")(broken(2).__call__)
    assert fetch() == "done"
    assert [(event.attempt, event.max_attempts, event.delay) for event in events.of(Retry)] == [
        (1, 5, 2.0),
        (2, 5, 2.0),
    ]
    assert events.assert_recovered(attempts=3, operation="fetch").after == 4.0


def test_events_show_the_maximum_of_attempts_if_it_is_known(events):
    Retrying(stop=stop_after_attempt(7) | stop_after_delay(60))(broken(1))
    Retrying(stop=stop_after_delay(60))(broken(1))
    assert [event.max_attempts for event in events.of(Retry)] == [7, 2]


def test_R11_giving_up_for_time_is_not_giving_up_for_attempts(events):
    for stop in (stop_after_attempt(1) | stop_before_delay(60), stop_after_attempt(9) | stop_before_delay(60)):
        with pytest.raises(RetryError):
            Retrying(stop=stop, wait=wait_fixed(100))(broken(9))
    assert [event.exhausted for event in events.of(Failed)] == [True, False]
    assert len(events.of(RetryDenied)) == 1


def test_the_fault_of_the_raised_error_lists_every_attempt():
    for reraise in (False, True):
        with pytest.raises((RetryError, ConnectionResetError)) as caught:
            Retrying(stop=stop_after_attempt(3), reraise=reraise)(Calls(ConnectionResetError("cut")))
        fault = fault_of(caught.value)
        assert fault.code.startswith("CONN_")
        assert [attempt.number for attempt in fault.attempts] == [1, 2, 3]


def test_an_unsafe_function_is_not_repeated_when_it_may_have_happened():
    @retry
    @tool(effect="unsafe")
    def pay():
        raise TimeoutError("sent, no answer")

    with pytest.raises(OutcomeUnknownError):
        pay()


def test_strategies_are_importable_from_the_submodules_that_tenacity_has():
    for module, name in (("retry", "retry_if_result"), ("stop", "stop_after_attempt"), ("wait", "wait_none")):
        submodule = importlib.import_module(f"holdfast.compat.tenacity.{module}")
        assert getattr(submodule, name) is getattr(tenacity, name)
    # The decorator, not the submodule of the same name.
    assert tenacity.retry is retry


def test_tenacity_itself_is_never_imported():
    program = "import sys, holdfast.compat.tenacity; print('tenacity' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("kind", [Retrying, AsyncRetrying, retry])
def test_options_by_position_say_that_they_have_names(kind):
    with pytest.raises(InvalidError, match=r"by name, such as stop=…, got \w+ by position"):
        kind(stop_after_attempt(3))


def test_strategies_take_their_arguments_by_position():
    retrying = Retrying(stop=stop_after_attempt(3), wait=wait_exponential(1, 10))
    assert (retrying.stop.max_attempt_number, retrying.wait.max) == (3, 10)
