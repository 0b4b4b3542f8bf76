"""Work that survives a crash of its process: sessions, their turns, and steps that run once.

What is done once is decided in `once/`; this room performs it. First a session and its turns, then steps, the log, and what is outside and later:

session         `Session`: open it, work in it, resume it. It has a `TurnRunner` and a `QuestionBroker`
machine         the states of a session, and which may follow which
manifest        what a session was started with, and how that differs when it is resumed
turn            runs the turns of a session, one after the other
openings        what the program did in earlier openings of a session
repeated_turns  the steps of turns that the program may have made before
open_ends       what must not end as done over a doubt or a wait inside of it
scopes          cancellation of session, turn, stage, tool
questions/      questions to people, answered once
step_runner     runs the steps of a turn, or of a session outside of turns, each once
runs            which run of work with steps of its own an earlier run of the program has begun
keyed_step      a step with a key that the program chose
call, callee    a call of a step: its function, its arguments, and what the log knows them by
place, siblings where in the program a call is made, and which of several equal calls it is
idempotency     the key of a step's calls
doubts, steps   what may have happened, and how somebody's finding settles it
codec           arguments and results as JSON, with tags where plain JSON is not enough; `canonical` gives sets one order
stored_types    which classes a stored value may become
log             the entries of the log, and the memory that follows from them
journal         writes to the log and keeps the memory in step with it
recorder        writes what recoveries did into the audit trail
lease           the right to write, one process at a time
admin           show, pause, repair and close a session from outside
history         what happened in a session, as a person reads it
later           work that is retried later, by any process that knows its program
parked_runs     runs that wait until a time
transfer        a session as JSON Lines, from one store to another; sessions as one JSON list
retention       drops what a store need not keep
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.once.doubt import I_DO_NOT_KNOW, IT_DID_NOT_HAPPEN, IT_HAPPENED, OUTCOMES
    from holdfast.sessions.admin import fork_session, resolve_step
    from holdfast.sessions.codec import MaskedValueWarning
    from holdfast.sessions.history import History, history_of
    from holdfast.sessions.later import run_due, watch_due
    from holdfast.sessions.manifest import Drift, DriftWarning, Manifest
    from holdfast.sessions.parked_runs import ParkedError
    from holdfast.sessions.questions import (
        Answer,
        DeviceCode,
        Interactor,
        Notice,
        Question,
        TerminalInteractor,
        answer,
        pending,
    )
    from holdfast.sessions.scopes import Scope
    from holdfast.sessions.session import Session
    from holdfast.sessions.stored_types import storable
    from holdfast.sessions.turn import Turn
    from holdfast.sessions.waits import signal

__all__ = [
    "IT_DID_NOT_HAPPEN",
    "IT_HAPPENED",
    "I_DO_NOT_KNOW",
    "OUTCOMES",
    "Answer",
    "DeviceCode",
    "Drift",
    "DriftWarning",
    "History",
    "Interactor",
    "Manifest",
    "MaskedValueWarning",
    "Notice",
    "ParkedError",
    "Question",
    "Scope",
    "Session",
    "TerminalInteractor",
    "Turn",
    "answer",
    "fork_session",
    "history_of",
    "pending",
    "resolve_step",
    "run_due",
    "signal",
    "storable",
    "watch_due",
]

_HOMES = dict.fromkeys(
    ("Answer", "DeviceCode", "Interactor", "Notice", "Question", "TerminalInteractor", "answer", "pending"),
    "holdfast.sessions.questions",
) | {
    "Drift": "holdfast.sessions.manifest",
    "DriftWarning": "holdfast.sessions.manifest",
    "Manifest": "holdfast.sessions.manifest",
    "MaskedValueWarning": "holdfast.sessions.codec",
    "IT_HAPPENED": "holdfast.once.doubt",
    "IT_DID_NOT_HAPPEN": "holdfast.once.doubt",
    "I_DO_NOT_KNOW": "holdfast.once.doubt",
    "OUTCOMES": "holdfast.once.doubt",
    "Scope": "holdfast.sessions.scopes",
    "Session": "holdfast.sessions.session",
    "Turn": "holdfast.sessions.turn",
    "storable": "holdfast.sessions.stored_types",
    "signal": "holdfast.sessions.waits",
    "run_due": "holdfast.sessions.later",
    "watch_due": "holdfast.sessions.later",
    "ParkedError": "holdfast.sessions.parked_runs",
    "fork_session": "holdfast.sessions.admin",
    "resolve_step": "holdfast.sessions.admin",
    "History": "holdfast.sessions.history",
    "history_of": "holdfast.sessions.history",
}

__getattr__ = loader(__name__, globals(), _HOMES)
