"""What happened, as frozen tagged records: document 001's recovery events (S1-21) and the events of the runtime.

Invariant: an event is a fact. It names its kind (`type`), its version (`v`), when it happened and which run it belongs
to. It contains only values and never changes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.faults import REDACTOR, AnyCode, Fault, Redactor

# Raise it only if an older reader would misread a record; new optional fields need no new version.
VERSION = 1
"""The version of the records below. A reader accepts newer ones and ignores fields that it does not know."""


class TaskState(StrEnum):
    """What a task is doing. `holdfast.tasks.NEXT_STATES` lists which state may follow which."""

    CREATED = "created"
    """It was given to a system, and nothing was done for it yet."""
    READY = "ready"
    """It waits for its turn: other parts of the same task are performed."""
    ACTIVE = "active"
    """It is performed."""
    BLOCKED = "blocked"
    """It waits for something: for a subtask, for its parts, or for the answer of a person."""
    COMPLETED = "completed"
    FAILED = "failed"
    """It failed or was cancelled. With another request it may be created again."""


class CircuitState(StrEnum):
    """The state of a circuit: `change.to is CircuitState.OPEN`."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    at: float
    """Wall clock, seconds since the epoch."""
    run: str = ""
    """The id of the operation: it connects the attempts, delays and fallbacks of one call."""
    operation: str = ""
    """The name of the operation, for people: `claude messages.create`."""
    v: int = msgspec.field(default_factory=lambda: VERSION)
    """The version. Always written, so that a reader of an old log knows it; a plain default would be left out."""
    session: str = ""
    """The id of the session that it happened in; empty outside of sessions."""
    turn: int = 0
    """The number of the session's turn; 0 outside of turns."""
    step: str = ""
    """The name of the step in that turn; empty outside of steps."""
    within: str = ""
    """The run of the operation that it is part of, which goes on: it retries, falls back or reports the failure. Empty: there is none."""
    root: str = ""
    """The run of the outermost operation around it. Empty: there is none, or this is it."""
    request: str = ""
    """The id that the program gave to what it works on, with `holdfast.request`; empty outside of one."""
    began: float | None = None
    """When the operation began (wall clock), where the event is about an operation."""


class Retry(_Record, frozen=True, kw_only=True, tag="retry"):
    """An attempt failed and another one follows after `delay`: `print(event.text)` shows "Retrying... (2/3)".

    Where no number limits the attempts, it shows the time: "Retrying… attempt 4 · 37 s left".
    """

    attempt: int
    """The attempt that failed, counted from 1."""
    max_attempts: int | None
    """Calls in all. None: as many as the deadline allows."""
    delay: float
    """Seconds until the next attempt."""
    fault: Fault
    """Why the attempt failed."""
    requested: bool = msgspec.field(default=False, name="asked")
    """The other side requested this delay; it is not our own backoff. In JSON this field is `asked`."""

    left: float | None = None
    """Seconds until the deadline. None: there is none."""

    why: str = ""
    """Why it waits instead of falling back, where both were weighed: a warm prompt cache is worth the wait."""

    # Existing programs read the attribute by the name that JSON still has.
    @property
    def asked(self) -> bool:
        """The earlier name of `requested`."""
        return self.requested

    @property
    def text(self) -> str:
        """The line that a UI shows; it counts the next attempt."""
        if self.max_attempts is not None:
            return f"Retrying... ({self.attempt + 1}/{self.max_attempts})"
        return f"Retrying… attempt {self.attempt + 1}{'' if self.left is None else f' · {self.left:.0f} s left'}"


# `from` is a keyword in Python, so the field is `from_` here and `from` in JSON.
class CircuitStateChange(_Record, frozen=True, kw_only=True, tag="circuit-state-change", rename={"from_": "from"}):
    """A circuit opened, closed or let a probe through."""

    circuit: str
    from_: CircuitState
    to: CircuitState
    reason: AnyCode | None = None
    """The code of the failure that opened the circuit."""
    rule: str = ""
    """What opened it: failures in a row, their share, slow calls, or a person. `fallback`: only calls that a fallback can answer are not
    made; others are."""
    until: float | None = None
    """When an open circuit lets a probe through (wall clock)."""


