"""LangChain and LangGraph, recovered.

    recovering   a chat model, or any other runnable, whose calls recover
    chat_models  chat models: their own class back, streams held until their first content
    runnables    everything else that can be invoked
    middleware   `RecoveryMiddleware` for agents: model calls with fallback models, tool calls by their effect
    graph        nodes of a graph: `recovering_node`, and `retry_policy` for LangGraph's own loop
    quiet        retries of others: switched off where we can, told where we cannot

Invariant: LangGraph's control flow (interrupts, commands to a parent, a drain) is never a failure.
"""

from __future__ import annotations

from holdfast.integrations.langchain.graph import recovering_node, retry_policy
from holdfast.integrations.langchain.middleware import RecoveryMiddleware
from holdfast.integrations.langchain.recovering import recovering

__all__ = ["RecoveryMiddleware", "recovering", "recovering_node", "retry_policy"]
