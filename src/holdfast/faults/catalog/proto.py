"""PROTO_: messages that break the bridge's rules."""

from __future__ import annotations

from holdfast.faults.catalog.entry import REJECTED, Traits, entry
from holdfast.faults.enums import Category, Layer, NextActor, Scope

_BROKEN: Traits = {
    **REJECTED,
    "layer": Layer.PROTOCOL,
    "scope": Scope.CONNECTION,
    "close_code": 4501,
    "classed": "Validation/ShapeInvalid",
}

ENTRIES = (
    entry(
        "PROTO_INVALID_MESSAGE",
        _BROKEN,
        "Message validation failed",
        "The app sent a message the bridge does not understand.",
        "Fix the fields listed in `violations`",
        aliases=("INVALID_MESSAGE", "PARSE_ERROR"),
        classed="ToolTerminal/InputInvalid",
    ),
    entry(
        "PROTO_SEQUENCE_ERROR",
        _BROKEN,
        "Message[ {received}] is not allowed in [phase {phase}|this phase]",
        "The app sent its messages in the wrong order.",
        "Send `auth` first, `health_check` after `connection_ack`, session messages after `session_join`",
    ),
    entry(
        "PROTO_UNKNOWN_TYPE",
        _BROKEN,
        "Unknown message type[: {received}]",
        "The app sent something this bridge does not know.",
        "Use one of the supported types listed with the error",
        "Update the older side",
        aliases=("UNKNOWN_TYPE", "UNKNOWN_MESSAGE_TYPE"),
    ),
    # The same id with the same body is a resend, which is not an error. The same id with another body is an error.
    entry(
        "PROTO_DUPLICATE_ID",
        _BROKEN,
        "Message id[ {message_id}] was used before with another body",
        "A message was sent twice with different content. The first content counts.",
        "Give every message its own id; repeat an id only to resend the same body",
        http_status=409,
    ),
    entry(
        "PROTO_BINARY_NOT_SUPPORTED",
        _BROKEN,
        "Binary frames are not supported",
        "The app sent a binary message; this bridge only takes text.",
        "Send JSON in text frames",
        http_status=415,
        close_code=1003,
    ),
    # The message is rejected before it is read into memory, so a client cannot use up the bridge's memory.
    entry(
        "PROTO_MESSAGE_TOO_LARGE",
        _BROKEN,
        "Message[ of {size} bytes] exceeds the limit[ of {limit} bytes]",
        "That message is too large for the bridge.",
        "Split it, or raise the bridge's message limit",
        http_status=413,
        close_code=1009,
        category=Category.OVERFLOW,
    ),
    # The user acts next, because a person must update the app or the bridge.
    entry(
        "PROTO_VERSION_INCOMPATIBLE",
        _BROKEN,
        "Client and server have no common protocol version[: client {client}, server {server}]",
        "The app and the bridge speak different versions.",
        "Update the older side",
        aliases=("VERSION_INCOMPATIBLE",),
        http_status=426,
        close_code=4505,
        next_actor=NextActor.USER,
        classed="Validation/ContractVersionMismatch",
    ),
)
