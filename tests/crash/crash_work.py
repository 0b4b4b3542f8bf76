"""The work that is killed: writers that use every way of writing to a store, each noting what it attempts and how the store answered.

A note is one `write` to a file of the process's own. It survives the SIGKILL of the process, as far as it was written.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from holdfast.faults import HoldfastError
from holdfast.stores import (
    Claim,
    Commit,
    NewAudit,
    NewCheckpoint,
    NewEntry,
    NewSession,
    Receipt,
    SessionState,
    SqliteStore,
)

SHARED = ("shared-0", "shared-1")
WAYS = ("create", "append", "claim", "checkpoint", "state", "lease", "compact", "remove", "audit")
NOT_THERE_YET = "SESS_ILLEGAL_TRANSITION"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process does, and where it dies."""

    store: str
    journal: str
    name: str
    seed: int
    way: str = "append"
    """The way of writing that is used most."""
    writers: int = 3
    ops: int = 12
    """Of each writer."""
    durability: str = "full"
    point: str | None = None
    nth: int = 1
    """The process is killed when it reaches the point for this time."""
    after: float | None = None
    """Or after so many seconds."""


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a journal."""

    answer: str
    """try, ack or no."""
    op: str
    way: str
    session: str = ""
    entries: int = 0
    first: int = 0
    top: int = 0
    value: int = 0
    """A lease's fence; the first offset after a compaction."""
    code: str = ""


