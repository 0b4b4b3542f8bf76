"""The live line as data: the same words on a terminal, in a pipe and for a UI (S1-28, UX.md)."""

from __future__ import annotations

from datetime import UTC

import pytest
from sinks_scenes import CANARY, STEADY

from holdfast import Circuit, Fault, Policy
from holdfast.events import CircuitState, CircuitStateChange, Commanded, Degraded, Fallback, Recovered, Retry
from holdfast.events.tracker import MOST_UNDER_WAY
from holdfast.faults import InvalidError
from holdfast.policies.target import Target
from holdfast.sinks import LiveState, watch_live
from holdfast.sinks.live import LiveWord

NOON = 1773835267.0  # 12:01:07 UTC
OVERLOADED = Fault.of("PROVIDER_OVERLOADED", context={"status": 529})


def retry(**fields) -> Retry:
    given = {
        "at": NOON,
        "run": "a",
        "operation": "claude messages.create",
        "attempt": 1,
        "max_attempts": 3,
        "delay": 3.4,
    }
    return Retry(**{**given, "fault": OVERLOADED, **fields})


def test_S1_28_the_text_for_a_UI():
    line = LiveState().apply(retry())
    assert (line.mark, line.text, line.state) == ("⟳", "Retrying... (2/3)", "retrying")


def test_the_line_of_design_section_7():
    line = LiveState().apply(
        retry(operation="claude", requested=True, fault=Fault.of("PROVIDER_OVERLOADED", retry_after=4.0))
    )
    assert line.shown(NOON, UTC) == "⟳ Retrying... (2/3) in 3.4s · claude · PROVIDER_OVERLOADED · server asked for 4s"


def test_the_line_of_a_pipe_is_the_one_of_UX():
    line = LiveState().apply(retry())
    assert line.logged(UTC) == "12:01:07 retry 2/3 in 3.4s claude messages.create PROVIDER_OVERLOADED (529)"


def test_the_countdown_runs_and_ends():
    line = LiveState().apply(retry(operation="claude"))
    assert line.shown(NOON + 1.4, UTC).startswith("⟳ Retrying... (2/3) in 2.0s · claude")
    assert line.shown(NOON + 9, UTC).startswith("⟳ Retrying... (2/3) now · claude")


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, "⟳ Retrying... (2/3) in 3.4s · claude · PROVIDER_OVERLOADED · server asked for 4s"),
        (60, "⟳ Retrying... (2/3) in 3.4s · claude · PROVIDER_OVERLOADED"),
        (52, "⟳ retry 2/3 in 3.4s · claude · PROVIDER_OVERLOADED"),
        (20, "⟳ retry 2/3 in 3.4s"),
    ],
)
def test_on_few_columns_a_line_gets_shorter_before_its_code_is_cut(width, shown):
    fault = Fault.of("PROVIDER_OVERLOADED", retry_after=4.0)
    line = LiveState().apply(retry(operation="claude", requested=True, fault=fault))
    assert line.shown(NOON, UTC, width) == shown


def test_a_call_that_waits_for_its_turn_says_so_and_names_no_attempt():
    line = LiveState().apply(retry(operation="claude", fault=Fault.of("SYS_RATE_LIMITED", retry_after=3.4)))
    assert line.shown(NOON, UTC) == "⟳ Waiting for its turn in 3.4s · claude · SYS_RATE_LIMITED"
    assert line.logged(UTC) == "12:01:07 wait for its turn in 3.4s claude SYS_RATE_LIMITED"


def test_a_wait_of_more_than_a_minute_is_a_time_of_day():
    line = LiveState().apply(retry(delay=61.0))
    assert (line.state, line.mark) == (LiveWord.PAUSED, "⏸")
    assert line.shown(NOON + 59, UTC).startswith("⏸ Retrying... (2/3) at 12:02:08 · claude")
    assert line.logged(UTC).startswith("12:01:07 retry 2/3 at 12:02:08 claude")
    assert LiveState().apply(retry(delay=60.0)).state is LiveWord.RETRYING


def test_an_open_circuit_says_until_when():
    change = CircuitStateChange(
        at=NOON, circuit="provider:claude", from_=CircuitState.CLOSED, to=CircuitState.OPEN, reason="PROVIDER_OVERLOADED", until=NOON + 90,
    )  # fmt: skip
    state = LiveState()
    line = state.apply(change)
    assert line.shown(NOON, UTC) == "⊘ circuit open until 12:02:37 · claude · PROVIDER_OVERLOADED"
    assert state.lines == (line,)
    waits = state.apply(retry(operation="claude", requested=True, fault=Fault.of("CIRCUIT_OPEN", retry_after=4.0)))
    assert waits.shown(NOON, UTC) == "⊘ circuit open until 12:01:10 · claude · CIRCUIT_OPEN", "no server asked for it"
    assert waits.logged(UTC) == "12:01:07 wait for an open circuit until 12:01:10 claude CIRCUIT_OPEN"
    assert state.apply(Recovered(at=NOON, run="a", after=1, attempts=1)).over
    closed = CircuitStateChange(
        at=NOON + 91, circuit="provider:claude", from_=CircuitState.HALF_OPEN, to=CircuitState.CLOSED
    )
    assert state.apply(closed).shown(NOON, UTC) == "✓ circuit closed · claude"
    assert state.lines == ()


