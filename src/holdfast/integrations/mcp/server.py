"""`serve`: a `Toolbox` as an MCP server over standard input and output, on the official SDK.

Invariant: a failed tool is a result that the model can read, never a protocol error. When the client goes, cancels a call or ends this
process with a signal, the calls under way are cancelled, and their processes end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from holdfast import options
from holdfast._version import __version__
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.integrations.mcp.wire import line_of, message_of
from holdfast.policies.decide import is_repeatable
from holdfast.runtime.suppress import suppressed
from holdfast.tools import Answer, Toolbox
from holdfast.tools.output import LineSplitter
from holdfast.tools.toolbox import is_stray, structured_result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.tools import Tool

__all__ = ["serve"]

_READ_BYTES = 65_536
_INVALID_PARAMS = -32602
_INTERNAL_ERROR = -32603


@options.suggests
async def serve(
    toolbox: Toolbox, *, name: str = "holdfast", version: str = __version__, instructions: str | None = None
) -> None:
    """Serve the tools to one MCP client over standard input and output, until the client has gone.

        import asyncio
        from holdfast.mcp import serve
        from holdfast.tools import Toolbox, read_file, search

        asyncio.run(serve(Toolbox([read_file("."), search(".")]), name="project"))

    name, version, instructions: what the client learns about the server.

    Each call goes through the toolbox: arguments are checked, time limits and retries are those of the tool. A failure is a result with
    `isError` and the typed shape of the fault. An unknown tool is a protocol error, as MCP has it. While it serves, `print` writes to
    standard error, and a tool that reads standard input gets nothing. SIGTERM and SIGINT end it. Raises `InvalidError` for anything but a toolbox.
    """
    if not isinstance(toolbox, Toolbox):
        raise InvalidError.at("serve.toolbox", "a Toolbox", toolbox)
    server = _server(toolbox, name, version, instructions)
    with _ended_by_signals():
        async with _streams() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


def _server(toolbox: Toolbox, name: str, version: str, instructions: str | None) -> Server[Any]:
    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_listed(tool, shown) for tool, shown in _schemas(toolbox).items()])

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in toolbox:
            known = ", ".join(tool.name for tool in toolbox)
            raise MCPError(_INVALID_PARAMS, f"Unknown tool: {params.name}. Known tools: {known}")
        answer = await _answer(toolbox, params)
        tool = toolbox[params.name]
        return _result(answer, tool if "outputSchema" in _schemas(toolbox)[tool] else None)

    return Server(name, version=version, instructions=instructions, on_list_tools=list_tools, on_call_tool=call_tool)


async def _answer(toolbox: Toolbox, params: types.CallToolRequestParams) -> Answer:
    # In a task of its own: a tool that cancels the task it runs in would end the server.
    call = asyncio.ensure_future(toolbox.answer(params.name, params.arguments))
    try:
        return await call
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not is_stray(error):
            raise
        # One tool must not end a server that answers other calls, whatever it raises.
        context = {"tool": params.name, "reason": f"it raised {type(error).__name__}"}
        return Answer.failed(Fault.of("TOOL_EXECUTION_FAILED", context=context, maybe_executed=True))


def _schemas(toolbox: Toolbox) -> dict[Tool, dict[str, Any]]:
    return dict(zip(toolbox, toolbox.schemas("mcp"), strict=True))


def _listed(tool: Tool, shown: dict[str, Any]) -> types.Tool:
    effect = tool.contract.effect
    hints = {"readOnlyHint": effect == "read", "idempotentHint": is_repeatable(effect)}
    return types.Tool.model_validate({**shown, "annotations": hints})


def _result(answer: Answer, tool: Tool | None) -> types.CallToolResult:
    """Return the result of a call. `tool`: the one whose results have a schema; a result of another has none."""
    contents = [answer.content]
    structured: Any = None
    if tool is not None and not answer.is_error:
        try:
            structured = structured_result(tool, answer.value)
        except HoldfastError as error:
            # A tool with a schema of its results must return one of that shape, unless it failed.
            contents.insert(0, Answer.failed(error.fault).content)
    return types.CallToolResult(
        content=[types.TextContent(text=each) for each in contents],
        structured_content=structured,
        is_error=answer.is_error or len(contents) > 1,
    )


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the block as if the client had gone. By default they would leave the tools' processes behind."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    for number in numbers:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if not came or task.uncancel() > 0:
            raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _streams() -> AsyncIterator[tuple[Any, Any]]:
    """Connect the server to standard input and output.

    The SDK's own transport reads in a thread, which a signal cannot end: the process would hang until its input ends. It is used only
    where input cannot be waited for in the event loop.
    """
    with _own_input() as source, _own_output() as descriptor:
        if os.name != "posix" or stat.S_ISREG(os.fstat(source).st_mode):
            texts: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "closefd": False}
            lines = anyio.wrap_file(open(source, **texts)), anyio.wrap_file(open(descriptor, "w", **texts))  # noqa: PTH123, SIM115, ASYNC230 - open already
            async with stdio_server(*lines) as streams:
                yield streams
            return
        async with _streams_of(source, descriptor) as streams:
            yield streams


@asynccontextmanager
async def _streams_of(source: int, descriptor: int) -> AsyncIterator[tuple[Any, Any]]:
    to_server, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, from_server = anyio.create_memory_object_stream[Any](0)
    was_blocking = os.get_blocking(descriptor)
    os.set_blocking(descriptor, False)
    reader = asyncio.create_task(_read(source, to_server))
    writer = asyncio.create_task(_write(descriptor, from_server))
    try:
        yield incoming, outgoing
    finally:
        for task in (reader, writer):
            task.cancel()
        await asyncio.gather(reader, writer, return_exceptions=True)
        os.set_blocking(descriptor, was_blocking)
        for stream in (to_server, incoming, outgoing, from_server):
            stream.close()


@contextmanager
def _own_input() -> Iterator[int]:
    """Give the protocol standard input for itself: a tool that reads it, or a program that a tool starts, gets nothing."""
    descriptor, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        yield descriptor
    finally:
        os.dup2(descriptor, 0)
        os.close(descriptor)


@contextmanager
def _own_output() -> Iterator[int]:
    """Give the protocol standard output for itself: what a tool prints goes to standard error."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    try:
        yield descriptor
    finally:
        os.dup2(descriptor, 1)
        os.close(descriptor)


