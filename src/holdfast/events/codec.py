"""Events as JSON, both ways.

Invariant: `decode(encode(event)) == event`; what cannot be an event is refused with the field that is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.events.records import Event
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["decode", "decode_lines", "encode", "encode_lines", "schema"]

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """Return the event as one line of JSON, without the line end."""
    return _ENCODER.encode(event)


def decode(line: bytes | str) -> Event:
    """Return the event of one line of JSON; raises InvalidError naming path, expected and received."""
    try:
        return _DECODER.decode(line)
    except msgspec.ValidationError as error:
        raise InvalidError.from_msgspec(error, code="PROTO_INVALID_MESSAGE") from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidError.at("$", "one JSON object", str(error), code="PROTO_INVALID_MESSAGE") from None


def encode_lines(events: Iterable[Event]) -> Iterator[bytes]:
    """Yield each event as a line of JSON Lines."""
    for event in events:
        yield encode(event) + b"\n"


def decode_lines(lines: Iterable[bytes | str]) -> Iterator[Event]:
    """Yield the event of each line that is not blank."""
    for line in lines:
        if line.strip():
            yield decode(line)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of an event."""
    return msgspec.json.schema(Event)
