"""One connection through the proxy: what two flows say, performed on sockets.

Invariant: whatever the toxics do, a link ends when the side that still lives has closed, or when it is cancelled; then both
sockets are closed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, TypeAlias

from holdfast.testing.proxy.flow import End, Flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.proxy.toxics import Direction, Toxic

__all__ = ["Link", "Side", "reset"]

Side: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CHUNK = 65_536
_IN_FLIGHT = 64
"""Chunks that are on their way at once: what a slow link holds is bounded, then its sender has to wait."""
_GOODBYE_S = 1.0
"""How long a side that was told of the end may go on sending."""
_LINGER_NOT = struct.pack("ii", 1, 0)


class Link:
    """A client and its server, with a flow each way."""

    def __init__(
        self,
        client: Side,
        server: Side,
        flows: dict[Direction, Flow],
        *,
        toxics: Callable[[], tuple[Toxic, ...]],
        passed: Callable[[Direction, int], None],
        resetting: Callable[[], None],
    ) -> None:
        self._client = client
        self._server = server
        self._flows = flows
        self._toxics = toxics
        # Told before it happens: whoever sees it on the wire finds it counted.
        self._passed = passed
        self._resetting = resetting
        self._hung = False
        """One side is gone and the other must not learn of it."""

    async def run(self) -> None:
        """Carry bytes until both sides have closed, or a toxic ends it."""
        pumps: set[asyncio.Task[End | None]] = {
            asyncio.create_task(self._pump("up", self._client[0], self._server[1])),
            asyncio.create_task(self._pump("down", self._server[0], self._client[1])),
        }
        end: End | None = None
        try:
            going = pumps
            while going and end is None:
                done, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                end = next((ended for pump in done if (ended := pump.result()) is not None), None)
            if end is End.CLOSE:
                await self._take_leave(going)
        finally:
            for pump in pumps:
                pump.cancel()
            # First, because a cancellation may come while the pumps end.
            self._close(end)
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> End | None:
        """Carry one direction; a side that breaks off breaks the other."""
        flow = self._flows[direction]
        travelling: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)
        receiving = asyncio.create_task(self._receive(flow, reader, travelling))
        try:
            return await self._deliver(direction, flow, travelling, writer)
        except ConnectionError:
            return None if self._hung else End.RESET
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _receive(
        self, flow: Flow, reader: asyncio.StreamReader, travelling: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        """Take in what is sent, with the time it is due; the end of it is an empty chunk."""
        loop = asyncio.get_running_loop()
        due = 0.0
        while True:
            try:
                data = await reader.read(_CHUNK)
            except ConnectionError:
                # What the sender had sent before still arrives, as far as the other side can tell.
                data = b""
            due = max(due, loop.time() + flow.delay(self._toxics()))
            await travelling.put((due, data))
            if not data:
                return

    async def _deliver(
        self,
        direction: Direction,
        flow: Flow,
        travelling: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
    ) -> End | None:
        loop = asyncio.get_running_loop()
        data = b""
        while True:
            end = await self._forward(direction, flow, data, writer)
            if end is End.HANG:
                self._hung = True
                await _vanish(writer)
                await _drain_away(travelling)
                return None
            if end is not None:
                return end
            due, data = await travelling.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                self._pass_on_the_end(flow, writer)
                return None

    async def _forward(self, direction: Direction, flow: Flow, data: bytes, writer: asyncio.StreamWriter) -> End | None:
        """Deliver a chunk, piece by piece; the toxics may be switched in between."""
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

    def _pass_on_the_end(self, flow: Flow, writer: asyncio.StreamWriter) -> None:
        if not self._hung and not flow.swallows(self._toxics()) and writer.can_write_eof():
            writer.write_eof()

    async def _take_leave(self, going: set[asyncio.Task[End | None]]) -> None:
        """Say goodbye to both sides and let them answer: closing over bytes that were not read would be a reset."""
        for pump in going:
            pump.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        for _, writer in (self._client, self._server):
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
        goodbyes = [asyncio.create_task(_read_away(reader)) for reader, _ in (self._client, self._server)]
        try:
            await asyncio.wait(goodbyes, timeout=_GOODBYE_S)
        finally:
            for goodbye in goodbyes:
                goodbye.cancel()

    def _close(self, end: End | None) -> None:
        if end is End.RESET and not self._hung:
            self._resetting()
        for _, writer in (self._client, self._server):
            if end is End.RESET:
                reset(writer)
            else:
                writer.close()


async def _vanish(writer: asyncio.StreamWriter) -> None:
    """Close one side for good, without a sign to the other."""
    writer.close()
    # Whether it went in good order is of no matter: it is gone.
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def _drain_away(travelling: asyncio.Queue[tuple[float, bytes]]) -> None:
    """Take what the side that was not told still sends, until it closes."""
    while (await travelling.get())[1]:
        pass


async def _read_away(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(_CHUNK):
            pass
    except ConnectionError:
        # Who breaks off now needs no goodbye.
        return


def reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off with a TCP reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    writer.transport.abort()
