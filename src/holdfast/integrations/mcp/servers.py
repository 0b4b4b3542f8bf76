"""`Servers`: several MCP servers under their names, and all their tools in one toolbox."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.integrations.mcp.session import RecoveringSession
from holdfast.runtime.tool import ToolContract, contract_of_call, declare_by_call
from holdfast.tools import Toolbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["Servers"]


class Servers:
    """The MCP servers of an agent. Each is connected when it is first needed.

        from holdfast.mcp import Servers, recovering, stdio

        async with Servers(recovering(stdio(["git-server"]), name="git"), recovering(atlas, name="atlas")) as servers:
            toolbox = await servers.toolbox()                       # git__status, atlas__search
            result = await servers["git"].call_tool("status")

    Two servers of one name raise `InvalidError`.
    """

    def __init__(self, *sessions: RecoveringSession) -> None:
        self._sessions: dict[str, RecoveringSession] = {}
        for session in sessions:
            if not isinstance(session, RecoveringSession):
                raise InvalidError.at("servers", "what `recovering` returns", session)
            if session.name in self._sessions:
                raise InvalidError.saying("servers", "different names", f"two servers named {session.name!r}")
            self._sessions[session.name] = session
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for session in self._sessions.values():
            await self._open.enter_async_context(session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def __getitem__(self, name: str) -> RecoveringSession:
        """Return the session of a server. An unknown name raises `HoldfastError` (TOOL_SERVER_NOT_REGISTERED)."""
        found = self._sessions.get(name)
        if found is None:
            known = tuple(self._sessions)
            hint = options.suggestion(str(name), known) if known else "there are no servers"
            message = f"Tool server {name} is not registered; {hint}"
            context = {"server": str(name), "supported": list(known)}
            raise HoldfastError(Fault.of("TOOL_SERVER_NOT_REGISTERED", message, context=context))
        return found

    async def toolbox(self, *, policy: Policy | None = None, runtime: Runtime | None = None) -> Toolbox:
        """Return the tools of all servers. Their names begin with the server's: `git__status`.

            toolbox = await servers.toolbox()
            answer = await toolbox.answer("git__status")

        policy, runtime: those of the toolbox; by default the configured policy and the default runtime.

        Raises what connecting or listing raises, if a server does not answer.
        """
        sessions = self._sessions.values()
        listed = await asyncio.gather(*(session.tools(prefix=f"{session.name}__") for session in sessions))
        return Toolbox([tool for tools in listed for tool in tools], policy=policy, runtime=runtime)

    def _effect_of_call(self, server: str, tool: str, *_: Any, **__: Any) -> ToolContract | None:
        """Return what a step that calls this tool does to the world."""
        return contract_of_call(self[server].call_tool, (tool,), {})

    @declare_by_call(_effect_of_call)
    async def call_tool(self, server: str, tool: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call a tool of one server.

        result = await servers.call_tool("git", "status")
        """
        return await self[server].call_tool(tool, arguments)
