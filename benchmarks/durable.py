"""The cost of losing nothing: durable events beside other libraries, restarts, idle sessions, long logs.

Everything is on the same disk and synced at each commit. The contenders take turns in rounds; the tables show the medians.
Processor time stands beside the rates, because it does not depend on the other load of the machine and its disk.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.peers import Worker
from benchmarks.table import quantile, show, verdict
from holdfast.testing.postgres import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 64
BY_ADDRESS = 300
TARGETS = {
    "sqlite": [
        (f"{MANY} writers", "10x LangGraph", ("holdfast", MANY, "langgraph", MANY), 10.0),
        (f"{MANY} writers", "0.25x of 64 rows a commit", ("holdfast", MANY, "raw batched", 1), 0.25),
        (f"{MANY} steps at once", "half of the store's commits", ("step", MANY, "holdfast", MANY), 0.5),
        ("1 writer", "0.6x of a commit per row", ("holdfast", 1, "raw", 1), 0.6),
    ],
    "postgres": [
        (f"{MANY} writers", "10x LangGraph", ("holdfast", MANY, "langgraph", MANY), 10.0),
        (f"{MANY} steps at once", "half of the store's commits", ("step", MANY, "holdfast", MANY), 0.5),
        ("1 writer", "0.7x of a commit per row", ("holdfast", 1, "psycopg", 1), 0.7),
    ],
}
"""What is compared (who, writers, with whom, writers), and what the ratio should be."""
TARGET_CORE = 0.03
TARGET_ADDRESS = 1.1
"""What sessions by address may take of what they take on an open store: as fast, as far as a shared machine can tell."""
TARGET_RESTART_S = 1.0
TARGET_IDLE_BYTES = 2_048
TARGET_GROWTH = 1.5
"""What the last appends may cost of what the first do: below it is flat, as far as a shared machine can tell."""

SQLITE = {
    "holdfast": "Holdfast, SqliteStore",
    "step": "Holdfast, a step",
    "langgraph": "LangGraph, AsyncSqliteSaver",
    "dbos": "DBOS, steps on its SQLite",
    "raw": "sqlite3, a commit per row",
    "raw batched": "sqlite3, 64 rows a commit",
    "raw spread": "sqlite3, 64 rows of 64 sessions a commit",
}
POSTGRES = {
    "holdfast": "Holdfast, PostgresStore",
    "step": "Holdfast, a step",
    "langgraph": "LangGraph, AsyncPostgresSaver",
    "psycopg": "psycopg, a commit per row",
}
ALONE = {"raw", "raw batched", "raw spread"}
"""Plain loops: they have no writers to take turns."""

NOTES = [
    "an event is 200 bytes of JSON; a writer is an asyncio task with a session of its own that waits for each of its events",
    "a step is a function without a declaration, run in an open session; its result is the event",
    "rates and ratios follow the disk and its other users; µs are processor time of the whole process per event",
    "a session's rows are beside each other, so 64 sessions are 64 pages a commit: the last row is what SQLite itself does of that",
    "of the peers, LangGraph writes a checkpoint per event (WAL, synchronous=FULL), DBOS a step (rollback journal, as it ships)",
]
PG_NOTES = [
    "one private server, fsync on; eight connections each; µs are the client's processor time per event",
]
SIZE_NOTES = [
    "restart: after a SIGKILL, in a new process, nothing of the file in the operating system's memory; a session is served when it is open and the end of its log read",
    "idle: what Python's allocator handed out per open session, its lease included, the store's own not",
    "waiting: sessions with a lease that is renewed, over the time of a lease; process time of the whole process",
    "appends: 64 writers, single events, processor µs of the whole process; first and last of eleven (of ten) measurements, the log filled in between",
]


def run(*, quick: bool) -> dict[str, Any]:
    seconds, rounds = (0.5, 2) if quick else (2.0, 7)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        sqlite = _race(SQLITE, rounds, lambda _: {"folder": folder, "seconds": seconds})
        _print("Durable events, SQLite", SQLITE, sqlite, [*NOTES, *_verdicts("sqlite", sqlite)])
    postgres, waiting = _on_postgres(rounds, seconds, 10 if quick else 1)
    _print("Durable events, PostgreSQL", POSTGRES, postgres, [*PG_NOTES, *_verdicts("postgres", postgres)])
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        size = _sizes(Path(folder), 10 if quick else 1)
    size["on_postgres"] = waiting
    _print_sizes(size)
    return {"sqlite": sqlite, "postgres": postgres, "size": size}


def _race(contenders: dict[str, str], rounds: int, place: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Let them write in turns, each time to a new place; return their rates and µs per event, by the number of writers."""
    workers = {name: Worker("durable", name) for name in contenders}
    got: dict[str, Any] = {name: {} for name in contenders}
    chance = random.Random(1)
    for turn, writers in itertools.product(range(rounds), (1, MANY)):
        # In another order each time: the disk may still be writing the data of one contender while the next one runs.
        for name in chance.sample(list(contenders), len(contenders)):
            if name in ALONE and writers > 1:
                continue
            answer = workers[name].ask("write", writers=writers, **place(f"{name}_{turn}_{writers}"))
            if answer:
                got[name].setdefault(str(writers), []).append(answer)
    for name, worker in workers.items():
        got[name]["broken"] = worker.broken
        worker.close()
    return {name: _summed(measured) for name, measured in got.items()}


