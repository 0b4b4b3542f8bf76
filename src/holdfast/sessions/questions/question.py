"""Questions and answers as values, and which answer fits which question.

Invariant: everything here is pure. No value that is stored contains the answer to a secret question.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError
from holdfast.once.doubt import IT_DID_NOT_HAPPEN, IT_HAPPENED, OUTCOMES
from holdfast.sessions.codec import arguments_hash

if TYPE_CHECKING:
    from holdfast.sessions.log import Answered, QuestionRaised

__all__ = [
    "KINDS",
    "TOOL_CALL",
    "Answer",
    "Interactor",
    "Kind",
    "Notice",
    "Outcome",
    "Question",
    "answer_word",
    "automatic_answer",
    "body_hash",
    "checked",
    "is_secret",
    "mismatch",
    "question_hash",
    "question_of",
]

Kind: TypeAlias = Literal["Ask", "Approve", "Select", "Confirm", "Auth.DeviceCode", "Auth.Password"]
"""The kinds, by their answers: a text, a yes to an action, one of several choices, a yes to a fact, a sign-in, a password."""

KINDS = frozenset(get_args(Kind))
Outcome: TypeAlias = Literal["accepted", "rejected", "timeout", "dismissed"]

TOOL_CALL = "tool_call_id"
"""The field of a question with the id of the tool call that it is about."""
_SPOKEN = {"yes": True, "no": False}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a person, as an `Interactor` gets it: `question.prompt`, `question.choices`."""

    id: str
    session: str
    turn: int
    kind: Kind
    prompt: str
    choices: tuple[str, ...] = ()
    """The choices of a `Select`."""
    url: str = ""
    """Where to sign in, for a device code."""
    user_code: str = ""
    """The code to type there. It is shown but not stored."""
    expires_at: float | None = None
    """Wall clock. A later answer raises SESS_INTERACTION_EXPIRED."""
    details: dict[str, Any] = {}
    """What exactly is asked about, for a program to show: `tool` and `arguments` for the call of a tool."""

    def __repr__(self) -> str:
        # Not the code of a sign-in: it is not for logs.
        choices = f", choices={self.choices!r}" if self.choices else ""
        details = f", details={self.details!r}" if self.details else ""
        return f"Question(id={self.id!r}, kind={self.kind!r}, prompt={self.prompt!r}{choices}{details})"


class Answer(msgspec.Struct, frozen=True):
    """A person's answer: `Answer(True)`, `Answer("staging")`, `Answer.no("too risky")`, `Answer.dismissed()`."""

    value: Any = None
    outcome: Outcome = "accepted"
    reason: str = ""

    @classmethod
    def no(cls, reason: str = "") -> Answer:
        """Return a no: the action is not taken, or no text or choice is given."""
        return cls(None, "rejected", reason)

    @classmethod
    def dismissed(cls, reason: str = "") -> Answer:
        """Return an answer that dismisses the question: the turn that waits for it is cancelled."""
        return cls(None, "dismissed", reason)

    def __repr__(self) -> str:
        # The value may be a password.
        return f"Answer(outcome={self.outcome!r})"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should know, as an `Interactor` with a method `notify` gets it. Nobody has to answer.

    class Console:
        async def notify(self, notice: Notice) -> None:
            print(notice.text)
    """

    session: str
    text: str
    fault: Fault | None = None
    """What happened, if it is about a failure."""


class Interactor(Protocol):
    """Somebody who can answer: a terminal, a window, a chat.

        class Console:
            async def ask(self, question: Question) -> Answer:
                return Answer(await read_line(question.prompt))

    `ask` is an async function and returns an `Answer` that fits `question.kind`. It is cancelled if somebody else answers first. If it
    raises, the others are still asked and the error is in the log; if nobody is left, the program gets the error. It may also have a method
    `async def notify(self, notice: Notice) -> None`, which shows what `Session.notify` says.
    """

    async def ask(self, question: Question) -> Answer:
        """Return the person's answer."""
        ...


def is_secret(kind: str) -> bool:
    """Whether the answer must not be stored."""
    return kind == "Auth.Password"


