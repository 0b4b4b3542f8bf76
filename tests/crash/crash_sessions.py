"""Sessions that are killed: a large batch whose items change a world of their own, and a session's whole life."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import msgspec

from holdfast import tool
from holdfast.faults import HoldfastError
from holdfast.runtime.tool import call_key
from holdfast.sessions import Session
from holdfast.stores import EncryptedStore, SqliteStore
from holdfast.stores.failpoints import FAILPOINTS

KEY = bytes(range(32))
BEFORE_EFFECT, AFTER_EFFECT = "before the effect", "after the effect"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    world: str
    items: int = 500
    concurrency: int = 20
    point: str | None = None
    nth: int = 1
    after: float | None = None
    encrypted: bool = False

    def opens(self) -> SqliteStore | EncryptedStore:
        return EncryptedStore(SqliteStore(self.store), KEY) if self.encrypted else SqliteStore(self.store)


class World:
    """Something outside that keeps what is done to it: under one key it does a thing once, however often it is called."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def do(self, key: str, item: int) -> int:
        """Do it. Under another key it is another deed, and for the same item that is refused."""
        self._connection.execute("INSERT INTO calls VALUES (?)", (key,))
        self._connection.execute("INSERT INTO done VALUES (?, ?) ON CONFLICT (key) DO NOTHING", (key, item))
        return item * 2

    def items(self) -> list[int]:
        return [item for (item,) in self._connection.execute("SELECT item FROM done ORDER BY item")]

    def repeated(self) -> int:
        """How many calls repeated one that was done."""
        ((again,),) = self._connection.execute("SELECT count(*) - count(DISTINCT key) FROM calls")
        return int(again)


@contextmanager
def world_at(path: str | Path) -> Iterator[World]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # Processes are killed here, not machines.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE IF NOT EXISTS calls (key TEXT)")
        connection.execute("CREATE TABLE IF NOT EXISTS done (key TEXT PRIMARY KEY, item INTEGER UNIQUE)")
        yield World(connection)


@asynccontextmanager
async def opened(name: str, store: SqliteStore | EncryptedStore) -> AsyncIterator[Session | None]:
    """Open a session, unless it was closed: then the kill came after its last write."""
    try:
        session = await Session.open(name, store=store).__aenter__()
    except HoldfastError as error:
        if error.fault.code != "SESS_CLOSED":
            raise
        yield None
        return
    async with AsyncExitStack() as stack:
        stack.push_async_exit(session)
        yield session


async def batch(plan: Plan) -> None:
    """Do a batch, or what is left of it."""
    with world_at(plan.world) as world:

        @tool(effect="keyed")
        async def change(item: int) -> int:
            FAILPOINTS.reach(BEFORE_EFFECT)
            result = world.do(call_key(), item)
            FAILPOINTS.reach(AFTER_EFFECT)
            return result

        async with plan.opens() as store, opened("batch", store) as session:
            if session is None:
                return
            outcomes = [o.unwrap() async for o in session.map(change, range(plan.items), concurrency=plan.concurrency)]
            assert outcomes == [item * 2 for item in range(plan.items)]
            await session.close("done")


async def life(plan: Plan) -> None:
    """Begin a session, or go on with it: turns, steps, messages, checkpoints, its end."""
    with world_at(plan.world) as world:

        @tool(effect="keyed")
        async def change(item: int) -> int:
            return world.do(call_key(), item)

        async with plan.opens() as store, opened("life", store) as session:
            if session is None:
                return
            while (done := session.context.get("turns", 0)) < 3:
                async with session.turn():
                    for n in range(3):
                        await session.step(change, done * 3 + n)
                    session.context["turns"] = done + 1
            await session.close("done")
