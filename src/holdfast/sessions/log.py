"""The entries that a session writes into its log, and the memory that follows from them.

Invariant: `SessionMemory.take` is the only reader. Applying the whole log gives the same memory as applying the entries after a
checkpoint to that checkpoint.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.stores import Entry, NewEntry
from holdfast.stores.errors import damaged

__all__ = [
    "Answered",
    "EntryBody",
    "Message",
    "QuestionRaised",
    "SessionMemory",
    "StateChanged",
    "StepEnded",
    "StepStarted",
    "TurnEnded",
    "TurnOutcome",
    "TurnStarted",
    "new_entry",
    "read_entry",
]


class EntryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="said"):
    """The body of an entry. The tag's name and values are stored, so they never change."""


class StateChanged(EntryBody, frozen=True, tag="session_state"):
    """The session went from one state to another. The entry's type names the change, for example `session_active`."""

    state: str
    reason: str = ""


TurnOutcome: TypeAlias = Literal["ok", "failed", "cancelled", "abandoned"]


class TurnStarted(EntryBody, frozen=True, tag="turn_started"):
    """A turn began."""

    turn: int
    input: Any = None
    given: str = ""
    """The hash of the input, to compare inputs. Secrets in the stored input are masked, so that text cannot be compared."""
    own: bool = False
    """Whether it is the session's own turn, to which steps outside of any `turn` block belong."""


class TurnEnded(EntryBody, frozen=True, tag="turn_ended"):
    """A turn ended."""

    turn: int
    outcome: TurnOutcome
    reason: str = ""


class StepStarted(EntryBody, frozen=True, tag="step_started"):
    """Written before a step that must not simply be repeated."""

    turn: int
    step: str
    args: str
    """The hash of its arguments."""
    effect: str | None = None
    repeats: bool = False
    """Whether it was started before, and the outcome of that start is unknown."""


class StepEnded(EntryBody, frozen=True, tag="step_ended"):
    """A step returned or failed."""

    turn: int
    step: str
    args: str
    """The hash of its arguments."""
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    """The value it returned, or the fault it failed with."""
    unknown: bool = False
    """Whether it failed but may have happened nevertheless."""


class QuestionRaised(EntryBody, frozen=True, tag="interaction_raised"):
    """A question waits for a person's answer."""

    id: str
    step: str
    """The question's name in its turn."""
    turn: int
    kind: str
    payload: dict[str, Any] = {}
    args: str = ""
    """The hash of kind and payload. An answer is valid for exactly this question."""
    expires_at: float | None = None


class Answered(EntryBody, frozen=True, tag="interaction_answered"):
    """The answer to a question, as it is stored."""

    id: str
    """The question's id."""
    outcome: Literal["accepted", "rejected", "timeout", "dismissed"]
    value: Any = None
    reason: str = ""
    by: str = ""
    """Who answered."""


class Message(EntryBody, frozen=True, tag="message"):
    """A message of the conversation."""

    content: Any = None
    role: str = "user"


_Known: TypeAlias = TurnStarted | TurnEnded | StepStarted | StepEnded | QuestionRaised | Answered | Message
_READ = msgspec.json.Decoder(_Known)
_TYPES = frozenset(kind.__struct_config__.tag for kind in get_args(_Known))


def read_entry(session: str, entry: Entry) -> EntryBody | None:
    """Return the body of an entry, or None if it is of a type that sessions do not read.

    Raise SESS_MANIFEST_DRIFT for an entry that cannot be decoded.
    """
    if entry.type not in _TYPES:
        return None
    try:
        body: EntryBody = _READ.decode(entry.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(session, f"its entry {entry.offset} ({entry.type}) cannot be read: {error}") from error
    return body


def new_entry(body: EntryBody, id_: str, type_: str | None = None) -> NewEntry:
    """Return an entry to append, of the body's own type or of `type_`."""
    return NewEntry(type=type_ or str(body.__struct_config__.tag), body=msgspec.json.encode(body), id=id_)


class SessionMemory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a session knows from its log. A checkpoint stores all of it."""

    turn: int = 0
    """The number of the last turn."""
    in_flight: bool = False
    """Whether that turn is still in flight."""
    input: Any = None
    """The turn's input."""
    given: str = ""
    """The hash of the input."""
    own: bool = False
    """Whether it is the session's own turn, to which steps outside of any `turn` block belong."""
    steps: dict[str, StepStarted | StepEnded] = msgspec.field(default_factory=dict)
    """The last entry of each step of the turn in flight, by the step's name."""
    questions: dict[str, QuestionRaised] = msgspec.field(default_factory=dict, name="asked")
    """The questions of the turn in flight, by name. Checkpoints store them as `asked`."""
    answers: dict[str, Answered] = msgspec.field(default_factory=dict)
    """The answers, by the question's id."""
    message_count: int = 0
    last_message_id: str | None = None
    context: Any = None
    """`Session.context` at the last checkpoint."""

    def take(self, session: str, entry: Entry) -> None:
        """Apply the next entry of the log. Entries of other types belong to other readers and are skipped."""
        body = read_entry(session, entry)
        if body is not None:
            self.apply(body, entry.id)

    def is_under_way(self, turn: int) -> bool:
        """Whether this turn is the one in flight."""
        return self.in_flight and self.turn == turn

    def pending(self) -> list[QuestionRaised]:
        """Return the questions without an answer."""
        return [question for question in self.questions.values() if question.id not in self.answers]

    def unknown(self) -> list[str]:
        """Return the names of steps that may have happened and must not be repeated automatically."""
        return [
            name
            for name, entry in self.steps.items()
            if (entry.unknown if isinstance(entry, StepEnded) else entry.effect == "unsafe")
        ]

    def apply(self, body: EntryBody, id_: str) -> None:
        """Apply the body of an entry with this id."""
        match body:
            case TurnStarted():
                self.turn, self.in_flight = body.turn, True
                self.input, self.given, self.own = body.input, body.given, body.own
            case TurnEnded():
                self.in_flight, self.input, self.given, self.own = False, None, "", False
                # Make new dicts instead of `clear`: a checkpoint that is being written has a shallow copy with the old dicts.
                self.steps, self.questions, self.answers = {}, {}, {}
            case StepStarted(turn=turn) | StepEnded(turn=turn) | QuestionRaised(turn=turn) if not self.is_under_way(
                turn
            ):
                # The entry was written after its turn had ended. It must not count as part of the next turn.
                pass
            case StepStarted(step=step) | StepEnded(step=step):
                self.steps[step] = body
            case QuestionRaised(step=step):
                self.questions[step] = body
            case Answered(id=question):
                # The first answer counts. The store's claim rejects a second answer.
                self.answers.setdefault(question, body)
            case Message():
                self.message_count += 1
                self.last_message_id = id_
            case _:
                pass
