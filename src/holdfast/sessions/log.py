"""What a session writes into its log, and what follows from it.

Invariant: `Remembered.take` is the only reader. Folding the log from its beginning, or from a checkpoint on, gives the same.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.stores import Entry, NewEntry
from holdfast.stores.errors import damaged

__all__ = [
    "Answered",
    "Asked",
    "Message",
    "Remembered",
    "Said",
    "StateChanged",
    "StepEnded",
    "StepStarted",
    "TurnEnded",
    "TurnOutcome",
    "TurnStarted",
    "Written",
    "new_entry",
    "read_entry",
]


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="said"):
    """A body of the log."""


class StateChanged(Said, frozen=True, tag="session_state"):
    """The session went from one state to another. Its entry's type says which, `session_active` for one."""

    state: str
    reason: str = ""


TurnOutcome: TypeAlias = Literal["ok", "failed", "cancelled", "abandoned"]


class TurnStarted(Said, frozen=True, tag="turn_started"):
    turn: int
    input: Any = None
    given: str = ""
    """The hash of the input: secrets in the input itself are masked."""
    own: bool = False
    """It is that of steps which are in no other."""


class TurnEnded(Said, frozen=True, tag="turn_ended"):
    turn: int
    outcome: TurnOutcome
    reason: str = ""


class StepStarted(Said, frozen=True, tag="step_started"):
    """Written before a step that may not simply be repeated."""

    turn: int
    step: str
    args: str
    effect: str | None = None
    repeats: bool = False
    """It was started before, without a known end."""


class StepEnded(Said, frozen=True, tag="step_ended"):
    turn: int
    step: str
    args: str
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    """What it returned, or the fault it failed with."""
    unknown: bool = False
    """It failed, and may have happened."""


class Asked(Said, frozen=True, tag="interaction_raised"):
    id: str
    step: str
    """Which question of the turn it is."""
    turn: int
    kind: str
    payload: dict[str, Any] = {}
    args: str = ""
    """The hash of what was asked: an answer holds for just that."""
    expires_at: float | None = None


class Answered(Said, frozen=True, tag="interaction_answered"):
    id: str
    outcome: Literal["accepted", "rejected", "timeout", "dismissed"]
    value: Any = None
    reason: str = ""
    by: str = ""


class Message(Said, frozen=True, tag="message"):
    """A message of the conversation."""

    content: Any = None
    role: str = "user"


Written: TypeAlias = TurnStarted | TurnEnded | StepStarted | StepEnded | Asked | Answered | Message
_READ = msgspec.json.Decoder(Written)
_TYPES = frozenset(kind.__struct_config__.tag for kind in get_args(Written))


def read_entry(session: str, entry: Entry) -> Written | None:
    """Return what an entry says; None where it is not ours to read. One that makes no sense is SESS_MANIFEST_DRIFT."""
    if entry.type not in _TYPES:
        return None
    try:
        said: Written = _READ.decode(entry.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(session, f"its entry {entry.offset} ({entry.type}) cannot be read: {error}") from error
    return said


def new_entry(said: Said, id_: str, type_: str | None = None) -> NewEntry:
    """Return what to append, under its own type or another."""
    return NewEntry(type=type_ or str(said.__struct_config__.tag), body=msgspec.json.encode(said), id=id_)


class Remembered(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a session knows from its log: all of it goes into a checkpoint."""

    turn: int = 0
    """The number of the last turn."""
    in_flight: bool = False
    """It was started and has not ended."""
    input: Any = None
    """What it was started with."""
    given: str = ""
    """The hash of that."""
    own: bool = False
    """It is that of steps which are in no other."""
    steps: dict[str, StepStarted | StepEnded] = msgspec.field(default_factory=dict)
    """Of the turn in flight, by name."""
    asked: dict[str, Asked] = msgspec.field(default_factory=dict)
    """Of the turn in flight, by the name of the question."""
    answers: dict[str, Answered] = msgspec.field(default_factory=dict)
    """By the question's id."""
    message_count: int = 0
    last_message_id: str | None = None
    context: Any = None
    """What the application wants to find again."""

    def take(self, session: str, entry: Entry) -> None:
        """Take in the next entry of the log. What others wrote there is not ours to read."""
        said = read_entry(session, entry)
        if said is not None:
            self.apply(said, entry.id)

    def is_under_way(self, turn: int) -> bool:
        return self.in_flight and self.turn == turn

    def pending(self) -> list[Asked]:
        """Return the questions that wait for an answer."""
        return [asked for asked in self.asked.values() if asked.id not in self.answers]

    def unknown(self) -> list[str]:
        """Return the steps that may have happened and are not repeated by themselves."""
        return [
            step
            for step, said in self.steps.items()
            if (said.unknown if isinstance(said, StepEnded) else said.effect == "unsafe")
        ]

    def apply(self, said: Said, id_: str) -> None:
        match said:
            case TurnStarted():
                self.turn, self.in_flight = said.turn, True
                self.input, self.given, self.own = said.input, said.given, said.own
            case TurnEnded():
                self.in_flight, self.input, self.given, self.own = False, None, "", False
                # Others may hold the old ones: a checkpoint is made of what will be remembered.
                self.steps, self.asked, self.answers = {}, {}, {}
            case StepStarted(turn=turn) | StepEnded(turn=turn) | Asked(turn=turn) if not self.is_under_way(turn):
                # Its turn ended before it: it must not be taken for one of the next.
                pass
            case StepStarted(step=step) | StepEnded(step=step):
                self.steps[step] = said
            case Asked(step=step):
                self.asked[step] = said
            case Answered(id=question):
                # The first answer counts; the store lets no second one in.
                self.answers.setdefault(question, said)
            case Message():
                self.message_count += 1
                self.last_message_id = id_
            case _:
                pass
