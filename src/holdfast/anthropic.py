"""Clients of the Anthropic SDK with recovery (extra `anthropic`).

    from anthropic import Anthropic
    from holdfast.anthropic import recovering

    claude = recovering(Anthropic())                      # the same class; its calls recover
    claude = recovering(Anthropic(api_key=…), Anthropic(api_key=…), weights=(2, 1))

The clients that you pass are not changed.
"""

from __future__ import annotations

from holdfast.extras import needs_extra

with needs_extra("holdfast.anthropic", "anthropic", "anthropic"):
    from holdfast.integrations.anthropic import RecoveryWarning, recovering

__all__ = ["RecoveryWarning", "recovering"]
