"""One catalog entry: everything that Holdfast knows about a code in advance.

Invariant: an entry is complete. The traits below are defaults for a family of codes. Each code lists only its
differences, and nothing is guessed later.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

import msgspec

from holdfast.faults.codes import Code
from holdfast.faults.enums import Category, Kind, Layer, NextActor, Schedule, Scope, Severity

__all__ = [
    "CANCELLED",
    "FATAL",
    "PERMANENT",
    "REJECTED",
    "TRANSIENT",
    "Entry",
    "Traits",
    "entry",
]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A code and its defaults. A fault may override `retryable` and `scope`. All other fields belong to the code.

    >>> CATALOG["PROVIDER_BILLING"].next_actor
    <NextActor.OPERATOR: 'operator'>
    """

    code: Code
    message: str
    """What happened, for logs. A clause in brackets names context fields in braces. The clause is shown if all its
    fields are known, otherwise the part after its bar. Examples: `The deadline[ of {limit_s} s] passed`, `did not
    finish [within {timeout_s} s|in time]`."""
    user: str
    """What happened and what happens next, for the person in front of the agent."""
    suggestions: tuple[str, ...]
    """What the next actor can do, most useful first."""
    aliases: tuple[str, ...]
    """Every other name of this failure: old codes, class/code pairs, task reasons, categories."""
    layer: Layer
    kind: Kind
    severity: Severity
    retryable: bool
    schedule: Schedule
    next_actor: NextActor
    scope: Scope
    http_status: int
    close_code: int
    exit_code: int
    category: Category
    classed: str
    """The failure as `Class/Code`, for the `classed` view."""
    task: str
    """The failure as `TYPE/reason` or `RESOURCE_EXHAUSTION/resource`, for the `task` view."""

    @property
    def class_and_code(self) -> tuple[str, str]:
        """The two parts of `classed`."""
        failure_class, _, code = self.classed.partition("/")
        return failure_class, code


class Traits(TypedDict, total=False):
    layer: Layer
    kind: Kind
    severity: Severity
    retryable: bool
    schedule: Schedule
    next_actor: NextActor
    scope: Scope
    http_status: int
    close_code: int
    exit_code: int
    category: Category
    classed: str
    task: str


TRANSIENT: Traits = {
    "layer": Layer.APPLICATION,
    "kind": Kind.TRANSIENT,
    "severity": Severity.ERROR,
    "retryable": True,
    "schedule": Schedule.TRANSIENT,
    "next_actor": NextActor.MACHINE,
    "scope": Scope.PROVIDER,
    "http_status": 503,
    "close_code": 1013,
    "exit_code": 4,
    "category": Category.UNAVAILABLE,
    "classed": "ProviderTransient/Provider5xx",
    "task": "TASK_FAILURE/unexpected_error",
}
"""The failure is temporary."""

PERMANENT: Traits = {
    "layer": Layer.APPLICATION,
    "kind": Kind.PERMANENT,
    "severity": Severity.ERROR,
    "retryable": False,
    "schedule": Schedule.NONE,
    "next_actor": NextActor.OPERATOR,
    "scope": Scope.REQUEST,
    "http_status": 400,
    "close_code": 4508,
    "exit_code": 1,
    "category": Category.INVALID,
    "classed": "ToolTerminal/InputInvalid",
    "task": "TASK_FAILURE/unexpected_error",
}
"""Waiting does not help."""

REJECTED: Traits = {
    **PERMANENT,
    "kind": Kind.RECOVERABLE,
    "severity": Severity.WARNING,
    "next_actor": NextActor.DEVELOPER,
    "category": Category.VALIDATION,
    "task": "TASK_FAILURE/input_validation_failure",
}
"""The request, message or output was rejected. A changed request, message or output may be accepted."""

FATAL: Traits = {
    **PERMANENT,
    "kind": Kind.FATAL,
    "severity": Severity.FATAL,
    "next_actor": NextActor.DEVELOPER,
    "scope": Scope.PROCESS,
    "http_status": 500,
    "close_code": 4004,
    "category": Category.AGENT_CRASH,
    "classed": "ExtensionHost/LifecycleFailure",
}
"""The state cannot be trusted any more, so a restart is needed."""

CANCELLED: Traits = {
    **PERMANENT,
    "kind": Kind.CANCELLED,
    "severity": Severity.INFO,
    "next_actor": NextActor.USER,
    "http_status": 499,
    "close_code": 1000,
    "exit_code": 130,
    "category": Category.CANCELLED,
    "classed": "Cancellation/TurnCancelled",
    "task": "TASK_FAILURE/execution_halted",
}
"""Somebody stopped the call."""


def entry(
    code: Code,
    like: Traits,
    message: str,
    user: str,
    *suggestions: str,
    aliases: tuple[str, ...] = (),
    **own: Unpack[Traits],
) -> Entry:
    """Return the entry of `code`: the traits of the family `like`, overridden by the fields in `own`."""
    traits: Traits = {**like, **own}
    return Entry(code=code, message=message, user=user, suggestions=suggestions, aliases=aliases, **traits)
