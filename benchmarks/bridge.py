"""The bridge: messages a second, validated and stored, beside servers that only send back what they get; and how soon a client is back.

Each server is a process of its own. The processor time of the server stands beside the rate, because this machine has two cores and
the program that sends the messages needs one of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from benchmarks.table import quantile, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONNECTIONS, WINDOW = 8, 32
TARGET_RATIO, TARGET_DURABLE = 0.6, 12_000
NOTES = [
    f"{CONNECTIONS} connections, each with {WINDOW} messages under way; a message of about 200 bytes and its answer",
    "starlette and websockets send the text back; Socket.IO reads it, calls a handler and acknowledges, and stores nothing",
    "validated: read, checked against phase and schema, answered; stored: also committed, acknowledged, and sent to the session's clients",
    "SQLite with full sync: an acknowledged message survives a power cut. Each connection has a session of its own",
    "alone: one connection, one message under way",
    "CPU µs: processor time of the server for each message, which depends least on the other load of the machine",
]


def frame(text: bytes) -> bytes:
    """Return a client's text frame. Its mask is zero."""
    if len(text) < 126:
        return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text
    return bytes([0x81, 0x80 | 126]) + struct.pack("!H", len(text)) + bytes(4) + text


def envelope(type_: str, payload: dict[str, Any]) -> bytes:
    document = {"type": type_, "id": str(uuid4()), "timestamp": "2026-11-15T01:02:03.004Z", "payload": payload}
    return json.dumps(document).encode()


class Contender(NamedTuple):
    """One way to send a message and to know its answer."""

    name: str
    server: tuple[str, ...]
    path: str
    message: Callable[[int], bytes]
    answers: Callable[[bytes], int]
    """How many messages a frame answers."""
    greeting: Callable[[int], list[tuple[bytes, bytes]]] = lambda _: []
    """What a new connection sends before it begins, and what it waits for after each."""


def _hello(number: int) -> list[tuple[bytes, bytes]]:
    return [
        (envelope("auth", {"token": f"t-{number}", "protocol": [2]}), b'"type":"connection_ack"'),
        (envelope("session_create", {"session_id": f"s-{uuid4().hex}"}), b'"type":"session_state"'),
    ]


ECHO = envelope("session_message", {"content": "x" * 60})
CONTENDERS = (
    Contender("starlette, echo", ("starlette",), "/ws", lambda _: ECHO, lambda _: 1),
    Contender("websockets, echo", ("websockets",), "/", lambda _: ECHO, lambda _: 1),
    Contender(
        "python-socketio, acknowledged",
        ("socketio",),
        "/socket.io/?EIO=4&transport=websocket",
        lambda number: b'42%d["message",%b]' % (number, ECHO),
        lambda data: data.startswith(b"43"),
        lambda _: [(b"40", b"40")],
    ),
    Contender(
        "Holdfast, validated",
        ("holdfast", "memory:"),
        "/ws",
        lambda _: envelope("heartbeat_ping", {"offsets": {"x" * 60: 1}}),
        lambda data: data.startswith(b'{"type":"heartbeat_pong"'),
        _hello,
    ),
    Contender(
        "Holdfast, stored in memory",
        ("holdfast", "memory:"),
        "/ws",
        lambda _: envelope("session_message", {"content": "x" * 60}),
        lambda data: data.count(b'"status":') if data.startswith(b'{"type":"ack"') else 0,
        _hello,
    ),
    Contender(
        "Holdfast, stored in SQLite",
        ("holdfast", "sqlite:{folder}/bench.db"),
        "/ws",
        lambda _: envelope("session_message", {"content": "x" * 60}),
        lambda data: data.count(b'"status":') if data.startswith(b'{"type":"ack"') else 0,
        _hello,
    ),
)


