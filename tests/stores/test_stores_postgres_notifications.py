"""Closing what listens and tells, also where a cancellation is lost on the way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psycopg

from holdfast.stores.postgres.notifications import Listener, Notifier
from holdfast.stores.wakeups import Wakeups


class Losing:
    """Waits for ever, and takes the first cancellation for a failure of the server's."""

    def __init__(self):
        self.lost = 0

    async def wait(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not self.lost:
                self.lost += 1
                raise psycopg.OperationalError("lost") from None
            raise


def test_a_listener_ends_although_a_cancellation_was_lost():
    async def scene():
        losing = Losing()
        listener = Listener(losing.wait, "channel", Wakeups())
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await listener.close()
        assert losing.lost == 1

    asyncio.run(scene())


def test_a_notifier_ends_although_a_cancellation_was_lost():
    class Engine:
        def __init__(self):
            self.losing = Losing()

        @asynccontextmanager
        async def connection(self):
            await self.losing.wait()
            yield

    async def scene():
        engine = Engine()
        notifier = Notifier(engine, "channel")
        notifier.notify("s")
        await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            await notifier.close()
        assert engine.losing.lost == 1

    asyncio.run(scene())
