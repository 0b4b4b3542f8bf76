"""MCP with recovery (extra `mcp`): sessions that connect again, their tools for a model, and our own tools served to others.

    from holdfast.mcp import recovering, stdio

    async with recovering(stdio(["atlas-server"]), name="atlas", effects={"search": "read"}) as atlas:
        result = await atlas.call_tool("search", {"query": "fjords"})
        toolbox = await atlas.toolbox()

`tool_fault` is an `accept` for functions of your own that call a tool. This module does not import the MCP SDK before you use
`stdio` or `serve`.
"""

from __future__ import annotations

from typing import Any

from holdfast._lazy import loader
from holdfast.extras import needs_extra
from holdfast.integrations.mcp.session import RecoveringSession, ToolResultError, recovering, tool_fault

# Type checkers assume that a variable of this name is true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.integrations.mcp.server import serve
    from holdfast.integrations.mcp.servers import Servers
    from holdfast.integrations.mcp.stdio import stdio

__all__ = ["RecoveringSession", "Servers", "ToolResultError", "recovering", "serve", "stdio", "tool_fault"]

_HOMES = {
    "Servers": "holdfast.integrations.mcp.servers",
    "serve": "holdfast.integrations.mcp.server",
    "stdio": "holdfast.integrations.mcp.stdio",
}

_load = loader(__name__, globals(), _HOMES)


def __getattr__(name: str) -> Any:
    with needs_extra("holdfast.mcp", "mcp", "mcp"):
        return _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
