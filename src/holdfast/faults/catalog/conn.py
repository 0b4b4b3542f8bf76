"""CONN_: the network connection of the bridge, and of calls to providers and tools. The scope shows which it is."""

from __future__ import annotations

from holdfast.faults.catalog.entry import PERMANENT, REJECTED, TRANSIENT, Traits, entry
from holdfast.faults.enums import Category, Layer, NextActor, Schedule, Scope, Severity

_LINK: Traits = {
    **TRANSIENT,
    "layer": Layer.TRANSPORT,
    "category": Category.NETWORK,
    "classed": "ProviderTransient/NetworkTimeout",
    "http_status": 502,
}
_REFUSED: Traits = {
    **PERMANENT,
    "layer": Layer.TRANSPORT,
    "scope": Scope.CONNECTION,
    "category": Category.NETWORK,
    "classed": "ToolTerminal/Forbidden",
}

ENTRIES = (
    # The bridge replays missed messages, so reconnecting loses nothing.
    entry(
        "CONN_WEBSOCKET_CLOSED",
        _LINK,
        "WebSocket connection closed unexpectedly",
        "The connection was lost. Reconnecting; nothing you sent is lost.",
        "Wait: Holdfast reconnects after 1, 2, 5, 10 and 30 s and replays what was missed",
        "Check the network or VPN if it does not come back",
        aliases=("WEBSOCKET_CLOSED", "SOCKET_CLOSED"),
        schedule=Schedule.RECONNECT,
        scope=Scope.CONNECTION,
        close_code=1006,
    ),
    # A bad certificate fails the same way again. A connection cut during TLS is CONN_RESET instead.
    entry(
        "CONN_TLS_HANDSHAKE_FAILED",
        _REFUSED,
        "TLS certificate validation failed",
        "The secure connection could not be set up because the other side's certificate was not accepted.",
        "Check that the certificate has not expired",
        "Check that the whole certificate chain is sent",
        "Check that the certificate names the host you connect to",
        "For a self-signed certificate, confirm its pinned hash",
        aliases=("TLS_HANDSHAKE_FAILED", "CERTIFICATE_VERIFY_FAILED"),
        scope=Scope.PROCESS,
        http_status=502,
        close_code=1015,
    ),
    # Nothing was sent, so a retry is safe for every effect.
    entry(
        "CONN_TIMEOUT",
        _LINK,
        "Connection attempt timed out",
        "The server could not be reached in time. Trying again.",
        "Wait: the connection is tried again after 1, 2, 5 and 10 s",
        "Check that the host and port are right and that no firewall drops the packets",
        aliases=("NETWORK_TIMEOUT", "CONNECT_TIMEOUT"),
        schedule=Schedule.CONNECT,
        category=Category.TIMEOUT,
        http_status=504,
        exit_code=6,
        task="TASK_FAILURE/execution_timeout",
    ),
    # A restarting server is back within seconds, so the failure is transient although nothing listens.
    entry(
        "CONN_REFUSED",
        _LINK,
        "Connection refused",
        "The server is not accepting connections right now. Trying again.",
        "Check that the server is running and listens on that port",
        "Check the address and the proxy settings",
        aliases=("ECONNREFUSED",),
    ),
    # The request may have been sent, so an unsafe call is not repeated.
    entry(
        "CONN_RESET",
        _LINK,
        "Connection was reset by the other side",
        "The connection broke off. Trying again.",
        "Wait for the retry; if it repeats, look for a proxy or load balancer with a short idle timeout",
        aliases=("network", "ECONNRESET", "CONNECTION_RESET"),
    ),
    # The route is missing on this machine, so no provider's circuit counts the failure.
    entry(
        "CONN_UNREACHABLE",
        _LINK,
        "Network is unreachable",
        "This machine cannot reach the server right now. Trying again.",
        "Check this machine's network, VPN and routes",
        aliases=("ENETUNREACH", "EHOSTUNREACH"),
        scope=Scope.PROCESS,
    ),
    # The resolver belongs to this machine, so no provider's circuit counts the failure.
    entry(
        "CONN_DNS_FAILED",
        _LINK,
        "Host name could not be resolved",
        "The address of the server could not be looked up. Trying again.",
        "Check the host name for a typing mistake",
        "Check this machine's DNS and network",
        aliases=("ENOTFOUND", "EAI_AGAIN", "DNS_FAILURE"),
        scope=Scope.PROCESS,
    ),
    # All retries have failed when this code is used, so it must not be retried itself.
    entry(
        "CONN_RECONNECT_EXHAUSTED",
        {**_LINK, "layer": Layer.RECOVERY},
        "Reconnection failed[ after {attempts} attempts]",
        "The connection could not be restored. Your unsent messages are kept.",
        "Reconnect by hand when the network is back",
        "Raise the number of attempts, or set no limit so that the client keeps trying",
        aliases=("RECONNECTION_EXHAUSTED", "ReconnectionExhaustedError", "BridgeConnectionException"),
        retryable=False,
        schedule=Schedule.NONE,
        next_actor=NextActor.USER,
        scope=Scope.CONNECTION,
    ),
    # The socket still looks open. Without a heartbeat TCP may need 15 minutes to notice.
    entry(
        "CONN_HEARTBEAT_LOST",
        _LINK,
        "No heartbeat answer[ within {timeout_s} s]",
        "The connection went silent. Reconnecting.",
        "Wait: Holdfast drops the silent connection and opens a new one",
        aliases=("HEARTBEAT_TIMEOUT",),
        schedule=Schedule.RECONNECT,
        scope=Scope.CONNECTION,
        close_code=4003,
    ),
    # Cutting one slow client keeps memory bounded for all others.
    entry(
        "CONN_SLOW_CONSUMER",
        {**_LINK, "layer": Layer.RECOVERY},
        "Client fell too far behind and was disconnected",
        "This device could not keep up and was disconnected; it reconnects and catches up from the log.",
        "Do nothing: the client reconnects and replays from its last position",
        schedule=Schedule.RECONNECT,
        scope=Scope.CONNECTION,
        close_code=4001,
    ),
    # Others can read a token on an unencrypted connection, so the connection is never upgraded silently.
    entry(
        "CONN_INSECURE_TRANSPORT",
        _REFUSED,
        "Connection is not encrypted",
        "This bridge only accepts encrypted connections.",
        "Connect with wss:// or https://",
        aliases=("INSECURE_TRANSPORT",),
        http_status=403,
        close_code=4503,
        category=Category.AUTH,
    ),
    entry(
        "CONN_MISCONFIGURED",
        _REFUSED,
        "The connection's configuration is wrong[: {reason}]",
        "The bridge is not set up for this connection.",
        "Run `holdfast doctor` on the machine of the bridge",
        aliases=("MISCONFIGURED",),
        http_status=500,
        close_code=4503,
        category=Category.INVALID,
    ),
    # This is permanent despite the 503, because somebody has to close a connection.
    entry(
        "CONN_LIMIT",
        _REFUSED,
        "Too many connections",
        "The bridge has no free place for another connection.",
        "Close a connection you no longer use",
        "Raise the bridge's connection limit",
        http_status=503,
        close_code=4504,
        category=Category.UNAVAILABLE,
        next_actor=NextActor.USER,
    ),
    entry(
        "CONN_RATE_LIMITED",
        _LINK,
        "Too many requests from this client",
        "You are sending faster than the bridge allows. The work continues in a moment.",
        "Wait as long as Retry-After says",
        aliases=("RATE_LIMITED", "RATE_LIMIT_EXCEEDED"),
        layer=Layer.PROTOCOL,
        schedule=Schedule.RATE_LIMIT,
        scope=Scope.CONNECTION,
        category=Category.RATE_LIMIT,
        classed="ProviderTransient/RateLimited",
        http_status=429,
        close_code=1013,
    ),
    entry(
        "CONN_UPGRADE_REQUIRED",
        REJECTED,
        "This address expects a WebSocket upgrade",
        "This address only speaks WebSocket.",
        "Open it with a WebSocket client",
        aliases=("WS_UPGRADE_REQUIRED",),
        layer=Layer.TRANSPORT,
        scope=Scope.CONNECTION,
        http_status=400,
        close_code=1002,
    ),
    # The close code forbids reconnecting. Otherwise two clients with the same id would disconnect each other without
    # end.
    entry(
        "CONN_SUPERSEDED",
        _REFUSED,
        "A newer connection of the same client took over",
        "You are connected from somewhere else now.",
        "Do nothing if that was you; otherwise revoke the device's token",
        close_code=4507,
        http_status=409,
        category=Category.CANCELLED,
        next_actor=NextActor.USER,
        severity=Severity.INFO,
    ),
)
