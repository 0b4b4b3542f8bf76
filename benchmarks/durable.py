"""The cost of losing nothing: durable events beside other libraries, many open sessions, long logs, restarts.

    python -m benchmarks durable                               everything; 7 minutes on 2 quiet cores, 21 with a load of 13
    python -m benchmarks durable --kinds postgres              the parts whose names contain one of these: see `PARTS`

Everything is on the same disk and synced at each commit, unless a note says otherwise. The contenders take turns in rounds; the
tables show the medians. Processor time stands beside the rates, because it does not depend on the other load of the machine and its disk.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from benchmarks.peers import Worker
from benchmarks.table import Lines, quantile, show, verdict
from holdfast.testing.postgres import PrivatePooler, PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANY = 64
BY_ADDRESS = 300
SESSIONS = 10_000
EACH = 100
"""Events in each of those sessions, for long logs."""
IDLE = 2_000
"""Sessions whose memory is counted. More would take minutes, because counting makes each allocation slow."""
LEASE_S = 30.0
TARGETS = {
    "sqlite": [
        (f"{MANY} writers", "10x LangGraph", ("holdfast", MANY, "langgraph", MANY), 10.0),
        (f"{MANY} writers", "0.25x of 64 rows a commit", ("holdfast", MANY, "raw batched", 1), 0.25),
        (f"{MANY} writers to one session", "0.25x of 64 rows a commit", ("one session", MANY, "raw batched", 1), 0.25),
        (f"{MANY} steps at once", "5x LangGraph", ("step", MANY, "langgraph", MANY), 5.0),
        (f"{MANY} steps at once", "half of the store's commits", ("step", MANY, "holdfast", MANY), 0.5),
        ("1 writer", "0.6x of a commit per row", ("holdfast", 1, "raw", 1), 0.6),
    ],
    "postgres": [
        (f"{MANY} writers", "10x LangGraph", ("holdfast", MANY, "langgraph", MANY), 10.0),
        (f"{MANY} steps at once", "5x LangGraph", ("step", MANY, "langgraph", MANY), 5.0),
        (f"{MANY} steps at once", "half of the store's commits", ("step", MANY, "holdfast", MANY), 0.5),
        ("1 writer", "0.7x of a commit per row", ("holdfast", 1, "psycopg", 1), 0.7),
    ],
}
"""What is compared (who, writers, with whom, writers), and what the ratio should be."""
TARGET_CORE = 0.03
TARGET_ADDRESS = 1.1
"""What sessions by address may take of what they take on an open store: as fast, as far as a shared machine can tell."""
TARGET_RESTART_S = 1.0
RESTARTS = 3
TARGET_IDLE_BYTES = 2_048
TARGET_GROWTH = 1.5
"""What the last appends may cost of what the first do: below it is flat, as far as a shared machine can tell."""

SQLITE = {
    "holdfast": "Holdfast, SqliteStore",
    "one session": "Holdfast, all writers to one session",
    "step": "Holdfast, a step",
    "langgraph": "LangGraph, AsyncSqliteSaver",
    "dbos": "DBOS, steps on its SQLite",
    "raw": "sqlite3, a commit per row",
    "raw batched": "sqlite3, 64 rows a commit",
    "raw spread": "sqlite3, 64 rows of 64 sessions a commit",
}
POSTGRES = {
    "holdfast": "Holdfast, PostgresStore",
    "pooled": "Holdfast, behind PgBouncer in transaction mode",
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
OPEN_NOTES = [
    "waiting: sessions with a lease that is renewed, over the time of a lease; share of a core of the whole process; nothing is synced",
    f"{BY_ADDRESS} sessions with a step each, all at once, by address and on an open store; the sides take turns, medians",
]
SIZE_NOTES = [
    "restart: after a SIGKILL, in a new process, nothing of the file in the operating system's memory; a session is served when it is open and the end of its log read",
    "idle: what Python's allocator handed out per open session, its lease included, the store's own not",
    "appends: 64 writers, single events, processor µs of the whole process; first and last of eleven (of ten) measurements, the log filled in between",
]


class Scale(NamedTuple):
    """How much is measured."""

    seconds: float
    """How long each contender writes in each round."""
    rounds: int
    divisor: int
    """Sessions, events and leases are divided by it."""


FULL, QUICK = Scale(1.0, 5, 1), Scale(0.5, 2, 10)


def run(*, quick: bool, kinds: str = "") -> dict[str, Any]:
    """Measure the parts whose names contain one of the words in `kinds`, by default all."""
    words = [word.strip() for word in kinds.split(",") if word.strip()]
    chosen = [name for name in PARTS if not words or any(word in name for word in words)]
    if not chosen:
        sys.exit(f"no part of `durable` contains {kinds}; there are: {', '.join(PARTS)}")
    return {name: PARTS[name](QUICK if quick else FULL) for name in chosen}


def _events_on_sqlite(scale: Scale) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        got = _race("SQLite", SQLITE, scale, lambda _: {"folder": folder, "seconds": scale.seconds})
    _print("Durable events, SQLite", SQLITE, got, [*NOTES, *_verdicts("sqlite", got)])
    return got


def _events_on_postgres(scale: Scale) -> dict[str, Any]:
    with _databases(durable=True) as database, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:

        def place(name: str) -> dict[str, Any]:
            return {"folder": folder, "seconds": scale.seconds, "url": database(name)}

        got = _race("PostgreSQL", POSTGRES, scale, place)
    _print("Durable events, PostgreSQL", POSTGRES, got, [*PG_NOTES, *_verdicts("postgres", got)])
    return got


@contextmanager
def _databases(*, durable: bool) -> Iterator[Callable[[str], str]]:
    """Yield a function that makes a database on a private server, and returns its address."""
    with PrivateServer(durable=durable) as server, PrivatePooler(server) as pooler:

        def database(name: str) -> str:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}".encode())
            url = pooler.url if name.startswith("pooled") else server.url
            return url.replace("/postgres?", f"/{name}?")

        yield database
        # Its files are thrown away. Writing all of them to a busy disk first has taken longer than a server may take to stop.
        server.stop(immediate=True)


def _race(
    engine: str, contenders: dict[str, str], scale: Scale, place: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Let them write in turns, each time to a new place; return their rates and µs per event, by the number of writers."""
    workers = {name: Worker("durable", name) for name in contenders}
    got: dict[str, Any] = {name: {} for name in contenders}
    chance = random.Random(1)
    for turn, writers in itertools.product(range(scale.rounds), (1, MANY)):
        # In another order each time: the disk may still be writing the data of one contender while the next one runs.
        order = [name for name in contenders if writers == 1 or name not in ALONE]
        for name in chance.sample(order, len(order)):
            answer = workers[name].ask("write", writers=writers, **place(f"{name.replace(' ', '_')}_{turn}_{writers}"))
            if answer:
                got[name].setdefault(str(writers), []).append(answer)
        _print_round(f"{engine}, round {turn + 1} of {scale.rounds}, writers: {writers}", order, got, str(writers))
    for name, worker in workers.items():
        got[name]["broken"] = worker.broken
        worker.close()
    return {name: _summed(measured) for name, measured in got.items()}


