"""A breaker over a restart: the same state under another clock, and never wedged by a clock that jumped."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from circuit_line import CLOSED, FAILURE, HALF_OPEN, OPEN, Line

from holdfast.faults import InvalidError
from holdfast.policies.circuit import ACTOR, PROVIDER, Breaker, BreakerSnapshot, Circuit, Rule

WALL = 1_773_860_608.0
"""A wall clock that is exact in binary, so that times survive being moved there and back."""
GROWING = Circuit(open_growth=2.0, successes=2)


def closed_with_a_past() -> Line:
    line = Line(PROVIDER).good(3).wait(7.0).bad(2).wait(20.0).good(1).bad(3)
    line.call(FAILURE)
    return line


def lines() -> dict[str, Line]:
    held = Line(PROVIDER)
    held.breaker.force_open(held.now)
    held.breaker.force_open(held.now)
    disabled = Line(PROVIDER).bad(2)
    disabled.breaker.disable(disabled.now)
    adaptive = Line(Circuit(adaptive=True))
    for _ in range(200):
        adaptive.good().wait(1.0)
    return {
        "fresh": Line(PROVIDER),
        "closed": closed_with_a_past(),
        "open": Line(PROVIDER).bad(5).wait(10.0),
        "open and due": Line(PROVIDER).bad(5).wait(31.0),
        "open for part of a window": Line(Circuit(open_for=500.0)).good(3).wait(40.0).bad(5).wait(30.0),
        "open for a window": Line(Circuit(open_for=500.0)).bad(5).wait(60.0),
        "open for long": Line(Circuit(open_for=500.0)).bad(5).wait(400.0),
        "grown": Line(GROWING).bad(5).wait(30.0).bad().wait(1.0),
        "half-open": Line(GROWING).bad(5).wait(30.0).good(),
        "held open": held,
        "forced open": Line(Circuit(mode="forced-open")),
        "disabled": disabled,
        "adaptive": adaptive,
    }


@pytest.mark.parametrize("kind", lines())
def test_a_snapshot_restored_is_the_same_snapshot(kind):
    line = lines()[kind]
    before = line.breaker.snapshot(line.now, WALL)
    restored = Breaker.restore(line.breaker.config, before, line.now, WALL)
    assert restored.snapshot(line.now, WALL) == before
    # What led to an opening is shown as long as it is open; a snapshot keeps of it what is in the window still.
    if not kind.startswith("open for"):
        assert restored.metrics(line.now) == line.metrics
    assert restored.pending == ()


@pytest.mark.parametrize("kind", lines())
def test_a_snapshot_is_plain_json_both_ways(kind):
    line = lines()[kind]
    snapshot = line.breaker.snapshot(line.now, WALL)
    written = msgspec.json.encode(snapshot)
    assert isinstance(json.loads(written), dict)
    assert msgspec.json.decode(written, type=BreakerSnapshot) == snapshot


@pytest.mark.parametrize("kind", lines())
def test_looking_does_not_change_what_is_looked_at(kind):
    line = lines()[kind]
    first = line.breaker.snapshot(line.now, WALL)
    assert line.breaker.snapshot(line.now, WALL) == first


def restored(line: Line, *, after: float = 0.0, now: float = 8.0, config: Circuit | None = None) -> Line:
    """The line in another process, whose monotonic clock began anew, so many seconds of wall clock later."""
    snapshot = line.breaker.snapshot(line.now, WALL)
    other = Line(PROVIDER, start=now)
    other.breaker = Breaker.restore(config or line.breaker.config, snapshot, now, WALL + after)
    return other


def test_what_is_left_of_the_open_time_is_left_after_the_restart():
    line = restored(Line(PROVIDER).bad(5).wait(10.0), after=5.0)
    assert line.refusal().retry_at == line.now + 15.0
    assert line.refusal().reason == "PROVIDER_OVERLOADED"
    assert line.refusal().rule is Rule.FAILURES
    assert line.wait(15.0).good().state is CLOSED


def test_an_open_time_that_ran_out_while_the_process_was_down_leads_to_a_probe():
    line = restored(Line(PROVIDER).bad(5), after=3600.0)
    assert line.state is HALF_OPEN
    assert line.permit().probe


@pytest.mark.parametrize("jump", [-3600.0, -30.0, -1.0])
def test_R58_a_wall_clock_that_jumped_back_does_not_lengthen_the_open_time(jump):
    """litellm#34416: a cooldown of 600 s after a restart."""
    line = restored(Line(PROVIDER).bad(5), after=jump)
    retry_at = line.refusal().retry_at
    assert retry_at is not None
    assert retry_at - line.now <= 30.0


