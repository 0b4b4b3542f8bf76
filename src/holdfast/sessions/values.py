"""Values as JSON with tags, for what plain JSON cannot hold; and whether two values are the same.

    {"$hf": "datetime", "v": "2026-01-02T03:04:05"}
    {"$hf": "type:Point", "v": {"x": 1, "y": 2}}

A dict that has the key `$hf` itself, or a key that is no text, is written as a list of pairs under the tag `dict`.

Invariant: `read(write(value))` is the same as `value`, with the same type in every place, or one of them raises.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from holdfast.sessions.stored_types import is_secret, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.sessions.stored_types import Types

__all__ = ["STORED", "TAG", "UnstorableError", "is_plain", "read", "same", "without_tags", "write"]

TAG = "$hf"
_EXACT = frozenset({str, int, bool, type(None)})
_FACTORIES = {cls.__name__: cls for cls in (list, dict, set, frozenset, tuple, str, int, float, bool)}
"""What a stored `defaultdict` may make."""


class UnstorableError(Exception):
    """A value cannot be stored, with its place in the whole."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.found = found
        self.advice = advice
        self.path: list[str] = []

    @property
    def place(self) -> str:
        return "".join(reversed(self.path))


def is_plain(value: Any) -> bool:
    """Whether JSON holds the value exactly as it is."""
    cls = type(value)
    if cls in _EXACT:
        return True
    if cls is float:
        return math.isfinite(value)
    if cls is dict:
        return TAG not in value and all(type(name) is str and is_plain(kept) for name, kept in value.items())
    return cls is list and all(map(is_plain, value))


def write(value: Any, types: Types | None) -> Any:
    """Return the value as JSON with tags.

    Raise `UnstorableError` for what cannot be read back. If `types` is None, any class whose parts are known is written: that is
    enough to tell two values apart.
    """
    return _Writer(types).value(value)


def read(written: Any, types: Types) -> Any:
    """Return a value that `write` wrote; raise ValueError for a tag or class that is not known."""
    if isinstance(written, list):
        return [read(item, types) for item in written]
    if not isinstance(written, dict):
        return written
    tag = written.get(TAG)
    if tag is None:
        return {name: read(kept, types) for name, kept in written.items()}
    parts = {name: read(kept, types) for name, kept in written.items() if name != TAG}
    if isinstance(tag, str) and tag.startswith("type:"):
        return _object(tag.removeprefix("type:"), parts, types)
    if tag not in _READERS:
        raise ValueError(f"the tag {tag!r} is not known")
    return _READERS[tag](parts["v"])


def without_tags(written: Any) -> Any:
    """Return a value with tags as plain JSON, for people to read: a datetime as text, an object as its fields."""
    if isinstance(written, list):
        return [without_tags(item) for item in written]
    if not isinstance(written, dict):
        return written
    if TAG not in written:
        return {name: without_tags(kept) for name, kept in written.items()}
    content = without_tags(written.get("v"))
    if written[TAG] == "dict" and isinstance(content, list):
        return {str(pair[0]): pair[1] for pair in content}
    return content


def _object(name: str, parts: dict[str, Any], types: Types) -> Any:
    cls = types.named(name)
    kind = None if cls is None else kind_of(cls)
    if kind is None:
        raise ValueError(f"the class {name} is neither declared nor registered with holdfast.sessions.storable")
    return kind.build(cls, parts)


class _Writer:
    __slots__ = ("_types",)

    def __init__(self, types: Types | None) -> None:
        self._types = types

    def value(self, value: Any) -> Any:
        cls = type(value)
        if cls in _EXACT:
            return value
        if cls is float:
            return _finite(value)
        if cls is list:
            return self._items(value)
        if cls is dict:
            return self._mapping(value)
        if cls in _WRITERS:
            tag, form = _WRITERS[cls]
            written = form(value)
            return {TAG: tag, "v": self.value(written) if cls in _CONTAINERS else written}
        return self._object(cls, value)

    def _items(self, items: Iterable[Any]) -> list[Any]:
        return [self._at(f"[{place}]", item) for place, item in enumerate(items)]

    def _mapping(self, mapping: dict[Any, Any]) -> Any:
        if TAG in mapping or not all(type(name) is str for name in mapping):
            return {TAG: "dict", "v": [[self.value(name), self._at(f"[{name!r}]", mapping[name])] for name in mapping]}
        return {name: self._at(f"[{name!r}]", kept) for name, kept in mapping.items()}

    def _object(self, cls: Any, value: Any) -> Any:
        if is_secret(cls):
            raise UnstorableError(_called(cls), "a secret is not stored; return its name, and read it where it is used")
        kind = kind_of(cls)
        name = cls.__qualname__ if self._types is None else self._types.name_of(cls)
        if kind is None or name is None:
            raise UnstorableError(_called(cls), _advice(cls, known=kind is not None))
        parts = kind.parts(value)
        return {TAG: f"type:{name}"} | {part: self._part(part, kept) for part, kept in parts.items()}

    def _part(self, part: str, kept: Any) -> Any:
        if type(kept) is not dict or part == "e":
            return self.value(kept)
        return (
            {name: self._at(f".{name}", field) for name, field in kept.items()} if TAG not in kept else self.value(kept)
        )

    def _at(self, place: str, value: Any) -> Any:
        try:
            return self.value(value)
        except UnstorableError as error:
            error.path.append(place)
            raise