class Fallback(_Record, frozen=True, kw_only=True, tag="fallback", rename={"from_": "from"}):
    """The next step of the fallback chain is called."""

    from_: str
    to: str
    fault: Fault | None = None
    """Why."""
    usd: float | None = None
    """What the prompt costs more there than here with its warm cache; None: unknown."""
    why: str = ""
    """How the costs were weighed; empty if nothing was."""


# Separate from Fallback: another agent has other tools and other costs.
class AgentFallback(_Record, frozen=True, kw_only=True, tag="agent-fallback", rename={"from_": "from"}):
    """A simpler agent takes over."""

    from_: str
    to: str
    fault: Fault | None = None
    usd: float | None = None
    """What it costs more than the one before; None: unknown."""
    why: str = ""
    """How the costs were weighed; empty if nothing was."""
    failed: str = ""
    """Who failed last, with `fault`, if that is another one than `from`: an agent that had taken over before."""


class Degraded(_Record, frozen=True, kw_only=True, tag="degraded"):
    """The caller got a lesser answer, such as a cached one."""

    reason: str
    """The message of the failure that the answer stands in for."""
    fault: Fault | None = None
    via: str = "degraded"
    """Where the answer comes from: `cached`, or `degraded`."""


class Recovered(_Record, frozen=True, kw_only=True, tag="recovered"):
    """The operation succeeded after a failure. At most once per operation."""

    after: float
    """Seconds from the first failure to success."""
    attempts: int
    via: str = "primary"
    took: float | None = None
    """Seconds of the whole operation, from its start to success."""


class Failed(_Record, frozen=True, kw_only=True, tag="failed"):
    """The operation failed for good."""

    fault: Fault
    exhausted: bool
    """All attempts were used; False if the failure allowed no other attempt."""
    attempts: int = 1
    reason: str = ""
    """Why no further attempt was made: `attempts`, `permanent`, `deadline`, `budget`, `circuit` …; empty if it is not known."""


# Separate from Failed: counting a cancellation as a failure would raise false alarms.
class Cancelled(_Record, frozen=True, kw_only=True, tag="cancelled"):
    """Somebody stopped the operation. Not a failure."""

    reason: str = ""
    attempts: int = 1


Command: TypeAlias = Literal["retry-now", "fall-back", "cancel"]
"""A command to an operation that waits: `command: Command = "retry-now"`."""


# Emitted first, so that the audit shows who caused what follows.
class Commanded(_Record, frozen=True, kw_only=True, tag="commanded"):
    """An operation that waits received a command. Emitted before the command takes effect."""

    command: Command
    by: str = ""
    """Who: `terminal`, or the name of a person or program."""


class AttemptStarted(_Record, frozen=True, kw_only=True, tag="attempt-started"):
    """A call begins."""

    attempt: int
    via: str = "primary"


class AttemptEnded(_Record, frozen=True, kw_only=True, tag="attempt-ended"):
    """A call ended, well (`fault` is None) or not."""

    attempt: int
    took: float
    fault: Fault | None = None
    via: str = "primary"
    target: str = ""
    """Who was called: the narrowest name of its target, `model:claude/opus`, or the fallback. Empty: it has no name."""
    model: str = ""
    """The model that answered, as the answer names it; empty where the answer names none."""
    tokens_in: int | None = None
    """Input, with what was written to a cache and without what was read from one. None: the answer reports no usage."""
    tokens_out: int | None = None
    tokens_cached: int | None = None
    """Input that was read from a cache."""
    usd: float | None = None
    """What it cost at list prices; None: unknown, which is not free."""
    maybe_billed: bool = False
    """It failed after the request was sent, and nobody knows whether it was paid for."""


WaitReason: TypeAlias = Literal["circuit", "turn", "place", "pace", "money"]
"""Why a call waits: `event.reason == "circuit"`.

circuit: an open circuit; turn: its turn at a target that is limited, or that has just failed another call; place: a place of
`concurrency`; pace: a start of `per_second`; money: what other calls have reserved of its budget. A `Retry` has the
delay after a failed attempt."""


