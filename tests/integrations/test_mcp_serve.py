"""Our tools as an MCP server in a real process, with the official client: results, failures, cancellation, and the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import pytest
from mcp import ClientSession, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from test_mcp_servers import living, run, token  # noqa: F401 - a fixture

from holdfast import InvalidError
from holdfast.mcp import recovering, serve, stdio

SERVER = """
import asyncio
from holdfast import tool
from holdfast.mcp import serve
from holdfast.tools import Toolbox, process_tool, run

@tool(effect="read")
async def search(query: str, limit: int = 3) -> str:
    "Search the atlas."
    print("this goes to stderr")
    return f"found {query} {limit}"

@tool(effect="idempotent")
def price(city: str) -> dict[str, int]:
    return {city: 3}

@tool(effect="unsafe")
async def fail() -> str:
    raise ValueError("no such city; the key is sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv")

@tool(effect="unsafe", timeout=0.3)
async def slow() -> str:
    return (await run(["sleep", "600"])).stdout

@tool(effect="unsafe", timeout=600)
async def wait() -> str:
    return (await run(["sleep", "601"])).stdout

asyncio.run(serve(Toolbox([search, price, fail, slow, wait]), name="atlas", instructions="Ask for cities."))
"""
COMMAND = [sys.executable, "-c", SERVER]
PATIENCE_S = 60
"""The SDK takes a second to import, and a busy machine makes ten of it."""


@asynccontextmanager
async def client(script=SERVER, **variables):
    env = {name: os.environ[name] for name in ("PYTHONPATH", "HOLDFAST_LEAK_CHECK") if name in os.environ} | variables
    parameters = StdioServerParameters(command=sys.executable, args=["-c", script], env=env)
    with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230, PTH123 - opened at once
        async with stdio_client(parameters, nowhere) as streams, ClientSession(*streams) as session:
            await session.initialize()
            yield session


def sleeping(word: str, seconds: str) -> list[str]:
    return [each for each in living(word) if f"sleep\\x00{seconds}" in each]


async def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)  # real processes start and end


def test_the_official_client_gets_schemas_results_and_failures_that_a_model_can_read(token):  # noqa: F811
    async def work():
        async with client() as session:
            listed = (await session.list_tools()).tools
            found = await session.call_tool("search", {"query": "fjords"})
            structured = await session.call_tool("price", {"city": "Oslo"})
            failed = await session.call_tool("fail", {})
            wrong = await session.call_tool("search", {"query": "x", "limit": "many"})
            late = await session.call_tool("slow", {})
            with pytest.raises(MCPError) as unknown:
                await session.call_tool("serch", {})
            return listed, found, structured, failed, wrong, late, unknown.value, sleeping(token, "600")

    listed, found, structured, failed, wrong, late, unknown, left = asyncio.run(work())
    tools = {tool.name: tool for tool in listed}
    assert tools["search"].description == "Search the atlas."
    assert tools["search"].input_schema["required"] == ["query"]
    assert (tools["search"].annotations.read_only_hint, tools["fail"].annotations.read_only_hint) == (True, False)
    assert (found.is_error, found.content[0].text) == (False, "found fjords 3")
    assert json.loads(structured.content[0].text) == structured.structured_content == {"Oslo": 3}
    assert failed.is_error
    assert "sk-ant" not in failed.content[0].text
    assert (wrong.is_error, "limit" in wrong.content[0].text) == (True, True)
    assert (late.is_error, "TIME" in late.content[0].text.upper()) == (True, True)
    assert (unknown.error.code, "search" in unknown.error.message) == (-32602, True)
    assert left == []


def test_a_call_that_the_client_cancels_ends_with_its_processes_and_the_server_goes_on(token):  # noqa: F811
    async def work():
        async with client() as session:
            call = asyncio.create_task(session.call_tool("wait", {}))
            await until(lambda: sleeping(token, "601"))
            call.cancel()
            await asyncio.wait([call])
            await until(lambda: not sleeping(token, "601"))
            return await session.call_tool("search", {"query": "fjords"})

    assert asyncio.run(work()).content[0].text == "found fjords 3"


@pytest.mark.parametrize("how", ["input ends", "SIGTERM"])
def test_nothing_is_left_when_the_client_goes_in_the_middle_of_a_call(token, how):  # noqa: F811
    requests = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "c", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {}}},
    ]
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        for request in requests:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n")
            server.stdin.flush()
        end = time.monotonic() + PATIENCE_S
        while not sleeping(token, "601") and time.monotonic() < end:
            time.sleep(0.02)  # a real process starts
        assert sleeping(token, "601")
        if how == "SIGTERM":
            server.send_signal(signal.SIGTERM)
        else:
            server.stdin.close()
        assert server.wait(PATIENCE_S) == 0
    assert sleeping(token, "601") == []


def test_a_server_of_ours_that_is_killed_in_the_middle_leaves_nothing_and_is_started_again(token):  # noqa: F811
    """Both ends are ours: the tool's process is part of the server's tree, so it dies with it."""

    async def work():
        async with recovering(stdio(COMMAND), name="atlas", effects={"search": "read"}) as atlas:
            toolbox = await atlas.toolbox()
            call = asyncio.create_task(toolbox.outcome("wait"))
            await until(lambda: sleeping(token, "601"))
            (server,) = [int(each.split()[0]) for each in living(token) if "sleep" not in each.split("\\x00")[0]]
            os.kill(server, signal.SIGKILL)
            ended = await call
            await until(lambda: not sleeping(token, "601"))
            return ended, await toolbox.call("search", {"query": "fjords"})

    (ended, found), _ = run(work())
    assert ended.fault.code == "TOOL_OUTCOME_UNKNOWN"
    assert found == "found fjords 3"


READERS = """
import asyncio, subprocess, sys
from holdfast import tool
from holdfast.mcp import serve
from holdfast.tools import Toolbox

