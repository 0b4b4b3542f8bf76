"""Wakes the tasks of one process that wait for a session's log to grow.

Invariant: a wake-up is only a hint. A task reads the log after a wake-up. If it misses the wake-up, it reads the log at its next
poll.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.stores.records import MAX_OFFSET
from holdfast.stores.store import has_own

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from holdfast.stores.records import SessionRecord
    from holdfast.stores.store import Store

WORK = "holdfast-work"
"""What workers wait for, in place of a session: work that may be claimed."""


class Wakeups:
    """The tasks that wait, by session, in any number of event loops. `on_wait` is called when one begins to wait."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._followers: dict[str, set[_Standing]] = {}

    def wake(self, sessions: Iterable[str]) -> None:
        """Wake the tasks that wait for one of these sessions. It may be called from any thread."""
        self.grew(dict.fromkeys(sessions, MAX_OFFSET))

    def grew(self, tops: Mapping[str, int]) -> None:
        """The logs of these sessions have reached these offsets. It may be called from any thread."""
        # Check without the lock, because nearly always nobody waits. A task that begins to wait now reads the log itself.
        if not self._waiting and not self._followers:
            return
        with self._lock:
            woken = [future for session in tops for future in self._waiting.pop(session, ())]
            following = [(each, top) for session, top in tops.items() for each in self._followers.get(session, ())]
        # A closed loop raises. It has no tasks any more.
        for future in woken:
            with suppress(RuntimeError):  # its loop is closed, so nobody waits
                future.get_loop().call_soon_threadsafe(_set, future)
        for follower, top in following:
            with suppress(RuntimeError):  # its loop is closed, so nobody waits
                follower.loop.call_soon_threadsafe(follower.note, top)

    @property
    def waiting(self) -> list[str]:
        """The sessions that somebody waits for, or follows."""
        with self._lock:
            return list(self._waiting | self._followers)

    def wake_all(self) -> None:
        """Wake all tasks, because some wake-ups may have been missed."""
        self.wake(self.waiting)

    def follow(self, session: str) -> Follower:
        """Return what waits for the log of a session again and again. Read the log after this: from now on nothing is missed."""
        follower = _Standing(self._leave, session)
        with self._lock:
            self._followers.setdefault(session, set()).add(follower)
        self._on_wait()
        return follower

    def _leave(self, follower: _Standing) -> None:
        with self._lock:
            left = self._followers.get(follower.session, set())
            left.discard(follower)
            if not left:
                self._followers.pop(follower.session, None)

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


class Follower(Protocol):
    """Waits for the log of one session. `close` it at the end."""

    async def beyond(self, after: int, seconds: float) -> int:
        """Wait for at most `seconds`; return an offset after `after` that the log may have reached, or 0. Read the log to be sure."""
        ...

    def close(self) -> None: ...


def follow(store: Store, session: str) -> Follower:
    """Return what waits for the log of a session. Some stores can be followed without being asked after each commit."""
    own: Any = store
    follower: Follower = own.follow(session) if has_own(store, "changed", "follow") else _Asking(store, session)
    return follower


class _Standing:
    """A follower that stays known to `Wakeups` between two waits, so that no commit between them is missed."""

    def __init__(self, leave: Callable[[_Standing], None], session: str) -> None:
        self.session, self.loop = session, asyncio.get_running_loop()
        self._leave = leave
        self._reached = 0
        """The highest offset since the last wait."""
        self._news = asyncio.Event()

    def note(self, top: int) -> None:
        """The log has reached an offset."""
        self._reached = max(self._reached, top)
        self._news.set()

    async def beyond(self, after: int, seconds: float) -> int:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    reached, self._reached = self._reached, 0
                    if reached > after:
                        return reached
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return 0

    def close(self) -> None:
        self._leave(self)


class _Asking:
    """A follower of a store that has to be asked each time."""

    def __init__(self, store: Store, session: str) -> None:
        self._store, self._session = store, session

    async def beyond(self, after: int, seconds: float) -> int:
        return after + 1 if await self._store.changed(self._session, after, seconds) else 0

    def close(self) -> None:
        pass


def _set(future: asyncio.Future[None]) -> None:
    # The waiting task may have been cancelled meanwhile.
    if not future.done():
        future.set_result(None)
