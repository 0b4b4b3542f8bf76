"""Values to JSON and back: what steps return and take.

Invariant: what comes back has the type its function declares, or is plain JSON. Nothing is unpickled and no class is looked up by
a name that stands in the store.
"""

from __future__ import annotations

import inspect
import typing
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.faults import InvalidError

__all__ = ["arguments_hash", "decode", "encode", "result_type"]

_PLAIN = (str, int, float, bool, type(None))


def encode(value: Any, where: str) -> bytes:
    """Return JSON for plain values, msgspec and attrs classes, dataclasses, pydantic models and the SDKs' objects."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidError.saying(where, "something that can be stored as JSON", str(error)) from error


def decode(stored: bytes, type_: Any, where: str) -> Any:
    """Return what was stored, as `type_`."""
    try:
        return msgspec.json.decode(stored, type=type_, dec_hook=_typed)
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        expected = getattr(type_, "__name__", str(type_))
        raise InvalidError.saying(where, f"what is stored to be {expected}", str(error)) from error


def result_type(fn: Any) -> Any:
    """Return the declared type of what a function returns; Any where it declares none."""
    fn = inspect.unwrap(getattr(fn, "func", fn))
    try:
        declared = typing.get_type_hints(fn).get("return", Any)
    except (NameError, TypeError):
        return Any
    return type(None) if declared is None else declared


def check_stable(value: Any, type_: Any, where: str) -> None:
    """Refuse a result that would come back as something else: its function should declare what it returns."""
    if type_ is Any and not _is_plain(value):
        raise InvalidError.saying(
            where,
            "a declared return type, so that a resumed session gets the same",
            f"a {type(value).__name__} without one",
        )


def arguments_hash(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> str:
    """Return the hash of a call's arguments: the same for equal values, whatever their order by name."""
    try:
        written = msgspec.json.encode([args, kwargs], enc_hook=_plain, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidError.saying(where, "arguments that can be written as JSON", str(error)) from error
    return sha256(written).hexdigest()[:32]


def _is_plain(value: Any) -> bool:
    match value:
        case dict():
            return all(isinstance(name, str) and _is_plain(kept) for name, kept in value.items())
        case list():
            return all(_is_plain(item) for item in value)
        case _:
            return isinstance(value, _PLAIN)


def _plain(value: Any) -> Any:
    """Pydantic's models, and so the objects of the SDKs, know their own JSON."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json")
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} cannot be written as JSON")


def _typed(type_: Any, value: Any) -> Any:
    validate = getattr(type_, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise TypeError(f"a {type_!r} cannot be made from JSON")
