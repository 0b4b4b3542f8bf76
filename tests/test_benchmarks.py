"""The recovery benchmark measures what it says: on the same trace, nobody is better than who knows it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import VirtualClock
from holdfast.testing.provider import Request
from holdfast.testing.provider.script import Playback

HAIR = 1e-3
LIMITED = "rate limit of 20 s, delay named"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    return importlib.import_module("benchmarks.recovery")


def played(bench: Any, who: str, trace: Any) -> dict[str, Any]:
    play = importlib.import_module("benchmarks.inside.recovery").play
    return play(who, trace, bench.SEED, VirtualClock())


def test_it_runs_and_the_clairvoyant_is_never_beaten(bench: Any):
    trace = bench.traces()[LIMITED]
    best = played(bench, bench.BEST, trace)
    limit = bench.figures(trace, best, best)
    assert (limit.succeeded, limit.wasted, limit.regret) == (limit.calls, 0, 0)
    for who in ("holdfast", "holdfast, rejecting"):
        ours = played(bench, who, trace)
        got = bench.figures(trace, ours, best)
        assert got.calls == limit.calls
        assert got.wasted > 0
        assert got.regret > 0
        assert got.back >= limit.back - HAIR
        for (due, end, good), (same, soonest, _) in zip(ours["calls"], best["calls"], strict=True):
            assert due == same
            assert not good or end >= soonest - HAIR


def test_the_same_seed_gives_the_same_figures(bench: Any):
    trace = bench.traces()[LIMITED]
    assert played(bench, "holdfast", trace) == played(bench, "holdfast", trace)


def test_the_provider_fails_at_the_moments_the_clairvoyant_avoids(bench: Any):
    good = importlib.import_module("benchmarks.inside.traces").GOOD.partition(";")[0]
    request = Request("POST", "/v1/chat/completions", {}, b"{}")
    for trace in bench.traces().values():
        scripted = Playback(trace.script())
        for tenths in range(0, int(trace.seconds) * 10, 7):
            at = tenths / 10
            step = scripted.next(request, at)
            assert (step.name == good) == (trace.next_good(at) == at), (trace.name, at)
            assert scripted.next(request, trace.next_good(at)).name == good


@pytest.mark.parametrize(
    ("name", "returns"),
    [
        (LIMITED, (40,)),
        ("outage of 10 min", (660,)),
        ("flapping, 10 s down, 10 s up", tuple(range(40, 201, 20))),
    ],
)
def test_a_service_returns_when_it_was_away_for_long(bench: Any, name: str, returns: tuple[float, ...]):
    assert bench.traces()[name].returns == returns


def test_figures_of_a_trace_by_hand(bench: Any):
    module = importlib.import_module("benchmarks.inside.traces")
    trace = module.Trace("by hand", 100.0, (module.Window(10, 20, "503"),), (20,))
    usage = {"input": 1_000_000, "output": 0}
    best = {"calls": [(0, 1, True), (12, 21, True)], "arrivals": [0, 20], "good": 2, "charged": 2, "usage": usage}
    mine = {"calls": [(0, 1, True), (12, 15, False)], "arrivals": [0, 12, 14, 20, 20.9], "charged": 3, "usage": usage}
    got = bench.figures(trace, mine, best)
    assert (got.calls, got.succeeded, got.wasted, got.peak) == (2, 1, 4, 2)
    assert got.regret == ((100 - 12) - (21 - 12)) / 2
    assert got.usd == pytest.approx(3 * 1000 * 0.25)
    assert got.back == float("inf")
