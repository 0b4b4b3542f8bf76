"""Failures that stores tell of, each made by a store."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest import mock

from holdfast.faults import Fault, HoldfastError
from holdfast.stores import Claim, Commit, MemoryStore, NewSession, SessionState, SqliteStore, Store, open_store

CREATE = Commit(session="s1", create=NewSession(manifest=b"{}"))


def refused(use: Callable[[Store], Awaitable[object]]) -> Fault:
    """What a store with one session says to this."""

    async def scene() -> None:
        async with MemoryStore() as store:
            await store.commit(CREATE)
            await use(store)

    return fault_from(scene)


def fault_from(scene: Callable[[], Awaitable[object]]) -> Fault:
    try:
        asyncio.run(scene())
    except HoldfastError as error:
        return error.fault
    raise AssertionError("nothing was refused")


def session_is_not_there() -> Fault:
    return refused(lambda store: store.session("s9"))


def session_is_made_twice() -> Fault:
    return refused(lambda store: store.commit(CREATE))


def session_is_closed() -> Fault:
    async def use(store: Store) -> None:
        await store.commit(Commit(session="s1", state=SessionState.CLOSED))
        await store.commit(Commit(session="s1", state=SessionState.ACTIVE))

    return refused(use)


def somebody_else_owns_it() -> Fault:
    async def use(store: Store) -> None:
        await store.acquire("s1", "one", 60)
        await store.acquire("s1", "other", 60)

    return refused(use)


def log_is_read_ahead_of_its_end() -> Fault:
    return refused(lambda store: store.read("s1", after=5))


def id_is_used_for_something_else() -> Fault:
    async def use(store: Store) -> None:
        for body in (b"one", b"other"):
            await store.commit(Commit(session="s1", claim=Claim(client="c", id="m", body_hash=body)))

    return refused(use)


def store_cannot_be_opened() -> Fault:
    async def scene() -> None:
        async with SqliteStore("/dev/null/sessions.db"):
            pass

    return fault_from(scene)


def file_is_no_store() -> Fault:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "notes.txt")
        path.write_text("These are notes, and no database. " * 100)

        async def scene() -> None:
            async with SqliteStore(path):
                pass

        return fault_from(scene)


def driver_is_not_installed() -> Fault:
    async def scene() -> None:
        open_store("postgresql:///db")

    kept = {name: module for name, module in sys.modules.items() if not name.startswith("holdfast.stores.postgres")}
    with mock.patch.dict(sys.modules, {**kept, "psycopg": None}, clear=True):
        return fault_from(scene)


CASES: tuple[tuple[str, Callable[[], Fault]], ...] = (
    ("SESS_NOT_FOUND", session_is_not_there),
    ("SESS_ILLEGAL_TRANSITION", session_is_made_twice),
    ("SESS_CLOSED", session_is_closed),
    ("SESS_LEASE_LOST", somebody_else_owns_it),
    ("SESS_GAP", log_is_read_ahead_of_its_end),
    ("PROTO_DUPLICATE_ID", id_is_used_for_something_else),
    ("SESS_STORE_UNAVAILABLE", store_cannot_be_opened),
    ("SESS_MANIFEST_INVALID", file_is_no_store),
    ("SYS_DEPENDENCY_MISSING", driver_is_not_installed),
)
