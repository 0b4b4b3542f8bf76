"""MCP servers in processes of their own: their tools in a toolbox, their deaths, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from clients_kit import in_time, world
from mcp import Client, MCPError
from mcp.server import MCPServer

from holdfast import HoldfastError, InvalidError, OutcomeUnknownError, fault_of
from holdfast.events import (
    AttemptStarted,
    Failed,
    MCPReconnectAttempt,
    MCPServerDisconnected,
    MCPServerReconnected,
    Retry,
    SuppressedError,
)
from holdfast.mcp import Servers, recovering, stdio
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import Capture, forget_targets, no_waiting
from holdfast.tools import ProcessError

# A server without the SDK: it starts in a moment. `die` ends it in the middle of a call, `hide` leaves a process that has left
# the group and ignores SIGTERM, `hang` never answers the first call and starts a process that holds its output open.
SMALL = """
import json, os, subprocess, sys, time
def tool(name):
    return {"name": name, "description": name, "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}}}
for line in sys.stdin:
    message = json.loads(line)
    method, result = message.get("method"), {}
    if "id" not in message:
        continue
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "small", "version": "1"}}
    elif method == "tools/list":
        page = (message.get("params") or {}).get("cursor")
        result = {"tools": [tool("fail")]} if page else {"tools": [tool("search"), tool("die"), tool("hide"), tool("pid")], "nextCursor": "2"}
    elif method == "tools/call":
        name, query = message["params"]["name"], message["params"].get("arguments", {}).get("query", "")
        text, bad = f"found {query}", False
        if name == "die":
            with open(query, "a") as file:
                file.write("x")
            if os.path.getsize(query) == 1:
                os._exit(3)
        elif name == "hide":
            child = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
        elif name == "hang" and not os.path.exists(query):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            with open(query + ".new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(query + ".new", query)
            continue
        elif name == "pid":
            text = str(os.getpid())
        elif name == "fail":
            text, bad = "unknown city; known are Oslo and Bergen", True
        result = {"content": [{"type": "text", "text": text}], "isError": bad}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
IGNORE = os.environ.get("IGNORE")
while IGNORE:
    time.sleep(1)
"""


@pytest.fixture(autouse=True)
def token(monkeypatch):
    """After every test, no process lives that it has started."""
    forget_targets()
    word = f"leak-check-{os.urandom(6).hex()}"
    monkeypatch.setenv("HOLDFAST_LEAK_CHECK", word)
    yield word
    until = time.monotonic() + 5
    while (left := living(word)) and time.monotonic() < until:
        time.sleep(0.02)  # a killed process needs a moment; the bound makes a leak fail
    assert left == []


def living(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()[:80]!r}")
            except OSError:
                continue
    return found


def small(**options):
    return stdio([sys.executable, "-c", SMALL], **options)


def run(work):
    heard = Capture()
    with no_waiting(), default_runtime().on(heard):
        return asyncio.run(work), heard


# --- tools ---


def test_a_text_that_no_json_can_hold_fails_its_own_call_alone():
    """The SDK's transports end over such a text, and every other call on the connection with them."""

    async def work():
        async with recovering(small(), name="atlas", effects={"search": "read"}) as session:
            before = await session.call_tool("pid", {})
            with pytest.raises(InvalidError) as raised:
                await session.call_tool("search", {"query": "a\ud800"})
            return before, await asyncio.wait_for(session.call_tool("pid", {}), 20), raised.value.fault

    (before, after, fault), _ = run(work())
    assert (fault.code, fault.maybe_executed) == ("TOOL_INPUT_INVALID", False)
    assert before.content[0].text == after.content[0].text  # the same process still answers


def test_the_tools_of_a_server_are_tools_of_a_toolbox():
    async def work():
        async with recovering(small(), name="atlas", effects={"search": "read"}) as session:
            toolbox = await session.toolbox()
            found = await toolbox.call("search", {"query": "fjords"})
            failed = await toolbox.answer("fail", {})
            wrong = await toolbox.answer("search", {"query": 7})
            missing = await toolbox.answer("serch", {})
            return toolbox, found, failed, wrong, missing

    (toolbox, found, failed, wrong, missing), _ = run(work())
    assert [schema["name"] for schema in toolbox.schemas()] == ["search", "die", "hide", "pid", "fail"]
    assert toolbox["search"].contract.effect == "read"
    assert toolbox["die"].contract.effect == "unsafe"
    assert found == "found fjords"
    assert (failed.is_error, failed.fault.code) == (True, "TOOL_EXECUTION_FAILED")
    assert "known are Oslo" in failed.content
    assert (wrong.fault.code, missing.fault.code) == ("TOOL_INPUT_INVALID", "TOOL_NOT_FOUND")


def test_a_tool_that_is_listed_twice_or_alike_or_cannot_be_used_keeps_no_other_from_being_called():
    names = ["search", "search", "files.read", "files_read", "files/read", "a" * 70 + "1", "a" * 70 + "2", "", "pid"]
    listing = "[" + ", ".join(f"tool({name!r})" for name in names) + "]"
    script = SMALL.replace('[tool("search"), tool("die"), tool("hide"), tool("pid")]', listing)

    async def work():
        async with recovering(stdio([sys.executable, "-c", script]), name="atlas") as session:
            toolbox = await session.toolbox()
            shown = [tool.name for tool in toolbox]
            return shown, [await toolbox.call(name, {"query": "x"}) for name in shown if name not in ("pid", "fail")]

    (shown, found), heard = run(work())
    assert shown == [
        "search", "files_read", "files_read_2", "files_read_3", "a" * 64, "a" * 62 + "_2", "pid", "fail",
    ]  # fmt: skip
    assert found == ["found x"] * 6
    assert [event.code for event in heard.of(SuppressedError)] == ["CONFIG_OPTION_INVALID"] * 2


def test_an_answer_with_half_a_character_arrives():
    # As Node writes a text that was cut in an emoji.
    script = SMALL.replace('f"found {query}"', 'f"found \\ud83d {query}"')

    async def work():
        async with recovering(stdio([sys.executable, "-c", script]), name="atlas") as session:
            return await asyncio.wait_for((await session.toolbox()).call("search", {"query": "x"}), 10)

    assert run(work())[0] == "found \ufffd x"


def test_one_call_of_a_toolbox_is_one_attempt_and_the_result_is_a_value():
    server, calls = MCPServer("test"), []

    @server.tool()
    def price(city: str) -> dict[str, int]:
        calls.append(city)
        return {"price": 3}

    @server.tool()
    def name(city: str) -> str:
        calls.append(city)
        raise MCPError(-32603, "database is locked")

    async def work():
        async with recovering(lambda: Client(server), name="atlas", effects={"name": "read"}) as session:
            toolbox = await session.toolbox(prefix="atlas_")
            assert await toolbox.call("atlas_price", {"city": "Oslo"}) == {"price": 3}
            return await toolbox.answer("atlas_name", {"city": "Oslo"})

    answer, heard = run(work())
    assert answer.is_error
    tried = [event for event in heard.of(AttemptStarted) if "name" in event.operation]
    assert len(tried) == len(calls) - 1


# --- death ---


def test_G27_a_read_only_call_is_repeated_on_a_new_connection(tmp_path):
    async def work():
        async with recovering(small(), name="atlas", effects={"die": "read"}) as session:
            return await session.call_tool("die", {"query": str(tmp_path / "calls")})

    result, heard = run(work())
    assert not result.is_error
    assert (tmp_path / "calls").read_text() == "xx"
    (lost,) = heard.of(MCPServerDisconnected)
    assert (lost.server, lost.fault.code) == ("atlas", "TOOL_CONNECTION_LOST")
    assert [event.attempt for event in heard.of(MCPReconnectAttempt)] == [1]
    assert [event.attempts for event in heard.of(MCPServerReconnected)] == [1]


@pytest.mark.parametrize("through", ["session", "toolbox"])
def test_G27_another_call_surfaces_as_unknown_and_the_next_one_has_a_new_connection(tmp_path, through):
    async def work():
        async with recovering(small(), name="atlas") as session:
            calls = session.call_tool if through == "session" else (await session.toolbox()).call
            with pytest.raises(OutcomeUnknownError):
                await calls("die", {"query": str(tmp_path / "calls")})
            return await calls("search", {"query": "fjords"})

    result, heard = run(work())
    assert (result if through == "toolbox" else result.content[0].text) == "found fjords"
    assert (tmp_path / "calls").read_text() == "x"
    assert len(heard.of(MCPServerReconnected)) == 1


def test_a_server_that_died_between_two_calls_is_started_again_and_nothing_is_unknown():
    """Nobody declared the tool harmless. It is called all the same, because the dead server cannot have run it."""

    async def work():
        async with recovering(small(), name="atlas") as session:
            first = int((await session.call_tool("pid")).content[0].text)
            os.kill(first, signal.SIGKILL)
            while not session._connection.over:  # noqa: ASYNC110 - a real process ends
                await asyncio.sleep(0.01)
            second = int((await session.call_tool("pid")).content[0].text)
            return first, second

    (first, second), heard = run(work())
    assert first != second
    assert heard.of(MCPServerDisconnected)[0].fault is None
    assert not heard.of(Failed)


def test_a_server_that_is_killed_in_the_middle_of_two_calls_ends_both_although_its_output_is_held_open(tmp_path):
    pid = tmp_path / "pid"

    async def work():
        async with recovering(small(grace=0.2), name="atlas", effects={"search": "read", "hang": "read"}) as session:
            read = asyncio.create_task(session.call_tool("hang", {"query": str(pid)}))
            while not pid.exists():  # noqa: ASYNC110 - a real process starts
                await asyncio.sleep(0.01)
            unsafe = asyncio.create_task(session.call_tool("die", {"query": str(pid)}))
            await asyncio.sleep(0)
            os.kill(int(pid.read_text()), signal.SIGKILL)
            return await asyncio.gather(read, unsafe, return_exceptions=True)

    (read, unsafe), heard = run(work())
    assert read.content[0].text == f"found {pid}"
    assert isinstance(unsafe, OutcomeUnknownError)
    assert len(heard.of(MCPServerReconnected)) == 1


class Refusing:
    """A server that answers once, dies, and then refuses so many connections."""

    def __init__(self, refusals: int, error: type[Exception] = ConnectionRefusedError) -> None:
        self.refusals, self.error, self.connections, self.at = refusals, error, 0, []
        self.dead = False

    @asynccontextmanager
    async def connect(self):
        self.at.append(asyncio.get_running_loop().time())
        if self.connections and self.refusals:
            self.refusals -= 1
            raise self.error("refused")
        self.connections += 1
        self.dead = self.connections == 1
        yield self

    async def call_tool(self, name, arguments):
        if self.dead:
            raise MCPError(-32000, "Connection closed")
        return type("Result", (), {"content": [], "is_error": False})()


def asked(runtime, server):
    async def work():
        async with recovering(server.connect, name="atlas", effects={"search": "read"}, runtime=runtime) as session:
            return await session.call_tool("search", {})

    return in_time(runtime, work())


def test_N2_3_the_reconnect_schedule_is_at_once_then_250_ms_doubling_five_times():
    (runtime, heard), server = world(), Refusing(4)
    asked(runtime, server)
    assert [event.attempt for event in heard.of(MCPReconnectAttempt)] == [1, 2, 3, 4, 5]
    assert {event.max_attempts for event in heard.of(MCPReconnectAttempt)} == {5}
    waits = [event.delay for event in heard.of(MCPReconnectAttempt)]
    assert waits[0] == 0
    for wait, expected in zip(waits[1:], (0.25, 0.5, 1.0, 2.0), strict=True):
        assert wait == pytest.approx(expected, rel=0.21)
    gaps = [after - before for before, after in zip(server.at[1:], server.at[2:], strict=False)]
    assert gaps == pytest.approx(waits[1:], abs=0.01)
    assert heard.of(MCPServerReconnected)[0].attempts == 5


def test_N2_3_after_five_attempts_the_call_gives_up_and_adds_none_of_its_own():
    (runtime, heard), server = world(), Refusing(99)
    with pytest.raises(ConnectionRefusedError) as caught:
        asked(runtime, server)
    assert len(server.at) == 1 + 5
    assert len(heard.of(Retry)) == 1
    assert not fault_of(caught.value).retryable


def test_N2_3_an_error_that_cannot_pass_ends_the_schedule():
    (runtime, heard), server = world(), Refusing(99, PermissionError)
    with pytest.raises(PermissionError):
        asked(runtime, server)
    assert len(heard.of(MCPReconnectAttempt)) == 1


# --- what is left ---


def test_nothing_is_left_of_a_server_that_hides_processes_and_ignores_the_end_of_its_input():
    async def work():
        async with recovering(small(grace=0.2, env={"IGNORE": "1"}), name="atlas") as session:
            await session.call_tool("hide")

    run(work())  # the fixture looks for what is left


def test_nothing_is_left_when_the_caller_is_cancelled(token):
    async def work():
        async with recovering(small(grace=0.2), name="atlas") as session:
            await session.call_tool("hide")
            await asyncio.Event().wait()

    async def cancelled():
        task = asyncio.create_task(work())
        while len(living(token)) < 2:  # noqa: ASYNC110 - real processes start
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return living(token)

    assert run(cancelled())[0] == []


def test_a_server_that_does_not_start_says_why():
    async def work(command):
        async with recovering(stdio(command), name="atlas") as session:
            await session.list_tools()

    with pytest.raises(ProcessError, match="no_such_module") as caught:
        run(work([sys.executable, "-c", "import no_such_module"]))
    assert not caught.value.fault.retryable
    with pytest.raises(ProcessError) as caught:
        run(work(["no-such-mcp-server"]))
    assert caught.value.fault.code == "TOOL_COMMAND_NOT_FOUND"


# --- several ---


def test_several_servers_have_one_toolbox_and_an_unknown_one_is_named():
    async def work():
        first, second = recovering(small(), name="atlas"), recovering(small(), name="git", effects={"search": "read"})
        async with Servers(first, second) as servers:
            toolbox = await servers.toolbox()
            found = await toolbox.call("git__search", {"query": "commits"})
            same = await servers.call_tool("git", "search", {"query": "commits"})
            with pytest.raises(HoldfastError) as caught:
                servers["gti"]
            return list(servers), toolbox, found, same.content[0].text, caught.value

    (names, toolbox, found, same, error), _ = run(work())
    assert names == ["atlas", "git"]
    assert {"atlas__search", "git__search"} <= {tool.name for tool in toolbox}
    assert found == same == "found commits"
    assert error.fault.code == "TOOL_SERVER_NOT_REGISTERED"
    assert "did you mean `git`" in str(error).lower()


def test_options_are_checked():
    with pytest.raises(InvalidError, match="two servers named"):
        Servers(recovering(small(), name="x"), recovering(small(), name="x"))
    with pytest.raises(InvalidError, match="servers"):
        Servers(small())
    with pytest.raises(InvalidError, match=r"stdio\.grace"):
        small(grace=-1)
    with pytest.raises(InvalidError, match=r"run\.command"):
        stdio("atlas-server")
