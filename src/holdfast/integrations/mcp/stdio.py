"""`stdio`: an MCP server in a process of its own, which dies with everything that it has started.

Invariant: when a connection is left, cancelled or lost, no process of its server is alive.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict

import anyio
from mcp import ClientSession

from holdfast import options
from holdfast.integrations.mcp.connection import ENDED
from holdfast.integrations.mcp.wire import line_of, message_of
from holdfast.tools import Process, ProcessError, run

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

__all__ = ["StdioOptions", "stdio"]

_KEPT_BYTES = 65_536
_LAST_WORDS_S = 0.5
"""How long a server that has closed the connection may take to end, so that its own words can explain the failure."""


class StdioOptions(TypedDict, total=False):
    """The options of `stdio`."""

    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    inherit_env: bool
    pass_secrets: Collection[str]


@options.suggests
def stdio(
    command: Sequence[str | os.PathLike[str]], *, grace: float = 2.0, **given: Unpack[StdioOptions]
) -> Callable[[], AbstractAsyncContextManager[ClientSession]]:
    """Return a function that starts an MCP server and connects to it, for `recovering`.

        from holdfast.mcp import recovering, stdio

        async with recovering(stdio(["uvx", "mcp-server-git"]), name="git", effects={"git_status": "read"}) as git:
            result = await git.call_tool("git_status", {"repo_path": "."})

    command: the program and its arguments.
    cwd, env, inherit_env, pass_secrets: as `run` has them. Variables of this process that hold secrets are not passed on, unless
        `pass_secrets` names them.
    grace: seconds that the server has to end after its input has ended, and again after SIGTERM. Then it is killed, with everything
        that it has started.

    Connecting raises `ProcessError` with the server's last words if it ends at once or cannot be started. Wrong options raise
    `InvalidError`.
    """
    options.seconds("stdio.grace", grace, zero=True)
    # Made once here: a wrong option must raise where the user wrote it.
    program = run(command, stdin="pipe", output_cap=None, keep=_KEPT_BYTES, grace=grace, **given)

    @asynccontextmanager
    async def connect() -> AsyncIterator[ClientSession]:
        process = Process(program.command)
        try:
            async with _session(process, grace) as session:
                yield session
        finally:
            await process.stop()

    return connect


@asynccontextmanager
async def _session(process: Process, grace: float) -> AsyncIterator[ClientSession]:
    to_session, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, from_session = anyio.create_memory_object_stream[Any](0)
    reader = asyncio.create_task(_read(process, to_session))
    writer = asyncio.create_task(_write(process, from_session))
    try:
        async with ClientSession(incoming, outgoing) as session:
            await _initialize(session, process)
            setattr(session, ENDED, reader)
            yield session
    finally:
        # The order that MCP asks for: end of input, then a signal. The writer has written all that was sent.
        process.close_input()
        await process.wait(grace)
        for task in (reader, writer):
            task.cancel()
        await asyncio.gather(reader, writer, return_exceptions=True)
        for stream in (to_session, incoming, outgoing, from_session):
            stream.close()


async def _initialize(session: ClientSession, process: Process) -> None:
    try:
        await session.initialize()
    except Exception as error:
        if await process.wait(_LAST_WORDS_S):
            # It says more than "connection closed". After exit code 0 it says nothing.
            try:
                await process.finished()
            except ProcessError as failed:
                raise failed from error
        raise


async def _read(process: Process, to_session: Any) -> None:
    """Pass the server's messages to the session. When the server ends, so does the stream, and the session knows."""
    try:
        async for line in process.lines():
            if line.strip():
                await to_session.send(message_of(line))
    except (ProcessError, anyio.ClosedResourceError, anyio.BrokenResourceError):
        return
    finally:
        to_session.close()


async def _write(process: Process, from_session: Any) -> None:
    async for message in from_session:
        await process.write(line_of(message))