# A wait may be looked at in parts. Each part is reported, so that a reader who begins in the middle knows it too.
class WaitBegan(_Record, frozen=True, kw_only=True, tag="waiting"):
    """A call waits before an attempt, for something other than the delay of a `Retry`. The next event of its run ends the wait.

    So every second of an operation is an attempt, a delay or a wait.
    """

    reason: WaitReason
    attempt: int
    """Attempts made so far."""
    target: str = ""
    """What it waits for: the name of a circuit, a limit or a target."""
    until: float | None = None
    """When it ends if nothing happens before (wall clock). None: nobody knows."""


# Emitted besides Failed: it shows that a limit, and not the failure, ended the operation.
class RetryDenied(_Record, frozen=True, kw_only=True, tag="retry-denied"):
    """A retryable failure was not retried: the quota, the budget or the deadline did not allow it."""

    attempt: int
    because: AnyCode
    """The code of the limit that did not allow it."""
    fault: Fault


class BudgetWarning(_Record, frozen=True, kw_only=True, tag="budget-warning"):
    """A budget is nearly spent, by default 80 % of it."""

    unit: str
    used: float
    limit: float


class Repaired(_Record, frozen=True, kw_only=True, tag="repaired"):
    """The request, its credential or its model was changed, and the call is repeated."""

    attempt: int
    """The attempt that failed, counted from 1."""
    action: str
    """What was changed: `compact`, or the name of the repair function."""
    fault: Fault


# Always emitted: items are never repeated silently.
class StreamResumed(_Record, frozen=True, kw_only=True, tag="stream-resumed"):
    """A stream broke off after its first item and goes on: it continues, or starts again from the beginning."""

    how: Literal["continue", "restart"]
    items: int
    """Items delivered before. After a restart they come again, and the earlier ones are void."""


# Separate from Failed: each agent of a chain may fail, and the user is notified once.
class SharedStateLost(_Record, frozen=True, kw_only=True, tag="shared-state-lost"):
    """The engine that processes share their knowledge on cannot be reached. Each process goes on by what it knows itself."""

    place: str
    """The engine's address, without user and password."""
    reason: str


class SharedStateBack(_Record, frozen=True, kw_only=True, tag="shared-state-back"):
    """The engine can be reached again."""

    place: str
    after: float
    """Seconds that it was lost."""


class UserNotified(_Record, frozen=True, kw_only=True, tag="user-notified"):
    """A role and all its understudies failed, and the user was notified. At most once per operation."""

    agent: str
    """The role."""
    tried: tuple[str, ...] = ()
    """Its understudies, in order."""
    people: int = 0
    """How many interactors showed it."""
    fault: Fault | None = None
    """Why the role itself failed."""


# Separate from Failed: the work has not ended. It waits for the answer.
class OperatorAsked(_Record, frozen=True, kw_only=True, tag="operator-asked"):
    """A person must act; `AlertSink` raises an alert.

    Work that is retried later failed as often as it may, or a session was left while nobody knows whether an unsafe step happened.
    """

    attempts: int
    """How often it failed."""
    fault: Fault
    """Why, the last time."""


class SuppressedError(_Record, frozen=True, kw_only=True, tag="suppressed-error"):
    """A failure was ignored on purpose, with the reason.

    `holdfast.suppress` emits it:
        with suppress(OSError, reason="the cache is optional"):
            cache.write(answer)
    """

    reason: str
    cause: str
    """The failure's text."""
    code: AnyCode | None = None

    @classmethod
    def of(
        cls, fault: Fault, reason: str, *, at: float, run: str = "", redactor: Redactor = REDACTOR
    ) -> SuppressedError:
        """Return the record of a fault that is ignored on purpose; secrets in its text are masked."""
        return cls(at=at, run=run, reason=reason, cause=redactor.text(fault.message), code=fault.code)


class MailboxPressure(_Record, frozen=True, kw_only=True, tag="mailbox-pressure"):
    """An actor's mailbox fills up, or is no longer full: senders can slow down before it rejects their messages."""

    actor: str
    level: Literal["none", "long", "high"]
    """`long`: more than 100 messages wait. `high`: 80 % of the capacity or more. `none`: the pressure is over."""
    size: int
    """How many messages wait."""
    capacity: int


# The only trace of a message that nobody waits for: its sender has gone on.
class MessageDropped(_Record, frozen=True, kw_only=True, tag="message-dropped"):
    """A message to an actor was not worked on, and nobody waits for its answer."""

    actor: str
    message: str
    """The method that was to run: `Coder.review`."""
    reason: str
    """Why: `stopped`, or `rejected` by a mailbox that was full or closed."""


