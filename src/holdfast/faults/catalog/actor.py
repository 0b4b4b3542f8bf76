"""ACTOR_: actors, agents and their supervisors."""

from __future__ import annotations

from holdfast.faults.catalog.entry import FATAL, PERMANENT, TRANSIENT, Traits, entry
from holdfast.faults.enums import Category, Layer, NextActor, Schedule, Scope, Severity

_CRASH: Traits = {
    **FATAL,
    "scope": Scope.AGENT,
    "severity": Severity.ERROR,
    "next_actor": NextActor.MACHINE,
    "task": "TASK_FAILURE/subtask_failure",
}
_GONE: Traits = {
    **PERMANENT,
    "scope": Scope.AGENT,
    "next_actor": NextActor.DEVELOPER,
    "category": Category.NOT_FOUND,
    "classed": "ToolTerminal/NotFound",
    "http_status": 404,
    "exit_code": 3,
}

ENTRIES = (
    # The supervisor restarts the actor; the caller must not repeat the message blindly.
    entry(
        "ACTOR_CRASHED",
        _CRASH,
        "Actor[ {actor}] crashed[: {reason}]",
        "A helper crashed in the middle of its work.",
        "Read the cause; the supervisor restarts the actor within its budget",
        aliases=("agent_crash", "AGENT_CRASH", "ExtensionHost/LifecycleFailure"),
    ),
    entry(
        "ACTOR_ERROR",
        {**TRANSIENT, "scope": Scope.AGENT},
        "Agent[ {actor}] reported an error[: {reason}]",
        "The agent ran into a problem. Trying again.",
        "Wait for the retry, then for the simpler agent of the fallback chain",
        aliases=("AGENT_ERROR",),
        category=Category.AGENT_CRASH,
        http_status=502,
        classed="ExtensionHost/LifecycleFailure",
    ),
    # The restart budget is used up, so the parent supervisor takes over.
    entry(
        "ACTOR_MAX_RESTARTS",
        {**_CRASH, "layer": Layer.RECOVERY},
        "Actor[ {actor}] failed[ {restarts} times in {window_s} s| too often]",
        "A helper crashed too often and is not started again.",
        "Fix the cause named in the fault, then start it again",
        aliases=("MAX_RESTARTS_EXCEEDED", "GaveUpError"),
        severity=Severity.FATAL,
        next_actor=NextActor.DEVELOPER,
    ),
    entry(
        "ACTOR_NOT_FOUND",
        _GONE,
        "Actor[ {actor}] not found",
        "The helper for this does not exist.",
        "Check the actor's id; start it first",
    ),
    entry(
        "ACTOR_STOPPED",
        _GONE,
        "Actor[ {actor}] has stopped",
        "The helper for this has been stopped.",
        "Start it again, or send to another actor",
        http_status=410,
    ),
    # The mailbox rejects a message, because growing without limit or dropping older messages is worse.
    entry(
        "ACTOR_MAILBOX_FULL",
        {**TRANSIENT, "scope": Scope.AGENT},
        "Mailbox of [actor {actor}|the actor] is full[ ({size})]",
        "The helper has too much to do. Trying again.",
        "Slow down the senders, or run more workers",
        category=Category.UNAVAILABLE,
        classed="ToolTransient/ResourceBusy",
        http_status=503,
    ),
    entry(
        "ACTOR_START_FAILED",
        _CRASH,
        "Actor[ {actor}] could not be started[: {reason}]",
        "A helper could not be started.",
        "Fix the cause named in the fault, then start it again",
        next_actor=NextActor.DEVELOPER,
    ),
    # There is one more attempt, and only for command line agents, because they hide the provider's own fault.
    entry(
        "ACTOR_CLI_NETWORK",
        {**TRANSIENT, "scope": Scope.AGENT},
        "The agent's command line tool lost its network[: {reason}]",
        "The agent's program could not reach its service. Trying again.",
        "Check the network; the call is repeated once",
        aliases=("CLAUDE_CLI_NETWORK",),
        schedule=Schedule.ONCE,
        category=Category.NETWORK,
        classed="ProviderTransient/NetworkTimeout",
    ),
    entry(
        "ACTOR_CLI_ERROR",
        {**PERMANENT, "scope": Scope.AGENT},
        "The agent's command line tool failed[: {reason}][ (exit code {exit_code})]",
        "The agent's program stopped with an error.",
        "Read its stderr in the fault's context",
        aliases=("CLAUDE_CLI_ERROR",),
        category=Category.AGENT_CRASH,
        classed="ToolTerminal/ToolExecutionFailed",
        http_status=502,
    ),
)
