"""Work that survives the process doing it: sessions, their turns, and steps that are done once.

session   `Session`: opened, worked in, resumed; turns: steps and batches in one turn
machine   which state may follow which, and what the documents call them
manifest  what a session was begun with, and how it differs when it is resumed
log       what is written, and what follows from it; deciding: what to do about a step; codec: values as JSON
saving    writing to the store; leasing: being its only owner; owners: who that is
scopes    cancelling session, turn, stage, tool; keyed: the key a step's calls send along
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.sessions.manifest import Drift, Manifest
    from holdfast.sessions.scopes import Scope
    from holdfast.sessions.session import DriftWarning, Session
    from holdfast.sessions.turns import Turn

__all__ = ["Drift", "DriftWarning", "Manifest", "Scope", "Session", "Turn"]

_HOMES = {
    "Drift": "holdfast.sessions.manifest",
    "DriftWarning": "holdfast.sessions.session",
    "Manifest": "holdfast.sessions.manifest",
    "Scope": "holdfast.sessions.scopes",
    "Session": "holdfast.sessions.session",
    "Turn": "holdfast.sessions.turns",
}

__getattr__ = loader(__name__, globals(), _HOMES)
