"""Many sessions and long logs in one store: what a restart, an idle session and the millionth event cost."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
import time
import tracemalloc
import warnings
from pathlib import Path

from benchmarks.inside.durable import BODY
from holdfast.sessions import Session
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores import Commit, NewEntry, NewSession, PostgresStore, SqliteStore

# An entry that a session reads as a message.
MESSAGE = BODY.replace(b'"type":', b'"said":')
AT_ONCE = 64
ROUNDS = 5
WARM_UP = 50


class Bench:
    def __init__(self, name: str) -> None:
        del name
        warnings.simplefilter("ignore")
        self._store = None

    def long(self, *, path: str, events: int, appends: int) -> list[dict[str, float]]:
        """Fill one session; after each tenth, and before the first, time single appends to it."""
        return asyncio.run(_long(path, events, appends))

    def wide(self, *, path: str, sessions: int, each: int, appends: int) -> list[dict[str, float]]:
        """Make sessions of `each` events, as `long` does with one. The store is left open, for `die`."""
        loop = self._loop = asyncio.new_event_loop()
        self._store = loop.run_until_complete(SqliteStore(path).__aenter__())
        return loop.run_until_complete(_wide(self._store, sessions, each, appends))

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def restart(self, *, path: str, session: str) -> dict[str, float]:
        """Return the seconds from opening the store to its first session served: opened, the end of its log read."""
        for file in (Path(path), Path(f"{path}-wal")):
            _forget(file)
        return {**asyncio.run(_restart(path, session)), "bytes": Path(path).stat().st_size}

    def waiting(self, *, path: str, sessions: int, lease: float) -> dict[str, float]:
        """Return the share of a core that open sessions need while they wait, and how many lost their lease."""
        return asyncio.run(_waiting(path, sessions, lease))

    def by_address(self, *, path: str, sessions: int, shared: bool) -> dict[str, float]:
        """Return the wall and processor seconds of so many sessions that do a step each, all at once: by address, or on an open store."""
        return asyncio.run(_by_address(path, sessions, shared=shared))

    def idle(self, *, path: str, sessions: int) -> dict[str, float]:
        """Return the bytes of a session that is open: as it was opened, and after a turn."""
        return asyncio.run(_idle(path, sessions))


async def _long(path, events, appends):
    async with SqliteStore(path) as store:
        await store.commit(Commit(session="s0", create=NewSession(manifest=b"{}")))
        ids = itertools.count()
        timed = []
        for tenth in range(11):
            if tenth:
                for _ in range(events // 10 // 1_000):
                    await store.commit(Commit(session="s0", entries=tuple(_entry(next(ids)) for _ in range(1_000))))
            timed.append(await _timed(store, ["s0"], ids, appends))
        return timed


async def _wide(store, sessions, each, appends):
    ids, names, timed = itertools.count(), [], []

    async def make(name):
        manifest = encode_manifest(Manifest(session_id=name, store_id=store.id))
        entries = tuple(_entry(next(ids)) for _ in range(each))
        await store.commit(Commit(session=name, create=NewSession(manifest=manifest), entries=entries))

    chance = random.Random(1)
    for _ in range(10):
        new = [f"s{len(names) + n:06}" for n in range(sessions // 10)]
        for some in _batched(new):
            await asyncio.gather(*map(make, some))
        names += new
        # As many of them in use at any time: what is measured is the search, not how cold the pages are.
        timed.append(await _timed(store, chance.sample(names, min(AT_ONCE, len(names))), ids, appends))
    return timed


def _batched(names):
    return [names[n : n + AT_ONCE] for n in range(0, len(names), AT_ONCE)]


async def _timed(store, sessions, ids, appends):
    """Return the µs of wall and processor time of one append, 64 writers at once, the best of several rounds."""
    turns = itertools.cycle(sessions)

    async def write(count):
        for _ in range(count):
            await store.commit(Commit(session=next(turns), entries=(_entry(next(ids)),)))

    await asyncio.gather(*(write(2) for _ in range(AT_ONCE)))
    best = {"wall_us": float("inf"), "cpu_us": float("inf")}
    each = appends // AT_ONCE // ROUNDS
    for _ in range(ROUNDS):
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(write(each) for _ in range(AT_ONCE)))
        took = {"wall_us": time.perf_counter() - began, "cpu_us": time.process_time() - cpu}
        best = {name: min(best[name], seconds / each / AT_ONCE * 1e6) for name, seconds in took.items()}
    return best


def _forget(file):
    """Have nothing of a file in the operating system's memory, as after a reboot."""
    if file.exists() and hasattr(os, "posix_fadvise"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def _restart(path, session):
    began, cpu = time.perf_counter(), time.process_time()
    async with SqliteStore(path) as store:
        opened = time.perf_counter() - began
        async with Session.open(session, store=store):
            top = (await store.session(session)).top
            tail = await store.read(session, after=max(0, top - 50))
            served, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"opened": opened, "served": served, "cpu": cpu, "tail": len(tail)}


async def _idle(path, sessions):
    async with SqliteStore(path, durability="fast") as store:
        kept = [await _opened(store, f"w{n}") for n in range(WARM_UP)]
        for session in kept:
            await _turn(session)
        tracemalloc.start()
        before = _traced(store)
        opened = [await _opened(store, f"s{n}") for n in range(sessions)]
        fresh = _traced(store)
        for session in opened:
            await _turn(session)
        used = _traced(store)
        tracemalloc.stop()
        own = 8 * sessions  # the list that holds them here
        for session in itertools.chain(kept, opened):
            await session.__aexit__(None, None, None)
    return {"fresh_bytes": (fresh - before - own) / sessions, "used_bytes": (used - before - own) / sessions}


def _store(place):
    """Return the store at a path, or at the address of a server."""
    return PostgresStore(place) if place.startswith("postgres") else SqliteStore(place, durability="fast")


async def _waiting(path, sessions, lease):
    async with _store(path) as store:
        opened = []
        for some in _batched([f"s{n}" for n in range(sessions)]):
            opened += await asyncio.gather(*(_opened(store, name, lease=lease) for name in some))
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(lease)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
        kept = {record.id async for record in _records(store) if record.owner is not None and record.lease_left}
        lost = sum(session.id not in kept or session.state == "error" for session in opened)
        # Leaving so many sessions would take longer than all of this. The file, or the server, is thrown away.
        return {"core": cpu / wall, "lost": lost}


async def _records(store):
    after = ""
    while page := await store.sessions(after=after):
        for record in page:
            yield record
        after = page[-1].id


async def _by_address(path, sessions, *, shared):
    async def work(name, store):
        async with Session.open(name, store=store) as session:
            await session.step(_answer, name)

    began, cpu = time.perf_counter(), time.process_time()
    if shared:
        async with PostgresStore(path) if path.startswith("postgres") else SqliteStore(path) as store:
            await asyncio.gather(*(work(f"s{n}", store) for n in range(sessions)))
    else:
        await asyncio.gather(*(work(f"s{n}", path) for n in range(sessions)))
    return {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}


async def _opened(store, name, **options):
    return await Session.open(name, store=store, **options).__aenter__()


async def _turn(session):
    async with session.turn({"text": "how far is it?"}):
        await session.step(_answer, "how far is it?")
    await session.message("It is done.", role="assistant")


def _answer(question):
    return f"{question} done"


def _entry(number):
    return NewEntry(type="message", body=MESSAGE, id=f"e{number}")


def _traced(store):
    # The store remembers the ends of up to 2,000 logs, however many sessions are open. That is the store's own.
    store._writer._tables.forget()  # noqa: SLF001 - no program needs this
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
