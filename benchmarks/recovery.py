"""How well calls recover, contender beside contender: the same calls through the same traces, in virtual time.

    python -m benchmarks recovery                              every kind, ten seeds that nothing was tuned on
    python -m benchmarks recovery --tune --only holdfast       five other seeds, our default policy alone: under a minute
    python -m benchmarks recovery --kinds brownout,bucket      the kinds whose names contain one of these
    python -m benchmarks recovery --kinds mixed                the kinds whose calls differ: long and short answers, mixed health
    python -m benchmarks recovery --seeds 201-203              seeds that nobody has seen
    python -m benchmarks recovery --json all.json              also keep every figure
    python -m benchmarks recovery --only holdfast --beside all.json    take the others from that file, and ours as it was then
    python -m benchmarks recovery --only none --beside all.json --markdown    print that file's tables, for the pages

The clairvoyant knows the trace, so nobody can be sooner or send fewer requests. The last table is the cost of a call that works.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from operator import sub
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from benchmarks.figures import BEST, BOUNDED, SOON_S, Figures, Sample, best_played, pooled, sample
from benchmarks.inside.clients import (
    ALGORITHMS,
    CLIENTS,
    DEADLINE_S,
    FURTHER,
    LIMIT_S,
    MODEL,
    OURS,
    ROUTER,
    SDK_LIMIT_S,
    VARIANTS,
)
from benchmarks.inside.overhead import BARE, MEASURED
from benchmarks.inside.traces import CALLERS, CHARGED, EVERY_S, GOOD_ANSWER_S, KINDS, MIXED, MONTHS, draw
from benchmarks.peers import Worker
from benchmarks.table import show
from benchmarks.verdict import BEFORE, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    Played = dict[str, dict[str, dict[int, Sample]]]
    """By kind, contender and seed."""

REPORTED = range(101, 111)
"""Seeds of the figures that we publish. Nothing is tuned on them."""
TUNED = range(1, 6)
FEWER = {**dict.fromkeys((*VARIANTS, *FURTHER), 3), OURS: None}
"""Contenders that play fewer seeds: our other policies are not compared with the peers, and the tuned peers send the most
requests of all."""
NOBODY = "none"
TARGET_TIMES = 50
"""How much less a recovered call must cost than one through the Router."""
_QUICK = ("rate limit of 20 s, delay named", "outage of 60 s", "brownout 40 %", "bucket of 60/min, Retry-After")

NOTES = [
    f"{CALLERS} callers, each with a call due every {EVERY_S:g} s on average, where a kind names no others; good answers take {GOOD_ANSWER_S:g} s, in the mixed kinds 0.3 s to 5 min",
    "what a request meets depends on its moment and its call alone, so all contenders meet the same trace; where a limit depends on the load, it depends on the contender's own requests",
    f"clairvoyant: knows the trace; with {DEADLINE_S:g} s it gives up a call that cannot be answered within our default deadline; under a limit on the load it is the earliest-deadline-first schedule on the bucket",
    "wasted: requests that brought no caller an answer; 429: share of the requests that got one",
    "p50, p95: seconds of all calls; an unanswered one counts until the end of the trace, when somebody must do it over; one that nobody can answer (a poison prompt, a caller that does not wait long enough) until its error",
    f"regret: seconds per call beyond the clairvoyant's; beyond: beyond that of the clairvoyant with {DEADLINE_S:g} s",
    "goodput: answers by the moment at which that one is done, as a share of its answers",
    f"back: seconds from that one's first answer after a return of the service to the contender's, the longest; peak: requests in the busiest second of the {SOON_S:g} s after a return",
    f"$: for a thousand calls that were answered, list price of {MODEL}; what ended in {' or '.join(CHARGED)} was charged",
    "holdfast: the defaults, and no fallback; rejecting: wait_for_circuit=False, as its calls behave where a fallback would answer",
    f"SDK: openai; as it comes: 2 retries, 600 s for a request; 5 retries, tenacity, stamina and Router: {LIMIT_S:g} s for a request, in the mixed kinds {SDK_LIMIT_S:g} s",
    "tenacity: wait_random_exponential(min=1, max=60), stop_after_attempt(6); stamina: its defaults (10 attempts, 45 s, delays up to 5 s), or as many attempts as fit into our deadline; Router: one deployment, its default of 2 retries",
    "time is virtual for all: event loop, time.time, time.monotonic, time.sleep; no library is changed",
]  # fmt: skip
MONTH_NOTES = [
    "three callers, a call every ten minutes; outages as often and as long as the status pages show: a failure every 5 or 6 days, repaired after 2.6 or 2.8 hours on average",
    "every other outage is partial: three to nine seconds in ten are bad",
    f"back: seconds from the first answer of a clairvoyant with {DEADLINE_S:g} s after a return to the contender's; one seed, without the Router",
]  # fmt: skip


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to play."""

    quick: bool = False
    seeds: int | range | None = None
    """How many of the usual seeds, or which others."""
    tune: bool = False
    kinds: str = ""
    only: str = ""
    algorithms: bool = False
    brief: bool = False
    beside: tuple[Path, ...] = ()

    def numbers(self) -> range:
        """Return the seeds."""
        if isinstance(self.seeds, range):
            return self.seeds
        return (TUNED if self.tune else REPORTED)[: self.seeds or (1 if self.quick else None)]

    def chosen(self) -> list[str]:
        """Return the kinds, the months among them if they are played."""
        words = _words(self.kinds)
        if words:
            chosen = [kind for kind in (*KINDS, *MONTHS) if any(word in kind for word in words)]
            return chosen or sys.exit(f"no kind contains {self.kinds}; there are: {'; '.join((*KINDS, *MONTHS))}")
        if self.quick:
            return [*_QUICK]
        return [*KINDS] if self.tune or self.only else [*KINDS, *MONTHS]

    def contenders(self) -> list[str]:
        """Return the contenders. A whole name means that one alone: `holdfast` is not all of its variants."""
        words = [] if self.only == NOBODY else _words(self.only)
        if unknown := [word for word in words if not any(word in name for name in CLIENTS)]:
            sys.exit(f"no contender contains {unknown[0]}; there are: {'; '.join(CLIENTS)}")
        if not self.only:
            return [name for name in CLIENTS if self.algorithms or name not in ALGORITHMS]
        return [name for name in CLIENTS if any(name == word or (word in name and word not in CLIENTS) for word in words)]  # fmt: skip

    def jobs(self) -> list[Job]:
        """Return who plays which kind on which seed."""
        return [
            Job(who, kind, seed)
            for who in self.contenders()
            for kind in self.chosen()
            for seed in self.numbers()[: FEWER.get(who) if kind in KINDS else 1]
            if kind in KINDS or who not in (ROUTER, *ALGORITHMS)
        ]


