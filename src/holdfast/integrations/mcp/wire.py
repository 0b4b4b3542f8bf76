"""Messages as lines of text, in both versions of the MCP SDK."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mcp import types
from mcp.shared.message import SessionMessage

from holdfast.faults.redaction import whole_escapes

__all__ = ["line_of", "message_of"]

_ADAPTER: Any = getattr(types, "jsonrpc_message_adapter", None)
"""None in version 1 of the SDK."""


def message_of(line: str) -> Any:
    """Parse one line as a message, or return the error: the SDK's sessions take both."""
    try:
        return _message(line)
    except ValueError as error:
        # Without its answer, the call would wait until its time is over.
        with suppress(ValueError):
            return _message(whole_escapes(line))
        return error


def _message(line: str) -> SessionMessage:
    if _ADAPTER is None:
        # The class is a type alias in version 2.
        message_class: Any = types.JSONRPCMessage
        return SessionMessage(message_class.model_validate_json(line))
    return SessionMessage(_ADAPTER.validate_json(line, by_name=False))


def line_of(message: SessionMessage) -> bytes:
    """Return the line of a message."""
    # Version 1 has fields that are set to None although they do not belong to the message.
    is_old = _ADAPTER is None
    return f"{message.message.model_dump_json(by_alias=True, exclude_none=is_old, exclude_unset=not is_old)}\n".encode()
