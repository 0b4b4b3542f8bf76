"""The closed vocabularies a fault is described with.

Invariant: each word is the exact text that travels on the wire, in JSON and in the docs.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Category", "Kind", "Layer", "NextActor", "Schedule", "Scope", "Severity"]


class Layer(StrEnum):
    """Where in the system it failed (S0-1)."""

    TRANSPORT = "transport"
    """Sockets and TLS."""
    PROTOCOL = "protocol"
    """Message shape and order."""
    APPLICATION = "application"
    """Sessions, tools, providers, tasks."""
    RECOVERY = "recovery"
    """Reconnecting, replaying, protecting: the recovery machinery itself gave up."""


class Kind(StrEnum):
    """What kind of failure it is (S4-1), and so which family of answers is right."""

    TRANSIENT = "transient"
    """Passes by itself: try again."""
    RECOVERABLE = "recoverable"
    """An expected failure that a changed request or a fallback answers."""
    FATAL = "fatal"
    """The state is lost or wrong: restart or escalate."""
    PERMANENT = "permanent"
    """Will not pass: fail fast and say who must act."""
    CANCELLED = "cancelled"
    """Not an error: somebody asked to stop."""


class Severity(StrEnum):
    """How loud it is, and what the sinks do with it (S0-4)."""

    INFO = "info"
    """Log only."""
    WARNING = "warning"
    """Log and metrics."""
    ERROR = "error"
    """Log, notify, retry."""
    CRITICAL = "critical"
    """Log, alert, break the circuit."""
    FATAL = "fatal"
    """Log, terminate."""


class NextActor(StrEnum):
    """Who must act next."""

    MACHINE = "machine"
    """Holdfast or the other side: waiting, retrying or falling back is enough."""
    MODEL = "model"
    """The model: it can change its call."""
    USER = "user"
    """The person in front of the agent."""
    OPERATOR = "operator"
    """Whoever runs the system: keys, money, limits, hosts, configuration."""
    DEVELOPER = "developer"
    """Whoever wrote the calling code."""


class Scope(StrEnum):
    """What the failure belongs to, and so which circuit counts it."""

    REQUEST = "request"
    MODEL = "model"
    CREDENTIAL = "credential"
    PROVIDER = "provider"
    TOOL = "tool"
    AGENT = "agent"
    SESSION = "session"
    CONNECTION = "connection"
    PROCESS = "process"


class Schedule(StrEnum):
    """The name of a default retry schedule. Profiles hold its numbers; the catalog only names it."""

    NONE = "none"
    """Never retried by itself."""
    ONCE = "once"
    """One more try, then stop (out of memory, unknown failures)."""
    TRANSIENT = "transient"
    """Three attempts, 1 and 2 s apart (S2-15)."""
    RATE_LIMIT = "rate_limit"
    """The other side's delay exactly, else 5, 10, 20, 40, 80 s (S2-14)."""
    STORE = "store"
    """Three attempts, 2 and 4 s apart (S2-17)."""
    CONNECT = "connect"
    """1, 2, 5, 10 s and growing (S0-12)."""
    RECONNECT = "reconnect"
    """1, 2, 5, 10, 30 s, waiting first (S0-5)."""
    TOOL_SERVER = "tool_server"
    """At once, then 250 ms doubling to 4 s, five attempts (N2-3)."""
    TOOL = "tool"
    """Whatever the tool's own contract says; nothing by default (S2-16)."""


class Category(StrEnum):
    """Document 001's categories (S1-6), plus `unknown` and `cancelled`."""

    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    NETWORK = "network"
    UNAVAILABLE = "unavailable"
    AUTH = "auth"
    INVALID = "invalid"
    NOT_FOUND = "not_found"
    OVERFLOW = "overflow"
    TOOL_ERROR = "tool_error"
    AGENT_CRASH = "agent_crash"
    VALIDATION = "validation"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
