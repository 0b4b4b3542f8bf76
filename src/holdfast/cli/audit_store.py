"""The store a verb works on. It may be in use: reading waits for nobody and stops nobody."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING

from holdfast.faults import Fault, HoldfastError
from holdfast.stores import SqliteStore, default_url, open_store
from holdfast.stores.sqlite.files import StoreWarning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.cli.exits import Exit
    from holdfast.stores.store import Store

__all__ = ["with_store"]


def with_store(url: str | None, verb: Callable[[Store], Awaitable[Exit]], *, make: bool = False) -> Exit:
    """Run a verb on the store of this address, or on the usual one; a file that is not there is only made with `make`."""
    store = open_store(url or default_url())
    if isinstance(store, SqliteStore) and not make and not store.path.is_file():
        message = f"There is no store at {store.path}"
        raise HoldfastError(Fault.of("SESS_NOT_FOUND", message, context={"path": str(store.path)}))

    async def main() -> Exit:
        async with store:
            return await verb(store)

    with warnings.catch_warnings():
        # It is about writing.
        warnings.simplefilter("ignore", StoreWarning)
        return asyncio.run(main())
