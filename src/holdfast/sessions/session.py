"""`Session`: work that survives the process doing it.

Invariant: what a session acknowledged is in its store. Whatever stops the process, opening the session again goes on after the last
step that is stored; nothing that may not be repeated is repeated by itself.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

import msgspec

from holdfast import options
from holdfast.faults import AbortedError, Fault, HoldfastError, InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.shield import wait_to_end
from holdfast.sessions import codec, machine
from holdfast.sessions.journal import Journal, audit
from holdfast.sessions.lease import Keeper, keeper_for, left, take
from holdfast.sessions.log import Message, StateChanged, StepEnded
from holdfast.sessions.manifest import DriftPolicy, Manifest, compare, decode_manifest, encode_manifest
from holdfast.sessions.turn_runner import TurnRunner
from holdfast.stores import Claim, NewSession, SessionState
from holdfast.stores.address import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from types import TracebackType

    from holdfast.faults import Outcome
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.manifest import Drift
    from holdfast.sessions.questions.question import Interactor
    from holdfast.sessions.scopes import Reason
    from holdfast.stores import Store

__all__ = ["Session"]

P = ParamSpec("P")
T = TypeVar("T")

_LEASE_S = 30.0


class Session(TurnRunner):
    """Work that survives the process doing it: `async with Session.open("release-42") as session`.

    Leaving the block in good order ends the turn and pauses the session; an exception leaves the turn in flight, and the next to
    open the session goes on after its last stored step.
    """

    __slots__ = (
        "_begun_with",
        "_journal",
        "_keeper",
        "_lost_to_others",
        "_on_crash",
        "_on_drift",
        "_owns_store",
        "_store",
        "_strict",
        "_ttl",
        "drift",
    )

    def __init__(
        self,
        session: str,
        store: Store | str | Path | None,
        *,
        begun_with: dict[str, Any],
        strict: bool,
        on_drift: DriftPolicy,
        on_crash: str,
        lease: float,
        runtime: Runtime | None,
        interactors: Iterable[Interactor],
    ) -> None:
        options.one_of("session.on_drift", on_drift, ("warn", "refuse", "accept"))
        options.one_of("session.on_crash", on_crash, ("resume", "abandon"))
        options.seconds("session.lease", lease)
        super().__init__(session, begun_with["mode"], interactors, runtime)
        self.drift: tuple[Drift, ...] = ()
        """What differs from what it was begun with."""
        self._owns_store = store is None or isinstance(store, (str, Path))
        self._store = open_store(store) if store is None or isinstance(store, (str, Path)) else store
        self._begun_with: dict[str, Any] | None = begun_with
        """Its manifest; None once it was compared."""
        self._strict = strict
        self._on_drift = on_drift
        self._on_crash = on_crash
        self._ttl = lease
        self._journal = Journal(self._store, session, runtime)
        self._keeper: Keeper
        self._lost_to_others: Fault | None = None
        """Why nothing more was written already before it was left."""

    @classmethod
    def open(
        cls,
        session: str,
        *,
        store: Store | str | Path | None = None,
        project_root: str | None = None,
        mode: str = "ask",
        model: str | None = None,
        config: Any = None,
        tools: dict[str, Any] | None = None,
        agent_type: str = "",
        resumable: bool = True,
        on_drift: DriftPolicy = "warn",
        on_crash: str = "resume",
        lease: float = _LEASE_S,
        runtime: Runtime | None = None,
        interactors: Iterable[Interactor] = (),
        strict: bool = False,
    ) -> Session:
        """Return a session to be entered with `async with`: made if it is not there, resumed if it is.

        `store` is an open one, or an address that is opened for this session; by default `stores.default_url()`.
        `project_root`, `mode`, `model`, `config` and `tools` (a schema by name) are its manifest: what differs when it is
        resumed is reported by `on_drift`. `on_crash="abandon"` drops a turn that was cut off and goes back to the last
        checkpoint (document 002). `lease` is how many seconds after this process's death another machine may take over.
        `interactors` answer its questions; with `mode="yolo"` and none of them, questions answer themselves.
        `strict` only resumes: what is not there, not paused or not resumable is refused (S0-20).
        """
        begun_with = {
            "project_root": project_root,
            "mode": mode,
            "model": model,
            "config": None if config is None else Manifest.hash_of(config),
            "tools": {name: Manifest.hash_of(schema) for name, schema in (tools or {}).items()},
            "agent_type": agent_type,
            "resumable": resumable,
        }
        return cls(
            session,
            store,
            begun_with=begun_with,
            strict=strict,
            on_drift=on_drift,
            on_crash=on_crash,
            lease=lease,
            runtime=runtime,
            interactors=interactors,
        )

    @property
    def state(self) -> SessionState:
        """Where it is in its life; `error` too where its store failed for good."""
        failed = self._journal.failed
        return SessionState.ERROR if failed is not None and failed.code == "SESS_STORE_UNAVAILABLE" else self._state

    @property
    def unknown(self) -> tuple[str, ...]:
        """The keys of steps that may have happened and are not repeated by themselves: see `resolve`."""
        memory = self._journal.memory
        return tuple(f"{self.id}/{memory.turn}/{step}" for step in memory.unknown())

    async def __aenter__(self) -> Self:
        if self._begun_with is None:
            raise InvalidError.saying(
                "session", "one that was not entered before: Session.open makes it", f"{self.id!r} again"
            )
        if not self._owns_store:
            return await self._enter()
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self._store)
            await self._enter()
            opened.pop_all()
        return self

    async def _enter(self) -> Self:
        await self._find_or_make()
        lease = await take(self._store, self.id, self._ttl)
        self._journal.fence = lease.fence
        self._keeper = keeper_for(self._store, self._ttl)
        self._keeper.keep(lease, self._lost)
        try:
            await self._open()
        except BaseException:
            await self._give_back()
            raise
        await self._scope.__aenter__()
        self._begun_with = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure: BaseException | None = None
        try:
            await wait_to_end(self._left(error))
        except HoldfastError as problem:
            if error is None:
                failure = problem
            else:
                error.add_note(f"and the session could not be saved: {problem}")
        except asyncio.CancelledError as cut:
            failure = cut
            if error is None:
                kind, error, trace = type(cut), cut, cut.__traceback__
        await self._leave_scope(kind, error, trace)
        if failure is not None:
            raise failure

    async def _left(self, error: BaseException | None) -> None:
        try:
            await self._leave(error)
        finally:
            self._lost_to_others = None if self._state is SessionState.CLOSED else self._journal.failed
            self._journal.failed = self._journal.failed or left(self.id)
            await self._give_back()
            if self._owns_store:
                await self._store.__aexit__(None, None, None)

    async def _give_back(self) -> None:
        assert self._journal.fence is not None
        await self._keeper.give_back(self.id, self._journal.fence)

    async def _leave_scope(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._scope.__aexit__(kind, error, trace)
        except AbortedError:
            if self._lost_to_others is None:
                raise
            raise HoldfastError(self._lost_to_others) from error

    @overload
    async def step(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do `fn(*args)` and store what it returns; done before in this turn, return what is stored.

        What may not be repeated is declared with `@tool(effect="unsafe")`: cut midway, it raises OutcomeUnknownError.
        """
        turn = await self._current()
        return await turn.step(fn, args, kwargs)

    @overload
    def map(
        self, fn: Callable[[Any], Awaitable[T]], items: Iterable[Any], *, concurrency: int = 16
    ) -> AsyncIterator[Outcome[T]]: ...
    @overload
    def map(
        self, fn: Callable[[Any], T], items: Iterable[Any], *, concurrency: int = 16
    ) -> AsyncIterator[Outcome[T]]: ...
    async def map(self, fn: Callable[[Any], Any], items: Iterable[Any], *, concurrency: int = 16) -> Any:
        """Do a step for each item, `concurrency` at once; yield an `Ok` or `Err` for each, in the order of the items."""
        turn = await self._current()
        async for outcome in turn.map(fn, items, concurrency):
            yield outcome

    async def message(self, content: Any, *, role: str = "user", id: str | None = None, client: str = "") -> int:  # noqa: A002 - the word of the protocol
        """Append a message to the log; return its offset. With an `id` the same message is stored once."""
        said = Message(content=codec.plain(content, "session.message"), role=role)
        claim = None
        if id is not None:
            body_hash = bytes.fromhex(codec.arguments_hash((said.content, role), {}, "message"))
            claim = Claim(client=client or "session", id=id, body_hash=body_hash)
        receipt = await self._journal.write(said, claim=claim)
        return receipt.first

    async def checkpoint(self) -> int:
        """Save what is remembered, so that resuming need not read the log before it; return the offset."""
        receipt = await self._journal.snapshot(self.context)
        return receipt.top

    async def resolve(self, key: str, *, happened: bool, result: Any = None) -> None:
        """Say of a step whose outcome is unknown whether it happened: then this is its result, else it is done again."""
        memory = self._journal.memory
        name = key.removeprefix(f"{self.id}/{memory.turn}/")
        if key not in self.unknown:
            raise InvalidError.at(
                "session.resolve", f"one of the unknown steps ({', '.join(self.unknown) or 'none'})", key
            )
        stored = msgspec.Raw(codec.encode(result, "session.resolve"))
        known = memory.steps[name]
        ended = StepEnded(turn=memory.turn, step=name, args=known.args, ok=happened, result=stored)
        await self._journal.write(ended, audit=(audit("Approval", key, step=name, happened=happened),))

    async def close(self, reason: str = "closed") -> None:
        """End the session for good."""
        await self._in_order(partial(self._close, reason))

    async def _close(self, reason: str) -> None:
        await self._end("abandoned", reason)
        await self._go(SessionState.CLOSED, "session_closed", reason)
        self._journal.failed = machine.closed(self.id)

    def cancel(self, reason: Reason = "user") -> bool:
        """Cancel all that the session does here: the block is left with SESS_CANCELLED."""
        return self._scope.cancel(reason)

    async def _open(self) -> None:
        record = await self._store.session(self.id)
        self._state = record.state
        was = decode_manifest(self.id, bytes(record.manifest))
        self.drift = await compare(self._journal, was, self._manifest(), self._on_drift)
        await self._journal.load()
        context = self._journal.memory.context
        self.context = context if isinstance(context, dict) else {}
        if record.state is SessionState.ACTIVE:
            await self._crashed()
        if self._state is not SessionState.CREATED:
            await self._resume()

    async def _find_or_make(self) -> None:
        try:
            record = await self._store.session(self.id)
        except HoldfastError as error:
            if error.fault.code != "SESS_NOT_FOUND" or self._strict:
                raise
            return await self._make()
        manifest = decode_manifest(self.id, bytes(record.manifest))
        usable = {SessionState.ACTIVE} if self._strict else {SessionState.ACTIVE, SessionState.CREATED}
        if record.state not in usable:
            # An active one is looked at once it is ours: whoever had it may still be at work.
            self._check_resumable(record.state, manifest)
        if self._strict and self._on_crash == "abandon" and record.checkpoint is None:
            raise HoldfastError(Fault.of("SESS_NO_SNAPSHOT", context={"session_id": self.id}))
        return None

    async def _make(self) -> None:
        manifest = self._manifest()
        made = audit("SessionLifecycle", self.id, state="created")
        try:
            await self._journal.write(create=NewSession(manifest=encode_manifest(manifest)), audit=(made,))
        except HoldfastError as error:
            # Somebody made it meanwhile: the lease decides whose it is.
            if error.fault.code != "SESS_ILLEGAL_TRANSITION":
                raise

    def _manifest(self) -> Manifest:
        now = default_runtime().clock.wall()
        begun_with = self._begun_with or {}
        return Manifest(session_id=self.id, store_id=self._store.id, created_at=now, updated_at=now, **begun_with)

    def _check_resumable(self, state: SessionState, manifest: Manifest) -> None:
        problem = machine.not_resumable(self.id, state, resumable=manifest.resumable)
        if problem is not None:
            raise problem

    async def _crashed(self) -> None:
        """Whoever had the session died: it is paused where it was, or, if so wished, at its last checkpoint (C23)."""
        await self._go(SessionState.PAUSED, "session_paused", "crash")
        if self._on_crash == "abandon":
            await self._end("abandoned", "crash")

    async def _resume(self) -> None:
        manifest = decode_manifest(self.id, bytes((await self._store.session(self.id)).manifest))
        self._check_resumable(self._state, manifest)
        await self._go(SessionState.ACTIVE, "session_resumed", "")
        self.resumed = True

    async def _leave(self, error: BaseException | None) -> None:
        """Pause the session. Of turns only those that were run here end: one that was cut off before stays in flight."""
        if self._journal.failed is not None:
            return
        async with self._lock.changing:
            if error is None:
                await (self._end("ok") if self._own is not None else self._end_left_alone())
            if self._state is not SessionState.ACTIVE:
                return
            reason = "" if error is None else type(error).__name__
            await self._journal.snapshot(self.context)
            await self._go(SessionState.PAUSED, "session_paused", reason)

    async def _go(self, to: SessionState, type_: str, reason: str) -> None:
        """Change the state: refused where it may not follow, here and by the store."""
        machine.check(self.id, self._state, to)
        said = StateChanged(state=to, reason=reason)
        told = audit("SessionLifecycle", self.id, state=to.value, reason=reason, was=self._state.value)
        await self._journal.write(said, type_=type_, state=to, expect=(self._state,), audit=(told,))
        self._state = to

    def _lost(self, fault: Fault) -> None:
        """Another process owns the session now: this one must stop."""
        self._journal.failed = fault
        self._scope.cancel("cap")