def _called(cls: Any) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _advice(cls: Any, *, known: bool) -> str:
    name = cls.__qualname__
    if not known:
        return f"return plain values, or register it with holdfast.sessions.storable({name}, to_json=…, from_json=…)"
    return (
        f"declare it in the return annotation, where it can be resolved (not inside a function or under TYPE_CHECKING),"
        f" or register it with holdfast.sessions.storable({name})"
    )


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise UnstorableError(str(value), "a finite number can be stored")
    return value


# The builtin classes


def _moment(value: datetime | time) -> dict[str, Any]:
    bare = value.replace(tzinfo=None, fold=0).isoformat()
    form: dict[str, Any] = {"at": bare}
    if value.fold:
        form["fold"] = value.fold
    if value.tzinfo is not None:
        form["zone"] = _zone(value.tzinfo)
    return form if len(form) > 1 else bare  # type: ignore[return-value]


def _zone(zone: tzinfo) -> Any:
    """Return a zone by its key, or its offset in microseconds with a name that it may have."""
    key = getattr(zone, "key", None)
    if type(zone) is ZoneInfo and key is not None:
        return key
    if _is_fixed(zone):
        offset = zone.utcoffset(None)
        assert offset is not None
        micros = offset // timedelta(microseconds=1)
        name = zone.tzname(None)
        return micros if name == timezone(offset).tzname(None) or type(zone) is not timezone else [micros, name]
    raise UnstorableError(f"a zone of {_called(type(zone))}", "use zoneinfo.ZoneInfo or datetime.timezone")


def _is_fixed(zone: tzinfo) -> bool:
    # Pydantic has a class of its own for the same.
    return type(zone) is timezone or type(zone).__module__.startswith("pydantic_core")


def _read_zone(form: Any) -> tzinfo:
    if isinstance(form, str):
        return ZoneInfo(form)
    micros, *name = form if isinstance(form, list) else [form]
    if micros == 0 and not name:
        return UTC
    return timezone(timedelta(microseconds=micros), *name)


def _read_moment(cls: Any) -> Callable[[Any], Any]:
    def moment(form: Any) -> Any:
        if isinstance(form, str):
            return cls.fromisoformat(form)
        zone = _read_zone(form["zone"]) if "zone" in form else None
        return cls.fromisoformat(form["at"]).replace(tzinfo=zone, fold=form.get("fold", 0))

    return moment


def _sorted(items: Any) -> list[Any]:
    # Any order does; the same order each time makes equal values equal bytes.
    return sorted(items, key=lambda item: (type(item).__name__, repr(item)))


def _pairs(items: Any) -> list[Any]:
    return [[name, kept] for name, kept in items.items()]


def _defaults(items: Any) -> list[Any]:
    factory = items.default_factory
    if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise UnstorableError("a defaultdict with a factory of its own", "return dict(…) of it")
    return [None if factory is None else factory.__name__, _pairs(items)]


def _read_defaults(form: Any) -> Any:
    factory, pairs = form
    return defaultdict(None if factory is None else _FACTORIES[factory], pairs)


def _same_class(_: Any) -> str:
    return ""


