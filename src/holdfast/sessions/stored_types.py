"""Which classes a stored value may become, and how their objects are taken apart and put together.

Invariant: an object is made only of a class that a function declares, or that the program registered with `storable`. A class or
module that only the store names is never looked up or imported. Otherwise anybody who can write to the store could run code.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
import weakref
from contextlib import suppress
from enum import Enum, Flag
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import msgspec

from holdfast import options
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["StorableKind", "Types", "hints", "is_secret", "kind_of", "members", "storable", "types_of"]

T = TypeVar("T")


class StorableKind(Protocol):
    """How objects of some classes are taken apart and put together."""

    def parts(self, value: Any) -> dict[str, Any]:
        """Return everything that makes the object what it is, by a short name for each part."""
        ...

    def build(self, cls: Any, parts: dict[str, Any]) -> Any:
        """Return an object of the class with these parts."""
        ...


@overload
def storable(cls: type[T], /) -> type[T]: ...
@overload
def storable(
    cls: type[T],
    /,
    *,
    name: str = "",
    to_json: Callable[[T], Any] | None = None,
    from_json: Callable[[Any], T] | None = None,
) -> type[T]: ...
@overload
def storable(*, name: str) -> Callable[[type[T]], type[T]]: ...
@options.suggests
def storable(
    cls: Any = None,
    /,
    *,
    name: str = "",
    to_json: Callable[[Any], Any] | None = None,
    from_json: Callable[[Any], Any] | None = None,
) -> Any:
    """Let sessions store objects of this class where no annotation names it: in `dict[str, Any]`, in `context`, as a subclass.

        @storable
        @dataclass
        class Point:
            x: int
            y: int

        storable(Matrix, to_json=Matrix.tolist, from_json=Matrix)   # a class of another library

    Dataclasses, enums, named tuples, msgspec, attrs and pydantic classes need no functions. The classes of their fields are
    registered with them. The store names the class by `name`, by default its qualified name, so give a `name` before you rename the
    class. Register it before the session is opened. Raises `InvalidError` if another class has the name, or if objects of the
    class cannot be stored without `to_json` and `from_json`.
    """
    if cls is None:
        return lambda decorated: storable(decorated, name=name)
    if (to_json is None) is not (from_json is None):
        raise InvalidError.saying("storable", "both to_json and from_json, or neither", "one of them")
    if to_json is not None and from_json is not None:
        _CUSTOM[cls] = _Custom(to_json, from_json)
        _KINDS.pop(cls, None)
    elif kind_of(cls) is None:
        raise InvalidError.saying(
            "storable", "to_json and from_json for this class", f"only {cls.__qualname__}, whose content is not known"
        )
    _REGISTERED.add(cls, name)
    for member in members(cls):
        _REGISTERED.add_member(member)
    return cls


class Types:
    """Classes by the names that the store has for them."""

    __slots__ = ("_by_name", "_names")

    def __init__(self, classes: Iterator[Any] | None = None) -> None:
        self._by_name: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        for cls in classes or ():
            self.add_member(cls)

    def add(self, cls: Any, name: str) -> None:
        name = name or cls.__qualname__
        known = self._by_name.get(name)
        # The same class again is a module that was loaded again, for example in a notebook.
        if known is not None and known is not cls and _place(known) != _place(cls):
            raise InvalidError.saying(
                "storable", f"a name= that no other class has ({name} is {'.'.join(_place(known))})", name
            )
        self._by_name[name] = cls
        self._names[cls] = name

    def add_member(self, cls: Any) -> None:
        if cls in self._names:
            return
        # Two classes of the same name differ only in their modules.
        name = cls.__qualname__ if cls.__qualname__ not in self._by_name else ".".join(_place(cls))
        self._by_name[name] = cls
        self._names[cls] = name

    def name_of(self, cls: Any) -> str | None:
        """Return the name of a class that may be stored; None for any other class."""
        return self._names.get(cls) or _REGISTERED._names.get(cls)

    def named(self, name: str) -> Any:
        """Return the class of this name, or None."""
        return self._by_name.get(name) or _REGISTERED._by_name.get(name)

    def has_subclass_of(self, cls: Any) -> bool:
        """Whether objects of this class, or of a class derived from it, may be stored."""
        return any(issubclass(known, cls) for known in (*self._names, *_REGISTERED._names))


def _place(cls: Any) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


_REGISTERED = Types()
"""The classes that the program registered."""


def types_of(declared: Any) -> Types:
    """Return the classes that a value of a declared type may consist of, with those that are registered."""
    if declared is Any:
        return _REGISTERED
    try:
        return _types_of(declared)
    except TypeError:
        # An annotation with an unhashable argument, such as `Annotated[int, {}]`.
        return Types(members(declared))


@lru_cache(1_024)
def _types_of(declared: Any) -> Types:
    return Types(members(declared))


def members(declared: Any) -> Iterator[Any]:
    """Yield the classes with a known kind in a declared type, and in the fields of these classes."""
    waiting, seen = [declared], set[int]()
    kept = []
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        # An annotation that was made on the way must live until the end, or another could get its `id`.
        kept.append(one)
        if one is Any:
            continue
        if isinstance(one, type) and not isinstance(one, types.GenericAlias):
            if kind_of(one) is not None:
                yield one
            elif not typing.is_typeddict(one):
                continue
            waiting += _field_types(one)
        else:
            waiting += _inside(one)


def _inside(one: Any) -> list[Any]:
    """Return the types that an annotation consists of."""
    if typing.get_origin(one) is typing.Literal:
        return [type(value) for value in typing.get_args(one)]
    if isinstance(one, list):
        # The arguments of a Callable.
        return one
    # The bound of a TypeVar, what a NewType stands for, the value of a `type` statement.
    names = ("__bound__", "__supertype__", "__value__", "__origin__")
    found = [getattr(one, name, None) for name in names]
    return [part for part in (*found, *getattr(one, "__constraints__", ()), *typing.get_args(one)) if part is not None]


def _field_types(cls: Any) -> list[Any]:
    fields = getattr(cls, "__pydantic_fields__", None) or {}
    return [*hints(cls).values(), *(field.annotation for field in fields.values())]


def hints(of: Any) -> dict[str, Any]:
    """Return the annotations of a class or function. One that exists only for type checkers is left out."""
    # Evaluating somebody's annotation can raise anything.
    with suppress(Exception):
        return typing.get_type_hints(of, include_extras=True)
    found: dict[str, Any] = {}
    for owner in reversed(getattr(of, "__mro__", (of,))):
        scope = {**vars(sys.modules.get(owner.__module__, sys)), **_namespace(owner)}
        for name, annotation in (getattr(owner, "__annotations__", None) or {}).items():
            one = types.SimpleNamespace(__annotations__={name: annotation})
            # The other annotations may still be readable.
            with suppress(Exception):
                found |= typing.get_type_hints(one, scope, include_extras=True)
    return found


def _namespace(owner: Any) -> dict[str, Any]:
    return dict(vars(owner)) if isinstance(owner, type) else {}


# The kinds


def is_secret(cls: Any) -> bool:
    """Whether a class hides its value: pydantic's `SecretStr` and the like."""
    return hasattr(cls, "get_secret_value")


