"""A hundred thousand circuits: what each weighs, what finding one costs, what it costs when there are too many."""

from __future__ import annotations

from typing import Any

from benchmarks.peers import Worker
from benchmarks.table import show, verdict

MANY = 100_000
TARGET_BYTES = 1_536
SIZES = (1_000, 10_000, MANY)

NOTES = [
    "bytes: what Python's allocator handed out, over the number of circuits; its entry in the registry is included",
    "used: after six calls, two of them failed, in different parts of its window",
    "find: the circuit by its name; recover: a whole `recover(name).call(fn)` which sets a policy up each time; 500 of the names, at random",
    "evict: the one call that finds the registry full drops the tenth that was quiet longest; per circuit that it makes room for",
]


def run(*, quick: bool) -> dict[str, Any]:
    lookups = 2_000 if quick else 20_000
    worker = Worker("circuits", "holdfast")
    weight = worker.ask("weigh", circuits=MANY)
    found = {size: worker.ask("find", circuits=size, lookups=lookups) for size in SIZES}
    evicted = {size: worker.ask("evict", circuits=size) for size in SIZES}
    broken = worker.broken
    worker.close()
    if broken:
        raise SystemExit(f"circuits could not be measured: {broken}")
    _print(weight, found, evicted)
    return {"target_bytes": TARGET_BYTES, "circuits": MANY, "weight": weight, "found": found, "evicted": evicted}


def _print(weight: dict[str, float], found: dict[int, Any], evicted: dict[int, Any]) -> None:
    rows = [
        [f"{MANY:,} circuits, bytes each, idle", f"{weight['idle_bytes']:.0f}", _said(weight["idle_bytes"])],
        [f"{MANY:,} circuits, bytes each, used", f"{weight['used_bytes']:.0f}", _said(weight["used_bytes"])],
    ]
    for size, got in found.items():
        rows.append([f"find one of {size:,}, cpu µs", f"{got['find_us']:.2f}", ""])
    for size, got in found.items():
        rows.append([f"recover one of {size:,}, cpu µs", f"{got['recover_us']:.1f}", ""])
    for size, got in evicted.items():
        rows.append([f"evict, {size:,} circuits, cpu ms", f"{got['cpu_ms']:.2f}", f"{got['each_us']:.1f} µs each"])
    show("Many circuits", ["", "", ""], rows, NOTES)


def _said(value: float) -> str:
    return verdict(value, TARGET_BYTES, "bytes")
