"""Models of the OpenAI Agents SDK that recover: `recovering(model)`, or `recovering(provider)` for all models of one.

    models   the models and providers that come back, and the calls behind them
    events   one attempt at a stream: held until its first content, whole only with its last event
    tools    what a model is told when a tool failed

Invariant: what comes back is of the same class. The SDK's own exceptions, its control flow, pass through recovery
untouched: never retried, never counted.
"""

from __future__ import annotations

from holdfast.integrations.openai_agents.models import recovering
from holdfast.integrations.openai_agents.tools import tool_failure
from holdfast.integrations.recovery_warning import RecoveryWarning

__all__ = ["RecoveryWarning", "recovering", "tool_failure"]
