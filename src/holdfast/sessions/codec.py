"""Arguments and results of steps, to JSON and back.

Invariant: a decoded result has the type its function declares, or is plain JSON. Nothing is unpickled, and no class is looked up
by a name from the store. Otherwise anybody who can write to the store could run code.
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Awaitable, Coroutine
from hashlib import sha256
from typing import Any

import msgspec

from holdfast import options
from holdfast.faults import InvalidError

__all__ = ["arguments_hash", "decode", "encode", "encode_finite", "encode_result", "plain", "result_type"]

_AWAITED = (Awaitable, Coroutine)
_PLAIN = (str, int, float, bool, type(None))


def encode(value: Any, where: str) -> bytes:
    """Return the JSON of plain values, msgspec and attrs classes, dataclasses, pydantic models and SDK objects."""
    try:
        # A value that contains itself raises RecursionError.
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidError.saying(where, "something that can be stored as JSON", str(error)) from error


def plain(value: Any, where: str) -> Any:
    """Return a value in the form in which the store returns it if no type is declared."""
    return msgspec.json.decode(encode_finite(value, where))


def decode(stored: bytes, type_: Any, where: str) -> Any:
    """Return a stored value as `type_`; raise `InvalidError` if it does not fit."""
    try:
        return msgspec.json.decode(stored, type=type_, dec_hook=_typed)
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        expected = getattr(type_, "__name__", str(type_))
        raise InvalidError.saying(where, f"the stored value to be {expected}", str(error)) from error


def result_type(fn: Any) -> Any:
    """Return the declared result type of a function; Any if it declares none."""
    fn = inspect.unwrap(getattr(fn, "func", fn))
    try:
        declared = typing.get_type_hints(fn).get("return", Any)
    except (NameError, TypeError):
        # An annotation that only exists for type checkers cannot be resolved. The function then counts as not annotated.
        return Any
    if typing.get_origin(declared) in _AWAITED:
        declared = typing.get_args(declared)[-1]
    # msgspec cannot decode to `object`. Every value is an object, so `Any` means the same.
    return Any if declared is object else declared


def encode_result(value: Any, type_: Any, where: str) -> bytes:
    """Return the JSON of a result; raise `InvalidError` if it would not be the same after decoding.

    The error must come now, while the developer can still change the program, and not when the session is resumed.
    """
    check_stable(value, type_, where)
    stored = encode_finite(value, where)
    if type_ is not Any:
        # Decode it now, because the declared type may be too narrow for the value that the function really returned.
        decode(stored, type_, where)
    return stored


def encode_finite(value: Any, where: str) -> bytes:
    """Return JSON; raise `InvalidError` for NaN and infinities, because they would be stored as null."""
    stored = encode(value, where)
    # Search the whole value only if its JSON contains a null. Most values do not.
    if b"null" in stored:
        _check_finite(msgspec.to_builtins(value, enc_hook=_plain), where)
    return stored


def check_stable(value: Any, type_: Any, where: str) -> None:
    """Raise `InvalidError` if a result needs a declared return type to be decoded, and its function declares none."""
    if type_ is Any and not _is_plain(value):
        raise InvalidError.saying(
            where,
            "a declared return type, so that a resumed session gets the same value",
            f"{options.an(type(value).__name__)} without a declared type",
        )


def arguments_hash(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> str:
    """Return the hash of a call's arguments. Equal values have the same hash, in any order of the keywords."""
    try:
        written = msgspec.json.encode([args, kwargs], enc_hook=_plain, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidError.saying(where, "arguments that can be written as JSON", str(error)) from error
    # 128 bits: enough to tell arguments apart, and half the bytes in every log entry.
    return sha256(written).hexdigest()[:32]


def _is_plain(value: Any) -> bool:
    match value:
        case dict():
            return all(isinstance(name, str) and _is_plain(kept) for name, kept in value.items())
        case list():
            return all(_is_plain(item) for item in value)
        case _:
            return isinstance(value, _PLAIN)


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
    """Return the JSON values of a pydantic model. Objects of the provider SDKs are such models."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json")
    raise TypeError(f"{options.an(f'{type(value).__module__}.{type(value).__qualname__}')} cannot be written as JSON")


def _typed(type_: Any, value: Any) -> Any:
    validate = getattr(type_, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise TypeError(f"a {type_!r} cannot be made from JSON")
