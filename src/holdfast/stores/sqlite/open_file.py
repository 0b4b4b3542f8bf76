"""`OpenFile`: the store's file while it is open. One process at a time opens or closes it. `ReadFile`: the same, only to read.

Invariant: if opening fails, nothing stays open. Closing never raises, because everything committed is in the WAL.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.faults import HoldfastError
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sql.schema import VERSION
from holdfast.stores.sqlite import files
from holdfast.stores.sqlite.locks import NoTurns, Presence, TurnLock, forget_store
from holdfast.stores.sqlite.readers import IdleReader, Reader
from holdfast.stores.sqlite.writer import tidy

if TYPE_CHECKING:
    from collections.abc import Iterable


class OpenFile:
    """The connection that writes, and the locks that show other processes we are here."""

    def __init__(self, path: Path, *, durability: str, busy: float) -> None:
        self._path, self._busy = path, busy
        turn, use = path.with_name(f"{path.name}-turn"), path.with_name(f"{path.name}-use")
        if not path.exists():
            # The database was deleted, so the id in the lock file belongs to the old database.
            forget_store(use)
        with ExitStack() as undo:
            files.prepare(path)
            _refuse_foreign(path, turn)
            self._turns = undo.enter_context(closing(TurnLock(turn, busy)))
            self._presence = undo.enter_context(closing(Presence(use)))
            # Opening needs the turn lock too: another process must not check, migrate or note at the same time.
            with self._turns:
                FAILPOINTS.reach("opening")
                files.check_not_emptied(path, self._presence.noted())
                files.check_ours(path)
                self.connection = undo.enter_context(closing(files.connect(path, durability="full", busy=busy)))
                FAILPOINTS.reach("connected")
                self.id = files.migrate(self.connection, path)
                FAILPOINTS.reach("migrated")
                # Write the note with full durability, because it must survive a power cut.
                files.begin(self.connection, durability, alone=self._presence.alone())
                files.set_durability(self.connection, durability)
                self._presence.note(self.id)
                self.high_water = self._presence.high_water
                self.epoch = self._find_epoch()
                self.identity = files.FileIdentity(path)
                FAILPOINTS.reach("opened")
            undo.pop_all()

    def _find_epoch(self) -> str:
        """Return the store's epoch: a new one if the file was set back since its last commit."""
        session = self.high_water.lost(self.connection)
        if session:
            files.begin_epoch(self.connection, self._path, session)
            # Only now: if this process dies before, the next one notices it again.
            self.high_water.clear()
        return files.epoch(self.connection)

    def connect_reader(self) -> Reader:
        """Open a connection for a thread that reads."""
        connection = files.connect(self._path, durability="full", busy=self._busy)
        connection.execute("PRAGMA query_only = ON")
        return Reader(connection)

    @property
    def turns(self) -> TurnLock | NoTurns:
        """The lock around each transaction. If SQLite has the WAL-reset bug, two processes must not write and checkpoint at once."""
        return self._turns if files.is_affected(sqlite3.sqlite_version_info) else NoTurns()

    def close(self, readers: Iterable[Reader]) -> None:
        """Close all connections; the last process also moves the WAL into the file."""
        with ExitStack() as stack:
            stack.callback(self._turns.close)
            stack.callback(self._presence.close)
            in_turn = self._take_turn(stack)
            FAILPOINTS.reach("closing")
            stack.callback(self.connection.close)
            # Close readers before the WAL is moved, because an open reader would block that.
            for reader in readers:
                reader.close()
            if in_turn:
                self._end()
                # Before the turn ends: who takes the next one is the last, if nobody else is there.
                self._presence.close()
                FAILPOINTS.reach("ended")
        FAILPOINTS.reach("closed")

    def _take_turn(self, stack: ExitStack) -> bool:
        try:
            stack.enter_context(self._turns)
        except HoldfastError:
            # Close without the turn lock. The last process that closes, or the next that opens, moves the WAL.
            return False
        return True

    def _end(self) -> None:
        try:
            files.end(self.connection, alone=self._presence.alone())
            tidy(self.connection)
        except sqlite3.Error:
            # Everything committed is in the WAL. The next process that opens the file moves it.
            return


def _refuse_foreign(path: Path, turn: Path) -> None:
    """Raise for a file of another program before anything is left beside it.

    We look without locks here. A store of ours that another process opens or closes at this moment can look damaged, so where there
    is a lock file, only the check in our turn counts.
    """
    try:
        files.check_ours(path)
    except (sqlite3.Error, HoldfastError):
        if not turn.exists():
            raise


class ReadFile:
    """A file that is only read. It takes no locks and changes nothing; a file of an older version is copied and the copy migrated."""

    def __init__(self, path: Path, *, busy: float) -> None:
        self._busy = busy
        # SQLite reports only that it cannot open a file that is not there.
        path.stat()
        with ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-"))
            self._path = _readable(path, Path(folder), busy)
            with closing(self.connect_reader()) as reader:
                ((self.id,),) = reader.read(
                    lambda connection: connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchall()
                )
                self.epoch = reader.read(files.epoch)
            self._folder = undo.pop_all()

    def connect_reader(self) -> Reader:
        """Open a connection for a thread that reads."""
        return IdleReader(self._path, self._busy)

    def close(self, readers: Iterable[Reader]) -> None:
        """Close all connections, and remove the copy if there is one."""
        with self._folder:
            for reader in readers:
                reader.close()


def _readable(path: Path, folder: Path, busy: float) -> Path:
    """Return the file from which a store that only reads can read: this one, or a copy in `folder` with our version of the tables."""
    copy = folder / path.name

    def look(connection: sqlite3.Connection) -> Path:
        if files.check_tables(path, connection) == VERSION:
            return path
        copy.unlink(missing_ok=True)
        files.copy_migrated(connection, copy)
        return copy

    with closing(IdleReader(path, busy)) as reader:
        return reader.read(look)
