"""Time to classify a 1 KB HTTP failure, contender beside contender."""

from __future__ import annotations

from typing import Any

from benchmarks.inside.contenders import CONTENDERS
from benchmarks.peers import Worker
from benchmarks.table import ratio, show, verdict

TARGET_US = 25.0

NOTES = """\
median and p95 of one round, the round with the best median; contenders take turns within every round, each in a process of its own
ratio: the contender's median over holdfast's in that case; above 1x it is slower than holdfast
not equal: holdfast gets status, headers and body text, and decoding the JSON is in its time
not equal: redress gets the SDK's exception, the JSON decoded before the clock starts; it reads class, status, one code and the delay
  headers, never the message. 'redress default' and the status table read the status only
not equal: litellm gets the error its own handlers make of the answer (in the live cases the SDK's error itself); it also builds and
  raises the exception it maps to, in its time, and names no delay
""".splitlines()


def run(*, quick: bool) -> dict[str, Any]:
    rounds, seconds = (3, 0.02) if quick else (15, 0.06)
    workers = {name: Worker("classify", name) for name in CONTENDERS}
    calls = {name: worker.ask("warm_up", seconds=seconds) or {} for name, worker in workers.items()}
    best: dict[str, dict[str, dict[str, float]]] = {}
    for _ in range(rounds):
        for case in calls["holdfast"]:
            for name, worker in workers.items():
                if case in calls[name] and (got := worker.ask("round", case=case, calls=calls[name][case])):
                    kept = best.setdefault(case, {}).setdefault(name, got)
                    if got["median"] < kept["median"]:
                        best[case][name] = got
    clock = workers["status table"].ask("clock")
    broken = {name: worker.broken for name, worker in workers.items() if worker.broken}
    for worker in workers.values():
        worker.close()
    _print(best, clock, broken, rounds)
    return {"target_us": TARGET_US, "rounds": rounds, "clock_us": clock, "cases": best, "broken": broken}


def _print(best: dict[str, Any], clock: float, broken: dict[str, str], rounds: int) -> None:
    rows = []
    for case, by_name in best.items():
        rows.append([case, "", "", "", ""])
        ours = by_name["holdfast"]["median"]
        for name, got in by_name.items():
            result = verdict(got["median"], TARGET_US, "µs") if name == "holdfast" else ""
            rows.append([f"  {name}", f"{got['median']:.2f}", f"{got['p95']:.2f}", ratio(got["median"], ours), result])
    notes = [
        *NOTES,
        f"{rounds} rounds; an empty call measures {clock:.2f} µs, which is in every figure",
        *(f"{name} could not be measured: {why}" for name, why in broken.items()),
    ]
    show("Classifying an HTTP failure", ["", "median µs", "p95 µs", "ratio", ""], rows, notes)