def _summed(measured: dict[str, Any]) -> dict[str, Any]:
    summed: dict[str, Any] = {"broken": measured.pop("broken")}
    for writers, answers in measured.items():
        rates = [answer["events"] / answer["wall"] for answer in answers]
        cpu = [answer["cpu"] / max(1, answer["events"]) * 1e6 for answer in answers]
        summed[writers] = {"rates": rates, "rate": quantile(rates, 0.5), "cpu_us": quantile(cpu, 0.5)}
    return summed


def _on_postgres(rounds: int, seconds: float, divisor: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the events on a private server, and what many open sessions need there."""
    with PrivateServer(durable=True) as server, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:

        def database(name: str) -> dict[str, Any]:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}".encode())
            return {"folder": folder, "seconds": seconds, "url": server.url.replace("/postgres?", f"/{name}?")}

        events = _race(POSTGRES, rounds, database)
        worker = Worker("sessions", "holdfast")
        url = database("waiting")["url"]
        waiting = worker.ask("waiting", path=url, sessions=10_000 // divisor, lease=30.0 / divisor)
        by_address = _addresses(worker, lambda name: database(name)["url"])
        _finish(worker)
        return events, {"waiting": waiting, "by_address": by_address}


def _print(title: str, contenders: dict[str, str], got: dict[str, Any], notes: list[str]) -> None:
    one, many = got["holdfast"]["1"], got["holdfast"][str(MANY)]
    rows = []
    for name, called in contenders.items():
        if got[name]["broken"]:
            notes = [*notes, f"{called} could not be measured: {got[name]['broken']}"]
        alone, together = got[name].get("1"), got[name].get(str(MANY))
        rows.append([called, *_cells(alone, one), *_cells(together, many)])
    head = ["", "1 writer, events/s", "ours", "µs", f"{MANY} writers, events/s", "ours", "µs"]
    show(title, head, rows, notes)


def _cells(measured: dict[str, Any] | None, ours: dict[str, Any]) -> list[str]:
    if measured is None:
        return ["-", "-", "-"]
    return [f"{measured['rate']:,.0f}", f"{_times(ours, measured):.2f}x", f"{measured['cpu_us']:.0f}"]


def _times(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Return our rate divided by theirs, by rounds: a slow disk slows both."""
    return quantile([a / b for a, b in zip(ours["rates"], theirs["rates"], strict=False)], 0.5)


def _verdicts(engine: str, got: dict[str, Any]) -> list[str]:
    lines = []
    for what, target, (name, writers, other, others), share in TARGETS[engine]:
        ours, theirs = got[name].get(str(writers)), got[other].get(str(others))
        if ours is None or theirs is None:
            continue
        times = _times(ours, theirs)
        lines.append(f"{what}, target {target}: {'met' if times >= share else 'missed'} ({times:.2f}x)")
    return lines


def _sizes(folder: Path, divisor: int) -> dict[str, Any]:
    sessions, each, appends = 10_000 // divisor, 100, 6_400 // divisor
    wide, long = str(folder / "wide.db"), str(folder / "long.db")
    builder = Worker("sessions", "holdfast")
    flat = {
        "long": builder.ask("long", path=long, events=sessions * each, appends=appends),
        "wide": builder.ask("wide", path=wide, sessions=sessions, each=each, appends=appends),
    }
    _finish(builder, kill=True)
    restarts = []
    for turn in range(3):
        worker = Worker("sessions", "holdfast")
        restarts.append(worker.ask("restart", path=wide, session=f"s{sessions // 2 + turn:06}"))
        _finish(worker)
    worker = Worker("sessions", "holdfast")
    idle = worker.ask("idle", path=str(folder / "idle.db"), sessions=sessions)
    _finish(worker)
    worker = Worker("sessions", "holdfast")
    waiting = worker.ask("waiting", path=str(folder / "waiting.db"), sessions=sessions, lease=30.0 / divisor)
    by_address = _addresses(worker, lambda name: str(folder / f"{name}.db"))
    _finish(worker)
    return {
        "sessions": sessions,
        "events": sessions * each,
        "flat": flat,
        "restarts": restarts,
        "idle": idle,
        "waiting": waiting,
        "by_address": by_address,
    }


def _addresses(worker: Worker, place: Callable[[str], str]) -> dict[str, float]:
    """Return the seconds of 300 sessions by address and on an open store, the best of three."""
    took: dict[str, list[float]] = {"address": [], "shared": []}
    for turn, (name, seconds) in itertools.product(range(3), took.items()):
        path = place(f"{name}{turn}")
        answer = worker.ask("by_address", path=path, sessions=BY_ADDRESS, shared=name == "shared")
        if not answer:
            raise SystemExit(f"sessions by address could not be measured: {worker.broken}")
        seconds.append(answer["wall"])
    return {name: min(seconds) for name, seconds in took.items()}


def _finish(worker: Worker, *, kill: bool = False) -> None:
    if worker.broken:
        raise SystemExit(f"sessions could not be measured: {worker.broken}")
    if kill:
        worker.ask("die")
    worker.close()


def _print_sizes(size: dict[str, Any]) -> None:
    served = [restart["served"] for restart in size["restarts"]]
    idle, flat = size["idle"], size["flat"]
    first = size["restarts"][0]
    rows = [
        [
            f"restart, {size['sessions']:,} sessions, {size['events']:,} events: first served, s",
            f"{served[0]:.3f}",
            verdict(max(served), TARGET_RESTART_S, "s"),
        ],
        ["  the same again, s", ", ".join(f"{seconds:.3f}" for seconds in served[1:]), ""],
        ["  processor s", f"{first['cpu']:.3f}", ""],
        ["  file, MB", f"{first['bytes'] / 1e6:.0f}", f"{first['bytes'] / size['events']:.0f} bytes an event"],
        [f"idle session of {size['sessions']:,}, bytes, as opened", f"{idle['fresh_bytes']:.0f}", ""],
        ["  after a turn", f"{idle['used_bytes']:.0f}", verdict(idle["used_bytes"], TARGET_IDLE_BYTES, "bytes")],
        *_open_rows(size, "SQLite", size),
        *_open_rows(size, "PostgreSQL", size["on_postgres"]),
        _flat_row(f"append to one session, first and {size['events']:,}th, µs", flat["long"]),
        _flat_row(f"append to one of {size['sessions'] // 10:,}, of {size['sessions']:,} sessions, µs", flat["wide"]),
    ]
    show("Many sessions, long logs", ["", "", ""], rows, SIZE_NOTES)


def _open_rows(size: dict[str, Any], engine: str, found: dict[str, Any]) -> list[list[str]]:
    waiting, by_address = found["waiting"], found["by_address"]
    slower = by_address["address"] / by_address["shared"]
    return [
        [
            f"{size['sessions']:,} open sessions that wait, {engine}, share of a core",
            f"{waiting['core']:.2%}",
            f"{verdict(waiting['core'] * 100, TARGET_CORE * 100, '%')}, {waiting['lost']:.0f} leases lost",
        ],
        [
            f"{BY_ADDRESS} sessions with a step each, {engine}, by address and on an open store, s",
            f"{by_address['address']:.2f}, {by_address['shared']:.2f}",
            f"{slower:.2f}x, {verdict(slower, TARGET_ADDRESS, 'x')}",
        ],
    ]


def _flat_row(title: str, tenths: list[dict[str, float]]) -> list[str]:
    first, last = tenths[0]["cpu_us"], tenths[-1]["cpu_us"]
    result = f"{last / first:.2f}x, {verdict(last / first, TARGET_GROWTH, 'x')}"
    return [title, f"{first:.0f}, {last:.0f}", result]
