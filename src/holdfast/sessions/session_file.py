"""A file of sessions: `PersistedSession` records as one JSON list, written and read safely.

Invariant: a file that does not exist holds no sessions. A file that cannot be read raises an error that names the place, and is
never overwritten.
"""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions.journal import audit, fresh_id, memory_of
from holdfast.sessions.log import SessionMemory, StateChanged, new_entry
from holdfast.sessions.manifest import Manifest, decode_manifest, encode_manifest
from holdfast.sessions.transfer import check_plain
from holdfast.stores import Commit, NewCheckpoint, NewSession, SessionState
from holdfast.stores.records import MAX_OFFSET, check_name
from holdfast.stores.redaction import Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores import Store

__all__ = ["Loaded", "PersistedCheckpoint", "PersistedSession", "dump", "load", "persisted", "put", "save"]


_ANYTHING = "contextSnapshot"
"""Our context is a table. If document 000's context is another value, it is kept in our table under this name."""
_Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class PersistedCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A checkpoint as a file of sessions holds it."""

    message_count: Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
    last_message_id: str | None = None
    context_snapshot: Any = None


class PersistedSession(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session as a file of sessions holds it."""

    id: str
    agent_type: str
    working_directory: str
    created_at: _Instant
    last_activity_at: _Instant
    checkpoint: PersistedCheckpoint | None = None


class Loaded(NamedTuple):
    """The sessions of a file, and the errors of sessions that cannot be read."""

    sessions: list[PersistedSession]
    problems: list[HoldfastError]
    """SESS_MANIFEST_DRIFT for each session that cannot be read, with its place in the file."""


def dump(sessions: Sequence[PersistedSession]) -> bytes:
    """Return the file's content, indented by two spaces."""
    return msgspec.json.format(msgspec.json.encode(list(sessions)), indent=2) + b"\n"


def save(path: str | Path, sessions: Sequence[PersistedSession]) -> None:
    """Write all sessions to a file. After a crash the file holds the whole old content or the whole new content.

    If the existing file cannot be read, raise and leave it as it is.
    """
    path = Path(path)
    loaded = load(path)
    if loaded.problems:
        raise loaded.problems[0]
    # Use the same folder, because a rename is atomic only within one file system.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(dump(sessions))
            file.flush()
            # Sync before the rename. Otherwise a power cut could leave the new name without content.
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    # Without this a power cut could undo the rename.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: str | Path) -> Loaded:
    """Read a file of sessions. A bad session becomes a problem and does not hide the good sessions. The file may be missing."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return Loaded([], [])
    return parse(content, str(path))


def parse(content: bytes, place: str) -> Loaded:
    """Read a file's content; raise SESS_MANIFEST_INVALID if it is not a list at all."""
    try:
        items = msgspec.json.decode(content, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"{place} cannot be read as a list of sessions: {error}"
        context = {"path": place, "reason": str(error)}
        raise HoldfastError(Fault.of("SESS_MANIFEST_INVALID", message, context=context)) from error
    loaded = Loaded([], [])
    for number, item in enumerate(items):
        try:
            loaded.sessions.append(msgspec.json.decode(item, type=PersistedSession))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"Session {number} in {place} cannot be read: {error}"
            facts = {"path": place, "index": number, "fields": str(error)}
            loaded.problems.append(HoldfastError(Fault.of("SESS_MANIFEST_DRIFT", message, context=facts)))
    return loaded


async def persisted(store: Store, session: str, *, exact: bool = False, plain: bool = False) -> PersistedSession:
    """Return a session of a store in the form of the file. What looks like a secret is masked, unless `exact`.

    Raise `InvalidError` for an encrypted store, unless `plain`: the file is not encrypted.
    """
    check_plain(store, plain=plain)
    record = await store.session(session)
    manifest = decode_manifest(session, bytes(record.manifest))
    checkpoint = await store.checkpoint(session)
    kept = None
    if checkpoint is not None:
        # The checkpoint may be older than the last turn: the log after it has the rest.
        memory = await memory_of(store, session)
        kept = PersistedCheckpoint(
            message_count=memory.message_count,
            last_message_id=memory.last_message_id,
            context_snapshot=_shown(_unwrapped(memory.context), exact=exact),
        )
    return PersistedSession(
        id=session,
        agent_type=manifest.agent_type,
        working_directory=manifest.project_root or "",
        created_at=datetime.fromtimestamp(manifest.created_at or record.created_at, UTC),
        last_activity_at=datetime.fromtimestamp(record.last_at, UTC),
        checkpoint=kept,
    )


async def put(store: Store, session: PersistedSession) -> None:
    """Import a session of a file into a store, paused at its checkpoint.

    Raise SESS_ILLEGAL_TRANSITION if the session exists already.
    """
    # Document 000 allows any text as an id. Our ids appear in SQL, paths and logs, so they are restricted.
    check_name("session", session.id)
    manifest = Manifest(
        session_id=session.id,
        store_id=store.id,
        created_at=session.created_at.timestamp(),
        project_root=session.working_directory or None,
        agent_type=session.agent_type,
    )
    paused = new_entry(StateChanged(state=SessionState.PAUSED, reason="imported"), fresh_id(), "session_paused")
    commit = Commit(
        session=session.id,
        create=NewSession(manifest=encode_manifest(manifest)),
        state=SessionState.PAUSED,
        entries=(paused,),
        checkpoint=None if session.checkpoint is None else _new_checkpoint(session.checkpoint),
        audit=(audit("SessionLifecycle", session.id, state="paused", imported=True),),
    )
    await store.commit(commit)


def _new_checkpoint(kept: PersistedCheckpoint) -> NewCheckpoint:
    context = kept.context_snapshot
    if context is not None and not isinstance(context, dict):
        # Our context is a table; the format allows any value.
        context = {_ANYTHING: context}
    memory = SessionMemory(message_count=kept.message_count, last_message_id=kept.last_message_id, context=context)
    return NewCheckpoint(
        message_count=kept.message_count,
        last_message_id=kept.last_message_id,
        snapshot=msgspec.json.encode(memory),
    )


def _shown(context: Any, *, exact: bool) -> Any:
    if exact:
        return context
    return msgspec.json.decode(Mask(process_redactor()).json(msgspec.json.encode(context)))


def _unwrapped(context: Any) -> Any:
    return context[_ANYTHING] if isinstance(context, dict) and context.keys() == {_ANYTHING} else context
