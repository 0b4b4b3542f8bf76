"""Helpers for the verbs on a store: open the store, choose the output form, write times as text."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.secrets import process_redactor
from holdfast.stores import EncryptedStore, MemoryStore, SqliteStore, default_url, open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.cli.exits import Exit
    from holdfast.stores.store import Store

Form: TypeAlias = Literal["table", "json", "jsonl"]


def with_store(url: str | None, verb: Callable[[Store], Awaitable[Exit]], *, create: bool = False) -> Exit:
    """Run a verb on the store at `url`, or on the default store. Programs may use the store at the same time.

    A missing default store counts as empty: nothing was saved yet (C25). A missing store that the user named is an error.
    Only `create` makes a new file.
    """
    store = open_store(url or default_url()) if create else existing_store(url)

    async def main() -> Exit:
        async with store:
            return await verb(store)

    try:
        return asyncio.run(main())
    except HoldfastError as error:
        if url is None and error.fault.code == "SESS_NOT_FOUND":
            raise _looked_in_default(error.fault) from None
        raise


def _looked_in_default(fault: Fault) -> HoldfastError:
    """Return the error with the store that was looked in: people often keep their sessions in another one."""
    where = process_redactor().text(default_url())
    message = f"{fault.message.rstrip('.')} in the default store, {where}. Name another one with --store ADDRESS"
    return HoldfastError(msgspec.structs.replace(fault, message=message))


def existing_store(url: str | None) -> Store:
    """Return the store at `url`, or the default store, without making it. A missing default store counts as empty."""
    # The store is not opened yet, because opening a SQLite store would create its file.
    store = open_store(url or default_url())
    kept = store.inner if isinstance(store, EncryptedStore) else store
    if not isinstance(kept, SqliteStore) or kept.path.is_file():
        return store
    if url is not None or os.environ.get("HOLDFAST_STORE"):
        message = f"There is no store at {kept.path}"
        raise HoldfastError(Fault.of("SESS_NOT_FOUND", message, context={"path": str(kept.path)}))
    return MemoryStore()


def form_of(as_json: bool, as_jsonl: bool, *, follow: bool = False) -> Form:
    """Return the output form that the flags choose. A JSON document must end, so --json excludes --follow."""
    if as_json and (as_jsonl or follow):
        raise InvalidError.saying("--json", f"--jsonl with {'--follow' if follow else 'nothing beside it'}", "--json")
    return "json" if as_json else "jsonl" if as_jsonl else "table"


def time_of(at: Any) -> str:
    """Return a time as RFC 3339. A value that is not a time is returned as text."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (TypeError, ValueError, OverflowError, OSError):  # a damaged record may hold anything here
        return str(at)
