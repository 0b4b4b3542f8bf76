"""The closed sets of words that describe a fault.

Invariant: each value is the exact text on the wire, in JSON and in the docs.
"""

from __future__ import annotations

from enum import StrEnum


class Layer(StrEnum):
    """Where in the system the failure happened: `fault.layer is Layer.TRANSPORT`."""

    TRANSPORT = "transport"
    """Sockets and TLS."""
    PROTOCOL = "protocol"
    """Message shape and order."""
    APPLICATION = "application"
    """Sessions, tools, providers, tasks."""
    RECOVERY = "recovery"
    """The recovery itself: a circuit, a budget, the end of reconnecting."""


class Kind(StrEnum):
    """What kind of failure it is. The kind decides what can be done about it.

    For example:
        if fault.kind is Kind.TRANSIENT:
            queue.put(task)  # the same call may work later
    """

    TRANSIENT = "transient"
    """The failure is temporary: retry."""
    RECOVERABLE = "recoverable"
    """The failure is expected: a changed request or a fallback helps."""
    FATAL = "fatal"
    """The state is lost or wrong: restart or escalate."""
    PERMANENT = "permanent"
    """The failure is permanent: fail fast and name who must act."""
    CANCELLED = "cancelled"
    """Somebody stopped the call. This is not an error."""


class Severity(StrEnum):
    """How serious a failure is, and what the sinks do with it: `fault.severity is Severity.CRITICAL`."""

    INFO = "info"
    """Log only. Nobody notices it."""
    WARNING = "warning"
    """Log and metrics. Something is slower, or poorer."""
    ERROR = "error"
    """Log, notify, retry. Work is disturbed for a moment."""
    CRITICAL = "critical"
    """Log, alert, open the circuit. A service cannot be used."""
    FATAL = "fatal"
    """Log, terminate. The session is lost."""


class NextActor(StrEnum):
    """Who must act next: `if fault.next_actor is NextActor.OPERATOR: page(fault.for_audit())`."""

    MACHINE = "machine"
    """Holdfast or the server: waiting, retrying or falling back is enough."""
    MODEL = "model"
    """The model: it can change its call."""
    USER = "user"
    """The person in front of the agent."""
    OPERATOR = "operator"
    """The people who run the system: keys, money, limits, hosts, configuration."""
    DEVELOPER = "developer"
    """The people who wrote the calling code."""


class Scope(StrEnum):
    """What the failure belongs to. It decides which circuit counts the failure: `fault.scope is Scope.CREDENTIAL`."""

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
    """The name of a default retry schedule; profiles hold its numbers: `fault.schedule is Schedule.RATE_LIMIT`."""

    NONE = "none"
    """There is no automatic retry."""
    ONCE = "once"
    """There is one more attempt, then no other (out of memory, unknown failures)."""
    MATCHING = "matching"
    """There is one more attempt, also under profiles that retry nothing else (a search for context that found none)."""
    TRANSIENT = "transient"
    """By default any number of attempts for two minutes, 1 to 8 s apart."""
    RATE_LIMIT = "rate_limit"
    """Exactly the requested delay. If no delay is requested, as `TRANSIENT`."""
    STORE = "store"
    """Three attempts, 2 and 4 s apart."""
    CONNECT = "connect"
    """Delays of 1, 2, 5, 10 s, then longer."""
    RECONNECT = "reconnect"
    """Delays of 1, 2, 5, 10, 30 s; there is a delay before the first attempt, too."""
    TOOL_SERVER = "tool_server"
    """Five attempts: the first at once, then after 250 ms, doubling up to 4 s."""
    TOOL = "tool"
    """The retry policy of the tool's own contract; without one, no retry."""


class Category(StrEnum):
    """The broad category of a failure, for counters and charts: `fault.category is Category.RATE_LIMIT`."""

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

    # Other names of five of them, for programs that are written with the names of SPEC-016.
    SERVICE_UNAVAILABLE = "unavailable"
    AUTH_ERROR = "auth"
    INVALID_REQUEST = "invalid"
    CONTEXT_OVERFLOW = "overflow"
    VALIDATION_FAILED = "validation"
