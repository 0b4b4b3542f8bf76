"""tenacity's behaviour, in our words, on our runtime. Each test names what tenacity does, or the issue where we differ."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import inspect
import logging
import pickle
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import Budget, BudgetError, InvalidError, OutcomeUnknownError, Runtime, fault_of, recover, tool
from holdfast.compat import tenacity
from holdfast.compat.tenacity import (
    AsyncRetrying,
    Future,
    RetryCallState,
    RetryError,
    Retrying,
    TryAgain,
    after_log,
    before_log,
    before_sleep_log,
    before_sleep_nothing,
    retry,
    retry_if_exception_type,
    retry_if_not_exception_type,
    retry_if_not_result,
    retry_if_result,
    retry_never,
    sleep_using_event,
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    wait_chain,
    wait_fixed,
    wait_incrementing,
    wait_random,
)
from holdfast.events import Cancelled, Failed, Recovered, Retry, RetryDenied, SuppressedError
from holdfast.faults import AbortedError
from holdfast.testing import Capture, Midpoint, VirtualClock, run, use_runtime


@pytest.fixture(autouse=True)
def runtime():
    with use_runtime(Runtime(clock=VirtualClock(), rng=Midpoint())) as runtime:
        yield runtime


@pytest.fixture
def events(runtime):
    capture = Capture()
    runtime.on(capture)
    return capture


@pytest.fixture
def now(runtime):
    return runtime.clock.monotonic


class Calls:
    """Ends each call as it is told: raises exceptions, returns the rest; the last one repeats."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.count = 0

    def __call__(self, *args, **kwargs):
        self.count += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, BaseException):
            raise end
        return end

    async def later(self, *args, **kwargs):
        return self(*args, **kwargs)


def broken(times, then="done"):
    return Calls(*[OSError(str(n)) for n in range(1, times + 1)], then)


def block(retrying, body):
    """A block of code as a loop of attempts."""
    for attempt in retrying:
        with attempt:
            body()


# Calling


def test_without_arguments_it_retries_for_ever_at_once_on_any_exception(now):
    calls = Calls(*[KeyError("programming errors too")] * 50, "done")
    assert Retrying()(calls) == "done"
    assert (calls.count, now()) == (51, 0.0)


def test_arguments_reach_the_function():
    assert Retrying()(lambda a, *, b: (a, b), 1, b=2) == (1, 2)


def test_a_retry_error_holds_the_last_attempt_and_is_caused_by_its_exception():
    with pytest.raises(RetryError) as caught:
        Retrying(stop=stop_after_attempt(3))(broken(9))
    last = caught.value.last_attempt
    assert (last.attempt_number, last.failed, str(last.exception())) == (3, True, "3")
    assert caught.value.__cause__ is last.exception()
    assert str(caught.value) == "RetryError[<attempt 3 raised OSError>]"


def test_reraise_lets_the_very_exception_through():
    error = OSError("the one")
    with pytest.raises(OSError, match="the one") as caught:
        Retrying(stop=stop_after_attempt(2), reraise=True)(Calls(error))
    assert caught.value is error


