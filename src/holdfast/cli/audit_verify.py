"""`holdfast audit verify`: whether the trail is as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json, show_table
from holdfast.cli.stored import with_store
from holdfast.faults import InvalidError
from holdfast.stores.chain import session_chain
from holdfast.stores.verifying import Head, unaudited, verify_store

if TYPE_CHECKING:
    from holdfast.stores.store import Store
    from holdfast.stores.verifying import Verification

__all__ = ["audit_verify", "leave"]


class _Anchor(msgspec.Struct):
    heads: tuple[Head, ...]


def audit_verify(url: str | None, *, expect: str | None, anchor: str | None, as_json: bool) -> Exit:
    """Verify every chain; show each with what was found."""
    heads = _anchor_of(anchor)

    async def verify(store: Store) -> Exit:
        result = await verify_store(store, anchor=heads, expect=expect)
        without = await unaudited(store)
        if as_json:
            _show_json(result, without)
        else:
            _show_table(result, without)
        return leave(result)

    return with_store(url, verify)


def leave(result: Verification) -> Exit:
    """Say how it went, and return the exit code of that."""
    chains = len(result.heads)
    narrate(f"{result.records} sound records in {chains} chain{'' if chains == 1 else 's'}; digest {result.digest}")
    error = result.error
    if error is None:
        return Exit.OK
    fail(str(error), f"holdfast explain {error.fault.code}")
    return Exit(error.fault.entry.exit_code)


def _show_json(result: Verification, without: list[str]) -> None:
    facts = msgspec.to_builtins(result)
    show_json({"schema": "holdfast.audit.verify/1", "sound": result.sound, **facts, "unaudited": without})


def _show_table(result: Verification, without: list[str]) -> None:
    found = {broken.chain: f"breaks at record {broken.seq}: {broken.reason}" for broken in reversed(result.broken)}
    rows = [(head.chain, str(head.seq), head.hash, found.pop(head.chain, "sound")) for head in result.heads]
    rows += [(chain, "", "", reason) for chain, reason in found.items()]
    rows += [(session_chain(session), "0", "", "not audited") for session in without]
    show_table(("chain", "records", "hash", "found"), rows)


def _anchor_of(file: str | None) -> tuple[Head, ...]:
    if file is None:
        return ()
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=_Anchor).heads
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidError.at("--anchor", "what `holdfast audit verify --json` printed", str(error)) from error
