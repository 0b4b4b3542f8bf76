"""Agents in a process of their own: it outlives the server, is found again, and is started again when it dies. All processes are real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bridge_kit import Raw, offsets, raw, serving

from holdfast.bridge.host.channel import HostChannel
from holdfast.bridge.host.files import HostFiles, HostRecord
from holdfast.bridge.host.link import AgentProcess, HostLink, end_hosts
from holdfast.bridge.host.store_relay import StoreRelay
from holdfast.bridge.server import Bridge
from holdfast.bridge.settings import BridgeSettings
from holdfast.faults import HoldfastError, InvalidError
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.supervision.intensity import Rules
from holdfast.testing import run as virtually

pytestmark = pytest.mark.skipif(
    not hasattr(asyncio, "open_unix_connection"), reason="agents need Unix sockets to be detached"
)

_LIMIT = 120.0
"""Seconds: each test starts several processes, also on a machine that has much else to do."""
_LOOK_S = 0.02
AGENT = """
import asyncio, os, time
from pathlib import Path
from holdfast import Backoff, Policy
from holdfast.runtime.recover import recover

calls = []

@recover("flaky", policy=Policy(attempts=3, backoff=Backoff(initial=600, cap=600), patience=None))
async def flaky():
    calls.append(1)
    if len(calls) == 1:
        raise ConnectionResetError
    return "at last"

async def gate(name):
    while not Path(name).exists():
        await asyncio.sleep(0.02)

async def work(name):
    with open("done", "a") as file:
        file.write(f"{name}\\n")
    return name

async def agent(turn):
    what, _, more = turn.text.partition(" ")
    if what == "leave":
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
        return "a thread"
    if what == "count":
        await turn.say("one")
        Path("begun").touch()
        await gate("go")
        await turn.say("two")
        return "three"
    if what == "work":
        await turn.session.step(work, more)
        Path("begun").touch()
        await gate("go")
        return f"{more} is done"
    if what == "hang":
        Path("begun").touch()
        await asyncio.Event().wait()
    if what == "retry":
        return await flaky()
    if what == "password":
        return "right" if await turn.session.password("Password?") == "correct horse" else "wrong"
    if what == "sign-in":
        yes = await turn.session.authenticate("Sign in", url="https://example.org/device", user_code="AB-12")
        return "in" if yes else "out"
    if what == "ask":
        return "yes" if await turn.approve("Really?") else "no"
    return f"{os.getpid()}: {turn.text}"
