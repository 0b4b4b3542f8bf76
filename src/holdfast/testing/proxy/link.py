"""One connection through the proxy: performs the steps of two flows on sockets.

Invariant: with any toxics, a link ends when the remaining side has closed, or when the link is cancelled. Then both sockets are
closed.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from holdfast.testing.proxy.flow import ByteFlow, ConnectionEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.proxy.toxics import Direction, Toxic

Side: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CHUNK = 65_536
_IN_FLIGHT = 64
"""How many chunks a slow link holds. The limit makes its sender wait, as a full TCP window does."""
_CLOSE_S = 1.0
"""How long a side may continue to send after it got the end of the connection."""
_NO_LINGER = struct.pack("ii", 1, 0)


class ProxyLink:
    """A client and its server, with a flow each way."""

    def __init__(
        self,
        client: Side,
        server: Side,
        flows: dict[Direction, ByteFlow],
        *,
        toxics: Callable[[], tuple[Toxic, ...]],
        passed: Callable[[Direction, int], None],
        resetting: Callable[[], None],
    ) -> None:
        self._client = client
        self._server = server
        self._flows = flows
        self._toxics = toxics
        # Both functions are called before the bytes or the reset are sent. So when a peer sees them, they are counted already.
        self._passed = passed
        self._resetting = resetting
        self._hung = False
        """Whether one side is disconnected and the other side must not notice."""

    async def run(self) -> None:
        """Carry bytes until both sides have closed, or a toxic ends the connection."""
        pumps: set[asyncio.Task[ConnectionEnd | None]] = {
            asyncio.create_task(self._pump("up", self._client[0], self._server[1])),
            asyncio.create_task(self._pump("down", self._server[0], self._client[1])),
        }
        end: ConnectionEnd | None = None
        try:
            going = pumps
            while going and end is None:
                done, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                end = next((ended for pump in done if (ended := pump.result()) is not None), None)
            if end is ConnectionEnd.CLOSE:
                await self._close_normally(going)
        finally:
            for pump in pumps:
                pump.cancel()
            # Close before awaiting the pumps, because a second cancellation may interrupt that wait.
            self._close(end)
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> ConnectionEnd | None:
        """Carry one direction. If one side is reset, the other is reset too."""
        flow = self._flows[direction]
        travelling: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)
        receiving = asyncio.create_task(self._receive(flow, reader, travelling))
        try:
            return await self._deliver(direction, flow, travelling, writer)
        except ConnectionError:
            # A side that must not notice anything must not get a reset either.
            return None if self._hung else ConnectionEnd.RESET
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _receive(
        self, flow: ByteFlow, reader: asyncio.StreamReader, travelling: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        """Queue the bytes of the sender, with the time of their delivery. An empty chunk marks the end."""
        loop = asyncio.get_running_loop()
        due = 0.0
        while True:
            try:
                data = await reader.read(_CHUNK)
            except ConnectionError:
                # Bytes sent before the reset still arrive, as they may on a real network.
                data = b""
            # Never deliver a chunk before the previous chunk: jitter must not change the order of TCP.
            due = max(due, loop.time() + flow.delay(self._toxics()))
            await travelling.put((due, data))
            if not data:
                return

    async def _deliver(
        self,
        direction: Direction,
        flow: ByteFlow,
        travelling: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
    ) -> ConnectionEnd | None:
        loop = asyncio.get_running_loop()
        data = b""
        while True:
            # The first round has no data: a toxic with `after=0` ends the connection before the first byte.
            end = await self._forward(direction, flow, data, writer)
            if end is ConnectionEnd.HANG:
                self._hung = True
                await _disconnect(writer)
                await _discard_queue(travelling)
                return None
            if end is not None:
                return end
            due, data = await travelling.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                self._forward_end(flow, writer)
                return None

    async def _forward(
        self, direction: Direction, flow: ByteFlow, data: bytes, writer: asyncio.StreamWriter
    ) -> ConnectionEnd | None:
        """Deliver a chunk piece by piece. The toxics are read before each piece, because they may be switched in between."""
        while True:
            step = flow.step(self._toxics(), len(data))
            await asyncio.sleep(step.pause)
            if step.size and not step.lost and not self._hung:
                self._passed(direction, step.size)
                writer.write(data[: step.size])
                await writer.drain()
            data = data[step.size :]
            if step.end is not None or not data:
                return step.end

    def _forward_end(self, flow: ByteFlow, writer: asyncio.StreamWriter) -> None:
        if not self._hung and not flow.swallows(self._toxics()) and writer.can_write_eof():
            _send_end(writer)

    async def _close_normally(self, going: set[asyncio.Task[ConnectionEnd | None]]) -> None:
        """Send the end to both sides and read until they close. A socket that is closed with unread bytes would send a reset."""
        for pump in going:
            pump.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        for _, writer in (self._client, self._server):
            if writer.can_write_eof() and not writer.is_closing():
                # A side that was reset needs no end.
                with suppress(ConnectionError):
                    _send_end(writer)
        closing = [asyncio.create_task(_discard(reader)) for reader, _ in (self._client, self._server)]
        try:
            await asyncio.wait(closing, timeout=_CLOSE_S)
        finally:
            for task in closing:
                task.cancel()

    def _close(self, end: ConnectionEnd | None) -> None:
        if end is ConnectionEnd.RESET and not self._hung:
            self._resetting()
        for _, writer in (self._client, self._server):
            if end is ConnectionEnd.RESET:
                reset(writer)
            else:
                writer.close()


def _send_end(writer: asyncio.StreamWriter) -> None:
    """End the sending side of a connection. Raise `ConnectionResetError` if the peer has reset it, and nothing was read since."""
    try:
        writer.write_eof()
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
        raise ConnectionResetError(errno.ECONNRESET, "the peer has reset the connection") from error


async def _disconnect(writer: asyncio.StreamWriter) -> None:
    """Close one side only."""
    writer.close()
    # Ignore an error while closing, because the side is disconnected in any case.
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def _discard_queue(travelling: asyncio.Queue[tuple[float, bytes]]) -> None:
    """Discard the bytes that the other side still sends, until it closes."""
    while (await travelling.get())[1]:
        pass


async def _discard(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(_CHUNK):
            pass
    except ConnectionError:
        # A reset ends the connection as well.
        return


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a TCP reset."""
    sock = writer.get_extra_info("socket")
    # The socket may be closed already, and setting an option on it would raise.
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