def test_a_growing_open_time_goes_on_growing():
    line = restored(Line(GROWING).bad(5).wait(30.0).bad(), after=60.0)
    line.bad()
    assert line.refusal().retry_at == line.now + 80.0


def test_good_probes_survive_and_the_places_of_lost_probes_are_free():
    line = Line(ACTOR).bad(5).wait(60.0).good()
    line.permit()
    other = restored(line)
    assert other.good().state is CLOSED


def test_a_streak_survives():
    assert restored(Line(PROVIDER).bad(4), after=100.0).bad().state is OPEN


def test_the_window_grows_older_by_the_time_in_between():
    line = Line(Circuit(failures=None)).bad(9)
    assert restored(line, after=30.0).metrics.window_calls == 9
    assert restored(line, after=61.0).metrics.window_calls == 0
    assert restored(line, after=30.0).wait(31.0).metrics.window_calls == 0


def test_totals_and_the_times_of_people_survive():
    line = restored(closed_with_a_past(), after=4.0)
    assert line.metrics.failures == 6
    assert line.metrics.successes == 4
    assert line.metrics.last_failure == line.now - 4.0


def test_R62_held_open_it_stays_so_over_a_restart():
    line = Line(PROVIDER)
    line.breaker.force_open(line.now)
    other = restored(line, after=1e6)
    other.refusal()
    other.breaker.release(other.now)
    other.good()


def test_a_configuration_that_changed_over_the_restart_holds():
    line = restored(Line(Circuit(mode="forced-open")), config=PROVIDER)
    assert line.state is CLOSED
    assert line.changes() == [(OPEN, CLOSED)]
    shorter = restored(Line(Circuit(open_for=600.0)).bad(5), config=Circuit(open_for=5.0, open_cap=10.0))
    assert shorter.refusal().retry_at == shorter.now + 10.0
    passing = restored(Line(PROVIDER).bad(5), config=Circuit(mode="metrics-only"))
    assert passing.state is CLOSED


def test_what_was_learned_survives():
    line = lines()["adaptive"]
    assert line.breaker.usual is not None
    assert line.breaker.usual.calls > 50
    other = restored(line).breaker
    assert other.usual is not None
    assert other.usual.calls == line.breaker.usual.calls


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (name, value)
            for name in ("at", "until", "last_failure", "last_success", "last_state_change")
            for value in (math.nan, math.inf)
        ),
        *(
            (name, value)
            for name in ("open_time", "consecutive_failures", "good_probes", "isolations", "failures", "successes")
            for value in (-1, math.nan, 2**60)
        ),
        *((name, -1) for name in ("ignored", "cancelled", "rejected", "opens")),
        ("parts", ((-1.0, 1, 1, 0),)),
        ("parts", ((1.0, 10**30, 1, 0),)),
        ("usual", (math.nan, 0.0)),
    ],
    ids=str,
)
def test_a_snapshot_no_breaker_wrote_is_refused(field, value):
    options: dict[str, Any] = {"at": WALL, field: value}
    with pytest.raises(InvalidError, match=rf"snapshot\.{field}"):
        BreakerSnapshot(**options)
