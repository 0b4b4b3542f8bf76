"""S0-18..S0-20, N2-11, C24: one table of states, seen by two documents."""

from __future__ import annotations

import itertools

import pytest
from sessions_kit import code_of

from holdfast.faults import HoldfastError
from holdfast.sessions.machine import (
    STUD_EDGES,
    StudState,
    bridge_view,
    check,
    may_become,
    not_resumable,
    sources,
    stud_view,
)
from holdfast.stores import SessionState

CREATED, ACTIVE, PAUSED, CLOSED, ERROR = SessionState

ALLOWED = {
    (CREATED, ACTIVE),
    (CREATED, CLOSED),
    (CREATED, ERROR),
    (ACTIVE, PAUSED),
    (ACTIVE, CLOSED),
    (ACTIVE, ERROR),
    (PAUSED, ACTIVE),
    (PAUSED, CLOSED),
    (PAUSED, ERROR),
}


@pytest.mark.parametrize(("state", "to"), list(itertools.product(SessionState, repeat=2)))
def test_S0_18_every_pair_of_states_is_allowed_or_rejected(state: SessionState, to: SessionState) -> None:
    assert may_become(state, to) == ((state, to) in ALLOWED)
    if (state, to) in ALLOWED:
        check("s", state, to)
        assert state in sources(to)
        return
    with pytest.raises(HoldfastError) as raised:
        check("s", state, to)
    assert code_of(raised.value) == ("SESS_CLOSED" if state is CLOSED else "SESS_ILLEGAL_TRANSITION")


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("resumable", [True, False])
def test_S0_20_only_paused_and_resumable_resumes(state: SessionState, resumable: bool) -> None:
    problem = not_resumable("s", state, resumable=resumable)
    if state is PAUSED and resumable:
        assert problem is None
    else:
        assert problem is not None
        # B93 for closed, B95 for the others
        assert code_of(problem) == ("SESS_CLOSED" if state is CLOSED else "SESS_NOT_RESUMABLE")
        assert "'s'" in str(problem)


def test_S0_18_resumable_is_paused_and_resumable() -> None:
    assert bridge_view(PAUSED, resumable=True) == "resumable"
    assert bridge_view(PAUSED, resumable=False) == "paused"
    assert bridge_view(ACTIVE, resumable=True) == "active"


def test_N2_11_the_names_of_document_002() -> None:
    assert [stud_view(state) for state in (CREATED, ACTIVE, PAUSED, CLOSED)] == [
        StudState.IDLE,
        StudState.ACTIVE,
        StudState.PERSISTED,
        StudState.CLOSED,
    ]
    assert stud_view(ACTIVE, resumed=True) is StudState.RESUMED


def test_N2_11_every_edge_of_document_002_is_one_of_ours() -> None:
    ours = {
        StudState.IDLE: CREATED,
        StudState.ACTIVE: ACTIVE,
        StudState.PERSISTED: PAUSED,
        StudState.CLOSED: PAUSED,  # with a snapshot, which is all that can be resumed
        StudState.RESUMED: ACTIVE,
    }
    for (before, _), after in STUD_EDGES.items():
        assert ours[before] is ours[after] or may_become(ours[before], ours[after]), (before, after)
