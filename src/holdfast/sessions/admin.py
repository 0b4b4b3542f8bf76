"""Administration of a session from outside of its program: show it, pause it after a crash, close it, resolve a step.

Invariant: a change takes the session's lease first. While a living process works in a session, nobody else changes it. To resolve a
step needs no lease: a process that waits for it may own the session.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.once.doubt import call_text
from holdfast.once.identity import key_of, suffix
from holdfast.once.records import EntryBody, StepEnded, StepEntry, StepStarted
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import machine
from holdfast.sessions.journal import VERSION, audit, entries_of, fresh_id, memory_of, read_snapshot
from holdfast.sessions.lease import is_gone, take
from holdfast.sessions.log import (
    RunParked,
    RunUnparked,
    SessionMemory,
    StateChanged,
    TurnEnded,
    TurnStarted,
    new_entry,
    read_entry,
)
from holdfast.sessions.manifest import Manifest, decode_manifest, encode_manifest, loses_with_epoch, set_back_since
from holdfast.sessions.questions.question import KINDS, Question, question_of
from holdfast.sessions.steps import Finding, already_resolved, anew, settlement
from holdfast.stores import (
    Checkpoint,
    Commit,
    Entry,
    NewCheckpoint,
    NewEntry,
    NewSession,
    SessionRecord,
    SessionState,
)
from holdfast.stores.errors import damaged, reserved
from holdfast.stores.records import CLOSED_WORK, FINAL, INTERNAL, WAKE, check_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import Lease, Store

__all__ = [
    "RENAMED",
    "Overview",
    "abandon_turn",
    "check_repeated",
    "close",
    "find",
    "fork_session",
    "in_use",
    "make_resumable",
    "overview",
    "rename",
    "resolve_step",
    "retry_turn",
    "unpark_runs",
]

RENAMED = "session_renamed"
"""The type of the log's entry that says a session's new title."""
_TAKE_S = 10.0
"""Seconds of the lease for a change. A change takes milliseconds, and the lease must end soon if this process dies."""
_LOOKED_AT = 1_000
"""How many ids are looked at for one that is nearly the given one."""
_SHOWN = 5
"""How many ids an error about an ambiguous prefix names."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a session that can be read without opening it."""

    record: SessionRecord
    manifest: Manifest | None
    """None if it cannot be read. `problem` then says why."""
    checkpoint: Checkpoint | None
    turn: int
    in_flight: bool
    steps: int
    """The steps outside of turns and of the turn in flight that are in the log."""
    unknown: tuple[str, ...]
    """The keys of steps that may have happened and are not repeated automatically."""
    questions: tuple[Question, ...]
    """The questions that wait for an answer."""
    messages: int
    parked: tuple[RunParked, ...] = ()
    """The runs that are parked, the one that goes on first in front."""
    in_use: bool
    """A living process owns the session."""
    problem: str = ""
    """Why the session cannot be resumed; empty if it can."""


async def find(store: Store, given: str) -> str:
    """Return the id of the one session whose id is `given`, or starts with it."""
    if not given:
        raise InvalidError.at("session", "an id or the beginning of one", given)
    try:
        return (await store.session(given)).id
    except HoldfastError as error:
        if error.fault.code != "SESS_NOT_FOUND":
            raise
        # Ids come in order, so the ids with this prefix come right after it.
        page = await store.sessions(after=given, limit=_SHOWN + 1)
        fitting = [record.id for record in page if record.id.startswith(given)]
        if not fitting:
            raise _not_found(given, [record.id for record in await store.sessions(limit=_LOOKED_AT)]) from None
    if len(fitting) > 1:
        more = ", …" if len(fitting) > _SHOWN else ""
        raise InvalidError.saying(
            "session", "the beginning of one id", f"the beginning of {', '.join(fitting[:_SHOWN])}{more}"
        )
    return fitting[0]


def in_use(record: SessionRecord, store: Store, runtime: Runtime | None = None) -> bool:
    """Whether a process owns a session now.

    The store knows whether its lease has ended, by the clock that decides about it. If it does not, the clock of `runtime` decides.
    """
    left = record.lease_left
    if left is None:
        left = record.lease_until - (runtime or default_runtime()).clock.wall()
    return record.owner is not None and left > 0 and not is_gone(record.owner, store)


