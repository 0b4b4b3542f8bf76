"""Transports for httpx and httpx2 that recover. Put such a transport around the transport your client would have.

    transports  `RecoveringTransport` and `AsyncRecoveringTransport`
    exchange    one request and its response: what may be repeated, which responses are failures, how bodies are read

Invariant: one attempt is one request to the transport inside.
"""

from __future__ import annotations

from holdfast.integrations.httpx.exchange import IDEMPOTENT
from holdfast.integrations.httpx.transports import AsyncRecoveringTransport, RecoveringTransport

__all__ = ["IDEMPOTENT", "AsyncRecoveringTransport", "RecoveringTransport"]