def test_an_exception_that_is_not_wanted_comes_out_as_it_is():
    calls = Calls(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        Retrying(retry=retry_if_exception_type(OSError))(calls)
    assert calls.count == 1


def test_results_can_be_refused():
    assert Retrying(retry=retry_if_result(lambda value: value is None))(Calls(None, None, 5)) == 5


def test_a_refused_result_that_never_gets_better_ends_in_a_retry_error_even_with_reraise():
    for reraise in (False, True):
        with pytest.raises(RetryError) as caught:
            Retrying(retry=retry_if_not_result(bool), stop=stop_after_attempt(2), reraise=reraise)(Calls(0))
        assert caught.value.last_attempt.result() == 0
        assert not caught.value.last_attempt.failed
        assert len(fault_of(caught.value).attempts) == 2


def test_a_refused_result_is_not_closed_since_the_caller_may_still_hold_it():
    class Handle:
        closed = 0

        def close(self):
            self.closed += 1

    handle = Handle()
    polled = Calls(handle, handle, "ready")
    assert Retrying(retry=retry_if_result(lambda value: value is handle))(polled) == "ready"
    assert handle.closed == 0


def test_try_again_is_retried_whatever_the_condition_says():
    calls = Calls(TryAgain(), TryAgain(), "done")
    assert Retrying(retry=retry_never)(calls) == "done"
    assert calls.count == 3


def test_try_again_until_the_stop_surfaces_what_was_behind_it():
    def asks():
        try:
            raise KeyError("behind")
        except KeyError:
            raise TryAgain  # noqa: B904 - as people write it

    with pytest.raises(RetryError):
        Retrying(stop=stop_after_attempt(2))(asks)
    with pytest.raises(KeyError, match="behind"):
        Retrying(stop=stop_after_attempt(2), reraise=True)(asks)


def test_the_callback_answers_instead_of_an_error():
    def answer(retry_state):
        return retry_state.attempt_number, retry_state.outcome.failed, retry_state.args

    retrying = Retrying(stop=stop_after_attempt(2), retry_error_callback=answer)
    assert retrying(broken(9), "x") == (2, True, ("x",))


def test_the_callback_may_raise_its_own_error():
    def refuse(retry_state):
        raise LookupError("mine") from retry_state.outcome.exception()

    with pytest.raises(LookupError, match="mine"):
        Retrying(stop=stop_after_attempt(1), retry_error_callback=refuse)(broken(9))


def test_an_error_class_of_your_own():
    class GaveUpError(RetryError):
        pass

    with pytest.raises(GaveUpError):
        Retrying(stop=stop_after_attempt(1), retry_error_cls=GaveUpError)(broken(9))


def test_a_retry_error_survives_pickling():
    with pytest.raises(RetryError) as caught:
        Retrying(stop=stop_after_attempt(1))(broken(9))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy.last_attempt.exception()) == "1"


def test_a_function_that_raises_stop_iteration_is_no_end_of_the_loop():
    with pytest.raises(StopIteration):
        Retrying(stop=stop_after_attempt(2), reraise=True)(Calls(StopIteration("x")))


# Time


def test_waits_are_slept_between_attempts_and_not_after_the_last(now):
    with pytest.raises(RetryError):
        Retrying(stop=stop_after_attempt(3), wait=wait_incrementing(1, 1))(broken(9))
    assert now() == 1 + 2


def test_chance_is_the_runtimes(now):
    assert Retrying(wait=wait_fixed(3) + wait_random(0, 2))(broken(1)) == "done"
    assert now() == 4.0


def test_423_stop_after_delay_may_pass_its_limit_by_the_last_wait_and_stop_before_delay_may_not(now):
    after, before = Calls(OSError()), Calls(OSError())
    with pytest.raises(RetryError):
        Retrying(stop=stop_after_delay(10), wait=wait_fixed(4))(after)
    assert (after.count, now()) == (4, 12.0)
    with pytest.raises(RetryError):
        Retrying(stop=stop_before_delay(10), wait=wait_fixed(4))(before)
    assert (before.count, now()) == (3, 20.0)


def test_423_a_deadline_around_is_never_slept_past(now, events):
    calls = Calls(OSError("down"))
    with Budget(seconds=10), pytest.raises(OSError, match="down"):
        Retrying(wait=wait_fixed(4), reraise=True)(calls)
    assert (calls.count, now()) == (3, 8.0)
    assert [denied.because for denied in events.of(RetryDenied)] == ["SYS_DEADLINE_EXCEEDED"]


def test_a_deadline_around_cuts_an_async_attempt_short(now):
    async def hangs():
        await asyncio.sleep(1000)

    async def main():
        with Budget(seconds=5):
            await AsyncRetrying()(hangs)

    with pytest.raises(RetryError) as caught:
        run(main())
    assert now() == 5.0
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_a_spent_budget_around_stops_it():
    calls = Calls(OSError("down"))
    with Budget(attempts=2):
        with pytest.raises(RetryError):
            Retrying()(calls)
        with pytest.raises(BudgetError):
            Retrying()(calls)
    assert calls.count == 2


def test_a_sleep_of_your_own(now):
    slept = []
    Retrying(sleep=slept.append, wait=wait_fixed(3))(broken(2))
    assert (slept, now()) == ([3.0, 3.0], 0.0)