async def overview(store: Store, session: str, runtime: Runtime | None = None) -> Overview:
    """Return the overview of a session. The clock of `runtime` decides whether its lease has ended."""
    record = await store.session(session)
    manifest, problem = _manifest(record)
    memory = await memory_of(store, session)
    if manifest is not None:
        problem = _problem(record, manifest, store, runtime)
    return Overview(
        record=record,
        manifest=manifest,
        checkpoint=await store.checkpoint(session),
        turn=memory.turn,
        in_flight=memory.in_flight,
        steps=len(memory.session_steps) + len(memory.steps),
        unknown=tuple(key_of(session, after) for after in memory.unknown()),
        questions=tuple(question_of(session, raised) for raised in memory.pending() if raised.kind in KINDS),
        messages=memory.message_count,
        parked=tuple(sorted(memory.parked.values(), key=lambda run: run.until)),
        in_use=in_use(record, store, runtime),
        problem=problem,
    )


async def make_resumable(store: Store, session: str, *, accept_set_back: bool = False) -> Overview:
    """Pause a session whose owner died; raise SESS_CLOSED or SESS_NOT_RESUMABLE if it cannot be resumed.

    accept_set_back: also if the store was set back since the session ran, so that steps which ran may run again.
    """
    if accept_set_back:
        await _accept_epoch(store, session)
    record = await store.session(session)
    if record.state is SessionState.ACTIVE:
        async with _owning(store, session) as lease:
            await _change(store, lease, SessionState.PAUSED, "crash")
        record = await store.session(session)
    manifest = decode_manifest(session, bytes(record.manifest))
    if record.state is not SessionState.CREATED:
        error = machine.not_resumable(session, record.state, resumable=manifest.resumable)
        if error is not None:
            raise error
    return await overview(store, session)


async def _accept_epoch(store: Store, session: str) -> None:
    """Note in a session's manifest that it is resumed in the store's present epoch."""
    manifest = decode_manifest(session, bytes((await store.session(session)).manifest))
    moved = set_back_since(manifest, store)
    if moved is None:
        return
    async with _owning(store, session) as lease:
        known = audit("Integrity", session, drift=[str(moved)], policy="accept", by="outside")
        accepted = msgspec.structs.replace(manifest, store_epoch=moved.now)
        written = Commit(session=session, fence=lease.fence, manifest=encode_manifest(accepted), audit=(known,))
        await store.commit(written)


async def close(store: Store, session: str, reason: str = "closed") -> None:
    """Close a session for good; a turn in flight is abandoned.

    Raise SESS_LEASE_LOST while a living process works in it.
    """
    if session in INTERNAL:
        raise reserved(session)
    record = await store.session(session)
    # Check the state before taking the lease: a closed session must raise SESS_CLOSED, not SESS_LEASE_LOST.
    machine.check(session, record.state, SessionState.CLOSED)
    async with _owning(store, session) as lease:
        memory = await memory_of(store, session)
        ended: tuple[EntryBody, ...] = ()
        if memory.in_flight:
            ended = (TurnEnded(turn=memory.turn, outcome="abandoned", reason=reason),)
        await _change(store, lease, SessionState.CLOSED, reason, ended)


async def rename(store: Store, session: str, title: str, *, by: str = "") -> None:
    """Give a session another title; its id stays. Whoever follows its log learns it.

        await rename(store, "release-42", "Release 42, second try", by="ann")

    Raises SESS_CLOSED for a closed session, and SESS_NOT_FOUND for an unknown one.
    """
    if session in INTERNAL:
        raise reserved(session)
    manifest = decode_manifest(session, bytes((await store.session(session)).manifest))
    if manifest.title == title:
        return
    body = msgspec.json.encode({"title": title, "by": by})
    # Without the lease: a title changes nothing for the process that works in the session.
    renamed = Commit(
        session=session,
        entries=(NewEntry(type=RENAMED, body=body, id=fresh_id()),),
        manifest=encode_manifest(msgspec.structs.replace(manifest, title=title)),
        audit=(audit("SessionLifecycle", session, title=title, by=by),),
    )
    await store.commit(renamed)


