"""Both clients through a network at its worst, with the server killed: nothing is lost or doubled. A peer beside them, with its losses counted.

The truth is the log in the store. A client must have read exactly that, in order and once, and each of its messages must stand in it once,
at the offset that it was told.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import socketio
from machine_scripts import node
from soak_kit import HERE, Faults, LostBytes, ServerProcess, Vanishing, disturbed
from soak_server import BEAT, SESSION

from holdfast.bridge import Client, Gap, Schedule
from holdfast.bridge.sessions.frames import message_of
from holdfast.stores import SqliteStore

QUICK = Schedule(delays=(0.01, 0.02, 0.05, 0.1), jitter=0.2, grace=None)


class Seen(NamedTuple):
    """What a client has read: offsets and texts; and the offsets at which its messages are stored, as it was told."""

    read: list[tuple[int, str]]
    stored: dict[str, int]
    gaps: int


def run(work: Callable[[], Awaitable[None]], limit: float) -> None:
    asyncio.run(asyncio.wait_for(work(), limit))


async def log_of(path: Path) -> list[tuple[int, str]]:
    """Return offsets and texts of the whole log."""
    found: list[tuple[int, str]] = []
    async with SqliteStore(path) as store:
        while entries := await store.read(SESSION, after=len(found)):
            for entry in entries:
                _, payload = message_of(entry, lambda _: "")
                found.append((entry.offset, text_of(payload)))
    return found


def text_of(payload: dict) -> str:
    return str(payload.get("text") or payload.get("content") or payload.get("event"))


def check(seen: Seen, log: list[tuple[int, str]]) -> None:
    assert seen.gaps == 0
    assert [offset for offset, _ in log] == list(range(1, len(log) + 1))
    assert seen.read == log
    mine = Counter(text for _, text in log if text.startswith("m"))
    assert set(mine) == set(seen.stored)
    assert set(mine.values()) == {1}
    by_offset = dict(log)
    assert all(by_offset[offset] == text for text, offset in seen.stored.items())


async def in_python(url: str, faults: Awaitable[None], quiet: Callable[[], Awaitable[int]], folder: Path) -> Seen:
    """Read and send with the Python client while the faults happen."""
    read: list[tuple[int, str]] = []
    stored: dict[str, int] = {}
    gaps = 0
    window = asyncio.Semaphore(8)
    options = {
        "reconnect": QUICK,
        "connect_timeout": 1.0,
        "heartbeat_timeout": BEAT,
        "answer_timeout": 2 * BEAT,
        "inbox": 50,
    }

    async with (
        Client(url, token="token", outbox=folder / "outbox.db", **options) as client,
        client.create(SESSION) as session,
    ):

        async def reading() -> None:
            nonlocal gaps
            async for message in session:
                gaps += isinstance(message, Gap)
                if message.position is not None:
                    fields = {name: getattr(message, name) for name in ("text", "event") if hasattr(message, name)}
                    read.append((message.position.offset, text_of(fields)))

        async def send(text: str) -> None:
            try:
                stored[text] = await session.send(text)
            finally:
                window.release()

        async def writing() -> None:
            async with asyncio.TaskGroup() as sends:
                number = 0
                while not is_over.is_set():
                    await window.acquire()
                    sends.create_task(send(f"m{number}"))
                    number += 1
                    await asyncio.sleep(0.01)

        is_over = asyncio.Event()
        reader, writer = asyncio.create_task(reading()), asyncio.create_task(writing())
        await faults
        is_over.set()
        client.wake_up()
        await writer
        top = await quiet()
        while (session.position is None or session.position.offset < top) and not reader.done():
            # The last message counts as taken only when the next one is asked for.
            if read and read[-1][0] >= top:
                break
            await asyncio.sleep(0.01)
        reader.cancel()
        await asyncio.wait([reader])
        assert client.pending == []
    return Seen(read, stored, gaps)


async def in_node(url: str, faults: Awaitable[None], quiet: Callable[[], Awaitable[int]], folder: Path) -> Seen:
    """The same with the JavaScript client."""
    program = await asyncio.create_subprocess_exec(
        node(),
        "--experimental-websocket",
        "--no-warnings",
        str(HERE / "javascript" / "soak.mjs"),
        url,
        SESSION,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=2**30,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    await program.stdout.readline()
    await faults
    program.stdin.write(b"stop\n")
    await program.stdout.readline()
    program.stdin.write(b"%d\n" % await quiet())
    found = json.loads(await program.stdout.readline())
    await program.wait()
    read = [(offset, text_of(payload)) for offset, payload in found["read"]]
    return Seen(read, found["stored"], found["gaps"])


async def soak(client: Callable[..., Awaitable[Seen]], folder: Path, count: int, kills: int, seed: int) -> Faults:
    path = folder / "work.db"
    async with disturbed("bridge", path, seed) as (server, proxy, faults):

        async def quiet() -> int:
            """Let the server publish nothing any more, and return how long the log is."""
            await server.silence()
            return len(await log_of(path))

        url = f"ws://{proxy.address}/ws"
        seen = await client(url, faults.some(count, kills=kills), quiet, folder)
    log = await log_of(path)
    check(seen, log)
    assert len(seen.stored) >= count // 2
    print(  # noqa: T201 - the figures of the run
        f"{client.__name__}: {dict(faults.counts)}: {len(log)} messages read, {len(seen.stored)} sent, none lost or doubled"
    )
    return faults


@pytest.mark.parametrize(("client", "count", "kills"), [(in_python, 15, 1), (in_node, 6, 0)])
def test_a_sample_of_faults_loses_nothing(
    client: Callable[..., Awaitable[Seen]], count: int, kills: int, tmp_path: Path
) -> None:
    run(lambda: soak(client, tmp_path, count, kills, seed=7), 60)


async def losing(
    client: Callable[..., Awaitable[Seen]], kind: type[Vanishing | LostBytes], folder: Path, count: int, seed: int
) -> None:
    path = folder / "work.db"
    server = ServerProcess("bridge", path)
    await server.start()
    try:
        async with kind(server.port, seed).open() as relay:

            async def quiet() -> int:
                await server.silence()
                return len(await log_of(path))

            seen = await client(relay.url, relay.lose(count), quiet, folder)
    finally:
        await server.kill()
    check(seen, await log_of(path))


@pytest.mark.parametrize("client", [in_python, in_node])
def test_frames_that_vanish_on_a_living_connection_are_noticed_and_nothing_is_lost(
    client: Callable[..., Awaitable[Seen]], tmp_path: Path
) -> None:
    """Messages, acknowledgements, joins and heartbeats: whatever has no answer in time is sent again."""
    run(lambda: losing(client, Vanishing, tmp_path, 10, seed=5), 60)


@pytest.mark.parametrize("client", [in_python, in_node])
def test_bytes_that_vanish_in_the_middle_of_a_stream_end_the_connection_and_nothing_is_lost(
    client: Callable[..., Awaitable[Seen]], tmp_path: Path
) -> None:
    """One side reads something that nobody wrote and closes with 1002, 1007 or 1009. The client comes back and goes on where it was."""
    run(lambda: losing(client, LostBytes, tmp_path, 6, seed=5), 60)


@pytest.mark.soak
@pytest.mark.parametrize("client", [in_python, in_node])
def test_bytes_that_vanish_a_thousand_times_lose_nothing(
    client: Callable[..., Awaitable[Seen]], tmp_path: Path
) -> None:
    run(lambda: losing(client, LostBytes, tmp_path, 1000, seed=6), 1800)


@pytest.mark.soak
@pytest.mark.parametrize("client", [in_python, in_node])
def test_a_thousand_frames_that_vanish_lose_nothing(client: Callable[..., Awaitable[Seen]], tmp_path: Path) -> None:
    run(lambda: losing(client, Vanishing, tmp_path, 1000, seed=6), 1800)


@pytest.mark.soak
@pytest.mark.parametrize("client", [in_python, in_node])
def test_a_thousand_faults_lose_nothing(client: Callable[..., Awaitable[Seen]], tmp_path: Path) -> None:
    run(lambda: soak(client, tmp_path, 1000, 20, seed=11), 1800)


class Losses(NamedTuple):
    """What of a peer's messages did not arrive, or twice, and nobody was told."""

    published: int
    unread: int
    read_twice: int
    said: int
    unheard: int
    heard_twice: int


