"""Opening the file and closing it, one process at a time.

Invariant: whatever fails on the way, nothing stays open; and closing never fails, since everything committed is in the WAL.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing, nullcontext
from typing import TYPE_CHECKING

from holdfast.faults import HoldfastError
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sqlite import files
from holdfast.stores.sqlite.locks import Presence, Turns, forget_noted
from holdfast.stores.sqlite.writer import tidy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["Opened"]


class Opened:
    """A store's file while it is open: the connection that writes, and what tells other processes of us."""

    def __init__(self, path: Path, *, durability: str, busy: float) -> None:
        turn, use = path.with_name(f"{path.name}-turn"), path.with_name(f"{path.name}-use")
        if not path.exists():
            forget_noted(use)
        with ExitStack() as undo:
            files.prepare(path)
            self._turns = undo.enter_context(closing(Turns(turn, busy)))
            self._presence = undo.enter_context(closing(Presence(use)))
            with self._turns:
                FAILPOINTS.reach("opening")
                files.refuse_emptied(path, self._presence.noted())
                self.connection = undo.enter_context(closing(files.connect(path, durability="full", busy=busy)))
                FAILPOINTS.reach("connected")
                self.id = files.migrate(self.connection, path)
                FAILPOINTS.reach("migrated")
                files.begin(self.connection, durability, alone=self._presence.alone())
                files.set_durability(self.connection, durability)
                self._presence.note(self.id)
                FAILPOINTS.reach("opened")
            undo.pop_all()

    @property
    def turns(self) -> AbstractContextManager[None]:
        """What each transaction is made in: an affected SQLite must not meet another process's checkpoint."""
        return self._turns if files.is_affected(sqlite3.sqlite_version_info) else nullcontext()

    def close(self, readers: Iterable[sqlite3.Connection]) -> None:
        with ExitStack() as stack:
            stack.callback(self._turns.close)
            stack.callback(self._presence.close)
            in_turn = self._take_turn(stack)
            FAILPOINTS.reach("closing")
            stack.callback(self.connection.close)
            for reader in readers:
                reader.close()
            if in_turn:
                self._end()
                FAILPOINTS.reach("ended")
        FAILPOINTS.reach("closed")

    def _take_turn(self, stack: ExitStack) -> bool:
        try:
            stack.enter_context(self._turns)
        except HoldfastError:
            # It closes without; the last to close, or the next to open, moves the WAL.
            return False
        return True

    def _end(self) -> None:
        try:
            files.end(self.connection, alone=self._presence.alone())
            tidy(self.connection)
        except sqlite3.Error:
            # Everything committed is in the WAL; the next to open the file moves it.
            return
