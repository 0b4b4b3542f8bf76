"""`Capture`: the events it keeps, its assertions, and their messages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import Fault
from holdfast.events import AttemptStarted, Cancelled, CircuitState, CircuitStateChange, Failed, Recovered, Retry
from holdfast.testing import Capture

LIMITED = Fault.of("PROVIDER_RATE_LIMITED", retry_after=7)
RETRY = Retry(at=100.0, operation="claude", attempt=1, max_attempts=3, delay=7.0, fault=LIMITED, requested=True)
RECOVERED = Recovered(at=107.0, operation="claude", after=7.0, attempts=2)
FAILED = Failed(at=109.5, operation="tool", fault=Fault.of("TOOL_KILLED"), exhausted=True, attempts=3)


def captured(*events):
    capture = Capture()
    for event in events:
        capture(event)
    return capture


def test_it_keeps_events_in_order_and_by_kind():
    capture = captured(RETRY, RECOVERED)
    assert list(capture) == capture.events == [RETRY, RECOVERED]
    assert capture.of(Retry) == [RETRY]
    assert capture.of(Failed) == []
    assert capture.types == ["retry", "recovered"]
    capture.clear()
    assert len(capture) == 0


def test_it_takes_events_from_many_threads():
    capture = Capture()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(capture, [RETRY] * 1000))
    assert len(capture) == 1000


def test_assert_recovered_returns_the_event():
    assert captured(RETRY, RECOVERED).assert_recovered() is RECOVERED
    assert captured(RETRY, RECOVERED).assert_recovered(attempts=2, operation="claude") is RECOVERED


def test_assert_gave_up_returns_the_event():
    assert captured(FAILED).assert_gave_up() is FAILED
    assert captured(RECOVERED, FAILED).assert_gave_up(code="TOOL_KILLED", operation="tool") is FAILED


def test_assertions_use_the_last_operation_unless_one_is_named():
    capture = captured(RETRY, RECOVERED, FAILED)
    assert capture.assert_recovered(operation="claude") is RECOVERED
    with pytest.raises(AssertionError):
        capture.assert_recovered()
    with pytest.raises(AssertionError, match="expected giving up of 'claude', got recovered"):
        capture.assert_gave_up(operation="claude")


def test_a_failing_assertion_shows_expected_found_and_all_events():
    with pytest.raises(AssertionError) as wrong:
        captured(RETRY, RECOVERED).assert_recovered(attempts=3)
    assert str(wrong.value) == (
        "expected a recovery after 3 attempts, got recovered operation=claude after=7.0 attempts=2 via=primary; seen:\n"
        "+0.000  retry operation=claude attempt=1 max_attempts=3 delay=7.0 fault=PROVIDER_RATE_LIMITED requested=True\n"
        "+7.000  recovered operation=claude after=7.0 attempts=2 via=primary"
    )


@pytest.mark.parametrize("events", [(), (RETRY,), (AttemptStarted(at=1.0, attempt=1),)])
def test_without_an_ended_operation_both_assertions_fail(events):
    capture = captured(*events)
    for ask in (capture.assert_recovered, capture.assert_gave_up):
        with pytest.raises(AssertionError, match="got no end of a recovery"):
            ask()


def test_without_events_the_message_says_so():
    with pytest.raises(AssertionError, match="no events at all"):
        Capture().assert_recovered()


def test_another_code_and_a_cancellation_fail_assert_gave_up():
    with pytest.raises(AssertionError, match="giving up because of TOOL_TIMEOUT, got failed operation=tool fault=TOOL"):
        captured(FAILED).assert_gave_up(code="TOOL_TIMEOUT")
    with pytest.raises(AssertionError, match="got cancelled"):
        captured(FAILED, Cancelled(at=110.0)).assert_gave_up()


def test_the_timeline_names_both_sides_of_a_change():
    change = CircuitStateChange(at=5.0, circuit="claude", from_=CircuitState.CLOSED, to=CircuitState.OPEN)
    assert captured(change).timeline() == "+0.000  circuit-state-change circuit=claude from=closed to=open"
