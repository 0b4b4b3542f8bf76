"""Stores that are opened by address and shared: one per address and event loop, closed with its last user.

A store has threads and connections. Hundreds of sessions that each open their own would wait for each other at the same file or
server.

Invariant: a store is open while it has a user. Another event loop, thread or process has a store of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.faults import HoldfastError
from holdfast.runtime.shield import run_to_end
from holdfast.stores.address import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable

    from holdfast.stores.store import Store


class _Shared:
    """A store that is open, or is being opened, and how many use it."""

    __slots__ = ("opening", "store", "users")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.users = 0
        self.opening: asyncio.Task[Any] = asyncio.get_running_loop().create_task(_entered(store))


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Shared]] = WeakKeyDictionary()
_CHANGING = threading.Lock()
"""Held while the table changes, because event loops of several threads use it."""


async def join(store: Store) -> Store:
    """Return an open store at the place of `store`: one that is open here already, or else `store` itself.

    `leave` must follow. Raises what opening the store raises. A store without a `place`, such as one in memory, is not shared.
    """
    place = _place(store)
    if place is None:
        return await store.__aenter__()
    here = _here()
    shared = here.get(place)
    if shared is None:
        shared = here[place] = _Shared(store)
    shared.users += 1
    try:
        await asyncio.shield(shared.opening)
    except HoldfastError as error:
        await _end_use(here, place, shared)
        # Several callers may wait for the same opening, and each needs an error of its own.
        raise type(error)(error.fault) from error.__cause__
    except BaseException:
        # If the caller was cancelled, the opening goes on. The store is closed when it has no user.
        await run_to_end(_end_use(here, place, shared))
        raise
    return shared.store


@asynccontextmanager
async def opened(store: Store | str | Path | None) -> AsyncIterator[Store]:
    """An open store as it is; one that is given by its address (None: the default one) is opened, and shared with the sessions here."""
    if store is not None and not isinstance(store, (str, Path)):
        yield store
        return
    joined = await join(open_store(store))
    try:
        yield joined
    finally:
        await leave(joined)


async def leave(store: Store) -> None:
    """End the use of a store that `join` returned. The last user closes it."""
    place = _place(store)
    shared = None if place is None else _here().get(place)
    if shared is None or shared.store is not store:
        await store.__aexit__(None, None, None)
    else:
        await _end_use(_here(), place, shared)


async def _end_use(here: dict[Hashable, _Shared], place: Hashable, shared: _Shared) -> None:
    shared.users -= 1
    if shared.users:
        return
    # Remove it first: who comes while it is being closed opens another.
    if here.get(place) is shared:
        del here[place]
    await asyncio.wait((shared.opening,))
    if not shared.opening.cancelled() and shared.opening.exception() is None:
        await shared.store.__aexit__(None, None, None)


async def _entered(store: Store) -> None:
    await store.__aenter__()


def _place(store: Store) -> Hashable | None:
    place: Hashable | None = getattr(store, "place", None)
    # A forked child must not use the connections of its parent.
    return None if place is None else (os.getpid(), place)


def _here() -> dict[Hashable, _Shared]:
    loop = asyncio.get_running_loop()
    with _CHANGING:
        # A loop that was closed has left its stores open. Nobody can use them any more.
        for closed in [other for other in _SHARED if other.is_closed()]:
            del _SHARED[closed]
        return _SHARED.setdefault(loop, {})
