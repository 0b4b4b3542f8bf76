"""Wakes the tasks of one process that wait for a session's log to grow.

Invariant: a wake-up is only a hint. A task reads the log after a wake-up. If it misses the wake-up, it reads the log at its next
poll.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.stores.records import SessionRecord

__all__ = ["Wakeups"]


class Wakeups:
    """The tasks that wait, by session, in any number of event loops. `on_wait` is called when one begins to wait."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def wake(self, sessions: Iterable[str]) -> None:
        """Wake the tasks that wait for one of these sessions. It may be called from any thread."""
        # Check without the lock, because nearly always nobody waits. A task that begins to wait now reads the log itself.
        if not self._waiting:
            return
        with self._lock:
            woken = [future for session in sessions for future in self._waiting.pop(session, ())]
        for future in woken:
            # A closed loop raises. It has no tasks any more.
            with suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_set, future)

    @property
    def waiting(self) -> list[str]:
        """The sessions that somebody waits for."""
        with self._lock:
            return list(self._waiting)

    def wake_all(self) -> None:
        """Wake all tasks, because some wake-ups may have been missed."""
        self.wake(self.waiting)

    def future(self, session: str) -> asyncio.Future[None]:
        """Return a future that the session's next wake-up completes.

        Call it before reading the log. Otherwise a wake-up between reading and waiting would be lost.
        """
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.setdefault(session, set()).add(future)
        self._on_wait()
        return future

    async def beyond(
        self,
        session: str,
        after: int,
        seconds: float,
        read: Callable[[str], Awaitable[SessionRecord]],
        *,
        look: float = 3_600.0,
    ) -> bool:
        """Wait until the session's last offset is beyond `after`, for at most `seconds`; return whether it is.

        `read` returns the session's record. It is called after each wake-up, and at least every `look` seconds.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            future = self.future(session)
            try:
                if (await read(session)).top > after:
                    return True
                left = end - loop.time()
                if left <= 0:
                    return False
                await asyncio.wait((future,), timeout=min(left, look))
            finally:
                self.forget(session, future)

    def forget(self, session: str, future: asyncio.Future[None]) -> None:
        with self._lock:
            left = self._waiting.get(session)
            if left is not None:
                left.discard(future)
                if not left:
                    del self._waiting[session]


def _set(future: asyncio.Future[None]) -> None:
    # The waiting task may have been cancelled meanwhile.
    if not future.done():
        future.set_result(None)
