"""The recovery benchmark measures what it claims to measure: nobody is better than a clairvoyant, and the verdict is arithmetic."""

from __future__ import annotations

import hashlib
import importlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.testing import VirtualClock
from holdfast.testing.provider import Limit, Request
from holdfast.testing.provider.script import Playback

HAIR = 1e-3
LIMITED = "rate limit of 20 s, delay named"
BUCKET = "just below 60/min, small bursts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the benchmark, which are not a part of the package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    names = ("figures", "verdict", "inside.traces", "inside.clairvoyant", "inside.clients", "inside.recovery")
    modules = {name.removeprefix("inside."): importlib.import_module(f"benchmarks.{name}") for name in names}
    return SimpleNamespace(driver=importlib.import_module("benchmarks.recovery"), **modules)


def play(bench: Any, trace: Any) -> dict[str, Any]:
    return bench.recovery.play("holdfast", trace, 7, VirtualClock())


def by_hand(bench: Any, **options: Any) -> Any:
    return bench.traces.Trace(**{"name": "by hand", "seconds": 100.0, "windows": (), "returns": ()} | options)


@pytest.mark.parametrize("kind", [LIMITED, BUCKET])
def test_the_clairvoyant_is_never_beaten(bench: Any, kind: str):
    trace = bench.traces.draw(kind, 7)
    best = bench.figures.pooled([bench.figures.sample(trace, bench.figures.best_played(trace))])
    assert (best.answered, best.wasted, best.regret, best.goodput) == (best.calls, 0, 0, 1)
    ours = play(bench, trace)
    got = bench.figures.pooled([bench.figures.sample(trace, ours)])
    assert got.calls == best.calls
    assert got.wasted > 0
    assert got.regret > 0
    assert got.possible >= got.answered
    assert got.limited > 0
    if not trace.limits:
        for (due, end, good), (same, soonest, _) in zip(ours["calls"], bench.clairvoyant.best_calls(trace), strict=True):  # fmt: skip
            assert due == same
            assert not good or end >= soonest - HAIR


def test_the_same_seed_gives_the_same_figures(bench: Any):
    trace = bench.traces.draw(LIMITED, 7)
    assert trace == bench.traces.draw(LIMITED, 7) != bench.traces.draw(LIMITED, 8)
    assert play(bench, trace) == play(bench, trace)


def test_the_provider_fails_at_the_moments_the_clairvoyant_avoids(bench: Any):
    good = bench.traces.GOOD.partition(";")[0]
    request = Request("POST", "/v1/chat/completions", {}, b"{}")
    for kind in bench.traces.FIRST_NINE[:8]:
        trace = bench.traces.draw(kind, 7)
        scripted = Playback(trace.script())
        for tenths in range(0, int(trace.seconds) * 10, 17):
            at = tenths / 10
            step = scripted.next(request, at)
            assert (step.name == good) == (trace.next_good(at) == at), (trace.name, at)
            assert scripted.next(request, trace.next_good(at)).name == good


def test_every_kind_is_drawn_and_begins_well(bench: Any):
    for kind in (*bench.traces.KINDS, *bench.traces.MONTHS):
        for seed in (1, 101):
            trace = bench.traces.draw(kind, seed)
            assert trace.due[0] == 0.0, "the provider's time begins with the first request"
            assert list(trace.due) == sorted(trace.due)
            assert trace.due[-1] < trace.seconds
            assert bool(trace.asked) == (kind in bench.traces.MIXED)
            assert trace.next_good(0.0) == 0.0
            if trace.asked:
                assert len(trace.asked) == len(trace.due)
                assert not trace.limits, "the best would not be known"
                continue
            assert bool(trace.windows) != bool(trace.limits)
            assert all(one.until <= two.since for one, two in zip(trace.windows, trace.windows[1:], strict=False)), kind


def test_the_kinds_that_were_there_first_have_not_changed(bench: Any):
    # Figures of different commits are compared, so a seed must go on giving the same trace.
    drawn = [bench.traces.draw(kind, seed) for kind in bench.traces.KINDS if kind not in bench.traces.MIXED for seed in (1, 101)]  # fmt: skip
    assert len(drawn) == 2 * 28
    parts = [(one.name, one.seconds, [window[:3] for window in one.windows], one.returns, one.due) for one in drawn]
    assert (
        hashlib.sha256(repr(parts).encode()).hexdigest()
        == "f7bedfb89351ae5a8c0bf43ab966411d1fc6ccc7ab57225acc1f0c1f5ab64d23"
    )


