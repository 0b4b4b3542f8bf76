"""Whether the arguments of a child fit its factory, and those of a message the annotations of the method, for actors in processes.

Only what is certain is checked: a signature that can be read, and builtin types, containers of them, closed lists of values, unions and classes. Every
other annotation accepts every value.

Invariant: a value that a type checker accepts is accepted.
"""

from __future__ import annotations

import inspect
import types
from collections import abc
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from holdfast.faults import InvalidError

__all__ = ["check_argument", "check_call"]

_WIDER: dict[type, tuple[type, ...]] = {float: (float, int), complex: (complex, float, int)}
"""What type checkers accept besides a class and those below it."""
_LISTS = (list, set, frozenset, abc.Sequence, abc.Iterable, abc.Collection, abc.Set, abc.MutableSequence)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_MOST = 1000
"""How many items of a container are looked at."""


def check_argument(value: Any, annotation: Any, where: str) -> None:
    """Raise `InvalidError` if a value does not fit an annotation."""
    if not _fits(value, annotation):
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
        raise InvalidError.saying(where, _name(annotation), f"{type(value).__name__} {shown}")


def check_call(where: str, factory: Any, args: tuple[Any, ...]) -> None:
    """Raise `InvalidError` if a function or class cannot be called with `args`. What has no readable signature is not checked."""
    try:
        # A decorator may pass arguments of its own to what it wraps.
        signature = inspect.signature(factory, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args)
    except TypeError:
        name = getattr(getattr(factory, "func", factory), "__name__", type(factory).__name__)
        # Neither defaults nor arguments are shown: they may hold secrets.
        shown = ", ".join(_parameter(one) for one in signature.parameters.values())
        given = f"{len(args)} argument{'' if len(args) == 1 else 's'}" if args else "none"
        raise InvalidError.saying(where, f"arguments that fit {name}({shown})", given) from None


def _parameter(one: inspect.Parameter) -> str:
    # Keyword-only parameters are shown with a value, as a call would: a child's arguments are given by place.
    has_value = one.kind is one.KEYWORD_ONLY or one.default is not one.empty
    return f"{one.replace(annotation=one.empty, default=one.empty)}{'=…' if has_value else ''}"


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is None:
        return value is None
    if origin is Annotated:
        return _fits(value, inner[0])
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inner)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if isinstance(kind, type) and origin is None:
        return _is_one(value, _WIDER.get(kind, (kind,)))
    if isinstance(origin, type) and not _is_one(value, (origin,)):
        return False
    return _items_fit(value, origin, inner)


def _items_fit(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if origin in _DICTS and len(inner) == 2:
        pairs = list(value.items())[:_MOST]
        return all(_fits(key, inner[0]) and _fits(item, inner[1]) for key, item in pairs)
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(_fits, value, inner))
    # An iterator would be used up by looking at it.
    if (origin in _LISTS or origin is tuple) and isinstance(value, abc.Collection):
        return all(_fits(item, inner[0]) for item in list(value)[:_MOST])
    return True


def _is_one(value: Any, kinds: tuple[type, ...]) -> bool:
    try:
        return isinstance(value, kinds)
    except TypeError:
        # A protocol without a check at run time accepts everything.
        return True


def _name(annotation: Any) -> str:
    plain = isinstance(annotation, type) and get_origin(annotation) is None
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(repr, get_args(annotation)))}"
    return annotation.__name__ if plain else str(annotation).replace("typing.", "")
