"""Clients of the OpenAI SDK with recovery (extra `openai`), also for xAI and other services with the same API.

    from openai import AsyncOpenAI
    from holdfast.openai import recovering

    gpt = recovering(AsyncOpenAI())                       # the same class; its calls recover

The clients that you pass are not changed.
"""

from __future__ import annotations

from holdfast.extras import needs_extra

with needs_extra("holdfast.openai", "openai", "openai"):
    from holdfast.integrations.openai import RecoveryWarning, recovering

__all__ = ["RecoveryWarning", "recovering"]
