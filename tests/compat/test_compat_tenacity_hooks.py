"""Hooks and strategies: what they see, in which order, and what happens if one raises."""

from __future__ import annotations

import logging

import pytest
from tenacity_calls import Calls, broken

from holdfast.compat.tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    after_log,
    before_log,
    before_sleep_log,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    wait_fixed,
)
from holdfast.events import SuppressedError


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


def test_the_state_shows_what_is_called_and_for_how_long(runtime):
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
def test_R25_a_hook_that_raises_changes_nothing_and_is_logged_once(hook, events, caplog):
    def faulty(retry_state):
        raise RuntimeError("my own mistake")

    calls = broken(3)
    with caplog.at_level(logging.ERROR, logger="holdfast"):
        assert Retrying(**{hook: faulty})(calls) == "done"
    assert calls.count == 4
    assert [event.reason for event in events.of(SuppressedError)] == [f"`{hook}` of a retry raised"]
    assert "my own mistake" in caplog.text


@pytest.mark.parametrize("strategy", ["retry", "stop", "wait"])
def test_R25_a_strategy_that_raises_ends_the_attempts_with_the_calls_own_outcome(strategy, events):
    def faulty(retry_state):
        raise RuntimeError("my own mistake")

    calls = Calls(OSError("theirs"))
    with pytest.raises(OSError, match="theirs"):
        Retrying(**{strategy: faulty}, reraise=True)(calls)
    assert calls.count == 1
    assert len(events.of(SuppressedError)) == 1


@pytest.mark.parametrize("invalid", [-1, float("nan")])
def test_XR10_a_negative_wait_is_none_and_is_reported(invalid, events):
    calls = Calls(OSError("theirs"))
    with pytest.raises(OSError, match="theirs"):
        Retrying(wait=lambda retry_state: invalid, stop=stop_after_attempt(3), reraise=True)(calls)
    assert calls.count == 3
    assert "what wait returned: expected seconds" in events.of(SuppressedError)[0].cause


def test_an_invalid_wait_ends_the_attempts(events):
    calls = Calls(OSError("theirs"))
    with pytest.raises(OSError, match="theirs"):
        Retrying(wait=lambda retry_state: "soon", reraise=True)(calls)
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