class Journal:
    """A file of notes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, answer: str, op: str, way: str, **facts: Any) -> None:
        os.write(self._file, msgspec.json.encode(Note(answer=answer, op=op, way=way, **facts)) + b"\n")


def read_journal(path: Path) -> list[Note]:
    if not path.exists():
        return []
    # The last note may have been cut by the kill. It is no note then: nobody can have acted on it.
    *whole, _ = path.read_bytes().split(b"\n")
    return [msgspec.json.decode(line, type=Note) for line in whole]


def entries_of(op: str, count: int) -> tuple[NewEntry, ...]:
    return tuple(
        NewEntry(type="did", id=f"{op}.{k}", body=msgspec.json.encode({"op": op, "k": k, "of": count}))
        for k in range(count)
    )


def record(op: str, **facts: Any) -> NewAudit:
    return NewAudit(kind="ToolInvocation", correlation=op, payload=msgspec.json.encode({"op": op, **facts}))


def snapshot_of(op: str, count: int) -> NewCheckpoint:
    body = msgspec.json.encode({"op": op, "count": count})
    return NewCheckpoint(message_count=count, last_message_id=op, snapshot=body)


def claim_of(op: str, client: str) -> Claim:
    return Claim(client=client, id=op, body_hash=sha256(op.encode()).digest(), result=msgspec.json.encode({"op": op}))


class Worker:
    """One of the concurrent writers of a process."""

    def __init__(self, store: SqliteStore, journal: Journal, plan: Plan, number: int) -> None:
        self._store = store
        self._journal = journal
        self._plan = plan
        self._name = f"{plan.name}.{number}"
        self._chance = random.Random(f"{plan.seed}/{self._name}")
        self._claimed: list[tuple[str, str, Receipt]] = []
        self._made: list[str] = []

    async def work(self) -> None:
        for n in range(self._plan.ops):
            way = self._plan.way if self._chance.random() < 0.6 else self._chance.choice(WAYS)
            await getattr(self, f"_{way}")(f"{self._name}.{n}", self._chance.choice(SHARED))

    async def _noted(self, op: str, way: str, do: Callable[[], Awaitable[dict[str, int]]], **facts: Any) -> bool:
        self._journal.note("try", op, way, **facts)
        try:
            got = await do()
        except HoldfastError as error:
            self._journal.note("no", op, way, code=error.fault.code, **facts)
            return False
        self._journal.note("ack", op, way, **facts, **got)
        return True

    async def _commit(self, op: str, way: str, session: str, count: int = 1, **parts: Any) -> bool:
        async def do() -> dict[str, int]:
            entries = entries_of(op, count)
            receipt = await self._store.commit(Commit(session=session, entries=entries, audit=(record(op),), **parts))
            if parts.get("claim") is not None:
                self._claimed.append((op, session, receipt))
            return {"first": receipt.first, "top": receipt.top}

        return await self._noted(op, way, do, session=session, entries=count)

    async def _create(self, op: str, session: str) -> None:
        made = f"own-{op}"
        parts = {"create": NewSession(manifest=b"{}"), "checkpoint": snapshot_of(op, 2)}
        if await self._commit(op, "create", made, 2, **parts):
            self._made.append(made)

    async def _append(self, op: str, session: str) -> None:
        await self._commit(op, "append", session, self._chance.randint(1, 4))

    async def _claim(self, op: str, session: str) -> None:
        if self._claimed and self._chance.random() < 0.3:
            before, where, receipt = self._chance.choice(self._claimed)
            again = await self._store.commit(
                Commit(session=where, claim=claim_of(before, self._name), entries=entries_of(before, 1))
            )
            assert again.duplicate, again
            assert (again.first, again.top) == (receipt.first, receipt.top)
            return
        await self._commit(op, "claim", session, 1, claim=claim_of(op, self._name))

    async def _checkpoint(self, op: str, session: str) -> None:
        count = self._chance.randint(1, 1000)
        await self._commit(op, "checkpoint", session, 1, checkpoint=snapshot_of(op, count))

    async def _state(self, op: str, session: str) -> None:
        was = (await self._store.session(session)).state
        to = SessionState.PAUSED if was is SessionState.ACTIVE else SessionState.ACTIVE

        async def do() -> dict[str, int]:
            audit = (record(op, state=to.value),)
            commit = Commit(session=session, expect=(was,), state=to, entries=entries_of(op, 1), audit=audit)
            receipt = await self._store.commit(commit)
            return {"first": receipt.first, "top": receipt.top}

        await self._noted(op, "state", do, session=session, entries=1)

    async def _lease(self, op: str, session: str) -> None:
        async def do() -> dict[str, int]:
            lease = await self._store.acquire(session, self._name, 0.05)
            fenced = Commit(session=session, fence=lease.fence, entries=entries_of(op, 1), audit=(record(op),))
            receipt = await self._store.commit(fenced)
            await self._store.release(await self._store.renew(lease, 0.05))
            return {"value": lease.fence, "first": receipt.first, "top": receipt.top}

        await self._noted(op, "lease", do, session=session, entries=1)

    async def _compact(self, op: str, session: str) -> None:
        if not await self._commit(op, "checkpoint", session, 1, checkpoint=snapshot_of(op, 7)):
            return
        before = max(1, (await self._store.session(session)).top - 5)

        async def do() -> dict[str, int]:
            await self._store.compact(session, before)
            await self._store.forget_claims(session, 0.0)
            return {"value": (await self._store.session(session)).oldest}

        await self._noted(f"{op}c", "compact", do, session=session)

    async def _remove(self, op: str, session: str) -> None:
        if not self._made:
            await self._create(op, session)
            return
        made = self._made.pop()
        closing = Commit(session=made, state=SessionState.CLOSED, audit=(record(op, state="closed"),))

        async def close() -> dict[str, int]:
            await self._store.commit(closing)
            return {}

        async def remove() -> dict[str, int]:
            await self._store.remove(made)
            return {}

        if await self._noted(op, "close", close, session=made):
            await self._noted(f"{op}r", "remove", remove, session=made)

    async def _audit(self, op: str, session: str) -> None:
        async def do() -> dict[str, int]:
            await self._store.commit(Commit(chain="program", audit=(record(op), record(op))))
            return {}

        await self._noted(op, "audit", do)


async def perform(plan: Plan) -> None:
    """Do what the plan says. The process may be killed at any moment of it."""
    journal = Journal(plan.journal)
    async with SqliteStore(plan.store, durability=plan.durability, busy=20.0) as store:
        for shared in SHARED:
            try:
                await store.commit(Commit(session=shared, create=NewSession(manifest=b"{}")))
            except HoldfastError as error:
                if error.fault.code != NOT_THERE_YET:
                    raise
        await asyncio.gather(*(Worker(store, journal, plan, n).work() for n in range(plan.writers)))
