"""One example of every message, for the reference page and the generated description. The tests read each of them.

Invariant: every type of `FROM_CLIENT` and of `FROM_SERVER` has its example in `examples.json`, and the example is valid.
"""

from __future__ import annotations

from pkgutil import get_data
from typing import Any, Final

import msgspec

from holdfast.wire.messages import DURABLE, FROM_CLIENT, FROM_SERVER

_TIME: Final = "2026-11-15T01:02:03.004Z"
_ID: Final = "0b8a7f60-1c2d-4e3f-8a9b-0c1d2e3f4a5b"
_REQUEST: Final = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
_SESSION: Final = "release-42"
_EPOCH: Final = "k3JxQ0s7Vn2mTzYw"
_ALL: Final[dict[str, dict[str, dict[str, Any]]]] = msgspec.json.decode(
    get_data("holdfast.wire", "examples.json") or b""
)
CLIENT_EXAMPLES: Final = _ALL["client"]
"""The payload of an example of every message from the client."""
SERVER_EXAMPLES: Final = _ALL["server"]
"""The payload of an example of every message from the server."""

_ABOUT_A_SESSION: Final = frozenset(
    {"ack", "answer", "approval_response", "command", "message", "request_replay", "session_message", "stop"}
)
_ANSWERS: Final = frozenset(
    {"heartbeat_pong", "sessions", "session_joined", "session_ready", "snapshot", "health_status"}
)


def example(type_: str, *, from_client: bool) -> dict[str, Any]:
    """Return a whole message of this type, as it is on the wire.

    >>> example("heartbeat_ping", from_client=True)["type"]
    'heartbeat_ping'
    """
    kinds, payloads = (FROM_CLIENT, CLIENT_EXAMPLES) if from_client else (FROM_SERVER, SERVER_EXAMPLES)
    if type_ not in kinds:
        raise KeyError(type_)
    message: dict[str, Any] = {"type": type_, "id": _ID, "timestamp": _TIME, "payload": payloads[type_]}
    if from_client:
        return message | ({"session_id": _SESSION} if type_ in _ABOUT_A_SESSION else {})
    if type_ in DURABLE:
        return message | {"session_id": _SESSION, "epoch": _EPOCH, "offset": 174}
    return message | ({"re": _REQUEST} if type_ in _ANSWERS else {})
