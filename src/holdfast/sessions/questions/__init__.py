"""Questions to people. A session asks, anybody may answer now or later, and the first answer counts.

question  the kinds; a question and an answer as values; which answer fits which question
answers   `answer`, `pending`: answering from anywhere, also from another process, without owning the session
broker    puts a question to everybody who is attached, and watches the log; the first answer counts
terminal  an interactor that asks at the program's terminal
remedies  what a person can do about a step that failed: `step_or_ask`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.sessions.questions.answers import answer, pending
    from holdfast.sessions.questions.question import Answer, Interactor, Kind, Notice, Question
    from holdfast.sessions.questions.remedies import DeviceCode
    from holdfast.sessions.questions.terminal import TerminalInteractor

__all__ = [
    "Answer",
    "DeviceCode",
    "Interactor",
    "Kind",
    "Notice",
    "Question",
    "TerminalInteractor",
    "answer",
    "pending",
]

_HOMES = dict.fromkeys(__all__, "holdfast.sessions.questions.question") | {
    "DeviceCode": "holdfast.sessions.questions.remedies",
    "TerminalInteractor": "holdfast.sessions.questions.terminal",
    "answer": "holdfast.sessions.questions.answers",
    "pending": "holdfast.sessions.questions.answers",
}

__getattr__ = loader(__name__, globals(), _HOMES)