@tool(effect="read")
async def echo(text: str) -> str:
    return text

@tool(effect="read")
def reader() -> str:
    return repr(sys.stdin.read())

@tool(effect="read")
def child() -> str:
    return repr(subprocess.run(["cat"], capture_output=True).stdout)

@tool(effect="read")
async def async_child() -> str:
    process = await asyncio.create_subprocess_exec("cat", stdout=subprocess.PIPE)
    return repr(await process.stdout.read())

asyncio.run(serve(Toolbox([echo, reader, child, async_child]), name="atlas"))
"""


def test_a_tool_that_reads_standard_input_gets_nothing_and_no_other_call_is_lost():
    async def work():
        async with client(READERS) as session:
            reading = [asyncio.create_task(session.call_tool(name, {})) for name in ("reader", "child", "async_child")]
            echoes = await asyncio.gather(*(session.call_tool("echo", {"text": str(n)}) for n in range(30)))
            return [each.content[0].text for each in echoes], [(await each).content[0].text for each in reading]

    echoes, read = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert echoes == [str(n) for n in range(30)]
    assert read == ["''", "b''", "b''"]


HOSTILE = """
import asyncio
from holdfast import tool
from holdfast.mcp import serve
from holdfast.tools import Toolbox

class OddError(BaseException): ...

@tool(effect="read")
async def stray() -> str:
    raise asyncio.CancelledError("x")

@tool(effect="read")
async def cancels_its_task() -> str:
    asyncio.current_task().cancel()
    await asyncio.sleep(10)

@tool(effect="read")
async def closes() -> str:
    raise GeneratorExit

@tool(effect="read")
async def odd() -> str:
    raise OddError("x")

@tool(effect="read")
def odd_in_a_thread() -> str:
    raise OddError("x")

@tool(effect="read")
async def echo(text: str) -> str:
    await asyncio.sleep(0.2)
    return text

asyncio.run(serve(Toolbox([stray, cancels_its_task, closes, odd, odd_in_a_thread, echo]), name="atlas"))
"""


HOSTILE_TOOLS = ("stray", "cancels_its_task", "closes", "odd", "odd_in_a_thread")


def test_no_tool_ends_the_server_whatever_it_raises():
    async def work():
        async with client(HOSTILE) as session:
            neighbour = asyncio.create_task(session.call_tool("echo", {"text": "beside"}))
            failed = [await session.call_tool(name, {}) for name in HOSTILE_TOOLS]
            after = await session.call_tool("echo", {"text": "after"})
            return failed, (await neighbour).content[0].text, after.content[0].text

    failed, beside, after = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert [each.is_error for each in failed] == [True] * len(HOSTILE_TOOLS)
    assert (beside, after) == ("beside", "after")


FROM_A_FILE = """
import asyncio, os, sys
from holdfast.integrations.mcp.server import _streams

async def main():
    async with _streams() as (incoming, outgoing):
        print("this goes to stderr")
        read = [message.message async for message in incoming]
        print([message.method for message in read], os.read(0, 1))
        await outgoing.aclose()