@pytest.mark.parametrize("kind", ["one model down", "cut by an outage", "poison"])
def test_in_mixed_kinds_nobody_beats_the_clairvoyant(bench: Any, kind: str):
    (kind,) = [name for name in bench.traces.MIXED if kind in name]
    trace = bench.traces.draw(kind, 7)
    best = bench.clairvoyant.best_calls(trace)
    hopeless = sum(asked.is_hopeless for asked in trace.asked)
    got = bench.figures.pooled([bench.figures.sample(trace, bench.figures.best_played(trace))])
    assert (got.answered, got.wasted, got.regret) == (got.calls - hopeless, 0, 0)
    for who in ("holdfast", "SDK, as it comes"):
        played = bench.recovery.play(who, trace, 7, VirtualClock())
        for (due, end, good), (same, soonest, possible) in zip(played["calls"], best, strict=True):
            assert due == same
            assert not good or (possible and end >= soonest - HAIR), who
        assert bench.figures.sample(trace, played).lost > 0


def test_what_a_request_meets_depends_on_its_call_and_its_moment(bench: Any):
    asked = bench.traces.Asked
    windows = (
        bench.traces.Window(10, 20, "503", "sick"),
        bench.traces.Window(30, 40, "503", cuts=True),
    )
    trace = by_hand(bench, windows=windows, due=(0.0,), asked=(asked(),))
    well, sick, long = asked(), asked(model="sick"), asked(answer_s=15.0)
    assert [trace.meets(at, well).step for at in (0, 10, 30)] == ["slow;seconds=1", "slow;seconds=1", "503"]
    assert [trace.meets(at, sick).step for at in (0, 10, 30)] == ["slow;seconds=1", "503", "503"]
    assert [trace.meets(at, long).cut_after for at in (15, 16, 40)] == [None, 14, None]
    assert [trace.next_good(at, long) for at in (15, 16, 35)] == [15, 40, 40]
    assert [trace.next_good(at, sick) for at in (9, 10, 29.5)] == [9, 20, 40]
    assert trace.meets(0, asked(poison="500")).step == "500"
    assert trace.next_good(0, asked(poison="500")) == trace.next_good(0, asked(answer_s=9, limit_s=5)) == math.inf
    assert trace.next_good(0, asked(answer_s=4, limit_s=5)) == 0


def test_the_provider_plays_a_mixed_trace(bench: Any):
    asked = bench.traces.Asked
    calls = (asked(), asked(answer_s=70.0), asked(answer_s=9.0, limit_s=5.0), asked(poison="500"), asked(model="sick"))
    windows = (bench.traces.Window(0, 50, "503", "sick"), bench.traces.Window(90, 92, "503", cuts=True))
    trace = by_hand(bench, windows=windows, due=(0.0, 1.0, 2.0, 3.0, 4.0, 60.0), asked=(*calls, asked(answer_s=40.0)))
    best = bench.clairvoyant.best_calls(trace)
    assert [end for *_, end, good in best if good] == [1.0, 71.0, 51.0, 132.0]
    played = bench.recovery.play("SDK, as it comes", trace, 7, VirtualClock())
    ends = [(round(end), good) for _, end, good in played["calls"]]
    # A long answer is not cut, the impatient caller and the poison prompt get their three attempts, the sick model is given up
    # soon, and the answer that was under way is sent again until the outage is over.
    assert ends[:2] == [(1, True), (71, True)]
    assert [good for _, good in ends[2:5]] == [False] * 3
    assert 2 + 3 * 5 < ends[2][0] < 2 + 3 * 5 + 3
    assert max(ends[3][0], ends[4][0]) < 8
    assert len(played["arrivals"]) == 2 + 3 + 3 + 3 + 3
    one = bench.figures.sample(trace, {**played, "calls": [(due, due + 7, False) for due in trace.due]})
    assert one.took == [100, 99, 7, 7, 96, 40], "what nobody can answer is over when its caller knows"


def test_a_brownout_has_its_share_of_bad_seconds(bench: Any):
    trace = bench.traces.draw("brownout 70 %", 3)
    for since in range(30, 270, 10):
        assert sum(window.since in range(since, since + 10) for window in trace.windows) == 7


def test_a_service_returns_when_it_was_away_for_long(bench: Any):
    (outage,) = bench.traces.draw("outage of 10 min", 7).windows
    assert bench.traces.draw("outage of 10 min", 7).returns == (outage.until,)
    assert len(bench.traces.draw("flapping, 10 s down, 10 s up", 7).returns) == 9


def test_the_schedule_on_a_bucket_by_hand(bench: Any):
    # Two at once, then one each second: the third waits one second, the fourth two.
    trace = by_hand(bench, due=(0.0, 0.0, 0.0, 0.0, 50.0), limits=(Limit(requests=60, burst=2, retry_after=False),))
    best = bench.clairvoyant.best_calls(trace)
    assert [round(end, 3) for _, end, good in best if good] == [1.0, 1.0, 2.0, 3.0, 51.0]
    bounded = bench.clairvoyant.best_calls(trace, 2.5)
    assert [good for *_, good in bounded] == [True, True, True, False, True]


