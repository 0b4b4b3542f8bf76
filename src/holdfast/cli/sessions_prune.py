"""`holdfast sessions prune`: what need not be kept, told, and with --yes dropped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from holdfast.classify.durations import parse_duration
from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_json, show_table
from holdfast.cli.stored import with_store
from holdfast.faults import InvalidError
from holdfast.sessions.retention import Retention, plan, prune

if TYPE_CHECKING:
    from holdfast.stores import Store

__all__ = ["rules_of", "sessions_prune"]


def rules_of(*, closed: str, failed: str, idle: str, entries: int, claims: str) -> Retention:
    """Return the rules that flags name."""
    kept_claims = _seconds("--claims", claims)
    if kept_claims is None:
        raise InvalidError.at("--claims", "a time such as 1d", claims)
    return Retention(
        closed=_seconds("--closed", closed),
        failed=_seconds("--failed", failed),
        idle=_seconds("--idle", idle),
        entries=entries,
        claims=kept_claims,
    )


def sessions_prune(url: str | None, rules: Retention, *, yes: bool, as_json: bool) -> Exit:
    """Drop what the rules do not keep, or say what that would be; then exit 7 where there is something."""

    async def drop(store: Store) -> Exit:
        now = time.time()
        actions = await prune(store, rules, now) if yes else [action async for action in plan(store, rules, now)]
        if as_json:
            told = [msgspec.to_builtins(action) for action in actions]
            show_json({"schema": "holdfast.sessions.prune/1", "done": yes, "actions": told})
        elif actions:
            rows = [(one.session, one.what, str(one.before), str(one.entries), one.reason) for one in actions]
            show_table(("session", "what", "before", "entries", "reason"), rows)
        if not actions:
            narrate("nothing to drop")
        elif not yes:
            narrate(f"{len(actions)} sessions would lose this for good: say --yes to drop it")
            return Exit.REFUSED
        return Exit.OK

    return with_store(url, drop)


def _seconds(flag: str, text: str) -> float | None:
    if text == "never":
        return None
    if (seconds := parse_duration(text)) is None:
        raise InvalidError.at(flag, "a time such as 30d or 12h, or never", text)
    return seconds
