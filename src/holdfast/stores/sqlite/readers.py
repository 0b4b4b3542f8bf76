"""Connections that only read: `Reader` of a file that this process has open, `IdleReader` of one that nobody may have open.

Invariant: what one `read` returns comes from one snapshot of the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from holdfast.stores.sqlite import files

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


class Reader:
    """A connection for a thread that reads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` reads; all its statements see one snapshot."""
        connection = self._connection
        connection.execute("BEGIN")
        try:
            return work(connection)
        finally:
            # Some errors end the transaction. Then a ROLLBACK would raise and hide the error.
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


class IdleReader(Reader):
    """A connection that leaves nothing beside a file that nobody has open.

    SQLite then reads without locks and keeps what it has read. So we look whether another process has written, before and after, and
    read anew if one has.
    """

    def __init__(self, path: Path, busy: float) -> None:
        self._path, self._busy = path, busy
        self._seen = files.state(path)
        super().__init__(files.connect_to_read(path, busy, idle=self._seen.idle))

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` reads; all its statements see one snapshot. `work` runs again if the file was changed meanwhile."""
        while True:
            if self._is_outdated():
                self.close()
                self._seen = files.state(self._path)
                self._connection = files.connect_to_read(self._path, self._busy, idle=self._seen.idle)
            try:
                result = super().read(work)
            except Exception:
                # A file that is being changed looks damaged to those who read it without locks.
                if not self._is_outdated():
                    raise
            else:
                if not self._is_outdated():
                    return result

    def _is_outdated(self) -> bool:
        # A connection with locks follows the file by itself.
        return self._seen.idle and files.state(self._path) != self._seen
