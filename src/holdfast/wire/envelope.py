"""The envelope of every message between the bridge and its clients, and the one way in which a frame is read.

Invariant: a frame is read the same way everywhere. What one parser would accept and another reject (NaN, numbers without an end, lone
surrogates, deep nesting, a byte order mark) is rejected. If a key occurs twice, the last one counts, and what is stored and sent on
is written anew from what was read. All violations of a message are listed at once.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from functools import lru_cache
from math import modf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH: Final = 64
"""How deep the JSON of a message may be nested."""
MAX_OFFSET: Final = 2**53 - 1
"""The largest offset: JavaScript knows no larger whole number exactly."""

_TYPE = re.compile(r"[a-z_]{1,64}")
_LONGEST_ID = 256
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LENIENT_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TIMESTAMP = re.compile(
    r"(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:[.,]\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)"
)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""It also matches a string without an end, up to the end: otherwise each quote in it would be tried as a beginning."""
_LONG_NUMBERS = re.compile(rb"-?\d[\d.eE+-]{18,}")
_DIGITS_ONLY = bytes(ord("0") if each in b"0123456789" else ord(" ") for each in range(256))
"""Every digit becomes 0, and everything else a space: whether there is a long number is then seen 15 times faster than by a pattern."""
_LONG_NUMBER = b"0" * 19
_BRACKETS_ALIKE = bytes(ord({"{": "[", "}": "]"}.get(chr(each), chr(each))) for each in range(256))
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"{}[]")
_LONGEST_NUMBER = 64
"""The most characters of a number."""
_RECEIVED = 80
"""The most characters of a wrong value that an error repeats."""
_ENCODER = msgspec.json.Encoder()


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message. The first four fields are always there.

    Only messages of a session's log have an offset. Everything else (errors, acks, presence, heartbeats) never moves a client's position.
    """

    type: str
    id: str
    timestamp: str
    payload: dict[str, Any]
    session_id: str = ""
    epoch: str = ""
    """The name of the log that `offset` counts in. It changes when the log begins anew."""
    offset: int = 0
    """1, 2, 3 … in the session's log; 0: not a part of it."""
    re: str = ""
    """The id of the message that this one answers."""


