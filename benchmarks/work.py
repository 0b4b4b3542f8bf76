"""Submitted work beside DBOS: how soon it starts, how much of it is done, and what waiting costs.

    python -m benchmarks work

Workers and submitter are processes of their own, on one machine, with one step for each program. Latency is from before the submission to the
program's first step.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers import Worker
from benchmarks.table import quantile, show
from holdfast.testing.postgres import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENDERS = ("holdfast", "dbos")
WORKERS = (1, 2, 4)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure and print; return the figures."""
    result: dict[str, Any] = {}
    for store in ("postgres", "sqlite"):
        for name in CONTENDERS:
            result[f"{name} on {store}"] = _contender(name, store, quick=quick)
    _show(result)
    result["timers"] = {store: _timers(store, 5_000 if quick else 100_000) for store in ("postgres", "sqlite")}
    rows = [
        [store, f"{each['fill']:.0f}", f"{each['bytes']:.0f}", f"{each['idle_before']:.2f} %", f"{each['idle']:.2f} %"]
        for store, each in result["timers"].items()
    ]
    head = ["waiting timers", "seconds to submit", "bytes each", "a worker without them", "a worker beside them"]
    show(
        f"{result['timers']['sqlite']['count']:,} programs that wait for a time",
        head,
        rows,
        ["share of a core of an idle worker"],
    )
    return result


def _show(result: dict[str, Any]) -> None:
    rows = []
    for who, found in result.items():
        if found is None:
            rows.append([who, *["-"] * 7])
            continue
        rates = [f"{found['rates'].get(str(n), 0):.0f}" for n in WORKERS]
        rows.append(
            [
                who,
                f"{found['p50']:.1f}",
                f"{found['p99']:.1f}",
                *rates,
                f"{found['idle']:.2f} %",
                f"{found['drain']:.2f}",
            ]
        )
    head = [
        "workers",
        "start p50 ms",
        "p99 ms",
        *(f"{n} workers, programs/s" for n in WORKERS),
        "idle, of a core",
        "stop s",
    ]
    show(
        "Work: submit to start, programs a second, an idle worker",
        head,
        rows,
        [f"{os.cpu_count()} cores for workers, submitter and server"],
    )


@contextmanager
def _place(store: str) -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        if store == "sqlite":
            yield f"sqlite:{folder}/work.db", Path(folder)
            return
        with PrivateServer() as server:
            yield server.url, server


def _contender(name: str, store: str, *, quick: bool) -> dict[str, Any] | None:
    found: dict[str, Any] = {"rates": {}}
    count = 100 if quick else 1_000
    with _place(store) as (url, _):
        submitter = Worker("work", name)
        workers: list[Worker] = []
        try:
            for number in WORKERS:
                while len(workers) < number:
                    workers.append(Worker("work", name))
                    workers[-1].ask("start", url=url, concurrency=16)
                if number == 1:
                    times = submitter.ask("one_by_one", url=url, count=20 if quick else 200, pause=0.01)
                    if times is None:
                        print(f"{name} on {store}: {submitter.broken}")
                        return None
                    found["p50"], found["p99"] = 1000 * statistics.median(times), 1000 * quantile(times, 0.99)
                    found["idle"] = 100 * workers[0].ask("idle", seconds=3.0)
                ran = submitter.ask("many", url=url, count=count)
                if ran:
                    found["rates"][str(number)] = (len(ran) - 1) / (max(ran) - min(ran))
            found["drain"] = max(worker.ask("stop") or 0.0 for worker in workers)
        finally:
            for worker in [submitter, *workers]:
                worker.close()
    return found


def _timers(store: str, count: int) -> dict[str, Any]:
    """What waiting items cost a worker, and the disk."""
    with _place(store) as (url, place):
        submitter, worker = Worker("work", "holdfast"), Worker("work", "holdfast")
        try:
            worker.ask("start", url=url, concurrency=16)
            before = 100 * worker.ask("idle", seconds=3.0)
            took = submitter.ask("fill", url=url, count=count)
            time.sleep(1.0)
            idle = 100 * worker.ask("idle", seconds=5.0)
            worker.ask("stop")
        finally:
            submitter.close()
            worker.close()
        size = _size(url, place)
    return {"count": count, "fill": took, "bytes": size / count, "idle_before": before, "idle": idle}


def _size(url: str, place: Any) -> float:
    if url.startswith("sqlite:"):
        return float(sum(file.stat().st_size for file in place.iterdir()))
    import psycopg

    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'holdfast' AND c.relkind = 'r'"
        ).fetchone()
    return float(row[0]) if row else 0.0