def test_an_event_cuts_the_sleep_short(now):
    event = threading.Event()
    event.set()
    assert Retrying(sleep=sleep_using_event(event), wait=wait_fixed(3600))(broken(1)) == "done"


# Hooks


def test_hooks_see_the_call_in_tenacitys_order():
    seen = []

    def hook(name):
        def note(retry_state):
            next_sleep = retry_state.next_action and retry_state.next_action.sleep
            failed = retry_state.outcome and retry_state.outcome.failed
            seen.append((name, retry_state.attempt_number, failed, retry_state.idle_for, next_sleep))

        return note

    Retrying(wait=wait_fixed(2), before=hook("before"), after=hook("after"), before_sleep=hook("before_sleep"))(
        broken(1)
    )
    assert seen == [
        ("before", 1, None, 0.0, None),
        ("after", 1, True, 0.0, None),
        ("before_sleep", 1, True, 2.0, 2.0),
        ("before", 2, None, 2.0, None),
    ]


def test_the_state_tells_what_is_called_and_for_how_long(runtime):
    states = []

    def fetch(url, *, timeout):
        runtime.clock.advance(0.5)
        raise OSError(url)

    def keep(retry_state):
        facts = (retry_state.fn, retry_state.args, retry_state.kwargs, retry_state.seconds_since_start)
        states.append((*facts, retry_state.outcome_timestamp, retry_state.upcoming_sleep, retry_state.get_fn_name()))

    with pytest.raises(RetryError):
        Retrying(stop=stop_after_attempt(2), wait=wait_fixed(1), before_sleep=keep)(fetch, "x", timeout=3)
    assert states == [(fetch, ("x",), {"timeout": 3}, 0.5, 0.5, 1.0, fetch.__qualname__)]


@pytest.mark.parametrize("hook", ["before", "after", "before_sleep"])
def test_R25_a_hook_that_raises_changes_nothing_and_is_told_once(hook, events, caplog):
    def faulty(retry_state):
        raise RuntimeError("my own mistake")

    calls = broken(3)
    with caplog.at_level(logging.ERROR, logger="holdfast"):
        assert Retrying(**{hook: faulty})(calls) == "done"
    assert calls.count == 4
    assert [event.reason for event in events.of(SuppressedError)] == [f"`{hook}` of a retry raised"]
    assert "my own mistake" in caplog.text


@pytest.mark.parametrize("strategy", ["retry", "stop", "wait"])
def test_R25_a_strategy_that_raises_ends_the_attempts_with_what_the_call_came_to(strategy, events):
    def faulty(retry_state):
        raise RuntimeError("my own mistake")

    calls = Calls(OSError("theirs"))
    with pytest.raises(OSError, match="theirs"):
        Retrying(**{strategy: faulty}, reraise=True)(calls)
    assert calls.count == 1
    assert len(events.of(SuppressedError)) == 1


@pytest.mark.parametrize("senseless", [-1, float("nan"), "soon"])
def test_a_wait_that_makes_no_sense_ends_the_attempts(senseless, events):
    calls = Calls(OSError("theirs"))
    with pytest.raises(OSError, match="theirs"):
        Retrying(wait=lambda retry_state: senseless, reraise=True)(calls)
    assert calls.count == 1
    assert "what wait returned: expected seconds" in events.of(SuppressedError)[0].cause


def test_log_hooks_write_tenacitys_lines():
    class Log:
        lines = []

        def log(self, level, line):
            self.lines.append(line)

    def fetch():
        raise OSError("down")

    fetch.__qualname__ = "fetch"
    log = Log()
    with pytest.raises(RetryError):
        Retrying(
            stop=stop_after_attempt(2),
            wait=wait_fixed(1.5),
            before=before_log(log, logging.INFO),
            after=after_log(log, logging.INFO),
            before_sleep=before_sleep_log(log, logging.INFO),
        )(fetch)
    assert log.lines == [
        "Starting call to 'fetch', this is the 1st time calling it.",
        "Finished call to 'fetch' after 0(s), this was the 1st time calling it.",
        "Retrying fetch in 1.5 seconds as it raised OSError: down.",
        "Starting call to 'fetch', this is the 2nd time calling it.",
        "Finished call to 'fetch' after 1.5(s), this was the 2nd time calling it.",
    ]


