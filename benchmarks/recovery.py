"""How well calls recover, contender beside contender: the same calls through the same traces, in virtual time.

The clairvoyant knows the trace, so nobody can be sooner or send fewer requests. The last table is the cost of a call that works.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from operator import sub
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.inside.clients import BEST, CLIENTS, LIMIT_S, MODEL
from benchmarks.inside.overhead import BARE, MEASURED
from benchmarks.inside.recovery import CALLERS, EVERY_S
from benchmarks.inside.traces import CHARGED, GOOD_ANSWER_S, Trace, traces
from benchmarks.peers import Worker
from benchmarks.table import quantile, show
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

SEED = 7
TARGET_TIMES = 50
"""How much less a recovered call must cost than one through the Router."""
_SOON_S = 30.0
_LONG = ("outage of 10 min", "one hour of all of these")

NOTES = [
    f"{CALLERS} callers, each with a call due every {EVERY_S:g} s on average, whatever became of those before; good answers take {GOOD_ANSWER_S:g} s",
    "what a request meets depends on its moment alone, so all contenders meet the same trace; requests are counted by the provider",
    "wasted: requests that brought no caller an answer; p50, p95: seconds to success of the calls that succeeded",
    f"back: seconds from the service's return to the first success, the longest; peak: requests in the busiest second of the {_SOON_S:g} s after a return",
    f"$: for a thousand calls that succeeded, list price of {MODEL}; what ended in {' or '.join(CHARGED)} was charged",
    "regret: seconds per call beyond the clairvoyant's; a call that failed is counted until the end of the trace, when somebody must do it over",
    "holdfast: the defaults, and no fallback; rejecting: wait_for_circuit=False, as its calls behave where a fallback would answer",
    f"SDK: openai; as it comes: 2 retries, 600 s for a request; 5 retries, tenacity and Router: {LIMIT_S:g} s for a request",
    "tenacity: wait_random_exponential(min=1, max=60), stop_after_attempt(6), the SDK's retries off; Router: one deployment, its default of 2 retries",
    "time is virtual for all: event loop, time.time, time.monotonic, time.sleep; no library is changed",
]


class Figures(NamedTuple):
    calls: int
    succeeded: int
    wasted: int
    p50: float
    p95: float
    back: float | None
    peak: int | None
    usd: float
    """For a thousand calls that succeeded."""
    regret: float


def run(*, quick: bool) -> dict[str, Any]:
    chosen = {name: trace for name, trace in traces(SEED).items() if not (quick and name in _LONG)}
    # The slowest first; in virtual time they do not disturb each other.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        results = dict(zip(CLIENTS, reversed([*pool.map(_through, reversed(CLIENTS), [chosen] * len(CLIENTS))]), strict=True))  # fmt: skip
    broken = {name: why for name, (_, why) in results.items() if why}
    played = {name: by_trace for name, (by_trace, why) in results.items() if not why}
    table = {
        name: {who: figures(trace, mine[name], played[BEST][name]) for who, mine in played.items()}
        for name, trace in chosen.items()
    }
    for name, by_contender in table.items():
        _print(f"Recovery: {name}", by_contender)
    whole = {who: total([by_contender[who] for by_contender in table.values()]) for who in played}
    _print("Recovery: all traces", whole, [*NOTES, *(f"{name} broke: {why}" for name, why in broken.items())])
    documents = {name: {who: got._asdict() for who, got in by.items()} for name, by in {**table, "all": whole}.items()}
    return {"traces": documents, "overhead_us": _overhead(quick=quick), "broken": broken}


def _through(name: str, chosen: dict[str, Trace]) -> tuple[dict[str, Any], str]:
    worker = Worker("recovery", name)
    played = {trace: worker.ask("play", trace=trace, seed=SEED) for trace in chosen}
    worker.close()
    return played, worker.broken


def figures(trace: Trace, played: dict[str, Any], best: dict[str, Any]) -> Figures:
    calls, arrivals = played["calls"], played["arrivals"]
    took = [end - due for due, end, good in calls if good]
    lost = sum(_lost(trace, call) for call in calls) - sum(_lost(trace, call) for call in best["calls"])
    usd = LIST_PRICES.cost(MODEL, Usage(**played["usage"]))
    assert usd is not None
    return Figures(
        calls=len(calls),
        succeeded=len(took),
        wasted=len(arrivals) - len(took),
        p50=quantile(took, 0.5),
        p95=quantile(took, 0.95),
        back=max((_back(calls, moment) for moment in trace.returns), default=None),
        peak=max((_peak(arrivals, moment) for moment in trace.returns), default=None),
        usd=1000 * usd * played["charged"] / len(took),
        regret=lost / len(calls),
    )


def total(parts: Sequence[Figures]) -> Figures:
    """Return the sums of counts, the medians of times, and the worst values after a return."""
    calls, succeeded = (sum(getattr(part, field) for part in parts) for field in ("calls", "succeeded"))
    return Figures(
        calls=calls,
        succeeded=succeeded,
        wasted=sum(part.wasted for part in parts),
        p50=median(part.p50 for part in parts),
        p95=median(part.p95 for part in parts),
        back=max((part.back for part in parts if part.back is not None), default=None),
        peak=max((part.peak for part in parts if part.peak is not None), default=None),
        usd=sum(part.usd * part.succeeded for part in parts) / succeeded,
        regret=mean(part.regret for part in parts),
    )


def _lost(trace: Trace, call: tuple[float, float, bool]) -> float:
    due, end, good = call
    return (end if good else max(end, trace.seconds)) - due


def _back(calls: Sequence[tuple[float, float, bool]], moment: float) -> float:
    """Return the seconds from the return of the service to the first answer to a later request."""
    return min((end - moment for _, end, good in calls if good and end >= moment + GOOD_ANSWER_S), default=float("inf"))


def _peak(arrivals: Sequence[float], moment: float) -> int:
    soon = [at for at in arrivals if moment <= at < moment + _SOON_S]
    return max((bisect_left(soon, at + 1.0) - place for place, at in enumerate(soon)), default=0)


def _print(title: str, by_contender: dict[str, Figures], notes: Sequence[str] = ()) -> None:
    head = ["", "succeeded", "of", "wasted", "p50 s", "p95 s", "back s", "peak/s", "$", "regret s"]
    rows = [
        [
            name,
            *(f"{got.succeeded:,}", f"{got.calls:,}", f"{got.wasted:,}", f"{got.p50:.1f}", f"{got.p95:.1f}"),
            "-" if got.back is None else f"{got.back:.1f}",
            "-" if got.peak is None else str(got.peak),
            f"{got.usd:.2f}",
            f"{got.regret:.1f}",
        ]
        for name, got in by_contender.items()
    ]
    show(title, head, rows, notes)


def _overhead(*, quick: bool) -> dict[str, dict[str, float]]:
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
