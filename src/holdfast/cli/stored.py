"""The store a verb works on. It may be in use: reading waits for nobody and stops nobody."""

from __future__ import annotations

import asyncio
import os
import warnings
from typing import TYPE_CHECKING

from holdfast.faults import Fault, HoldfastError
from holdfast.stores import MemoryStore, SqliteStore, default_url, open_store
from holdfast.stores.sqlite.files import StoreWarning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.cli.exits import Exit
    from holdfast.stores.store import Store

__all__ = ["with_store"]


def with_store(url: str | None, verb: Callable[[Store], Awaitable[Exit]], *, make: bool = False) -> Exit:
    """Run a verb on the store of this address, or on the usual one; a file that is not there is only made with `make`.

    Before anything was ever saved the usual one is empty (C25); an address that leads nowhere is somebody's mistake.
    """
    store = open_store(url or default_url())
    if isinstance(store, SqliteStore) and not make and not store.path.is_file():
        if url is not None or os.environ.get("HOLDFAST_STORE"):
            message = f"There is no store at {store.path}"
            raise HoldfastError(Fault.of("SESS_NOT_FOUND", message, context={"path": str(store.path)}))
        store = MemoryStore()

    async def main() -> Exit:
        async with store:
            return await verb(store)

    with warnings.catch_warnings():
        # It is about writing.
        warnings.simplefilter("ignore", StoreWarning)
        return asyncio.run(main())
