"""S1-2, measured: samples of the day that `python -m benchmarks day` lives through; `make soak` lives through the whole."""

from __future__ import annotations

import os

import msgspec
import pytest
from benchmarks import day


def _same(one):
    return msgspec.structs.replace(one, seconds=0.0)


@pytest.fixture(scope="module")
def sample():
    return day.report(seed=1, calls=400)


def test_S1_2_a_sample_of_the_day_recovers(sample):
    assert sample.calls == 400
    assert sample.troubled > 20
    assert sample.recovered >= day.RECOVERED


def test_in_a_day_one_attempt_is_one_request(sample):
    assert sample.attempts == sample.requests
    answered = sample.requests - sum(sample.injected.values())
    assert answered >= sample.calls - sum(sample.lost.values())


def test_a_day_is_its_seeds(sample):
    assert _same(day.report(seed=1, calls=400)) == _same(sample)
    assert day.draw(2, 400) != day.draw(1, 400)


def test_S1_2_calls_to_a_dead_service_are_prevented_where_many_call():
    (outage,) = day.outages_alone(seed=1, calls=80_000, only=slice(4, 5))
    assert outage.calls > 50
    # S1-2's own number is 95 %, which the documents' circuits keep. The default lets the plain client's attempts through.
    assert outage.prevented >= 0.94
    assert outage.reached <= 25


def _outage(**figures):
    return day.Outage(what="503", since=0.0, lasted=275.0, calls=100, **figures)


def test_the_verdict_of_a_day_has_both_targets():
    good, late = _outage(reached=9, without=200, back=4.0), _outage(reached=30, without=200, back=31.0)
    assert good.least == 10
    assert day.verdict_of(20_000, [good]) == (
        "20,000 calls a day: prevented 95.5%, target 95%: met; "
        "first answer after a return 4.0 s at the latest, target 30 s: met"
    )
    assert "prevented 90.2%, target 95%: missed (both cannot hold: at best 95.0%)" in day.verdict_of(
        20_000, [good, late]
    )
    assert "31.0 s at the latest, target 30 s: missed" in day.verdict_of(20_000, [good, late])
    busy = _outage(reached=9, without=2_000, back=4.0)
    assert "both cannot hold" not in day.verdict_of(250_000, [busy])


@pytest.mark.soak
@pytest.mark.skipif("HOLDFAST_SOAK" not in os.environ, reason="minutes: make soak")
def test_S1_2_the_whole_day():
    whole = day.report(seed=1, calls=day.CALLS)
    assert whole.calls >= 10_000
    assert whole.attempts == whole.requests
    assert whole.recovered >= day.RECOVERED


@pytest.mark.soak
@pytest.mark.skipif("HOLDFAST_SOAK" not in os.environ, reason="minutes: make soak")
def test_S1_2_the_outages_under_load():
    quiet, busy = (day.outages_alone(seed=1, calls=load) for load in (day.LOADS[0], day.LOADS[-1]))
    assert day.prevented(busy) >= 0.95  # S1-2's own number
    # With few calls nobody can prevent that much and notice every return in time: a look every 20 s was chosen.
    assert day.at_best(quiet) < day.PREVENTED
    assert day.prevented(quiet) >= 0.87
    assert sorted(day.returns(quiet))[len(day.returns(quiet)) // 2] < day.BACK