class Job(NamedTuple):
    who: str
    kind: str
    seed: int


def seeds(text: str) -> int | range:
    """Read the option: a number of seeds, or the first and the last one, such as `201-203`. Raises `ValueError`."""
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else int(first)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def run(*, quick: bool, **options: Any) -> dict[str, Any]:
    """Play the traces, print a table for each kind and the verdict, and return every sample."""
    wanted = Options(quick=quick, **options)
    played, broken = _play_all(wanted.jobs())
    for file in wanted.beside:
        _take_from(file, played, wanted)
    _add_best(played)
    kinds = {kind: played[kind] for kind in played if kind in KINDS}
    months = {kind: played[kind] for kind in played if kind in MONTHS}
    if kinds:
        _print_kinds(kinds, wanted, broken)
    if months:
        _print_months(months)
    lines = verdict(kinds) if kinds and all(OURS in by_contender for by_contender in kinds.values()) else []
    result = {
        "samples": msgspec.to_builtins(played, str_keys=True),
        "verdict": [line._asdict() for line in lines],
        "broken": broken,
    }
    if not (wanted.only or wanted.kinds or wanted.tune or quick):
        result["overhead_us"] = overhead(quick=quick)
    return result


def _print_kinds(kinds: Played, wanted: Options, broken: dict[str, str]) -> None:
    numbers = wanted.numbers()
    seen = f"seeds {numbers[0]} to {numbers[-1]}"
    for kind, by_contender in () if wanted.brief else kinds.items():
        _print(f"Recovery: {kind}, {seen}", {who: pooled([*mine.values()]) for who, mine in by_contender.items()})
    mixed = {kind: kinds[kind] for kind in kinds if kind in MIXED}
    others = {kind: kinds[kind] for kind in kinds if kind not in MIXED}
    everybody = {who for by_contender in kinds.values() for who in by_contender}
    few = ", ".join(f"{who}: {most}" for who, most in FEWER.items() if most and most < len(numbers) and who in everybody)  # fmt: skip
    notes = [
        *(() if wanted.brief else NOTES),
        *([f"fewer seeds, to save time: {few}"] if few else ()),
        *(f"{name} broke: {why}" for name, why in broken.items()),
    ]
    # Apart, because what the other kinds showed before there were mixed ones must stay comparable.
    if mixed:
        _print(f"Recovery: all mixed kinds, {seen}", _whole(mixed), () if others else notes)
    if others:
        _print(f"Recovery: all {'other ' if mixed else ''}kinds, {seen}", _whole(others), notes)


