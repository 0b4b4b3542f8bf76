"""`OutboxFile`: what a client keeps over a restart, in one SQLite file.

Invariant: a message is in the file before it is sent, and leaves it only after the server has answered or it has expired. A position is in
the file only after the application has finished with the message there. One client at a time has the file open.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

from holdfast.faults import Fault, HoldfastError
from holdfast.wire.outbox import Outgoing
from holdfast.wire.position import Position

__all__ = ["OutboxFile"]

_LOGGER = logging.getLogger("holdfast.bridge")
_VERSION = 1
_TABLES = """
CREATE TABLE client (id TEXT NOT NULL);
CREATE TABLE message (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, session TEXT NOT NULL, frame BLOB NOT NULL, expires_at REAL
);
CREATE TABLE position (session TEXT PRIMARY KEY, epoch TEXT NOT NULL, offset INTEGER NOT NULL, id TEXT NOT NULL) WITHOUT ROWID;
"""


_MOVE = "INSERT OR REPLACE INTO position VALUES (?, ?, ?, ?)"


class _Write(NamedTuple):
    sql: str
    row: tuple[Any, ...]
    done: asyncio.Future[None] | None = None
    """Who waits until it is on disk."""


class OutboxFile:
    """The file of a client: `await OutboxFile.open("outbox.db")`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client_id = ""
        self.messages: list[Outgoing] = []
        """What an earlier run of the program did not get acknowledged, in its order."""
        self.positions: dict[str, Position] = {}
        """How far the application was in each session."""
        # One thread does everything, so writes happen in the order in which they are asked for.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast outbox")
        self._connection: sqlite3.Connection | None = None
        self._writes: list[_Write] = []
        self._moved: dict[str, Position] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    async def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the file, or make it, readable for its owner only. Raises `HoldfastError` if it is damaged or in use."""
        file = cls(Path(path))
        try:
            await asyncio.get_running_loop().run_in_executor(file._thread, file._open)
        except BaseException:
            await file.close()
            raise
        return file

    async def add(self, message: Outgoing) -> None:
        """Keep a message. When this returns, it is on disk."""
        row = (message.id, message.session_id, message.frame, message.expires_at)
        done = asyncio.get_running_loop().create_future()
        self._put(_Write("INSERT INTO message (id, session, frame, expires_at) VALUES (?, ?, ?, ?)", row, done))
        await done

    def remove(self, id_: str) -> None:
        """Forget a message that the server has answered, or that has expired."""
        self._put(_Write("DELETE FROM message WHERE id = ?", (id_,)))

    def move(self, session: str, position: Position) -> None:
        """Keep how far the application is in a session. Of moves that come in quick succession the last one is written."""
        self.positions[session] = self._moved[session] = position
        self._pump()

    async def close(self) -> None:
        """Write what is left, and close the file."""
        await self._idle.wait()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    # --- in the loop ---

    def _put(self, write: _Write) -> None:
        self._writes.append(write)
        self._pump()

    def _pump(self) -> None:
        """Write everything that has come together while the last transaction was written."""
        if not self._idle.is_set() or not (self._writes or self._moved):
            return
        self._idle.clear()
        writes, self._writes = self._writes, []
        moves, self._moved = self._moved, {}
        for session, at in moves.items():
            writes.append(_Write(_MOVE, (session, at.epoch, at.offset, at.id)))
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._write, writes)
        future.add_done_callback(lambda ended: self._written(writes, ended))

    def _written(self, writes: list[_Write], ended: asyncio.Future[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        is_waited_for = False
        for write in writes:
            if write.done is not None and not write.done.done():
                is_waited_for = True
                write.done.set_result(None) if error is None else write.done.set_exception(error)
        if error is not None and not is_waited_for:
            _LOGGER.warning("The outbox could not be written: %s. After a restart, messages may come again", error)
        self._idle.set()
        self._pump()

    # --- in the thread ---

    def _open(self) -> None:
        try:
            self.path = self.path.expanduser().absolute()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Messages may be private. SQLite gives its other files the same permissions.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(self.path, timeout=0.0, isolation_level=None, check_same_thread=False)
            self._prepare(self._connection)
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Two clients with one file would have one client id, and each would end the other's connection.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            text = f"The outbox {self.path} was written by a newer version of Holdfast ({version}, this one knows {_VERSION})"
            raise HoldfastError(Fault.of("SESS_MANIFEST_INVALID", text, context={"path": str(self.path)}))
        if version == 0:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute("INSERT INTO client VALUES (?)", (str(uuid4()),))
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
        self.client_id = connection.execute("SELECT id FROM client").fetchone()[0]
        kept = connection.execute("SELECT id, session, frame, expires_at FROM message ORDER BY number")
        self.messages = [Outgoing(*row) for row in kept]
        places = connection.execute("SELECT session, epoch, offset, id FROM position")
        self.positions = {session: Position(epoch=e, offset=o, id=i) for session, e, o, i in places}

    def _write(self, writes: list[_Write]) -> None:
        assert self._connection is not None
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for write in writes:
                    self._connection.execute(write.sql, write.row)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _failure(self, error: Exception) -> HoldfastError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        context = {"path": str(self.path)}
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            text = f"The outbox {self.path} is in use by another client. Give each client a file of its own"
            return HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE", text, context=context))
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            text = f"The outbox {self.path} is damaged ({error}). It was left as it is; move it away to begin anew"
            return HoldfastError(Fault.of("SESS_MANIFEST_INVALID", text, context=context))
        text = f"The outbox {self.path} cannot be written: {error}"
        return HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE", text, context=context))
