"""What any document must be before a view reads it: JSON values, not too deep, in the view's shape.

Invariant: whatever is handed in, the answer is a fresh copy or an `InvalidError` that says where, what was expected and
what came. Nothing else is raised, and nothing read is shared with the caller.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import REDACTOR, InvalidError, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Code

__all__ = [
    "HOLDFAST",
    "MS",
    "checked",
    "code_for",
    "given",
    "hint",
    "hinted",
    "jsonable",
    "objects",
    "renamed",
    "shaped",
]

S = TypeVar("S")
T = TypeVar("T")

HOLDFAST = "holdfast"
"""The additive field in which the whole fault travels beside a view of it."""

MS = 1000
"""Milliseconds per second."""

# The redactor shows 24 levels. What a document says may come to lie nine levels deeper, inside the fault that
# remembers it, inside the additive field; and must still be whole there.
_DEPTH = 15
_CARRIED_DEPTH = 23


def checked(document: object, code: Code) -> dict[str, Any]:
    """Return a copy of `document`, which must be an object of JSON values."""
    if not isinstance(document, dict):
        raise InvalidError.saying("$", "an object", _kind(document), code)
    depths = {key: _CARRIED_DEPTH if key == HOLDFAST else _DEPTH for key in document}
    return {_key(key, "$", code): _copy(document[key], f"$.{key}", depths[key], code) for key in document}


def shaped(document: dict[str, Any], shape: type[S], code: Code) -> S:
    """Return `document` as a `shape`; fields the shape does not name are allowed and left out."""
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise InvalidError.from_msgspec(error, code) from None


def jsonable(value: Any) -> Any:
    """Return a copy of `value` made of JSON values only."""
    return _listed(msgspec.to_builtins(value, enc_hook=REDACTOR.value))


def given(value: T | UnsetType, default: T) -> T:
    """Return what a document gave, else the default."""
    return default if isinstance(value, UnsetType) else value


def code_for(name: str, stand_in: Code) -> Code:
    """Return the code that `name` means in any of its spellings, or the one that stands in for a name never heard."""
    entry = resolve(name)
    return stand_in if entry is None else entry.code


def renamed(facts: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return `facts` with some of their names spelled the other side's way."""
    return {names.get(name, name): value for name, value in facts.items()}


def objects(value: Any) -> list[dict[str, Any]] | UnsetType:
    """Return a fact that is a list of objects; anything else under its name does not count."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, dict) for item in value):
        return list(value)
    return UNSET


def hint(wait: float | UnsetType, per_second: int = 1) -> float | None:
    """Return the wait a document asks for, in seconds; none at all, or no time, is no hint."""
    if isinstance(wait, UnsetType) or wait <= 0:
        return None
    try:
        return wait / per_second
    except OverflowError:  # an integer beyond every float: whatever it is, it is not a wait
        return None


def hinted(wait: float | None, per_second: int = 1) -> int | float | UnsetType:
    """Return a fault's wait as a document has it, a whole number where it is whole."""
    if wait is None or not isfinite(exact := round(wait * per_second, 3)):
        return UNSET
    return int(exact) if exact == int(exact) else exact


def _copy(value: Any, path: str, depth: int, code: Code) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case str():
            return _text(value, path, code)
        case float():
            if not isfinite(value):
                raise InvalidError.saying(path, "a finite number", repr(float(value)), code)
            return float(value)
        case dict() | list() if depth == 0:
            raise InvalidError.saying(path, "less nesting", "too deep a value", code)
        case dict():
            return {_key(key, path, code): _copy(item, f"{path}.{key}", depth - 1, code) for key, item in value.items()}
        case list():
            return [_copy(item, f"{path}[{index}]", depth - 1, code) for index, item in enumerate(value)]
    raise InvalidError.saying(path, "a JSON value", _kind(value), code)


def _key(key: object, path: str, code: Code) -> str:
    if not isinstance(key, str):
        raise InvalidError.saying(path, "names that are text", _kind(key), code)
    return _text(key, path, code)


def _text(text: str, path: str, code: Code) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: Python holds it, no wire carries it
        raise InvalidError.saying(path, "valid Unicode", "half a surrogate pair", code) from None
    return str(text)


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _listed(value: Any) -> Any:
    match value:
        case dict():
            return {key: _listed(item) for key, item in value.items()}
        case list() | tuple():
            return [_listed(item) for item in value]
        case float() if not isfinite(value):
            return str(value)
    return value
