"""The event loop that waits and time limits need: asyncio's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_module
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = ["running_loop"]


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises `InvalidError` where another library, such as Trio, runs the coroutine."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise InvalidError.saying(
            "recover",
            "an asyncio event loop (`asyncio.run`, uvloop, or AnyIO with its asyncio backend); a sync function works under Trio too, "
            "in `trio.to_thread.run_sync`",
            "a coroutine outside of asyncio, such as one that Trio runs",
        ) from error
