"""What an actor costs: an `ask` beside Pykka, Ray and a bare asyncio queue, a restart, memory, virtual actors.

The contenders take turns in rounds, each in a process of its own; the tables show the medians. Processor time stands beside the rates,
because it does not depend on the other load of the machine.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.peers import Worker
from benchmarks.table import show, verdict

NAMES = {
    "holdfast": "Holdfast, Ref.ask",
    "bare": "asyncio.Queue and a future",
    "pykka": "Pykka, ThreadingActor",
    "ray": "Ray, an actor process",
}
SHARE_OF_ASKS = {"pykka": 4, "ray": 40}
"""The slow ones make only a part of the asks."""
TARGET_ASK = 1.0
TARGET_RESTART_US = 200.0
NOTES = [
    "an ask: a message to one actor that adds one, and its answer; alone: one after the other, at once: a hundred at a time",
    "Holdfast's has a time limit, a bounded mailbox and a supervisor; the bare queue has none of them",
    "Ray is started and measured once; its processor time is that of the caller alone, the actor and Ray's own processes not counted",
    "restart: from the message that crashes the actor to the answer of its next instance, under a supervisor",
    "memory: what Python's allocator handed out per actor, with its task, mailbox, ref and instance",
    "virtual: SQLite with full sync, a hundred activations at a time; each takes a lease, loads the state and stores the new one",
]


def run(*, quick: bool) -> dict[str, Any]:
    workers = {name: Worker("actors", name) for name in NAMES}
    rounds = 3 if quick else 9
    asks = 5_000 if quick else 20_000
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    for turn in range(rounds):
        for name, worker in workers.items():
            if name == "ray" and turn > 0:
                continue
            found = worker.ask("ask", asks=asks // SHARE_OF_ASKS.get(name, 1))
            if found is not None:
                measured[name].append(found)
    ours = workers["holdfast"]
    restart = ours.ask("restart", restarts=500 if quick else 2_000)
    idle = ours.ask("idle", actors=10_000 if quick else 100_000)
    virtual = ours.ask("activate", actors=500 if quick else 2_000)
    broken = {name: worker.broken for name, worker in workers.items() if worker.broken}
    for worker in workers.values():
        worker.close()
    if "holdfast" in broken or "bare" in broken:
        raise SystemExit(f"actors could not be measured: {broken}")
    asked = {
        name: {key: median(one[key] for one in found) for key in found[0]} for name, found in measured.items() if found
    }
    _print(asked, restart, idle, virtual, broken)
    return {"asks": asked, "restart": restart, "idle": idle, "virtual": virtual, "broken": broken}


def _print(asked: dict[str, Any], restart: Any, idle: Any, virtual: Any, broken: dict[str, str]) -> None:
    rows = []
    bare = asked["bare"]
    for name, one in asked.items():
        rows.append(
            [
                NAMES[name],
                f"{one['alone']:,.0f}",
                f"{one['alone_us']:.1f}",
                f"{bare['alone_us'] / one['alone_us']:.2f}x",
                f"{one['at_once']:,.0f}",
                f"{one['at_once_us']:.1f}",
                f"{bare['at_once_us'] / one['at_once_us']:.2f}x",
            ]
        )
    rows += [[NAMES[name], "SKIPPED", *[""] * 5] for name in broken]
    head = ["ask", "alone, a second", "µs", "of bare", "at once, a second", "µs", "of bare"]
    skipped = [f"SKIPPED: {NAMES[name]}: {why}" for name, why in broken.items()]
    show("Actors", head, rows, [*skipped, *NOTES])
    ratio = asked["holdfast"]["alone_us"] / bare["alone_us"]
    more = [
        ["ask alone, µs of the bare queue's", f"{ratio:.2f}x", verdict(ratio, 1 / TARGET_ASK, "x")],
        ["restart, median µs", f"{restart['median_us']:.0f}", verdict(restart["median_us"], TARGET_RESTART_US, "µs")],
        ["  99 %", f"{restart['p99_us']:.0f}", ""],
        ["idle actor, bytes", f"{idle['idle_bytes']:,.0f}", ""],
        ["  after a message", f"{idle['asked_bytes']:,.0f}", ""],
        ["virtual: first messages a second", f"{virtual['first']:,.0f}", ""],
        ["  activated again", f"{virtual['again']:,.0f}", ""],
    ]
    show("Actors: restart, memory, virtual actors", ["", "", ""], more)
