"""Questions to people: asked in a session, answered once, by whoever is there or comes later (S2-19, N2-15).

questions  the kinds, a question and an answer as values, which answer fits which question
answering  answering from anywhere: the same process or another one, without owning the session
desk       asking those who are attached and the log at once, in turn; the first answer counts
methods    `ask`, `approve`, `select` … of a session
mending    what to ask about a step that failed, and what follows from the answer
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.sessions.questions.answers import answer, pending
    from holdfast.sessions.questions.question import Answer, Interactor, Kind, Question
    from holdfast.sessions.questions.remedies import DeviceCode

__all__ = ["Answer", "DeviceCode", "Interactor", "Kind", "Question", "answer", "pending"]

_HOMES = dict.fromkeys(__all__, "holdfast.sessions.questions.question") | {
    "DeviceCode": "holdfast.sessions.questions.remedies",
    "answer": "holdfast.sessions.questions.answers",
    "pending": "holdfast.sessions.questions.answers",
}

__getattr__ = loader(__name__, globals(), _HOMES)
