"""Questions and answers as values, and which answer fits which question.

Invariant: everything here is pure. What a secret question is answered with is in no value that is stored.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.sessions.codec import arguments_hash

if TYPE_CHECKING:
    from holdfast.sessions.log import Answered, Asked

__all__ = [
    "KINDS",
    "Answer",
    "Interactor",
    "Kind",
    "Outcome",
    "Question",
    "body_hash",
    "by_itself",
    "checked",
    "is_secret",
    "mismatch",
    "question_of",
    "same_question",
]

Kind: TypeAlias = Literal["Ask", "Approve", "Select", "Confirm", "Auth.DeviceCode", "Auth.Password"]
"""What is asked for: a text, a yes to an action, one of several, a yes to a fact, a sign-in elsewhere, a password."""

KINDS = frozenset(get_args(Kind))
Outcome: TypeAlias = Literal["accepted", "rejected", "timeout", "dismissed"]

_YES_OR_NO = frozenset({"Approve", "Confirm"})


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is asked."""

    id: str
    session: str
    turn: int
    kind: Kind
    prompt: str
    choices: tuple[str, ...] = ()
    """What to select from."""
    url: str = ""
    """Where to sign in, for a device code."""
    user_code: str = ""
    """What to type there. It is shown and not stored."""
    expires_at: float | None = None
    """Wall clock: later answers are refused."""

    def __repr__(self) -> str:
        return f"Question(id={self.id!r}, kind={self.kind!r}, prompt={self.prompt!r})"


class Answer(msgspec.Struct, frozen=True):
    """What a person answers: `Answer(True)`, `Answer("staging")`, `Answer.no("too risky")`, `Answer.dismissed()`."""

    value: Any = None
    outcome: Outcome = "accepted"
    reason: str = ""

    @classmethod
    def no(cls, reason: str = "") -> Answer:
        """Refuse: the action is not taken, the text or choice is not given."""
        return cls(None, "rejected", reason)

    @classmethod
    def dismissed(cls, reason: str = "") -> Answer:
        """Put the question away: the turn that asks is cancelled."""
        return cls(None, "dismissed", reason)

    def __repr__(self) -> str:
        # The value may be a password.
        return f"Answer(outcome={self.outcome!r})"


class Interactor(Protocol):
    """Somebody who can answer: a terminal, a window, a chat. Cancelled where another answers first."""

    async def ask(self, question: Question) -> Answer: ...


def is_secret(kind: str) -> bool:
    """Whether what it is answered with must not be stored."""
    return kind == "Auth.Password"


def question_of(session: str, asked: Asked, user_code: str = "") -> Question:
    """Return what is on record as a question to show, or raise where its kind is none."""
    if asked.kind not in KINDS:
        context = {"received": asked.kind, "interaction_id": asked.id}
        raise HoldfastError(Fault.of("SESS_INTERACTION_UNKNOWN_KIND", context=context))
    payload = asked.payload
    return Question(
        id=asked.id,
        session=session,
        turn=asked.turn,
        kind=msgspec.convert(asked.kind, Kind),
        prompt=str(payload.get("prompt", "")),
        choices=tuple(str(choice) for choice in payload.get("choices", ())),
        url=str(payload.get("url", "")),
        user_code=user_code,
        expires_at=asked.expires_at,
    )


def same_question(kind: str, payload: dict[str, Any]) -> str:
    """Return the hash by which a question is recognised when it is asked again: an answer holds for what was shown."""
    return arguments_hash((kind, payload), {}, "question")


def checked(question: Question, answer: Answer) -> Answer:
    """Return the answer in its one form, or raise SESS_INTERACTION_MISMATCH where it does not fit."""
    if answer.outcome != "accepted":
        return Answer(None, answer.outcome, answer.reason)
    value = answer.value
    match question.kind:
        case "Approve" | "Confirm" | "Auth.DeviceCode" if isinstance(value, bool):
            return answer if value else Answer(None, "rejected", answer.reason)
        case "Ask" | "Auth.Password" if isinstance(value, str):
            return answer
        case "Select" if value in question.choices:
            return answer
        case _:
            raise mismatch(question.id, _expected(question), _shown(question, value))


def by_itself(question: Question) -> Answer:
    """Return how mode `yolo` answers where nobody is there (N2-15)."""
    match question.kind:
        case "Approve" | "Confirm":
            return Answer(value=True)
        case "Ask":
            return Answer("")
        case "Select":
            return Answer(question.choices[0])
        case _:
            return Answer(None)


def body_hash(kind: str, answer: Answer) -> bytes:
    """Return what makes an answer the same as another. A password's hash could be guessed from, so each is its own."""
    if is_secret(kind) and answer.outcome == "accepted":
        return secrets.token_bytes(16)
    return sha256(msgspec.json.encode((answer.outcome, answer.value))).digest()[:16]


def is_same(answered: Answered, kind: str, answer: Answer) -> bool:
    """Whether an answer says what is on record already."""
    if is_secret(kind) and answer.outcome == "accepted":
        return False
    return (answered.outcome, answered.value) == (answer.outcome, answer.value)


def mismatch(id_: str, expected: str, received: str) -> HoldfastError:
    context = {"interaction_id": id_, "expected": expected, "received": received}
    return HoldfastError(Fault.of("SESS_INTERACTION_MISMATCH", context=context))


def _expected(question: Question) -> str:
    match question.kind:
        case "Ask" | "Auth.Password":
            return "a text"
        case "Select":
            return f"one of {', '.join(question.choices)}"
        case _:
            return "yes or no"


def _shown(question: Question, value: Any) -> str:
    """What was received; of a secret only its type."""
    if isinstance(value, str) and not question.kind.startswith("Auth."):
        return repr(value)
    return f"a {type(value).__name__}"
