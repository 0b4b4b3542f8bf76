"""The events of a session's states, as the table of `machine` names them: active, persisted, resumed, closed; and of cancellations.

Invariant: the event of a state comes after the store has acknowledged it. One cancellation is one event, whatever is cancelled with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.events import Cancelled, SessionActive, SessionClosed, SessionPersisted, SessionResumed
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.machine import STUD_EDGES, StudState, stud_view
from holdfast.stores import SessionState

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.scopes import Scope

__all__ = ["cancelled", "edge_between", "first_turn_began", "state_changed"]

_KINDS: dict[StudState, type[SessionActive | SessionPersisted | SessionClosed]] = {
    StudState.ACTIVE: SessionActive,
    StudState.PERSISTED: SessionPersisted,
    StudState.CLOSED: SessionClosed,
}

_REPORTED_BY = "_holdfast_cancelled"
"""Where the exception of a cancelled task keeps the last scope that reported it."""


def edge_between(before: StudState, after: StudState) -> str:
    """Return the name of the edge between two states; empty if the table has none."""
    return next((name for (start, name), end in STUD_EDGES.items() if (start, end) == (before, after)), "")


def state_changed(
    session: str, runtime: Runtime | None, was: SessionState, to: SessionState, *, resumed: bool = False
) -> None:
    """Emit the event of a change that is stored. `resumed`: the session had been resumed, and no turn had begun."""
    if was is SessionState.PAUSED and to is SessionState.ACTIVE:
        # Its process had ended: the table calls that closed, with a snapshot.
        return _emit(session, runtime, StudState.CLOSED, StudState.RESUMED)
    return _emit(session, runtime, stud_view(was, resumed=resumed), stud_view(to))


def first_turn_began(session: str, runtime: Runtime | None) -> None:
    """Emit that the first turn of a session that was resumed has begun."""
    _emit(session, runtime, StudState.RESUMED, StudState.ACTIVE)


def cancelled(scope: Scope, error: BaseException, runtime: Runtime | None) -> bool:
    """Emit that `error` ends a scope because it was cancelled, and by whom. Return whether it was cancelled.

    A scope that was cancelled as a part of another one has no event of its own.
    """
    if scope.reason is None and not isinstance(error, asyncio.CancelledError):
        return False
    # The cancellation of a task passes through its scopes: of each session, the innermost one reports it.
    inner: Scope | None = error.__dict__.get(_REPORTED_BY)
    while inner is not None and inner is not scope:
        inner = inner.parent
    if inner is None and scope.reason != "parent":
        error.__dict__[_REPORTED_BY] = scope
        runtime = runtime or default_runtime()
        why = scope.reason or "the task was cancelled"
        # Without ids, which would be new labels of metrics: the event names the session and the turn beside it.
        name = f"stage {scope.name}" if scope.kind == "stage" else scope.kind
        runtime.bus.emit(Cancelled(at=runtime.clock.wall(), operation=name, reason=why))
    return True


def _emit(session: str, runtime: Runtime | None, before: StudState, after: StudState) -> None:
    runtime = runtime or default_runtime()
    edge, at = edge_between(before, after), runtime.clock.wall()
    if after is StudState.RESUMED:
        skipped = runtime.skipped_extensions
        event = SessionResumed(at=at, session=session, before=before.value, edge=edge, skipped_extensions=skipped)
        runtime.bus.emit(event)
    elif after in _KINDS:
        runtime.bus.emit(_KINDS[after](at=at, session=session, before=before.value, edge=edge))
