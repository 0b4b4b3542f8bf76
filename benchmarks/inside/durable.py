"""Events written so that they survive: Holdfast's stores beside others, one contender a process.

An event is about 200 bytes of JSON. A contender is an async context manager that gives `append(writer, number)`.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import tempfile
import time
import warnings
from contextlib import asynccontextmanager, closing
from pathlib import Path

TEXT = "The deploy of service 42 went through; three of its checks are still red. " * 2
BODY = b'{"type":"message","role":"assistant","content":"' + TEXT.encode() + b'"}'
BATCH = 64

_TABLE = """CREATE TABLE event (session INTEGER, pos INTEGER, id TEXT, at REAL, type TEXT, body BLOB,
    PRIMARY KEY (session, pos)) WITHOUT ROWID"""
_INSERT = "INSERT INTO event VALUES (?, ?, ?, ?, 'message', ?)"


@asynccontextmanager
async def holdfast(folder, url, writers):
    from holdfast.stores import Commit, NewEntry, NewSession, PostgresStore, SqliteStore

    warnings.simplefilter("ignore")
    async with PostgresStore(url) if url else SqliteStore(folder / "holdfast.db") as store:
        for n in range(writers):
            await store.commit(Commit(session=f"s{n}", create=NewSession(manifest=b"{}")))

        async def append(writer, number):
            entry = NewEntry(type="message", body=BODY, id=f"{writer}-{number}")
            await store.commit(Commit(session=f"s{writer}", entries=(entry,)))

        yield append


@asynccontextmanager
async def one_session(folder, url, writers):
    """As `holdfast`, but all writers append to the same session: what 64 rows of one session a commit are compared with."""
    del writers
    async with holdfast(folder, url, 1) as append:

        async def append_to_it(writer, number):
            await append(0, f"{writer}-{number}")

        yield append_to_it


@asynccontextmanager
async def step(folder, url, writers):
    """An event is the result of a step that declares nothing: an open session runs it and stores what it returns."""
    from holdfast.sessions import Session
    from holdfast.stores import PostgresStore, SqliteStore

    warnings.simplefilter("ignore")
    async with PostgresStore(url) if url else SqliteStore(folder / "step.db") as store:
        opened = await asyncio.gather(*(Session.open(f"s{n}", store=store).__aenter__() for n in range(writers)))

        async def append(writer, number):
            await opened[writer].step(_speak, number)

        yield append
        await asyncio.gather(*(session.__aexit__(None, None, None) for session in opened))


def _speak(number):
    del number
    return TEXT


@asynccontextmanager
async def langgraph(folder, url, writers):
    del writers
    from langgraph.checkpoint.base import empty_checkpoint

    async with _postgres_saver(url) if url else _sqlite_saver(folder) as saver:
        await saver.setup()

        async def append(writer, number):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"message": TEXT}
            checkpoint["channel_versions"] = versions = {"message": number + 1}
            config = {"configurable": {"thread_id": f"s{writer}", "checkpoint_ns": ""}}
            await saver.aput(config, checkpoint, {"source": "loop", "step": number}, versions)

        yield append


def _sqlite_saver(folder):
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    return AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db"))


@asynccontextmanager
async def _postgres_saver(url):
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    # As many connections as ours, with the settings its documentation asks for.
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=8, max_size=8, kwargs=settings) as pool:
        yield AsyncPostgresSaver(pool)


@asynccontextmanager
async def dbos(folder, url, writers):
    del url
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )

    @DBOS.step()
    async def speak(writer, number):
        del writer, number
        return TEXT

    @DBOS.workflow()
    async def talk(writer):
        while True:
            number = await turns[writer].get()
            if number is None:
                return
            await speak(writer, number)
            finished[writer].put_nowait(number)

    turns = [asyncio.Queue() for _ in range(writers)]
    finished = [asyncio.Queue() for _ in range(writers)]

    async def append(writer, number):
        turns[writer].put_nowait(number)
        await finished[writer].get()

    DBOS.launch()
    running = [asyncio.create_task(talk(writer)) for writer in range(writers)]
    try:
        yield append
    finally:
        for turn in turns:
            turn.put_nowait(None)
        await asyncio.gather(*running, return_exceptions=True)
        DBOS.destroy()


@asynccontextmanager
async def psycopg(folder, url, writers):
    """One row, one transaction, on as many connections as ours."""
    del folder, writers
    from psycopg_pool import AsyncConnectionPool

    async with AsyncConnectionPool(url, min_size=8, max_size=8, kwargs={"autocommit": True}) as pool:
        async with pool.connection() as connection:
            await connection.execute(
                "CREATE TABLE event (session int, pos int, id text, at float, type text, body bytea,"
                " PRIMARY KEY (session, pos))"
            )

        async def append(writer, number):
            async with pool.connection() as connection:
                await connection.execute(
                    "INSERT INTO event VALUES (%s, %s, %s, %s, 'message', %s)",
                    (writer, number, f"{writer}-{number}", time.time(), BODY),
                )

        yield append


CONTENDERS = {
    "holdfast": holdfast,
    "pooled": holdfast,
    "one session": one_session,
    "step": step,
    "langgraph": langgraph,
    "dbos": dbos,
    "psycopg": psycopg,
}
RAW = {"raw": (1, 1), "raw batched": (BATCH, 1), "raw spread": (BATCH, BATCH)}
"""How many rows a transaction has, and to how many sessions they belong."""


class Bench:
    def __init__(self, name: str) -> None:
        self._name = name

    def write(self, *, folder: str, writers: int, seconds: float, url: str = "") -> dict[str, float]:
        """Write for so many seconds; return events, wall and processor seconds."""
        with tempfile.TemporaryDirectory(dir=folder) as own:
            if self._name in RAW:
                return _raw(Path(own), *RAW[self._name], seconds)
            return asyncio.run(self._write(Path(own), url, writers, seconds))

    async def _write(self, folder, url, writers, seconds):
        async with CONTENDERS[self._name](folder, url, writers) as append:

            async def work(writer, numbers, end):
                while time.perf_counter() < end:
                    await append(writer, next(numbers))

            numbers = [itertools.count() for _ in range(writers)]
            # A tenth to warm up: files grow, statements are prepared.
            end = time.perf_counter() + seconds / 10
            await asyncio.gather(*(work(n, numbers[n], end) for n in range(writers)))
            before = sum(map(_reached, numbers))
            began, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(work(n, numbers[n], began + seconds) for n in range(writers)))
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
            return {"events": sum(map(_reached, numbers)) - before, "wall": wall, "cpu": cpu}


def _reached(numbers):
    return numbers.__reduce__()[1][0]


def _raw(folder, batch, sessions, seconds):
    with closing(sqlite3.connect(folder / "raw.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(_TABLE)
        _rows(connection, 0, batch, sessions, seconds / 10)
        began, cpu = time.perf_counter(), time.process_time()
        events = _rows(connection, sessions, batch, sessions, seconds)
        return {"events": events, "wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def _rows(connection, first, batch, sessions, seconds):
    written, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(batch):
            session, pos = first + written % sessions, written // sessions
            connection.execute(_INSERT, (session, pos, f"{session}-{pos}", time.time(), BODY))
            written += 1
        connection.execute("COMMIT")
    return written
