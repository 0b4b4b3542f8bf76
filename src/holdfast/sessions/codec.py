"""Arguments and results of steps, to JSON and back.

A value is stored as its plain JSON where that comes back as the same value, with the declared type. Any other value is stored with
tags, as `{"$hf": 2, "v": …}`:

    {"$hf": "datetime", "v": "2026-01-02T03:04:05"}
    {"$hf": "type:Point", "v": {"x": 1, "y": 2}}

A dict that has the key `$hf` itself, or a key that is no text, is written as a list of pairs under the tag `dict`.

Values of version 1 are plain JSON and are read as before. Version 1 masked what looked like a secret. A value that holds the text of
a mask is therefore stored with tags: a mask in plain JSON is one of version 1.

Invariant: a result that was stored comes back the same, with the same type in every place, or it is rejected the first time. Nothing
is unpickled, and no class is looked up by a name that only the store knows (`stored_types.py`).
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
import warnings
import weakref
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, abc, defaultdict, deque
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.faults.redaction import MASK
from holdfast.sessions.canonical import is_ambiguous, ordered, sorted_set
from holdfast.sessions.stored_types import hints, is_secret, kind_of, types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.sessions.stored_types import Types

__all__ = [
    "DEEPEST",
    "MaskedValueWarning",
    "arguments_hash",
    "check_declared",
    "decode",
    "encode",
    "encode_given",
    "encode_result",
    "is_masked",
    "is_same",
    "is_too_deep",
    "plain",
    "readable",
    "restored",
    "result_type",
]

TAG = "$hf"
_EXACT = frozenset({str, int, bool, type(None)})
_SCALARS = frozenset({str, int, bool})
_FACTORIES = {cls.__name__: cls for cls in (list, dict, set, frozenset, tuple, str, int, float, bool)}
"""What a stored `defaultdict` may make."""
_AWAITED = (abc.Awaitable, abc.Coroutine)
_TAGGED = 2
"""The number of the form with tags."""
_MASK = MASK.encode()
DEEPEST = 200
"""How deep a stored value may be nested. Python 3.11 reads less than 1,000 levels and newer ones read more, so without a limit one could
write a log that the other cannot read."""
# Written so that the characters between two escapes are matched at once: five times as fast as one by one.
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_BRACKETS = re.compile(rb"[\[\]{}]")
_TOO_DEEP = f"values nested more than {DEEPEST} levels deep"
_JSON = "something that can be stored as JSON"
_UNCHANGED = "a value that is the same when the session is resumed"


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


class MaskedValueWarning(UserWarning):
    """A stored value is not what the step returned: a part of it looked like a secret, and was masked before it was stored.

    Earlier versions masked results in the store, and `holdfast sessions export` masks them in its file unless it is called with
    `--exact`. To get the real value, let the step run again in a new session.
    """


def encode(value: Any, where: str) -> bytes:
    """Return the JSON of plain values, msgspec and attrs classes, dataclasses, pydantic models and SDK objects."""
    try:
        # A value that contains itself raises RecursionError.
        stored = msgspec.json.encode(value, enc_hook=_readable)
        # A set is written as a list. Most values have none.
        if b"," in stored and not is_plain(value):
            stored = msgspec.json.encode(ordered(value, msgspec.json.decode(stored)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidError.saying(where, _JSON, str(error)) from error
    if is_too_deep(stored):
        raise InvalidError.saying(where, _JSON, _TOO_DEEP)
    return stored


def is_too_deep(written: bytes, most: int = DEEPEST) -> bool:
    """Whether JSON is nested more than `most` levels deep."""
    # Nearly every value has fewer brackets than that.
    if written.count(b"[") + written.count(b"{") <= most:
        return False
    depth = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", written)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > most:
            return True
    return False


def plain(value: Any, where: str) -> Any:
    """Return a value as plain JSON values; raise `InvalidError` for what JSON cannot hold.

    Messages and inputs of turns are stored so: other programs read them, and nobody gets them back as objects.
    """
    stored = encode(value, where)
    # NaN and infinities are written as null. Search the whole value only if its JSON contains a null. Most values do not.
    if b"null" in stored:
        _check_finite(msgspec.to_builtins(value, enc_hook=_readable), where)
    return msgspec.json.decode(stored)


def encode_result(value: Any, type_: Any, where: str) -> bytes:
    """Return the JSON of a result; raise `InvalidError` if it would not be the same after decoding.

    The error must come now, while the developer can still change the program, and not when the session is resumed.
    """
    try:
        if type(value) in _SCALARS and (type_ is Any or type_ is type(value)):
            # It is not nested, and comes back the same.
            scalar = msgspec.json.encode(value)
            if _MASK not in scalar:
                return scalar
        natural = _natural(value, type_)
        if natural is not None and not is_masked(natural):
            return _flat(natural)
        known = types_of(type_)
        stored = msgspec.json.encode({TAG: _TAGGED, "v": write_tagged(value, known)})
        if is_same(read_tagged(msgspec.json.decode(stored)["v"], known), value):
            return _flat(stored)
    except UnstorableError as error:
        place = f" in result{error.place}" if error.place else ""
        raise InvalidError.saying(where, _UNCHANGED, f"{error.found}{place}: {error.advice}") from error
    except Exception as error:
        # Code of the value's own class, such as a validator, can raise anything. A value that contains itself raises RecursionError.
        raise InvalidError.saying(where, _UNCHANGED, f"{_an(value)} that cannot be stored: {error}") from error
    raise InvalidError.saying(where, _UNCHANGED, f"{_an(value)} that comes back changed: return plain values")


def _flat(stored: bytes) -> bytes:
    if is_too_deep(stored):
        raise UnstorableError(_TOO_DEEP, "return its parts beside each other")
    return stored


def encode_given(value: Any, where: str) -> bytes:
    """Return the JSON of a result that a person gives for a step. The type that the step declares is not known here."""
    try:
        return encode_result(value, Any, where)
    except InvalidError:
        # The plain JSON of an object is decoded as the declared type when the step is called.
        return encode(value, where)


def decode(stored: bytes, type_: Any, where: str) -> Any:
    """Return a stored value as `type_`; raise `InvalidError` if it does not fit.

    Warn with `MaskedValueWarning` about a value that was masked before it was stored.
    """
    if is_masked(stored):
        warnings.warn(
            f"{where}: a part of the stored value looked like a secret and was masked", MaskedValueWarning, stacklevel=2
        )
    try:
        if f'"{TAG}"'.encode() in stored:
            written = msgspec.json.decode(stored)
            if _is_tagged(written):
                return read_tagged(written["v"], types_of(type_))
        return msgspec.json.decode(stored, type=type_, dec_hook=_typed)
    except Exception as error:
        # Code of the declared class, such as a validator, can raise anything.
        expected = getattr(type_, "__name__", str(type_))
        raise InvalidError.saying(where, f"the stored value to be {expected}", str(error)) from error


def is_masked(stored: bytes) -> bool:
    """Whether a part of a stored value was masked when it was stored by version 1, or when it was exported."""
    return _MASK in stored and not _is_tagged(msgspec.json.decode(stored))


def readable(written: Any) -> Any:
    """Return stored JSON that is decoded already as plain JSON values for people, without tags."""
    return without_tags(written["v"]) if _is_tagged(written) else written


def restored(written: Any, where: str) -> Any:
    """Return a value of no declared type, from JSON that is decoded already."""
    if not _is_tagged(written):
        return written
    return decode(msgspec.json.encode(written), Any, where)


def check_declared(type_: Any, where: str) -> None:
    """Raise `InvalidError` if nothing of a declared type can be stored: before the step runs, and not after its effect."""
    found = None if type_ is Any else _never_stored(type_)
    if found is not None:
        raise InvalidError.saying(
            where,
            "a declared result that can be stored",
            f"{found}: return plain values, or register it with holdfast.sessions.storable(…, to_json=…, from_json=…)",
        )


def result_type(fn: Any) -> Any:
    """Return the declared result type of a function; Any if it declares none."""
    fn = inspect.unwrap(getattr(fn, "func", fn))
    # A method is made anew at each access; its function is not.
    return declared_result(getattr(fn, "__func__", fn))


def declared_result(fn: Any) -> Any:
    """Return the declared result type of a function that wraps no other; Any if it declares none."""
    try:
        return _RESULTS[fn]
    except (KeyError, TypeError):
        declared = _declared_result(fn)
    # An object with `__call__` may be one that cannot be hashed or weakly referenced.
    with suppress(TypeError):
        _RESULTS[fn] = declared
    return declared


def _declared_result(fn: Any) -> Any:
    # An annotation that only exists for type checkers cannot be resolved. The function then counts as not annotated.
    declared = hints(fn).get("return", Any)
    if typing.get_origin(declared) in _AWAITED:
        declared = typing.get_args(declared)[-1]
    # msgspec cannot decode to `object`. Every value is an object, so `Any` means the same.
    return Any if declared is object else declared


_RESULTS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def arguments_hash(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> str:
    """Return the hash of a call's arguments. Equal values have the same hash, in any order of the keywords."""
    call = [list(args), kwargs]
    try:
        try:
            written = _COMPARABLE.encode(call)
            # msgspec sorts the items of a set. Those that have no order of their own are lists or objects beside each other.
            if (b"],[" in written or b"},{" in written) and is_ambiguous(call):
                in_some_order = msgspec.json.decode(msgspec.json.encode(call, enc_hook=_comparable))
                written = msgspec.json.encode(ordered(call, in_some_order), order="deterministic")
        except TypeError:
            # msgspec cannot write every key of a dict.
            written = msgspec.json.encode(write_tagged(call, None), order="deterministic")
    except (UnstorableError, TypeError, ValueError, OverflowError, RecursionError) as error:
        # The advice is written for results. An argument is passed.
        advice = f": {error.advice.replace('return ', 'pass ')}" if isinstance(error, UnstorableError) else ""
        raise InvalidError.saying(
            where, "arguments that can be compared after a restart", f"{error}{advice}"
        ) from error
    # 128 bits: enough to tell arguments apart, and half the bytes in every log entry.
    return sha256(written).hexdigest()[:32]


