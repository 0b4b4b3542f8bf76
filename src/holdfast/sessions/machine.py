"""The states of a session: which may follow which, and the documents' names for them (C24).

    created ──▶ active ◀──▶ paused        closed and error are final
       │           │           │          paused and resumable is document 000's RESUMABLE
       └───────────┴───────────┴──▶ closed, error

Invariant: one table holds every allowed transition. Any other raises SESS_ILLEGAL_TRANSITION, or SESS_CLOSED for a closed session.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.faults import Fault, HoldfastError
from holdfast.stores import SessionState
from holdfast.stores.errors import session_ended

__all__ = [
    "STUD_EDGES",
    "StudState",
    "bridge_view",
    "check",
    "may_become",
    "not_resumable",
    "sources",
    "stud_view",
]

_FOLLOWS: dict[SessionState, frozenset[SessionState]] = {
    SessionState.CREATED: frozenset({SessionState.ACTIVE, SessionState.CLOSED, SessionState.ERROR}),
    SessionState.ACTIVE: frozenset({SessionState.PAUSED, SessionState.CLOSED, SessionState.ERROR}),
    SessionState.PAUSED: frozenset({SessionState.ACTIVE, SessionState.CLOSED, SessionState.ERROR}),
    SessionState.CLOSED: frozenset(),
    SessionState.ERROR: frozenset(),
}


class StudState(StrEnum):
    """Document 002's names (N2-11)."""

    IDLE = "Idle"
    ACTIVE = "Active"
    PERSISTED = "Persisted"
    CLOSED = "Closed"
    RESUMED = "Resumed"


STUD_EDGES: dict[tuple[StudState, str], StudState] = {
    (StudState.IDLE, "FirstTurn"): StudState.ACTIVE,
    (StudState.ACTIVE, "Snapshot"): StudState.PERSISTED,
    (StudState.PERSISTED, "FirstTurn"): StudState.ACTIVE,
    (StudState.PERSISTED, "Sigterm"): StudState.CLOSED,
    (StudState.CLOSED, "Resume"): StudState.RESUMED,
    (StudState.RESUMED, "FirstTurn"): StudState.ACTIVE,
}
"""Document 002's edges. Its `Closed` with a snapshot is our `paused`."""


def may_become(state: SessionState, to: SessionState) -> bool:
    """Whether a session in `state` may go to `to`."""
    return to in _FOLLOWS[state]


def sources(to: SessionState) -> tuple[SessionState, ...]:
    """Return the states that may become `to`."""
    return tuple(state for state, follows in _FOLLOWS.items() if to in follows)


def check(session: str, state: SessionState, to: SessionState) -> None:
    """Raise SESS_ILLEGAL_TRANSITION, or SESS_CLOSED, unless the table holds this transition."""
    if may_become(state, to):
        return
    # A closed session has its own code: a client must learn that the session can never be opened again.
    if state is SessionState.CLOSED:
        raise HoldfastError(session_ended(session))
    context = {"session_id": session, "from_state": state.value, "to_state": to.value}
    raise HoldfastError(Fault.of("SESS_ILLEGAL_TRANSITION", context=context))


def not_resumable(session: str, state: SessionState, *, resumable: bool) -> HoldfastError | None:
    """Return the error of a session that cannot be resumed, or None (S0-20, B93, B95)."""
    if state is SessionState.CLOSED:
        return HoldfastError(session_ended(session))
    if state is SessionState.PAUSED and resumable:
        return None
    # A paused session usually can be resumed, so its state explains nothing.
    paused = f"Session '{session}' cannot be resumed: it was opened with resumable=False"
    why = paused if state is SessionState.PAUSED else None
    return HoldfastError(Fault.of("SESS_NOT_RESUMABLE", why, context={"session_id": session, "state": state.value}))


def bridge_view(state: SessionState, *, resumable: bool) -> str:
    """Return document 000's name. Its chart has RESUMABLE beside the five states (S0-18)."""
    return "resumable" if state is SessionState.PAUSED and resumable else state.value


def stud_view(state: SessionState, *, resumed: bool = False) -> StudState:
    """Return document 002's name. `resumed` means that the session was resumed and has not begun a turn since."""
    if state is SessionState.ACTIVE and resumed:
        return StudState.RESUMED
    return _STUD[state]


_STUD = {
    SessionState.CREATED: StudState.IDLE,
    SessionState.ACTIVE: StudState.ACTIVE,
    SessionState.PAUSED: StudState.PERSISTED,
    SessionState.CLOSED: StudState.CLOSED,
    # Document 002 has no error state. A session that failed cannot continue, so it counts as closed.
    SessionState.ERROR: StudState.CLOSED,
}
