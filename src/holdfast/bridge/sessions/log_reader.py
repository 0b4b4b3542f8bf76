"""`LogReader`: how connections read logs from the store: in turns, and what one has read need not be read again.

Reading takes the event loop from everybody, a token may have 1,000 connections, and those that are behind in a session need the same messages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.wire.replay import RingMessage

__all__ = ["LogReader"]

_MOST_PAGES: Final = 64
"""Of about 64 KB each."""


class LogReader:
    """The turns of the tokens of a bridge, and the pages that were read last."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pages: OrderedDict[tuple[str, str, int], list[RingMessage]] = OrderedDict()
        """By session, epoch and first offset; the ones that were used last stand at the end. A log only grows, so a page stays right."""

    @asynccontextmanager
    async def turn(self, identity: TokenHolder | None) -> AsyncIterator[None]:
        """One request of a token reads a log at a time, and others come first for as long after it: many connections get no more than one."""
        lock = self._locks.setdefault("" if identity is None else identity.token_id, asyncio.Lock())
        await lock.acquire()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            yield
        finally:
            loop.call_later(loop.time() - begun, lock.release)

    def find(self, session: str, epoch: str, after: int) -> list[RingMessage] | None:
        """Return the messages after an offset, if they were read a moment ago."""
        for key, page in self._pages.items():
            if key[:2] == (session, epoch) and page[0].offset <= after + 1 <= page[-1].offset:
                self._pages.move_to_end(key)
                return page[after + 1 - page[0].offset :]
        return None

    def keep(self, session: str, epoch: str, page: Sequence[RingMessage]) -> None:
        """Keep a page that was read."""
        if page:
            self._pages[session, epoch, page[0].offset] = list(page)
        if len(self._pages) > _MOST_PAGES:
            self._pages.popitem(last=False)
