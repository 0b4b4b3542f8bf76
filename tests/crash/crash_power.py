"""What a power cut may leave of a SQLite file, made from a recording of what SQLite wrote and synced.

A store's own statements are replayed in a SQLite whose files are watched. Between two syncs of a file the disk may have kept any
of the writes, some by half; what was synced it has.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import apsw

DB = "store.db"
SECTORS = (512, 4096)


class Write(NamedTuple):
    file: str
    offset: int
    data: bytes


class Truncate(NamedTuple):
    file: str
    size: int


class Sync(NamedTuple):
    file: str


class Delete(NamedTuple):
    file: str


class Ack(NamedTuple):
    """So many transactions have been acknowledged."""

    count: int


Event = Write | Truncate | Sync | Delete | Ack


class Recording:
    """What happened to the files, and when the store confirmed each write."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.on = True

    def add(self, event: Event) -> None:
        if self.on:
            self.events.append(event)


class _File(apsw.VFSFile):
    def __init__(self, recording: Recording, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._name = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name)).name
        self._recording = recording
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._recording.add(Write(self._name, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._recording.add(Truncate(self._name, size))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._recording.add(Sync(self._name))


class _Vfs(apsw.VFS):
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        super().__init__(f"recording-{id(self)}", "")
        self.name = f"recording-{id(self)}"

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _File:
        return _File(self._recording, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        super().xDelete(name, sync)
        self._recording.add(Delete(Path(name).name))


def record(statements: Sequence[str], folder: Path, *, synchronous: str | None = None) -> Recording:
    """Replay a store's statements. A transaction is acknowledged after its COMMIT, as the store does it."""
    recording = Recording()
    vfs = _Vfs(recording)
    with closing(apsw.Connection(str(folder / DB), vfs=vfs.name)) as connection:
        # Alone at the file it needs no shared memory, which a watched file has not got.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        acknowledged = 0
        for statement in statements:
            if synchronous is not None and "synchronous" in statement:
                connection.execute(f"PRAGMA synchronous = {synchronous}")
                continue
            connection.execute(statement).fetchall()
            if not connection.in_transaction and not statement.startswith("PRAGMA"):
                acknowledged += 1
                recording.add(Ack(acknowledged))
        recording.on = False
    return recording


def states(statements: Sequence[str]) -> list[str]:
    """Return what the tables hold after each transaction: the only states a file may ever be found in."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        found = [digest(connection)]
        for statement in statements:
            if not statement.startswith("PRAGMA journal_mode"):
                connection.execute(statement).fetchall()
            if not connection.in_transaction and not statement.startswith("PRAGMA"):
                found.append(digest(connection))
    return found


def digest(connection: sqlite3.Connection) -> str:
    held = sha256()
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    for (table,) in tables:
        held.update(repr((table, connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall())).encode())
    return held.hexdigest()


class Image(NamedTuple):
    """Files as a power cut may leave them."""

    files: dict[str, bytes]
    acknowledged: int
    """How many transactions had been acknowledged by then."""
    at: int
    """After how many events the power went."""


def images(events: Sequence[Event], chance: random.Random, *, each: int, stride: int = 1) -> Iterator[Image]:
    """Yield, for every moment of a recording, all that was written, all that is certain, and some of what is between."""
    for at in range(1, len(events) + 1, stride):
        past = events[:at]
        acknowledged = max((event.count for event in past if isinstance(event, Ack)), default=0)
        yield Image(_after(past), acknowledged, at)
        yield Image(_after(_synced(past)), acknowledged, at)
        for _ in range(each):
            yield Image(_after(_some(past, chance)), acknowledged, at)


def _last_sync(events: Sequence[Event]) -> dict[str, int]:
    return {event.file: n for n, event in enumerate(events) if isinstance(event, Sync)}


def _synced(events: Sequence[Event]) -> list[Event]:
    """Only what is certain."""
    last = _last_sync(events)
    return [event for n, event in enumerate(events) if isinstance(event, Delete) or n < last.get(_file_of(event), -1)]


def _some(events: Sequence[Event], chance: random.Random) -> list[Event]:
    """What is certain, and any part of the rest: writes lost, torn, or there."""
    last = _last_sync(events)
    kept: list[Event] = []
    for n, event in enumerate(events):
        if n < last.get(_file_of(event), -1) or isinstance(event, Delete):
            kept.append(event)
        elif chance.random() < 0.5:
            kept.append(_torn(event, chance) if isinstance(event, Write) and chance.random() < 0.3 else event)
    return kept


def _torn(write: Write, chance: random.Random) -> Write:
    """A write of which the disk got some of the first sectors, or some of the last."""
    sector = chance.choice(SECTORS)
    edge = min(len(write.data), sector * chance.randint(1, max(1, len(write.data) // sector)))
    if chance.random() < 0.5:
        return Write(write.file, write.offset, write.data[:edge])
    return Write(write.file, write.offset + edge, write.data[edge:])


def _file_of(event: Event) -> str:
    return "" if isinstance(event, Ack) else event.file


def _after(events: Sequence[Event]) -> dict[str, bytes]:
    files: dict[str, bytearray] = {}
    for event in events:
        match event:
            case Write(file, offset, data) if data:
                held = files.setdefault(file, bytearray())
                held.extend(bytes(max(0, offset + len(data) - len(held))))
                held[offset : offset + len(data)] = data
            case Truncate(file, size):
                held = files.setdefault(file, bytearray())
                del held[size:]
                held.extend(bytes(size - len(held)))
            case Delete(file):
                files.pop(file, None)
    return {file: bytes(held) for file, held in files.items()}


def lay_out(image: Image, folder: Path) -> Path:
    """Put the files of an image into a folder, and nothing else."""
    for old in folder.iterdir():
        old.unlink()
    for name, held in image.files.items():
        (folder / name).write_bytes(held)
    path = folder / DB
    path.touch(mode=0o600)
    return path
