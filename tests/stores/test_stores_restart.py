"""A restart costs what is read, not what is stored (B106). The whole size is measured by `python -m benchmarks durable`."""

from __future__ import annotations

import asyncio

from holdfast.sessions import Session
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores import Commit, NewEntry, NewSession, SqliteStore
from holdfast.stores.sqlite import files

EVENTS = 100
"""In each session."""


async def _fill(path, sessions):
    async with SqliteStore(path, durability="fast") as store:

        async def make(name):
            body = b'{"said":"message","content":"' + b"x" * 150 + b'"}'
            entries = tuple(NewEntry(type="message", body=body, id=f"{name}-{n}") for n in range(EVENTS))
            new = NewSession(manifest=encode_manifest(Manifest(session_id=name, store_id=store.id)))
            await store.commit(Commit(session=name, create=new, entries=entries))

        await asyncio.gather(*(make(f"s{n:05}") for n in range(sessions)))


class Work:
    """Counts the steps of SQLite's own machine, on every connection: a row that is looked at takes at least one."""

    def __init__(self, monkeypatch):
        self.steps = 0
        plain = files.connect

        def connect(*args, **kwargs):
            connection = plain(*args, **kwargs)
            connection.set_progress_handler(self._count, 1)
            return connection

        monkeypatch.setattr(files, "connect", connect)

    def _count(self):
        self.steps += 1
        return 0


async def _serve_first(path, name):
    async with SqliteStore(path) as store, Session.open(name, store=store) as session:
        top = (await store.session(name)).top
        tail = await store.read(name, after=top - 20)
        return session.in_flight, top, len(tail)


def test_B106_the_first_session_is_served_without_reading_the_others(tmp_path, monkeypatch):
    asyncio.run(_fill(tmp_path / "small.db", 10))
    asyncio.run(_fill(tmp_path / "large.db", 1_000))
    with monkeypatch.context() as patched:
        small = Work(patched)
        assert asyncio.run(_serve_first(tmp_path / "small.db", "s00007")) == (None, EVENTS, 20)
    with monkeypatch.context() as patched:
        large = Work(patched)
        assert asyncio.run(_serve_first(tmp_path / "large.db", "s00507")) == (None, EVENTS, 20)

    assert small.steps > EVENTS, "the steps are not counted"
    assert large.steps < 1.1 * small.steps