class ActorResumed(_Record, frozen=True, kw_only=True, tag="actor-resumed"):
    """A message failed, and the actor goes on with its state as it is."""

    actor: str
    message: str
    """The method that failed: `Coder.review`."""
    fault: Fault


class ChildStarted(_Record, frozen=True, kw_only=True, tag="child-started"):
    """A supervisor started a child, for the first time or again."""

    supervisor: str
    """The path of the supervisor: `team/workers`."""
    child: str
    incarnation: int
    """How often this child was started, this time included."""


class ChildExited(_Record, frozen=True, kw_only=True, tag="child-exited"):
    """A child ended without being stopped: it returned, raised or was killed."""

    supervisor: str
    child: str
    incarnation: int
    reason: str
    """How it ended: `ended normally`, `raised KeyError`, `was killed by signal 9`."""
    fault: Fault | None = None
    """What it raised; None if it raised nothing."""


class ChildRestarting(_Record, frozen=True, kw_only=True, tag="child-restarting"):
    """A supervisor restarts a child after `delay`."""

    supervisor: str
    child: str
    attempt: int
    """Restarts in a row, this one included."""
    delay: float
    fault: Fault | None = None
    """Why; None if the child had not failed."""


class ChildStopped(_Record, frozen=True, kw_only=True, tag="child-stopped"):
    """A supervisor stopped a child."""

    supervisor: str
    child: str
    incarnation: int
    fault: Fault | None = None
    """What it raised while it stopped; None if it stopped well."""


class ChildLeaked(_Record, frozen=True, kw_only=True, tag="child-leaked"):
    """A child was stopped and killed, and still runs. Its supervisor goes on without it."""

    supervisor: str
    child: str
    incarnation: int


class GaveUp(_Record, frozen=True, kw_only=True, tag="gave-up"):
    """A supervisor does not restart a child any more, and ends; with a budget for each child, only that child ends."""

    supervisor: str
    child: str
    restarts: int
    """Restarts within `window`."""
    window: float
    fault: Fault | None = None
    """The failure that was one too many."""
    child_only: bool = False
    """Whether the supervisor goes on without the child."""


class TaskStarted(_Record, frozen=True, kw_only=True, tag="task-started"):
    """A task, a subtask, or a part of a task that was split begins."""

    agent: str = ""
    """Which of the system's agents performs it; empty: its default one."""
    depth: int = 0
    """How deep it is nested in other tasks."""


class TaskStateChange(_Record, frozen=True, kw_only=True, tag="task-state-change", rename={"from_": "from"}):
    """A task does something else now: it waits, goes on, or has ended."""

    from_: TaskState
    to: TaskState


class TaskOutputRejected(_Record, frozen=True, kw_only=True, tag="task-output-rejected"):
    """An answer does not have the form that the task's output must have. While `number` is at most `max_reasks`, the agent is asked again."""

    number: int
    """The first, second … rejected answer of the task."""
    max_reasks: int
    fault: Fault


class TaskDecomposed(_Record, frozen=True, kw_only=True, tag="task-decomposed"):
    """A task was too large for its budget and is split. Its parts are tasks with events of their own."""

    parts: int
    depth: int
    """How often the task that it is a part of was split, this time included."""
    fault: Fault
    """The limit that it met."""


class SubtaskFailed(_Record, frozen=True, kw_only=True, tag="subtask-failed"):
    """A subtask, or a part of a task that was split, failed."""

    depth: int
    fault: Fault
    again: bool = False
    """Whether it is tried once more, with another request."""


class TaskHalted(_Record, frozen=True, kw_only=True, tag="task-halted"):
    """A task gets nowhere: several rounds changed nothing."""

    fault: Fault
    again: bool = False
    """Whether another approach is tried."""


class TaskFinished(_Record, frozen=True, kw_only=True, tag="task-finished"):
    """A task has ended, well (`fault` is None) or not."""

    took: float
    """Seconds."""
    fault: Fault | None = None


class MCPServerDisconnected(_Record, frozen=True, kw_only=True, tag="mcp-server-disconnected"):
    """The connection to an MCP server was lost. It is made again when the server is needed next."""

    server: str
    fault: Fault | None = None
    """How it was noticed; None: the server ended while no call was open."""


