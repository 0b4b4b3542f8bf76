"""Work that survives the process doing it: sessions, their turns, and steps that are done once.

session   `Session`: opened, worked in, resumed; turns: steps and batches in one turn
machine   which state may follow which, and what the documents call them
manifest  what a session was begun with, and how it differs when it is resumed; comparing: what is done about that
log       what is written, and what follows from it; deciding: what to do about a step; codec: values as JSON
outside   looking at a session, pausing or closing it, without its program
moving    a session as JSON Lines, out of one store and into another; persisted: document 000's file
retention what a store need not keep
saving    writing to the store; leasing: being its only owner; owners: who that is
interactions  questions to people, asked and answered once
scopes    cancelling session, turn, stage, tool; keyed: the key a step's calls send along
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.sessions.manifest import Drift, DriftWarning, Manifest
    from holdfast.sessions.questions import Answer, DeviceCode, Interactor, Question, answer, pending
    from holdfast.sessions.scopes import Scope
    from holdfast.sessions.session import Session
    from holdfast.sessions.turn import Turn

__all__ = [
    "Answer",
    "DeviceCode",
    "Drift",
    "DriftWarning",
    "Interactor",
    "Manifest",
    "Question",
    "Scope",
    "Session",
    "Turn",
    "answer",
    "pending",
]

_HOMES = dict.fromkeys(
    ("Answer", "DeviceCode", "Interactor", "Question", "answer", "pending"), "holdfast.sessions.questions"
) | {
    "Drift": "holdfast.sessions.manifest",
    "DriftWarning": "holdfast.sessions.manifest",
    "Manifest": "holdfast.sessions.manifest",
    "Scope": "holdfast.sessions.scopes",
    "Session": "holdfast.sessions.session",
    "Turn": "holdfast.sessions.turn",
}

__getattr__ = loader(__name__, globals(), _HOMES)
