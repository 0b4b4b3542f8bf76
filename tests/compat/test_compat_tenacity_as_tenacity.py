"""FR22: what programs do with tenacity besides calling it: pickle, patch, import its modules, run it in trio."""

from __future__ import annotations

import datetime as dt
import importlib
import inspect
import pickle
import re

import pytest
import trio
from tenacity_calls import Calls, broken

from holdfast import InvalidError, Runtime
from holdfast.compat import tenacity
from holdfast.compat.tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    nap,
    retry,
    retry_if_exception_cause_type,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_exception_message,
    retry_if_not_exception_type,
    retry_if_result,
    retry_unless_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_fixed,
    wait_incrementing,
)
from holdfast.compat.tenacity import asyncio as tenacity_asyncio
from holdfast.compat.tenacity.stop import most_attempts
from holdfast.testing import run, use_runtime


def state_of(attempt: int = 1) -> RetryCallState:
    state = RetryCallState(None, None, (), {})
    state.attempt_number = attempt
    return state


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("wait", "wait_fixed wait_exponential"),
        ("retry", "retry_if_exception_type retry_base"),
        ("stop", "stop_after_attempt stop_any"),
        ("nap", "sleep sleep_using_event time"),
        ("before", "before_log before_nothing"),
        ("after", "after_log after_nothing"),
        ("before_sleep", "before_sleep_log before_sleep_nothing"),
        ("asyncio", "AsyncRetrying retry_if_exception retry_if_result retry_any retry_all"),
    ],
)
def test_FR22_the_modules_of_tenacity_can_be_imported(module, names):
    ours = importlib.import_module(f"holdfast.compat.tenacity.{module}")
    theirs = importlib.import_module(f"tenacity.{module}")
    for name in names.split():
        assert hasattr(ours, name)
        assert hasattr(theirs, name)


@pytest.mark.parametrize(
    "condition",
    [
        retry_if_exception_type(OSError),
        retry_if_not_exception_type(ValueError),
        retry_unless_exception_type(ValueError),
        retry_if_exception_cause_type(OSError),
        retry_if_exception_message(message="lost"),
        retry_if_exception_message(match=re.compile("lo")),
        retry_if_not_exception_message(match="closed"),
        retry_if_exception_type(OSError) | retry_if_exception_message("lost"),
    ],
)
@pytest.mark.parametrize("kind", [Retrying, AsyncRetrying])
def test_FR22_retry_objects_and_conditions_can_be_pickled(condition, kind, now):
    error = OSError("lost")
    error.__cause__ = OSError()
    original = kind(stop=stop_after_attempt(3), wait=wait_fixed(2), retry=condition, name="fetch", reraise=True)
    restored = pickle.loads(pickle.dumps(original))
    assert (type(restored), restored.statistics, str(restored)) == (kind, {}, "fetch")
    calls = Calls(error)
    with pytest.raises(OSError, match="lost"):
        if kind is Retrying:
            restored(calls)
        else:
            run(restored(calls.later))
    assert calls.count == 3
    other = Calls(ValueError("closed"))
    with pytest.raises(ValueError, match="closed"):
        Retrying(retry=restored.retry, stop=stop_after_attempt(3), reraise=True)(other)
    assert other.count == 1


def test_FR22_a_decorated_function_keeps_its_defaults():
    @retry
    def fetch(url, limit=3, *, pause=5):
        return url, limit, pause

    @retry
    async def fetch_async(url, limit=3, *, pause=5):
        return url, limit, pause

    for decorated in (fetch, fetch_async):
        assert (decorated.__defaults__, decorated.__kwdefaults__) == ((3,), {"pause": 5})
        assert str(inspect.signature(decorated)) == "(url, limit=3, *, pause=5)"
    assert fetch("a") == ("a", 3, 5)
    assert run(fetch_async("a", pause=1)) == ("a", 3, 1)