def test_the_schedule_of_answers_at_the_same_time(bench: Any):
    trace = by_hand(bench, due=(0.0, 0.5, 0.5, 0.5), limits=(Limit(concurrency=2),))
    assert [end for _, end, _ in bench.clairvoyant.best_calls(trace)] == [1.0, 1.5, 2.0, 2.5]
    assert [good for *_, good in bench.clairvoyant.best_calls(trace, 1.75)] == [True, True, True, False]


def test_a_call_has_the_tokens_that_the_schedule_counts(bench: Any):
    usage = play(bench, by_hand(bench, due=(0.0, 1.0)))["usage"]
    assert sum(usage.values()) == bench.traces.TOKENS


def test_a_clairvoyant_with_a_deadline_gives_up_what_is_too_late(bench: Any):
    trace = by_hand(bench, windows=(bench.traces.Window(10, 40, "503"),), due=(0.0, 12.0, 25.0))
    assert bench.clairvoyant.best_calls(trace, 20.0) == [(0.0, 1.0, True), (12.0, 12.0, False), (25.0, 41.0, True)]


def test_figures_of_a_trace_by_hand(bench: Any):
    trace = by_hand(bench, windows=(bench.traces.Window(10, 20, "503"),), returns=(20,), due=(0.0, 12.0, 30.0))
    played = {
        "calls": [(0, 1, True), (12, 15, False), (30, 31, True)],
        "arrivals": [0, 12, 14, 20, 20.9, 30],
        "limited": 3,
        "charged": 3,
        "usage": {"input": 1_000_000, "output": 0},
    }
    one = bench.figures.sample(trace, played)
    got = bench.figures.pooled([one, one])
    assert (got.calls, got.answered, got.possible, got.wasted, got.peak) == (6, 4, 6, 8, 2)
    assert got.regret == pytest.approx(((100 - 12) - (21 - 12)) / 3)
    assert (got.p50, got.p95) == (1, 88)
    assert got.limited == 0.5
    assert got.goodput == pytest.approx(2 / 3)
    assert got.back == pytest.approx(31 - 21)
    assert got.usd == pytest.approx(1000 * 3 * 0.25 / 2)


def _sample(bench: Any, answered: int, wasted: int, took: list[float], lost: float = 0.0, limited: int = 0) -> Any:
    return bench.figures.Sample(took=took, answered=answered, requests=answered + wasted, limited=limited, lost=lost, beyond=lost, possible=3, used=1.0, backs=[], peaks=[], usd=0.0)  # fmt: skip


def test_the_verdict_compares_with_each_peer_on_its_own_seeds(bench: Any):
    good, bad = _sample(bench, 3, 1, [1.0, 1.0, 2.0]), _sample(bench, 2, 30, [1.0, 1.0, 95.0], lost=93.0)
    ours, tenacity, router = bench.clients.OURS, bench.clients.TENACITY, bench.clients.ROUTER
    by_contender = {ours: {1: good, 2: bad}, tenacity: {1: good, 2: good}, router: {1: good}}
    lines = {line.claim: line for line in bench.verdict.kind_lines("brownout 40 %", by_contender)}
    assert [claim for claim, line in lines.items() if line.met] == ["p50"]
    assert [claim for claim, line in lines.items() if not line.met] == ["answered", "regret", "wasted"]
    assert (lines["answered"].ours, lines["answered"].bound, lines["answered"].whose) == (5, 6, tenacity)
    alone = bench.verdict.kind_lines("brownout 40 %", {ours: by_contender[ours], router: by_contender[router]})
    assert all(line.met for line in alone)


