"""MCP sessions that recover, with the real SDK: servers in this process and servers that die."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager

import pytest
from clients_kit import in_time, world
from mcp import Client, ClientSession, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from holdfast import InvalidError, OutcomeUnknownError, Policy, fault_of, recover
from holdfast.events import AttemptStarted, Failed, Recovered, decode, encode
from holdfast.mcp import ToolResultError, recovering, tool_fault
from holdfast.testing import no_waiting


class Server:
    """A server whose tools fail on script, and which counts the connections to it."""

    def __init__(self, *script: str | None) -> None:
        self.script = list(script)
        self.connections = 0
        self.calls = 0
        self.mcp = MCPServer("test")
        self.mcp.tool()(self.search)

    async def search(self, query: str) -> str:
        self.calls += 1
        failure = self.script.pop(0) if self.script else None
        if failure is not None:
            raise ToolError(failure)
        return f"found {query}"

    def connect(self) -> Client:
        self.connections += 1
        return Client(self.mcp)


class Dying(Server):
    """A server whose connection ends in the middle of the first calls, as the SDK reports it."""

    def __init__(self, deaths: int) -> None:
        super().__init__()
        self.deaths = deaths

    @asynccontextmanager
    async def connect(self):
        async with super().connect() as client:
            yield Mortal(client, self)


class Mortal:
    def __init__(self, client, server) -> None:
        self.client, self.server, self.dead = client, server, False

    async def call_tool(self, name, arguments):
        if self.server.deaths:
            self.server.deaths -= 1
            self.dead = True
        if self.dead:
            raise MCPError(-32000, "Connection closed")
        return await self.client.call_tool(name, arguments)

    async def list_tools(self):
        return await self.client.list_tools()


def ask(runtime, connect, *, calls=1, **options):
    async def asking():
        async with recovering(connect, runtime=runtime, **options) as session:
            return [await session.call_tool("search", {"query": "fjords"}) for _ in range(calls)][-1]

    return in_time(runtime, asking())


def test_a_call_is_the_servers_own_result():
    (runtime, heard), server = world(), Server()
    result = ask(runtime, server.connect, calls=3)
    assert result.content[0].text == "found fjords"
    assert (server.connections, server.calls) == (1, 3)
    assert not heard.of(Failed)


def test_FI11_a_result_that_is_marked_as_an_error_is_a_failure_and_retried():
    (runtime, heard), server = world(), Server("rate limit exceeded, too many requests", None)
    result = ask(runtime, server.connect, effects={"search": "read"})
    assert not result.is_error
    assert (server.calls, len(heard.of(Recovered))) == (2, 1)


@pytest.mark.parametrize("tool_failures", ["return", "raise"])
def test_FI11_one_that_nothing_helps_is_returned_or_raised_and_counted(tool_failures):
    (runtime, heard), server = world(), Server(*["unknown city; known are Oslo and Bergen"] * 9)
    if tool_failures == "return":
        result = ask(runtime, server.connect, effects={"search": "read"})
        assert result.is_error
    else:
        with pytest.raises(ToolResultError, match="known are Oslo") as caught:
            ask(runtime, server.connect, effects={"search": "read"}, tool_failures="raise")
        result = caught.value.result
    assert "known are Oslo and Bergen" in result.content[0].text
    assert len(heard.of(Failed)) == 1
    assert decode(encode(heard.of(Failed)[0])) == heard.of(Failed)[0]  # the result in its fault is plain data


def test_FI11_after_the_servers_death_the_next_attempt_has_a_new_session():
    (runtime, heard), server = world(), Dying(2)
    result = ask(runtime, server.connect, effects={"search": "read"}, policy=Policy(attempts=4))
    assert result.content[0].text == "found fjords"
    assert (server.connections, server.calls, len(heard.of(AttemptStarted))) == (3, 1, 3)


def test_FI11_an_unsafe_tool_is_not_repeated_on_the_new_session_and_later_calls_use_it():
    (runtime, _), server = world(), Dying(1)

    async def asking():
        async with recovering(server.connect, runtime=runtime) as session:
            with pytest.raises(OutcomeUnknownError) as caught:
                await session.call_tool("search", {"query": "fjords"})
            assert isinstance(caught.value.__cause__, MCPError)
            return await session.call_tool("search", {"query": "fjords"})

    assert in_time(runtime, asking()).content[0].text == "found fjords"
    assert (server.connections, server.calls) == (2, 1)


def test_FI11_calls_at_the_same_time_share_one_new_session():
    (runtime, _), server = world(), Dying(1)

    async def asking():
        async with recovering(server.connect, runtime=runtime, effects={"search": "read"}) as session:
            return await asyncio.gather(*(session.call_tool("search", {"query": "x"}) for _ in range(5)))

    assert len(in_time(runtime, asking())) == 5
    assert (server.connections, server.calls) == (2, 5)


def test_a_connection_that_cannot_be_made_is_tried_again_and_raises_its_own_error():
    runtime, heard = world()
    refused = [ConnectionRefusedError("refused")] * 2
    server = Server()

    @asynccontextmanager
    async def connect():
        if refused:
            raise refused.pop()
        async with server.connect() as client:
            yield client

    assert not ask(runtime, connect).is_error  # nothing was sent, so even an unsafe tool may be called
    assert len(heard.of(AttemptStarted)) == 3
    refused.extend([ConnectionRefusedError("refused")] * 9)
    with pytest.raises(ConnectionRefusedError):
        ask(runtime, connect)


def test_other_calls_recover_as_reads_and_the_rest_is_the_present_sessions():
    (runtime, _), server = world(), Server()

    async def asking():
        async with recovering(server.connect, runtime=runtime) as session:
            with pytest.raises(AttributeError, match="not connected"):
                session.server_info  # noqa: B018 - reading it is the test
            tools = await session.list_tools()
            return [tool.name for tool in tools.tools], session.server_info.name

    assert in_time(runtime, asking()) == (["search"], "test")


def test_a_function_of_ones_own_takes_the_check_as_accept():
    (runtime, heard), server = world(), Server("rate limit exceeded, too many requests", None)

    async def asking():
        async with server.connect() as client:

            @recover("tool:search", accept=tool_fault, effect="read", runtime=runtime)
            async def search(query):
                return await client.call_tool("search", {"query": query})

            return await search("fjords")

    assert not in_time(runtime, asking()).is_error
    assert len(heard.of(Recovered)) == 1


DIES = """
import os
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
server = MCPServer("dies")
@server.tool()
def search(query: str) -> str:
    marker = os.environ["MARKER"]
    if not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(1)
    return f"found {query}"
server.run("stdio")
"""


def test_FI11_a_process_that_died_is_started_again(tmp_path):
    """The whole way, with a real server in a process of its own that dies in the middle of the first call."""
    program = tmp_path / "dies.py"
    program.write_text(DIES)
    parameters = StdioServerParameters(
        command=sys.executable, args=[str(program)], env={"MARKER": str(tmp_path / "marker")}
    )

    @asynccontextmanager
    async def connect():
        async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
            await session.initialize()
            yield session

    async def asking():
        async with recovering(connect, effects={"search": "read"}, policy=Policy(attempts=3)) as session:
            return await session.call_tool("search", {"query": "fjords"})

    with no_waiting():
        assert asyncio.run(asking()).content[0].text == "found fjords"


def test_options_are_checked():
    for options in ({"name": ""}, {"effects": {"search": "harmless"}}, {"tool_failures": "tell"}):
        with pytest.raises(InvalidError):
            recovering(Server().connect, **options)
    with pytest.raises(InvalidError, match=r"recovering\.connect"):
        recovering(Client(Server().mcp))
    assert fault_of(MCPError(-32000, "Connection closed")).code == "TOOL_CONNECTION_LOST"
