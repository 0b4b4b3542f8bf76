"""Many clients, and slow ones: memory stays bounded, everybody gets everything, and nobody waits for somebody else."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from bridge_kit import LIMIT, limits, raw, serving
from socket_kit import Wire, wire
from websockets.asyncio.client import connect

from holdfast.stores import SqliteStore
from holdfast.wire.close import CloseCode
from holdfast.wire.server import ServerLimits

HERE = Path(__file__).parent
ROOMY = {
    "max_connections": 20_000,
    "max_connections_per_address": 20_000,
    "max_unauthenticated": 20_000,
    "max_unauthenticated_per_address": 20_000,
    "max_clients": 20_000,
}
"""Settings for many clients from one address."""


def run(work: Callable[[], Awaitable[None]], *, seconds: float = 4 * LIMIT) -> None:
    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await work()

    asyncio.run(limited())


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(line: str) -> None:
    """Show a figure: `pytest -s`."""
    sys.stdout.write(f"{line}\n")


# --- a client that does not read ---


async def publish(bridge: Any, size: int, count: int) -> None:
    live = bridge.hub.sessions["s"]
    for _ in range(count // 10):
        text = f"at {time.monotonic()} " + "x" * size
        await live.publish(*[("stream_chunk", {"stream_id": "s-1", "text": text})] * 10)


async def read_all(url: str, count: int) -> list[float]:
    """Read a session to its end; return how long each message took to arrive. Nothing is kept."""
    waits: list[float] = []
    async with connect(url, compression=None, ping_interval=None, max_size=None) as socket:
        for type_, payload in (("auth", {"token": "token"}), ("session_join", {"session_id": "s", "history": "full"})):
            document = {
                "type": type_,
                "id": "0b8a7f60-1111-4222-8333-444455556666",
                "timestamp": "2026-01-01T00:00:00Z",
            }
            await socket.send(json.dumps(document | {"payload": payload}))
        expected = 1
        while len(waits) < count:
            message = json.loads(await socket.recv())
            found = message["payload"]["messages"] if message["type"] == "replay_buffer" else [message]
            for each in found:
                each_ = json.loads(each) if isinstance(each, str) else each
                if each_["type"] == "stream_chunk":
                    assert each_["offset"] == expected
                    expected += 1
                    waits.append(time.monotonic() - float(each_["payload"]["text"].split()[1]))
    return waits


def slow_reader(tmp_path: Path, megabytes: int) -> None:
    async def work() -> None:
        size, count = 10_000, megabytes * 100
        # The clients of this test answer no heartbeats.
        quiet = ServerLimits(heartbeat=600.0, heartbeat_timeout=600.0)
        settings = limits(send_timeout=1.0, connection=quiet, **ROOMY)
        async with SqliteStore(tmp_path / "s.db") as store, serving(store=store, limits=settings) as bridge:
            async with wire(bridge.url, limit=1024, receive_buffer=4096) as slow:
                await slow.say("auth", {"token": "token"})
                await slow.until("connection_ack")
                await slow.say("session_create", {"session_id": "s"})
                await slow.until("session_state")
                fast = [asyncio.create_task(read_all(bridge.ws_url, count)) for _ in range(2)]
                while len(bridge.hub.sessions["s"].clients) < 3:  # noqa: ASYNC110 - joining sets no event
                    await asyncio.sleep(0.001)
                await publish(bridge, size, 20)  # what is made once is made before memory is measured
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                await publish(bridge, size, count - 20)
                waits = [each for one in await asyncio.gather(*fast) for each in one]
                grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
                report(f"slow reader: {megabytes} MB, {grown} kB more memory, p99 {percentile(waits, 0.99):.3f} s")
                assert grown < 20_000, f"{grown} kB"
                # Nobody waits for the slow one, which is not cut before a second has passed.
                assert percentile(waits, 0.5) < 1
                async with asyncio.timeout(LIMIT):
                    while bridge.hub.sessions["s"].clients:  # noqa: ASYNC110 - leaving sets no event
                        await asyncio.sleep(0.005)
                    # It reads on at last, and learns why the connection ends.
                    assert await slow.close_code() == CloseCode.SLOW
            async with raw(bridge) as again:
                await again.auth()
                joined = await again.join("s", after={"epoch": bridge.hub.sessions["s"].epoch, "offset": 1})
                assert joined["recovered"] is True
                numbers: list[int] = []
                while len(numbers) < count - 1:
                    message = await again.next()
                    again.received.clear()
                    if message["type"] == "replay_buffer":
                        numbers += [each["offset"] for each in message["payload"]["messages"]]
                assert numbers == list(range(2, count + 1))

    run(work, seconds=300)


def test_B62_B63_a_client_that_does_not_read_is_cut_and_recovers_and_nobody_else_waits(tmp_path: Path) -> None:
    slow_reader(tmp_path, megabytes=6)


@pytest.mark.soak
def test_B62_50_MB_beside_a_client_that_does_not_read(tmp_path: Path) -> None:
    slow_reader(tmp_path, megabytes=50)


# --- many clients ---


class Served:
    """A bridge in another process."""

    def __init__(self, url: str, process: asyncio.subprocess.Process) -> None:
        self.url, self.process = url, process

    @property
    def resident(self) -> int:
        """Its memory, in kB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0])