def kind_of(cls: Any) -> StorableKind | None:
    """Return how objects of a class are taken apart; None if that is not known."""
    try:
        return _KINDS[cls]
    except KeyError:
        kind = _KINDS[cls] = _find_kind(cls)
        return kind


def _find_kind(cls: Any) -> StorableKind | None:
    if cls in _CUSTOM:
        return _CUSTOM[cls]
    if issubclass(cls, Enum):
        return _ENUM
    if issubclass(cls, tuple):
        return _NAMED_TUPLE if hasattr(cls, "_fields") else None
    if issubclass(cls, msgspec.Struct):
        return _STRUCT
    # A class that derives from str, dict or an exception holds more than its fields.
    if cls.__new__ is not object.__new__ and not hasattr(cls, "__pydantic_fields__"):
        return _ADAPTED if hasattr(cls, "__get_pydantic_core_schema__") else None
    if hasattr(cls, "__pydantic_fields__") and hasattr(cls, "model_dump"):
        return _MODEL
    if dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__"):
        return _FIELDS
    return _ADAPTED if hasattr(cls, "__get_pydantic_core_schema__") and not is_secret(cls) else None


class _Enums:
    """An enum's member by its name; a flag by its number, because a combination of flags has no name."""

    def parts(self, value: Any) -> dict[str, Any]:
        return {"v": value.value if isinstance(value, Flag) else value.name}

    def build(self, cls: Any, parts: dict[str, Any]) -> Any:
        return cls(parts["v"]) if issubclass(cls, Flag) else cls[parts["v"]]


class _NamedTuples:
    def parts(self, value: Any) -> dict[str, Any]:
        return {"v": list(value)}

    def build(self, cls: Any, parts: dict[str, Any]) -> Any:
        return cls._make(parts["v"])


class _Fields:
    """A dataclass or attrs class: its fields, and other attributes that were set.

    The object is made without `__init__`, as `copy.copy` makes it. `__init__` may take other arguments than the fields, compute
    some of them, or have effects.
    """

    def parts(self, value: Any) -> dict[str, Any]:
        names = [field.name for field in _fields_of(type(value))]
        return _with_others({"v": {name: getattr(value, name) for name in names if hasattr(value, name)}}, value, names)

    def build(self, cls: Any, parts: dict[str, Any]) -> Any:
        made = object.__new__(cls)
        for field in _fields_of(cls):
            if field.name in parts["v"]:
                object.__setattr__(made, field.name, parts["v"][field.name])
            else:
                self._default(made, field)
        _set_others(made, parts)
        return made

    def _default(self, made: Any, field: Any) -> None:
        """Set a field that the class got after the object was stored."""
        default = getattr(field, "default", dataclasses.MISSING)
        factory = getattr(field, "default_factory", dataclasses.MISSING)
        if factory is not dataclasses.MISSING:
            object.__setattr__(made, field.name, factory())
        elif default is not dataclasses.MISSING and not hasattr(field, "converter"):
            object.__setattr__(made, field.name, default)
        elif field.init:
            raise ValueError(f"the field {field.name} is not in the store")


