"""Clients of the OpenAI SDK that recover (extra `openai`); also for xAI and others that speak its protocol.

    from openai import AsyncOpenAI
    from holdfast.openai import recovering

    gpt = recovering(AsyncOpenAI())                       # the same class; its calls recover

Nothing changes on the clients that are given.
"""

from __future__ import annotations

from holdfast.extras import needs_extra

with needs_extra("holdfast.openai", "openai", "openai"):
    from holdfast.integrations.openai import RecoveryWarning, recovering

__all__ = ["RecoveryWarning", "recovering"]
