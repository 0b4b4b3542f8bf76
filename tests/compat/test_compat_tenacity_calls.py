"""How `retry` and `Retrying` end a call: results, errors, waits, decorated functions and wrong arguments."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import threading

import pytest
from tenacity_calls import Calls, block, broken

from holdfast import Budget, BudgetError, InvalidError, fault_of
from holdfast.compat.tenacity import (
    AsyncRetrying,
    Future,
    RetryError,
    Retrying,
    TryAgain,
    before_sleep_nothing,
    retry,
    retry_if_exception_type,
    retry_if_not_result,
    retry_if_result,
    retry_never,
    sleep_using_event,
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    wait_fixed,
    wait_incrementing,
    wait_random,
)
from holdfast.events import RetryDenied
from holdfast.testing import run

# Results and errors


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


def test_results_can_be_retried():
    assert Retrying(retry=retry_if_result(lambda value: value is None))(Calls(None, None, 5)) == 5


def test_a_result_that_stays_wrong_ends_in_a_retry_error_even_with_reraise():
    for reraise in (False, True):
        with pytest.raises(RetryError) as caught:
            Retrying(retry=retry_if_not_result(bool), stop=stop_after_attempt(2), reraise=reraise)(Calls(0))
        assert caught.value.last_attempt.result() == 0
        assert not caught.value.last_attempt.failed
        assert len(fault_of(caught.value).attempts) == 2


def test_a_retried_result_is_not_closed_since_the_caller_may_still_hold_it():
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


def test_try_again_until_the_stop_raises_the_error_behind_it():
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
    def fail(retry_state):
        raise LookupError("mine") from retry_state.outcome.exception()

    with pytest.raises(LookupError, match="mine"):
        Retrying(stop=stop_after_attempt(1), retry_error_callback=fail)(broken(9))


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


# Waits, deadlines, budgets


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


def test_423_an_enclosing_deadline_is_never_slept_past(now, events):
    calls = Calls(OSError("down"))
    with Budget(seconds=10), pytest.raises(OSError, match="down"):
        Retrying(wait=wait_fixed(4), reraise=True)(calls)
    assert (calls.count, now()) == (3, 8.0)
    assert [denied.because for denied in events.of(RetryDenied)] == ["SYS_DEADLINE_EXCEEDED"]


def test_an_enclosing_deadline_cuts_an_async_attempt_short(now):
    async def hangs():
        await asyncio.sleep(1000)

    async def main():
        with Budget(seconds=5):
            await AsyncRetrying()(hangs)

    with pytest.raises(RetryError) as caught:
        run(main())
    assert now() == 5.0
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_a_spent_enclosing_budget_stops_it():
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


# Decorated functions


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
        attempts = 0

        @retry
        def fetch(self):
            self.attempts += 1
            if self.attempts < 3:
                raise OSError
            return self.attempts

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


def test_statistics_show_the_last_call_also_through_another_wrapper():
    fetch = retry(wait=wait_fixed(2))(broken(2).__call__)

    @functools.wraps(fetch)
    def other():
        return fetch()

    assert fetch.statistics == {}
    other()
    numbers = {"start_time": 0.0, "attempt_number": 3, "idle_for": 4.0, "delay_since_first_attempt": 2.0}
    assert fetch.statistics == other.statistics == fetch.retry.statistics == numbers
    fetch()
    assert fetch.statistics["attempt_number"] == 1


def test_a_disabled_retry_is_a_plain_call(runtime):
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


# Wrong arguments, and reprs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": 3}, "retry.stop: expected a function of the retry state, got 3"),
        ({"retry": None}, "retry.retry: expected a function"),
        ({"before_sleep": "x"}, "retry.before_sleep: expected a function of the retry state, got 'x'"),
        ({"retry_error_cls": str}, "retry.retry_error_cls: expected a class of exceptions"),
        ({"attempts": 3}, "got attempts"),
    ],
)
def test_wrong_arguments_raise_where_they_are_written(options, message):
    with pytest.raises(InvalidError) as caught:
        Retrying(**options)
    assert message in str(caught.value)


def test_the_decorator_raises_without_a_function():
    with pytest.raises(InvalidError, match="retry: expected a function, and arguments by name, got 3"):
        retry(3)


def test_none_means_no_hook_and_no_wait():
    assert Retrying(wait=None, before=None, after=None, before_sleep=before_sleep_nothing)(broken(1)) == "done"


def test_reprs_show_the_settings():
    retrying = Retrying(stop=stop_after_attempt(3), name="fetch")
    assert str(retrying) == "fetch"
    assert repr(retrying).startswith("Retrying(stop=stop_after_attempt, wait=wait_none, retry=retry_if_exception_type")
    assert repr(Future(1, value=5)) == "<attempt 1 returned int>"
    assert Future(1).done()
    shown = []
    with pytest.raises(RetryError):
        retrying.copy(before_sleep=lambda s: shown.append((repr(s), repr(s.next_action))))(broken(9))
    assert shown[0][0].endswith(": attempt #1; slept for 0.0; last result: failed (OSError 1)>")
    assert shown[0][1] == "RetryAction(sleep=0)"
