"""The functions that a provider's protocol must supply. The other modules are the same for all protocols."""

from __future__ import annotations

import tomllib
from enum import Enum
from functools import cache
from pkgutil import get_data
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.testing.provider.http import Headers, Request
    from holdfast.testing.provider.limits import LimitReason, Standing
    from holdfast.testing.provider.replies import ReplyContent, RequestContent

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
MODELS = ("claude-sonnet-4-5", "claude-haiku-4-5", "gpt-5", "gpt-5-mini", "grok-4", "gemini-2.5-pro")


class Part(Enum):
    """What a frame of a stream carries. Faults that break a stream use it to count pieces."""

    OPENING = "opening"
    TEXT = "text"
    TOOL = "tool"
    BETWEEN = "between"
    """Ends one part of the answer, or begins the next. It is no piece."""
    CLOSING = "closing"


class SseFrame(NamedTuple):
    """One server-sent event."""

    part: Part
    data: bytes


class ErrorReply(NamedTuple):
    """An error in a provider's own words."""

    status: int
    kind: str
    code: str | None
    message: str
    details: tuple[dict[str, Any], ...] = ()
    """What Google's protocol says besides."""


@cache
def _errors() -> dict[str, dict[str, tuple[int, str, str, str]]]:
    found: dict[str, dict[str, tuple[int, str, str, str]]] = tomllib.loads(
        (get_data(__package__, "errors.toml") or b"").decode()
    )
    return found


def errors_of(provider: str) -> dict[str, ErrorReply]:
    """Return the errors of a provider by name, from `errors.toml`."""
    return {
        name: ErrorReply(status, kind, code or None, text)
        for name, (status, kind, code, text) in _errors()[provider].items()
    }


def _hinted(error: ErrorReply, hint: str) -> ErrorReply:
    """Announce a delay as OpenAI does: in the message, and clients must read it there."""
    return error._replace(message=f"{error.message} Please try again in {hint}.")


def _no_headers(_error: ErrorReply) -> Headers:
    return ()


def _no_mistake(_request: Request) -> str | None:
    return None


class ProviderDialect(NamedTuple):
    """One provider's protocol. `whole` and `frames` get the reply, the request and the answer's number."""

    name: str
    prompt: Callable[[Request], RequestContent]
    """Reads a request."""
    whole: Callable[[ReplyContent, Request, int], dict[str, Any]]
    """Writes a reply as one body."""
    frames: Callable[[ReplyContent, Request, int], list[SseFrame]]
    """Writes a reply as a stream."""
    errors: Mapping[str, ErrorReply]
    error: Callable[[ErrorReply], dict[str, Any]]
    """Writes an error as a body."""
    error_frame: Callable[[ErrorReply, int], bytes]
    """Writes an error as an event of a stream. It gets the number of events before it."""
    limits: Callable[[tuple[Standing, ...], float], Headers]
    """Writes the rate limit headers at a wall time."""
    limited: Callable[[LimitReason, str], tuple[ErrorReply, Headers]]
    """Writes the error and the headers of a request that a limit rejects. It gets the model's name too."""
    request_id: str
    """The header that carries the request's id."""
    hinted: Callable[[ErrorReply, str], ErrorReply] = _hinted
    """Announces a delay outside the headers."""
    error_headers: Callable[[ErrorReply], Headers] = _no_headers
    """Writes the headers that belong to an error's body."""
    mistake: Callable[[Request], str | None] = _no_mistake
    """Returns the message of the error for a conversation that the provider rejects, or None."""
    stream_type: str = SSE
    """The content type of a stream."""
    failed: Callable[[ErrorReply, Request, int], dict[str, Any]] | None = None
    """Writes an answer that reports its own failure, where the protocol has such answers."""
    failed_frame: Callable[[ErrorReply, Request, int, int], bytes] | None = None
    """Writes the last event of a stream that fails. It gets the number of events before it too."""


def no_limits(_standings: tuple[Standing, ...], _wall: float) -> Headers:
    """Return no headers: Google and AWS announce nothing before a limit is reached."""
    return ()


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
    """Return the text of a message's content. The content is a string, or a list of parts, of which some have a text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    # Images and tool calls are parts without a text.
    return " ".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
