"""A history as the repair sees it, the same for all forms: turns of pieces.

Invariant: a turn that was not touched is written as the very message that was read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.transcript.changes import Change

BEGINNING = "(The beginning of this conversation is missing.)"
"""Stands in place of the first message of a user, where a conversation must not begin with an answer."""

Role: TypeAlias = Literal["model", "user", "result", "other"]
"""Who speaks. `result`: a message that is nothing but the result of a call."""

Place: TypeAlias = Literal["first", "within", "after", "later"]
"""Where the results of a model's turn stand.

first    first in the user message that follows (Anthropic)
within   anywhere in the user messages that follow (pydantic-ai)
after    in messages of their own, right after the message with the calls (Chat Completions, LangChain)
later    anywhere after the call (Responses)
"""


@dataclass(slots=True, eq=False)
class Piece:
    """A part of a message: a call, a result, or anything else. Two pieces are never equal."""

    value: Any
    kind: Literal["call", "result", "other"] = "other"
    id: str = ""
    name: str = ""
    arguments: Any = None
    was: str = field(init=False)
    """The id in the history that was given."""

    def __post_init__(self) -> None:
        self.was = self.id


@dataclass(slots=True, eq=False)
class TranscriptTurn:
    """A message and its pieces. `message` is None if the repair adds it."""

    where: int
    message: Any
    role: Role
    pieces: list[Piece] = field(default_factory=list)
    touched: bool = False

    def of(self, kind: Literal["call", "result", "other"]) -> list[Piece]:
        """Return the pieces of a kind."""
        return [piece for piece in self.pieces if piece.kind == kind]

    def remove(self, piece: Piece) -> None:
        """Take a piece out."""
        self.pieces = [each for each in self.pieces if each is not piece]
        self.touched = True


class HistoryForm(ABC):
    """A provider's or a framework's messages: how to read and write them, and their rules."""

    place: ClassVar[Place]
    unique: ClassVar[Literal["history", "message"]] = "history"
    """Where the id of a call may occur only once."""
    merges: ClassVar[bool] = False
    """Consecutive messages of the model are one turn, so calls in any but the last of them make a merger necessary."""

    def is_id(self, id: str) -> bool:  # noqa: A002 - the word of every provider
        """Whether a call may have this id."""
        return bool(id)

    @abstractmethod
    def read(self, message: Any, where: int) -> TranscriptTurn:
        """Return the message as a turn."""

    @abstractmethod
    def write(self, turn: TranscriptTurn) -> Any:
        """Return the message of a turn that has changed. Turns without pieces are left out before."""

    @abstractmethod
    def renamed(self, piece: Piece, id: str) -> Any:  # noqa: A002 - the word of every provider
        """Return the value of a call or a result with another id."""

    @abstractmethod
    def result(self, call: Piece, text: str, like: Any) -> Any:
        """Return the value of a new result that reports a failure. `like` is the message with the call.

        None: such a call cannot get a result that is text, so the call has to go.
        """

    def tidy(self, turns: list[TranscriptTurn]) -> Iterable[Change]:
        """Mend what has nothing to do with calls and results, in place. Yield the changes."""
        del turns
        return ()

    def knows_all_calls(self, turns: list[TranscriptTurn]) -> bool:
        """Whether a result without a call is stray. False: the call may be stored at the provider."""
        del turns
        return True


def runs(turns: list[TranscriptTurn], role: Role) -> Iterator[list[TranscriptTurn]]:
    """Return the runs of consecutive turns with this role."""
    run: list[TranscriptTurn] = []
    for turn in turns:
        if turn.role == role:
            run.append(turn)
        elif run:
            yield run
            run = []
    if run:
        yield run


def get(value: Any, name: str, default: Any = None) -> Any:
    """Return a field of a dict or of an SDK's object."""
    if isinstance(value, Mapping):
        return value.get(name, default)
    return getattr(value, name, default)


def changed(value: Any, **fields: Any) -> Any:
    """Return a copy of a dict or of an SDK's object with other fields."""
    if isinstance(value, Mapping):
        return {**value, **fields}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **fields)
    copy: Any = value
    return copy.model_copy(update=fields)
