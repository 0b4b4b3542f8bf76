"""Transports with recovery, for httpx and httpx2 (extra `httpx`).

    import httpx
    from holdfast.httpx import RecoveringTransport

    client = httpx.Client(transport=RecoveringTransport(httpx.HTTPTransport()))

The same classes work with both libraries.
"""

from __future__ import annotations

from holdfast.integrations.httpx import IDEMPOTENT, AsyncRecoveringTransport, RecoveringTransport
from holdfast.integrations.recovery_warnings import RecoveryWarning

__all__ = ["IDEMPOTENT", "AsyncRecoveringTransport", "RecoveringTransport", "RecoveryWarning"]
