"""Which failures leave it open whether the request took effect.

Invariant: a code is listed when the request may have reached the other side and been acted on before we saw it fail.
A refused connection, a failed lookup and a refusal by status are not: there nothing was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.faults.codes import Code

__all__ = ["MAY_HAVE_HAPPENED"]

MAY_HAVE_HAPPENED: frozenset[Code] = frozenset({
    "CONN_HEARTBEAT_LOST",
    "CONN_RESET",
    "CONN_WEBSOCKET_CLOSED",
    "PROVIDER_GATEWAY_TIMEOUT",
    "PROVIDER_INTERNAL_ERROR",
    "PROVIDER_MALFORMED_RESPONSE",
    "PROVIDER_STREAM_CUT",
    "PROVIDER_STREAM_STALLED",
    "PROVIDER_TIMEOUT",
    "SYS_CANCELLED",
    "SYS_TIMEOUT",
    "SYS_UNKNOWN",
    "TOOL_CANCELLED",
    "TOOL_CONNECTION_LOST",
    "TOOL_CRASHED",
    "TOOL_KILLED",
    "TOOL_OUTCOME_UNKNOWN",
    "TOOL_OUT_OF_MEMORY",
    "TOOL_TIMEOUT",
    "ACTOR_CLI_NETWORK",
})  # fmt: skip