def _print_round(title: str, order: list[str], got: dict[str, Any], writers: str) -> None:
    """Print what the last round has measured, for whoever waits for the table."""
    last = {name: got[name][writers][-1] for name in order if writers in got[name]}
    figures = [f"{name} {answer['events'] / answer['wall']:,.0f}" for name, answer in last.items()]
    print(f"{title}: {', '.join(figures)} events/s", file=sys.stderr, flush=True)


def _summed(measured: dict[str, Any]) -> dict[str, Any]:
    summed: dict[str, Any] = {"broken": measured.pop("broken")}
    for writers, answers in measured.items():
        rates = [answer["events"] / answer["wall"] for answer in answers]
        cpu = [answer["cpu"] / max(1, answer["events"]) * 1e6 for answer in answers]
        summed[writers] = {"rates": rates, "rate": quantile(rates, 0.5), "cpu_us": quantile(cpu, 0.5)}
    return summed


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


def _sessions_on_sqlite(scale: Scale) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:

        def file(name: str) -> str:
            return f"{folder}/{name}.db"

        return _open_sessions("SQLite", scale, file, file)


def _sessions_on_postgres(scale: Scale) -> dict[str, Any]:
    with _databases(durable=False) as fast, _databases(durable=True) as durable:
        return _open_sessions("PostgreSQL", scale, fast, durable)


def _open_sessions(
    engine: str, scale: Scale, fast: Callable[[str], str], durable: Callable[[str], str]
) -> dict[str, Any]:
    lines = Lines(f"Open sessions, {engine}", OPEN_NOTES)
    sessions = SESSIONS // scale.divisor
    waiting = _asked("waiting", path=fast("waiting"), sessions=sessions, lease=LEASE_S / scale.divisor)
    lines.add(
        f"{sessions:,} open sessions that wait, share of a core",
        f"{waiting['core']:.2%}",
        f"{verdict(waiting['core'] * 100, TARGET_CORE * 100, '%')}, {waiting['lost']:.0f} leases lost",
    )
    by_address = _addresses(2 * scale.rounds - 1, durable)
    slower, more_cpu = (_slower(by_address, unit) for unit in ("wall", "cpu"))
    lines.add(
        f"{BY_ADDRESS} sessions with a step each, by address and on an open store, s",
        ", ".join(f"{quantile([answer['wall'] for answer in by_address[name]], 0.5):.2f}" for name in by_address),
        f"{slower:.2f}x, {verdict(slower, TARGET_ADDRESS, 'x')}; {more_cpu:.2f}x of the processor time",
    )
    return {"waiting": waiting, "by_address": by_address}


