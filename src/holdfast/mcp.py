"""MCP sessions with recovery (extra `mcp`).

    from mcp import Client
    from holdfast.mcp import recovering

    async with recovering(lambda: Client("https://example.com/mcp"), effects={"search": "read"}) as session:
        result = await session.call_tool("search", {"query": "fjords"})

`tool_fault` is an `accept` for functions of your own that call a tool. This module does not import the MCP SDK before you do.
"""

from __future__ import annotations

from holdfast.integrations.mcp import RecoveringSession, ToolResultError, recovering, tool_fault

__all__ = ["RecoveringSession", "ToolResultError", "recovering", "tool_fault"]