asyncio.run(main())
"""


def test_requests_in_a_file_are_read_and_a_tool_cannot_read_them(tmp_path):
    file = tmp_path / "requests"
    file.write_text('{"jsonrpc":"2.0","id":1,"method":"ping"}\n{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n')
    with file.open() as given:
        done = subprocess.run(
            [sys.executable, "-c", FROM_A_FILE], stdin=given, capture_output=True, check=True, timeout=PATIENCE_S
        )
    assert done.stdout == b""
    assert done.stderr.decode().splitlines() == ["this goes to stderr", "['ping', 'tools/list'] b''"]


def test_only_a_toolbox_is_served():
    with pytest.raises(InvalidError, match=r"serve\.toolbox"):
        asyncio.run(serve([print]))


ODD_RESULTS = r"""
import asyncio, os, sys
from typing import Any
from holdfast import tool
from holdfast.mcp import serve
from holdfast.tools import Toolbox

KEY = os.environ["SHOP_API_KEY"]
loop = []
loop.append(loop)
deep = []
for _ in range(100_000):
    deep = [deep]

class Silent:
    def __str__(self): raise SystemExit(4)

def exits(): raise SystemExit(3)
def recurses(): return recurses()
def fails(): raise ValueError("odd \ud800 text")

MADE = {
    "surrogate": lambda: {"name": "lone \ud800", "k\udfff": "v"},
    "secret": lambda: {"key": KEY, "list": [f"the key is {KEY}"], KEY: "as a name"},
    "large": lambda: {"text": "x" * 100_000_000},
    "many": lambda: {"rows": [{"id": n, "text": "y" * 20} for n in range(200_000)]},
    "wide": lambda: {str(n): n for n in range(100_000)},
    "cycle": lambda: {"loop": loop},
    "deep": lambda: {"deep": deep},
    "silent": lambda: {"it": Silent()},
    "numbers": lambda: {"huge": 10**40, "nan": float("nan"), "bytes": b"\xff"},
    "no_object": lambda: ["not", "an", "object"],
    "exits": exits,
    "recurses": recurses,
    "fails": fails,
}

def tool_of(name, make):
    def call(token: str = KEY) -> dict[str, Any]:
        return make()
    call.__doc__ = f"Calls it with {KEY}."
    return tool(effect="unsafe", name=name)(call)

@tool(effect="read", input={"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}, "required": ["a"]})
async def refers(a) -> str:
    return f"called with {a}"

asyncio.run(serve(Toolbox([*(tool_of(*each) for each in MADE.items()), refers])))
"""
KEY = 'pa"ss\\word-ü-0123456789'


def test_any_result_of_a_tool_is_answered_without_a_secret_and_capped_and_the_server_goes_on(token):  # noqa: F811
    async def work():
        async with client(ODD_RESULTS, SHOP_API_KEY=KEY) as session:
            listed = (await session.list_tools()).tools
            answers = {}
            for one in listed:
                arguments = {"a": "x"} if one.name == "refers" else {}
                answers[one.name] = await asyncio.wait_for(session.call_tool(one.name, arguments), PATIENCE_S)
            lone = await session.call_tool("refers", {})
            return listed, answers, lone

    listed, answers, lone = asyncio.run(work())
    for each in (*listed, *answers.values()):
        sent = each.model_dump_json()
        assert len(sent) < 300_000
        for form in (KEY, json.dumps(KEY)[1:-1], json.dumps(KEY, ensure_ascii=False)[1:-1]):
            assert form not in sent
            assert json.dumps(form)[1:-1] not in sent
    good = {name for name, answer in answers.items() if not answer.is_error}
    assert good == {"surrogate", "secret", "large", "many", "numbers", "refers"}
    assert answers["surrogate"].structured_content == {"name": "lone ?", "k?": "v"}
    assert answers["secret"].structured_content["key"] == "[redacted]"
    assert answers["large"].structured_content["text"].startswith("xxx")
    assert answers["many"].structured_content["rows"][0] == {"id": 0, "text": "y" * 20}
    assert "TOOL_OUTPUT_TOO_LARGE" in answers["wide"].content[0].text
    assert answers["wide"].content[1].text.startswith('{"0":0,')
    for name in ("cycle", "deep", "no_object"):
        assert "TOOL_OUTPUT_MALFORMED" in answers[name].content[0].text
    assert answers["refers"].content[0].text == "called with x"
    assert lone.is_error