"""


async def agent(turn: Any) -> str:
    """The server needs only its name. What answers is in `app.py`, in the other process."""
    raise AssertionError("the agent ran in the server")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with the agent, for a home and a store. What is left of the agents is ended."""
    (tmp_path / "app.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bridge_kit.LIMIT", 30.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    yield tmp_path
    asyncio.run(end_hosts(tmp_path))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(_LIMIT):
            await work()

    asyncio.run(limited())


async def until(holds: Callable[[], Any]) -> Any:
    while not (found := holds()):  # noqa: ASYNC110 - another process makes it true
        await asyncio.sleep(_LOOK_S)
    return found


def host_pid(folder: Path) -> int:
    """Return the process of the agents; 0 if there is none."""
    (files,) = HostFiles.all_in(folder) or (None,)
    record = None if files is None else files.record()
    return 0 if record is None else record.pid


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that has ended and was not waited for is not alive.
    return (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" if Path("/proc").exists() else True
    )


@asynccontextmanager
async def hosted_bridge(folder: Path, hang_timeout: float = 30.0, **settings: Any) -> AsyncIterator[Bridge]:
    """A server here whose agents run elsewhere."""
    agents = AgentProcess(agent="app:agent", home=folder, hang_timeout=hang_timeout)
    options = {"agents": agents, "limits": BridgeSettings(**settings)}
    async with serving(agent, store=str(folder / "work.db"), **options) as bridge:
        yield bridge


@asynccontextmanager
async def hosted(folder: Path, **settings: Any) -> AsyncIterator[Raw]:
    """Such a server, and a client of it."""
    async with hosted_bridge(folder, **settings) as bridge, raw(bridge) as client:
        await client.auth()
        yield client


async def sign_in(client: Raw) -> str:
    """Return the question that shows the code: as a message, or in the state that whoever joins gets."""
    while True:
        for message in client.received:
            for payload in (message["payload"], *message["payload"].get("pending_questions", ())):
                if payload.get("user_code") == "AB-12":
                    return str(payload["question_id"])
        await client.next()


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Return what was said, replayed or live, as it came."""
    inner = list[dict[str, Any]]()
    for message in messages:
        again = message["payload"]["messages"] if message["type"] == "replay_buffer" else [message]
        inner += [json.loads(each) if isinstance(each, str) else each for each in again]
    return [each["payload"]["text"] for each in inner if each["type"] == "stream_chunk"]


@asynccontextmanager
async def serve_process(folder: Path) -> AsyncIterator[tuple[subprocess.Popen[str], Any]]:
    """The real command, and where it serves."""
    env = os.environ | {"BRIDGE_TOKEN": "t" * 40, "HOOK_TOKEN": "h" * 40, "HOLDFAST_BRIDGE_HOME": str(folder)}
    store = f"sqlite:{folder / 'work.db'}"
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "serve",
        "app:agent",
        "--port",
        "0",
        "--store",
        store,
        "--detach-agents",
    ]
    process = subprocess.Popen(  # noqa: ASYNC220 - it is killed
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.to_thread(process.stdout.readline)).strip()
        assert url, await asyncio.to_thread(process.communicate)
        yield process, SimpleNamespace(ws_url=f"{url.replace('http', 'ws', 1)}/ws")
    finally:
        process.kill()
        process.communicate()


def test_N0_22_agents_go_on_while_the_server_is_dead_and_the_next_one_finds_them(folder: Path) -> None:
    """The server is killed in the middle of an answer. Its clients get all of it from the next server, without a gap or a double."""

    async def work() -> None:
        async with serve_process(folder) as (server, bridge), raw(bridge) as client:
            await client.auth("t" * 40)
            await client.create("s")
            await client.say("count")
            assert await client.said() == "one"
            await until((folder / "begun").exists)
            pid = host_pid(folder)
            server.send_signal(signal.SIGKILL)
            server.wait()
        assert is_alive(pid)
        (folder / "go").touch()
        async with SqliteStore(folder / "work.db") as store:
            # Nobody is there, and the answer is given nevertheless.
            ended = 0
            while not ended:
                ended = sum(entry.type == "turn_ended" for entry in await store.read("s"))
        async with serve_process(folder) as (server, bridge), raw(bridge) as client:
            await client.auth("t" * 40)
            await client.join("s", history="full")
            await client.say("hello")
            assert await client.said() == f"{pid}: hello"
            assert texts(client.received) == ["one", "two", "three", f"{pid}: hello"]
            found = offsets(client.received)
            assert found == list(range(1, len(found) + 1))
            assert host_pid(folder) == pid
            # What an agent leaves in a thread keeps no process.
            await client.say("leave")
            assert await client.said() == "a thread"
            # A stop in order leaves them alone, too.
            server.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.wait) == 0
        assert is_alive(pid)
        command = [sys.executable, "-m", "holdfast", "serve", "--end-agents", "--home", str(folder)]
        ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        assert "the agents have ended" in ended.stderr
        await until(lambda: not is_alive(pid))

    run(work)


def test_N0_22_a_dead_host_is_replaced_and_its_turn_goes_on(folder: Path) -> None:
    """The process of the agents is killed in a turn. The next one goes on with it: no step is done twice, the message gets its answer."""

    async def work() -> None:
        async with hosted(folder) as client:
            await client.create("s")
            await client.say("work the-tests")
            await client.say("hello")
            await until((folder / "begun").exists)
            pid = host_pid(folder)
            os.kill(pid, signal.SIGKILL)
            (folder / "go").touch()
            assert await client.said() == "the-tests is done"
            again = await client.said()
            assert again.endswith(": hello")
            assert not again.startswith(str(pid))
            assert (folder / "done").read_text() == "the-tests\n"
            found = offsets(client.received)
            assert found == list(range(1, len(found) + 1))

    run(work)


def test_N0_22_a_host_that_hangs_is_ended_and_replaced_and_calls_do_not_wait_for_ever(folder: Path) -> None:
    """The process of the agents stands still in a turn. Whoever asks it gets an error, everybody hears of it, and the turn goes on elsewhere."""

    async def work() -> None:
        async with hosted(folder, hang_timeout=2.0) as client:
            await client.create("s")
            await client.say("work the-tests")
            await until((folder / "begun").exists)
            pid = host_pid(folder)
            os.kill(pid, signal.SIGSTOP)
            (folder / "go").touch()
            assert (await client.ask("stop", {}, "ack"))["payload"]["code"] == "SYS_BRIDGE_ERROR"
            assert await client.said() == "the-tests is done"
            (told,) = [each["payload"] for each in client.received if each["type"] == "notification"]
            assert told["notification_type"] == "agent_unavailable"
            assert told["data"]["code"] == "SYS_BRIDGE_ERROR"
            assert not is_alive(pid)
            assert host_pid(folder) not in (0, pid)
            assert (folder / "done").read_text() == "the-tests\n"

    run(work)


def test_a_host_is_asked_for_a_sign_of_life_and_hangs_only_without_one(folder: Path) -> None:
    """In virtual time: minutes of answers, then none. A call that waits then is told within the limit."""

    async def work() -> None:
        hangs, pings = asyncio.Event(), 0

        async def perform(op: str, _: dict[str, Any]) -> None:
            nonlocal pings
            pings += op == "ping"
            if hangs.is_set() or op == "slow":
                await asyncio.Event().wait()

        channel, other = [
            HostChannel(*await asyncio.open_unix_connection(sock=each), perform) for each in socket.socketpair()
        ]
        running = [asyncio.create_task(each.run()) for each in (channel, other)]
        process = AgentProcess(agent="app:agent", home=folder, hang_timeout=30.0)
        link = HostLink(process, BridgeSettings(), StoreRelay(MemoryStore()), str(folder / "work.db"))
        now = asyncio.get_running_loop().time
        watching, call = asyncio.create_task(link._watch(channel)), asyncio.create_task(channel.call("slow"))
        await asyncio.sleep(125)
        # An operation may take as long as it needs while the process answers.
        assert not watching.done()
        assert not call.done()
        assert pings == 12
        hangs.set()
        begun = now()
        with pytest.raises(HoldfastError, match="has ended"):
            await call
        await watching
        assert 20 <= now() - begun <= 30
        other.close()
        await asyncio.wait(running)

    virtually(work())


def test_a_server_replaces_a_host_that_it_finds_hanging_and_so_does_the_command_that_ends_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with hosted(folder) as client:
            await client.create("s")
            pid = host_pid(folder)
        os.kill(pid, signal.SIGSTOP)
        async with hosted(folder, hang_timeout=0.5) as client:
            await client.join("s")
            await client.say("hello")
            assert await client.said() == f"{host_pid(folder)}: hello"
            assert not is_alive(pid)
            pid = host_pid(folder)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr("holdfast.bridge.host.link.HANG_S", 0.5)
        assert await end_hosts(folder) == 1
        await until(lambda: not is_alive(pid))

    run(work)


def test_N0_22_a_host_that_ends_again_and_again_is_started_later_and_everybody_hears_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts a minute are allowed here. The third waits until the minute is over, and then the message gets its answer."""
    budget = "holdfast.bridge.host.link._RESTARTS"
    monkeypatch.setattr(budget, Rules(max_restarts=2, window=600.0))

    async def work() -> None:
        async with hosted(folder) as client:
            await client.create("s")
            first = host_pid(folder)
            os.kill(first, signal.SIGKILL)
            await client.say("hello")
            assert (await client.said()).endswith(": hello")
            while (await client.until("session_event"))["payload"]["event"] != "turn_ended":
                pass
            second = host_pid(folder)
            os.kill(second, signal.SIGKILL)
            told = (await client.until("notification"))["payload"]
            assert told["notification_type"] == "agent_unavailable"
            await client.say("hello again")
            assert not is_alive(second)
            assert host_pid(folder) == second
            monkeypatch.setattr(budget, Rules(max_restarts=2, window=0.001))
            assert (await client.said()).endswith(": hello again")
            assert host_pid(folder) not in (first, second)
            assert [each["type"] for each in client.received].count("notification") == 1

    run(work)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_hang_timeout_must_be_a_time(seconds: float) -> None:
    with pytest.raises(InvalidError, match="hang_timeout"):
        AgentProcess(agent="app:agent", hang_timeout=seconds)


def test_stop_commands_passwords_and_codes_reach_the_agents(folder: Path) -> None:
    """What is not in the store goes through the channel: each does what it does with an agent in the server, and secrets are not stored."""

    async def work() -> None:
        async with hosted(folder) as client:
            await client.create("s")
            await client.say("hang")
            await until((folder / "begun").exists)
            assert (await client.ask("stop", {}, "ack"))["type"] == "ack"
            assert (await client.until("notification"))["payload"]["notification_type"] == "turn_cancelled"
            assert (await client.ask("stop", {}, "ack"))["payload"]["code"] == "SESS_ILLEGAL_TRANSITION"

            await client.say("retry")
            shown = (await client.until("recovery"))["payload"]
            assert (shown["line"], shown["can"]) == ("Retrying... (2/3)", ["retry_now", "cancel"])
            command = {"run": shown["run"], "command": "retry_now"}
            assert (await client.ask("command", command | {"run": "x"}, "ack"))["payload"]["code"] == "SESS_NOT_FOUND"
            assert (await client.ask("command", command, "ack"))["type"] == "ack"
            assert await client.said() == "at last"

            await client.say("password")
            id_ = (await client.until("question"))["payload"]["question_id"]
            await client.ask("answer", {"question_id": id_, "value": "correct horse"}, "ack")
            assert await client.said() == "right"

            await client.say("sign-in")
            await client.ask("answer", {"question_id": await sign_in(client), "value": True}, "ack")
            assert await client.said() == "in"

            await client.ask("session_pause", {}, "ack")
            await client.ask("session_resume", {"session_id": "s"}, "session_joined", "ack", "session_ready")
            await client.say("hello")
            assert (await client.said()).endswith(": hello")
            await client.ask("session_end", {"reason": "user_request"}, "ack")

    run(work)
    stored = b"".join(path.read_bytes() for path in folder.glob("work.db*"))
    assert b"correct horse" not in stored
    assert b"AB-12" not in stored


def test_N0_23_the_settings_reach_the_agents_and_a_code_is_shown_again_after_a_restart(folder: Path) -> None:
    """Messages that wait are answered together. A server that comes back shows the code of an open sign-in, which no store has."""

    async def work() -> None:
        async with hosted(folder, coalesce=True) as client:
            await client.create("s")
            await client.say("work it")
            await until((folder / "begun").exists)
            await client.say("a")
            await client.say("b")
            (folder / "go").touch()
            assert await client.said() == "it is done"
            assert (await client.said()).endswith(": a\n\nb")
            await client.say("sign-in")
            await sign_in(client)
        async with hosted(folder, coalesce=True) as client:
            await client.join("s")
            await client.ask("answer", {"question_id": await sign_in(client), "value": True}, "ack")
            assert await client.said() == "in"

    run(work)


def test_agents_without_a_server_and_without_work_end_by_themselves(folder: Path) -> None:
    """A turn is finished first. One that only waits for a person does not keep the process: it goes on when there is a server again."""

    async def work() -> None:
        async with hosted_bridge(folder, agents_grace=0.1) as bridge, raw(bridge) as client, raw(bridge) as asked:
            await client.auth()
            await asked.auth()
            await asked.create("asks")
            await asked.say("ask")
            await client.create("s")
            await client.say("count")
            await until((folder / "begun").exists)
            pid = host_pid(folder)
        # Far more than the grace, and it goes on: its turn has not ended.
        await asyncio.sleep(0.3)
        assert is_alive(pid)
        (folder / "go").touch()
        await until(lambda: not is_alive(pid))
        assert host_pid(folder) == 0
        async with hosted_bridge(folder, agents_grace=0.1) as bridge, raw(bridge) as client, raw(bridge) as asked:
            await client.auth()
            await client.join("s", history="full")
            while texts(client.received) != ["one", "two", "three"]:
                await client.next()
            await asked.auth()
            await asked.join("asks", history="pending")
            state = await asked.until("session_state")
            id_ = state["payload"]["pending_questions"][0]["question_id"]
            await asked.ask("answer", {"question_id": id_, "value": True}, "ack")
            assert await asked.said() == "yes"

    run(work)


@asynccontextmanager
async def old_host(files: HostFiles) -> AsyncIterator[asyncio.Event]:
    """A process of agents of an older version, as a server sees it. It ends when it is asked to; the event says that it was."""
    ended = asyncio.Event()

    async def perform(op: str, _: dict[str, Any]) -> Any:
        if op == "end":
            ended.set()
            listener.close()
            files.forget(record)
        return {"version": "0.0.1", "pid": os.getpid()} if op == "hello" else None

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await HostChannel(reader, writer, perform).run()
        writer.close()

    record = HostRecord(pid=os.getpid(), address=files.address(), version="0.0.1")
    files.write(record)
    listener = await asyncio.start_unix_server(connected, record.address)
    try:
        yield ended
    finally:
        listener.close()


def test_N0_22_a_host_of_another_version_is_ended_and_replaced(folder: Path) -> None:
    async def work() -> None:
        files = AgentProcess(agent="app:agent", home=folder).files(str(folder / "work.db"))
        async with old_host(files) as ended, hosted(folder) as client:
            assert ended.is_set()
            await client.create("s")
            await client.say("hello")
            assert await client.said() == f"{host_pid(folder)}: hello"
            assert host_pid(folder) != os.getpid()

    run(work)


def test_what_cannot_be_detached_is_refused(folder: Path) -> None:
    """A store that no other process can open; a second server for the same agents; an agent that cannot be imported."""

    async def work() -> None:
        async with MemoryStore() as memory:
            with pytest.raises(InvalidError, match="another process"):
                async with serving(agent, store=memory, agents=AgentProcess(agent="app:agent")):
                    pass
        with pytest.raises(InvalidError, match="another process"):
            async with serving(agent, store="memory:", agents=AgentProcess(agent="app:agent", home=folder)):
                pass
        with pytest.raises(HoldfastError, match="there is no nowhere"):
            async with serving(agent, store="work.db", agents=AgentProcess(agent="nowhere:agent", home=folder)):
                pass
        async with hosted(folder):
            with pytest.raises(HoldfastError, match="Another server"):
                async with hosted(folder):
                    pass

    run(work)
