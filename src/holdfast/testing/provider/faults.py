"""The faults: a closed list, each with a real effect on the wire. `holdfast faults list` prints it.

`ProtocolReply` is what a request gets without a fault. A fault turns it into another plan. A fault that breaks a stream also breaks an
answer that is not streamed, in the middle of its body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.testing.provider.dialect import JSON, ErrorReply, Part, SseFrame, as_json
from holdfast.testing.provider.http import Data, Headers, Pause, Plan, Raw, ReplyEnd, ReplyHead
from holdfast.testing.provider.replies import call_first_tool

if TYPE_CHECKING:
    from holdfast.testing.provider.dialect import ProviderDialect
    from holdfast.testing.provider.http import Request
    from holdfast.testing.provider.replies import ReplyContent

Options: TypeAlias = Mapping[str, Any]

# No client accepts this version of HTTP.
_MALFORMED = b"HTTP/9.9 banana\r\n\r\n"
_HTML = b"<html>\n<head><title>%d</title></head>\n<body>\n<center><h1>%d</h1></center>\n<hr><center>nginx</center>\n</body>\n</html>\n"
_DRIPS = 10

ERRORS = {
    "bad-request": "the request is wrong",
    "auth": "the key is wrong",
    "expired": "the token has expired",
    "billing": "the payment failed",
    "quota": "the credit or the plan is used up, so waiting does not help",
    "forbidden": "the key may not do this",
    "not-found": "there is no such model",
    "overflow": "the prompt is longer than the context",
    "too-large": "the request has too many bytes",
    "rate-limit": "too many requests",
    "internal": "the provider's own error",
    "unavailable": "the provider is down",
    "timeout": "the provider took too long",
    "overloaded": "the provider has too many requests from all its users",
}
"""The errors that a provider sends, by their names in scripts. Each protocol has its own words for them."""

STATUSES = {
    400: "bad-request",
    401: "auth",
    402: "billing",
    403: "forbidden",
    404: "not-found",
    413: "too-large",
    429: "rate-limit",
    500: "internal",
    503: "unavailable",
    504: "timeout",
    529: "overloaded",
}
"""The error in the body of a bare status."""


class FaultBody(NamedTuple):
    """A body that is not a stream."""

    data: bytes
    content_type: str = JSON
    status: int = 200


class ProtocolReply:
    """A reply in one protocol. The bytes are made when a plan uses them, because most faults need only a part."""

    def __init__(
        self,
        request: Request,
        dialect: ProviderDialect,
        reply: ReplyContent,
        *,
        number: int,
        limits: Headers = (),
        wall: float,
    ) -> None:
        self.request = request
        self.dialect = dialect
        self.reply = reply
        self.number = number
        self.limits = limits
        self.wall = wall
        self.serve: Callable[[], FaultBody] | None = None
        """Returns the body of a resource that is no reply. It is called only if a plan needs the body."""

    def with_reply(self, reply: ReplyContent) -> ProtocolReply:
        """Return the same answer with another reply."""
        made = ProtocolReply(self.request, self.dialect, reply, number=self.number, limits=self.limits, wall=self.wall)
        made.serve = self.serve
        return made

    @property
    def streams(self) -> bool:
        """Whether the client wants a stream."""
        return self.serve is None and self.request.stream

    @property
    def content_type(self) -> str:
        """The type of the body."""
        return self.dialect.stream_type if self.streams else self._body.content_type

    @property
    def whole(self) -> bytes:
        """The body of an answer that is not a stream."""
        return self._body.data

    @property
    def status(self) -> int:
        """The status of the answer without a fault."""
        return 200 if self.streams else self._body.status

    @cached_property
    def _body(self) -> FaultBody:
        if self.serve is not None:
            return self.serve()
        return FaultBody(as_json(self.dialect.whole(self.reply, self.request, self.number)))

    @cached_property
    def frames(self) -> list[SseFrame]:
        """The events of a stream."""
        return self.dialect.frames(self.reply, self.request, self.number)

    def frames_up_to(self, pieces: int) -> bytes:
        """Return the stream up to this many pieces of text or tool call."""
        return b"".join(self.first_frames(pieces))

    def first_frames(self, pieces: int) -> list[bytes]:
        """Return the events up to this many pieces of text or tool call."""
        # Opening events do not count as pieces, so `after=0` still starts the stream.
        sent: list[bytes] = []
        for frame in self.frames:
            if frame.part is Part.CLOSING:
                break
            if frame.part in (Part.TEXT, Part.TOOL):
                if pieces == 0:
                    break
                pieces -= 1
            sent.append(frame.data)
        return sent

    def head(
        self, status: int | None = None, *, content_type: str | None = None, length: int | None = None
    ) -> ReplyHead:
        """Return the head of a good answer, with the rate limit headers."""
        fixed = (("content-type", content_type or self.content_type), self._id)
        return ReplyHead(status or self.status, (*fixed, *self.limits), length)

    def error_head(self, status: int, headers: Headers, length: int) -> ReplyHead:
        """Return the head of an error. It has rate limit headers only if the script gives them."""
        return ReplyHead(status, (("content-type", JSON), self._id, *headers), length)

    @property
    def _id(self) -> tuple[str, str]:
        return self.dialect.request_id, f"req_{self.number:024d}"


def send(answer: ProtocolReply, *, content_type: str | None = None) -> Plan:
    """Send the whole answer at once."""
    if answer.streams:
        yield answer.head(content_type=content_type)
        yield Data(b"".join([frame.data for frame in answer.frames]))
    else:
        yield answer.head(content_type=content_type, length=len(answer.whole))
        yield Data(answer.whole)
    yield ReplyEnd.END


def send_error(answer: ProtocolReply, error: ErrorReply, status: int, headers: Headers = ()) -> Plan:
    """Send an error in the protocol's own words."""
    body = as_json(answer.dialect.error(error))
    yield answer.error_head(status, (*answer.dialect.error_headers(error), *headers), len(body))
    yield Data(body)
    yield ReplyEnd.END


