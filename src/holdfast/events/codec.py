"""Events as JSON, both ways.

Invariant: `decode(encode(event)) == event`, also for a record that only a newer writer knows; what cannot be an event is
refused with the field that is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.events.records import KINDS, VERSION, Event, Unknown
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.faults import Redactor

__all__ = ["decode", "decode_lines", "encode", "encode_lines", "schema"]


class _Header(msgspec.Struct):
    """What every record of every version has."""

    type: str
    at: float
    v: int
    run: str = ""
    operation: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_HEADER = msgspec.json.Decoder(_Header)
_TYPES = frozenset(kind.__struct_config__.tag for kind in KINDS)


def encode(event: Event | Unknown, *, redactor: Redactor | None = None) -> bytes:
    """Return the event as one line of JSON, without the line end; whole, unless a redactor is given."""
    raw = event.raw if isinstance(event, Unknown) else _ENCODER.encode(event)
    return raw if redactor is None else _ENCODER.encode(redactor.value(msgspec.json.decode(raw)))


def decode(line: bytes | str) -> Event | Unknown:
    """Return the event of one line of JSON; raises InvalidError naming path, expected and received.

    A record of a type, or of a newer version with a shape, that is not known here is an `Unknown`.
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
    """Yield each event as a line of JSON Lines."""
    for event in events:
        yield encode(event, redactor=redactor) + b"\n"


def decode_lines(lines: Iterable[bytes | str]) -> Iterator[Event | Unknown]:
    """Yield the event of each line that is not blank."""
    for line in lines:
        if line.strip():
            yield decode(line)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of an event that this version writes."""
    return msgspec.json.schema(Event)


def _of_newer_writer(line: bytes | str) -> Unknown | None:
    """Return the record that does not fit here, if a newer writer may have meant it so."""
    msgspec.json.decode(line)  # all of it is JSON: a header alone would not show that
    try:
        header = _HEADER.decode(line)
    except msgspec.ValidationError:
        return None
    if header.type in _TYPES and header.v <= VERSION:
        return None
    raw = line.encode() if isinstance(line, str) else bytes(line)
    # Laid out again token by token, since a log holds a record a line: no number loses a digit.
    return Unknown(
        type=header.type,
        at=header.at,
        run=header.run,
        operation=header.operation,
        v=header.v,
        raw=msgspec.json.format(raw, indent=-1),
    )