@pytest.mark.parametrize(
    ("event", "shown", "logged"),
    [
        (
            Fallback(at=NOON, run="a", operation="claude", from_="primary", to="openai", fault=OVERLOADED),
            "↳ fallback → openai · claude · PROVIDER_OVERLOADED (529)",
            "12:01:07 fallback → openai claude PROVIDER_OVERLOADED (529)",
        ),
        (
            Degraded(at=NOON, run="a", operation="claude", reason="529", via="cached", fault=OVERLOADED),
            "◐ degraded: cached · claude · PROVIDER_OVERLOADED (529)",
            "12:01:07 degraded: cached claude PROVIDER_OVERLOADED (529)",
        ),
        (
            Degraded(at=NOON, run="a", operation="claude", reason="529", fault=OVERLOADED),
            "◐ degraded · claude · PROVIDER_OVERLOADED (529)",
            "12:01:07 degraded claude PROVIDER_OVERLOADED (529)",
        ),
        (
            Recovered(at=NOON, run="a", operation="claude", after=5.6, attempts=2),
            "✓ recovered after 2 attempts, 5.6s · claude",
            "12:01:07 recovered after 2 attempts, 5.6s claude",
        ),
        (
            Commanded(at=NOON, run="a", operation="claude", command="retry-now", by="terminal"),
            "⟳ command retry-now from terminal · claude",
            "12:01:07 command retry-now from terminal claude",
        ),
    ],
)
def test_the_other_states(event, shown, logged):
    line = LiveState().apply(event)
    assert (line.shown(NOON, UTC), line.logged(UTC)) == (shown, logged)


# --- real operations ---


def lines_of(stage, steps, policy=STEADY, target="claude") -> list:
    lines: list = []
    with watch_live(lines.append, stage.runtime):
        stage.play(steps, target, policy)
    return lines


def test_one_line_per_transition_and_a_single_closing_one(stage):
    lines = lines_of(stage, "529, 503, ok")
    assert [line.logged(UTC) for line in lines] == [
        "00:00:00 retry 2/3 in 1.0s claude PROVIDER_OVERLOADED (529)",
        "00:00:01 retry 3/3 in 2.0s claude PROVIDER_UNAVAILABLE (503)",
        "00:00:03 recovered after 3 attempts, 3.0s claude",
    ]
    assert [line.over for line in lines] == [False, False, True]
    assert len({line.key for line in lines}) == 1


def test_a_failure_says_who_acts_next(stage):
    (line,) = lines_of(stage, "401")
    assert line.shown(0, UTC) == "✖ failed after 1 attempt · claude · AUTH_FAILED (401) · next to act: operator"


def test_a_call_that_works_has_no_line_and_is_not_watched(stage):
    with watch_live(lambda _: None, stage.runtime):
        assert not stage.runtime.bus.wants_attempts
    assert lines_of(stage, "ok") == []


def test_provider_and_model_are_named(stage):
    (line, _) = lines_of(stage, "503, ok", target=Target(provider="claude", model="opus"))
    assert line.name == "claude/opus"


def test_a_trip_shows_the_circuit_beside_the_call(stage):
    lines = lines_of(stage, "503", Policy(attempts=1, circuit=Circuit(failures=1)))
    assert [(line.state, line.name) for line in lines] == [("circuit open", "claude"), ("failed", "claude")]


def test_lines_hold_no_text_of_the_failure(stage):
    def boom():
        raise ConnectionResetError(104, f"reset with {CANARY}")

    async def call():
        boom()

    for line in lines_of(stage, call):
        assert CANARY not in repr(line)
        assert "reset with" not in repr(line)


def test_the_state_is_bounded():
    state = LiveState()
    for n in range(MOST_UNDER_WAY + 5):
        state.apply(retry(run=str(n)))
    assert len(state.lines) == MOST_UNDER_WAY
    assert state.lines[0].key == "5"


def test_a_reader_that_cannot_be_called_is_rejected():
    with pytest.raises(InvalidError, match="watch_live: expected a function of a LiveLine, got 7"):
        watch_live(7)
