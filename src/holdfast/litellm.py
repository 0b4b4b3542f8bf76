"""Recovery for LiteLLM's functions and Router (extra `litellm`).

    import litellm
    from holdfast.litellm import recovering

    completion = recovering(litellm.completion, fallbacks=["anthropic/claude-…"])
    router = recovering(litellm.Router(model_list=[…]))

The function or Router that you pass is not changed. This module does not import LiteLLM before you do.
"""

from __future__ import annotations

from holdfast.integrations.litellm import RecoveryWarning, recovering

__all__ = ["RecoveryWarning", "recovering"]
