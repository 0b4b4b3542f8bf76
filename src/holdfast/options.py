"""Checks of options.

A wrong option raises an error where it is written. The error names the option, the expected value and the received
value.

Invariant: zero means zero. A check either returns nothing or raises `InvalidError`; it never substitutes a default.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.faults import Fault, InvalidError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = [
    "Options",
    "an",
    "at_least",
    "count",
    "flag",
    "listed",
    "name",
    "names",
    "one_of",
    "seconds",
    "share",
    "suggestion",
    "tool_name",
    "unknown",
]

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class _OptionsMeta(msgspec.StructMeta):
    """Turns msgspec's TypeError about an unknown option into an `InvalidError` that suggests the right one."""

    # msgspec builds a struct in C. There is no `__init__` or `__new__` in Python that could check the names.
    # Type checkers must not see this method. With it they would not use the struct's own signature.
    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **given: Any) -> Any:  # noqa: N805 - the instances of a metaclass are classes
            try:
                return _build(cls, *args, **given)
            except TypeError:
                for name, value in given.items():
                    if name not in cls.__struct_fields__:
                        raise unknown(cls, name, value) from None
                raise


# It is looked up once: options may be built for every call, and `super()` would look it up each time.
_build = msgspec.StructMeta.__call__


class Options(msgspec.Struct, metaclass=_OptionsMeta, frozen=True, kw_only=True):
    """The base of frozen values that hold a user's options, such as `Policy`."""

    def _replaced(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with some options changed, checked like a new value."""
        # `msgspec.structs.replace` is not used: it raises a bare TypeError for an unknown option.
        return type(self)(**{**msgspec.structs.asdict(self), **changes})


def unknown(kind: type[msgspec.Struct], name: str, value: Any) -> InvalidError:
    """Return the error for an option that `kind` does not have; it suggests the closest option of `kind`."""
    hint = suggestion(name, kind.__struct_fields__, value)
    path = f"{kind.__name__.lower()}.{name}"
    context = {"path": path, "expected": f"an option of {kind.__name__}", "received": name}
    return InvalidError(
        Fault.of(InvalidError.code, f"unknown option `{name}` of {kind.__name__}; {hint}", context=context)
    )


def an(noun: str) -> str:
    """Return a noun with its article: `an object`, `a Circuit`."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def suggestion(name: str, known: Collection[str], value: Any = None) -> str:
    """Return what to write instead of an unknown name: the closest known name, or a list of all of them."""
    # The import is slow and only a mistyped name needs it, so it stands here.
    from difflib import get_close_matches  # noqa: PLC0415

    if name in _RETRIES and "attempts" in known:
        return _attempts_for(value)
    if alike := get_close_matches(name, known, 1):
        return f"did you mean `{alike[0]}`?"
    return f"use one of {', '.join(known)}"


# The names that other libraries use for this option. They count the calls after the first; we count all calls.
_RETRIES = frozenset({"retries", "max_retries"})


def _attempts_for(retries: Any) -> str:
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        return "did you mean `attempts`? (attempts count calls: 3 retries are 4 attempts)"
    counted = "1 retry is" if retries == 1 else f"{retries} retries are"
    attempts = "1 attempt" if retries == 0 else f"{retries + 1} attempts"
    return f"did you mean `attempts={retries + 1}`? (attempts count calls: {counted} {attempts})"


def seconds(path: str, value: Any, *, zero: bool = False, optional: bool = False) -> None:
    """Check a duration: a finite number of seconds, above zero unless `zero` has a meaning here."""
    if value is None and optional:
        return
    if not _is_number(value) or value < 0 or (value == 0 and not zero):
        raise InvalidError.at(path, f"a finite number of seconds {'≥' if zero else '>'} 0{_or_none(optional)}", value)


def count(path: str, value: Any, *, least: int = 1, optional: bool = False) -> None:
    """Check a count: a whole number, at least `least`."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidError.at(path, f"a whole number ≥ {least}{_or_none(optional)}", value)


def share(path: str, value: Any, *, zero: bool = False, optional: bool = False) -> None:
    """Check a share of a whole: a number up to 1, above zero unless `zero` has a meaning here."""
    if value is None and optional:
        return
    if not _is_number(value) or not 0 <= value <= 1 or (value == 0 and not zero):
        raise InvalidError.at(path, f"a number {'from' if zero else 'above'} 0 to 1{_or_none(optional)}", value)


def at_least(path: str, value: Any, least: float, *, optional: bool = False) -> None:
    """Check a finite number with a lower bound."""
    if value is None and optional:
        return
    if not _is_number(value) or value < least:
        raise InvalidError.at(path, f"a finite number ≥ {least:g}{_or_none(optional)}", value)


def one_of(path: str, value: Any, words: Collection[str]) -> None:
    """Check that a word is in a closed list."""
    if not isinstance(value, str) or value not in words:
        raise InvalidError.at(path, f"one of {', '.join(sorted(words))}", value)


def name(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a name: a text that is not blank."""
    if value is None and optional:
        return
    if not isinstance(value, str) or not value.strip():
        raise InvalidError.at(path, f"a name{_or_none(optional)}", value)


def tool_name(path: str, value: Any) -> None:
    """Check a name that providers get as the name of a tool: they reject others."""
    if not isinstance(value, str) or not _TOOL_NAME.fullmatch(value):
        raise InvalidError.at(path, "1 to 64 ASCII letters, digits, `_` or `-`, as providers take them", value)


def listed(path: str, value: Any, expected: str) -> tuple[Any, ...]:
    """Return the values of a list. A single value, or a text, is not a list."""
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise InvalidError.at(path, f"a list of {expected}", value)
    return tuple(value)


def names(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a set of names. A plain string is invalid, because Python would take it as the set of its letters."""
    if value is None and optional:
        return
    if not isinstance(value, (set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise InvalidError.at(path, f"a set of names{_or_none(optional)}", value)


def flag(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a switch: True or False. Other true values, such as 1 or "no", are invalid."""
    if value is None and optional:
        return
    if not isinstance(value, bool):
        raise InvalidError.at(path, f"True or False{_or_none(optional)}", value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _or_none(optional: bool) -> str:  # noqa: FBT001 - a private helper with one argument, and its name says what it means
    return " or None" if optional else ""
