"""Waking those who wait for a session's log to grow, within one process.

Invariant: a wake-up is a hint. Whoever is woken reads the log; whoever is not finds out at its own time limit.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

__all__ = ["Wakeups"]


class Wakeups:
    """Who waits for which session, from any number of event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def wake(self, sessions: Iterable[str]) -> None:
        """Wake everybody who waits for one of these. From any thread."""
        if not self._waiting:
            return
        with self._lock:
            woken = [future for session in sessions for future in self._waiting.pop(session, ())]
        for future in woken:
            # A loop that is closed has nobody waiting any more.
            with suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_set, future)

    def wake_all(self) -> None:
        """Wake everybody: some wake-ups may have been missed."""
        with self._lock:
            sessions = list(self._waiting)
        self.wake(sessions)

    def future(self, session: str) -> asyncio.Future[None]:
        """Return what will be done at the session's next wake-up. To be had before the log is looked at."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.setdefault(session, set()).add(future)
        return future

    async def beyond(
        self, session: str, after: int, seconds: float, top: Callable[[], Awaitable[int]], *, look: float = 3_600.0
    ) -> bool:
        """Wait until the session's last offset, which `top` reads, is beyond `after`; look every `look` seconds at least."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            future = self.future(session)
            try:
                if await top() > after:
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
    if not future.done():
        future.set_result(None)
