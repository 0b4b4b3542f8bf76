"""The hostile member at a bridge: what it does to the port, in a process of its own. It speaks the protocol as the docs describe it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
from tests.neighbours.kit import member
from websockets.asyncio.client import ClientConnection, connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.neighbours.storm_world import World

_NUMBERS = count()
_S = 2.0
"""Each act is done anew after so long."""


@dataclass(frozen=True)
class Tokens:
    """What the hostile member knows: tokens that are right, for other sessions, for looking, and for hooks."""

    device: str
    observer: str
    hook: str


async def intrude(world: World, url: str, tokens: Tokens) -> None:
    """Do what the world says until this process is ended."""
    os.nice(5)  # It would have a machine of its own.
    foe = Intruder(world, url, tokens)
    acts = {each.kind: foe.act(each.kind) for each in world.acts}
    await member(world, acts, 0.05)


def said(type_: str, payload: dict[str, Any] | None = None, **fields: Any) -> str:
    """Return a message of the protocol."""
    stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"type": type_, "id": str(uuid4()), "timestamp": stamp, "payload": payload or {}, **fields})


class Intruder:
    def __init__(self, world: World, url: str, tokens: Tokens) -> None:
        self.world, self.url, self.tokens = world, url, tokens
        self.ws = url.replace("http", "ws", 1) + "/ws"
        host, _, port = url.removeprefix("http://").partition(":")
        self.address = host, int(port)
        self.kept: list[Any] = []

    def act(self, kind: str) -> Callable[[int], Any]:
        method = getattr(self, kind.replace("-", "_"), None)
        return method if method is not None else lambda strength: self.unlucky(kind, strength)

    async def open(self, token: str = "", client: str = "foe", **payload: Any) -> ClientConnection:
        """Connect, and authenticate."""
        peer = await connect(self.ws, max_size=None, max_queue=1, open_timeout=5, proxy=None, compression=None)
        await peer.send(
            said("auth", {"token": token or self.tokens.device, "client_id": client, "protocol": [2], **payload})
        )
        return peer

    async def into(self, session: str = "h-1", **more: Any) -> ClientConnection:
        peer = await self.open(**more)
        await peer.send(said("session_create", {"session_id": session}))
        return peer

    async def flood(self, peer: ClientConnection, make: Callable[[int], Any], seconds: float = _S) -> None:
        """Send four times as much as a connection may, or as fast as the server takes it, and read nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for n in count():
                    await peer.send(make(n))
                    if n % 20 == 19:
                        await asyncio.sleep(0.005)  # 4,000 a second

    async def several(self, strength: int, one: Callable[[int], Any], least: int = 1) -> None:
        await asyncio.gather(*(one(n) for n in range(least * strength)), return_exceptions=True)

    # With a token.

    async def pings(self, strength: int) -> None:
        """Pings of the protocol, and of WebSockets, whose answers nobody reads."""
        ping = b"\x89\xfd\0\0\0\0" + b"x" * 125

        async def one(n: int) -> None:
            peer = await self.open(client=f"ping-{n}")
            if n % 2:
                payload = {"offsets": {"x" * 200: 1}}
                await self.flood(peer, lambda _: said("heartbeat_ping", payload), 5.0)
            else:
                await peer.recv()
                peer.transport.pause_reading()
                for _ in range(1500):
                    if peer.transport.get_write_buffer_size() < 1_000_000:
                        peer.transport.write(ping * 800)
                    await asyncio.sleep(0.003)
            self.kept.append(peer)

        await self.several(strength, one)

    async def messages(self, strength: int) -> None:
        async def one(n: int) -> None:
            peer = await self.into(f"h-{n}", client=f"m-{n}")
            await self.flood(peer, lambda k: said("session_message", {"content": f"echo {k} " + "x" * 500}))

        await self.several(strength, one)

    async def joins(self, strength: int) -> None:
        peer = await self.open()
        await self.flood(peer, lambda n: said("session_join", {"session_id": f"n{n % 60}", "history": "full"}))

    async def creates(self, strength: int) -> None:
        peer = await self.open()
        await self.flood(peer, lambda n: said("session_create", {"session_id": f"h-{n % 2000}"}))

    async def titles(self, strength: int) -> None:
        peer = await self.open()
        title = "x" * 900_000
        await self.flood(peer, lambda n: said("session_create", {"session_id": f"h-{n % 60}", "title": title}))

    async def big_frames(self, strength: int) -> None:
        async def one(n: int) -> None:
            peer = await self.into(f"h-{n}", client=f"big-{n}")
            size = (950_000, 1_100_000, 20_000_000)[n % 3]
            await self.flood(peer, lambda _: said("session_message", {"content": "x" * size}))

        await self.several(strength, one)

    async def odd_frames(self, strength: int) -> None:
        odd = (
            "{", "[]", "null", '{"type": 1}', said("no_such_type"), said("session_message", {"content": 5}), said("x" * 300),
            '{"a": NaN}', said("session_join", {"session_id": "../../etc"}), said("session_join", {"session_id": "x" * 10_000}),
            '{"type": "heartbeat_ping", "id": "\\ud83d", "timestamp": "now", "payload": {}}', "\ufeff{}", '{"n": ' + "9" * 5000 + "}",
        )  # fmt: skip

        async def one(n: int) -> None:
            peer = await self.into(f"h-{n}", client=f"odd-{n}")
            await self.flood(peer, lambda k: odd[k % len(odd)], 1.0)

        await self.several(strength, one, least=3)

    async def binary(self, strength: int) -> None:
        peer = await self.into()
        await self.flood(peer, lambda _: b"\x00\xff" * 1000, 0.2)

    async def deep(self, strength: int) -> None:
        peer = await self.into()
        await self.flood(peer, lambda _: "[" * 400_000, 1.0)
        peer = await self.into()
        await self.flood(peer, lambda _: '{"payload":' * 80_000, 1.0)

    async def resumes(self, strength: int) -> None:
        async def one(n: int) -> None:
            for k in range(30):
                peer = await self.open(
                    client=f"resume-{n}",
                    resume=[
                        {"session_id": f"{'nh'[k % 2]}{'-' * (k % 2)}{s}", "resume_token": "x" * 40} for s in range(40)
                    ],
                )
                await peer.close()

        await self.several(strength, one)

    async def returns(self, strength: int) -> None:
        """The same client again and again, which takes over from itself."""

        async def one(n: int) -> None:
            for _ in range(30):
                peer = await self.into("h-1", client="again")
                peer.transport.abort()

        await self.several(strength, one, least=2)

    async def deaf(self, strength: int) -> None:
        """Ask for much, and read nothing."""

        async def one(n: int) -> None:
            peer = await self.into(f"h-{n}", client=f"deaf-{n}")
            peer.transport.pause_reading()
            await peer.send(said("session_message", {"content": "huge 1"}))
            self.kept.append(peer)

        async def with_others(n: int) -> None:
            peer = await self.open(client=f"deaf-too-{n}")
            peer.transport.pause_reading()
            await peer.send(said("session_join", {"session_id": "h-0", "history": "none"}))
            self.kept.append(peer)

        await self.several(strength, one, least=2)
        await self.several(strength, with_others, least=30)
        await asyncio.sleep(_S)

    async def replays(self, strength: int) -> None:
        peer = await self.into()
        for n in range(50):
            await peer.send(said("session_message", {"content": f"echo {n} " + "x" * 1500}))
        peer.transport.pause_reading()
        await self.flood(peer, lambda _: said("request_replay", {}))

    async def snapshots(self, strength: int) -> None:
        peer = await self.into()
        peer.transport.pause_reading()
        await self.flood(peer, lambda _: said("session_snapshot", {}))

    async def lists(self, strength: int) -> None:
        peer = await self.open()
        peer.transport.pause_reading()
        await self.flood(peer, lambda _: said("session_list", {}))

    async def impostor(self, strength: int) -> None:
        """Be the client that a neighbour is, with another token."""
        peer = await self.open(self.tokens.observer)
        seen: set[str] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_S):
                for n in range(0, self.world.neighbours, 3):
                    await peer.send(
                        said("session_join", {"session_id": f"n{n}", "role": "observer", "history": "full"})
                    )
                async for frame in peer:
                    seen |= _clients_in(frame)
        for client in seen:
            self.kept.append(await self.open(client=client))
            self.kept.append(await self.into(client=client))

    async def answers(self, strength: int) -> None:
        """Answer what others are asked."""
        for token, role in ((self.tokens.observer, "controller"), (self.tokens.device, "controller")):
            peer = await self.open(token)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_S):
                    for n in range(self.world.neighbours):
                        await peer.send(said("session_join", {"session_id": f"n{n}", "role": role, "history": "full"}))
                    async for frame in peer:
                        await self._answer(peer, json.loads(frame))

    async def _answer(self, peer: ClientConnection, message: dict[str, Any]) -> None:
        inner = message["payload"].get("messages", [])
        for each in [message, *(inner if isinstance(inner, list) else [])]:
            question = each["payload"].get("question_id")
            if not question:
                continue
            where = {"session_id": each.get("session_id", "")}
            hash_ = each["payload"].get("arguments_hash", "")
            for value in (True, False):
                answer = {**where, "question_id": question, "value": value, "arguments_hash": hash_}
                await peer.send(said("answer", {**answer, "outcome": "accepted"}, **where))
                await peer.send(said("answer", {**answer, "session_id": "h-1"}))
                decision = {**where, "tool_call_id": question, "question_id": question, "decision": "approved"}
                await peer.send(said("approval_response", decision, **where))

    async def meddles(self, strength: int) -> None:
        """End, pause, stop and answer the sessions of others, by their names."""
        kinds = ("session_join", "session_close", "session_end", "session_pause", "stop", "session_resume", "session_message", "session_leave")  # fmt: skip

        def make(n: int) -> str:
            name = {"session_id": f"n{n // 8 % self.world.neighbours}"}
            content = {"content": "echo from somebody else"} if kinds[n % 8] == "session_message" else {}
            return said(kinds[n % 8], {**name, **content}, **name)

        for token in (self.tokens.observer, self.tokens.device):
            peer = await self.into(token=token)
            await self.flood(peer, make, 1.0)

    async def observer(self, strength: int) -> None:
        """Look at all sessions of everybody, and read nothing."""

        async def one(n: int) -> None:
            peer = await self.open(self.tokens.observer, client=f"wall-{n}")
            peer.transport.pause_reading()
            for who in range(self.world.neighbours):
                await peer.send(said("session_join", {"session_id": f"n{who}", "role": "observer", "history": "full"}))
            self.kept.append(peer)

        await self.several(strength, one, least=5)
        await asyncio.sleep(_S)

    async def connections(self, strength: int) -> None:
        async def one(n: int) -> None:
            self.kept.append(await self.into(f"h-{n}", client=f"c-{next(_NUMBERS)}"))

        for _ in range(6):
            await self.several(strength, one, least=40)

    async def acks(self, strength: int) -> None:
        peer = await self.into()
        await self.flood(peer, lambda n: said("ack", {"epoch": "x", "offset": 2**53 - n}))

    async def slow_frames(self, strength: int) -> None:
        """Frames in single bytes, of many fragments, or never finished."""

        async def one(n: int) -> None:
            peer = await self.into(f"h-{n}", client=f"slow-{n}")

            async def pieces() -> Any:
                yield '{"type": "session_message", "x": "'
                for _ in range(400):
                    yield "y" * 2000
                    await asyncio.sleep(0.005)

            await peer.send(pieces())

        await self.several(strength, one, least=10)

    async def own_sse(self, strength: int) -> None:
        peer = await self.into()
        await peer.send(said("session_message", {"content": "chatters 1"}))
        for _ in range(20 * strength):
            sock = await self._socket()
            await self._send(sock, f"GET /sessions/h-1/stream?history=full HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {self.tokens.device}\r\n\r\n")  # fmt: skip
            self.kept.append(sock)
        await asyncio.sleep(_S)

    # Without one.

    @property
    def _host(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    async def _socket(self) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        async with asyncio.timeout(5):
            await asyncio.get_running_loop().sock_connect(sock, self.address)
        return sock

    async def _send(self, sock: socket.socket, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        async with asyncio.timeout(5):
            await asyncio.get_running_loop().sock_sendall(sock, data)

    async def _sockets(self, number: int, text: str | bytes) -> None:
        for _ in range(number):
            sock = await self._socket()
            with contextlib.suppress(OSError, TimeoutError):
                await self._send(sock, text)
            self.kept.append(sock)
        del self.kept[:-600]
        await asyncio.sleep(0.3)

    async def wrong_tokens(self, strength: int) -> None:
        async def one(n: int) -> None:
            wrong = (os.urandom(20).hex(), "hf_device_" + os.urandom(32).hex(), "", "\x00", self.tokens.hook)[n % 5]
            peer = await self.open(wrong)
            with contextlib.suppress(Exception):
                await peer.recv()

        await self.several(strength, one, least=10)

    async def silent(self, strength: int) -> None:
        await self._sockets(150 * strength, b"")

    async def half_header(self, strength: int) -> None:
        await self._sockets(100 * strength, f"GET /ws HTTP/1.1\r\nHost: {self._host}\r\nX-A: " + "a" * 5000)

    async def half_body(self, strength: int) -> None:
        head = f"POST /hooks/event HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {self.tokens.hook}\r\n"
        await self._sockets(50 * strength, head + "Content-Type: application/json\r\nContent-Length: 900000\r\n\r\n{")

    async def no_websocket(self, strength: int) -> None:
        await self._sockets(30 * strength, b"\x16\x03\x01\x02\x00" + os.urandom(512))
        await self._sockets(30 * strength, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n")

    async def half_frames(self, strength: int) -> None:
        """A handshake without an `auth`, and frames that no client sends."""
        head = f"GET /ws HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"  # fmt: skip
        for frame in (
            b"",
            b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x81\x05hello",
            b"\x0f\x80abcd",
            b"\x88\x81abcd\x00",
        ):
            await self._sockets(20 * strength, head.encode() + frame)

    async def pairs(self, strength: int) -> None:
        await self._many(40 * strength, "POST", "/pair", json={"code": "000000", "name": "x"})

    async def wrong_http(self, strength: int) -> None:
        await self._many(60 * strength, "GET", "/sessions", token="hf_device_" + "x" * 43)

    async def wrong_hooks(self, strength: int) -> None:
        await self._many(60 * strength, "POST", "/hooks/event", token="stale" * 5, json={})

    # A hook, and over HTTP.

    async def _many(self, times: int, method: str, path: str, token: str = "", **more: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, verify=False, timeout=10) as http:
            await asyncio.gather(
                *(http.request(method, path, headers=headers, **more) for _ in range(times)), return_exceptions=True
            )

    def event(self, session: str, size: int = 1000) -> dict[str, Any]:
        return {
            "event": "Stop",
            "timestamp": "2026-03-20T14:32:00Z",
            "session_id": session,
            "payload": {"reason": "x" * size},
        }

    async def hooks(self, strength: int) -> None:
        await self._many(300 * strength, "POST", "/hooks/event", self.tokens.hook, json=self.event("h-1"))

    async def hook_sessions(self, strength: int) -> None:
        """Events of sessions that nobody has made, a hundred at a time."""
        for _ in range(6 * strength):
            batch = {"events": [self.event(f"made-{next(_NUMBERS)}", 10) for _ in range(200)]}
            await self._many(1, "POST", "/hooks/batch", self.tokens.hook, json=batch)

    async def hook_batches(self, strength: int) -> None:
        batch = {"events": [self.event("h-1", 900) for _ in range(900)]}
        await self._many(10 * strength, "POST", "/hooks/batch", self.tokens.hook, json=batch)

    async def http(self, strength: int) -> None:
        await self._many(200 * strength, "GET", "/sessions?limit=1000", self.tokens.device)

    async def tickets(self, strength: int) -> None:
        await self._many(200 * strength, "POST", "/tickets", self.tokens.device)

    async def errors(self, strength: int) -> None:
        await self._many(
            100 * strength, "POST", "/errors", self.tokens.device, json={"code": "SYS_TIMEOUT", "message": "x" * 9000}
        )

    async def posts(self, strength: int) -> None:
        body = {"type": "message", "content": "echo x"}
        await self._many(200 * strength, "POST", "/sessions/h-1/events", self.tokens.device, json=body)

    # The agent of one session.

    async def unlucky(self, kind: str, strength: int) -> None:
        async def one(n: int) -> None:
            peer = await self.into(f"h-{next(_NUMBERS) % 300}", client=f"u-{n}")
            await peer.send(said("session_message", {"content": f"{kind} {strength}"}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_S):
                    async for _ in peer:
                        pass
            await peer.close()

        await self.several(strength, one)


def _clients_in(frame: str | bytes) -> set[str]:
    """Return the ids of clients that a message names."""
    document = json.loads(frame)
    inner = document["payload"].get("messages", [])
    found = [document, *(inner if isinstance(inner, list) else [])]
    return {each["payload"]["client_id"] for each in found if each.get("payload", {}).get("client_id")}