async def abandon_turn(store: Store, session: str, reason: str = "abandoned") -> int:
    """Give up the turn in flight, from outside of the program; return its number.

        await abandon_turn(store, "release-42")

    What it stored stays in the log, but is not used again: the next turn starts afresh, also with the same input. Raises
    `InvalidError` if no turn is in flight, and SESS_LEASE_LOST while a living process works in the session.
    """
    record = await store.session(session)
    if record.state in FINAL:
        machine.check(session, record.state, SessionState.PAUSED)
    async with _owning(store, session) as lease:
        memory = await memory_of(store, session)
        if not memory.in_flight:
            raise InvalidError.saying("session", "a session with a turn in flight", f"{session}, which has none")
        ended = TurnEnded(turn=memory.turn, outcome="abandoned", reason=reason)
        known = audit(
            "Turn", session, turn=memory.turn, event="ended", outcome="abandoned", reason=reason, by="outside"
        )
        entries = (new_entry(ended, fresh_id()),)
        await store.commit(Commit(session=session, fence=lease.fence, entries=entries, audit=(known,)))
    return memory.turn


async def retry_turn(store: Store, session: str) -> tuple[int, tuple[str, ...]]:
    """Let the turn in flight begin anew when its program runs; return its number and the keys of the steps that stay done.

        number, kept = await retry_turn(store, "release-42")

    Its steps run again, and its questions are asked again. Unsafe steps that happened, or may have, stay: they never happen twice.
    Raises `InvalidError` if no turn is in flight, and SESS_LEASE_LOST while a living process works in the session.
    """
    async with _owning(store, session) as lease:
        memory = await memory_of(store, session)
        if not memory.in_flight:
            raise InvalidError.saying("session", "a session with a turn in flight", f"{session}, which has none")
        forgotten, record = anew(memory, session, by="outside")
        entries = (new_entry(forgotten, fresh_id()),)
        await store.commit(Commit(session=session, fence=lease.fence, entries=entries, audit=(record,)))
    kept = [name for name in memory.steps if name not in forgotten.steps]
    return memory.turn, tuple(key_of(session, suffix(memory.turn, name)) for name in kept)


async def unpark_runs(
    store: Store, session: str, agent: str = "", *, by: str = "", runtime: Runtime | None = None
) -> tuple[RunParked, ...]:
    """Let runs go on now that wait for the end of a usage limit, or for their next attempt; return the runs that were parked.

        await unpark_runs(store, "release-42", "coder", by="ann")       # the limit was raised

    `agent` is the agent, or the key of other work; without it, all of the session's. Work that any process can run is due from now on. The next start of the program goes on. A process that waits in the session looks once a minute; if its
    own circuit of the provider is open for as long as the limit was, it parks again.
    Raises `InvalidError` if no such run is parked, and SESS_NOT_FOUND for an unknown session.
    """
    parked = (await memory_of(store, session)).parked
    lifted = tuple(run for run in parked.values() if agent in ("", run.agent))
    if not lifted:
        known = ", ".join(parked) or "none"
        raise InvalidError.saying(
            "agent", f"an agent or a run that is parked in session {session} ({known})", agent or "none"
        )
    now = (runtime or default_runtime()).clock.wall()
    left = [now if run in lifted else run.until for run in parked.values() if run not in lifted or run.program]
    manifest = decode_manifest(session, bytes((await store.session(session)).manifest))
    entries = tuple(new_entry(_lifted(run, now, by), fresh_id()) for run in lifted)
    records = tuple(
        audit("SessionLifecycle", session, agent=run.agent, parked_until=None, by=by, code=run.code) for run in lifted
    )
    # Without the lease: the process that waits in the session has it, and only reads that it may go on.
    manifest = msgspec.structs.replace(manifest, parked_until=min(left, default=None))
    await store.commit(Commit(session=session, entries=entries, audit=records, manifest=encode_manifest(manifest)))
    return lifted


def _lifted(run: RunParked, now: float, by: str) -> EntryBody:
    """Return the entry that lets a run go on. If any process can run it, it stays in the list and is due."""
    return msgspec.structs.replace(run, until=now) if run.program else RunUnparked(agent=run.agent, by=by)