class _Written(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A message as it is written: the fields of `Envelope`, and any payload."""

    type: str
    id: str
    timestamp: str
    payload: msgspec.Struct | msgspec.Raw
    session_id: str = ""
    epoch: str = ""
    offset: int = 0
    re: str = ""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a message: which field, which rule, what came."""

    field: str
    constraint: str
    received: Any = None


class Invalid(NamedTuple):
    """A frame that is not a message."""

    violations: tuple[Violation, ...]
    id: str | None = None
    """The id that the frame has, exactly as it came; None if it cannot be read."""

    @property
    def fault(self) -> Fault:
        """The fault for the reply: PROTO_INVALID_MESSAGE with all violations."""
        listed = [msgspec.to_builtins(each) for each in self.violations]
        return Fault.of("PROTO_INVALID_MESSAGE", context={"violations": listed})


Read: TypeAlias = Envelope | Invalid
Rules: TypeAlias = "tuple[tuple[str, str, bool, Callable[[Any], bool]], ...]"
"""The fields of an envelope: its name, the name of its rule, whether it must be there, and the rule."""


def read(frame: str | bytes, *, lenient_ids: bool = False) -> Read:
    """Return the message of a text frame, or everything that is wrong with it. Unknown fields are ignored.

    >>> read('{"type": "auth"}').violations[0].field
    'id'

    lenient_ids: accept ids such as `msg-123`, as older clients send them.
    """
    data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
    if is_abusive(data):
        return _not_json("its JSON is nested too deep, or has a number without an end")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _not_json(str(error))
    if not isinstance(found, dict):
        return Invalid((Violation(field="$", constraint="object", received=shown(found)),))
    message = _common(found, _LENIENT_ID if lenient_ids else _UUID)
    if message is not None:
        return message
    violations = tuple(_violations(found, _LENIENT if lenient_ids else _STRICT))
    if violations:
        id_ = found.get("id")
        return Invalid(violations, id_ if isinstance(id_, str) else None)
    return Envelope(
        type=found["type"],
        id=found["id"],
        timestamp=found["timestamp"],
        payload=found["payload"],
        session_id=found.get("session_id") or "",
        epoch=found.get("epoch") or "",
        offset=found.get("offset") or 0,
        re=found.get("re") or "",
    )


def read_json(data: bytes) -> Any:
    """Return the value of JSON that is not a frame, read by the same rules. Raises PROTO_INVALID_MESSAGE if it breaks them.

    >>> read_json(b'{"events": []}')
    {'events': []}
    """
    if is_abusive(data):
        raise HoldfastError(_not_json("it is nested too deep, or has a number without an end").fault)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HoldfastError(_not_json(str(error)).fault) from None


def encode(message: Envelope) -> bytes:
    """Return the text frame of a message."""
    return msgspec.json.encode(message)


def write(
    type_: str,
    payload: msgspec.Struct | msgspec.Raw,
    *,
    id_: str,
    timestamp: str,
    session_id: str = "",
    epoch: str = "",
    offset: int = 0,
    re: str = "",
) -> bytes:
    """Return the text frame of a message whose payload is a struct, or is written already: it is encoded once."""
    return _ENCODER.encode(_Written(type_, id_, timestamp, payload, session_id, epoch, offset, re))


# Messages that are stored together have the same time.
@lru_cache(maxsize=64)
def stamp(wall: float) -> str:
    """Return a time as messages carry it: `2026-11-15T01:02:03.004Z`."""
    fraction, whole = modf(wall)
    # Rounded as `datetime` does it: an entry must get the same stamp each time.
    micros = round(fraction * 1e6)
    if not 0 <= micros < 1_000_000:
        return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{_second(int(whole))}.{micros // 1000:03}Z"


@lru_cache(maxsize=64)
def _second(wall: int) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def wall_of(text: Any) -> float | None:
    """Parse a time stamp as wall-clock time; None if it is not one.

    >>> wall_of("1970-01-01T00:01:00Z")
    60.0
    """
    if not is_timestamp(text):
        return None
    try:
        return datetime.fromisoformat(text.replace(",", ".")).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def is_timestamp(text: Any) -> bool:
    """Whether a text is a date and time of ISO 8601 with its time zone: `2026-11-15T01:02:03Z`."""
    found = _TIMESTAMP.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return False
    year, month, day = found.groups()
    if day <= "28" and year != "0000":
        return True
    try:
        date(int(year), int(month), int(day))
    except ValueError:
        return False
    return True


def is_abusive(data: bytes) -> bool:
    """Whether a parser could be hurt by the frame. Parsers recurse, and Python's whole numbers have no largest one.

    No step looks at each byte in Python: a frame of 1 MB must not hold up the other clients.
    """
    # Most messages have few brackets and no long number. Only of the others the strings are taken out.
    many = data.count(b"{") + data.count(b"[") > MAX_DEPTH
    if not many and not may_have_long_number(data):
        return False
    bare = _STRING.sub(b"", data)
    if _is_deep(bare):
        return True
    if not may_have_long_number(bare):
        return False
    return not all(_is_number(found.group()) for found in _LONG_NUMBERS.finditer(bare))


def may_have_long_number(data: bytes) -> bool:
    """Whether something in JSON, perhaps in a text, has so many digits as a whole number of more than 64 bits."""
    return _LONG_NUMBER in data.translate(_DIGITS_ONLY)


def _is_deep(bare: bytes) -> bool:
    """Whether JSON without its strings is nested too deep: each round removes the innermost level of brackets."""
    left = bare.translate(_BRACKETS_ALIKE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not left:
            return False
        left = left.replace(b"[]", b"")
    return bool(left)


def _is_number(token: bytes) -> bool:
    """Whether every parser reads the number alike: whole numbers have at most 64 bits, as what is written must be readable again."""
    if len(token) > _LONGEST_NUMBER:
        return False
    return not token.lstrip(b"-").isdigit() or -(2**63) <= int(token) < 2**64


def _common(found: dict[str, Any], id_: re.Pattern[str]) -> Envelope | None:
    """Return the message if nothing about it is unusual. What is wrong with the others is found out field by field, which takes longer."""
    try:
        message = msgspec.convert(found, Envelope)
    except msgspec.ValidationError:
        return None
    fits = (
        _TYPE.fullmatch(message.type)
        and _are_short(message)
        and id_.fullmatch(message.id)
        and is_timestamp(message.timestamp)
    )
    return message if fits and 0 <= message.offset <= MAX_OFFSET else None


def _are_short(message: Envelope) -> bool:
    # Most messages of clients have none of them.
    texts = (message.session_id, message.epoch, message.re)
    return not any(texts) or all(len(text) <= _LONGEST_ID for text in texts)


def _violations(found: dict[str, Any], rules: Rules) -> list[Violation]:
    violations = []
    for field, constraint, is_required, fits in rules:
        value = found.get(field)
        if value is None or value == "":
            if is_required:
                is_missing = value == "" or field not in found
                name = "required" if is_missing else constraint
                violations.append(Violation(field=field, constraint=name, received=value))
        elif not fits(value):
            violations.append(Violation(field=field, constraint=constraint, received=shown(value)))
    return violations


def _is_of(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    # `fullmatch`, because `$` also matches before a line break at the end.
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_ID


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_OFFSET


def _rules(id_: re.Pattern[str]) -> Rules:
    return (
        ("type", "matches", True, _is_of(_TYPE)),
        ("id", "uuid", True, _is_of(id_)),
        ("timestamp", "iso8601", True, is_timestamp),
        ("payload", "object", True, _is_object),
        ("session_id", "string", False, _is_text),
        ("epoch", "string", False, _is_text),
        ("re", "string", False, _is_text),
        ("offset", "offset", False, _is_offset),
    )


_STRICT, _LENIENT = _rules(_UUID), _rules(_LENIENT_ID)


def _not_json(why: str) -> Invalid:
    return Invalid((Violation(field="$", constraint="json", received=why[:_RECEIVED]),))


def shown(value: Any) -> Any:
    """Return a wrong value for the reply. Long ones are cut, and of containers only the kind is named."""
    if isinstance(value, str):
        return value[:_RECEIVED]
    if isinstance(value, dict | list):
        return "object" if isinstance(value, dict) else "array"
    return value
