"""Kinds of callables, and of arguments. Every callable that returns a coroutine counts as async (R23)."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from holdfast.faults import InvalidError

__all__ = [
    "PLAN_ATTRIBUTE",
    "Request",
    "has_one_shot",
    "is_async",
    "is_generator",
    "name_of",
    "reads_in",
    "reject_generator",
    "used_up",
]

Request: TypeAlias = "tuple[tuple[Any, ...], Mapping[str, Any]]"
"""The arguments of a call."""

PLAN_ATTRIBUTE = "__holdfast_plan__"
"""Where a decorated function keeps its plan."""

_MOST_PARTS = 100
"""How many parts of an argument that is a list or a dict are looked at."""


def is_async(fn: Any) -> bool:
    """Whether calling `fn` gives a coroutine: functions, methods, partials of them, objects with an async `__call__`."""
    fn = _bare(fn)
    code = getattr(fn, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        # `inspect` gives the same result but is slower, and every `.call` comes here.
        return True
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004 - a callable object may have an async `__call__`


def is_generator(fn: Any) -> bool:
    """Whether a call of `fn` gives a generator, and does nothing until somebody reads it."""
    return inspect.isasyncgenfunction(_bare(fn)) or inspect.isgeneratorfunction(_bare(fn))


def reject_generator(fn: Any) -> None:
    """Raise `InvalidError` for a generator function.

    The body of a generator runs after the call has returned, so a decorator would see none of its failures. Use
    `.stream`.
    """
    if is_generator(fn):
        raise InvalidError.saying(
            f"recover of {name_of(fn)}", "a function; for a generator use recover(…).stream(fn)", "a generator function"
        )


def reads_in(fn: Any) -> Literal["task", "thread"] | None:
    """Return where the items of `fn` are read: those of an async generator in a task, of a generator in a thread.

    None if only a call shows it.
    """
    bare = _bare(fn)
    if inspect.isasyncgenfunction(bare) or is_async(bare):
        return "task"
    return "thread" if inspect.isgeneratorfunction(bare) else None


def name_of(fn: Any) -> str:
    """Return a name for `fn` that people recognise."""
    fn = _bare(fn)
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def _bare(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


# --- arguments that can be read only once ---


def has_one_shot(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument can be read only once, such as a generator: two calls at the same time would share its items."""
    return any(_is_one_shot(value) for value in _values(args, kwargs))


def used_up(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument can be read only once and a call has read it: another call with it would find it empty."""
    return any(_is_one_shot(value) and not _is_untouched(value) for value in _values(args, kwargs))


def _values(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[Any]:
    if args and _is_one_shot(args[0]) and _recovers_itself(type(args[0])):
        # The object of a decorated method is its first argument. The method uses it, but does not read it to its end.
        args = args[1:]
    for value in (*args, *kwargs.values()):
        yield value
        if isinstance(value, dict):
            yield from itertools.islice(value.values(), _MOST_PARTS)
        elif isinstance(value, (list, tuple)):
            yield from itertools.islice(value, _MOST_PARTS)


def _recovers_itself(kind: type) -> bool:
    """Whether a class has methods that `recover` decorated."""
    return any(hasattr(member, PLAN_ATTRIBUTE) for base in kind.__mro__[:-1] for member in vars(base).values())


def _is_one_shot(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, type):
        return False
    if isinstance(value, io.IOBase):
        return True
    if kind in (itertools.count, itertools.cycle, itertools.repeat):
        return False
    # Python's own iterators, and classes that derive from the abstract ones. Other objects with `__next__` may be handles that
    # can be used again, such as the cursor of a database.
    if kind.__module__ in {"builtins", "itertools"}:
        return hasattr(value, "__next__") or hasattr(value, "__anext__") or inspect.iscoroutine(value)
    return Iterator in kind.__mro__ or AsyncIterator in kind.__mro__


def _is_untouched(value: Any) -> bool:
    """Whether nothing has been read of a value that can be read only once. If that is not visible, it counts as read."""
    if inspect.isgenerator(value):
        return inspect.getgeneratorstate(value) == inspect.GEN_CREATED
    if inspect.iscoroutine(value):
        return inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    if isinstance(value, io.IOBase):
        try:
            # A file that is only written is no source of anything.
            return not value.readable() or (value.seekable() and value.tell() == 0)
        except (OSError, ValueError):
            return False
    return False