class MCPReconnectAttempt(_Record, frozen=True, kw_only=True, tag="mcp-reconnect-attempt"):
    """A lost MCP server is connected again after `delay`."""

    server: str
    attempt: int
    max_attempts: int | None
    """Attempts in all. None: any number."""
    delay: float
    """Seconds until this attempt."""


class MCPServerReconnected(_Record, frozen=True, kw_only=True, tag="mcp-server-reconnected"):
    """A lost MCP server is connected again."""

    server: str
    attempts: int
    after: float
    """Seconds that connecting again took."""


class SessionTurnStart(_Record, frozen=True, kw_only=True, tag="session-turn-start"):
    """A turn begins: a turn of a session, or one of a stage machine, which is a stage or several parallel ones."""

    number: int
    """1, 2, 3 … in the session, or in the run of the stage machine."""
    stages: tuple[str, ...] = ()
    """The stages that it executes; more than one: they are parallel. Empty for a turn of a session."""


class SessionTurnEnd(_Record, frozen=True, kw_only=True, tag="session-turn-end"):
    """A turn has ended. A turn that a crash cuts off has no end; its start may come a second time."""

    number: int
    outcome: str
    """`ok`, `skip`, `fail`, `cancelled`, `waiting` …"""
    stages: tuple[str, ...] = ()
    fault: Fault | None = None
    """Why it failed."""


class _Lifecycle(_Record, frozen=True, kw_only=True):
    """A session changed its state, and the store has acknowledged that."""

    before: str
    """The state before: `Idle`, `Active`, `Persisted`, `Closed`, `Resumed`."""
    edge: str = ""
    """What led here: `FirstTurn`, `Snapshot`, `Sigterm`, `Resume`; empty where the table of states names no edge."""


class SessionActive(_Lifecycle, frozen=True, kw_only=True, tag="session-active"):
    """The first turn of a session, or of a session that was resumed, has begun."""


class SessionPersisted(_Lifecycle, frozen=True, kw_only=True, tag="session-persisted"):
    """A session was left, and everything of it is stored."""


class SessionResumed(_Lifecycle, frozen=True, kw_only=True, tag="session-resumed"):
    """A session is open again, after it was left or after its process died."""

    skipped_extensions: tuple[dict[str, str], ...] = ()
    """Extensions that are not there this time, each with `extId` and `reason`. A session is resumed without them."""


class SessionClosed(_Lifecycle, frozen=True, kw_only=True, tag="session-closed"):
    """A session was closed. It cannot be opened again."""


class StepNotReplayed(_Record, frozen=True, kw_only=True, tag="step-not-replayed"):
    """A program ended well and did not call an unsafe step that an earlier run of it did: the code may have changed.

    If its function was renamed, or the call moved, it may have happened again.
    """

    key: str
    """The step's key, as `Session.accept` takes it."""


class StagePreFired(_Record, frozen=True, kw_only=True, tag="stage-pre-fired"):
    """A stage enters a phase: Setup, Init, CheckGate, Act, Assert, Exit or Next."""

    stage: str
    phase: str
    attempt: int
    """The attempt of the stage, counted from 1."""


class StagePostFired(_Record, frozen=True, kw_only=True, tag="stage-post-fired"):
    """A stage leaves a phase. A phase whose result was stored before a crash is not entered again, and has no events."""

    stage: str
    phase: str
    attempt: int
    outcome: str = ""
    """What was decided: the verdict of CheckGate, the outcome of Assert, `cap-hit` for an Act that used all its turns. If the phase is
    entered again when the run goes on: `cancelled`, `waiting` (for a time, or a person) or `fail`."""
    fault: Fault | None = None
    """Why the phase failed; None if it did not."""


Would: TypeAlias = Literal["nothing", "retry", "repair", "fall-back", "give-up", "wait", "reject"]
"""What recovery would have done about a plain call: `event.would == "retry"`."""


HookType: TypeAlias = Literal["PreToolUse", "PostToolUse", "Stop"]
"""When a validator looks at an agent's work: before a tool call, after it, at the end."""
HookState: TypeAlias = Literal["pending", "triggered", "passed", "failed", "corrected", "error", "skipped"]
"""What a validator is at. `error`: it could not check. `skipped`: another one has rejected it already."""


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """What a validator changed: `Correction(before="x=1", after="x = 1")`."""

    before: Any
    after: Any


