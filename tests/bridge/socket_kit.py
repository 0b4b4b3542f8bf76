"""A WebSocket as bytes, for tests that send what no client sends, that do not read, or that hold many connections."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from holdfast.wire.envelope import stamp

CONTINUATION, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9
ID = "0b8a7f60-1111-4222-8333-444455556666"
GOOD = {"type": "session_message", "id": ID, "timestamp": stamp(0.0), "payload": {"content": "hello"}}


def frame(
    opcode: int, data: bytes = b"", *, fin: bool = True, mask: bool = True, rsv: int = 0, length: int = -1
) -> bytes:
    """Return a frame, also one that is wrong. `length` is what its header says."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    said = len(data) if length < 0 else length
    head = bytes(
        [
            first,
            (0x80 if mask else 0) | min(said, 126 if said < 2**16 else 127)
            if said > 125
            else (0x80 if mask else 0) | said,
        ]
    )
    if said > 125:
        head += struct.pack("!H", said) if said < 2**16 else struct.pack("!Q", said)
    # The key of the mask is zero, so the data is as it is.
    return head + (bytes(4) if mask else b"") + data


class Wire:
    """A WebSocket as bytes, after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def say(self, type_: str, payload: dict[str, Any]) -> None:
        document = GOOD | {"type": type_, "payload": payload}
        await self.send(frame(TEXT, json.dumps(document).encode()))

    async def send_message(self, text: str) -> None:
        """Send a message of a user, and wait until it is stored."""
        document = GOOD | {"id": str(uuid4()), "payload": {"content": text}}
        await self.send(frame(TEXT, json.dumps(document).encode()))
        await self.until("ack")

    async def next(self) -> tuple[int, bytes]:
        """Return the opcode and the data of the next frame; 0 at the end of the connection."""
        try:
            first, said = await self.reader.readexactly(2)
            if said == 126:
                said = struct.unpack("!H", await self.reader.readexactly(2))[0]
            elif said == 127:
                said = struct.unpack("!Q", await self.reader.readexactly(8))[0]
            return first & 15, await self.reader.readexactly(said)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""

    async def until(self, type_: str) -> dict[str, Any]:
        while True:
            opcode, data = await self.next()
            assert opcode == TEXT, (opcode, data)
            message: dict[str, Any] = json.loads(data)
            if message["type"] == type_:
                return message

    async def close_code(self) -> int:
        """Read until the server closes; return its code, or 1006 if it sends none."""
        while True:
            opcode, data = await self.next()
            if opcode == CLOSE:
                return int.from_bytes(data[:2], "big")
            if opcode == 0:
                return 1006


@asynccontextmanager
async def wire(url: str, *, headers: str = "", limit: int = 65_536, receive_buffer: int = 0) -> AsyncIterator[Wire]:
    """Connect to a bridge at `url`. `limit` is what is read ahead; `receive_buffer` what the kernel holds, 0 for what it likes."""
    address = url.removeprefix("http://")
    host, _, port = address.partition(":")
    socket_ = socket.socket()
    socket_.setblocking(False)
    if receive_buffer:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(socket_, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=socket_, limit=limit)
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write(
        f"GET /ws HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n{headers}\r\n".encode()
    )
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer
        yield Wire(reader, writer)
    finally:
        writer.close()
