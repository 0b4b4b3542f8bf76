"""Events as something to iterate over: `async for event in runtime.events()`, or `async with runtime.events() as events`.

Invariant: a reader never delays the call that reports. It hears what happens from the moment it was made; what it does not
read in time is dropped, oldest first, and counted; a reader nobody holds any more hears nothing.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

from holdfast._lazy import lazy_module

if TYPE_CHECKING:
    import asyncio
    from typing import Self

    from holdfast.events import Event
    from holdfast.runtime.bus import Bus
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["Listening"]

QUEUE_SIZE = 1000


class Listening:
    """Events of any thread, for one async reader."""

    def __init__(self, bus: Bus, kinds: tuple[type[Event], ...]) -> None:
        self._events: deque[Event] = deque(maxlen=QUEUE_SIZE)
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._over = False
        self.dropped = 0
        """Events that were not read in time."""
        this = weakref.ref(self)

        def put(event: Event) -> None:
            reader = this()
            if reader is None:
                subscription.cancel()
            else:
                reader._put(event)  # noqa: SLF001 - its own

        subscription = self._subscription = bus.subscribe(put, kinds)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        # One wake-up serves one wait: several events may come before the reader runs.
        while not self._events and not self._over:
            ready = asyncio.Event()
            self._waiting = (asyncio.get_running_loop(), ready)
            # What came in between was put before there was anybody to wake.
            if not self._events:
                await ready.wait()
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()

    async def aclose(self) -> None:
        """Hear nothing more; whoever waits for an event is let go."""
        self._over = True
        self._subscription.cancel()
        self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _put(self, event: Event) -> None:
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting[0].is_closed():
            waiting[0].call_soon_threadsafe(waiting[1].set)
