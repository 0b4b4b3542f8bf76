"""What happened, as records: their names and fields are document 001's where it has them (S1-21)."""

from __future__ import annotations

import json

import pytest
from events_strategies import KINDS

from holdfast.events import (
    VERSION,
    ActorResumed,
    AgentFallback,
    AttemptEnded,
    AttemptStarted,
    BudgetWarning,
    Cancelled,
    ChildExited,
    ChildLeaked,
    ChildRestarting,
    ChildStarted,
    ChildStopped,
    CircuitState,
    CircuitStateChange,
    Commanded,
    Degraded,
    Event,
    Failed,
    Fallback,
    GaveUp,
    HookEvent,
    MailboxPressure,
    MCPReconnectAttempt,
    MCPServerDisconnected,
    MCPServerReconnected,
    MessageDropped,
    Observed,
    OperatorAsked,
    Recovered,
    RecoveryEvent,
    Repaired,
    Retry,
    RetryDenied,
    SessionActive,
    SessionClosed,
    SessionPersisted,
    SessionResumed,
    SessionTurnEnd,
    SessionTurnStart,
    SharedStateBack,
    SharedStateLost,
    StagePostFired,
    StagePreFired,
    StepNotReplayed,
    StreamResumed,
    SubtaskFailed,
    SuppressedError,
    TaskDecomposed,
    TaskFinished,
    TaskHalted,
    TaskOutputRejected,
    TaskStarted,
    TaskState,
    TaskStateChange,
    UserNotified,
    WaitBegan,
    decode,
    encode,
)
from holdfast.faults import Fault

OVERLOADED = Fault.of("PROVIDER_OVERLOADED")
FAULT = {"code": "PROVIDER_OVERLOADED", "message": "The provider is overloaded", "retryable": True, "scope": "provider"}