class FaultKind(NamedTuple):
    """A fault: its summary, its plan, and its options with their defaults."""

    summary: str
    plan: Callable[[ProtocolReply, Options], Plan]
    options: Options = MappingProxyType({})


def error_plan(name: str | None, status: int | None, headers: Callable[[float], Headers], hint: str) -> Callable[[ProtocolReply], Plan]:  # fmt: skip
    """Return a plan that sends an error: a named error with its usual status, or a status with its usual error."""

    def plan(answer: ProtocolReply) -> Plan:
        error = _error(answer.dialect, name, status)
        error = error._replace(message=error.message.replace("{model}", answer.request.model))
        if hint:
            error = answer.dialect.hinted(error, hint)
        # A body may repeat the status, so it must be the one that is sent.
        error = error._replace(status=status or error.status)
        return send_error(answer, error, error.status, headers(answer.wall))

    return plan


def _error(dialect: ProviderDialect, name: str | None, status: int | None) -> ErrorReply:
    known = name or STATUSES.get(status or 0)
    if known is not None:
        return dialect.errors[known]
    # A status without an error of its own gets the usual error of its class, so that SDKs can still read it.
    usual = dialect.errors["internal" if (status or 0) >= 500 else "bad-request"]
    return usual._replace(message=f"HTTP {status}")


