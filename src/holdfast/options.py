"""Checks for options: wrong ones fail where they are written, with what was expected, what came and where.

Invariant: zero means zero. A check either returns nothing or raises `InvalidError`; it never puts a default in place.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["at_least", "count", "flag", "names", "one_of", "seconds", "share"]


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
    """Check a word from a closed list."""
    if not isinstance(value, str) or value not in words:
        raise InvalidError.at(path, f"one of {', '.join(sorted(words))}", value)


def names(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a set of names. A text alone is refused: it would be taken for the set of its letters."""
    if value is None and optional:
        return
    if not isinstance(value, (set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise InvalidError.at(path, f"a set of names{_or_none(optional)}", value)


def flag(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a switch: True or False, and nothing that is merely true."""
    if value is None and optional:
        return
    if not isinstance(value, bool):
        raise InvalidError.at(path, f"True or False{_or_none(optional)}", value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _or_none(optional: bool) -> str:  # noqa: FBT001 - a word in a sentence, not a switch
    return " or None" if optional else ""