WRITTEN = [
    (
        Retry(at=1.0, attempt=1, max_attempts=3, delay=4.0, fault=OVERLOADED, requested=True),
        {"type": "retry", "attempt": 1, "max_attempts": 3, "delay": 4.0, "fault": FAULT, "asked": True},
    ),
    (
        CircuitStateChange(
            at=1.0,
            circuit="provider:claude",
            from_=CircuitState.CLOSED,
            to=CircuitState.OPEN,
            reason="PROVIDER_OVERLOADED",
            until=31.0,
        ),
        {
            "type": "circuit-state-change",
            "circuit": "provider:claude",
            "from": "closed",
            "to": "open",
            "reason": "PROVIDER_OVERLOADED",
            "until": 31.0,
        },
    ),
    (Fallback(at=1.0, from_="claude", to="openai"), {"type": "fallback", "from": "claude", "to": "openai"}),
    (
        AgentFallback(at=1.0, from_="builder", to="builder-simple", fault=OVERLOADED),
        {"type": "agent-fallback", "from": "builder", "to": "builder-simple", "fault": FAULT},
    ),
    (Degraded(at=1.0, reason="cached answer"), {"type": "degraded", "reason": "cached answer"}),
    (Recovered(at=1.0, after=5.6, attempts=2), {"type": "recovered", "after": 5.6, "attempts": 2}),
    (
        Failed(at=1.0, fault=OVERLOADED, exhausted=True, attempts=3),
        {"type": "failed", "fault": FAULT, "exhausted": True, "attempts": 3},
    ),
    (Cancelled(at=1.0, reason="user"), {"type": "cancelled", "reason": "user"}),
    (
        Commanded(at=1.0, command="retry-now", by="terminal"),
        {"type": "commanded", "command": "retry-now", "by": "terminal"},
    ),
    (AttemptStarted(at=1.0, attempt=2, via="openai"), {"type": "attempt-started", "attempt": 2, "via": "openai"}),
    (AttemptEnded(at=1.0, attempt=2, took=0.5), {"type": "attempt-ended", "attempt": 2, "took": 0.5}),
    (
        WaitBegan(at=1.0, reason="place", attempt=1, target="provider:claude"),
        {"type": "waiting", "reason": "place", "attempt": 1, "target": "provider:claude"},
    ),
    (
        RetryDenied(at=1.0, attempt=1, because="SYS_RETRY_QUOTA_SPENT", fault=OVERLOADED),
        {"type": "retry-denied", "attempt": 1, "because": "SYS_RETRY_QUOTA_SPENT", "fault": FAULT},
    ),
    (
        Repaired(at=1.0, attempt=1, action="compact", fault=OVERLOADED),
        {"type": "repaired", "attempt": 1, "action": "compact", "fault": FAULT},
    ),
    (
        StreamResumed(at=1.0, how="restart", items=3),
        {"type": "stream-resumed", "how": "restart", "items": 3},
    ),
    (
        BudgetWarning(at=1.0, unit="usd", used=0.4, limit=0.5),
        {"type": "budget-warning", "unit": "usd", "used": 0.4, "limit": 0.5},
    ),
    (
        SuppressedError(at=1.0, reason="cleanup", cause="disk full", code="SYS_RESOURCE_EXHAUSTED"),
        {"type": "suppressed-error", "reason": "cleanup", "cause": "disk full", "code": "SYS_RESOURCE_EXHAUSTED"},
    ),
    (
        MailboxPressure(at=1.0, actor="team/coder", level="high", size=800, capacity=1000),
        {"type": "mailbox-pressure", "actor": "team/coder", "level": "high", "size": 800, "capacity": 1000},
    ),
    (
        MessageDropped(at=1.0, actor="team/coder", message="Coder.review", reason="stopped"),
        {"type": "message-dropped", "actor": "team/coder", "message": "Coder.review", "reason": "stopped"},
    ),
    (
        MCPServerDisconnected(at=1.0, server="git", fault=OVERLOADED),
        {"type": "mcp-server-disconnected", "server": "git", "fault": FAULT},
    ),
    (
        MCPReconnectAttempt(at=1.0, server="git", attempt=2, max_attempts=5, delay=0.25),
        {"type": "mcp-reconnect-attempt", "server": "git", "attempt": 2, "max_attempts": 5, "delay": 0.25},
    ),
    (
        MCPServerReconnected(at=1.0, server="git", attempts=2, after=0.3),
        {"type": "mcp-server-reconnected", "server": "git", "attempts": 2, "after": 0.3},
    ),
    (
        SharedStateLost(at=1.0, place="redis://cache:6379/0", reason="TimeoutError"),
        {"type": "shared-state-lost", "place": "redis://cache:6379/0", "reason": "TimeoutError"},
    ),
    (
        SharedStateBack(at=1.0, place="redis://cache:6379/0", after=12.5),
        {"type": "shared-state-back", "place": "redis://cache:6379/0", "after": 12.5},
    ),
    (
        ChildStarted(at=1.0, supervisor="team", child="coder", incarnation=2),
        {"type": "child-started", "supervisor": "team", "child": "coder", "incarnation": 2},
    ),
    (
        ChildExited(at=1.0, supervisor="team", child="coder", incarnation=1, reason="raised E", fault=OVERLOADED),
        {
            "type": "child-exited",
            "supervisor": "team",
            "child": "coder",
            "incarnation": 1,
            "reason": "raised E",
            "fault": FAULT,
        },
    ),
    (
        ActorResumed(at=1.0, actor="team/coder", message="Coder.review", fault=OVERLOADED),
        {"type": "actor-resumed", "actor": "team/coder", "message": "Coder.review", "fault": FAULT},
    ),
    (
        ChildRestarting(at=1.0, supervisor="team", child="coder", attempt=2, delay=0.5),
        {"type": "child-restarting", "supervisor": "team", "child": "coder", "attempt": 2, "delay": 0.5},
    ),
    (
        ChildStopped(at=1.0, supervisor="team", child="coder", incarnation=1),
        {"type": "child-stopped", "supervisor": "team", "child": "coder", "incarnation": 1},
    ),
    (
        ChildLeaked(at=1.0, supervisor="team", child="coder", incarnation=1),
        {"type": "child-leaked", "supervisor": "team", "child": "coder", "incarnation": 1},
    ),
    (
        GaveUp(at=1.0, supervisor="team", child="coder", restarts=3, window=60.0, child_only=True),
        {
            "type": "gave-up",
            "supervisor": "team",
            "child": "coder",
            "restarts": 3,
            "window": 60.0,
            "child_only": True,
        },
    ),
    (
        UserNotified(at=1.0, agent="builder", tried=("builder-simple",), people=1, fault=OVERLOADED),
        {"type": "user-notified", "agent": "builder", "tried": ["builder-simple"], "people": 1, "fault": FAULT},
    ),
    (
        OperatorAsked(at=1.0, operation="workflow review", attempts=3, fault=OVERLOADED),
        {"type": "operator-asked", "operation": "workflow review", "attempts": 3, "fault": FAULT},
    ),
    (
        SessionTurnStart(at=1.0, number=2, stages=("lint", "test")),
        {"type": "session-turn-start", "number": 2, "stages": ["lint", "test"]},
    ),
    (
        SessionTurnEnd(at=1.0, number=2, outcome="fail", stages=("lint",), fault=OVERLOADED),
        {"type": "session-turn-end", "number": 2, "outcome": "fail", "stages": ["lint"], "fault": FAULT},
    ),
    (
        StepNotReplayed(at=1.0, operation='pay("ada")', key="s/pay@5f1c"),
        {"type": "step-not-replayed", "operation": 'pay("ada")', "key": "s/pay@5f1c"},
    ),
    (
        StagePreFired(at=1.0, stage="plan", phase="Setup", attempt=1),
        {"type": "stage-pre-fired", "stage": "plan", "phase": "Setup", "attempt": 1},
    ),
    (
        StagePostFired(at=1.0, stage="plan", phase="Assert", attempt=2, outcome="retry", fault=OVERLOADED),
        {
            "type": "stage-post-fired",
            "stage": "plan",
            "phase": "Assert",
            "attempt": 2,
            "outcome": "retry",
            "fault": FAULT,
        },
    ),
    (TaskStarted(at=1.0, agent="writer", depth=2), {"type": "task-started", "agent": "writer", "depth": 2}),
    (
        TaskStateChange(at=1.0, from_=TaskState.ACTIVE, to=TaskState.BLOCKED),
        {"type": "task-state-change", "from": "active", "to": "blocked"},
    ),
    (
        TaskOutputRejected(at=1.0, number=1, max_reasks=2, fault=OVERLOADED),
        {"type": "task-output-rejected", "number": 1, "max_reasks": 2, "fault": FAULT},
    ),
    (
        TaskDecomposed(at=1.0, parts=3, depth=1, fault=OVERLOADED),
        {"type": "task-decomposed", "parts": 3, "depth": 1, "fault": FAULT},
    ),
    (
        SubtaskFailed(at=1.0, depth=1, fault=OVERLOADED, again=True),
        {"type": "subtask-failed", "depth": 1, "fault": FAULT, "again": True},
    ),
    (TaskHalted(at=1.0, fault=OVERLOADED), {"type": "task-halted", "fault": FAULT}),
    (
        SessionActive(at=1.0, before="Idle", edge="FirstTurn"),
        {"type": "session-active", "before": "Idle", "edge": "FirstTurn"},
    ),
    (
        SessionPersisted(at=1.0, before="Active", edge="Snapshot"),
        {"type": "session-persisted", "before": "Active", "edge": "Snapshot"},
    ),
    (
        SessionResumed(at=1.0, before="Closed", edge="Resume", skipped_extensions=({"extId": "x", "reason": "gone"},)),
        {
            "type": "session-resumed",
            "before": "Closed",
            "edge": "Resume",
            "skipped_extensions": [{"extId": "x", "reason": "gone"}],
        },
    ),
    (SessionClosed(at=1.0, before="Active"), {"type": "session-closed", "before": "Active"}),
    (
        HookEvent(at=1.0, what="failed", hook="Stop", validator="style", exit_code=2, message="too long"),
        {
            "type": "hook",
            "what": "failed",
            "hook": "Stop",
            "validator": "style",
            "exit_code": 2,
            "message": "too long",
        },
    ),
    (TaskFinished(at=1.0, took=2.5, fault=OVERLOADED), {"type": "task-finished", "took": 2.5, "fault": FAULT}),
    (
        Observed(at=1.0, outcome="failed", took=2.5, would="retry", delay=0.7, requests=3, fault=OVERLOADED),
        {
            "type": "observed",
            "outcome": "failed",
            "took": 2.5,
            "would": "retry",
            "delay": 0.7,
            "requests": 3,
            "fault": FAULT,
        },
    ),
]


