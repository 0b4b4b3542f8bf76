"""`Session`: work that survives a crash of its process.

Invariant: a step's result is in the store before `step` returns. After any stop of the process, a session that is opened again
continues after its last stored step. A step that must not be repeated is never repeated automatically.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from holdfast import options
from holdfast._lazy import lazy_module
from holdfast.faults import AbortedError, Fault, HoldfastError, InvalidError
from holdfast.runtime.runtime import SystemClock, default_runtime
from holdfast.runtime.shield import wait_to_end
from holdfast.sessions import codec, lifecycle, machine
from holdfast.sessions.admin import fork_session
from holdfast.sessions.doubts import Doubts
from holdfast.sessions.journal import Journal, audit
from holdfast.sessions.keyed_step import KeyedStep
from holdfast.sessions.lease import LeaseKeeper, keeper_for, left, take_within
from holdfast.sessions.log import Message, StateChanged
from holdfast.sessions.manifest import (
    DriftPolicy,
    Manifest,
    allowed_names,
    check_options,
    check_resumable,
    compare,
    decode_manifest,
    find_or_make,
    manifest_fields,
)
from holdfast.sessions.parked_runs import ParkedRuns
from holdfast.sessions.place import enter_root, part
from holdfast.sessions.questions import answers
from holdfast.sessions.questions.broker import QuestionBroker
from holdfast.sessions.questions.question import TOOL_CALL, Notice, question_of
from holdfast.sessions.questions.remedies import Remedies
from holdfast.sessions.scopes import Scope
from holdfast.sessions.turn import BY_CRASH, TurnRunner
from holdfast.sessions.waits import Waits
from holdfast.sessions.work_item import ending
from holdfast.stores import Claim, SessionState, shared
from holdfast.stores.address import open_store
from holdfast.stores.errors import session_ended
from holdfast.stores.records import FINAL
from holdfast.stores.redaction import mask_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import TracebackType

    from holdfast.clock import Clock
    from holdfast.faults import Outcome
    from holdfast.faults.redaction import PieceMask
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions import later
    from holdfast.sessions.log import Answered, WorkNoted
    from holdfast.sessions.manifest import Drift
    from holdfast.sessions.questions.question import Interactor, Question
    from holdfast.sessions.questions.remedies import DeviceCode
    from holdfast.sessions.scopes import Reason
    from holdfast.sessions.turn import Turn, Unfinished
    from holdfast.stores import Store
else:
    # It goes on with sessions, so it imports this module.
    later = lazy_module("holdfast.sessions.later", globals())

__all__ = ["Session"]

P = ParamSpec("P")
T = TypeVar("T")

_LEASE_S = 30.0


class Session(Waits):
    """Work that survives a crash of its process.

        async with Session.open("release-42") as session:
            plan = await session.step(make_plan, "version 2")
            await session.step(deploy, plan)

    A step is done once per session, however often the program is run again: after a good end, an exception or a kill. Steps with a
    stored result return it, and the other steps run. Inside a `turn` block a step is done once per turn.

    Questions (`ask`, `approve` …) are durable too: a question that was answered before, in this turn or outside of turns in this session,
    returns the stored answer. `expires` is the number of seconds in which it may be answered, by the wall clock, also across restarts;
    after that SESS_INTERACTION_EXPIRED is raised. If nobody is attached, a question with `expires` waits for an answer through the
    store, and one without it raises SESS_NO_INTERACTOR and is kept. Dismissing a question cancels the turn.
    """

    __slots__ = (
        "__weakref__",
        "_allowed_tools",
        "_broker",
        "_here",
        "_interactors",
        "_journal",
        "_keeper",
        "_lost",
        "_mode",
        "_on_crash",
        "_on_drift",
        "_owns_store",
        "_runtime",
        "_scope",
        "_started_with",
        "_state",
        "_store",
        "_strict",
        "_ttl",
        "_turns",
        "_wait",
        "drift",
        "id",
        "sign_in",
    )

    def __init__(
        self,
        session: str,
        store: Store | str | Path | None,
        *,
        started_with: dict[str, Any],
        strict: bool,
        on_drift: DriftPolicy,
        on_crash: str,
        lease: float,
        wait: float,
        threads: bool,
        runtime: Runtime | None,
        interactors: Iterable[Interactor],
    ) -> None:
        check_options(started_with["mode"], on_drift, on_crash, lease, wait, threads=threads)
        self.id = session
        """The session's id, as it was given to `Session.open`."""
        self.sign_in: Callable[[Fault], Awaitable[DeviceCode]] | None = None
        """A function that returns where a person signs in. `step_or_ask` calls it if a step fails because of its credentials."""
        self.drift: tuple[Drift, ...] = ()
        """The fields in which the session was resumed with other values than it was started with."""
        self._runtime = runtime
        self._owns_store = store is None or isinstance(store, (str, Path))
        self._store = (
            open_store(store, clock=_store_clock(runtime)) if store is None or isinstance(store, (str, Path)) else store
        )
        self._started_with: dict[str, Any] | None = started_with
        """The fields of the manifest. It is None after the session was entered."""
        self._strict = strict
        self._on_drift = on_drift
        self._on_crash = on_crash
        self._ttl, self._wait = lease, wait
        self._state = SessionState.CREATED
        self._journal = Journal(self._store, session, runtime)
        self._scope = Scope("session", name=session)
        self._turns = TurnRunner(self._journal, self._scope, threads=threads, activate=self._activate)
        self._mode = str(started_with["mode"])
        self._allowed_tools: tuple[str, ...] | None = started_with["allowed_tools"]
        self._interactors = tuple(interactors)
        """Those who were attached when the session was opened. The broker knows who is attached now."""
        self._broker: QuestionBroker | None = None
        self._keeper: LeaseKeeper
        self._lost: Fault | None = None
        """Why the session stopped writing before its block was left."""

    @classmethod
    @options.suggests
    def open(
        cls,
        session: str,
        *,
        store: Store | str | Path | None = None,
        project_root: str | None = None,
        mode: str = "ask",
        allowed_tools: Iterable[str] | None = None,
        model: str | None = None,
        config: Any = None,
        tools: dict[str, Any] | None = None,
        agent_type: str = "",
        resumable: bool = True,
        on_drift: DriftPolicy = "warn",
        on_crash: str = "resume",
        lease: float = _LEASE_S,
        wait: float = 0.0,
        threads: bool = False,
        runtime: Runtime | None = None,
        interactors: Iterable[Interactor] = (),
        strict: bool = False,
    ) -> Session:
        """Return a session to enter with `async with`. It is created if it does not exist, and resumed if it does.

            async with Session.open("release-42", store="sqlite:work.db", model="opus") as session: ...

        `store` is an open store, or an address; by default `stores.default_url()`. Sessions at one address share one store. `project_root`,
        `mode`, `model`, `config` and `tools` (a schema by name) are the manifest. `on_drift` (`"warn"`, `"refuse"`, `"accept"`) decides
        what happens if they differ later. `on_crash="abandon"` gives up a turn that was cut off and returns to the last checkpoint;
        `"resume"` continues the turn. `lease`: the seconds after this process's death until another machine may take over. `wait`: the
        seconds to wait while another process works in the session. With `threads` plain functions run in a thread as steps, so that they do
        not block the event loop. `interactors` answer questions. With `strict` a session is only resumed and never created. The clock of
        `runtime`, by default the default runtime's, dates the manifest and decides when questions and leases expire, and its event handlers
        learn of failed writes. A store opened by address uses it too.

        `mode` decides which tool calls of an agent run. `"ask"`: a person is asked about each call of an unsafe tool. `"allowlist"`: only
        the tools in `allowed_tools` run, the others are denied; the list is part of the manifest, so a session that is resumed may leave it
        out. `"yolo"`: all run, and the audit trail has them; if nobody is attached, questions get automatic answers, too.

        Entering raises SESS_LEASE_LOST if another process works in the session, after `wait` seconds, SESS_CLOSED or SESS_NOT_RESUMABLE if
        it cannot be resumed, SESS_MANIFEST_DRIFT if the manifest differs and `on_drift="refuse"` or the store was set back, SESS_NOT_FOUND
        with `strict`, SESS_RESUME_MISMATCH if it belongs to another store, and SESS_STORE_UNAVAILABLE if the store fails.
        """
        started_with = manifest_fields(
            project_root=project_root, mode=mode, model=model, config=config, tools=tools, agent_type=agent_type
        )
        started_with |= {"resumable": resumable, "allowed_tools": allowed_names(mode, allowed_tools)}
        return cls(
            session,
            store,
            started_with=started_with,
            strict=strict,
            on_drift=on_drift,
            on_crash=on_crash,
            lease=lease,
            wait=wait,
            threads=threads,
            runtime=runtime,
            interactors=interactors,
        )

    @property
    def state(self) -> SessionState:
        """The session's state. It is `error` once its store has failed for good."""
        failed = self._journal.failed
        # The store could not save the new state, so only this object knows it.
        return SessionState.ERROR if failed is not None and failed.code == "SESS_STORE_UNAVAILABLE" else self._state

    @property
    def is_owned(self) -> bool:
        """Whether this program still has the session: its lease holds, and the session's own store has not failed."""
        return self._journal.is_owned

    @property
    def context(self) -> dict[str, Any]:
        """Values of the application that survive a restart: `session.context["branch"] = "main"`.

        They may be plain values, values of the standard library such as dates, and objects of classes that are registered with
        `storable`. They are saved with each checkpoint.
        """
        return self._turns.context

    @context.setter
    def context(self, context: dict[str, Any]) -> None:
        self._turns.context = context

    @property
    def resumed(self) -> bool:
        """Whether the session existed before, and no turn or step has begun since it was opened."""
        return self._turns.resumed

    @property
    def in_flight(self) -> int | None:
        """The number of the turn that has begun and not ended, or None."""
        return self._turns.in_flight

    @property
    def mode(self) -> str:
        """Which tool calls of an agent run: `ask`, `allowlist` or `yolo`, as `Session.open` describes them."""
        return self._mode

    @property
    def allowed_tools(self) -> frozenset[str] | None:
        """The tools that mode `allowlist` lets run; None in the other modes."""
        return None if self._allowed_tools is None else frozenset(self._allowed_tools)

    @property
    def current_turn(self) -> Turn | None:
        """The turn of this session that the running code is in, or None: `session.current_turn.number`."""
        return self._turns.current

    @property
    def is_attended(self) -> bool:
        """Whether somebody is attached who can answer questions."""
        return bool(self._interactors) if self._broker is None else self._broker.is_attended

    @property
    def pending(self) -> tuple[Question, ...]:
        """The questions that wait for an answer."""
        return tuple(question_of(self.id, raised) for raised in self._journal.memory.pending())

    @property
    def parked(self) -> ParkedRuns:
        """The runs that wait, for the end of a usage limit or for their next attempt: `session.parked.all()`."""
        return ParkedRuns(self._journal)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The keys of steps that may have happened and are not repeated automatically. `resolve` settles them."""
        return self.doubts.keys()

    @property
    def doubts(self) -> Doubts:
        """What is known about them, for code that calls unsafe steps for others: `session.doubts.about("deploy", {"version": "4.2"})`."""
        return Doubts(self._journal, self._turns.running)

    async def __aenter__(self) -> Self:
        if self._started_with is None:
            raise InvalidError.saying(
                "session", "a new session object from Session.open", f"{self.id!r}, which was entered before"
            )
        if not self._owns_store:
            self._journal.use(self._store)
            return await self._enter()
        # Sessions of one address share a store. If entering fails, end its use here. Otherwise `__aexit__` does.
        self._store = await shared.join(self._store)
        self._journal.use(self._store)
        try:
            return await self._enter()
        except BaseException:
            await wait_to_end(shared.leave(self._store))
            raise

    async def _enter(self) -> Self:
        # A lease needs a session, so the session is created first, without a lease.
        await find_or_make(self._journal, self._first_manifest, strict=self._strict, on_crash=self._on_crash)
        lease = await take_within(self._store, self.id, self._ttl, self._wait, self._runtime)
        self._journal.fence = lease.fence
        self._keeper = keeper_for(self._store, self._ttl, self._clock)
        self._keeper.keep(lease, self._lose, self._runtime)
        self._journal.keeper = self._keeper
        try:
            await self._open()
        except BaseException:
            # Otherwise nobody could open the session until the lease ends.
            await self._give_back()
            raise
        await self._scope.__aenter__()
        self._journal.recorder.enter()
        self._here = enter_root(self._journal)
        self._started_with = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure: BaseException | None = None
        if error is not None and self._journal.failed is None:
            lifecycle.cancelled(self._scope, error, self._runtime)
        try:
            await wait_to_end(self._exit(error))
        except HoldfastError as unsaved:
            if error is None:
                failure = unsaved
            else:
                # The application must see its own error. Our error becomes a note on it.
                error.add_note(f"and the session could not be saved: {unsaved}")
        except asyncio.CancelledError as cut:
            failure = cut
            if error is None:
                kind, error, trace = type(cut), cut, cut.__traceback__
        self._journal.recorder.leave()
        self._here.__exit__(None, None, None)
        await self._leave_scope(kind, error, trace)
        if failure is not None:
            raise failure

    async def _exit(self, error: BaseException | None) -> None:
        try:
            await self._leave(error)
            if self._journal.failed is None:
                self.doubts.report()
                if error is None:
                    self._turns.keep_run()
        finally:
            self._lost = None if self._state in FINAL else self._journal.failed
            # From here on a step of a task that is still running raises, instead of writing without a lease.
            self._journal.failed = self._journal.failed or left(self.id)
            await self._journal.finish(lost=self._lost is not None)
            await self._give_back()
            if self._owns_store:
                await shared.leave(self._store)

    async def _give_back(self) -> None:
        assert self._journal.fence is not None
        await self._keeper.give_back(self.id, self._journal.fence)

    async def _leave_scope(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._scope.__aexit__(kind, error, trace)
        except AbortedError:
            if self._lost is None:
                raise
            # We cancelled the block because the lease was lost, so raise that error.
            raise HoldfastError(self._lost) from error

    @overload
    async def step(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` and store its result. If the result is stored already, return it and do not run `fn`.

            plan = await session.step(make_plan, "version 2")

        It is done once per session, or inside a `turn` block once per turn. A step is known by the name of its function, its
        arguments, and whether it is the first, second … call with them; so the order of the calls does not matter. `keyed` gives it a
        key of your own instead. A call that failed or was cancelled does not count: the next call is the same step, and so is the
        call that `recover` makes in its next attempt.

        The result must be plain values, values of the standard library such as dates, or of types that `fn` declares or that are
        registered with `holdfast.sessions.storable`. It is the same after a restart. A function that must not run twice is declared with
        `@tool(effect="unsafe")`.

        Raises the exceptions of `fn`. It also raises `OutcomeUnknownError` if an unsafe step was cut off and may have happened (see
        `resolve`), SESS_STEP_DRIFT if the log has an unsafe function with other arguments and the program has not called it with
        them, SESS_STORE_UNAVAILABLE or SESS_LEASE_LOST if the result could not be stored, and `InvalidError` if the result would not
        be the same after a restart. An unsafe step whose result is rejected has happened, so it is in `unknown`.
        """
        turns = self._turns
        return await (turns.begun_steps or await turns.steps()).step(fn, args, kwargs)

    def keyed(self, key: str) -> KeyedStep:
        """Give the next step a key of your own, in place of its arguments: it is done once per key.

            await session.keyed("deploy-42").step(deploy, plan, at=now())

        The step returns the stored result whatever its arguments are. Use it where arguments differ from run to run, and to call an
        unsafe function with other arguments than in the last run. Raises `InvalidError` for an empty key.
        """
        if not key:
            raise InvalidError.at("session.keyed", "a text that is not empty", key)
        return KeyedStep(key, self._turns.steps)

    def part(self, key: str, *, task: str = "", earlier: str = "") -> AbstractContextManager[None]:
        """Return a block in which steps and questions are known by this key too, and are counted apart from all others.

            with session.part("call-7"):
                await session.step(check, order)

        Use it for code that is left out if the program is run again, because its result is stored: the steps inside are then not
        called, and must not be taken for those of another place. `task` tells parts of one key apart that run at the same time: equal
        calls in them keep their results. `earlier` is the key that the part had in logs of earlier versions, if it was another one.
        """
        return part(self._journal, key, task, earlier)

    async def numbered(self, name: str, given: Any, work: Callable[[str], Awaitable[T]]) -> T:
        """Return `await work(key)`, for work that has steps of its own. The key is the same in every run of the program.

            async def release(key: str) -> str:
                plan = await session.keyed(f"{key}/plan").step(make_plan)
                return await session.keyed(f"{key}/deploy").step(deploy, plan)

            await session.numbered("release", "4.2", release)

        The key is that of the first, second … use of this name with this input in the session, turn, step or part around it. As for
        steps, a use counts when it returns: work that failed or was cut is the same use when it is called again, and goes on with
        the steps that are stored. The block of `part(key)` is around it.
        """
        args = codec.arguments_hash((given,), {}, name)
        return await (await self._turns.steps()).numbered(name, args, work)

    @overload
    def map(
        self, fn: Callable[[Any], Awaitable[T]], items: Iterable[Any], *, concurrency: int = 16, collect: Literal[True]
    ) -> Awaitable[list[Outcome[T]]]: ...
    @overload
    def map(
        self, fn: Callable[[Any], T], items: Iterable[Any], *, concurrency: int = 16, collect: Literal[True]
    ) -> Awaitable[list[Outcome[T]]]: ...
    @overload
    def map(
        self, fn: Callable[[Any], Awaitable[T]], items: Iterable[Any], *, concurrency: int = 16
    ) -> AsyncIterator[Outcome[T]]: ...
    @overload
    def map(
        self, fn: Callable[[Any], T], items: Iterable[Any], *, concurrency: int = 16
    ) -> AsyncIterator[Outcome[T]]: ...
    def map(
        self, fn: Callable[[Any], Any], items: Iterable[Any], *, concurrency: int = 16, collect: bool = False
    ) -> Any:
        """Run a step for each item, `concurrency` at a time; yield an `Ok` or `Err` for each, in the order of the items.

            async for outcome in session.map(summarise, documents):
                ...
            outcomes = await session.map(summarise, documents, collect=True)

        After a crash only the items without a stored result are run. Failures of the session itself (SESS_STORE_UNAVAILABLE,
        SESS_LEASE_LOST, SESS_STEP_DRIFT) are raised, not yielded. With `collect` all outcomes come as a list; an item that waits in
        `retry_later` lets the others end, and then raises its `ParkedError`.
        """
        outcomes = self._outcomes(fn, items, concurrency)
        return later.collected(outcomes) if collect else outcomes

    async def _outcomes(
        self, fn: Callable[[Any], Any], items: Iterable[Any], concurrency: int
    ) -> AsyncIterator[Outcome[Any]]:
        options.function("session.map", fn, "map(f, items)")
        steps = await self._turns.steps()
        async for outcome in steps.map(fn, items, concurrency):
            yield outcome

    def retry_later(
        self, *, after: float, attempts: int = 3, backoff: float = 1.0, ask: bool = False
    ) -> later.LaterSteps:
        """Let the next step be tried again later if it fails: after so many seconds, in any process.

            release = await session.retry_later(after=3600, attempts=5, backoff=2, ask=True).step(deploy, "4.2")

        The time is stored, and `ParkedError` ends this run of the program. The next run that comes after that time tries the step again;
        an earlier one raises `ParkedError` and calls nothing. `holdfast.sessions.run_due` runs a `workflow` when its time has come. `after`
        grows by `backoff` with each attempt; a longer time that the failure itself says is kept. With `ask` the operator is asked after
        the last attempt. A step of unknown outcome is not tried again. Raises `InvalidError` for wrong options.
        """
        return later.LaterSteps(self, self._runtime, after=after, attempts=attempts, backoff=backoff, ask=ask)

    def turn(
        self, given: Any = None, *, key: str | None = None, again: bool = False, unfinished: Unfinished | None = None
    ) -> AbstractAsyncContextManager[Turn, bool | None]:
        """Run a turn. Turns run one after the other, in the order of these calls.

            async with session.turn(message.text, key=message.id) as turn:
                plan = await session.step(make_plan, message.text)

        A turn with a `key` is done once per session, however often the program is run and in whatever order its turns come: if it has
        ended well, its steps and questions return what they returned, and nothing is written (`Turn.replayed`); if not, it goes on.
        Without a key a turn is new each time. But an unsafe step that an earlier run of the program did in a turn with the same
        input, or this run in one that failed, raises SESS_STEP_DRIFT: the program may only have been started again. `again=True` says that
        it is meant anew.

        `given` is the turn's input, anything JSON can hold; `Turn.input` has it. If the block ends well, the turn ends and the context
        is saved. If it raises, the turn is unfinished, and the context is again what it was. `unfinished` says what becomes of such a
        turn, or of one that a crash cut off:

        - `"continue"` continues it: its stored steps are not repeated. `given` must be None or the same as before.
        - `"retry"` begins it anew: its steps run again, except unsafe ones that happened, or may have. `given` as before.
        - `"abandon"` gives it up and starts a new turn.
        - None: a turn that failed in this process has `failed`, and a new turn starts. One that was cut off earlier is continued.

        A program of several turns can be run from its start again after a later turn was cut off, if the turns have different inputs.
        The turns of that run that ended well are repeated first, in their order and by their inputs: their steps and questions return what they returned, and nothing
        is written (`Turn.replayed`). Then the turn that was cut off is continued. A step that such a turn did not have raises
        SESS_STEP_DRIFT and does not run.

        Raises SESS_TURN_CONCURRENT inside another turn of the session, and if a turn that is to be continued had another input; and
        `InvalidError` if a finished turn of the key had another input.
        """
        return self._turns.turn(given, unfinished, key, again=again)

    async def abandon(self, reason: str = "abandoned") -> None:
        """Give up the turn in flight: `await session.abandon("the user changed their mind")`.

        The results it stored stay in the log, but the next turn starts afresh.
        """
        await self._turns.in_order(partial(self._turns.end, "abandoned", reason))

    async def message(self, content: Any, *, role: str = "user", id: str | None = None, client: str = "") -> int:  # noqa: A002 - the protocol's own name
        """Append a message of the conversation to the log; return its offset.

            await session.message("hello", id="m-1", client="phone")

        With an `id` the same message of a client is stored once. Raises PROTO_DUPLICATE_ID if that id was used for another content.
        """
        message = Message(content=codec.plain(content, "session.message"), role=role, id=id or "", client=client)
        claim = None
        if id is not None:
            body_hash = bytes.fromhex(codec.arguments_hash((message.content, role), {}, "message"))
            claim = Claim(client=client or "session", id=id, body_hash=body_hash)
        await self._turns.in_order(self._activate)
        receipt = await self._journal.write(message, claim=claim)
        return receipt.first

    async def checkpoint(self, *names: str) -> int:
        """Save `context` now, as far as it changed. Return the log's last offset.

        The end of a turn, and leaving the block, save it automatically. If a turn that saved it fails, the context is again what it was
        before the turn. With names only these values are saved: for what a step made beside its result, because a step that has ended is
        not called again.
        """
        await (self._turns.save_context_of(names) if names else self._journal.save(self.context))
        return self._journal.seen

    async def resolve(self, key: str, *, happened: bool, result: Any = None, by: str = "") -> None:
        """Record whether a step whose outcome is unknown has happened.

            await session.resolve(session.unknown[0], happened=True, result={"id": 7}, by="ann")

        If it happened, `result` is the step's result from now on; if not, the step runs again. `by` says who found it out. The first
        resolution counts, also if somebody resolves the step at the same moment elsewhere. You may repeat it.

        Raises SESS_ALREADY_ANSWERED if the step was resolved otherwise before, with who did it and when; and `InvalidError` for a key
        that is not in `unknown`, and for `happened=False` while a thread of the step still runs in this process.
        """
        await self.doubts.resolve(key, happened=happened, result=result, by=by, at=self._clock.wall())

    async def accept(self, key: str, *, again: bool = False) -> None:
        """Let a stored step stand for other calls of its function, too: a way out of SESS_STEP_DRIFT.

            except HoldfastError as error:
                await session.accept(error.fault.context["key"])

        The next such call returns the stored result. With `again` it says the opposite about a further equal call, after somebody had to
        find out what became of the first one: it is meant, and runs. Raises `InvalidError` for a key that is not of a stored step.
        """
        await self._turns.accept(key, again=again)

    async def rerun(self, key: str) -> tuple[str, ...]:
        """Forget a stored step and those that were stored after it in its turn or session: they run again when they are called.

            kept = await session.rerun("release-42/make_plan@5f1c2ab09d3e4f71")

        Unsafe steps that happened, or may have, are never forgotten; their keys are returned. Raises `InvalidError` for a key that is not
        of a stored step.
        """
        return await self._turns.rerun(key)

    def attach(self, interactor: Interactor) -> None:
        """Let an interactor answer from now on: `session.attach(Console())`.

        All attached interactors are asked at once. The first answer counts, and the others are cancelled.
        """
        self._questions.attach(interactor)

    def detach(self, interactor: Interactor) -> None:
        """Stop asking an interactor. A prompt that it shows is cancelled."""
        self._questions.detach(interactor)

    @contextmanager
    def watching(self, seen: Callable[[Question], object]) -> Iterator[None]:
        """Let a function see each question of this program that waits for an answer: `with session.watching(print): …`.

        It does not answer. `answer` does, from anywhere.
        """
        self._questions.watchers.append(seen)
        try:
            yield
        finally:
            self._questions.watchers.remove(seen)

    async def notify(self, text: str, *, fault: Fault | None = None) -> int:
        """Show a text to everybody who is attached and can show one: `await session.notify("The build is red.")`.

        Returns how many interactors showed it. It is not stored, so a program that is run again shows it again; `session.step` around it
        shows it once.
        """
        return await self._questions.notify(Notice(session=self.id, text=text, fault=fault))

    async def ask(self, prompt: str, *, details: dict[str, Any] | None = None, expires: float | None = None) -> str:
        """Ask for a text: `name = await session.ask("Which branch?")`. A no raises TOOL_APPROVAL_DENIED.

        `details` are for the interactors to show, as in `approval`.
        """
        payload = {"prompt": prompt, **_details(details, "session.ask")}
        return str(await self._questions.value(await self._turns.steps(), "Ask", payload, expires))

    async def approve(self, prompt: str, *, expires: float | None = None) -> bool:
        """Ask for permission; return whether it was given: `if await session.approve("Deploy?", expires=3600)`."""
        return await self._questions.is_yes(await self._turns.steps(), "Approve", {"prompt": prompt}, expires)

    async def approval(
        self, prompt: str, *, details: dict[str, Any], expires: float | None = None, call: str = ""
    ) -> Answered:
        """Ask for permission to do exactly what `details` says; return the answer with its outcome, its reason and who gave it.

            answer = await session.approval("Send the mail?", details={"to": to, "text": text})
            if answer.outcome == "accepted": ...

        The answer is valid only for the same prompt and details: with other ones it is another question, also after a restart.
        `call` is the id of the tool call that it is about, as people see it; it may be another one after a restart.
        """
        payload = {"prompt": prompt, "details": codec.plain(details, "session.approval")}
        if call:
            payload[TOOL_CALL] = call
        return await self._questions.whole_answer(await self._turns.steps(), "Approve", payload, expires)

    def audit(self, kind: str, **facts: Any) -> None:
        """Add a record to the session's audit trail. It is written with the next commit, after a second at the latest.

        session.audit("Approval", tool="deploy", verdict="deny")
        """
        self._journal.recorder.add(audit(kind, self.id, **facts))

    def storable(self, value: T) -> T:
        """Return a JSON value as the session's store takes it: with a mask in place of each secret that the store knows.

            text = session.storable(answer)             # "The key is [redacted]."

        Storing such a secret raises `InvalidError`, so mask what others wrote, the answer of a model for example, before a step returns it.
        """
        return mask_of(self._store).storable(value)

    def storable_pieces(self) -> PieceMask:
        """Return what does the same as `storable` with a text that comes in pieces.

        pieces = session.storable_pieces()
        shown = [pieces.add(chunk) for chunk in chunks] + [pieces.end()]
        """
        return mask_of(self._store).pieces()

    async def confirm(self, prompt: str, *, expires: float | None = None) -> bool:
        """Ask whether a fact is true: `if await session.confirm("Is the site up?")`."""
        return await self._questions.is_yes(await self._turns.steps(), "Confirm", {"prompt": prompt}, expires)

    async def select(
        self,
        prompt: str,
        choices: Sequence[str],
        *,
        details: dict[str, Any] | None = None,
        expires: float | None = None,
    ) -> str:
        """Ask for one of several choices: `await session.select("Where?", ["staging", "production"])`.

        `details` are for the interactors to show, as in `approval`. A no raises TOOL_APPROVAL_DENIED; an empty list of choices raises
        SESS_INTERACTION_MISMATCH.
        """
        payload = {"prompt": prompt, "choices": list(choices), **_details(details, "session.select")}
        return str(await self._questions.value(await self._turns.steps(), "Select", payload, expires))

    async def authenticate(
        self, prompt: str, *, url: str = "", user_code: str = "", expires: float | None = None
    ) -> bool:
        """Ask somebody to sign in elsewhere; return whether they did. The code is shown but not stored.

        await session.authenticate("Sign in to GitHub", url="https://github.com/login/device", user_code="AB-12")
        """
        return await self._questions.is_yes(
            await self._turns.steps(), "Auth.DeviceCode", {"prompt": prompt, "url": url}, expires, user_code
        )

    async def password(self, prompt: str, *, expires: float | None = None) -> str | None:
        """Ask for a password; return None if mode `yolo` answers. The password is not stored, so a resumed session asks again.

        A no raises TOOL_APPROVAL_DENIED.
        """
        value = await self._questions.value(await self._turns.steps(), "Auth.Password", {"prompt": prompt}, expires)
        return None if value is None else str(value)

    async def answer(
        self,
        id: str,  # noqa: A002 - the protocol's own name
        value: Any = None,
        *,
        approved: bool | None = None,
        by: str = "",
    ) -> Answered:
        """Answer a question of this session: `await session.answer(session.pending[0].id, approved=True)`.

        `holdfast.sessions.answer` does the same from another process. Its documentation lists the errors of both.
        """
        answered = await answers.answer(
            self._journal.store, self.id, id, value, approved=approved, by=by, runtime=self._runtime
        )
        # The commit did not go through our journal, so the journal must read it from the store.
        await self._journal.catch_up()
        return answered

    @overload
    async def step_or_ask(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step_or_ask(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step_or_ask(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step; if it fails, ask a person: retry, retry with other input, sign in and retry, or say whether it happened.

            await session.step_or_ask(fetch, url)

        If the person declines, or no person can help, or after three questions, the step's error is raised as `step` raises it.
        """
        remedies = Remedies(self, self._questions, await self._turns.steps())
        return await remedies.step_or_ask(fn, args, kwargs)

    async def fork(self, new: str, *, at: int | None = None, turn: int | None = None) -> int:
        """Make a new session that begins with the work of this one; return the offset of its last entry.

            await session.fork("release-42-b", turn=3)          # everything before turn 3
            async with Session.open("release-42-b") as other: ...

        Steps that are stored here up to the offset `at`, or before `turn` began (by default all), are done in the new session too; the
        other steps run there, with keys of their own. This session stays as it is. Context that is not saved yet is not in it: see
        `checkpoint`. `holdfast.sessions.admin.fork_session` does the same from another process, and lists the errors.
        """
        await self._journal.catch_up()
        return await fork_session(self._store, self.id, new, at=at, turn=turn)

    async def close(self, reason: str = "closed") -> None:
        """Close the session for good: it cannot be opened again. A turn in flight is abandoned.

        await session.close("shipped")
        """
        await self._turns.in_order(partial(self._end, SessionState.CLOSED, reason))

    async def fail(self, reason: str) -> None:
        """End the session for good because of a failure: as `close`, but its state is `error`, in which retention keeps it.

        await session.fail("ACTOR_MAX_RESTARTS")
        """
        await self._turns.in_order(partial(self._end, SessionState.ERROR, reason))

    async def _end(self, to: SessionState, reason: str, noted: WorkNoted | None = None) -> None:
        # End the turn before the state changes, because an ended session takes no further entry.
        await self._turns.end("abandoned", reason)
        if noted is None or self.context:
            await self._journal.save(self.context)
        await self._go(to, f"session_{to.value}", reason, noted)
        self._journal.failed = session_ended(self.id, to)

    def cancel(self, reason: Reason = "user") -> bool:
        """Cancel the session's block: it raises `AbortedError` with SESS_CANCELLED. Return whether it was running."""
        return self._scope.cancel(reason)

    @property
    def _questions(self) -> QuestionBroker:
        # Most sessions ask nothing, so the broker is made at its first use.
        if self._broker is None:
            self._broker = QuestionBroker(
                self._journal, mode=self._mode, runtime=self._runtime, interactors=self._interactors
            )
        return self._broker

    async def _open(self) -> None:
        record = await self._store.session(self.id)
        self._state = record.state
        was = decode_manifest(self.id, bytes(record.manifest))
        self._take_list(was)
        self.drift = await compare(self._journal, was, self._manifest(), self._on_drift)
        # Read the log only after the comparison. A session that may not be resumed has raised before.
        await self._journal.load()
        self._turns.load()
        if record.state is SessionState.ACTIVE:
            await self._crashed()
        if self._state is not SessionState.CREATED:
            await self._resume()

    def _take_list(self, was: Manifest | None) -> None:
        """Take the list of allowed tools from the manifest, if it was not given."""
        if self._mode != "allowlist" or self._allowed_tools is not None:
            return
        self._allowed_tools = None if was is None else was.allowed_tools
        if self._allowed_tools is None:
            raise InvalidError.saying("session.allowed_tools", 'the names of the tools for mode="allowlist"', "nothing")
        if self._started_with is not None:
            self._started_with["allowed_tools"] = self._allowed_tools

    def _first_manifest(self) -> Manifest:
        self._take_list(None)
        return self._manifest()

    def _manifest(self) -> Manifest:
        now = self._clock.wall()
        fields = self._started_with or {}
        epoch: str | None = getattr(self._store, "epoch", None)
        return Manifest(
            session_id=self.id,
            store_id=self._store.id,
            store_epoch=epoch,
            created_at=now,
            updated_at=now,
            **fields,
        )

    @property
    def _clock(self) -> Clock:
        return (self._runtime or default_runtime()).clock

    async def _crashed(self) -> None:
        """Pause a session whose owner died. With `on_crash="abandon"` its turn is given up too (C23)."""
        await self._go(SessionState.PAUSED, "session_paused", "crash")
        if self._on_crash == "abandon":
            await self._turns.end("abandoned", BY_CRASH)

    async def _resume(self) -> None:
        manifest = decode_manifest(self.id, bytes((await self._store.session(self.id)).manifest))
        check_resumable(self.id, self._state, manifest)
        await self._go(SessionState.ACTIVE, "session_resumed", "")
        self._turns.resumed = True

    async def _leave(self, error: BaseException | None) -> None:
        """Pause the session, and end a turn that ran here. A turn that an earlier crash cut off stays in flight."""
        await self._journal.finish_late()
        if self._journal.failed is not None:
            return
        async with self._turns.changing:
            if error is None:
                await self._turns.end_well()
                if self.context:
                    await self._activate()
            if self._state is not SessionState.ACTIVE:
                # Nothing was done in it, but something may have been decided.
                await self._journal.write_waiting()
                return
            reason = "" if error is None else type(error).__name__
            # After an exception the turn stays in flight, and the next start of the program continues it. The context stays that
            # of the last checkpoint, as after a kill: the program will set it again.
            await self._journal.save(self.context if error is None else None)
            await self._go(SessionState.PAUSED, "session_paused", reason)

    async def _activate(self) -> None:
        if self._state is SessionState.CREATED:
            await self._go(SessionState.ACTIVE, "session_active", "first use")

    async def _go(self, to: SessionState, type_: str, reason: str, noted: WorkNoted | None = None) -> None:
        """Change the state. Both the machine and the store reject a transition that is not allowed."""
        machine.check(self.id, self._state, to)
        change = StateChanged(state=to, reason=reason)
        record = audit("SessionLifecycle", self.id, state=to.value, reason=reason, was=self._state.value)
        notes, work = ending(self._journal, to, noted)
        await self._journal.write(
            *notes, change, type_=type_, state=to, expect=(self._state,), audit=(record,), work=work
        )
        was, self._state = self._state, to
        lifecycle.state_changed(self.id, self._runtime, was, to, resumed=self._turns.resumed)

    def _lose(self, fault: Fault) -> None:
        """Stop working: another process owns the session now."""
        self._journal.failed = fault
        self._scope.cancel("cap")


def _details(given: dict[str, Any] | None, where: str) -> dict[str, Any]:
    """Return the part of a question's payload with its details. Without details there is none: the payload identifies the question."""
    return {} if given is None else {"details": codec.plain(given, where)}


def _store_clock(runtime: Runtime | None) -> Clock | None:
    """Return the clock for a store that is opened by its address, or None to use the store's own clock.

    PostgreSQL uses the server's clock, which is the same for all machines. Replace it only by a special clock, such as the clock
    of a test.
    """
    return None if runtime is None or isinstance(runtime.clock, SystemClock) else runtime.clock