async def fork_session(store: Store, session: str, new: str, *, at: int | None = None, turn: int | None = None) -> int:
    """Make a new session with the log of another up to an offset; return the offset of its last entry.

        await fork_session(store, "release-42", "release-42-again", at=17)

    Steps that are in the log up to `at`, or before `turn` began (by default all of it), are done in the new session too, and the others run. The original stays
    as it is, also if it is closed. The keys of steps that run in the new session are its own. The context is what it was at
    `at`; in a log of an older version, what it is at the last checkpoint.

    Raises `InvalidError` if the log does not reach back or forward to `at` or `turn`, SESS_ILLEGAL_TRANSITION if the new id is taken, and
    SESS_NOT_FOUND for an unknown session.
    """
    check_name("session", new)
    record = await store.session(session)
    if turn is not None:
        if at is not None:
            raise InvalidError.saying("fork", "either at or turn", "both")
        at = await _before_turn(store, record, turn)
    end = record.top if at is None else at
    checkpoint = await store.checkpoint(session)
    begun = checkpoint is not None and checkpoint.offset <= end
    if not (record.oldest == 1 or begun) or not 0 <= end <= record.top:
        first = 0 if record.oldest == 1 or checkpoint is None else checkpoint.offset
        raise InvalidError.at("fork.at", f"an offset of {session}, {first} to {record.top}", end)
    memory, entries = await _log_until(store, record, end, checkpoint if begun else None)
    manifest = decode_manifest(session, bytes(record.manifest))
    origin = audit("SessionLifecycle", new, state="paused", forked_from=session, at=end, epoch=record.epoch)
    kept = NewCheckpoint(
        message_count=memory.message_count,
        last_message_id=memory.last_message_id,
        snapshot=msgspec.json.encode(memory),
    )
    commit = Commit(
        session=new,
        create=NewSession(manifest=encode_manifest(msgspec.structs.replace(manifest, session_id=new))),
        state=SessionState.PAUSED,
        entries=tuple(NewEntry(type=entry.type, id=entry.id, body=bytes(entry.body)) for entry in entries),
        checkpoint=kept,
        audit=(origin,),
    )
    return (await store.commit(commit)).top


async def _before_turn(store: Store, record: SessionRecord, turn: int) -> int:
    """Return the offset of the last entry before a turn began."""
    async for entry in entries_of(store, record.id, record.oldest - 1):
        body = read_entry(record.id, entry)
        if isinstance(body, TurnStarted) and body.turn == turn:
            return entry.offset - 1
    raise InvalidError.at("fork.turn", f"a turn that the log of {record.id} still has", turn)


async def _log_until(
    store: Store, record: SessionRecord, end: int, checkpoint: Checkpoint | None
) -> tuple[SessionMemory, list[Entry]]:
    """Return the memory of a session at an offset, and the entries up to it that the log still has."""
    # Replay the whole log where there is one: a checkpoint may already hold the effect of the entries right after it.
    whole = record.oldest == 1
    memory = SessionMemory(version=VERSION)
    seen, entries = 0, list[Entry]()
    if checkpoint is not None:
        snapshot = read_snapshot(record.id, checkpoint)
        if whole:
            # The log has every save of the context, unless version 1 wrote it.
            memory.context = None if snapshot.saves else snapshot.context
        else:
            memory, seen = snapshot, checkpoint.offset
    after = record.oldest - 1
    while after < end:
        page = await store.read(record.id, after=after, limit=min(1_000, end - after))
        if not page:
            raise damaged(record.id, f"its log ends at entry {after}, and had {record.top}")
        for entry in page:
            if entry.offset > seen:
                memory.take(record.id, entry)
        entries += page
        after = page[-1].offset
    return memory, entries


async def resolve_step(
    store: Store,
    session: str,
    key: str,
    *,
    happened: bool,
    result: Any = None,
    by: str = "",
    runtime: Runtime | None = None,
) -> str:
    """Record whether a step of unknown outcome has happened, from any process; return the step's whole key.

        async with open_store() as store:
            await resolve_step(store, "release-42", "deploy", happened=True, result=7, by="ann")

    `key` is the step's key, or its beginning if that is clear, with or without the session's id. If the step happened, `result` is its
    result from now on; if not, the step runs again when the program calls it. A program that runs now learns it at its next call.
    `by` says who found it out, and the clock of `runtime` when. The first resolution counts. You may repeat it.

    Raises SESS_ALREADY_ANSWERED if the step was resolved otherwise before, with who did it and when. Raises `InvalidError` if no unknown
    step has this key, SESS_NOT_FOUND for an unknown session and SESS_CLOSED for a closed one.
    """
    finding = Finding.of(happened=happened, result=result, by=by, at=(runtime or default_runtime()).clock.wall())
    try:
        settled = settlement(await memory_of(store, session), session, key, finding)
        entries = tuple(new_entry(body, fresh_id()) for body in (settled.ended, *settled.answers))
        await store.commit(
            Commit(session=session, entries=entries, claim=settled.claim, audit=(settled.record,), work=WAKE)
        )
    except HoldfastError as error:
        return await check_repeated(store, session, key, finding, error)
    return settled.key