@pytest.mark.parametrize(("event", "document"), WRITTEN, ids=[document["type"] for _, document in WRITTEN])
def test_S1_21_the_json_of_an_event(event, document):
    assert json.loads(encode(event)) == {**document, "at": 1.0, "v": 1}


def test_a_requested_delay_keeps_its_json_name_and_its_earlier_attribute():
    retry = Retry(at=1.0, attempt=1, max_attempts=3, delay=4.0, fault=OVERLOADED, requested=True)
    written = encode(retry)
    assert json.loads(written)["asked"] is True
    assert decode(written) == retry
    assert retry.asked
    assert not Retry(at=1.0, attempt=1, max_attempts=3, delay=4.0, fault=OVERLOADED).asked


def test_every_kind_of_event_is_shown_above():
    assert {type(event) for event, _ in WRITTEN} == set(KINDS)


def test_S1_21_the_recovery_events_are_the_documents_and_the_one_its_code_emits():
    named = {"retry", "circuit-state-change", "fallback", "degraded", "recovered", "failed", "agent-fallback"}
    assert {kind.__struct_config__.tag for kind in RecoveryEvent.__args__} == named
    assert set(RecoveryEvent.__args__) <= set(Event.__args__)


def test_the_names_of_kinds_are_told_apart():
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)
    assert {kind.__struct_config__.tag_field for kind in KINDS} == {"type"}