def answer_word(kind: str) -> str:
    """Return what stands for the answer in `holdfast sessions answer SESSION QUESTION …`."""
    return {"Ask": "TEXT", "Select": "CHOICE"}.get(kind, "--yes")


def question_of(session: str, raised: QuestionRaised, user_code: str = "") -> Question:
    """Return the question of a log entry; raise SESS_INTERACTION_UNKNOWN_KIND for a kind that is not known."""
    if raised.kind not in KINDS:
        context = {"received": raised.kind, "interaction_id": raised.id}
        raise HoldfastError(Fault.of("SESS_INTERACTION_UNKNOWN_KIND", context=context))
    payload = raised.payload
    return Question(
        id=raised.id,
        session=session,
        turn=raised.turn,
        kind=msgspec.convert(raised.kind, Kind),
        prompt=str(payload.get("prompt", "")),
        choices=tuple(str(choice) for choice in payload.get("choices", ())),
        url=str(payload.get("url", "")),
        user_code=user_code,
        expires_at=raised.expires_at,
        details=details if isinstance(details := payload.get("details"), dict) else {},
    )


def question_hash(kind: str, payload: dict[str, Any]) -> str:
    """Return the hash that identifies a question. An answer is valid only for the question that was shown."""
    # A program that is started again may give the same call another id.
    shown = {name: value for name, value in payload.items() if name != TOOL_CALL}
    if isinstance(details := shown.get("details"), dict):
        # It is shown, and may be declared anew while the question waits.
        shown["details"] = {name: value for name, value in details.items() if name != "effect"}
    return arguments_hash((kind, shown), {}, "question")


def checked(question: Question, answer: Answer) -> Answer:
    """Return the answer in its normal form; raise SESS_INTERACTION_MISMATCH if it does not fit the question."""
    if answer.outcome != "accepted":
        return Answer(None, answer.outcome, answer.reason)
    value = _choice(question, answer.value)
    match question.kind:
        case "Approve" | "Confirm" | "Auth.DeviceCode" if isinstance(value, bool):
            # A plain False is a no, and is stored like `Answer.no()`.
            return answer if value else Answer(None, "rejected", answer.reason)
        case "Ask" | "Auth.Password" if isinstance(value, str):
            return answer
        case "Select" if isinstance(value, str) and value in question.choices:
            return Answer(value, "accepted", answer.reason)
        case _:
            raise mismatch(question.id, _expected(question), _shown(question, value))


def _choice(question: Question, value: Any) -> Any:
    """Return the choice that a yes or a no means, where the choices say whether something happened; else the value itself."""
    if question.kind != "Select" or question.choices != tuple(OUTCOMES):
        return value
    meant = _SPOKEN.get(value.strip().casefold()) if isinstance(value, str) else value
    return value if not isinstance(meant, bool) else IT_HAPPENED if meant else IT_DID_NOT_HAPPEN


def automatic_answer(question: Question) -> Answer:
    """Return the answer of mode `yolo` if nobody is attached (N2-15)."""
    match question.kind:
        case "Approve" | "Confirm":
            return Answer(value=True)
        case "Ask":
            # We cannot invent a text. With an empty text the program can use its own default.
            return Answer("")
        case "Select":
            return Answer(question.choices[0])
        case _:
            return Answer(None)


def body_hash(kind: str, answer: Answer) -> bytes:
    """Return a hash that two equal answers share.

    A password could be guessed from its hash, so its hash is random.
    """
    if is_secret(kind) and answer.outcome == "accepted":
        return secrets.token_bytes(16)
    return sha256(msgspec.json.encode((answer.outcome, answer.value))).digest()[:16]


def is_same(answered: Answered, kind: str, answer: Answer) -> bool:
    """Whether an answer equals the one that is stored."""
    # The stored answer holds no secret to compare with.
    if is_secret(kind) and answer.outcome == "accepted":
        return False
    return (answered.outcome, answered.value) == (answer.outcome, answer.value)


def mismatch(id_: str, expected: str, received: str) -> HoldfastError:
    """Return SESS_INTERACTION_MISMATCH for an answer that does not fit."""
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
    """Return the received value as text, but only the type of a secret."""
    if isinstance(value, str) and not question.kind.startswith("Auth."):
        return repr(value)
    return options.an(type(value).__name__)
