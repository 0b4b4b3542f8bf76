"""The store the `audit` verbs read. It may be in use: reading waits for nobody and stops nobody."""

from __future__ import annotations

import asyncio
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.files import StoreWarning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.cli.exits import Exit
    from holdfast.stores.store import Store

__all__ = ["with_store"]


def with_store(url: str | None, verb: Callable[[Store], Awaitable[Exit]]) -> Exit:
    """Run a verb on the store of this address, or on the usual one; a store that is not there is not made."""
    path = _path_of(url)
    if not path.is_file():
        message = f"There is no store at {path}"
        raise HoldfastError(Fault.of("SESS_NOT_FOUND", message, context={"path": str(path)}))

    async def main() -> Exit:
        async with SqliteStore(path) as store:
            return await verb(store)

    with warnings.catch_warnings():
        # It is about writing.
        warnings.simplefilter("ignore", StoreWarning)
        return asyncio.run(main())


def _path_of(url: str | None) -> Path:
    if url is None:
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        # A relative folder is to be taken for none: the specification says so.
        folder = state if state.is_absolute() else Path.home() / ".local" / "state"
        return folder / "holdfast" / "holdfast.db"
    scheme, colon, rest = url.partition(":")
    if colon and scheme != "sqlite" and len(scheme) > 1:
        # Only the kind is told: the rest may hold a password.
        raise InvalidError.at("--store", "a path or sqlite:PATH", f"{scheme}:…")
    return Path(rest if scheme == "sqlite" and colon else url).expanduser()
