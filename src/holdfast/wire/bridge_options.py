"""`BridgeOptions`: the options of a bridge that may stand in a `holdfast.toml`.

Who may come is not among them (tokens, certificate, proxies, files): a file that lies in a folder must not decide that.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies.profiles import BRIDGE
from holdfast.wire.heartbeat import HEARTBEAT_S, HEARTBEAT_TIMEOUT_S
from holdfast.wire.replay import RING_AGE_S, RING_BYTES

OnGraceExpiry: TypeAlias = Literal["pause", "close", "detach"]
"""What becomes of a session whose last client has been gone for the whole grace time."""

_COUNTS = (
    "max_connections", "max_clients", "max_connections_per_address", "max_unauthenticated", "max_unauthenticated_per_address", "max_sessions",
    "max_inflight", "max_outgoing", "ring_bytes", "max_body", "max_headers", "max_header_bytes",
    "info_per_minute", "hooks_per_minute", "batches_per_minute", "sessions_per_minute", "files_per_minute", "messages_per_minute",
)  # fmt: skip
_SECONDS = (
    "ring_age", "resume_age", "send_timeout", "header_timeout", "body_timeout", "idle_timeout", "hook_timeout", "stop_timeout", "agents_grace",
)  # fmt: skip
_FLAGS = ("extended_hooks", "strict_hooks", "lenient_ids", "replays_log", "coalesce")


class ServerLimits(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What one connection may do: `ServerLimits(max_frame=65_536)`. Wrong options raise `InvalidError`."""

    max_frame: int = 1_000_000
    """Bytes of a message."""
    max_frame_before_auth: int = 8192
    """Bytes of a message of a client that has not authenticated."""
    auth_timeout: float = 10.0
    """Seconds until the client must have sent `auth`."""
    errors_per_minute: int = 10
    """Messages that cannot be read, until the connection is closed."""
    heartbeat: float = HEARTBEAT_S
    """Seconds of silence until it is asked whether the client is there."""
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S
    """Seconds that the client may take to answer."""
    public_session: float = 28_800.0
    """Seconds that a connection over the public internet lasts after its user has acknowledged the warning. The client may come back."""

    def __post_init__(self) -> None:
        for name in ("max_frame", "max_frame_before_auth", "errors_per_minute"):
            options.count(f"limits.{name}", getattr(self, name))
        for name in ("auth_timeout", "heartbeat", "heartbeat_timeout", "public_session"):
            options.seconds(f"limits.{name}", getattr(self, name))


class BridgeOptions(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """Where a bridge listens, how much it takes, and how its sessions behave. Wrong options raise `InvalidError`.

    BridgeOptions(port=4000, grace=600)
    """

    host: str = "127.0.0.1"
    """The address that it listens on. Others than loopback need TLS and tokens."""
    port: int = 3000
    """0: any free port."""
    connection: ServerLimits = ServerLimits()
    """What one connection may do."""
    max_connections: int = 2000
    """Connections of all clients. When many come back at once, their dead connections still have places for a while."""
    max_clients: int = 100
    """Connections in one session."""
    max_connections_per_device: int | None = None
    """Of them, those with one token. None: half, or all if there are fewer than 20."""
    max_connections_per_address: int = 2000
    """Connections from one address."""
    max_unauthenticated: int = 4000
    """Connections that have not authenticated yet. One of which much is held counts as several. Those whose bytes wait unread stay."""
    max_unauthenticated_per_address: int = 4000
    """Of them, those from one address."""
    max_sessions: int = 1000
    """Sessions in use at the same time."""
    max_sessions_per_device: int | None = None
    """Of them, those that one token has brought into use. None: half, or all if there are fewer than 20."""
    max_inflight: int = 32
    """Messages that a client may send before one is acknowledged."""
    max_outgoing: int = 1_000_000
    """Bytes that wait for a client that reads slowly."""
    messages_per_minute: int = 60_000
    """Messages of one connection. A client that sends faster is read more slowly."""
    send_timeout: float = 30.0
    """Seconds that a send to a slow client may take, until the client is cut off."""
    header_timeout: float = 10.0
    """Seconds that the headers of a request may take."""
    body_timeout: float = 15.0
    """Seconds that the body of a request may take."""
    idle_timeout: float = 60.0
    """Seconds that an idle HTTP connection is kept."""
    max_body: int = 1_000_000
    """Bytes of the body of a request."""
    max_headers: int = 64
    """Headers of a request."""
    max_header_bytes: int = 32_768
    """Bytes of all headers of a request."""
    info_per_minute: int = 600
    """Requests of one address to `/health` and `/info`, each minute."""
    hooks_per_minute: int = 1200
    """Hook events of one address, each minute."""
    batches_per_minute: int = 100
    """Batches of hook events of one address, each minute."""
    sessions_per_minute: int = 600
    """Requests of one address to `/sessions`, each minute."""
    files_per_minute: int = 600
    """Requests of one address to `/files`, each minute."""
    hook_timeout: float = 30.0
    """Seconds that a program that sends a hook event should wait for the answer. `/info` shows it."""
    hook_skew: float | None = None
    """Seconds by which the time of a hook event may differ from now. None: any time, as events may have waited."""
    extended_hooks: bool = True
    """Accept the hook events `PreCompact` and `Notification`, too. False: only the seven others."""
    strict_hooks: bool = False
    """Reject hook events whose payload lacks a field that its event should have."""

    # --- sessions ---
    grace: float = BRIDGE.limits["session_grace_s"]
    """Seconds that a session waits for its last client to come back; 0: not at all."""
    on_grace_expiry: OnGraceExpiry = "pause"
    """What becomes of a session to which nobody came back: `pause`, `close`, or `detach`, which leaves it to its agent."""
    ring_bytes: int = RING_BYTES
    """Bytes of each session's latest messages that are kept in memory. Older ones are read from the store."""
    ring_age: float = RING_AGE_S
    """Seconds for which messages are kept in memory."""
    replays_log: bool = True
    """Whether a client that is behind the memory gets the rest from the store. False: it gets a gap."""
    resume_age: float = 86_400.0
    """Seconds for which a client may come back with its resume token."""
    coalesce: bool = False
    """Answer messages that wait for the agent together, in one turn. False: each in a turn of its own."""
    agents_grace: float = 300.0
    """Seconds that agents in a process of their own wait for a server when they have nothing to do."""
    lenient_ids: bool = False
    """Accept message ids that are not UUIDs, as old clients send them."""
    stop_timeout: float = 10.0
    """Seconds that a stop in order may take."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            options.count(f"bridge.{name}", getattr(self, name))
        for name in ("max_connections_per_device", "max_sessions_per_device"):
            if getattr(self, name) is not None:
                options.count(f"bridge.{name}", getattr(self, name))
        for name in _SECONDS:
            options.seconds(f"bridge.{name}", getattr(self, name))
        options.seconds("bridge.grace", self.grace, zero=True)
        options.one_of("bridge.on_grace_expiry", self.on_grace_expiry, get_args(OnGraceExpiry))
        for name in _FLAGS:
            options.flag(f"bridge.{name}", getattr(self, name))
        options.count("bridge.port", self.port, least=0)
        if self.port > 65_535:
            raise InvalidError.at("bridge.port", "a port from 0 to 65535", self.port)
        if not isinstance(self.host, str):
            raise InvalidError.at("bridge.host", "an address or a name", self.host)
