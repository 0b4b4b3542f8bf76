"""The order of sets in JSON: the same in every process.

Python gives a text another hash in each process. A set that holds texts, or values made of them, is therefore iterated in another order
after a restart, and the hash of its JSON would be another one.

Invariant: JSON that was already the same in every process stays as it is, because hashes of it are in logs.
"""

from __future__ import annotations

import re
from collections import abc
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from holdfast.sessions.stored_types import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["is_ambiguous", "ordered", "sorted_set"]

_SETS = (set, frozenset)
_LEAVES = frozenset({str, bytes, int, float, bool, type(None)})
_STEADY = frozenset({int, float, bool, complex, Decimal, Fraction, UUID, timedelta})
"""Classes whose hash is computed from numbers, so that it is the same in every process."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def is_ambiguous(value: Any) -> bool:
    """Whether a set in this value has no order of its own that `sorted` would find, so that its JSON differs between processes.

    Two frozensets of which none contains the other are an example. Objects that msgspec does not write itself are not looked into.
    """
    return any(not _has_one_order(one) for one in _random_sets(value))


def ordered(value: Any, written: Any) -> Any:
    """Return JSON values with the items of sets in an order that is the same in every process.

    `written` is what `value` was written as, each set in the order in which it is iterated.
    """
    if getattr(type(value), "__pydantic_root_model__", False):
        value = value.root
    if isinstance(written, list):
        if isinstance(value, _SETS) and len(value) == len(written):
            items = [ordered(item, kept) for item, kept in zip(value, written, strict=True)]
            return _sorted_items(items) if _is_iterated_at_random(value, written) else items
        if isinstance(value, list | tuple) and len(value) == len(written):
            return [ordered(item, kept) for item, kept in zip(value, written, strict=True)]
    elif isinstance(written, dict):
        if isinstance(value, abc.Mapping):
            same = len(value) == len(written)
            pairs = zip(value.values(), written.items(), strict=True) if same else ()
            return {name: ordered(item, kept) for item, (name, kept) in pairs} if same else written
        fields = _fields(value)
        # A model also writes what it computes.
        parts = {name: fields[name] if name in fields else getattr(value, name, None) for name in written}
        return {name: ordered(parts[name], kept) for name, kept in written.items()}
    return written


def sorted_set(items: Any, write: Callable[[Any], Any]) -> list[Any]:
    """Return the items of a set in an order that is the same in every process. `write` returns an object as JSON values."""
    return sorted(items, key=lambda item: (*_place(item), _content(item, write)))


def _place(item: Any) -> tuple[str, str]:
    """Return what an item of a set is sorted by. The text of a set will not do: it differs between two equal sets."""
    match item:
        case frozenset():
            text = _text_of_set(item)
        case tuple():
            text = repr([_place(each) for each in item])
        case _ if kind_of(type(item)) is None:
            text = repr(item)
        case _:
            text = _steady_text(item)
    return type(item).__name__, text


def _text_of_set(items: Any) -> str:
    return repr(sorted(map(_place, items)))


def _steady_text(value: Any) -> str:
    """Return the `repr` of an object, with the sets inside in order and without addresses."""
    text = repr(value)
    # A set comes before the sets that are inside of it.
    for one in _random_sets(value):
        text = text.replace(repr(one), _text_of_set(one))
    return _ADDRESS.sub("", text)


def _content(item: Any, write: Callable[[Any], Any]) -> bytes:
    """Return what tells objects apart whose text is the same."""
    if kind_of(type(item)) is None:
        return b""
    try:
        return msgspec.json.encode(write(item), order="deterministic")
    except Exception:  # noqa: BLE001 - it is raised again, with the item's place, when the item is written
        return b""


def _random_sets(value: Any) -> Iterator[Any]:
    """Yield the sets in a value whose order differs between processes."""
    # A list instead of recursion: a value may be nested as deep as msgspec can write, or contain itself.
    waiting, seen = [value], set[int]()
    for one in waiting:
        if type(one) in _LEAVES or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, _SETS) and _is_random(one):
            yield one
        if isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        else:
            waiting += _fields(one).values()


def _is_random(items: Any) -> bool:
    return len(items) > 1 and not all(map(_has_steady_hash, items))


def _has_steady_hash(item: Any) -> bool:
    if type(item) in (tuple, frozenset):
        return all(map(_has_steady_hash, item))
    return type(item) in _STEADY


def _has_one_order(items: Any) -> bool:
    """Whether each item is less than the next: then there is no other order."""
    try:
        return all(one < other for one, other in pairwise(sorted(items)))
    except TypeError:
        return False


def _is_iterated_at_random(items: Any, written: list[Any]) -> bool:
    if not _is_random(items):
        return False
    # A model may write a set in an order of its own.
    return not all(type(kept) is str for kept in items) or list(items) == written


def _sorted_items(items: list[Any]) -> list[Any]:
    if all(type(item) is str for item in items):
        return sorted(items)
    return sorted(items, key=lambda item: msgspec.json.encode(item, order="deterministic"))


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of an object under the names that they are written with; nothing for any other value."""
    cls = type(value)
    if isinstance(value, msgspec.Struct):
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        return {written: getattr(value, name) for written, name in names}
    if hasattr(cls, "model_dump"):
        return _model_fields(value)
    fields = getattr(cls, "__dataclass_fields__", None) or [one.name for one in getattr(cls, "__attrs_attrs__", ())]
    return {name: getattr(value, name) for name in fields if hasattr(value, name)}


def _model_fields(value: Any) -> dict[str, Any]:
    # An object of another library may have the method only.
    fields = {**getattr(value, "__dict__", {}), **(getattr(value, "__pydantic_extra__", None) or {})}
    for name, field in getattr(type(value), "__pydantic_fields__", {}).items():
        if field.serialization_alias is not None and name in fields:
            fields[field.serialization_alias] = fields[name]
    return fields
