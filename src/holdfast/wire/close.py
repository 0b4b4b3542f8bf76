"""Why a connection is closed: the codes of the bridge, and whether a client comes back after one.

Invariant: the range decides, so that a client understands codes that are newer than it is: 4000 to 4499 reconnect, 4500 to 4999
do not. The exceptions are what passes with the load of the server: an `auth` that came too late, and no free place. After a standard code for a message that cannot be read a client that was accepted
before comes back, because bytes that were lost on the way look the same; but not for ever.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.faults import Code

_REASON_BYTES = 123
"""The most bytes that a close frame has for its reason."""


class CloseCode(IntEnum):
    """The close codes that the bridge sends, and 1005 and 1006, which stand for a close without a code and without a frame."""

    BYE = 1000
    GOING_AWAY = 1001
    PROTOCOL = 1002
    BINARY = 1003
    NO_CODE = 1005
    NO_CLOSE = 1006
    INVALID_UTF8 = 1007
    TOO_BIG = 1009
    RESTART = 1012
    TRY_LATER = 1013
    SHUTDOWN = 4000
    SLOW = 4001
    GAP = 4002
    NO_HEARTBEAT = 4003
    INTERNAL = 4004
    TOKEN_EXPIRED = 4005
    BAD_TOKEN = 4500
    SEQUENCE = 4501
    AUTH_TIMEOUT = 4502
    FORBIDDEN = 4503
    LIMIT = 4504
    VERSION = 4505
    SESSION_CLOSED = 4506
    SUPERSEDED = 4507
    TOO_MANY_ERRORS = 4508
    REVOKED = 4509


UNREADABLE = frozenset({CloseCode.PROTOCOL, CloseCode.BINARY, CloseCode.INVALID_UTF8, CloseCode.TOO_BIG})
"""Standard codes that say that a message could not be read: the client is wrong, or bytes were lost on the way."""
_FINAL = UNREADABLE | {CloseCode.BYE}
"""Standard codes after which the same client would do the same again."""

_FOR_CODES: dict[str, CloseCode] = {
    "AUTH_FAILED": CloseCode.BAD_TOKEN,
    "AUTH_INVALID_TOKEN": CloseCode.BAD_TOKEN,
    "AUTH_TOKEN_EXPIRED": CloseCode.TOKEN_EXPIRED,
    "AUTH_TOKEN_REVOKED": CloseCode.REVOKED,
    "AUTH_FORBIDDEN": CloseCode.FORBIDDEN,
    "AUTH_INSUFFICIENT_SCOPE": CloseCode.FORBIDDEN,
    "CONN_HEARTBEAT_LOST": CloseCode.NO_HEARTBEAT,
    "CONN_INSECURE_TRANSPORT": CloseCode.FORBIDDEN,
    "CONN_LIMIT": CloseCode.LIMIT,
    "CONN_MISCONFIGURED": CloseCode.FORBIDDEN,
    "CONN_RATE_LIMITED": CloseCode.TRY_LATER,
    "CONN_SLOW_CONSUMER": CloseCode.SLOW,
    "CONN_SUPERSEDED": CloseCode.SUPERSEDED,
    "CONN_TIMEOUT": CloseCode.AUTH_TIMEOUT,
    "PROTO_BINARY_NOT_SUPPORTED": CloseCode.BINARY,
    "PROTO_INVALID_MESSAGE": CloseCode.TOO_MANY_ERRORS,
    "PROTO_MESSAGE_TOO_LARGE": CloseCode.TOO_BIG,
    "PROTO_SEQUENCE_ERROR": CloseCode.SEQUENCE,
    "PROTO_VERSION_INCOMPATIBLE": CloseCode.VERSION,
    "SESS_CLOSED": CloseCode.SESSION_CLOSED,
    "SESS_GAP": CloseCode.GAP,
}


def close_code_for(code: Code) -> CloseCode:
    """Return the close code for a fault that ends a connection; what has none of its own is an internal error."""
    return _FOR_CODES.get(code, CloseCode.INTERNAL)


def close_reason(text: str) -> str:
    """Return a reason that fits into a close frame."""
    return text.encode()[:_REASON_BYTES].decode("utf-8", "ignore")


def reconnects(code: int) -> bool:
    """Whether a client connects again after this close code, also after codes that it does not know.

    >>> reconnects(4001), reconnects(4500)
    (True, False)
    """
    if code in (CloseCode.AUTH_TIMEOUT, CloseCode.LIMIT):
        # A client sends `auth` at once: if it came too late, the network or the server was slow. A place becomes free again.
        return True
    if code >= CloseCode.SHUTDOWN:
        return code < CloseCode.BAD_TOKEN
    return code not in _FINAL
