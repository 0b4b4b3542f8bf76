"""What recovery costs around a call, for each stack: when it works, when it fails, when an open circuit rejects it."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.inside.recover import CASES
from benchmarks.peers import Worker
from benchmarks.table import ratio, show, verdict

OURS = "holdfast"

MOST = {
    ("async, it works the second time", "tenacity + asyncio.timeout + aiobreaker"): 0.5,
    ("async, given up after 3 attempts", "tenacity + asyncio.timeout + aiobreaker"): 0.8,
    ("async, rejected by an open circuit", "pyresilience"): 1.0,
    ("sync, it works the second time", "tenacity + pybreaker"): 0.5,
    ("sync, given up after 3 attempts", "tenacity + pybreaker"): 0.8,
    ("sync, rejected by an open circuit", "pyresilience"): 1.0,
}
"""What holdfast may cost in a case, as a multiple of this stack."""

TARGETS_US = {
    ("async, it works", OURS): 4.0,
    ("async, it works, OpenTelemetry on", "holdfast, not sampled"): 15.0,
    ("sync, it works", OURS): 2.0,
    ("sync, rejected by an open circuit", "holdfast, the circuit alone"): 1.5,
}

LACKS = {
    "tenacity + asyncio.timeout + aiobreaker": "no deadline over all attempts, no classification, hooks instead of events",
    "tenacity + pybreaker": "no classification, hooks instead of events",
    "tenacity": "no circuit, no limit on a call, no classification",
    "stamina": "no circuit, no limit on a call (its timeout is looked at between attempts), no classification",
    "backoff": "no circuit, no limit on a call, no classification",
    "pyresilience": "one limit, on a call or on all of them; retries by exception type, no classification",
    "nopanic": "retries by exception type, no classification; its listeners hear of failures only",
    "redress": "classifies by type, status and name; its circuit counts operations, not attempts",
    "hyx": "async only; no deadline, no classification, no events; a limit made outside a running loop raises",
    "pybreaker": "a circuit alone, failures in a row only",
    "aiobreaker": "a circuit alone, failures in a row only",
    "circuitbreaker": "a circuit alone, failures in a row only, no lock",
    "asyncio.timeout": "a limit alone",
    "bare": "the call alone",
    "two bare spans": "what the SDK takes for two spans, the least that a span per operation and per attempt can cost",
    "holdfast, observing": "the plain call, and an event that says what would have been done about it",
    "holdfast, the circuit alone": "asking an open circuit, without the error that tells the caller who, why and until when",
}

NOTES = [
    "medians over the rounds; stacks take turns within every round, each in a process of its own",
    "cpu: time of the thread, which other work on the machine disturbs less than the wall clock; ratio and targets are of it",
    "ratio: over holdfast in the same case and round, the median of the rounds; above 1x it is slower than holdfast",
    "every stack: three attempts, no waiting between them; a limit of 60 s per call in the async cases, where it has one",
    "holdfast: `recover('claude')` with its defaults: retries, limit, deadline, circuit (failures in a row or by share), ambient scope",
    "not equal: a failure costs holdfast its classification, the record of the attempt, and a note on what surfaces",
    "every failure here is the same plain exception, which holdfast classifies once; errors of HTTP clients are classified each time",
]


def run(*, quick: bool) -> dict[str, Any]:
    rounds, seconds = (3, 0.01) if quick else (15, 0.03)
    names = dict.fromkeys(name for case in CASES.values() for name in case.stacks)
    workers = {name: Worker("recover", name) for name in names}
    calls = {name: worker.ask("warm_up", seconds=seconds) or {} for name, worker in workers.items()}
    taken: dict[str, dict[str, list[tuple[float, float]]]] = {case: {} for case in CASES}
    for _ in range(rounds):
        for case, by_name in taken.items():
            for name in CASES[case].stacks:
                if case in calls[name] and (got := workers[name].ask("round", case=case, calls=calls[name][case])):
                    by_name.setdefault(name, []).append(tuple(got))
    broken = {name: worker.broken for name, worker in workers.items() if worker.broken}
    for worker in workers.values():
        worker.close()
    figures = {case: _figures(by_name) for case, by_name in taken.items()}
    _print(figures, broken, rounds)
    targets = {f"{case}: {name}": target for (case, name), target in TARGETS_US.items()}
    most = {f"{case}: {name}": share for (case, name), share in MOST.items()}
    return {"targets_us": targets, "most": most, "rounds": rounds, "cases": figures, "lacks": LACKS, "broken": broken}


def _figures(by_name: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, float]]:
    ours = [cpu for _, cpu in next(iter(by_name.values()), [])]
    return {
        name: {
            "wall_us": median(wall for wall, _ in rounds),
            "cpu_us": median(cpu for _, cpu in rounds),
            "least_us": min(cpu for _, cpu in rounds),
            "ratio": median(cpu / mine for (_, cpu), mine in zip(rounds, ours, strict=False)),
        }
        for name, rounds in by_name.items()
    }


def _print(figures: dict[str, Any], broken: dict[str, str], rounds: int) -> None:
    rows = []
    for case, by_name in figures.items():
        rows.append([case, "", "", "", "", ""])
        for name, got in by_name.items():
            target = TARGETS_US.get((case, name))
            result = "" if target is None else verdict(got["cpu_us"], target, "µs")
            if (most := MOST.get((case, name))) is not None:
                result = verdict(1 / got["ratio"], most, "of it")
            columns = [f"{got[key]:.2f}" for key in ("cpu_us", "least_us", "wall_us")]
            rows.append([f"  {name}", *columns, ratio(got["ratio"], 1.0), result])
    notes = [
        *NOTES,
        *(f"{name}: {lacks}" for name, lacks in LACKS.items()),
        f"{rounds} rounds",
        *(f"{name} could not be measured: {why}" for name, why in broken.items()),
    ]
    show("Recovering a call", ["", "cpu µs", "least", "wall µs", "ratio", ""], rows, notes)