class Load(asyncio.Protocol):
    """One connection that sends messages and counts their answers."""

    def __init__(self, contender: Contender, port: int) -> None:
        self._contender, self._port = contender, port
        self._buffer = b""
        self._is_open = False
        self._expected = b"HTTP/1.1 101"
        self._came: asyncio.Future[None] | None = None
        self._frames: list[bytes] = []
        self._sent: deque[float] = deque()
        self._answers = 0
        self.waits: list[float] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def begin(self, number: int) -> None:
        request = (
            f"GET {self._contender.path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await self.exchange(request.encode(), b"HTTP/1.1 101")
        for text, answer in self._contender.greeting(number):
            await self.exchange(frame(text), answer)

    async def exchange(self, data: bytes, answer: bytes) -> None:
        """Send something and wait until an answer comes that contains `answer`."""
        self._expected = answer
        self._came = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        async with asyncio.timeout(20):
            await self._came

    async def run(self, frames: list[bytes], window: int) -> None:
        """Send all frames, at most `window` of them without an answer."""
        self._frames = frames[::-1]
        self._answers = len(frames)
        self._came = asyncio.get_running_loop().create_future()
        self._expected = b""
        self.waits = []
        self._push(window)
        await self._came

    def _push(self, count: int) -> None:
        now = time.perf_counter()
        batch = [self._frames.pop() for _ in range(min(count, len(self._frames)))]
        self._sent.extend([now] * len(batch))
        if batch:
            self._transport.write(b"".join(batch))

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data
        if not self._is_open:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._buffer = head
                return
            self._is_open = True
            self._take(head)
        place, answered = 0, 0
        while (end := _end(data, place)) is not None:
            answered += self._take(data[end[0] : end[1]])
            place = end[1]
        self._buffer = data[place:]
        if answered:
            self._push(answered)

    def _take(self, text: bytes) -> int:
        if self._expected:
            if self._expected in text and self._came is not None and not self._came.done():
                self._came.set_result(None)
            return 0
        answered = self._contender.answers(text)
        now = time.perf_counter()
        self.waits += [now - self._sent.popleft() for _ in range(answered)]
        self._answers -= answered
        if answered and not self._answers and self._came is not None:
            self._came.set_result(None)
        return answered

    def close(self) -> None:
        self._transport.abort()


def _end(data: bytes, place: int) -> tuple[int, int] | None:
    """Return where the content of the next frame begins and ends, if all of it is there."""
    if len(data) < place + 10 and len(data) < place + 2 + (data[place + 1] if len(data) > place + 1 else 1):
        return None
    size, begin = data[place + 1], place + 2
    if size == 126:
        size, begin = struct.unpack_from("!H", data, place + 2)[0], place + 4
    elif size == 127:
        size, begin = struct.unpack_from("!Q", data, place + 2)[0], place + 10
    return (begin, begin + size) if len(data) >= begin + size else None


@contextmanager
def _server(arguments: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Start a server; return its port and its process."""
    with tempfile.TemporaryDirectory() as folder:
        given = [each.format(folder=folder) for each in arguments]
        command = [sys.executable, "-m", "benchmarks.inside.bridge", *given]
        root = Path(__file__).parents[1]
        # The servers report clients that leave without a word, and all of these do.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root
        )
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.communicate(timeout=20)


def _cpu(pid: int) -> float:
    """Return the processor time of a process, in seconds; 0 where it cannot be read."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return 0.0
    fields = path.read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measure(contender: Contender, port: int, pid: int, count: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    loads = []
    for number in range(CONNECTIONS):
        _, load = await loop.create_connection(lambda: Load(contender, port), "127.0.0.1", port)
        await load.begin(number)
        loads.append(load)
    await loads[0].run([frame(contender.message(number)) for number in range(200)], WINDOW)
    frames = [[frame(contender.message(number)) for number in range(count)] for _ in loads]
    cpu, started = _cpu(pid), time.perf_counter()
    await asyncio.gather(*(load.run(each, WINDOW) for load, each in zip(loads, frames, strict=True)))
    took, cpu = time.perf_counter() - started, _cpu(pid) - cpu
    busy = [wait for load in loads for wait in load.waits]
    await loads[0].run([frame(contender.message(number)) for number in range(min(count, 1000))], 1)
    alone = loads[0].waits
    for load in loads:
        load.close()
    total = count * CONNECTIONS
    return {
        "rate": total / took,
        "cpu_us": cpu / total * 1e6,
        "p50_ms": quantile(busy, 0.5) * 1e3,
        "p99_ms": quantile(busy, 0.99) * 1e3,
        "alone_p50_ms": quantile(alone, 0.5) * 1e3,
        "alone_p99_ms": quantile(alone, 0.99) * 1e3,
    }


async def _resume(port: int, missed: int, times: int) -> list[float]:
    """Return how long it takes from the beginning of a connection to the last of the messages that were missed."""
    loop = asyncio.get_running_loop()
    contender = CONTENDERS[-1]
    session = f"s-{uuid4().hex}"
    _, load = await loop.create_connection(lambda: Load(contender, port), "127.0.0.1", port)
    await load.begin(0)
    await load.exchange(frame(envelope("session_create", {"session_id": session})), b'"type":"session_state"')
    said = {"content": "x" * 60, "session_id": session}
    await load.run([frame(envelope("session_message", said)) for _ in range(missed)], WINDOW)
    load.close()
    only_auth = contender._replace(greeting=lambda number: _hello(number)[:1])
    found = []
    for number in range(times):
        started = time.perf_counter()
        _, back = await loop.create_connection(lambda: Load(only_auth, port), "127.0.0.1", port)
        await back.begin(number)
        join = {"session_id": session, "history": "full"}
        # The state comes after everything that was missed.
        await back.exchange(frame(envelope("session_join", join)), b'"type":"session_state"')
        found.append(time.perf_counter() - started)
        back.close()
    return found


def run(*, quick: bool) -> dict[str, Any]:
    rounds, count = (1, 500) if quick else (5, 4_000)
    measured: dict[str, list[dict[str, float]]] = {each.name: [] for each in CONTENDERS}
    resumed: dict[str, list[float]] = {}
    for _ in range(rounds):
        for contender in CONTENDERS:
            with _server(contender.server) as (port, pid):
                measured[contender.name].append(asyncio.run(_measure(contender, port, pid, count)))
                if contender is CONTENDERS[-1]:
                    for missed in (10, 1000):
                        times = asyncio.run(_resume(port, missed, 5 if quick else 30))
                        resumed.setdefault(str(missed), []).extend(times)
    found = {name: {key: median(one[key] for one in all_) for key in all_[0]} for name, all_ in measured.items()}
    _print(found, resumed)
    return {"messages": found, "resume_ms": {key: quantile(times, 0.5) * 1e3 for key, times in resumed.items()}}


def _print(found: dict[str, dict[str, float]], resumed: dict[str, list[float]]) -> None:
    raw = found[CONTENDERS[0].name]
    rows = [
        [
            name,
            f"{one['rate']:,.0f}",
            f"{one['rate'] / raw['rate']:.2f}x",
            f"{one['cpu_us']:.0f}",
            f"{one['p50_ms']:.1f}",
            f"{one['p99_ms']:.1f}",
            f"{one['alone_p50_ms']:.2f}",
            f"{one['alone_p99_ms']:.2f}",
        ]
        for name, one in found.items()
    ]
    head = ["server", "a second", "of raw", "CPU µs", "p50 ms", "p99 ms", "alone p50", "p99"]
    show("Bridge: messages and their answers", head, rows, NOTES)
    validated, stored = found[CONTENDERS[3].name], found[CONTENDERS[5].name]
    ratio, rate = validated["rate"] / raw["rate"], stored["rate"]
    more = [
        [
            "validated, of the raw echo",
            f"{ratio:.2f}x",
            f"target {TARGET_RATIO}x: {'met' if ratio >= TARGET_RATIO else 'missed'}",
        ],
        [
            "stored and acknowledged, a second",
            f"{rate:,.0f}",
            f"target {TARGET_DURABLE:,}: {'met' if rate >= TARGET_DURABLE else 'missed'}",
        ],
    ]
    for missed, times in resumed.items():
        label = f"back after {missed} missed messages, ms"
        more.append([label, f"{quantile(times, 0.5) * 1e3:.1f}", f"p99 {quantile(times, 0.99) * 1e3:.1f}"])
    show(
        "Bridge: targets and coming back",
        ["what", "figure", ""],
        more,
        ["coming back: connect, authenticate, join, and have all of them"],
    )