async def _read(source: int, to_server: Any) -> None:
    splitter = LineSplitter()
    try:
        while data := await _input(source):
            for line in splitter.feed(data):
                if line.strip():
                    await to_server.send(message_of(line))
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        return
    finally:
        to_server.close()


async def _input(source: int) -> bytes:
    """Wait for input; return it, or nothing at its end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(source, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(source)
    with suppress(OSError):  # a pipe that cannot be read is at its end
        return os.read(source, _READ_BYTES)
    return b""


async def _write(descriptor: int, from_server: Any) -> None:
    async for message in from_server:
        view = memoryview(_line_of(message))
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                await _writable(descriptor)
            except OSError:
                # The client does not read any more. Its input ends soon, too.
                break


def _line_of(message: Any) -> bytes:
    """Return the line of a message. One that cannot be written becomes the error of its request: the client must not wait for ever."""
    try:
        return line_of(message)
    except Exception as error:  # noqa: BLE001 - whatever the SDK's encoder raises, the server goes on
        suppressed(error, "a message to the MCP client could not be written")
        id_ = getattr(getattr(message.message, "root", message.message), "id", None)
        if not isinstance(id_, (str, int)):
            return b""
        answer = {
            "jsonrpc": "2.0",
            "id": id_,
            "error": {"code": _INTERNAL_ERROR, "message": "The answer cannot be written"},
        }
        return json.dumps(answer).encode() + b"\n"


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