@asynccontextmanager
async def in_a_process(
    store: str, *, roomy: bool = True, files: int = 0, log: Any = None, **settings: Any
) -> AsyncIterator[Served]:
    """Serve in another process. files: how many it may open; 0: as many as this one. log: the file of its log."""
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files)) if files else None
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(HERE / "bridge_process.py"), store, json.dumps((ROOMY if roomy else {}) | settings)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        preexec_fn=limit,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield Served((await process.stdout.readline()).decode().strip(), process)
    finally:
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def joined(stack: AsyncExitStack, url: str, number: int) -> Wire:
    """Connect a client and join its session, which 20 clients share; return after its state came."""
    socket = await stack.enter_async_context(wire(url, limit=4096))
    await socket.say("auth", {"token": "token", "client_id": f"c-{number}", "protocol": [2]})
    await socket.until("connection_ack")
    await socket.say("session_start", {"session_id": f"s-{number // 20}"})
    await socket.until("session_ready")
    return socket


async def all_at_once(makers: list[Callable[[], Awaitable[Any]]], *, at_once: int) -> list[Any]:
    """Run all, no more than `at_once` at the same time: the backlog of a listening socket is not what is tested."""
    turns = asyncio.Semaphore(at_once)

    async def one(maker: Callable[[], Awaitable[Any]]) -> Any:
        async with turns:
            return await maker()

    return await asyncio.gather(*map(one, makers))


# --- more sockets than the process may open ---


async def silent(stack: AsyncExitStack, url: str) -> None:
    """Connect, and say nothing."""
    host, _, port = url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    stack.callback(writer.close)


