"""Writing to the store as a session does, and keeping in step with what is in its log.

Invariant: what is remembered is exactly what the log says up to `seen`, whoever wrote it. A write that was not acknowledged did not
happen for the session either. After three writes that failed the session is in error (S2-17).
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies import Policy
from holdfast.policies.target import Target
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.recover import recover
from holdfast.sessions import codec
from holdfast.sessions.log import Remembered, Said, new_entry
from holdfast.stores import Commit, NewAudit, NewCheckpoint, Receipt
from holdfast.stores.errors import damaged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import Checkpoint, Entry, Store

__all__ = ["Journal", "audit", "fresh_id", "read_snapshot", "recalled"]

_POLICY = Policy(circuit=None, timeout=None, deadline=None)
"""The tries of a store's failure are the schedule's own: three, 2 and 4 s apart."""


def fresh_id() -> str:
    """Return an id no other entry has."""
    return secrets.token_urlsafe(12)


def audit(kind: str, correlation: str, /, **payload: Any) -> NewAudit:
    return NewAudit(kind=kind, correlation=correlation, payload=msgspec.json.encode(payload))


async def recalled(store: Store, session: str) -> tuple[Remembered, int]:
    """Return what follows from a session's log, and up to which offset: from its checkpoint, and the log after it."""
    top = (await store.session(session)).top
    checkpoint = await store.checkpoint(session)
    memory, seen = Remembered(), 0
    if checkpoint is not None:
        memory, seen = read_snapshot(session, checkpoint), checkpoint.offset
    while entries := await store.read(session, after=seen):
        for entry in entries:
            _take(session, memory, entry, seen + 1)
            seen = entry.offset
    if seen < top:
        raise damaged(session, f"its log ends at entry {seen}, and had {top}")
    return memory, seen


def read_snapshot(session: str, checkpoint: Checkpoint) -> Remembered:
    """Return what a checkpoint holds."""
    try:
        return msgspec.json.decode(checkpoint.snapshot, type=Remembered)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(session, f"its checkpoint cannot be read: {error}") from error


def _take(session: str, memory: Remembered, entry: Entry, expected: int) -> None:
    if entry.offset != expected:
        raise damaged(session, f"its entry {expected} is missing")
    memory.take(session, entry)


def _recovered(store: Store, runtime: Runtime | None) -> Callable[[Commit], Awaitable[Receipt]]:
    """Return the store's commit with its tries, one for all sessions on it."""
    known = _COMMITS.setdefault(store, {})
    name = 0 if runtime is None else id(runtime)
    if name not in known:
        recovery = recover(Target(tool="session-store"), _POLICY, effect="idempotent", runtime=runtime)
        # The store is held weakly: the function lives as long as it does, and must not keep it alive.
        weakly = weakref.ref(store)

        async def commit(what: Commit) -> Receipt:
            kept = weakly()
            assert kept is not None
            return await kept.commit(what)

        known[name] = (runtime, recovery(commit))
    return known[name][1]


_COMMITS: weakref.WeakKeyDictionary[Store, dict[int, tuple[Runtime | None, Callable[[Commit], Awaitable[Receipt]]]]] = (
    weakref.WeakKeyDictionary()
)


class Journal:
    """A session's log: what is written to it, and what is remembered of it."""

    __slots__ = ("_commit", "_early", "failed", "fence", "memory", "seen", "session", "store")

    def __init__(self, store: Store, session: str, runtime: Runtime | None) -> None:
        self.store = store
        self.session = session
        self.fence: int | None = None
        self.failed: Fault | None = None
        """Why nothing more is written."""
        self.memory = Remembered()
        self.seen = 0
        """The log up to here is remembered."""
        self._early: dict[int, tuple[tuple[Said, str], ...]] = {}
        """What was written beyond `seen`, by offset: something before it is not known yet."""
        self._commit = _recovered(store, runtime)

    async def load(self) -> None:
        """Remember the session from its checkpoint and the log after it."""
        self.memory, self.seen = await recalled(self.store, self.session)

    async def catch_up(self) -> None:
        """Take in what others wrote."""
        while entries := await self.store.read(self.session, after=self.seen):
            for entry in entries:
                # What we wrote ourselves meanwhile is known.
                if entry.offset > self.seen:
                    _take(self.session, self.memory, entry, self.seen + 1)
                    self.seen = entry.offset
        self._early = {first: said for first, said in self._early.items() if first > self.seen}

    async def write(self, *said: Said, type_: str | None = None, **parts: Any) -> Receipt:
        """Write, or raise: SESS_STORE_UNAVAILABLE after the last try, SESS_LEASE_LOST once another owns the session.

        Once begun, a write is seen through, whatever becomes of the caller: its outcome decides what may be done next.
        """
        if self.failed is not None:
            raise HoldfastError(self.failed)
        # Entering a session sets the fence; only the write that creates the session comes before that.
        if self.fence is None and "create" not in parts:
            expected = f"`async with Session.open({self.session!r}, …) as session`"
            raise InvalidError.saying("session", expected, "a session that was not entered")
        # No deadline or budget of the work may keep the work from being saved.
        context = contextvars.copy_context()
        context.run(AMBIENT.set, None)
        task = asyncio.get_running_loop().create_task(self._write(said, type_, parts), context=context)
        return await asyncio.shield(task)

    async def _write(self, said: tuple[Said, ...], type_: str | None, parts: dict[str, Any]) -> Receipt:
        named = tuple((one, fresh_id()) for one in said)
        entries = tuple(new_entry(one, id_, type_) for one, id_ in named)
        commit = Commit(session=self.session, fence=self.fence, entries=entries, **parts)
        try:
            receipt = await self._commit(commit)
        except HoldfastError as error:
            if error.fault.code in ("SESS_STORE_UNAVAILABLE", "SESS_LEASE_LOST"):
                self.failed = error.fault
            raise
        if not receipt.duplicate:
            self._take(receipt, named)
        return receipt

    def _take(self, receipt: Receipt, named: tuple[tuple[Said, str], ...]) -> None:
        if named:
            self._early[receipt.first] = named
        while (said := self._early.pop(self.seen + 1, None)) is not None:
            for one, id_ in said:
                self.memory.apply(one, id_)
            self.seen += len(said)

    async def snapshot(self, context: Any, *said: Said, **parts: Any) -> Receipt:
        """Write a checkpoint of what is remembered, and `said` with it: both are stored, or neither.

        The checkpoint holds what follows from `said`, and stands before it in the log: read again, it changes nothing more.
        """
        await self.catch_up()
        self.memory.context = msgspec.Raw(codec.encode_finite(context, "session.context"))
        after = msgspec.structs.replace(self.memory)
        for one in said:
            after.apply(one, "")
        checkpoint = NewCheckpoint(
            offset=self.seen,
            message_count=after.message_count,
            last_message_id=after.last_message_id,
            snapshot=msgspec.json.encode(after),
        )
        return await self.write(*said, checkpoint=checkpoint, **parts)
