"""Retention: drops closed sessions, log entries that a checkpoint covers, and message ids that no client sends again.

Invariant: `decide` is pure. A session keeps everything that resuming it requires. Each removal is written to the audit trail before
it happens. The caller passes `now`, from the clock of its runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import HoldfastError
from holdfast.once.records import StepStarted
from holdfast.sessions.journal import audit, entries_of
from holdfast.sessions.log import TurnEnded, TurnStarted, read_entry
from holdfast.stores import Commit, SessionState
from holdfast.stores.records import INTERNAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from holdfast.stores import SessionRecord, Store

__all__ = ["ACTORS", "CHAIN", "Action", "Retention", "decide", "plan", "prune"]

CHAIN = "retention"
"""The audit chain that records removals."""
ACTORS = "actor:"
"""Begins the ids of the sessions of virtual actors. Their claims are the results of messages, which are never forgotten."""
_DAY = 86_400.0


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long a store keeps data, in seconds: `Retention(closed=7 * 86_400)`. None keeps it for ever."""

    closed: float | None = 30 * _DAY
    """Closed sessions, after their last entry."""
    failed: float | None = None
    """Sessions in error, after their last entry. Kept by default: somebody may want to know why they failed."""
    idle: float | None = 7 * _DAY
    """After this time without an entry, a session's log up to its checkpoint is dropped."""
    entries: int | None = 10_000
    """The most log entries before the checkpoint that are kept, for clients that replay the log."""
    claims: float = _DAY
    """Message ids. Keep them as long as a client may send a message again. The last thousand are always kept."""

    def __post_init__(self) -> None:
        for name in ("closed", "failed", "idle"):
            options.seconds(f"retention.{name}", getattr(self, name), zero=True, optional=True)
        options.seconds("retention.claims", self.claims, zero=True)
        options.count("retention.entries", self.entries, least=0, optional=True)


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to drop."""

    session: str
    what: Literal["remove", "compact"]
    before: int = 0
    """With `compact`: the entries before this offset are dropped."""
    entries: int
    """How many entries are dropped."""
    reason: str


_Why: TypeAlias = tuple[int, str]


def decide(record: SessionRecord, rules: Retention, now: float) -> Action | None:
    """Return what to drop of a session, or None."""
    if record.id in INTERNAL:
        return None
    held = record.top - record.oldest + 1
    quiet = now - record.last_at
    limit = {SessionState.CLOSED: rules.closed, SessionState.ERROR: rules.failed}.get(record.state)
    if limit is not None and quiet > limit:
        reason = f"{record.state.value} for more than {limit:g} s"
        return Action(session=record.id, what="remove", entries=held, reason=reason)
    kept = _kept(rules, quiet)
    if record.checkpoint is None or kept is None:
        return None
    number, reason = kept
    before = record.checkpoint + 1 - number
    if before <= record.oldest:
        return None
    gone = before - record.oldest
    return Action(session=record.id, what="compact", before=before, entries=gone, reason=reason)


def _kept(rules: Retention, quiet: float) -> _Why | None:
    """Return how many entries before the checkpoint are kept, and the reason."""
    if rules.idle is not None and quiet > rules.idle:
        return 0, f"quiet for more than {rules.idle:g} s"
    return (
        None if rules.entries is None else (rules.entries, f"more than {rules.entries} entries behind the checkpoint")
    )


async def plan(store: Store, rules: Retention, now: float) -> AsyncIterator[Action]:
    """Yield what `prune` would drop, session by session."""
    after = ""
    while page := await store.sessions(after=after):
        for record in page:
            action = decide(record, rules, now)
            if action is not None and action.what == "compact":
                action = await _without_needed(store, record, action)
            if action is not None:
                yield action
        after = page[-1].id


async def _without_needed(store: Store, record: SessionRecord, action: Action) -> Action | None:
    """Return the action without the entries that keep an unsafe step from happening again, or None if nothing is left of it.

    The checkpoint has the steps outside of turns. Of a turn without a key only the log tells a program that repeats it what it has done.
    """
    try:
        before = await _first_needed(store, record, action.before)
    except HoldfastError:
        # A damaged log is kept as it is: somebody has to look at it.
        return None
    if before <= record.oldest:
        return None
    return msgspec.structs.replace(action, before=before, entries=before - record.oldest)


async def _first_needed(store: Store, record: SessionRecord, before: int) -> int:
    """Return where the first turn begins that a program may repeat, if that is before this offset; else the offset.

    That is a turn without a key that did something unsafe, and the first turn of a run that was cut.
    """
    begun: dict[int, int] = {}
    in_flight: TurnStarted | None = None
    async for entry in entries_of(store, record.id, record.oldest - 1):
        match body := read_entry(record.id, entry):
            case TurnStarted(turn=turn, key=key):
                in_flight = body
                if not key:
                    begun[turn] = entry.offset
            case TurnEnded():
                in_flight = None
            case StepStarted(turn=turn, effect="unsafe") if turn in begun:
                return min(before, begun[turn])
            case _:
                pass
    return before if in_flight is None else min(before, begun.get(in_flight.run, before))


async def prune(store: Store, rules: Retention, now: float) -> list[Action]:
    """Drop what need not be kept; return what was dropped. Skip sessions that somebody else removed meanwhile."""
    # Make the whole plan first: removing sessions while paging through them would skip some sessions.
    planned = [action async for action in plan(store, rules, now)]
    done = [action for action in planned if await _there(_drop(store, action))]
    after = ""
    while page := await store.sessions(after=after):
        for record in page:
            if not record.id.startswith(ACTORS):
                await _there(store.forget_claims(record.id, now - rules.claims))
        after = page[-1].id
    return done


async def _drop(store: Store, action: Action) -> None:
    facts = {"what": action.what, "entries": action.entries, "before": action.before, "reason": action.reason}
    # Record the removal before doing it: after a crash a record may be superfluous, but never missing.
    await store.commit(Commit(chain=CHAIN, audit=(audit("Compaction", action.session, **facts),)))
    if action.what == "remove":
        await store.remove(action.session)
    else:
        await store.compact(action.session, action.before)


async def _there(dropping: Awaitable[object]) -> bool:
    """Await the removal; return whether the session still existed."""
    try:
        await dropping
    except HoldfastError as error:
        if error.fault.code != "SESS_NOT_FOUND":
            raise
        return False
    return True
