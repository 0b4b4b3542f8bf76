"""`HighWater`: the last commit of a store, noted beside its file. A file that does not hold it was set back.

SQLite cannot notice that a file is older than it was: a backup was restored, or its WAL was deleted. So the session that the last
transaction wrote, the end of its log and its hash are kept in the file that shows who has the store open.

Invariant: a commit is noted after it is on disk, and never a removed session. So the file is never ahead of the store, except
where a power cut took commits of a store with fast durability, which are lost too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    import sqlite3

    from holdfast.stores.sqlite.locks import Presence

_AT = 256
"""Where the note stands in the file: after the store's id."""
_NOTE, _SUM = Struct("128sq32s"), Struct("I")
"""A session's name, the end of its log and the hash there; then a checksum of these."""
_EMPTY = bytes(_NOTE.size + _SUM.size)
_FIND = (
    "SELECT s.top, CASE WHEN s.top = ?1 THEN s.head ELSE e.hash END FROM session s"
    " LEFT JOIN entry e ON e.session = s.key AND e.pos = ?1 WHERE s.name = ?2"
)


class HighWater:
    """The note in the file that shows who has the store open. Where the system has no such file, nothing is noticed."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence

    def note(self, session: str, top: int, head: bytes) -> None:
        """Note the session of the last commit, the end of its log and its hash. It is not synced: an older note is true, too."""
        text = _NOTE.pack(session.encode(), top, head)
        self._write(text + _SUM.pack(crc32(text)))

    def clear(self) -> None:
        """Note nothing, because a session is about to be removed, or what was noted is known to be lost."""
        self._write(_EMPTY)

    def lost(self, connection: sqlite3.Connection) -> str:
        """Return the session that the store does not hold as it was noted, or an empty text."""
        session, top, head = self._noted()
        if not session:
            return ""
        rows = connection.execute(_FIND, (top, session)).fetchall()
        if not rows:
            return session
        ((reached, found),) = rows
        # A row that somebody has damaged by hand is reported when the session is read.
        if not isinstance(reached, int) or not isinstance(found, bytes | None):
            return ""
        # An entry that was dropped, or that an old version wrote, has no hash.
        return session if reached < top or (top and found not in (None, head)) else ""

    def _noted(self) -> tuple[str, int, bytes]:
        file = self._presence.file
        noted = b"" if file is None else os.pread(file, len(_EMPTY), _AT)
        if len(noted) < len(_EMPTY) or _SUM.pack(crc32(noted[: _NOTE.size])) != noted[_NOTE.size :]:
            return "", 0, b""
        session, top, head = _NOTE.unpack_from(noted)
        return session.rstrip(b"\0").decode(), top, head

    def _write(self, note: bytes) -> None:
        file = self._presence.file
        if file is not None:
            # The commit is on disk, and a disk that takes no note must not fail it.
            with suppress(OSError):
                os.pwrite(file, note, _AT)
