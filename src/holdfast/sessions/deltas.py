"""The difference between two JSON values, and how to apply it: a session stores what changed in its context, never the whole again.

Invariant: `patched(old, difference(old, new))` equals `new`, with the same types. Values are not changed in place: other values may
share their parts.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = ["Change", "difference", "patched"]

Change: TypeAlias = list[Any]
"""A path, and what happens there: `[path, value]` sets a value, `[path]` removes a name of a table, and
`[path, start, count, part]` replaces a part of a list or text."""

_DEEPEST = 32
"""How deep two values are compared. Deeper parts are stored as a whole if they differ."""


def difference(old: Any, new: Any) -> list[Change]:
    """Return the changes that make `old` into `new`."""
    changes: list[Change] = []
    _compare(old, new, [], changes)
    return changes


def _compare(old: Any, new: Any, path: list[str | int], changes: list[Change]) -> None:
    if isinstance(old, dict) and isinstance(new, dict) and len(path) < _DEEPEST:
        changes += [[[*path, name]] for name in old if name not in new]
        for name, value in new.items():
            if name in old:
                _compare(old[name], value, [*path, name], changes)
            else:
                changes.append([[*path, name], value])
    elif isinstance(old, list) and isinstance(new, list) and len(path) < _DEEPEST:
        _compare_lists(old, new, path, changes)
    elif isinstance(old, str) and isinstance(new, str):
        _compare_texts(old, new, path, changes)
    elif not _is_same(old, new):
        changes.append([path, new])


def _compare_lists(old: list[Any], new: list[Any], path: list[str | int], changes: list[Change]) -> None:
    shorter = min(len(old), len(new))
    start = next((n for n in range(shorter) if not _is_same(old[n], new[n])), shorter)
    end = next((n for n in range(shorter - start) if not _is_same(old[-1 - n], new[-1 - n])), shorter - start)
    count, part = len(old) - start - end, new[start : len(new) - end]
    if count == len(part) == 1:
        _compare(old[start], part[0], [*path, start], changes)
    elif count or part:
        changes.append([path, start, count, part])


def _compare_texts(old: str, new: str, path: list[str | int], changes: list[Change]) -> None:
    if old == new:
        return
    # Text mostly grows at its end. A search for other differences would cost more than it saves.
    if old and new.startswith(old):
        changes.append([path, len(old), 0, new[len(old) :]])
    else:
        changes.append([path, new])


def _is_same(old: Any, new: Any) -> bool:
    """Whether two values have the same JSON. Python's `==` finds 1, 1.0 and True equal."""
    return bool(old == new) and msgspec.json.encode(old) == msgspec.json.encode(new)


def patched(old: Any, changes: list[Change]) -> Any:
    """Return the value with the changes applied. Raise ValueError, TypeError, LookupError for changes that do not fit it."""
    for path, *change in changes:
        old = _change(old, path, change)
    return old


def _change(value: Any, path: list[str | int], change: list[Any]) -> Any:
    if not path:
        return _replaced(value, change)
    name, *rest = path
    copied = value.copy()
    if not rest and not change:
        del copied[name]
    elif not rest and len(change) == 1:
        copied[name] = change[0]
    else:
        copied[name] = _change(value[name], rest, change)
    return copied


def _replaced(value: Any, change: list[Any]) -> Any:
    if len(change) == 1:
        return change[0]
    start, count, part = change
    return value[:start] + part + value[start + count :]