async def kept_alive(stack: AsyncExitStack, url: str) -> None:
    """Ask for something that needs no token, and keep the connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    stack.callback(writer.close)
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    with suppress(ConnectionError):
        await reader.read(100)


async def unknown(stack: AsyncExitStack, url: str) -> None:
    """Open a WebSocket, and do not authenticate."""
    with suppress(ConnectionError, AssertionError, asyncio.IncompleteReadError):
        await stack.enter_async_context(wire(url))


async def known(stack: AsyncExitStack, url: str) -> None:
    """Authenticate with a valid token, and stay."""
    with suppress(ConnectionError, AssertionError, asyncio.IncompleteReadError):
        socket = await stack.enter_async_context(wire(url))
        await socket.say("auth", {"token": "other", "client_id": str(uuid4()), "protocol": [2]})
        await socket.next()


@pytest.mark.parametrize("open_one", [silent, kept_alive, unknown, known])
def test_whoever_opens_more_sockets_than_the_process_may_have_locks_nobody_out(tmp_path, open_one):
    """Many services start a program with 1,024 files. asyncio logs 16,000 lines for one burst that it cannot accept, and accepts none for a
    second; the store cannot be opened either."""

    async def work() -> None:
        store = f"sqlite:{tmp_path / 's.db'}"
        async with in_a_process(store, roomy=False, files=256, log=log) as served, AsyncExitStack() as stack:
            client = await joined(stack, served.url, 0)
            await all_at_once([partial(open_one, stack, served.url)] * 400, at_once=20)
            await client.send_message("hello")
            another = await joined(stack, served.url, 20)
            await another.send_message("hello")

    with (tmp_path / "log").open("wb") as log:
        run(work, seconds=30)
    logged = (tmp_path / "log").read_text()
    assert "96 clients may connect" in logged
    assert len(logged.splitlines()) < 20, logged[:2000]


def idle(tmp_path: Path, count: int) -> None:
    async def work() -> None:
        store = f"sqlite:{tmp_path / 's.db'}"
        quiet = {"heartbeat": 3600.0, "heartbeat_timeout": 3600.0}
        async with in_a_process(store, connection=quiet) as served, AsyncExitStack() as stack:
            for number in range(20):
                await joined(stack, served.url, number)
            before = served.resident
            makers = [partial(joined, stack, served.url, 20 + number) for number in range(count)]
            started = time.monotonic()
            sockets = await all_at_once(makers, at_once=50)
            took = time.monotonic() - started
            each = (served.resident - before) / count
            report(f"idle: {count} connections in {took:.1f} s, {each:.1f} kB each")
            assert each < 60, f"{each} kB for each connection"
            # All of them are alive: a message reaches everybody in its session.
            for socket in sockets[::20]:
                await socket.send_message("to all")
            for number, socket in enumerate(sockets):
                if number % 20:
                    assert (await socket.until("user_message"))["payload"]["content"] == "to all"

    run(work, seconds=500)


def test_idle_connections_take_little_memory_and_all_hear_a_message(tmp_path: Path) -> None:
    idle(tmp_path, 100)


@pytest.mark.soak
def test_as_many_idle_connections_as_this_process_may_open(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    idle(tmp_path, min(10_000, most - 200))


async def _filled(url: str, session: str) -> str:
    """Make a session with 30 messages; return its epoch."""
    async with wire(url) as socket:
        await socket.say("auth", {"token": "token"})
        await socket.until("connection_ack")
        await socket.say("session_create", {"session_id": session})
        epoch = (await socket.until("session_joined"))["payload"]["epoch"]
        for number in range(30):
            await socket.send_message(f"message {number}")
    return str(epoch)


def storm(tmp_path: Path, count: int) -> None:
    async def work() -> None:
        store = f"sqlite:{tmp_path / 's.db'}"
        async with in_a_process(store) as served:
            epochs = [await _filled(served.url, f"s-{number}") for number in range(10)]
            times: list[float] = []

            async def back(number: int) -> list[int]:
                started = time.monotonic()
                after = {"epoch": epochs[number % 10], "offset": 10}
                async with wire(served.url) as socket:
                    await socket.say("auth", {"token": "token", "client_id": f"c-{number}", "protocol": [2]})
                    await socket.until("connection_ack")
                    await socket.say("session_join", {"session_id": f"s-{number % 10}", "after": after})
                    replay = await socket.until("replay_buffer")
                    times.append(time.monotonic() - started)
                    return [each["offset"] for each in replay["payload"]["messages"]]

            makers = [partial(back, number) for number in range(count)]
            started = time.monotonic()
            found = await all_at_once(makers, at_once=count)
            took = time.monotonic() - started
            assert found == [list(range(11, 31))] * count
            p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
            report(f"storm: {count} reconnects in {took:.1f} s, p50 {p50:.2f} s, p99 {p99:.2f} s")

    run(work, seconds=300)


def test_clients_that_come_back_at_once_all_get_what_they_missed(tmp_path: Path) -> None:
    storm(tmp_path, 50)


@pytest.mark.soak
def test_1000_clients_that_come_back_at_once_all_get_what_they_missed(tmp_path: Path) -> None:
    storm(tmp_path, 1000)


def test_a_flood_of_strangers_is_capped_and_friends_still_come_in() -> None:
    async def work() -> None:
        settings = limits(max_unauthenticated=12, max_unauthenticated_per_address=10)
        async with serving(limits=settings) as bridge, AsyncExitStack() as stack:
            strangers = [await stack.enter_async_context(wire(bridge.url)) for _ in range(15)]
            ended = {asyncio.create_task(each.close_code()) for each in strangers}
            async with raw(bridge) as friend:
                assert (await friend.auth())["type"] == "connection_ack"
            codes = []
            async with asyncio.timeout(LIMIT):
                while len(codes) < 5:
                    done, ended = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
                    codes += [each.result() for each in done]
            assert set(codes) == {1013}
            for each in ended:
                each.cancel()

    run(work)
