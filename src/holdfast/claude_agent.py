"""`query` of the Claude Agent SDK with recovery (extra `claude-agent`).

    from claude_agent_sdk import query
    from holdfast.claude_agent import recovering

    ask = recovering(query)
    async for message in ask(prompt="fix the tests"):
        print(message)

A query that failed before it did anything is made again; one that called a tool goes on with its own conversation. In a session
(`ask(prompt=…, session=session)`) its result is made once. The function that you pass is not changed.
"""

from __future__ import annotations

from holdfast.extras import needs_extra

with needs_extra("holdfast.claude_agent", "claude-agent-sdk", "claude-agent"):
    from holdfast.integrations.claude_agent import QueryError, QueryTimeoutError, RecoveringQuery, recovering

__all__ = ["QueryError", "QueryTimeoutError", "RecoveringQuery", "recovering"]
