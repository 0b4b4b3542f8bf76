"""Keep secrets and bulk out of everything that leaves the process.

Invariant: `Redactor.value` returns only JSON values, never raises, never returns a string over the cap or more than a
bounded number of values, and never returns what stood under a secret's name.
"""

from __future__ import annotations

from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults.secrets import MASK, is_secret_name, mask_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CAP_BYTES", "MASK", "REDACTOR", "Redactor", "cap"]

CAP_BYTES = 65_536
"""The longest string that is stored or sent, in UTF-8 bytes, its marker included (N2-16)."""

_MARGIN = 4_096
"""How much beyond the cap is searched for secrets, so that none is cut in two and shows its head."""
_MAX_DEPTH = 24
_MAX_ITEMS = 2_000
_MAX_VALUES = 50_000
"""Of one document: a graph whose nodes meet again would otherwise be written out for ever."""
_PLAIN_MODULES = frozenset({"datetime", "uuid", "decimal", "fractions", "pathlib", "ipaddress"})
"""Of the standard library, values whose text is the value."""
_SHORTEST_SECRET = 8
"""A shorter 'secret' would mask ordinary words."""


class Redactor(msgspec.Struct, frozen=True):
    """Masks secrets by shape and by name, and the given ones wherever they stand."""

    secrets: tuple[str, ...] = ()

    @classmethod
    def knowing(cls, secrets: Iterable[str]) -> Redactor:
        """Return a redactor that also masks these very strings; the longest first, so none shows through."""
        usable = {s.strip() for s in secrets if len(s.strip()) >= _SHORTEST_SECRET}
        return cls(tuple(sorted(usable, key=lambda s: (-len(s), s))))

    def text(self, text: str) -> str:
        """Return `text` with secrets masked and its size capped."""
        text = _encodable(text)
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        beyond = len(text) - CAP_BYTES - _MARGIN
        if beyond <= 0:
            return cap(mask_secrets(text))
        # Masked before it is cut, but not over megabytes: what is far beyond the cap is dropped unread.
        return cap(mask_secrets(text[: CAP_BYTES + _MARGIN]), dropped=len(text[CAP_BYTES + _MARGIN :].encode()))

    def value(self, value: Any) -> Any:
        """Return `value` as JSON values with secrets masked, however it was built."""
        return _Walk(self).value(value, _MAX_DEPTH)


REDACTOR = Redactor()
"""Knows secrets by their shape and name only; the runtime builds one that knows the configured ones."""


def cap(text: str, limit: int = CAP_BYTES, *, dropped: int = 0) -> str:
    """Return `text` cut to `limit` UTF-8 bytes, a marker at its end saying how much is gone.

    `dropped` bytes are gone already.
    """
    if len(text) * 4 <= limit and not dropped:
        return text
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit and not dropped:
        return text
    room = max(limit - len(_marker(len(raw) + dropped)), 0)
    kept = raw[:room].decode("utf-8", "ignore")
    return kept + _marker(len(raw) - len(kept.encode()) + dropped).decode()


def _marker(gone: int) -> bytes:
    return f"…[{gone} bytes truncated]".encode()


def _encodable(text: str) -> str:
    """Return a plain string without lone surrogates (undecodable file names bring them): no JSON encoder takes them."""
    text = str.__str__(text)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class _Walk:
    """One walk over a value, with what it may still write."""

    __slots__ = ("_left", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._left = _MAX_VALUES

    def value(self, value: Any, depth: int) -> Any:
        self._left -= 1
        # Subclasses may answer anything: only the base classes' own methods are asked below.
        match value:
            case None | True | False:
                return value
            case str():
                return self._redactor.text(value)
            case int():
                return int.__int__(value)
            case float():
                number = float.__float__(value)
                return number if isfinite(number) else str(number)
            case bytes() | bytearray() | memoryview():
                return f"[{memoryview(value).nbytes} bytes]"
            case _ if depth == 0:
                return "[too deep]"
            case dict():
                return self._mapping(value, depth)
            case list() | tuple() | set() | frozenset():
                return self._items(value, depth)
        return self._foreign(value, depth)

    def _mapping(self, mapping: dict[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for count, (key, value) in enumerate(dict.items(mapping)):
            if count == _MAX_ITEMS or self._left <= 0:
                shown["…"] = f"[{len(mapping) - count} more]"
                break
            name = self._name(key, shown)
            hidden = value is not None and is_secret_name(name)
            shown[name] = MASK if hidden else self.value(value, depth - 1)
        return shown

    def _name(self, key: Any, taken: dict[str, Any]) -> str:
        plain = isinstance(key, (str, int, float)) or key is None
        name = self._redactor.text(key if isinstance(key, str) else str(key) if plain else _kind(key))
        unique, count = name, 1
        while unique in taken:
            count += 1
            unique = f"{name}#{count}"
        return unique

    def _items(self, items: list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any], depth: int) -> list[Any]:
        base: Any = next(kind for kind in (list, tuple, set, frozenset) if isinstance(items, kind))
        shown: list[Any] = []
        for count, item in enumerate(base.__iter__(items)):
            if count == _MAX_ITEMS or self._left <= 0:
                shown.append("[more]")
                break
            shown.append(self.value(item, depth - 1))
        return shown

    def _foreign(self, value: Any, depth: int) -> Any:
        """Show values of our own and of the standard library; of any other object only its class is safe to tell."""
        match value:
            case msgspec.Struct():
                return self._mapping(_fields(value), depth)
            case Enum():
                return self.value(value.value, depth - 1)
        # By module, not by import: most processes never show one of these.
        return self._redactor.text(str(value)) if type(value).__module__ in _PLAIN_MODULES else _kind(value)


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return a struct's fields as it would be encoded: those at their default are left out where it says so."""
    pairs = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    named = {encoded: getattr(struct, name) for name, encoded in pairs}
    if not struct.__struct_config__.omit_defaults:
        return named
    defaults = struct.__struct_defaults__
    required = len(named) - len(defaults)
    own = zip(list(named.items())[required:], defaults, strict=True)
    same = {name for (name, value), default in own if value is default or value == default or value in ({}, ())}
    return {name: value for name, value in named.items() if name not in same}


def _kind(value: Any) -> str:
    """Return a name for an object whose own `repr` may hold anything or fail."""
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
