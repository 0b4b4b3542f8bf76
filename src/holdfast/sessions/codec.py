"""Arguments and results of steps, to JSON and back.

A value is stored as its plain JSON where that comes back as the same value, with the declared type. Any other value is stored with
tags (`values.py`), as `{"$hf": 2, "v": …}`. Values of version 1 are plain JSON and are read as before. Version 1 masked what looked
like a secret. A value that holds the text of a mask is therefore stored with tags: a mask in plain JSON is one of version 1.

Invariant: a result that was stored comes back the same, with the same type in every place, or it is rejected the first time. Nothing
is unpickled, and no class is looked up by a name that only the store knows (`stored_types.py`).
"""

from __future__ import annotations

import inspect
import math
import types
import typing
import warnings
import weakref
from collections import abc
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.faults.redaction import MASK
from holdfast.sessions import values
from holdfast.sessions.stored_types import hints, kind_of, types_of
from holdfast.sessions.values import TAG, UnstorableError

__all__ = [
    "MaskedValueWarning",
    "arguments_hash",
    "check_declared",
    "decode",
    "encode",
    "encode_given",
    "encode_result",
    "is_masked",
    "plain",
    "readable",
    "restored",
    "result_type",
]

_AWAITED = (abc.Awaitable, abc.Coroutine)
_TAGGED = 2
"""The number of the form with tags."""
_MASK = MASK.encode()
_UNCHANGED = "a value that is the same when the session is resumed"


class MaskedValueWarning(UserWarning):
    """A stored value is not what the step returned: a part of it looked like a secret, and was masked before it was stored.

    Earlier versions masked results in the store, and `holdfast sessions export` masks them in its file unless it is called with
    `--exact`. To get the real value, let the step run again in a new session.
    """


def encode(value: Any, where: str) -> bytes:
    """Return the JSON of plain values, msgspec and attrs classes, dataclasses, pydantic models and SDK objects."""
    try:
        # A value that contains itself raises RecursionError.
        return msgspec.json.encode(value, enc_hook=_readable)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidError.saying(where, "something that can be stored as JSON", str(error)) from error


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
        natural = _natural(value, type_)
        if natural is not None and not is_masked(natural):
            return natural
        known = types_of(type_)
        stored = msgspec.json.encode({TAG: _TAGGED, "v": values.write(value, known)})
        if values.same(values.read(msgspec.json.decode(stored)["v"], known), value):
            return stored
    except UnstorableError as error:
        place = f" in result{error.place}" if error.place else ""
        raise InvalidError.saying(where, _UNCHANGED, f"{error.found}{place}: {error.advice}") from error
    except Exception as error:
        # Code of the value's own class, such as a validator, can raise anything. A value that contains itself raises RecursionError.
        raise InvalidError.saying(where, _UNCHANGED, f"{_an(value)} that cannot be stored: {error}") from error
    raise InvalidError.saying(where, _UNCHANGED, f"{_an(value)} that comes back changed: return plain values")


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
                return values.read(written["v"], types_of(type_))
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
    return values.without_tags(written["v"]) if _is_tagged(written) else written


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
    fn = getattr(fn, "__func__", fn)
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
            written = msgspec.json.encode(call, enc_hook=_comparable, order="deterministic")
        except TypeError:
            # msgspec cannot write every key of a dict.
            written = msgspec.json.encode(values.write(call, None), order="deterministic")
    except (UnstorableError, TypeError, ValueError, OverflowError, RecursionError) as error:
        advice = f": {error.advice}" if isinstance(error, UnstorableError) else ""
        raise InvalidError.saying(
            where, "arguments that can be compared after a restart", f"{error}{advice}"
        ) from error
    # 128 bits: enough to tell arguments apart, and half the bytes in every log entry.
    return sha256(written).hexdigest()[:32]


# Plain JSON


def _natural(value: Any, type_: Any) -> bytes | None:
    """Return a value's plain JSON if it comes back the same; None if it does not."""
    if type_ is Any:
        return msgspec.json.encode(value) if values.is_plain(value) else None
    if type(value) is type_ and type_ in (str, int, bool):
        return msgspec.json.encode(value)
    try:
        stored = msgspec.json.encode(value, enc_hook=_plain)
        back = msgspec.json.decode(stored, type=type_, dec_hook=_typed)
    except Exception:  # noqa: BLE001 - a validator can raise anything, and the form with tags needs none of them
        return None
    # JSON that looks like the form with tags would be read as such.
    return stored if values.same(back, value) and f'"{TAG}"'.encode() not in stored else None


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


def _readable(value: Any) -> Any:
    """Return the JSON values of a pydantic model for other readers, as version 1 wrote them: hashes of them are in logs."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json", warnings=False)
    raise TypeError(f"{options.an(f'{type(value).__module__}.{type(value).__qualname__}')} cannot be written as JSON")


def _comparable(value: Any) -> Any:
    """Return JSON values that tell this value from others; they need not be enough to make it again."""
    if hasattr(type(value), "model_dump"):
        return _readable(value)
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    return values.write(value, None)


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


# What can never be stored

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
    if cls in values.STORED or cls in (Any, object) or typing.is_typeddict(cls) or kind_of(cls) is not None:
        return True
    # A base class says nothing about the classes derived from it.
    return inspect.isabstract(cls) or getattr(cls, "_is_protocol", False) or types_of(Any).has_subclass_of(cls)
