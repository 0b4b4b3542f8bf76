"""`holdfast sessions close`: sessions ended for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json
from holdfast.cli.stored import with_store
from holdfast.sessions.outside import close, find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores import Store

__all__ = ["sessions_close"]


def sessions_close(url: str | None, given: Sequence[str], *, reason: str, yes: bool, as_json: bool) -> Exit:
    """Close each; stop at the first that cannot be closed."""

    async def close_them(store: Store) -> Exit:
        found = list(dict.fromkeys([await find(store, one) for one in given]))
        if len(found) > 1 and not yes:
            fail(f"{len(found)} sessions would be closed for good: {', '.join(found)}", "say --yes to close them")
            return Exit.REFUSED
        for session in found:
            await close(store, session, reason)
            narrate(f"closed {session}")
        if as_json:
            show_json({"schema": "holdfast.sessions.close/1", "closed": found})
        return Exit.OK

    return with_store(url, close_them)
