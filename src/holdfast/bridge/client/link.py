"""`Link`: one connection of a client, from the attempt to its end. Frames go out in order; frames that come in go to the client.

Invariant: a link that was dropped calls nobody any more, and leaves no task behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from holdfast.extras import needs_extra
from holdfast.faults import HoldfastError
from holdfast.wire.close import CloseCode

with needs_extra("The client of the bridge", "websockets", "server"):
    from websockets.exceptions import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.bridge.client.dial import Socket
    from holdfast.faults import Fault

__all__ = ["Link", "LinkOwner"]


class LinkOwner(Protocol):
    """Who hears what happens to a link."""

    def link_opened(self, link: Link) -> None: ...
    def link_failed(self, link: Link, fault: Fault) -> None: ...
    def link_received(self, link: Link, frame: bytes) -> None: ...
    def link_closed(self, link: Link, code: int, reason: str) -> None: ...
    def link_crashed(self, link: Link, error: BaseException) -> None: ...


class Link:
    """One connection. `dial` makes it, after `delay` seconds."""

    def __init__(self, owner: LinkOwner, dial: Callable[[], Awaitable[Socket]], delay: float) -> None:
        self._owner = owner
        self._dial = dial
        self._delay = delay
        self._socket: Socket | None = None
        self._frames: deque[bytes] = deque()
        self._has_frames = asyncio.Event()
        self._is_dropped = False
        self._task = asyncio.create_task(self._run(), name="holdfast bridge link")
        self._task.add_done_callback(self._ended)

    def send(self, frame: bytes) -> None:
        """Send a frame after those before it."""
        self._frames.append(frame)
        self._has_frames.set()

    def drop(self) -> None:
        """End at once. What was not sent is not sent: the outbox has it."""
        self._is_dropped = True
        self._task.cancel()

    async def close(self, code: int = CloseCode.BYE) -> None:
        """End in order: what is left is sent, then the close frame. It takes a second at most."""
        self._is_dropped = True
        if self._socket is not None:
            # A server that has gone, or does not read, gets no farewell.
            with suppress(TimeoutError, ConnectionClosed, OSError):
                async with asyncio.timeout(1.0):
                    while self._frames:
                        await self._socket.send(self._frames.popleft(), text=True)
                    await self._socket.close(code)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        await asyncio.sleep(self._delay)
        try:
            self._socket = await self._dial()
        except HoldfastError as error:
            if not self._is_dropped:
                self._owner.link_failed(self, error.fault)
            return
        socket = self._socket
        writer = asyncio.create_task(self._write(socket), name="holdfast bridge writer")
        try:
            if not self._is_dropped:
                self._owner.link_opened(self)
            code, reason = await self._read(socket)
        finally:
            writer.cancel()
            # A connection that hangs must not keep anybody waiting. One that is closed already is not changed by this.
            socket.transport.abort()
            await asyncio.wait([writer])
        if not self._is_dropped:
            self._owner.link_closed(self, code, reason)

    async def _read(self, socket: Socket) -> tuple[int, str]:
        try:
            while True:
                frame = await socket.recv(decode=False)
                if not self._is_dropped:
                    self._owner.link_received(self, frame)
        except ConnectionClosed as closed:
            received = closed.rcvd
            return (CloseCode.NO_CLOSE, "") if received is None else (received.code, received.reason)

    async def _write(self, socket: Socket) -> None:
        try:
            while True:
                while self._frames:
                    await socket.send(self._frames.popleft(), text=True)
                self._has_frames.clear()
                await self._has_frames.wait()
        except (ConnectionClosed, OSError):
            # The reader notices the same.
            return

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A defect of ours must not look like a connection that is merely quiet.
            self._owner.link_crashed(self, error)
