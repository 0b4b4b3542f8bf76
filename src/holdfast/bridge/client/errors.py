"""What the client of the bridge raises when it is not connected and will not connect again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from holdfast.faults import HoldfastError

if TYPE_CHECKING:
    from holdfast.faults import Code, Fault

__all__ = ["BridgeConnectionError", "ReconnectionExhaustedError", "connection_error", "rejected_error"]


class BridgeConnectionError(HoldfastError, ConnectionError):
    """The client is not connected, and does not connect again. What was not acknowledged is still in its outbox.

    try:
        await session.send("fix the tests")
    except BridgeConnectionError as error:
        print(error.fault.for_user())
    """

    code: ClassVar[Code] = "CONN_WEBSOCKET_CLOSED"


class ReconnectionExhaustedError(BridgeConnectionError):
    """Every attempt to connect again has failed: `error.fault.context["attempts"]`.

    The default schedule gives up when the server has given the session up, after five minutes. `Client(reconnect=…)` takes another one.
    """

    code: ClassVar[Code] = "CONN_RECONNECT_EXHAUSTED"


def connection_error(fault: Fault) -> BridgeConnectionError:
    """Return the error for a client that has given up."""
    kind = ReconnectionExhaustedError if fault.code == "CONN_RECONNECT_EXHAUSTED" else BridgeConnectionError
    return kind(fault)


def rejected_error(fault: Fault) -> HoldfastError:
    """Return the error for a message that the server rejects. It says which fields are wrong, and how."""
    listed = fault.context.get("violations")
    if not isinstance(listed, list):
        return HoldfastError(fault)
    broken = "; ".join(_violation(each) for each in listed if isinstance(each, dict))
    return HoldfastError(msgspec.structs.replace(fault, message=f"{fault.message}: {broken}") if broken else fault)


def _violation(given: dict[str, object]) -> str:
    received = f", received {given['received']!r}" if given.get("received") is not None else ""
    return f"{given.get('field', '$')}: {given.get('constraint', 'wrong')}{received}"