def _whole(kinds: Played) -> dict[str, Figures]:
    everybody = dict.fromkeys(who for by_contender in kinds.values() for who in by_contender)
    return {who: pooled([one for by in kinds.values() for one in by.get(who, {}).values()]) for who in everybody}


def _print_months(months: Played) -> None:
    for month, by_contender in months.items():
        rows = []
        for who, mine in by_contender.items():
            got, backs = pooled([*mine.values()]), [back for one in mine.values() for back in one.backs]
            cells = (f"{got.answered:,}", f"{got.calls:,}", f"{got.possible - got.answered:,}", f"{got.wasted:,}", str(len(backs)))  # fmt: skip
            rows.append([who, *cells, *([f"{median(backs):.1f}", f"{max(backs):.1f}"] if backs else ["-", "-"])])
        head = ["", "answered", "of", "fewer than possible", "wasted", "returns", "back s, median", "longest"]
        show(f"Recovery: {month}", head, rows, MONTH_NOTES)


def _play_all(jobs: list[Job]) -> tuple[Played, dict[str, str]]:
    """Play every job, on all cores, in processes of their contenders; return the samples and why contenders broke."""
    cores = os.cpu_count() or 1
    by_contender: dict[str, list[tuple[str, int]]] = {}
    for who, kind, seed in jobs:
        by_contender.setdefault(who, []).append((kind, seed))
    # Each contender's jobs are dealt out to as many processes as there are cores. The slowest contender is the last in the list.
    dealt = [(who, mine[place::cores]) for who, mine in reversed(by_contender.items()) for place in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        results = [*pool.map(lambda job: _through(*job), dealt)]
    played: Played = {}
    broken: dict[str, str] = {}
    for (who, _), (samples, why) in zip(dealt, results, strict=True):
        if why:
            broken[who] = why
        for (kind, seed), one in samples.items():
            played.setdefault(kind, {}).setdefault(who, {})[seed] = one
    return _in_order(played, [*by_contender], broken), broken


def _in_order(played: Played, contenders: Sequence[str], broken: dict[str, str]) -> Played:
    return {
        kind: {who: dict(sorted(played[kind][who].items())) for who in contenders if who not in broken}
        for kind in [*KINDS, *MONTHS]
        if kind in played
    }


def _through(who: str, mine: Sequence[tuple[str, int]]) -> tuple[dict[tuple[str, int], Sample], str]:
    worker = Worker("recovery", who)
    samples: dict[tuple[str, int], Sample] = {}
    for kind, seed in mine:
        if (played := worker.ask("play", kind=kind, seed=seed)) is not None:
            samples[kind, seed] = sample(draw(kind, seed), played)
    worker.close()
    return samples, worker.broken


def _take_from(file: Path, played: Played, wanted: Options) -> None:
    """Add contenders from the result of an earlier run, on the same kinds and seeds: those not played now, and ours as it was."""
    earlier = msgspec.convert(json.loads(file.read_text())["recovery"]["samples"], dict[str, dict[str, dict[int, Sample]]], strict=False)  # fmt: skip
    for kind in wanted.chosen():
        by_contender = played.setdefault(kind, {})
        for who, theirs in earlier.get(kind, {}).items():
            same = {seed: one for seed, one in theirs.items() if seed in wanted.numbers()}
            name = BEFORE if who == OURS and OURS in wanted.contenders() else who
            if same and name not in (*by_contender, BEST, BOUNDED):
                by_contender[name] = same
        if not by_contender:
            del played[kind]


def _add_best(played: Played) -> None:
    """Put the two clairvoyants before the others."""
    for kind, by_contender in played.items():
        drawn = {seed: draw(kind, seed) for mine in by_contender.values() for seed in mine}
        best = {seed: sample(trace, best_played(trace)) for seed, trace in drawn.items()}
        bounded = {seed: sample(trace, best_played(trace, DEADLINE_S)) for seed, trace in drawn.items()}
        played[kind] = {BEST: best, BOUNDED: bounded, **by_contender}


def _print(title: str, by_contender: dict[str, Figures], notes: Sequence[str] = ()) -> None:
    head = ["", "answered", "of", "wasted", "429", "p50 s", "p95 s", "regret s", "beyond s", "goodput", "back s", "peak/s", "$"]  # fmt: skip
    rows = [
        [
            name,
            *(f"{got.answered:,}", f"{got.calls:,}", f"{got.wasted:,}", f"{got.limited:.0%}"),
            *(f"{got.p50:.1f}", f"{got.p95:.1f}", _tenths(got.regret), _tenths(got.beyond), f"{got.goodput:.0%}"),
            "-" if got.back is None else f"{got.back:.1f}",
            "-" if got.peak is None else str(got.peak),
            "-" if not got.usd else f"{got.usd:.2f}",
        ]
        for name, got in by_contender.items()
    ]
    show(title, head, rows, notes)


def _tenths(seconds: float) -> str:
    # Not "-0.0", where a sum of floats is a hair below zero.
    return f"{round(seconds, 1) + 0.0:.1f}"


def overhead(*, quick: bool) -> dict[str, dict[str, float]]:
    """Print what a call that works costs through each; return the figures in µs."""
    rounds, calls = (10, 25) if quick else (60, 25)
    workers = {name: Worker("overhead", name) for name in MEASURED}
    taken: dict[str, list[float]] = {name: [] for name in workers if workers[name].ask("warm_up")}
    for _ in range(rounds):
        for name, mine in taken.items():
            if got := workers[name].ask("round", calls=calls):
                mine.append(got[1])
    broken = [f"{name} broke: {worker.broken}" for name, worker in workers.items() if worker.broken]
    for worker in workers.values():
        worker.close()
    figures = {name: median(mine) for name, mine in taken.items() if mine}
    # Round by round, so that other load of the machine affects all contenders alike.
    added = {name: median(map(sub, taken[name], taken[BARE])) for name in figures}
    rows = [[name, f"{figure:.0f}", f"{added[name]:.0f}"] for name, figure in figures.items()]
    notes = [
        "processor time of the loop's thread, real clock, the provider in memory; medians, of the differences round by round",
        *broken,
    ]
    if not broken:
        times = added["LiteLLM Router"] / added["holdfast"]
        verdict = "met" if times >= TARGET_TIMES else "missed"
        notes.append(f"the Router adds {times:.0f} times what holdfast adds; target {TARGET_TIMES}: {verdict}")
    show("A call that works, through the SDK", ["", "µs", "added µs"], rows, notes)
    return {"whole": figures, "added": added}
