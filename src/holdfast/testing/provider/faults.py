"""The faults: a closed list, each with a real effect on the wire. `holdfast faults list` prints it.

A fault that breaks a stream does the like to an answer that is none: it stops in the middle of the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.testing.provider.acts import Data, Ending, Headers, Pause, Plan, Raw
from holdfast.testing.provider.answers import Answer, give, refuse
from holdfast.testing.provider.protocols.base import Part, Refusal
from holdfast.testing.provider.replies import call_first_tool

if TYPE_CHECKING:
    from holdfast.testing.provider.protocols.base import Dialect

__all__ = ["FAULTS", "REFUSALS", "STATUSES", "Fault", "Options", "refusing"]

Options: TypeAlias = Mapping[str, Any]

_MALFORMED = b"HTTP/9.9 banana\r\n\r\n"
_HTML = b"<html>\n<head><title>%d</title></head>\n<body>\n<center><h1>%d</h1></center>\n<hr><center>nginx</center>\n</body>\n</html>\n"
_DRIPS = 10

REFUSALS = {
    "bad-request": "the request is wrong",
    "auth": "the key is wrong",
    "expired": "the token has expired",
    "billing": "the payment failed",
    "quota": "the money or the plan is used up: a limit that waiting does not cure",
    "forbidden": "the key may not do this",
    "not-found": "there is no such model",
    "overflow": "the prompt is longer than the context",
    "too-large": "the request has too many bytes",
    "rate-limit": "too many requests",
    "internal": "the provider's own error",
    "unavailable": "the provider is down",
    "timeout": "the provider took too long",
    "overloaded": "the provider has too much to do",
}
"""Errors that every protocol words in its own way."""

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
"""What a bare status says in its body."""


class Fault(NamedTuple):
    """A fault: what it does, in words and as a plan, and its options with their defaults."""

    summary: str
    plan: Callable[[Answer, Options], Plan]
    options: Options = MappingProxyType({})


def refusing(name: str | None, status: int | None, headers: Callable[[float], Headers], hint: str) -> Callable[[Answer], Plan]:  # fmt: skip
    """Return a fault that answers with an error: by name with its usual status, or by status with its usual body."""

    def plan(answer: Answer) -> Plan:
        said = _wording(answer.dialect, name, status)
        message = said.message.replace("{model}", answer.request.model)
        if hint:
            message += f" Please try again in {hint}."
        return refuse(answer, said._replace(message=message), status or said.status, headers(answer.wall))

    return plan


def _wording(dialect: Dialect, name: str | None, status: int | None) -> Refusal:
    known = name or STATUSES.get(status or 0)
    if known is not None:
        return dialect.refusals[known]
    usual = dialect.refusals["internal" if (status or 0) >= 500 else "bad-request"]
    return usual._replace(message=f"HTTP {status}")


def _begin(answer: Answer, pieces: int) -> Plan:
    """Begin the answer and stop in the middle."""
    if answer.streams:
        yield answer.head()
        yield Data(answer.frames_up_to(pieces))
    else:
        yield answer.head(length=len(answer.whole))
        yield Data(answer.whole[: len(answer.whole) // 2])


def _cut(answer: Answer, options: Options) -> Plan:
    yield from _begin(answer, options["after"])
    yield Ending.CLOSE


def _cut_tool(answer: Answer, options: Options) -> Plan:
    asked = answer.dialect.asked(answer.request)
    yield from _cut(answer.replying(call_first_tool(asked)), options)


def _reset(answer: Answer, options: Options) -> Plan:
    if options["after"]:
        yield from _begin(answer, options["after"])
    yield Ending.RESET


def _silence(answer: Answer, options: Options) -> Plan:
    yield from _begin(answer, options["after"])
    yield Pause(None)


def _hang(_answer: Answer, _options: Options) -> Plan:
    yield Pause(None)


def _slow(answer: Answer, options: Options) -> Plan:
    yield Pause(options["seconds"])
    yield from give(answer)


def _drip(answer: Answer, options: Options) -> Plan:
    if answer.streams:
        yield answer.head()
        parts = [frame.data for frame in answer.frames]
    else:
        yield answer.head(length=len(answer.whole))
        size = max(1, len(answer.whole) // _DRIPS)
        parts = [answer.whole[at : at + size] for at in range(0, len(answer.whole), size)]
    for part in parts:
        yield Pause(options["every"])
        yield Data(part)
    yield Ending.END


def _truncate(answer: Answer, options: Options) -> Plan:
    if answer.streams:
        yield answer.head()
        yield Data(answer.frames_up_to(options["after"]))
        yield Ending.END
    else:
        yield from _malformed_json(answer, options)


def _malformed_json(answer: Answer, options: Options) -> Plan:
    if answer.streams:
        broken = next(frame.data for frame in answer.frames if frame.part in (Part.TEXT, Part.TOOL))
        yield answer.head()
        yield Data(answer.frames_up_to(options["after"]) + broken[:-6] + b"\n\n")
    else:
        half = answer.whole[: len(answer.whole) // 2]
        yield answer.head(length=len(half))
        yield Data(half)
    yield Ending.END


def _sse_error(answer: Answer, options: Options) -> Plan:
    if not answer.streams:
        yield from _error_200(answer, options)
        return
    yield answer.head()
    said = answer.dialect.refusals[options["error"]]
    yield Data(answer.frames_up_to(options["after"]) + answer.dialect.error_frame(said, answer.request))
    yield Ending.END


def _error_200(answer: Answer, options: Options) -> Plan:
    if answer.streams:
        yield from _sse_error(answer, {**options, "after": 0})
    else:
        yield from refuse(answer, answer.dialect.refusals[options["error"]], 200)


def _html(answer: Answer, options: Options) -> Plan:
    status = options["status"]
    body = _HTML % (status, status)
    yield answer.head(status, content_type="text/html", length=len(body))
    yield Data(body)
    yield Ending.END


def _content_type(answer: Answer, _: Options) -> Plan:
    return give(answer, content_type="text/plain")


def _oversize(answer: Answer, options: Options) -> Plan:
    return give(answer.replying(answer.reply._replace(text="x" * options["bytes"], tool="")))


def _empty(answer: Answer, _: Options) -> Plan:
    yield answer.head(length=0)
    yield Ending.END


def _disconnect(_answer: Answer, _options: Options) -> Plan:
    yield Ending.CLOSE


def _malformed_http(_answer: Answer, _options: Options) -> Plan:
    yield Raw(_MALFORMED)
    yield Ending.CLOSE


_AFTER = {"after": 1}
FAULTS: dict[str, Fault] = {
    "hang": Fault("nothing comes, not even headers, for as long as the client waits", _hang),
    "slow": Fault("the first byte comes late", _slow, {"seconds": 1.0}),
    "drip": Fault("the answer comes bit by bit", _drip, {"every": 0.1}),
    "silence": Fault("the stream stops in the middle and stays open", _silence, _AFTER),
    "cut": Fault("the connection is closed in the middle of the stream or body", _cut, _AFTER),
    "cut-tool": Fault("the connection is closed in the middle of a tool call's arguments", _cut_tool, _AFTER),
    "truncate": Fault("the stream ends cleanly, without its last events", _truncate, _AFTER),
    "reset": Fault("the connection is reset: at once, or in the middle with `after`", _reset, {"after": 0}),
    "disconnect": Fault("the connection is closed before an answer", _disconnect),
    "sse-error": Fault("an error event in the middle of a good stream", _sse_error, {"after": 1, "error": "overloaded"}),
    "error-200": Fault("an error in an answer of status 200", _error_200, {"error": "overloaded"}),
    "malformed-json": Fault("JSON that breaks off", _malformed_json, _AFTER),
    "malformed-http": Fault("an answer that is not HTTP", _malformed_http),
    "html": Fault("a proxy's page instead of an answer", _html, {"status": 502}),
    "content-type": Fault("a good answer of the wrong content type", _content_type),
    "oversize": Fault("an answer of many bytes", _oversize, {"bytes": 16_777_216}),
    "empty": Fault("status 200 and no body", _empty),
}  # fmt: skip
