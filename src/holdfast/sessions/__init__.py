"""Work that survives a crash of its process: sessions, their turns, and steps that run once.

session      `Session`: open it, work in it, resume it; turn_runner: runs its turns
turn         one turn of a session
step_runner  runs the steps of a turn, or of a session outside of turns, each once; steps: which step a call is, and what to do
             about it; doubts: steps of unknown outcome, and how they are resolved
journal      writes to the log and remembers it; log: the entries; deltas: what changed in the context
codec        arguments and results as JSON; values: what plain JSON cannot hold; stored_types: which classes a value may become
lease        the right to write, one process at a time
manifest     what a session was started with, and how that differs when it is resumed
machine      the states of a session, and which may follow which
scopes       cancellation of session, turn, stage, tool; idempotency: the key of a step's calls
questions/   questions to people, answered once
admin        show, pause and close a session from outside
transfer     a session as JSON Lines, from one store to another; session_file: sessions as one JSON list
retention    drops what a store need not keep
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.sessions.codec import MaskedValueWarning
    from holdfast.sessions.manifest import Drift, DriftWarning, Manifest
    from holdfast.sessions.questions import Answer, DeviceCode, Interactor, Question, answer, pending
    from holdfast.sessions.scopes import Scope
    from holdfast.sessions.session import Session
    from holdfast.sessions.stored_types import storable
    from holdfast.sessions.turn import Turn

__all__ = [
    "Answer",
    "DeviceCode",
    "Drift",
    "DriftWarning",
    "Interactor",
    "Manifest",
    "MaskedValueWarning",
    "Question",
    "Scope",
    "Session",
    "Turn",
    "answer",
    "pending",
    "storable",
]

_HOMES = dict.fromkeys(
    ("Answer", "DeviceCode", "Interactor", "Question", "answer", "pending"), "holdfast.sessions.questions"
) | {
    "Drift": "holdfast.sessions.manifest",
    "DriftWarning": "holdfast.sessions.manifest",
    "Manifest": "holdfast.sessions.manifest",
    "MaskedValueWarning": "holdfast.sessions.codec",
    "Scope": "holdfast.sessions.scopes",
    "Session": "holdfast.sessions.session",
    "Turn": "holdfast.sessions.turn",
    "storable": "holdfast.sessions.stored_types",
}

__getattr__ = loader(__name__, globals(), _HOMES)
