"""Wakes tasks in other processes that wait for a log to grow, with LISTEN and NOTIFY.

Invariant: a notification is only a hint. It is sent after the commit and never inside it, because NOTIFY inside a transaction takes
a lock that makes all commits of the database wait for each other. If a notification is lost, the waiting task finds the change at
its next poll.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection, sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores.postgres.engine import Engine
    from holdfast.stores.wakeups import Wakeups

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_REPEAT_S = 0.1
_PAUSE_S = 0.01
"""The shortest time between two notifications. Changes in between are sent together, so many commits cost one notification."""
_LONGEST_PAUSE_S = 0.1
_SHARE = 10
"""The pause is so many times as long as sending took, at most `_LONGEST_PAUSE_S`: a busy server or machine has more urgent work."""


class Listener:
    """One connection that receives notifications while the store is open. It reconnects if it breaks."""

    def __init__(self, connect: Callable[[], Any], channel: str, wakeups: Wakeups) -> None:
        self._connect = connect
        self._channel = channel
        self._wakeups = wakeups
        self._heard = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="holdfast-postgres-listen")

    @property
    def listening(self) -> asyncio.Event:
        """Set while notifications arrive."""
        return self._heard

    async def close(self) -> None:
        await _end(self._task)

    async def _run(self) -> None:
        delay = _FIRST_DELAY_S
        while True:
            try:
                async with await self._connect() as connection:
                    await self._listen(connection)
            # The reason does not matter. Until we are connected again, waiting tasks poll.
            except (psycopg.Error, OSError):
                if self._heard.is_set():
                    delay = _FIRST_DELAY_S
            self._heard.clear()
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            delay = min(delay * 2, _LONGEST_DELAY_S)

    async def _listen(self, connection: AsyncConnection[Any]) -> None:
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._heard.set()
        # Earlier notifications are lost, so all waiting tasks read the log once.
        self._wakeups.wake_all()
        async for notification in connection.notifies():
            self._wakeups.wake((notification.payload,))


class Notifier:
    """Notifies other processes which sessions changed. Changes during one notification are sent with the next."""

    def __init__(self, engine: Engine, channel: str) -> None:
        self._engine = engine
        self._channel = channel
        self._changed: set[str] = set()
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="holdfast-postgres-notify")

    def notify(self, session: str) -> None:
        """Notify others of a session, soon."""
        self._changed.add(session)
        self._news.set()

    async def close(self) -> None:
        await _end(self._task)
        # Notify of commits since the last round. Otherwise their readers would wait until their next poll.
        if self._changed:
            await self._send()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            began = time.monotonic()
            await self._send()
            took = time.monotonic() - began
            await asyncio.sleep(min(max(_PAUSE_S, took * _SHARE), _LONGEST_PAUSE_S))

    async def _send(self) -> None:
        changed, self._changed = list(self._changed), set()
        # An error here must not end the task. Readers find the change at their next poll.
        with suppress(psycopg.Error):
            async with self._engine.connection() as connection:
                await connection.execute(
                    "SELECT pg_notify(%s, session) FROM unnest(%s::text[]) AS session", (self._channel, changed)
                )


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended. In Python 3.11 `asyncio.wait_for`, which psycopg uses, may lose one cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_REPEAT_S)
