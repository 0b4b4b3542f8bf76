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
        # `inspect` would find the same in more time, and every `.call` comes here.
        return True
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004 - a callable object may have an async `__call__`


def reject_generator(fn: Any) -> None:
    """Raise `InvalidError` for a generator function.

    Its body runs after the call has returned, where a decorator sees none of its failures. It belongs into `.stream`.
    """
    if inspect.isasyncgenfunction(_bare(fn)) or inspect.isgeneratorfunction(_bare(fn)):
        raise InvalidError.saying(
            f"recover of {name_of(fn)}", "a function; for a generator use recover(…).stream(fn)", "a generator function"
        )


def name_of(fn: Any) -> str:
    """Return the name a person would know `fn` by."""
    fn = _bare(fn)
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def _bare(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn
