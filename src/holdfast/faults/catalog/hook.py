"""HOOK_: events posted by an agent's hooks."""

from __future__ import annotations

from holdfast.faults.catalog.entry import REJECTED, Traits, entry
from holdfast.faults.enums import Category, Kind, Layer, NextActor, Scope, Severity

_EVENT: Traits = {
    **REJECTED,
    "layer": Layer.PROTOCOL,
    "scope": Scope.AGENT,
    "classed": "Validation/ShapeInvalid",
}

ENTRIES = (
    # A bad hook event must not stop the agent, so the severity stays low.
    entry(
        "HOOK_VALIDATION_FAILED",
        _EVENT,
        "Hook event validation failed",
        "A hook sent an event that could not be read; the agent's work goes on.",
        "Fix the fields listed in `errors`",
        "Compare with the hook schema in the docs",
        aliases=("validation", "VALIDATION_FAILED"),
    ),
    entry(
        "HOOK_INVALID_EVENT_TYPE",
        _EVENT,
        "Unknown hook event[: {received}]",
        "A hook sent an event of an unknown kind.",
        "Use SessionStart, SessionEnd, PreToolUse, PostToolUse, UserPromptSubmit, Stop or SubagentStop",
    ),
    entry(
        "HOOK_INVALID_TIMESTAMP",
        _EVENT,
        "Hook timestamp is not an ISO 8601 date and time[: {received}]",
        "A hook sent an event with an unreadable time.",
        "Send UTC like 2026-03-20T14:32:00Z",
    ),
    # An old event could be a replay by somebody who recorded it.
    entry(
        "HOOK_STALE_TIMESTAMP",
        _EVENT,
        "Hook timestamp is [{skew_s} s|too far] away from now",
        "A hook sent an event that is too old or from the future.",
        "Set the clock of the machine that runs the hook",
        next_actor=NextActor.OPERATOR,
    ),
    entry(
        "HOOK_INVALID_SESSION_ID",
        _EVENT,
        "Hook session_id is missing or empty",
        "A hook sent an event without saying which session it belongs to.",
        "Pass the session id the agent gives to its hooks",
    ),
    entry(
        "HOOK_INVALID_PAYLOAD",
        _EVENT,
        "Hook payload does not fit [{event}|its event][: {reason}]",
        "A hook sent an event with content that does not fit it.",
        "Send the fields this event requires",
    ),
    # Hooks have a token of their own, so that a leaked one gives no access to sessions.
    entry(
        "HOOK_AUTH_FAILED",
        _EVENT,
        "Hook token was not accepted",
        "A hook could not prove that it may send events.",
        "Give the hook the bridge's hook token",
        http_status=401,
        category=Category.AUTH,
        classed="ToolTerminal/Forbidden",
        next_actor=NextActor.OPERATOR,
        kind=Kind.PERMANENT,
        severity=Severity.ERROR,
        scope=Scope.CREDENTIAL,
    ),
)