def test_the_verdict_over_all_kinds(bench: Any, capsys: pytest.CaptureFixture[str]):
    ours, tenacity = bench.clients.OURS, bench.clients.TENACITY
    well, limited = _sample(bench, 3, 1, [1.0, 1.0, 2.0], lost=3.0), _sample(bench, 2, 2, [1.0, 1.0, 9.0], limited=2)
    wasteful, queued = _sample(bench, 3, 9, [1.0, 1.0, 2.0]), _sample(bench, 3, 0, [1.0, 40.0, 80.0])
    samples = {
        "brownout 40 %": {ours: {1: well}, tenacity: {1: wasteful}},
        bench.traces.LOADED[0]: {ours: {1: limited}, tenacity: {1: wasteful}, bench.figures.BOUNDED: {1: queued}},
        next(iter(bench.traces.MIXED)): {ours: {1: limited}, tenacity: {1: wasteful}},
    }
    lines = {(line.kind, line.claim): line for line in bench.verdict.verdict(samples)}
    assert lines["brownout 40 %", "p50"].bound == pytest.approx(1.35)
    assert lines[bench.traces.LOADED[0], "p50"].bound == pytest.approx(42.3), "first come, first served"
    assert lines["all but load", "of possible"].met
    assert lines["all mixed", "of possible"].ours == 2, "the mixed kinds are counted apart"
    assert lines["all but load", "beyond s"].ours == 1.0
    assert (lines["all kinds", "wasted"].ours, lines["all kinds", "wasted"].bound) == (3, 4.5)
    assert not lines["all limits on the load", "of possible"].met
    assert lines["all limits on the load", "429s"].ours == 0.5
    assert f"missed: {bench.traces.LOADED[0]}: 429s 0.50 against 0.10" in capsys.readouterr().out


def test_in_the_first_kinds_ours_must_not_become_worse(bench: Any):
    ours, before = bench.clients.OURS, bench.verdict.BEFORE
    good, slower = _sample(bench, 3, 1, [1.0, 1.0, 2.0]), _sample(bench, 3, 0, [1.0, 5.0, 2.0], lost=4.0)
    lines = bench.verdict.earlier_lines(LIMITED, {ours: {1: slower}, before: {1: good}})
    assert [(line.claim, line.met) for line in lines] == [("answered before", True), ("regret before", False)]
    assert bench.verdict.earlier_lines("brownout 40 %", {ours: {1: slower}, before: {1: good}}) == []


def test_the_known_algorithms_pace_a_burst(bench: Any):
    trace = by_hand(bench, due=(0.0, *[1.0] * 20), limits=(Limit(requests=60, burst=2, retry_after=False, headers=False),))  # fmt: skip
    sent = {who: bench.recovery.play(who, trace, 7, VirtualClock()) for who in bench.clients.ALGORITHMS}
    for who, played in sent.items():
        assert len(played["arrivals"]) > len(played["calls"]), who
        assert played["limited"] > 0, who
    adaptive = sent["AWS adaptive"]
    assert all(good for *_, good in adaptive["calls"])
    # It learns the rate, so it is limited less often than those who only repeat.
    assert adaptive["limited"] < min(sent[who]["limited"] for who in ("SRE throttle", "gradient"))


def test_what_is_played_can_be_chosen(bench: Any):
    options = bench.driver.Options
    kinds, clients = bench.traces.KINDS, bench.clients.CLIENTS
    assert not {*options(tune=True).numbers()} & {*options().numbers()}, "nothing is tuned on what is reported"
    assert len(options().numbers()) == 10
    assert options(seeds=bench.driver.seeds("201-203")).numbers() == range(201, 204)
    assert options(seeds=bench.driver.seeds("3")).numbers() == range(101, 104)
    assert {job.kind for job in options().jobs()} == {*kinds, *bench.traces.MONTHS}
    assert {job.who for job in options().jobs()} == {*clients} - {*bench.clients.ALGORITHMS}
    assert {job.who for job in options(algorithms=True).jobs()} == {*clients}
    ours = options(only="holdfast", tune=True, seeds=2).jobs()
    assert ours == [bench.driver.Job("holdfast", kind, seed) for kind in kinds for seed in (1, 2)]
    chosen = options(only="PATIENT", kinds="out 40 %,blips").chosen()
    assert chosen == ["brownout 40 %", "blips of 3 s each half minute", "mixed: such answers, brownout 40 %"]
    assert options(kinds="mixed").chosen() == [*bench.traces.MIXED]
    assert {job.seed for job in options(only="Router").jobs()} == {*range(101, 111)}, "as all peers"
    assert {job.seed for job in options(only="PATIENT").jobs()} == {101, 102, 103}
    with pytest.raises(SystemExit, match="no contender contains holdfats"):
        options(only="holdfats").contenders()
    with pytest.raises(SystemExit, match="no kind contains nothing"):
        options(kinds="nothing like that").chosen()


def test_an_earlier_run_is_printed_again(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one = _sample(bench, 3, 1, [1.0, 1.0, 2.0])
    samples = {LIMITED: {"holdfast": {"101": one}, bench.clients.TENACITY: {"101": one, "7": one}}}
    (tmp_path / "all.json").write_bytes(msgspec.json.encode({"recovery": {"samples": samples}}))
    result = bench.driver.run(quick=False, only="none", beside=(tmp_path / "all.json",))
    assert all(line["met"] for line in result["verdict"] if line["kind"] == LIMITED)
    assert [*result["samples"]] == [LIMITED]
    assert "seeds 101 to 110" in capsys.readouterr().out
