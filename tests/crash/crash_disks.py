"""Disks that fail: files whose writes are refused by the kernel, and files that were damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from holdfast.faults import HoldfastError
from holdfast.stores import Commit, NewEntry, NewSession, Receipt, SqliteStore

NOBODY = 65534


def entry(n: int, size: int = 20) -> NewEntry:
    return NewEntry(type="did", id=f"e{n}", body=msgspec.json.encode("x" * size))


async def make(store: SqliteStore, *sessions: str, entries: int = 3, size: int = 20) -> None:
    for session in sessions:
        new = tuple(entry(n, size) for n in range(entries))
        await store.commit(Commit(session=session, create=NewSession(manifest=b"{}"), entries=new))


async def append(store: SqliteStore, session: str, n: int, size: int = 20) -> Receipt:
    return await store.commit(Commit(session=session, entries=(entry(n, size),)))


@contextmanager
def wal_replaced(store: SqliteStore, by: str, flags: int) -> Iterator[None]:
    """Have the writes to a store's WAL go to another file, as its open connections see it."""
    wal = f"{store.path}-wal"
    ours = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and str(fd.readlink()) == wal]
    assert ours, "the WAL is not open"
    kept = {fd: os.dup(fd) for fd in ours}
    other = os.open(by or wal, flags)
    for fd in ours:
        os.dup2(other, fd)
    try:
        yield
    finally:
        for fd, original in kept.items():
            os.dup2(original, fd)
            os.close(original)
        os.close(other)


def hashes(folder: Path) -> dict[str, str]:
    """What each file of a folder holds. The index of a WAL, an empty WAL and our locks hold nothing."""
    passing = ("-shm", "-turn", "-use")
    return {
        file.name: sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
        if not file.name.endswith(passing) and (file.stat().st_size or not file.name.endswith("-wal"))
    }


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    answer: str
    point: str | None = None
    after: float | None = None


async def as_nobody(plan: Plan) -> None:
    """Open a store and write to it with the rights of nobody, whom the modes of files do bind; put down what came of it."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        async with SqliteStore(plan.store) as store:
            await append(store, "s", 100)
            answer = {"ok": True}
    except HoldfastError as error:
        answer = {"code": error.fault.code, "message": error.fault.message}
    with open(plan.answer, "wb") as file:  # noqa: ASYNC230, PTH123 - nothing else runs here
        file.write(msgspec.json.encode(answer))
