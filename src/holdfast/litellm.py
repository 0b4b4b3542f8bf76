"""LiteLLM's calls, recovered (extra `litellm`).

    import litellm
    from holdfast.litellm import recovering

    completion = recovering(litellm.completion, fallbacks=["anthropic/claude-…"])
    router = recovering(litellm.Router(model_list=[…]))

Nothing changes on what is given, and LiteLLM is not imported before you do.
"""

from __future__ import annotations

from holdfast.integrations.litellm import RecoveryWarning, recovering

__all__ = ["RecoveryWarning", "recovering"]
