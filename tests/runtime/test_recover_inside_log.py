"""What is logged of a recovery inside another one: only the outer one is somebody's business, and no item stops the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from recover_kit import Always, Flaky, World, reset

from holdfast import Policy, Runtime, StreamCutError
from holdfast.events import AttemptEnded, AttemptStarted, Event, Failed, Recovered, encode
from holdfast.events.lines import LogLines
from holdfast.events.tracker import facts_of
from holdfast.faults import REDACTOR
from holdfast.testing import ScriptedHTTPError, script

ONCE = Policy(attempts=1)


@contextmanager
def lines_of(world: World) -> Iterator[list[str]]:
    """The lines of the events of this world, except those of attempts."""
    found: list[str] = []
    writer = LogLines()

    def write(event: Event) -> None:
        if not isinstance(event, AttemptStarted | AttemptEnded):
            found.append(writer.of(event)[1])

    with world.runtime.on(write):
        yield found


class SDKEvent:
    """An item that has no form in JSON, as the events of an SDK."""


def cut_stream(world: World) -> StreamCutError:
    """Return the error of a stream that broke off after an object of an SDK."""

    def items() -> Any:
        yield SDKEvent()
        raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(StreamCutError) as cut, world.recover("outer").stream(items)() as stream:
        for _ in stream:
            pass
    return cut.value


def test_a_stream_of_objects_that_broke_off_is_logged_without_them() -> None:
    world = World()
    with lines_of(world) as lines:
        cut_stream(world)
    assert [line.split(";")[0] for line in lines] == ["outer failed after 1 attempt in 0.0 s (CONN_RESET)"]
    event = Failed(at=0.0, fault=cut_stream(world).fault, exhausted=False)
    assert "partial" not in facts_of(event, REDACTOR)["fault"]


def test_an_event_with_an_object_that_has_no_form_in_json_can_be_written() -> None:
    event = Failed(at=0.0, fault=cut_stream(World()).fault, exhausted=False)
    assert json.loads(encode(event))["fault"]["partial"]["payload"] == ["<SDKEvent>"]


def test_a_cut_that_is_handed_to_the_caller_needs_no_operator() -> None:
    world = World()
    with lines_of(world) as lines:
        cut_stream(world)
    assert "next to act: the caller, who has the part that arrived; holdfast explain" in lines[0]


def levels(world: World, name: str) -> list[int | None]:
    lines = LogLines()
    found = [(event.operation, lines.of(event)[0]) for event in world.events if isinstance(event, Failed)]
    return [level for operation, level in found if operation == name]


def test_a_failure_inside_a_recovery_that_goes_on_is_no_warning() -> None:
    world = World()
    work = Flaky(reset(), value="hi")
    outer = world.recover("outer")(lambda: world.recover("inner", ONCE).call(work))
    outer.fallback(lambda: "other")
    assert outer() == "other"
    assert levels(world, "inner") == [logging.DEBUG]
    assert levels(world, "outer") == []
    (failed,) = world.of(Failed)
    (recovered,) = world.of(Recovered)
    assert failed.within == recovered.run


def test_a_failure_that_surfaces_is_a_warning_once() -> None:
    world = World()
    with pytest.raises(ConnectionResetError):
        world.recover("outer").call(lambda: world.recover("inner", ONCE).call(Always(reset)))
    assert levels(world, "inner") == [logging.DEBUG]
    assert levels(world, "outer") == [logging.WARNING]


def test_the_default_log_shows_one_line_for_a_failure_inside_another(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.runtime = Runtime(log=True)
    with caplog.at_level(logging.WARNING, "holdfast"), pytest.raises(ConnectionResetError):
        world.recover("outer", ONCE).call(lambda: world.recover("inner", ONCE).call(Always(reset)))
    failed = [record.getMessage() for record in caplog.records if " failed after " in record.getMessage()]
    assert [line.split()[0] for line in failed] == ["outer"]


# --- what a line shows ---


class StaleRatesError(Exception):
    """An error of the program's own."""


def test_a_retry_of_an_error_that_nobody_knows_names_its_class() -> None:
    world = World()
    with lines_of(world) as lines:
        world.recover("rates", retry_on=StaleRatesError).call(Flaky(StaleRatesError("old"), value="hi"))
    assert lines[0].startswith("rates: attempt 1 of 3 failed (SYS_UNKNOWN, StaleRatesError); next attempt in ")


def test_a_fallback_that_failed_too_is_in_the_line_of_the_lesser_answer_and_of_the_failure() -> None:
    world = World()
    rates = world.recover("rates", ONCE)(Always(lambda: ScriptedHTTPError(401)))
    rates.fallback(Always(lambda: ConnectionRefusedError(111, "Connection refused")), name="ecb")
    with lines_of(world) as lines, pytest.raises(ScriptedHTTPError):
        rates()
    assert "(AUTH_FAILED, 401); ecb failed too (CONN_REFUSED); next to act: " in lines[-1]
    rates.degraded(lambda fault: "sorry")
    with lines_of(world) as lines:
        assert rates() == "sorry"
    assert lines == [
        "rates falls back from primary to ecb (AUTH_FAILED, 401)",
        "rates gave a lesser answer: degraded (AUTH_FAILED, 401); ecb failed too (CONN_REFUSED)",
    ]


def test_a_delay_that_is_longer_than_the_server_requested_says_what_is_added() -> None:
    world = World()
    with lines_of(world) as lines:
        spread = Policy(spread=0.2)
        world.recover("claude", spread).call(script("429;retry-after=30, ok:hi"))
        world.recover("claude").call(script("429;retry-after=30, ok:hi"))
    retries = [line.partition("; ")[2] for line in lines if "attempt 1" in line]
    assert retries == [
        "next attempt in 33.0 s: 30.0 s as the server requested, 3.0 s spread",
        "next attempt in 30.0 s, as the server requested",
    ]


def test_a_degraded_answer_is_no_attempt() -> None:
    world = World()
    rates = world.recover("rates", ONCE)(Always(lambda: ScriptedHTTPError(401)))
    rates.fallback(Always(lambda: ConnectionRefusedError(111, "Connection refused")), name="ecb")
    rates.degraded(lambda fault: "sorry")
    outcome = rates.outcome()
    assert (outcome.value, outcome.via) == ("sorry", "degraded")
    assert [(attempt.number, attempt.via) for attempt in outcome.attempts] == [(1, "primary"), (2, "ecb")]