async def check_repeated(store: Store, session: str, key: str, finding: Finding, error: HoldfastError) -> str:
    """Return the key of a step that was resolved the same way before. Raise SESS_ALREADY_ANSWERED if it was resolved otherwise.

    `error` says why the finding could not be stored. It is raised if nobody has resolved the step.
    """
    if error.fault.code not in ("PROTO_DUPLICATE_ID", "CONFIG_OPTION_INVALID"):
        raise error
    wanted = key.removeprefix(f"{session}/")
    open_ = (await memory_of(store, session)).unknown()
    if error.fault.code == "CONFIG_OPTION_INVALID" and any(after.startswith(wanted) for after in open_):
        # The beginning of a key fits several doubts, or the result cannot be stored.
        raise error
    started: dict[str, StepEntry] = {}
    resolved: dict[str, StepEnded] = {}
    async for entry in entries_of(store, session, (await store.session(session)).oldest - 1):
        match body := read_entry(session, entry):
            case StepStarted():
                # It ran again: what was found out about the last run is over.
                started[suffix(body.turn, body.step)] = body
                resolved.pop(suffix(body.turn, body.step), None)
            case StepEnded() if body.resolution is not None:
                resolved.setdefault(suffix(body.turn, body.step), body)
            case _:
                pass
    found = [wanted] if wanted in resolved else [after for after in resolved if wanted and after.startswith(wanted)]
    if len(found) != 1:
        raise error
    first = resolved[found[0]]
    if not finding.is_same(first):
        raise already_resolved(session, first, call_text(started.get(found[0], first))) from error
    return key_of(session, found[0])


@asynccontextmanager
async def _owning(store: Store, session: str) -> AsyncIterator[Lease]:
    lease = await take(store, session, _TAKE_S)
    try:
        yield lease
    finally:
        await store.release(lease)


async def _change(
    store: Store, lease: Lease, to: SessionState, reason: str, before: tuple[EntryBody, ...] = ()
) -> None:
    # Read the state again under the lease, because the former owner may have changed it.
    was = (await store.session(lease.session)).state
    machine.check(lease.session, was, to)
    record = audit("SessionLifecycle", lease.session, state=to.value, reason=reason, was=was.value, by="outside")
    entries = [new_entry(body, fresh_id()) for body in before]
    entries.append(new_entry(StateChanged(state=to, reason=reason), fresh_id(), f"session_{to.value}"))
    commit = Commit(
        session=lease.session,
        fence=lease.fence,
        expect=(was,),
        state=to,
        entries=tuple(entries),
        audit=(record,),
        work=CLOSED_WORK if to in FINAL else None,
    )
    await store.commit(commit)


def _not_found(given: str, known: list[str]) -> HoldfastError:
    near = get_close_matches(given, known, 3)
    hint = f". Did you mean {' or '.join(near)}?" if near else ""
    message = f"Session '{given}' not found{hint}"
    return HoldfastError(Fault.of("SESS_NOT_FOUND", message, context={"session_id": given}))


def _manifest(record: SessionRecord) -> tuple[Manifest | None, str]:
    try:
        return decode_manifest(record.id, bytes(record.manifest)), ""
    except HoldfastError as error:
        return None, error.fault.message


def _problem(record: SessionRecord, manifest: Manifest, store: Store, runtime: Runtime | None) -> str:
    if manifest.store_id != store.id:
        return f"it was saved in store {manifest.store_id}, this is {store.id}"
    if in_use(record, store, runtime):
        return f"{record.owner} works in it"
    moved = set_back_since(manifest, store)
    if moved is not None and loses_with_epoch(store):
        return str(moved)
    # An active session without a living owner has crashed. It can be resumed by opening it.
    if record.state in (SessionState.CREATED, SessionState.ACTIVE):
        return ""
    error = machine.not_resumable(record.id, record.state, resumable=manifest.resumable)
    return "" if error is None else error.fault.message