def _addresses(rounds: int, place: Callable[[str], str]) -> dict[str, list[dict[str, float]]]:
    """Return what 300 sessions take by address and on an open store, round by round."""
    took: dict[str, list[dict[str, float]]] = {"address": [], "shared": []}
    worker = Worker("sessions", "holdfast")
    # The first round loads modules and is not counted. Who begins changes with each round.
    for turn in range(rounds + 1):
        for name in ("address", "shared") if turn % 2 else ("shared", "address"):
            answer = worker.ask(
                "by_address", path=place(f"{name}{turn}"), sessions=BY_ADDRESS if turn else 10, shared=name == "shared"
            )
            _check(worker)
            if turn:
                took[name].append(answer)
    worker.close()
    return took


def _slower(took: dict[str, list[dict[str, float]]], unit: str) -> float:
    """Return what sessions by address take of what they take on an open store, by rounds: a slow disk slows both."""
    return quantile([a[unit] / b[unit] for a, b in zip(took["address"], took["shared"], strict=True)], 0.5)


def _long_logs(scale: Scale) -> dict[str, Any]:
    sessions, appends = SESSIONS // scale.divisor, 6_400 // scale.divisor
    events = sessions * EACH
    lines = Lines("Long logs and restarts, SQLite", SIZE_NOTES)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        idle = _asked("idle", path=f"{folder}/idle.db", sessions=IDLE // scale.divisor)
        lines.add(
            f"an idle session of {IDLE // scale.divisor:,}, bytes, as opened and after a turn",
            f"{idle['fresh_bytes']:.0f}, {idle['used_bytes']:.0f}",
            verdict(idle["used_bytes"], TARGET_IDLE_BYTES, "bytes"),
        )
        long = _asked("long", path=f"{folder}/long.db", events=events, appends=appends)
        lines.add(f"append to one session, first and {events:,}th, µs", *_flat(long))
        wide_file = f"{folder}/wide.db"
        wide = _asked("wide", kill=True, path=wide_file, sessions=sessions, each=EACH, appends=appends)
        lines.add(f"append to one of {sessions // 10:,} and of {sessions:,} sessions, µs", *_flat(wide))
        restarts = [
            _asked("restart", path=wide_file, session=f"s{sessions // 2 + turn:06}") for turn in range(RESTARTS)
        ]
        _add_restarts(lines, restarts, f"{sessions:,} sessions, {events:,} events")
    return {"idle": idle, "long": long, "wide": wide, "restarts": restarts}


def _add_restarts(lines: Lines, restarts: list[dict[str, float]], of: str) -> None:
    served = [restart["served"] for restart in restarts]
    lines.add(
        f"restart, {of}: first session served, s",
        ", ".join(f"{seconds:.3f}" for seconds in served),
        verdict(max(served), TARGET_RESTART_S, "s"),
    )
    lines.add(
        "  processor s of the first, and the file in MB", f"{restarts[0]['cpu']:.3f}, {restarts[0]['bytes'] / 1e6:.0f}"
    )


def _flat(measured: list[dict[str, float]]) -> tuple[str, str]:
    first, last = measured[0]["cpu_us"], measured[-1]["cpu_us"]
    return f"{first:.0f}, {last:.0f}", f"{last / first:.2f}x, {verdict(last / first, TARGET_GROWTH, 'x')}"


def _asked(do: str, *, kill: bool = False, **arguments: Any) -> Any:
    """Return the answer of a process of its own, which is ended then, or killed."""
    worker = Worker("sessions", "holdfast")
    answer = worker.ask(do, **arguments)
    _check(worker)
    if kill:
        worker.ask("die")
    worker.close()
    return answer


def _check(worker: Worker) -> None:
    if worker.broken:
        raise SystemExit(f"sessions could not be measured: {worker.broken}")


PARTS: dict[str, Callable[[Scale], dict[str, Any]]] = {
    "sqlite-events": _events_on_sqlite,
    "postgres-events": _events_on_postgres,
    "sqlite-sessions": _sessions_on_sqlite,
    "postgres-sessions": _sessions_on_postgres,
    "sqlite-logs": _long_logs,
}
"""What is measured, by the names that `--kinds` finds."""
