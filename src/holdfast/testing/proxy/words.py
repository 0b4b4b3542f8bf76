"""Toxics and addresses as people type them: `latency=0.05;direction=down`, `127.0.0.1:8080`.

Invariant: what cannot be read is refused with what was expected, what came and where.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.faults import InvalidError
from holdfast.testing.proxy.toxics import TOXICS, Toxic

__all__ = ["address_of", "toxic_of"]

_MOST_PORTS = 65_535

_BY_WORD: dict[str, type[Toxic]] = {str(kind.__struct_config__.tag): kind for kind in TOXICS}
_MAIN = {word: field for word, kind in _BY_WORD.items() for field in kind.__struct_fields__[2:3]}
"""The field a bare value is for: each kind's own first one, after the two that all have."""


def toxic_of(text: str) -> Toxic:
    """Return the toxic that `text` names: a word, `=` and its number if it has one, then `;field=value` for the rest."""
    head, *rest = (part.strip() for part in text.split(";"))
    word, given, value = head.partition("=")
    kind = _BY_WORD.get(word)
    if kind is None:
        raise InvalidError.at("toxic", f"one of {', '.join(sorted(_BY_WORD))}", word)
    fields: dict[str, Any] = {}
    if given:
        if word not in _MAIN:
            raise InvalidError.at(f"toxic {word}", "no value", value)
        fields[_MAIN[word]] = value
    for part in rest:
        name, _, value = part.partition("=")
        if name not in kind.__struct_fields__:
            raise InvalidError.at(f"toxic {word}", f"one of {', '.join(kind.__struct_fields__)}", name)
        fields[name] = value
    return _converted(word, kind, fields)


def _converted(word: str, kind: type[Toxic], fields: dict[str, Any]) -> Toxic:
    try:
        return msgspec.convert({"toxic": word, **fields}, kind, strict=False)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, InvalidError):
            raise cause from None
        refused = InvalidError.from_msgspec(error).fault.context
        path = str(refused["path"]).replace("$", word, 1)
        raise InvalidError.saying(path, str(refused["expected"]), str(refused["received"])) from None


def address_of(path: str, given: Any) -> tuple[str, int]:
    """Return host and port of `host:port`, `[::1]:port` or a pair of both."""
    read = given
    if isinstance(given, str):
        host, _, port = given.rpartition(":")
        read = (host.removeprefix("[").removesuffix("]"), int(port) if port.isascii() and port.isdecimal() else port)
    try:
        address = msgspec.convert(read, tuple[str, int])
    except msgspec.ValidationError:
        address = ("", 0)
    if not address[0] or not 0 <= address[1] <= _MOST_PORTS:
        raise InvalidError.at(path, f"HOST:PORT with a port from 0 to {_MOST_PORTS}", given)
    return address