@pytest.mark.parametrize(("event", "_"), WRITTEN, ids=[document["type"] for _, document in WRITTEN])
def test_an_event_is_a_fact_and_cannot_be_changed(event, _):
    for field in event.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(event, field, getattr(event, field))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_event_is_told_in_words_not_by_position(kind):
    with pytest.raises(TypeError):
        kind(1.0)


@pytest.mark.parametrize(
    ("attempt", "most", "text"),
    [
        (1, 3, "Retrying... (2/3)"),
        (2, 3, "Retrying... (3/3)"),
        (1, 2, "Retrying... (2/2)"),
        (9, 10, "Retrying... (10/10)"),
    ],
)
def test_S1_28_the_line_a_person_sees_counts_the_attempt_to_come(attempt, most, text):
    assert Retry(at=0.0, attempt=attempt, max_attempts=most, delay=1.0, fault=OVERLOADED).text == text


def test_S1_21_the_states_of_a_circuit():
    assert [*CircuitState] == ["closed", "open", "half-open"]


def test_N2_1_a_suppressed_error_has_type_reason_cause_and_time():
    written = json.loads(encode(SuppressedError(at=5.0, reason="best effort", cause="no route")))
    assert {"type", "reason", "cause", "at"} <= set(written)


def test_what_belongs_together_is_correlated():
    written = json.loads(encode(AttemptStarted(at=1.0, run="01J8", operation="claude messages.create", attempt=1)))
    assert (written["run"], written["operation"]) == ("01J8", "claude messages.create")


def test_a_new_event_has_the_version_of_today():
    assert Cancelled(at=0.0).v == VERSION == 1


def test_S2_10_what_is_ignored_on_purpose_is_told_without_its_secrets():
    fault = Fault.of("AUTH_FAILED", "refused sk-ant-api03-AbCd1234EfGh5678")
    event = SuppressedError.of(fault, "the cache is only a cache", at=1.0)
    assert (event.reason, event.code) == ("the cache is only a cache", "AUTH_FAILED")
    assert "sk-ant" not in event.cause
