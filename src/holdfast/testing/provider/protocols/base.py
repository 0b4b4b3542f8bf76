"""What every protocol has to say, so that the rest of the provider speaks none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

if TYPE_CHECKING:
    from holdfast.testing.provider.acts import Headers
    from holdfast.testing.provider.replies import Asked, Reply
    from holdfast.testing.provider.requests import Request

__all__ = [
    "Dialect",
    "Frame",
    "Part",
    "Refusal",
    "Refusals",
    "Wording",
    "as_json",
    "data_frame",
    "event_frame",
    "text_of",
]


class Part(Enum):
    """What a frame of a stream carries: the faults that break a stream count by this."""

    OPENING = "opening"
    TEXT = "text"
    TOOL = "tool"
    CLOSING = "closing"


class Frame(NamedTuple):
    """One server-sent event."""

    part: Part
    data: bytes


class Refusal(NamedTuple):
    """An error as a provider words it."""

    status: int
    kind: str
    code: str | None
    message: str


Wording: TypeAlias = Callable[[Refusal, "Request"], dict[str, Any]]
Refusals: TypeAlias = Mapping[str, Refusal]


class Dialect(NamedTuple):
    """One provider's protocol. `frames` and `whole` are given the reply, the request and the answer's number."""

    name: str
    asked: Callable[[Request], Asked]
    whole: Callable[[Reply, Request, int], dict[str, Any]]
    frames: Callable[[Reply, Request, int], list[Frame]]
    refusals: Refusals
    error: Wording
    error_frame: Callable[[Refusal, Request], bytes]
    limits: Callable[[int, int, float], Headers]
    """The announced rate limits: the limit, what is left of it, when it is whole again (wall time)."""
    request_id: str


def as_json(document: Any) -> bytes:
    """Return a document as it goes over the wire."""
    return msgspec.json.encode(document)


def data_frame(document: Any) -> bytes:
    """Return an event without a name."""
    return b"data: " + as_json(document) + b"\n\n"


def event_frame(document: dict[str, Any]) -> bytes:
    """Return an event named by its type."""
    return b"event: " + str(document["type"]).encode() + b"\n" + data_frame(document)


def text_of(content: Any) -> str:
    """Return the text of a content, which is a text or a list of parts of which some have one."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return " ".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
