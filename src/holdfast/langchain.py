"""Recovery for LangChain and LangGraph: models, agents, nodes (extra `langchain`).

    from langchain_anthropic import ChatAnthropic
    from holdfast.langchain import RecoveryMiddleware, recovering, recovering_node, retry_policy

    claude = recovering(ChatAnthropic(model="claude-haiku-4-5"))      # the same class; `bind_tools` and pipes keep working
    agent = create_agent(model, tools, middleware=[RecoveryMiddleware(ChatOpenAI(model="gpt-5"))])
    graph.add_node("ask", recovering_node(ask))                       # Retry-After, circuits, deadline
    graph.add_node("ask", ask, retry_policy=retry_policy())           # LangGraph's own loop with our classifier
    graph.compile(checkpointer=StoreSaver(store))                     # checkpoints in SQLite or PostgreSQL

The models that you pass are not changed.
"""

from __future__ import annotations

from holdfast.extras import needs_extra
from holdfast.integrations.recovery_warnings import RecoveryWarning

with needs_extra("holdfast.langchain", "langchain", "langchain"):
    from holdfast.integrations.langchain import (
        RecoveryMiddleware,
        StoreSaver,
        recovering,
        recovering_node,
        retry_policy,
    )

__all__ = ["RecoveryMiddleware", "RecoveryWarning", "StoreSaver", "recovering", "recovering_node", "retry_policy"]