def test_a_log_hook_can_show_the_traceback_and_results():
    lines = []
    log = type("Log", (), {"log": lambda self, level, line: lines.append(line)})()
    hook = before_sleep_log(log, logging.INFO, exc_info=True)
    Retrying(retry=retry_if_exception_type() | retry_if_result(lambda v: v == 0), before_sleep=hook)(
        Calls(OSError("down"), 0, 1)
    )
    assert "Traceback (most recent call last)" in lines[0]
    assert lines[1].endswith("as it returned 0.")


@pytest.mark.parametrize(("number", "word"), [(3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (22, "22nd")])
def test_ordinals(number, word):
    lines = []
    state = RetryCallState(None, broken, (), {})
    state.attempt_number = number
    before_log(type("Log", (), {"log": lambda self, level, line: lines.append(line)})(), 10)(state)
    assert f"this is the {word} time" in lines[0]


# Decorating


def test_the_decorator_works_with_and_without_arguments_and_brackets():
    for decorator in (retry, retry(), retry(stop=stop_after_attempt(9))):
        calls = broken(2)
        assert decorator(lambda calls=calls: calls())() == "done"


def test_a_decorated_function_stays_a_function():
    @retry(stop=stop_after_attempt(2))
    def fetch(url: str, *, timeout: int = 3) -> str:
        """Fetch it."""
        return f"{url} {timeout}"

    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetch it.")
    assert list(inspect.signature(fetch).parameters) == ["url", "timeout"]
    assert fetch("x") == "x 3"
    assert inspect.isfunction(fetch)


def test_a_decorated_method_is_bound():
    class Client:
        tries = 0

        @retry
        def fetch(self):
            self.tries += 1
            if self.tries < 3:
                raise OSError
            return self.tries

    assert Client().fetch() == 3


def test_retry_with_changes_some_settings_and_leaves_the_original_alone():
    calls = Calls(OSError("x"))
    fetch = retry(stop=stop_after_attempt(2), reraise=True)(calls)
    with pytest.raises(OSError, match="x"):
        fetch.retry_with(stop=stop_after_attempt(5))()
    assert calls.count == 5
    with pytest.raises(OSError, match="x"):
        fetch()
    assert calls.count == 7


def test_settings_can_be_changed_on_the_function_as_tests_do(now):
    fetch = retry(wait=wait_fixed(60), stop=stop_after_attempt(3))(broken(1).__call__)
    fetch.retry.wait = wait_fixed(0)
    assert fetch() == "done"
    assert now() == 0.0


def test_statistics_tell_of_the_last_call_also_through_another_wrapper():
    fetch = retry(wait=wait_fixed(2))(broken(2).__call__)

    @functools.wraps(fetch)
    def other():
        return fetch()

    assert fetch.statistics == {}
    other()
    told = {"start_time": 0.0, "attempt_number": 3, "idle_for": 4.0, "delay_since_first_attempt": 2.0}
    assert fetch.statistics == other.statistics == fetch.retry.statistics == told
    fetch()
    assert fetch.statistics["attempt_number"] == 1


def test_what_is_switched_off_is_a_plain_call(runtime):
    calls = Calls(OSError("plain"))
    with pytest.raises(OSError, match="plain"):
        retry(enabled=False)(calls.__call__)()
    runtime.enabled = False
    with pytest.raises(OSError, match="plain"):
        Retrying()(calls)
    with pytest.raises(OSError, match="plain"):
        run(AsyncRetrying(enabled=False)(calls.later))
    for retrying in (Retrying(), Retrying(enabled=False)):
        with pytest.raises(OSError, match="block"):
            block(retrying, Calls(OSError("block")))
    assert calls.count == 3


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


def test_an_attempt_without_with_is_told():
    with pytest.raises(InvalidError, match="`with attempt:` around the block"):
        for _ in Retrying():
            pass


def test_a_blocks_stop_iteration_does_not_look_like_success():
    with pytest.raises(RuntimeError):
        block(Retrying(stop=stop_after_attempt(1), reraise=True), Calls(StopIteration()))


# Async


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


def test_657_a_generator_is_refused_since_its_body_runs_outside():
    def items():
        yield 1

    with pytest.raises(InvalidError, match="a generator function"):
        retry(items)


def test_async_hooks_and_strategies_are_awaited(now):
    seen = []

    def later(answer):
        async def asked(retry_state):
            await asyncio.sleep(1)
            seen.append(retry_state.attempt_number)
            return answer(retry_state)

        return asked

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
def test_async_functions_are_refused_where_nothing_is_awaited(option):
    async def asked(retry_state):
        return False

    with pytest.raises(InvalidError, match=rf"retry\.{option}: expected a plain function; AsyncRetrying"):
        Retrying(**{option: asked})


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


def test_for_over_an_async_retry_is_told():
    with pytest.raises(InvalidError, match="expected async for, got for"):
        iter(AsyncRetrying())


# Where we differ on purpose


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
def test_what_was_raised_is_gone_when_it_is_dropped_without_waiting_for_the_collector(world, reraise):
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


# What it gains


def test_it_reports_like_every_recovery(events):
    fetch = retry(wait=wait_fixed(2), stop=stop_after_attempt(5), name="fetch")(broken(2).__call__)
    assert fetch() == "done"
    assert [(event.attempt, event.max_attempts, event.delay) for event in events.of(Retry)] == [
        (1, 5, 2.0),
        (2, 5, 2.0),
    ]
    assert events.assert_recovered(attempts=3, operation="fetch").after == 4.0


def test_the_number_of_attempts_is_told_as_far_as_it_is_known(events):
    Retrying(stop=stop_after_attempt(7) | stop_after_delay(60))(broken(1))
    Retrying(stop=stop_after_delay(60))(broken(1))
    assert [event.max_attempts for event in events.of(Retry)] == [7, 2]


def test_R11_giving_up_for_time_is_not_giving_up_for_attempts(events):
    for stop in (stop_after_attempt(1) | stop_before_delay(60), stop_after_attempt(9) | stop_before_delay(60)):
        with pytest.raises(RetryError):
            Retrying(stop=stop, wait=wait_fixed(100))(broken(9))
    assert [event.exhausted for event in events.of(Failed)] == [True, False]
    assert len(events.of(RetryDenied)) == 1


def test_the_fault_of_what_surfaces_tells_every_attempt():
    for reraise in (False, True):
        with pytest.raises((RetryError, ConnectionResetError)) as caught:
            Retrying(stop=stop_after_attempt(3), reraise=reraise)(Calls(ConnectionResetError("cut")))
        fault = fault_of(caught.value)
        assert fault.code.startswith("CONN_")
        assert [attempt.number for attempt in fault.attempts] == [1, 2, 3]


def test_what_declares_itself_unsafe_is_not_repeated_when_it_may_have_happened():
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


# What makes no sense, and what is shown


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stop": 3}, "retry.stop: expected a function of the retry state, got 3"),
        ({"retry": None}, "retry.retry: expected a function"),
        ({"before_sleep": "x"}, "retry.before_sleep: expected a function of the retry state, got 'x'"),
        ({"retry_error_cls": ValueError}, "retry.retry_error_cls: expected a class below RetryError"),
        ({"attempts": 3}, "got attempts"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(options, told):
    with pytest.raises(InvalidError) as caught:
        Retrying(**options)
    assert told in str(caught.value)


def test_the_decorator_wants_a_function():
    with pytest.raises(InvalidError, match="retry: expected a function, and arguments by name, got 3"):
        retry(3)


def test_none_is_taken_for_no_hook_and_no_wait():
    assert Retrying(wait=None, before=None, after=None, before_sleep=before_sleep_nothing)(broken(1)) == "done"


def test_what_is_shown_helps():
    retrying = Retrying(stop=stop_after_attempt(3), name="fetch")
    assert str(retrying) == "fetch"
    assert repr(retrying).startswith("Retrying(stop=stop_after_attempt, wait=wait_none, retry=retry_if_exception_type")
    assert repr(Future(1, value=5)) == "<attempt 1 returned int>"
    assert Future(1).done()
    shown = []
    with pytest.raises(RetryError):
        retrying.copy(before_sleep=lambda s: shown.append((repr(s), repr(s.next_action))))(broken(9))
    assert shown[0] == (
        "<RetryCallState attempt #1; slept for 0; last: <attempt 1 raised OSError>>",
        "RetryAction(sleep=0)",
    )
