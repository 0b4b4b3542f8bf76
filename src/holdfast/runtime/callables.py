"""Kinds of callables. Every callable that returns a coroutine counts as async (R23)."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from holdfast.faults import InvalidError

__all__ = ["is_async", "name_of", "reject_generator"]


def is_async(fn: Any) -> bool:
    """Whether calling `fn` gives a coroutine: functions, methods, partials of them, objects with an async `__call__`."""
    fn = _bare(fn)
    code = getattr(fn, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        # `inspect` gives the same result but is slower, and every `.call` comes here.
        return True
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004 - a callable object may have an async `__call__`


def reject_generator(fn: Any) -> None:
    """Raise `InvalidError` for a generator function.

    The body of a generator runs after the call has returned, so a decorator would see none of its failures. Use
    `.stream`.
    """
    if inspect.isasyncgenfunction(_bare(fn)) or inspect.isgeneratorfunction(_bare(fn)):
        raise InvalidError.saying(
            f"recover of {name_of(fn)}", "a function; for a generator use recover(…).stream(fn)", "a generator function"
        )


def name_of(fn: Any) -> str:
    """Return a name for `fn` that people recognise."""
    fn = _bare(fn)
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def _bare(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn
