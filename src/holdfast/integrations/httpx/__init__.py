"""Transports for httpx and httpx2 that recover: put one around the transport your client would have.

    transports  the two of them, sync and async
    sending     one request: what its method and body allow, and which answers are failures
    bodies      reading as much of a body as is needed, and handing on the rest
    bases       the classes of whichever library is there: an object of ours is at home in both

Invariant: one attempt is one request to the transport inside.
"""

from __future__ import annotations

from holdfast.integrations.httpx.sending import IDEMPOTENT
from holdfast.integrations.httpx.transports import AsyncRecoveringTransport, RecoveringTransport

__all__ = ["IDEMPOTENT", "AsyncRecoveringTransport", "RecoveringTransport"]