def _fields_of(cls: Any) -> tuple[Any, ...]:
    attributes = getattr(cls, "__attrs_attrs__", None)
    return dataclasses.fields(cls) if attributes is None else attributes


class _Structs:
    def parts(self, value: Any) -> dict[str, Any]:
        names = type(value).__struct_fields__
        return _with_others({"v": {name: getattr(value, name) for name in names}}, value, names)

    def build(self, cls: Any, parts: dict[str, Any]) -> Any:
        # A field that the class does not have any more is dropped, as msgspec does.
        given = {name: kept for name, kept in parts["v"].items() if name in cls.__struct_fields__}
        made = cls(**given)
        # `__post_init__` may have changed a field once more.
        for name, kept in given.items():
            if getattr(made, name) is not kept:
                msgspec.structs.force_setattr(made, name, kept)
        _set_others(made, parts)
        return made


class _Models:
    """A pydantic model, with all that validation would change or drop: excluded, extra and private fields, and which were set."""

    def parts(self, value: Any) -> dict[str, Any]:
        cls = type(value)
        names = list(cls.__pydantic_fields__)
        given = {name: value.__dict__[name] for name in names if name in value.__dict__}
        found = _with_others({"v": given}, value, names)
        if value.__pydantic_fields_set__ != set(names):
            found["s"] = sorted(value.__pydantic_fields_set__)
        if value.__pydantic_extra__ is not None:
            found["e"] = value.__pydantic_extra__
        if value.__pydantic_private__ is not None:
            undefined = _undefined()
            private = value.__pydantic_private__.items()
            found["p"] = {name: kept for name, kept in private if kept is not undefined}
        return found

    def build(self, cls: Any, parts: dict[str, Any]) -> Any:
        given = dict(parts["v"])
        for name, field in cls.__pydantic_fields__.items():
            # The model got this field after the object was stored.
            if name not in given and not field.is_required():
                given[name] = field.get_default(call_default_factory=True)
        made = cls.__new__(cls)
        state = {
            "__dict__": given | parts.get("x", {}),
            "__pydantic_fields_set__": set(parts.get("s", cls.__pydantic_fields__)),
            "__pydantic_extra__": parts.get("e"),
            "__pydantic_private__": parts.get("p"),
        }
        made.__setstate__(state)
        return made


class _Adapted:
    """A class that pydantic knows how to write and read, such as its URLs."""

    def parts(self, value: Any) -> dict[str, Any]:
        return {"v": _adapter(type(value)).dump_python(value, mode="json", warnings=False)}

    def build(self, cls: Any, parts: dict[str, Any]) -> Any:
        return _adapter(cls).validate_python(parts["v"])


class _Custom:
    """A class that the program registered with functions of its own."""

    def __init__(self, to_json: Callable[[Any], Any], from_json: Callable[[Any], Any]) -> None:
        self._to_json = to_json
        self._from_json = from_json

    def parts(self, value: Any) -> dict[str, Any]:
        return {"v": self._to_json(value)}

    def build(self, cls: Any, parts: dict[str, Any]) -> Any:  # noqa: ARG002 - the function knows its class
        return self._from_json(parts["v"])


def _with_others(parts: dict[str, Any], value: Any, names: Any) -> dict[str, Any]:
    """Add the attributes that are no fields. What a `cached_property` computed can be computed again."""
    own = getattr(value, "__dict__", None) or {}
    others = {
        name: own[name]
        for name in sorted(own.keys() - set(names))
        if not name.startswith("__") and not isinstance(getattr(type(value), name, None), cached_property)
    }
    if others:
        parts["x"] = others
    return parts


def _set_others(made: Any, parts: dict[str, Any]) -> None:
    # Not with setattr: the class may be frozen, or check what is set.
    if "x" in parts:
        vars(made).update(parts["x"])


def _undefined() -> Any:
    # Only a program that has a model gets here, so pydantic is loaded already.
    import pydantic_core  # noqa: PLC0415

    return pydantic_core.PydanticUndefined


def _adapter(cls: Any) -> Any:
    import pydantic  # noqa: PLC0415 - as above

    return pydantic.TypeAdapter(cls)


_ENUM, _NAMED_TUPLE, _FIELDS, _STRUCT = _Enums(), _NamedTuples(), _Fields(), _Structs()
_MODEL, _ADAPTED = _Models(), _Adapted()
_CUSTOM: weakref.WeakKeyDictionary[Any, StorableKind] = weakref.WeakKeyDictionary()
_KINDS: weakref.WeakKeyDictionary[Any, StorableKind | None] = weakref.WeakKeyDictionary()