# --- plain JSON ---


def _natural(value: Any, type_: Any) -> bytes | None:
    """Return a value's plain JSON if it comes back the same; None if it does not."""
    if type_ is Any:
        return msgspec.json.encode(value) if is_plain(value) else None
    try:
        stored = msgspec.json.encode(value, enc_hook=_plain)
        back = msgspec.json.decode(stored, type=type_, dec_hook=_typed)
    except Exception:  # noqa: BLE001 - a validator can raise anything, and the form with tags needs none of them
        return None
    # JSON that looks like the form with tags would be read as such.
    return stored if is_same(back, value) and f'"{TAG}"'.encode() not in stored else None


def _is_tagged(written: Any) -> bool:
    return isinstance(written, dict) and written.keys() == {TAG, "v"} and written[TAG] == _TAGGED


def _an(value: Any) -> str:
    return options.an(f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins."))


def _check_finite(value: Any, where: str) -> None:
    match value:
        case float() if not math.isfinite(value):
            raise InvalidError.saying(where, "a finite number", str(value))
        case dict():
            for kept in value.values():
                _check_finite(kept, where)
        case list() | tuple() | set() | frozenset():
            for item in value:
                _check_finite(item, where)
        case _:
            pass


def _plain(value: Any) -> Any:
    """Return the JSON values of a pydantic model. Objects of the provider SDKs are such models.

    Only fields that were set are written, under the names that the model reads, so that the model is the same when it is read.
    """
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value)!r} cannot be written as JSON")
    return dump(value, mode="json", by_alias=True, exclude_unset=True, warnings=False)