@pytest.mark.parametrize("patched", ["nap.time.sleep", "nap.sleep"])
def test_FR22_a_test_may_patch_the_sleep(patched, monkeypatch):
    slept = []
    monkeypatch.setattr(f"holdfast.compat.tenacity.{patched}", slept.append)
    with use_runtime(Runtime()):  # on the real clock, as in a program that knows nothing of virtual time
        assert Retrying(wait=wait_fixed(7))(broken(2)) == "done"
    assert slept == [7.0, 7.0]


def test_FR22_without_a_patch_the_runtime_s_clock_sleeps(now):
    nap.sleep(3)
    assert now() == 3.0


def test_FR22_a_wait_that_is_false_is_used():
    class Falsy(wait_fixed):
        def __bool__(self):
            return False

    waits = []
    Retrying(wait=Falsy(4), sleep=waits.append)(broken(1))
    assert waits == [4.0]


def test_FR22_an_increment_may_be_a_timedelta():
    wait = wait_incrementing(start=dt.timedelta(seconds=5), increment=dt.timedelta(seconds=2))
    assert [wait(state_of(attempt)) for attempt in (1, 2, 3)] == [5.0, 7.0, 9.0]
    assert wait_incrementing(start=5, increment=dt.timedelta(seconds=-2))(state_of(2)) == 3.0


def test_FR22_any_class_of_exceptions_may_be_raised_in_the_end():
    class GaveUpError(Exception):
        pass

    @retry(stop=stop_after_attempt(10), retry_error_cls=GaveUpError)
    def fetch():
        raise OSError("lost")

    with pytest.raises(GaveUpError) as caught:
        fetch.retry_with(stop=stop_after_attempt(2))()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.args[0].attempt_number == 2
    with pytest.raises(OSError, match="lost"):
        fetch.retry_with(stop=stop_after_attempt(2), reraise=True)()


def test_FR22_a_condition_shows_its_message():
    assert retry_if_exception_message(message="").message == ""
    assert retry_if_exception_message(match="a+").match == re.compile("a+")


def test_FR22_three_conditions_or_stops_are_one():
    one, two, three = retry_if_exception_type(OSError), retry_if_result(bool), retry_if_exception_type(KeyError)
    assert (one | two | three).retries == (one, two, three)
    assert (one & two & three).retries == (one, two, three)
    assert len((one & two | three).retries) == 2
    stop = stop_after_attempt(5) | stop_after_delay(60) | stop_after_delay(90)
    assert most_attempts(stop, 1) == 5


def test_FR22_async_conditions_decide_and_combine():
    async def is_one(value):
        return value == 1

    async def is_lost(error):
        return str(error) == "lost"

    lost, one = tenacity_asyncio.retry_if_exception(is_lost), tenacity_asyncio.retry_if_result(is_one)
    always = retry_if_result(lambda value: value == 2)
    for condition in (lost | one | always, always | lost | one, tenacity_asyncio.retry_any(always, lost, one)):
        calls = Calls(OSError("lost"), 1, 2, 3)
        assert run(AsyncRetrying(retry=condition)(calls.later)) == 3
    assert run(AsyncRetrying(retry=always & one)(Calls(1).later)) == 1
    assert (
        run(AsyncRetrying(retry=one & one, stop=stop_after_attempt(2), retry_error_callback=len_of)(Calls(1).later))
        == 2
    )
    with pytest.raises(InvalidError, match="async"):
        Retrying(retry=lost)
    with pytest.raises(InvalidError, match=r"tenacity.asyncio.retry_if_result takes async ones"):
        retry_if_result(is_one)


def len_of(retry_state):
    return retry_state.attempt_number


def test_FR22_it_runs_in_trio():
    calls = broken(2)
    with use_runtime(Runtime()):
        assert trio.run(AsyncRetrying(wait=wait_fixed(0.001)), calls.later) == "done"
    assert calls.count == 3


def test_FR22_hooks_without_an_outcome_say_so():
    lines = []

    class Log:
        def log(self, level, line):
            lines.append(line)

    tenacity.after_log(Log(), 20)(state_of(12))
    assert lines == ["Finished call to 'None' after ?(s), this was the 12th time calling it."]
    assert repr(state_of()).endswith("attempt #1; slept for 0.0; last result: none yet>")
