"""An MCP server that is lost in the middle of calls: what is repeated, who waits how long, and what is left."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from clients_kit import in_time, world
from mcp import MCPError

from holdfast import Budget, DeadlineError, HoldfastError, OutcomeUnknownError, Policy, fault_of
from holdfast.events import MCPReconnectAttempt, MCPServerDisconnected, MCPServerReconnected
from holdfast.mcp import recovering


class Server:
    """A server that works until `lost` is set. Then its calls fail, and `connecting` says how connecting goes."""

    def __init__(self, connecting=None, *, leaving=0.0) -> None:
        self.connecting, self.leaving = connecting, leaving
        self.lost, self.reconnecting = asyncio.Event(), asyncio.Event()
        self.connections = self.open = 0
        self.calls: list[str] = []

    @asynccontextmanager
    async def connect(self):
        self.connections += 1
        self.open += 1
        try:
            if self.connections > 1:
                self.reconnecting.set()
            if self.connections > 1 and self.connecting is not None:
                await self.connecting(self.connections - 1)
            yield Session(self, self.connections)
        finally:
            await asyncio.sleep(self.leaving)
            self.open -= 1


class Session:
    def __init__(self, server: Server, number: int) -> None:
        self.server, self.number = server, number

    async def call_tool(self, name, arguments):
        self.server.calls.append(f"{name}@{self.number}")
        if self.number == 1 and name != "warm":
            await self.server.lost.wait()
            raise MCPError(-32000, "Connection closed")
        return type("Result", (), {"content": [], "is_error": False, "structured_content": {"on": self.number}})()

    async def list_tools(self):
        tools = [
            type("Listed", (), {"name": name, "description": "", "input_schema": None})() for name in ("book", "look")
        ]
        return type("Page", (), {"tools": tools})()


async def for_ever(_attempt: int) -> None:
    await asyncio.Event().wait()


async def refused(_attempt: int) -> None:
    raise ConnectionRefusedError("refused")


def session_of(runtime, server, **given):
    return recovering(server.connect, name="atlas", effects={"look": "read", "warm": "read"}, runtime=runtime, **given)


def test_of_two_calls_at_once_the_repeatable_one_is_repeated_and_the_other_one_is_unknown():
    runtime, heard = world()

    async def work():
        server = Server()
        async with session_of(runtime, server) as session:
            calls = [asyncio.ensure_future(session.call_tool(name)) for name in ("look", "book")]
            await asyncio.sleep(1)
            server.lost.set()
            looked, booked = await asyncio.gather(*calls, return_exceptions=True)
        return server, looked, booked

    server, looked, booked = in_time(runtime, work())
    assert looked.structured_content == {"on": 2}
    assert isinstance(booked, OutcomeUnknownError)
    assert server.calls == ["look@1", "book@1", "look@2"]
    assert len(heard.of(MCPServerDisconnected)) == len(heard.of(MCPServerReconnected)) == 1
    assert server.open == 0


def test_all_calls_share_one_schedule_of_attempts_to_reconnect():
    runtime, heard = world()

    async def work():
        server = Server(refused)
        now = asyncio.get_running_loop().time
        async with session_of(runtime, server) as session:
            calls = [asyncio.ensure_future(session.call_tool("look")) for _ in range(4)]
            await asyncio.sleep(1)
            server.lost.set()
            began = now()
            ends = []
            for call in calls:
                call.add_done_callback(lambda _: ends.append(now() - began))
            failed = await asyncio.gather(*calls, return_exceptions=True)
        return server, failed, ends

    server, failed, ends = in_time(runtime, work())
    assert server.connections == 1 + 5
    assert len(heard.of(MCPReconnectAttempt)) == 5
    assert [type(error) for error in failed] == [ConnectionRefusedError] * 4
    assert len({id(error) for error in failed}) == 4, "one error object would collect the notes of all callers"
    assert not any(fault_of(error).retryable or fault_of(error).maybe_executed for error in failed)
    assert max(ends) - min(ends) < 0.001


def test_a_caller_that_leaves_does_not_begin_the_schedule_anew_for_the_others():
    runtime, heard = world()

    async def third(attempt: int) -> None:
        if attempt < 3:
            raise ConnectionRefusedError("refused")

    async def work():
        server = Server(third)
        async with session_of(runtime, server) as session:
            first, second = (asyncio.ensure_future(session.call_tool("look")) for _ in range(2))
            await asyncio.sleep(1)
            server.lost.set()
            await server.reconnecting.wait()
            first.cancel()
            result = await second
            assert first.cancelled()
        return server, result

    server, result = in_time(runtime, work())
    assert result.structured_content == {"on": 4}
    assert [event.attempt for event in heard.of(MCPReconnectAttempt)] == [1, 2, 3]
    assert server.open == 0


def test_when_every_caller_has_left_nobody_connects_any_more():
    runtime, _ = world()

    async def work():
        server = Server(for_ever)
        async with session_of(runtime, server) as session:
            calls = [asyncio.ensure_future(session.call_tool("look")) for _ in range(2)]
            await asyncio.sleep(1)
            server.lost.set()
            await server.reconnecting.wait()
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            await asyncio.sleep(0.1)
            left = server.open
            server.connecting = None
            again = await session.call_tool("look")
        return server, left, again

    server, left, again = in_time(runtime, work())
    assert (left, again.structured_content) == (0, {"on": 3})
    assert server.open == 0


@pytest.mark.parametrize("through", ["session", "toolbox"])
def test_a_call_whose_time_ends_while_it_reconnects_was_surely_not_made(through):
    """Nobody declared the tool harmless, so its outcome would be unknown if it had been sent."""
    runtime, _ = world()

    async def work():
        server = Server(for_ever)
        async with session_of(runtime, server, policy=Policy(attempts=1, timeout=20)) as session:
            call = session.call_tool if through == "session" else (await session.toolbox()).call
            server.lost.set()
            with pytest.raises(OutcomeUnknownError):
                await call("book", {})
            with pytest.raises(DeadlineError) as caught:
                await call("book", {})
        return server, caught.value

    server, error = in_time(runtime, work())
    assert server.calls == ["book@1"]
    assert not fault_of(error).maybe_executed


def test_a_deadline_holds_while_a_half_open_connection_takes_long_to_close():
    runtime, _ = world()

    async def work():
        server = Server(for_ever, leaving=60)
        now = asyncio.get_running_loop().time
        async with session_of(runtime, server) as session:
            server.lost.set()
            began = now()
            with pytest.raises(DeadlineError):
                async with Budget(seconds=2, runtime=runtime):
                    await session.call_tool("look", {})
            took = now() - began
        return took, server

    took, server = in_time(runtime, work())
    assert took == pytest.approx(2, abs=0.01)
    assert server.open == 0, "the session waits for its end when it is left"


def test_a_session_that_is_left_while_a_call_reconnects_leaves_no_connection_behind():
    runtime, _ = world()

    async def slowly(_attempt: int) -> None:
        await asyncio.sleep(5)

    async def work():
        server = Server(slowly)
        async with session_of(runtime, server) as session:
            call = asyncio.ensure_future(session.call_tool("look"))
            await asyncio.sleep(1)
            server.lost.set()
            await server.reconnecting.wait()
        with pytest.raises(HoldfastError) as caught:
            await call
        await asyncio.sleep(60)
        return server, caught.value

    server, error = in_time(runtime, work())
    assert server.open == 0
    assert fault_of(error).maybe_executed is False
