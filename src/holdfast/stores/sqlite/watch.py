"""`Watch`: notices what other processes write to the file, while somebody waits for news.

SQLite tells nobody. It only keeps a number for each connection that changes when another connection has written. Asking for it takes some
microseconds, and one thread asks for all tasks that wait.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.stores.records import MAX_OFFSET
from holdfast.stores.wakeups import WORK

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores.wakeups import Wakeups

_LOOK_S = 0.5
"""How often the file is looked at."""
_LOOK_FOR_WORK_S = 0.05
"""The same while a worker waits for work of other processes."""
_TOPS = "SELECT name, top FROM session WHERE name IN (SELECT value FROM json_each(?))"


class Watch:
    """Wakes the tasks of `wakeups` whose sessions another connection has written to.

    `read` calls a function with the connection whose own writes need no wake-up, or does nothing while that connection is in use.
    """

    def __init__(self, wakeups: Wakeups, read: Callable[[Callable[[sqlite3.Connection], None]], None]) -> None:
        self._wakeups = wakeups
        self._read = read
        self._version: tuple[sqlite3.Connection, int] | None = None
        self._tops: dict[str, int] = {}
        """How long the log of each session was at the last look, of those that somebody waited for."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch for as long as somebody waits. Call it after the task is among those that `wakeups` knows."""
        # Check without the lock, because nearly always the thread runs already.
        if self._thread is not None or self._stopped.is_set():
            return
        with self._lock:
            if self._thread is None:
                # The thread is a daemon: a program that forgets to close the store must still be able to end.
                self._thread = threading.Thread(target=self._run, name="holdfast-sqlite-watch", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop for good. Block until the thread has ended."""
        self._stopped.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_FOR_WORK_S if WORK in self._wakeups.waiting else _LOOK_S):
            if self._is_over():
                return
            # After an error each waiting task reads the file at the end of its wait, and reports the error.
            with suppress(sqlite3.Error, OSError):
                self._read(self._look)

    def _look(self, connection: sqlite3.Connection) -> None:
        (number,) = connection.execute("PRAGMA data_version").fetchone()
        # The number means nothing beside that of another connection, and a reader of an idle file connects anew when it changes.
        version = (connection, number)
        if version == self._version:
            return
        waiting = self._wakeups.waiting
        tops: dict[str, int] = dict(connection.execute(_TOPS, (json.dumps(waiting),)))
        # What was not looked at before may have changed, too. So may work, which has no log.
        moved = [session for session in waiting if tops.get(session) != self._tops.get(session, -1)]
        self._version, self._tops = version, tops
        self._wakeups.grew({session: tops.get(session, MAX_OFFSET) for session in moved})

    def _is_over(self) -> bool:
        with self._lock:
            # First None, then the look: a task that begins to wait after the look starts another thread.
            thread, self._thread = self._thread, None
            if not self._wakeups.waiting:
                return True
            self._thread = thread
            return False