async def in_socketio(folder: Path, count: int, kills: int, seed: int) -> Losses:
    """The same traffic and the same faults with python-socketio, which reconnects by itself, at the delays of our own run."""
    read: list[str] = []
    said: list[str] = []
    journal = folder / "journal.txt"
    journal.touch()
    async with disturbed("socketio", journal, seed) as (server, proxy, faults):
        client = socketio.AsyncClient(reconnection_delay=0.01, reconnection_delay_max=0.1, request_timeout=1)
        client.on("chunk", read.append)
        url, is_over = f"http://{proxy.address}", asyncio.Event()

        async def staying() -> None:
            """Connect anew when its own reconnection has ended, as it does after an answer that it cannot read."""
            while not is_over.is_set():
                with suppress(Exception):
                    await client.connect(url, transports=["websocket"], wait_timeout=1)
                with suppress(Exception):
                    await client.wait()
                await asyncio.sleep(0.05)

        async def writing() -> None:
            while not is_over.is_set():
                text = f"m{len(said)}"
                # While it knows that it is not connected it raises, so the program can try again. That is no silent loss.
                with suppress(socketio.exceptions.SocketIOError):
                    await client.emit("say", text)
                    said.append(text)
                await asyncio.sleep(0.01)

        stayer, writer = asyncio.create_task(staying()), asyncio.create_task(writing())
        await faults.some(count, kills=kills)
        is_over.set()
        # An `emit` on a connection that is dead and not known to be may wait for ever.
        await asyncio.wait([writer], timeout=5 * BEAT)
        writer.cancel()
        await server.silence()
        # What is still on its way arrives within several heartbeats.
        await asyncio.sleep(5 * BEAT)
        stayer.cancel()
        with suppress(Exception):
            await asyncio.wait_for(client.shutdown(), 5 * BEAT)
        print(f"in_socketio: {dict(faults.counts)}")  # noqa: T201
    lines = journal.read_text(encoding="utf-8").split("\n")
    published = {line.removeprefix("sent ") for line in lines if line.startswith("sent ")}
    heard = Counter(line.removeprefix("received ") for line in lines if line.startswith("received "))
    return Losses(
        len(published),
        len(published - set(read)),
        len(read) - len(set(read)),
        len(said),
        len(set(said) - set(heard)),
        sum(heard.values()) - len(heard),
    )


@pytest.mark.soak
@pytest.mark.filterwarnings("default")
def test_a_peer_without_a_log_loses_messages_under_the_same_faults(tmp_path: Path) -> None:
    """The comparison means something only as long as the faults are bad enough to cost a common library messages."""

    async def work() -> None:
        losses = await in_socketio(tmp_path, 1000, 20, seed=11)
        print(losses)  # noqa: T201
        assert losses.published > 1000
        assert losses.unread > 0
        assert losses.unheard > 0

    run(work, 1800)
