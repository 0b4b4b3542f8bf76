"""`submit` stores a request for a program, and returns its handle.

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
from holdfast.sessions.journal import audit, fresh_id, memory_of
from holdfast.sessions.log import WorkSubmitted, new_entry
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.sessions.waits import wall_of
from holdfast.stores import Commit, NewSession, shared
from holdfast.stores.records import NewWork
from holdfast.stores.store import work_store
from holdfast.tasks.workflows.function import WorkflowCall, WorkflowFunction
from holdfast.work.handle import WorkHandle
from holdfast.work.programs import queue_of, version_of

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import Store

__all__ = ["submit"]

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")
_NOT_ID = re.compile(r"[^A-Za-z0-9_.@-]+")
_LONGEST_NAME = 60


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
) -> WorkHandle[T]: ...
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
) -> WorkHandle[T]: ...
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
) -> WorkHandle[T]: ...
@overload
async def submit(
    program: WorkflowCall[T],
    /,
    *,
    key: str | None = None,
    at: datetime | float | None = None,
    priority: int = 0,
    queue: str | None = None,
    tenant: str = "",
    store: Store | str | Path | None = None,
    runtime: Runtime | None = None,
) -> WorkHandle[T]: ...
async def submit(
    program: WorkflowFunction[..., Any] | WorkflowCall[Any],
    /,
    *given: Any,
    key: str | None = None,
    at: datetime | float | None = None,
    priority: int = 0,
    queue: str | None = None,
    tenant: str = "",
    store: Store | str | Path | None = None,
    runtime: Runtime | None = None,
) -> WorkHandle[Any]:
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
    if not isinstance(call, WorkflowCall):
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
    return WorkHandle(id_, store=store, returns=program.returns)


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