_ADDRESS = re.compile(rb" at 0x[0-9a-f]+(?=>)")


def _readable(value: Any) -> Any:
    """Return the JSON values of a pydantic model for other readers, as version 1 wrote them: hashes of them are in logs."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        plain_values = ordered(value, dump(value, mode="json", warnings=False))
        if _ADDRESS.search(text := msgspec.json.encode(plain_values)):
            # A function or client in a field is written with where it lies in memory, which is another place in each run.
            return msgspec.json.decode(_ADDRESS.sub(b"", text))
        return plain_values
    raise TypeError(f"{options.an(f'{type(value).__module__}.{type(value).__qualname__}')} cannot be written as JSON")


def _comparable(value: Any) -> Any:
    """Return JSON values that tell this value from others; they need not be enough to make it again."""
    if hasattr(type(value), "model_dump"):
        return _readable(value)
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    return write_tagged(value, None)


_COMPARABLE = msgspec.json.Encoder(enc_hook=_comparable, order="deterministic")


def _typed(type_: Any, value: Any) -> Any:
    validate = getattr(type_, "model_validate", None)
    if validate is None:
        raise TypeError(f"a {type_!r} cannot be made from JSON")
    try:
        # Version 1 wrote a field under its name, also if the model reads it under an alias.
        return validate(value, by_alias=True, by_name=True)
    except TypeError:
        # Pydantic before 2.11 has no such options.
        return validate(value)


# --- what can never be stored ---

_NEVER: tuple[Any, ...] = (abc.Iterator, abc.AsyncIterator, abc.Coroutine, abc.Callable, type)


def _never_stored(type_: Any) -> str | None:
    """Return the name of a declared type of which no value can be stored; None if that is not certain."""
    origin, args = typing.get_origin(type_), typing.get_args(type_)
    if origin in (typing.Union, types.UnionType):
        never = [_never_stored(arm) for arm in args if arm is not type(None)]
        return never[0] if never and all(never) else None
    if origin is typing.Annotated:
        return _never_stored(args[0])
    cls = origin or type_
    if not isinstance(cls, type):
        return None
    if cls in (list, set, frozenset, tuple, dict, abc.Sequence, abc.Mapping):
        return next((found for arm in args if (found := _never_stored(arm)) is not None), None)
    return None if _may_be_stored(cls) else f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")


def _may_be_stored(cls: Any) -> bool:
    if any(cls is never or issubclass(cls, never) for never in _NEVER):
        return False
    if cls in STORED or cls in (Any, object) or typing.is_typeddict(cls) or kind_of(cls) is not None:
        return True
    # A base class says nothing about the classes derived from it.
    return inspect.isabstract(cls) or getattr(cls, "_is_protocol", False) or types_of(Any).has_subclass_of(cls)


# --- values with tags ---


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


def write_tagged(value: Any, types: Types | None) -> Any:
    """Return the value as JSON with tags.

    Raise `UnstorableError` for what cannot be read back. If `types` is None, any class whose parts are known is written: that is
    enough to tell two values apart.
    """
    return _Writer(types).value(value)


def read_tagged(written: Any, types: Types) -> Any:
    """Return a value that `write_tagged` wrote; raise ValueError for a tag or class that is not known."""
    if isinstance(written, list):
        return [read_tagged(item, types) for item in written]
    if not isinstance(written, dict):
        return written
    tag = written.get(TAG)
    if tag is None:
        return {name: read_tagged(kept, types) for name, kept in written.items()}
    parts = {name: read_tagged(kept, types) for name, kept in written.items() if name != TAG}
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
    return sorted_set(items, lambda item: write_tagged(item, None))


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


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, with the same type in every place: `True` is not `1`, and a tuple is not a list."""
    cls = type(one)
    if cls is not type(other):
        return _both_fixed(one, other)
    if cls in _EXACT:
        return bool(one == other)
    if cls is float:
        return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
    if cls in (list, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
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
    return all(map(is_same, one, other)) and all(map(is_same, one.values(), other.values()))


def _same_set(one: Any, other: Any) -> bool:
    if one != other:
        return False
    twins = {item: item for item in other}
    return all(is_same(item, twins[item]) for item in one)


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
    deque: lambda one, other: one.maxlen == other.maxlen and is_same(list(one), list(other)),
    datetime: _same_moment,
    time: _same_moment,
    ZoneInfo: _same_zone,
    timezone: _same_zone,
    # 1.0 and 1.00 are equal, and not the same.
    Decimal: lambda one, other: one.as_tuple() == other.as_tuple(),
    complex: lambda one, other: is_same(one.real, other.real) and is_same(one.imag, other.imag),
    range: lambda one, other: (one.start, one.stop, one.step) == (other.start, other.stop, other.step),
}