_INTERNET = (IPv4Address, IPv4Network, IPv4Interface, IPv6Address, IPv6Network, IPv6Interface)
_WRITERS: dict[Any, tuple[str, Callable[[Any], Any]]] = {
    tuple: ("tuple", list),
    set: ("set", _sorted),
    frozenset: ("frozenset", _sorted),
    deque: ("deque", lambda value: [value.maxlen, list(value)]),
    OrderedDict: ("OrderedDict", _pairs),
    Counter: ("Counter", _pairs),
    defaultdict: ("defaultdict", _defaults),
    bytes: ("bytes", lambda value: b64encode(value).decode()),
    bytearray: ("bytearray", lambda value: b64encode(value).decode()),
    datetime: ("datetime", _moment),
    date: ("date", date.isoformat),
    time: ("time", _moment),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("Decimal", str),
    UUID: ("UUID", str),
    type(Path()): ("Path", str),
    PurePosixPath: ("PurePosixPath", str),
    PureWindowsPath: ("PureWindowsPath", str),
    ZoneInfo: ("zone", _zone),
    timezone: ("zone", _zone),
    complex: ("complex", lambda value: [_finite(value.real), _finite(value.imag)]),
    range: ("range", lambda value: [value.start, value.stop, value.step]),
    msgspec.UnsetType: ("unset", _same_class),
    Fraction: ("Fraction", str),
    **{cls: (cls.__name__, str) for cls in _INTERNET},
}
_CONTAINERS = frozenset({tuple, set, frozenset, deque, OrderedDict, Counter, defaultdict})
_READERS: dict[Any, Callable[[Any], Any]] = {
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": lambda form: deque(form[1], form[0]),
    "OrderedDict": OrderedDict,
    "Counter": lambda form: Counter(dict(form)),
    "defaultdict": _read_defaults,
    "bytes": b64decode,
    "bytearray": lambda form: bytearray(b64decode(form)),
    "datetime": _read_moment(datetime),
    "date": date.fromisoformat,
    "time": _read_moment(time),
    "timedelta": lambda form: timedelta(*form),
    "Decimal": Decimal,
    "UUID": UUID,
    "Path": Path,
    "PurePosixPath": PurePosixPath,
    "PureWindowsPath": PureWindowsPath,
    "zone": _read_zone,
    "complex": lambda form: complex(*form),
    "range": lambda form: range(*form),
    "unset": lambda _: msgspec.UNSET,
    "Fraction": Fraction,
    **{cls.__name__: cls for cls in _INTERNET},
}
STORED = frozenset({*_EXACT, float, list, dict, *_WRITERS, PurePosixPath, Path})
"""The builtin classes whose objects are stored exactly."""


# Whether two values are the same


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, with the same type in every place: `True` is not `1`, and a tuple is not a list."""
    cls = type(one)
    if cls is not type(other):
        return _both_fixed(one, other)
    if cls in _EXACT:
        return bool(one == other)
    if cls is float:
        return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
    if cls in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if cls in _MAPPINGS:
        return _same_mapping(one, other)
    compare = _COMPARED.get(cls)
    if compare is not None:
        return bool(compare(one, other))
    kind = kind_of(cls)
    if cls in _WRITERS or kind is None:
        return bool(one is other or (cls in _WRITERS and one == other))
    return _same_mapping(kind.parts(one), kind.parts(other))


def _same_mapping(one: Any, other: Any) -> bool:
    if len(one) != len(other) or getattr(one, "default_factory", None) is not getattr(other, "default_factory", None):
        return False
    return all(map(same, one, other)) and all(map(same, one.values(), other.values()))


def _same_set(one: Any, other: Any) -> bool:
    if one != other:
        return False
    twins = {item: item for item in other}
    return all(same(item, twins[item]) for item in one)


def _same_moment(one: Any, other: Any) -> bool:
    bare = one.replace(tzinfo=None) == other.replace(tzinfo=None) and one.fold == other.fold
    return bare and _same_zone(one.tzinfo, other.tzinfo)


def _same_zone(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if _both_fixed(one, other):
        # A name of its own is part of a zone.
        return type(one) is not type(other) or one.tzname(None) == other.tzname(None)
    if type(one) is not ZoneInfo or type(other) is not ZoneInfo:
        return False
    # A zone that was read from a file has no key.
    return one.key == other.key and one.key is not None


def _both_fixed(one: Any, other: Any) -> bool:
    if not (isinstance(one, tzinfo) and isinstance(other, tzinfo) and _is_fixed(one) and _is_fixed(other)):
        return False
    return one.utcoffset(None) == other.utcoffset(None)


_MAPPINGS = frozenset({dict, OrderedDict, Counter, defaultdict})
_COMPARED: dict[Any, Callable[[Any, Any], bool]] = {
    set: _same_set,
    frozenset: _same_set,
    deque: lambda one, other: one.maxlen == other.maxlen and same(list(one), list(other)),
    datetime: _same_moment,
    time: _same_moment,
    ZoneInfo: _same_zone,
    timezone: _same_zone,
    # 1.0 and 1.00 are equal, and not the same.
    Decimal: lambda one, other: one.as_tuple() == other.as_tuple(),
    complex: lambda one, other: same(one.real, other.real) and same(one.imag, other.imag),
    range: lambda one, other: (one.start, one.stop, one.step) == (other.start, other.stop, other.step),
}