class HookEvent(_Record, frozen=True, kw_only=True, tag="hook"):
    """A validator looks at an agent's work, or has looked at it."""

    what: HookState
    hook: HookType
    validator: str
    call: str = ""
    """The id of the tool call; empty at the end of a run."""
    path: str = ""
    """The file that the call is about."""
    exit_code: int | None = None
    """0: passed; 1: it could not check; 2: wrong, and corrected or rejected. None: it has not ended."""
    message: str = ""
    """Why it was rejected, or could not be checked."""
    correction: Correction | None = None


# One for each call, also for those that work: a share of failures needs the number of all calls.
class Observed(_Record, frozen=True, kw_only=True, tag="observed"):
    """In observe mode a plain call has ended. This is what recovery would have done about it; it has done nothing."""

    outcome: Literal["answered", "failed", "left"]
    """How the plain call ended. `left`: its caller stopped it, or left a stream early."""
    took: float
    """Seconds of the plain call, with the client's own retries."""
    would: Would = "nothing"
    """What would have been done after the failure; or, where it had not been sent at once, before the call: `wait` or `reject`."""
    fault: Fault | None = None
    """The failure. An answer has one too if recovery would have recognised it as a failure."""
    reason: str = ""
    """Why it would have been given up or rejected: `attempts`, `permanent` …, or a code."""
    delay: float = 0.0
    """Seconds before the next attempt, if it would have been retried."""
    waits: float = 0.0
    """Seconds that it would have waited for a circuit or for its turn, at least."""
    stops: float | None = None
    """Seconds after which a request would have been stopped; it took longer. None: none would have been."""
    requests: int = 1
    """Requests of the plain call, the client's own retries included."""
    unwanted: int = 0
    """Of these, the retries that recovery would not have sent."""
    saved: float = 0.0
    """Seconds from the moment when it would have been given up to the end of the plain call, if such retries followed."""
    accepted: bool = True
    """False: `accept` would have rejected the answer."""
    unjudged: tuple[str, ...] = ()
    """What would have held for the call, and could not be worked out: `budget`, `time limits of streams`."""


# Not part of `Event`: nothing in this version creates one.
class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a newer writer wrote. It is kept whole, so that copying a log loses nothing."""

    type: str
    at: float
    run: str
    operation: str
    v: int
    raw: bytes
    """The record as it came, on one line."""

    @property
    def document(self) -> dict[str, Any]:
        """The record as a dict: `event.document["type"]`."""
        return msgspec.json.decode(self.raw, type=dict[str, Any])


RecoveryEvent: TypeAlias = Retry | CircuitStateChange | Fallback | AgentFallback | Degraded | Recovered | Failed
"""The events about a recovery. `write_document` writes them in the recovery-event format."""

Event: TypeAlias = (
    RecoveryEvent
    | Cancelled
    | Commanded
    | AttemptStarted
    | AttemptEnded
    | WaitBegan
    | RetryDenied
    | Repaired
    | StreamResumed
    | BudgetWarning
    | SuppressedError
    | MailboxPressure
    | MessageDropped
    | ActorResumed
    | ChildStarted
    | ChildExited
    | ChildRestarting
    | ChildStopped
    | ChildLeaked
    | GaveUp
    | MCPServerDisconnected
    | MCPReconnectAttempt
    | MCPServerReconnected
    | SharedStateLost
    | SharedStateBack
    | UserNotified
    | OperatorAsked
    | SessionTurnStart
    | SessionTurnEnd
    | SessionActive
    | SessionPersisted
    | SessionResumed
    | SessionClosed
    | StepNotReplayed
    | StagePreFired
    | StagePostFired
    | TaskStarted
    | TaskStateChange
    | TaskOutputRejected
    | TaskDecomposed
    | SubtaskFailed
    | TaskHalted
    | TaskFinished
    | HookEvent
    | Observed
)
"""Every event that this version writes. A log may also contain `Unknown` records."""

KINDS: tuple[type[Event], ...] = get_args(Event)
"""Every kind of event."""
