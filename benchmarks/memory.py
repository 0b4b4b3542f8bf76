"""Memory that remains after a million calls (`--calls 10000000` for ten million), and ten thousand open streams."""

from __future__ import annotations

from typing import Any

from benchmarks.peers import Worker
from benchmarks.table import show

CALLS = 1_000_000
STREAMS = 10_000
ALLOWED_BYTES_PER_CALL = 1.0
"""Below this there is no growth: what is measured is the allocator's and the interpreter's own."""

NOTES = [
    "calls: async and sync in turn, of a hundred one that fails once and recovers and one that fails for good",
    "resident: memory of the process after the calls minus before, after a tenth as many to warm up",
    "traced: what Python's allocator handed out over the last 20,000 of 40,000 calls more; cycles: what only the collector could free",
    "streams: each gives an item at once, then one a second; bytes are of one that waits for its next item, task and source included",
    "lag: how late a sleep of 10 ms ends while all of them run, once all have begun, on a machine that others use too; open: all at once, the first item included",
]


def run(*, quick: bool, calls: int = CALLS) -> dict[str, Any]:
    worker = Worker("memory", "holdfast")
    made = max(1_000, calls // 10 if quick else calls)
    called = worker.ask("call", calls=made)
    flight = worker.ask("streams", streams=STREAMS, seconds=2 if quick else 6)
    broken = worker.broken
    worker.close()
    if broken:
        raise SystemExit(f"memory could not be measured: {broken}")
    _print(called, flight, made)
    return {"calls": made, "called": called, "streams": STREAMS, "flight": flight}


def _print(called: dict[str, float], flight: dict[str, Any], calls: int) -> None:
    grown = called["resident_kb"] * 1024 / calls
    result = "no growth" if grown < ALLOWED_BYTES_PER_CALL else f"{grown:.1f} bytes a call"
    bare, ours = flight["bare"], flight["recovered"]
    rows = [
        [f"{calls:,} calls, resident KB more", f"{called['resident_kb']:.0f}", "", result],
        ["  objects more", f"{called['objects']:.0f}", "", ""],
        ["  objects left in cycles, 10,000 calls", f"{called['cycles']:.0f}", "", ""],
        ["  traced bytes more, 20,000 calls", f"{called['traced_bytes']:.0f}", "", ""],
        [f"{STREAMS:,} streams in flight", "recovered", "bare", "difference"],
        ["  bytes each", f"{ours['bytes']:.0f}", f"{bare['bytes']:.0f}", f"{ours['bytes'] - bare['bytes']:.0f}"],
        [
            "  open one, µs",
            f"{ours['open_us']:.1f}",
            f"{bare['open_us']:.1f}",
            f"{ours['open_us'] - bare['open_us']:.1f}",
        ],
    ]
    for name in ("p50", "p99", "max"):
        key = f"lag_{name}_ms"
        rows.append([f"  loop lag {name}, ms", f"{ours[key]:.2f}", f"{bare[key]:.2f}", f"{ours[key] - bare[key]:.2f}"])
    rows.append(["  items", f"{ours['items']:.0f}", f"{bare['items']:.0f}", ""])
    show("Memory", ["", "", "", ""], rows, NOTES)
