"""An answer that would be given if nothing went wrong, and the plan that gives it. Faults are changes to this plan."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from holdfast.testing.provider.acts import Data, Ending, Head, Headers, Plan
from holdfast.testing.provider.protocols import list_models
from holdfast.testing.provider.protocols.base import Frame, Part, Refusal, as_json

if TYPE_CHECKING:
    from holdfast.testing.provider.protocols.base import Dialect
    from holdfast.testing.provider.replies import Reply
    from holdfast.testing.provider.requests import Request

__all__ = ["JSON", "SSE", "Answer", "give", "refuse"]

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"


class Answer:
    """A reply in the words of a protocol. Only what a plan uses is written out."""

    def __init__(
        self, request: Request, dialect: Dialect, reply: Reply, *, number: int, limits: Headers, wall: float
    ) -> None:
        self.request = request
        self.dialect = dialect
        self.reply = reply
        self.number = number
        self.limits = limits
        self.wall = wall

    def replying(self, reply: Reply) -> Answer:
        """Return the same answer with another reply."""
        return Answer(self.request, self.dialect, reply, number=self.number, limits=self.limits, wall=self.wall)

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self.request.stream

    @property
    def content_type(self) -> str:
        """The type of the body."""
        return SSE if self.streams else JSON

    @cached_property
    def whole(self) -> bytes:
        """The body of an answer that is not a stream."""
        if self.request.method == "GET":
            return as_json(list_models(self.dialect))
        return as_json(self.dialect.whole(self.reply, self.request, self.number))

    @cached_property
    def frames(self) -> list[Frame]:
        """The events of a stream."""
        return self.dialect.frames(self.reply, self.request, self.number)

    def frames_up_to(self, pieces: int) -> bytes:
        """Return the stream until so many pieces of text or tool call were sent."""
        sent: list[bytes] = []
        for frame in self.frames:
            if frame.part is Part.CLOSING:
                break
            if frame.part is not Part.OPENING:
                if pieces == 0:
                    break
                pieces -= 1
            sent.append(frame.data)
        return b"".join(sent)

    def head(self, status: int = 200, *, content_type: str | None = None, length: int | None = None) -> Head:
        """Return the head, with what a provider puts into it when it answers."""
        named = (("content-type", content_type or self.content_type), self._id)
        return Head(status, (*named, *self.limits), length)

    def refusal_head(self, status: int, headers: Headers, length: int) -> Head:
        """Return the head of an error: limits are announced only where a script says so."""
        return Head(status, (("content-type", JSON), self._id, *headers), length)

    @property
    def _id(self) -> tuple[str, str]:
        return self.dialect.request_id, f"req_{self.number:024d}"


def give(answer: Answer, *, content_type: str | None = None) -> Plan:
    """Answer, whole and at once."""
    if answer.streams:
        yield answer.head(content_type=content_type)
        yield Data(b"".join([frame.data for frame in answer.frames]))
    else:
        yield answer.head(content_type=content_type, length=len(answer.whole))
        yield Data(answer.whole)
    yield Ending.END


def refuse(answer: Answer, refusal: Refusal, status: int, headers: Headers = ()) -> Plan:
    """Answer with an error in the words of the protocol."""
    body = as_json(answer.dialect.error(refusal, answer.request))
    yield answer.refusal_head(status, headers, len(body))
    yield Data(body)
    yield Ending.END
