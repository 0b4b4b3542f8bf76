"""Server-sent events of a session: for `curl`, and for networks that break WebSockets.

Invariant: an event has the id `epoch:offset`, and a client that comes back with it as `Last-Event-ID` misses nothing, or gets a 409 that
says what is missing. Heartbeats are events, since many parsers hide comments.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import msgspec

from holdfast.bridge.access.lockout import address_group
from holdfast.bridge.http.request_parts import violation
from holdfast.stores import SessionState
from holdfast.wire.envelope import MAX_OFFSET, stamp
from holdfast.wire.position import Gap, Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.bridge.sessions.live_session import LiveSession
    from holdfast.bridge.sessions.log_reader import LogReader
    from holdfast.clock import Clock
    from holdfast.wire.replay import RingMessage

__all__ = ["HEARTBEAT_S", "SessionEventStream", "read_event_id"]

HEARTBEAT_S = 15.0
_RETRY_MS = 1_000
_EVENT_ID = re.compile(r"([A-Za-z0-9_-]{1,128}):(\d{1,16})")


def read_event_id(text: str) -> Position:
    """Return the position of a `Last-Event-ID`: `k3J:174`. Raises a 400 for anything else."""
    found = _EVENT_ID.fullmatch(text)
    if found is None or int(found[2]) > MAX_OFFSET:
        raise violation("Last-Event-ID", "the id of an event, such as k3J:174")
    return Position(epoch=found[1], offset=int(found[2]))


class SessionEventStream:
    """One client that reads the events of a session. `end` ends it from outside: its token was revoked, or the server stops."""

    def __init__(
        self,
        live: LiveSession,
        identity: TokenHolder,
        *,
        peer: str = "",
        after: int,
        clock: Clock,
        reading: LogReader,
        heartbeat: float = HEARTBEAT_S,
    ) -> None:
        self.identity = identity
        self.session, self.address = live.id, address_group(peer)
        self._live, self._clock, self._heartbeat = live, clock, heartbeat
        self._cursor, self._reading = after, reading
        self._epoch = live.epoch
        self._ended = asyncio.Event()

    def end(self) -> None:
        """End the stream after what is being sent."""
        self._ended.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield what is sent, as it comes."""
        yield b"retry: %d\n\n" % _RETRY_MS
        while not self._is_over():
            news = self._live.news()
            found = await self._live.read(self._cursor, reading=self._reading, identity=self.identity)
            if self._live.epoch != self._epoch:
                found = Gap(reason="reset", requested=self._cursor, oldest=1, top=self._live.top)
            if isinstance(found, Gap):
                yield _event("gap", msgspec.json.encode(found.payload()))
                return
            if found:
                self._cursor = found[-1].offset
                yield b"".join(self._shown(held) for held in found)
            elif self._live.state is SessionState.CLOSED:
                # A closed session has no more events. A client that comes back gets a 204, and stays away.
                return
            elif not await self._waited(news):
                yield _event("heartbeat", msgspec.json.encode({"server_time": stamp(self._clock.wall())}))

    def _is_over(self) -> bool:
        until = self.identity.expires_at
        return self._ended.is_set() or (until is not None and self._clock.wall() >= until)

    def _shown(self, held: RingMessage) -> bytes:
        return _event("", held.frame, f"{self._epoch}:{held.offset}")

    async def _waited(self, news: asyncio.Event) -> bool:
        """Wait for news or the end of the stream; return False if neither came until the next heartbeat."""
        waits = {asyncio.ensure_future(each.wait()) for each in (news, self._ended)}
        try:
            done, _ = await asyncio.wait(waits, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return bool(done)


def _event(name: str, data: bytes, id_: str = "") -> bytes:
    # JSON has no line break outside of its strings, and none inside of them either.
    head = (f"event: {name}\n" if name else "") + (f"id: {id_}\n" if id_ else "")
    return b"%sdata: %s\n\n" % (head.encode(), data)
