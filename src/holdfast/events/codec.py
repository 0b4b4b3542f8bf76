"""Events as JSON, in both directions, and as the documents of the recovery-event format (document 001, S1-21).

Invariant: `decode(encode(event)) == event`, also for a record that only a newer writer knows. Anything that cannot be an
event raises an error that names the wrong field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.events.records import (
    KINDS,
    VERSION,
    AgentFallback,
    CircuitStateChange,
    Degraded,
    Event,
    Failed,
    Fallback,
    HookEvent,
    Recovered,
    Retry,
    Unknown,
)
from holdfast.events.tracker import facts_of, unwritable
from holdfast.faults import REDACTOR, InvalidError
from holdfast.views import category

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.events.records import RecoveryEvent
    from holdfast.faults import Redactor


class _Header(msgspec.Struct):
    """The fields that every record of every version has."""

    type: str
    at: float
    v: int
    run: str = ""
    operation: str = ""


# Built once: creating a coder costs more than encoding one event.
_ENCODER = msgspec.json.Encoder(enc_hook=unwritable)
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_HEADER = msgspec.json.Decoder(_Header)
_MS = 1000
_TYPES = frozenset(kind.__struct_config__.tag for kind in KINDS)


def encode(event: Event | Unknown, *, redactor: Redactor | None = None) -> bytes:
    """Return the event as one line of JSON, without the line end; secrets are masked only if a redactor is given.

    For example:
        socket.send(encode(event, redactor=REDACTOR))
    """
    # An unknown record is written byte for byte as it was read.
    raw = event.raw if isinstance(event, Unknown) else _ENCODER.encode(event)
    return raw if redactor is None else _ENCODER.encode(redactor.value(msgspec.json.decode(raw)))


def decode(line: bytes | str) -> Event | Unknown:
    """Return the event of one line of JSON; raises `InvalidError`, which names the path, the expected and received value.

    A record of an unknown type, or of a newer version with another shape, becomes an `Unknown`.

    >>> decode(b'{"type":"degraded","at":1.0,"v":1,"reason":"cached"}').reason
    'cached'
    """
    try:
        try:
            return _DECODER.decode(line)
        except msgspec.ValidationError as error:
            newer = _of_newer_writer(line)
            if newer is None:
                raise InvalidError.from_msgspec(error, code="PROTO_INVALID_MESSAGE") from None
            return newer
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidError.at("$", "one JSON object", str(error), code="PROTO_INVALID_MESSAGE") from None


def encode_lines(events: Iterable[Event | Unknown], *, redactor: Redactor | None = None) -> Iterator[bytes]:
    """Yield each event as a line of JSON Lines, line end included: `file.writelines(encode_lines(events))`."""
    for event in events:
        yield encode(event, redactor=redactor) + b"\n"


def decode_lines(lines: Iterable[bytes | str]) -> Iterator[Event | Unknown]:
    """Yield the event of each line that is not blank; raises like `decode`.

    For example:
        for event in decode_lines(open("events.jsonl", "rb")):
            print(event)
    """
    for line in lines:
        if line.strip():
            yield decode(line)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the events that this version writes: `json.dumps(schema())`."""
    return msgspec.json.schema(Event)


def write_document(event: RecoveryEvent | HookEvent, *, redactor: Redactor = REDACTOR) -> dict[str, Any]:
    """Return the event of a recovery or a validator as a plain document: camelCase names, milliseconds, faults as ClassifiedError.

    >>> write_document(Degraded(at=0.0, reason="cached"))
    {'type': 'degraded', 'reason': 'cached'}
    """
    document: dict[str, Any] = redactor.value(_document(event))
    return document


def write_envelope(event: Event, monotonic: float, *, redactor: Redactor = REDACTOR) -> dict[str, Any]:
    """Return an event as `{name, correlationId, monotonicTs, payload}`. `monotonic`: seconds of the clock that only goes forward.

    >>> write_envelope(Degraded(at=0.0, reason="cached", run="r1"), 2.5)["correlationId"]
    'r1'
    """
    facts = facts_of(event, redactor)
    return {
        "name": type(event).__name__,
        "correlationId": event.run or event.session,
        "monotonicTs": monotonic * _MS,
        "payload": {name: value for name, value in facts.items() if name not in ("type", "v", "run")},
    }


def _of_newer_writer(line: bytes | str) -> Unknown | None:
    """Return a record that does not fit this version's types, if a newer writer may have written it."""
    msgspec.json.decode(line)  # checks that the whole line is JSON: decoding the header does not
    try:
        header = _HEADER.decode(line)
    except msgspec.ValidationError:
        return None
    # A known type of this version that does not fit is damaged, not newer.
    if header.type in _TYPES and header.v <= VERSION:
        return None
    raw = line.encode() if isinstance(line, str) else bytes(line)
    # Put on one line, because a log has one record per line. Token by token, so that no number loses a digit.
    return Unknown(
        type=header.type,
        at=header.at,
        run=header.run,
        operation=header.operation,
        v=header.v,
        raw=msgspec.json.format(raw, indent=-1),
    )


def _document(event: RecoveryEvent | HookEvent) -> dict[str, Any]:
    match event:
        case HookEvent():
            return _hook_document(event)
        case Retry():
            return {
                "type": "retry",
                "attempt": event.attempt,
                # This and operationName are additions to document 001 (N1-5). Without a number, it is left out.
                **({} if event.max_attempts is None else {"maxAttempts": event.max_attempts}),
                "delay": event.delay * _MS,
                "error": category.write(event.fault),
                "operationName": event.operation,
            }
        case CircuitStateChange():
            return {
                "type": "circuit-state-change",
                "circuit": event.circuit,
                "from": event.from_.value,
                "to": event.to.value,
            }
        case Fallback():
            return {"type": "fallback", "from": event.from_, "to": event.to}
        case AgentFallback():
            return {"type": "agent-fallback", "from": event.from_, "to": event.to}
        case Degraded():
            return {"type": "degraded", "reason": event.reason}
        case Recovered():
            return {"type": "recovered", "after": event.after * _MS, "attempts": event.attempts}
        case Failed():
            return {"type": "failed", "error": category.write(event.fault), "exhausted": event.exhausted}


def _hook_document(event: HookEvent) -> dict[str, Any]:
    correction = event.correction
    optional = {
        "filePath": event.path or None,
        "exitCode": event.exit_code,
        "message": event.message or None,
        "correction": None if correction is None else {"before": correction.before, "after": correction.after},
    }
    return {
        "type": f"hook_{event.what}",
        "hookType": event.hook,
        "validator": event.validator,
        "toolCallId": event.call,
        **{name: value for name, value in optional.items() if value is not None},
        "timestamp": event.at * _MS,
    }
