"""What kind of callable a function is. Everything that ends up awaiting counts as async (R23)."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from holdfast.faults import InvalidError

__all__ = ["is_async", "name_of", "refuse_generator"]


def is_async(fn: Any) -> bool:
    """Whether calling `fn` gives a coroutine: functions, methods, partials of them, objects with an async `__call__`."""
    fn = _bare(fn)
    code = getattr(fn, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        # What `inspect` would find as well, after a longer look; every `.call` asks.
        return True
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


def refuse_generator(fn: Any) -> None:
    """A generator is a stream: its body runs after the call returned, where a decorator sees none of its failures."""
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
