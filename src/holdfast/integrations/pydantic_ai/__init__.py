"""pydantic-ai, recovered.

    model      `RecoveringModel`: a model whose requests recover, streams included
    streams    its streams: held until their first content, watched from there to the end
    tools      `recovering_tool`: tool functions by their effect; what the model is told when one fails
    signals    what pydantic-ai raises to steer itself; `FALLBACK_ON` for its `FallbackModel`
    quiet      retries of others: switched off by the request's settings, told where they cannot be

Invariant: words for the model (`ModelRetry`, `ToolFailed`) and other control flow are never a failure.
"""

from __future__ import annotations

from holdfast.integrations.pydantic_ai.model import RecoveringModel
from holdfast.integrations.pydantic_ai.signals import FALLBACK_ON
from holdfast.integrations.pydantic_ai.tools import for_the_model, recovering_tool

__all__ = ["FALLBACK_ON", "RecoveringModel", "for_the_model", "recovering_tool"]
