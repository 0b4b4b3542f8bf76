"""`submit` stores a request for a program, and returns its handle. `cancel`, `retry`, `pause` and `resume` change it from outside.

Invariant: a request is stored in one commit, or not at all, and a key is one request: it is stored once, however often it is submitted.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import admin
from holdfast.sessions.journal import audit, fresh_id, memory_of
from holdfast.sessions.log import WorkNoted, WorkSubmitted, new_entry
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.sessions.waits import wall_of
from holdfast.stores import Commit, NewSession, shared
from holdfast.stores.records import NewWork, WorkChange
from holdfast.stores.store import work_store
from holdfast.tasks.workflows.function import Given, WorkflowFunction
from holdfast.work.handle import Handle, item_of
from holdfast.work.programs import queue_of, version_of

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import Store
    from holdfast.stores.records import WorkStatus

__all__ = ["cancel", "close_cancelled", "pause", "resume", "retry", "submit"]

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")
_NOT_ID = re.compile(r"[^A-Za-z0-9_.@-]+")
_LONGEST_NAME = 60
_TRIES = 3
"""How often a change is tried whose item changes meanwhile."""


@overload
async def submit(
    program: WorkflowFunction[[], T],
    /,
    *,
    key: str | None = None,
    at: datetime | float | None = None,
    priority: int = 0,
    queue: str | None = None,
    tenant: str = "",
    store: Store | str | Path | None = None,
    runtime: Runtime | None = None,
) -> Handle[T]: ...
@overload
async def submit(
    program: WorkflowFunction[[A], T],
    given: A,
    /,
    *,
    key: str | None = None,
    at: datetime | float | None = None,
    priority: int = 0,
    queue: str | None = None,
    tenant: str = "",
    store: Store | str | Path | None = None,
    runtime: Runtime | None = None,
) -> Handle[T]: ...
@overload
async def submit(
    program: WorkflowFunction[[A, B], T],
    given: A,
    more: B,
    /,
    *,
    key: str | None = None,
    at: datetime | float | None = None,
    priority: int = 0,
    queue: str | None = None,
    tenant: str = "",
    store: Store | str | Path | None = None,
    runtime: Runtime | None = None,
) -> Handle[T]: ...
@overload
async def submit(
    program: Given[T],
    /,
    *,
    key: str | None = None,
    at: datetime | float | None = None,
    priority: int = 0,
    queue: str | None = None,
    tenant: str = "",
    store: Store | str | Path | None = None,
    runtime: Runtime | None = None,
) -> Handle[T]: ...
async def submit(
    program: WorkflowFunction[..., Any] | Given[Any],
    /,
    *given: Any,
    key: str | None = None,
    at: datetime | float | None = None,
    priority: int = 0,
    queue: str | None = None,
    tenant: str = "",
    store: Store | str | Path | None = None,
    runtime: Runtime | None = None,
) -> Handle[Any]:
    """Store a request for a program, which a worker finishes; return its handle.

        handle = await submit(refund, order, key=order.id)
        receipt = await handle

    The arguments are those of the program, after its session; those that have names or defaults with `given`: `submit(refund.given(order, cents=5))`. With a `key` the request is stored once: submitting it again returns a handle of
    the same item, also when it has ended. `at` is when it may begin, a `datetime` with its zone or seconds since the epoch. Items of higher
    `priority` begin first. `queue` is that of the program unless it is given. `tenant` says whose work it is. `store` is an open store, or
    an address; by default `stores.default_url()`.

    Raises PROTO_DUPLICATE_ID if the key was submitted with other arguments, `InvalidError` for arguments that cannot be stored or do not fit,
    and SESS_STORE_UNAVAILABLE.
    """
    call: Any = program.given(*given) if isinstance(program, WorkflowFunction) else program
    if not isinstance(call, Given):
        raise InvalidError.at("submit", "a program, which @program or @workflow makes", program)
    program, inputs = call.workflow, call.inputs
    due = None if at is None else wall_of(at, "submit.at")
    options.name("submit.queue", queue, optional=True)
    options.name("submit.key", key, optional=True)
    submitted = WorkSubmitted(
        program=program.run_name, inputs=inputs, version=version_of(program), key=key or "", tenant=tenant
    )
    work = NewWork(
        program=program.run_name,
        version=submitted.version,
        queue=queue or queue_of(program),
        tenant=tenant,
        priority=priority,
        due=due,
    )
    id_ = _id_of(program.name, key)
    async with shared.opened(store) as opened:
        await _stored(work_store(opened), id_, submitted, work, (runtime or default_runtime()).clock.wall())
    return Handle(id_, store=store, returns=program.returns)


async def _stored(store: Store, id_: str, submitted: WorkSubmitted, work: NewWork, now: float) -> None:
    manifest = Manifest(
        session_id=id_,
        store_id=store.id,
        store_epoch=getattr(store, "epoch", None),
        created_at=now,
        updated_at=now,
    )
    commit = Commit(
        session=id_,
        create=NewSession(manifest=encode_manifest(manifest)),
        entries=(new_entry(submitted, fresh_id()),),
        audit=(audit("SessionLifecycle", id_, state="created", program=submitted.program),),
        work=work,
    )
    try:
        await store.commit(commit)
    except HoldfastError as error:
        if error.fault.code != "SESS_ILLEGAL_TRANSITION":
            raise
        # It was submitted before. Nothing was written.
        known = (await memory_of(store, id_)).submitted
        if known is None or (known.program, known.inputs) != (submitted.program, submitted.inputs):
            message = f"'{id_}' was submitted before with another program or other arguments"
            raise HoldfastError(Fault.of("PROTO_DUPLICATE_ID", message, context={"id": id_})) from None


def _id_of(name: str, key: str | None) -> str:
    """Return the id of the session of an item. It says which program and key it is, as far as an id can."""
    short = _NOT_ID.sub("-", name).strip("-._@")[:_LONGEST_NAME] or "work"
    if key is None:
        return f"{short}:{secrets.token_hex(8)}"
    plain = f"{short}:{key}"
    if short == name and _ID.fullmatch(plain):
        return plain
    return f"{short}:{sha256(f'{name}:{key}'.encode()).hexdigest()[:32]}"


async def cancel(item: str, *, store: Store | str | Path | None = None, by: str = "") -> bool:
    """End a work item: at once if it does not run, otherwise after the steps that are in flight. Return False if it has ended already.

        await cancel("refund:o-7", by="ann")

    A dead letter is put away so, too. Raises SESS_NOT_FOUND for an unknown session, and `InvalidError` for one that is no work item.
    """
    async with shared.opened(store) as opened:
        for _ in range(_TRIES):
            status = (await item_of(opened, item)).status
            if status in ("done", "cancelled"):
                return False
            if status == "running":
                change = WorkChange(status="running", only=("running",), must=True, cancel=True)
                if await _changed(opened, item, change, None):
                    return True
            elif await _changed(
                opened,
                item,
                _to("cancelled", "ready", "waiting", "paused", "failed"),
                WorkNoted(status="cancelled", by=by),
            ):
                await close_cancelled(opened, item)
                return True
    return False


async def retry(item: str, *, store: Store | str | Path | None = None, by: str = "") -> bool:
    """Let a dead letter be tried again, or one that waits go on now.

        await retry("refund:o-7", by="ann")

    What its steps have stored stays. Return False if there is nothing to retry: it runs, is ready, paused, or has ended. Raises as `cancel`.
    """
    change = WorkChange(status="ready", only=("failed", "waiting"), must=True, failures=0)
    return await _change(item, store, change, by)


async def pause(item: str, *, store: Store | str | Path | None = None, by: str = "") -> bool:
    """Keep an item from being claimed until `resume`. Return False if it runs, or has ended. Raises as `cancel`."""
    return await _change(item, store, _to("paused", "ready", "waiting"), by)


async def resume(item: str, *, store: Store | str | Path | None = None, by: str = "") -> bool:
    """Let a paused item be claimed again. Return False if it was not paused. Raises as `cancel`."""
    return await _change(item, store, _to("ready", "paused"), by)


def _to(status: WorkStatus, *only: WorkStatus) -> WorkChange:
    return WorkChange(status=status, only=only, must=True)


async def _change(item: str, store: Store | str | Path | None, change: WorkChange, by: str) -> bool:
    async with shared.opened(store) as opened:
        await item_of(opened, item)
        return await _changed(opened, item, change, WorkNoted(status=change.status, by=by))


async def _changed(store: Store, item: str, change: WorkChange, note: WorkNoted | None) -> bool:
    entries = () if note is None else (new_entry(note, fresh_id()),)
    record = audit("Command", item, work=change.status, cancel=bool(change.cancel), by="" if note is None else note.by)
    try:
        await store.commit(Commit(session=item, entries=entries, audit=(record,), work=change))
    except HoldfastError as error:
        if error.fault.code not in ("SESS_ILLEGAL_TRANSITION", "SESS_CLOSED"):
            raise
        return False
    return True


async def close_cancelled(store: Store, item: str) -> None:
    """Close the session of an item that was cancelled. If somebody works in it, the item is cancelled all the same."""
    try:
        await admin.close(store, item, "cancelled")
    except HoldfastError as error:
        if error.fault.code not in ("SESS_LEASE_LOST", "SESS_CLOSED", "SESS_ILLEGAL_TRANSITION"):
            raise