def _begin(answer: ProtocolReply, pieces: int) -> Plan:
    """Send the beginning of the answer and stop in the middle."""
    if answer.streams:
        yield answer.head()
        yield Data(answer.frames_up_to(pieces))
    else:
        # The head announces the full length, so the client knows that the rest of the body is missing.
        yield answer.head(length=len(answer.whole))
        yield Data(answer.whole[: len(answer.whole) // 2])


def _cut(answer: ProtocolReply, options: Options) -> Plan:
    yield from _begin(answer, options["after"])
    yield ReplyEnd.CLOSE


def _cut_tool(answer: ProtocolReply, options: Options) -> Plan:
    prompt = answer.dialect.prompt(answer.request)
    yield from _cut(answer.with_reply(call_first_tool(prompt)), options)


def _reset(answer: ProtocolReply, options: Options) -> Plan:
    # Without `after` the client gets only the reset, without a head.
    if options["after"]:
        yield from _begin(answer, options["after"])
    yield ReplyEnd.RESET


def _silence(answer: ProtocolReply, options: Options) -> Plan:
    yield from _begin(answer, options["after"])
    yield Pause(None)


def _hang(_answer: ProtocolReply, _options: Options) -> Plan:
    yield Pause(None)


def _slow(answer: ProtocolReply, options: Options) -> Plan:
    yield Pause(options["seconds"])
    yield from send(answer)


def _drip(answer: ProtocolReply, options: Options) -> Plan:
    if answer.streams:
        yield answer.head()
        parts = [frame.data for frame in answer.frames]
    else:
        yield answer.head(length=len(answer.whole))
        # A body has no frames, so it drips in ten parts.
        size = max(1, len(answer.whole) // _DRIPS)
        parts = [answer.whole[at : at + size] for at in range(0, len(answer.whole), size)]
    for part in parts:
        yield Pause(options["every"])
        yield Data(part)
    yield ReplyEnd.END


def _truncate(answer: ProtocolReply, options: Options) -> Plan:
    if answer.streams:
        yield answer.head()
        yield Data(answer.frames_up_to(options["after"]))
        yield ReplyEnd.END
    else:
        # Without a stream, a body that ends early but cleanly is JSON that breaks off.
        yield from _malformed_json(answer, options)


def _malformed_json(answer: ProtocolReply, options: Options) -> Plan:
    if answer.streams:
        broken = next(frame.data for frame in answer.frames if frame.part in (Part.TEXT, Part.TOOL))
        yield answer.head()
        # Cut the end of the JSON, and add the blank line again, so that clients read it as a whole event.
        yield Data(answer.frames_up_to(options["after"]) + broken[:-6] + b"\n\n")
    else:
        # Announce the shorter length: the HTTP is correct, and only the JSON is broken.
        half = answer.whole[: len(answer.whole) // 2]
        yield answer.head(length=len(half))
        yield Data(half)
    yield ReplyEnd.END


def _sse_error(answer: ProtocolReply, options: Options) -> Plan:
    if not answer.streams:
        yield from _error_200(answer, options)
        return
    yield answer.head()
    error = answer.dialect.errors[options["error"]]
    sent = answer.first_frames(options["after"])
    yield Data(b"".join([*sent, answer.dialect.error_frame(error, len(sent))]))
    yield ReplyEnd.END


def _failed(answer: ProtocolReply, options: Options) -> Plan:
    dialect, error = answer.dialect, answer.dialect.errors[options["error"]]
    if dialect.failed is None or dialect.failed_frame is None:
        # Other protocols have no such event. They send an error.
        yield from _sse_error(answer, options)
    elif answer.streams:
        yield answer.head()
        sent = answer.first_frames(options["after"])
        yield Data(b"".join([*sent, dialect.failed_frame(error, answer.request, answer.number, len(sent))]))
        yield ReplyEnd.END
    else:
        body = as_json(dialect.failed(error, answer.request, answer.number))
        yield answer.head(length=len(body))
        yield Data(body)
        yield ReplyEnd.END


def _error_200(answer: ProtocolReply, options: Options) -> Plan:
    if answer.streams:
        # The status of a stream is already sent, so the error is its first event.
        yield from _sse_error(answer, {**options, "after": 0})
    else:
        yield from send_error(answer, answer.dialect.errors[options["error"]], 200)


def _html(answer: ProtocolReply, options: Options) -> Plan:
    status = options["status"]
    body = _HTML % (status, status)
    yield answer.head(status, content_type="text/html", length=len(body))
    yield Data(body)
    yield ReplyEnd.END


def _content_type(answer: ProtocolReply, _: Options) -> Plan:
    return send(answer, content_type="text/plain")


def _oversize(answer: ProtocolReply, options: Options) -> Plan:
    return send(answer.with_reply(answer.reply._replace(text="x" * options["bytes"], calls=())))


def _empty(answer: ProtocolReply, _: Options) -> Plan:
    yield answer.head(length=0)
    yield ReplyEnd.END


def _disconnect(_answer: ProtocolReply, _options: Options) -> Plan:
    yield ReplyEnd.CLOSE


def _malformed_http(_answer: ProtocolReply, _options: Options) -> Plan:
    yield Raw(_MALFORMED)
    yield ReplyEnd.CLOSE


_AFTER = {"after": 1}
FAULTS: dict[str, FaultKind] = {
    "hang": FaultKind("no byte arrives, not even headers, as long as the client waits", _hang),
    "slow": FaultKind("the first byte arrives late", _slow, {"seconds": 1.0}),
    "drip": FaultKind("the answer arrives bit by bit", _drip, {"every": 0.1}),
    "silence": FaultKind("the stream stops in the middle and stays open", _silence, _AFTER),
    "cut": FaultKind("the connection is closed in the middle of the stream or body", _cut, _AFTER),
    "cut-tool": FaultKind("the connection is closed in the middle of a tool call's arguments", _cut_tool, _AFTER),
    "truncate": FaultKind("the stream ends cleanly, without its last events", _truncate, _AFTER),
    "reset": FaultKind("the connection is reset: at once, or in the middle with `after`", _reset, {"after": 0}),
    "disconnect": FaultKind("the connection is closed before an answer", _disconnect),
    "sse-error": FaultKind("an error event in the middle of a good stream", _sse_error, {"after": 1, "error": "overloaded"}),
    "failed": FaultKind("a Responses answer that reports its own failure; in other protocols as sse-error", _failed, {"after": 1, "error": "overloaded"}),
    "error-200": FaultKind("an error in an answer of status 200", _error_200, {"error": "overloaded"}),
    "malformed-json": FaultKind("JSON that breaks off", _malformed_json, _AFTER),
    "malformed-http": FaultKind("an answer that is not HTTP", _malformed_http),
    "html": FaultKind("a proxy's page instead of an answer", _html, {"status": 502}),
    "content-type": FaultKind("a good answer of the wrong content type", _content_type),
    "oversize": FaultKind("an answer of many bytes", _oversize, {"bytes": 16_777_216}),
    "empty": FaultKind("status 200 and no body", _empty),
}  # fmt: skip
