"""Work of a session that is retried later: a timer in its log, a question to the operator, and who goes on when the time has come.

    failure ─▶ wait_later ─▶ ParkedError: the time is stored, and the process may end
                                   └──▶ run_due, in any process that knows the program: the work goes on
            └▶ ask_operator ─▶ an Approve question in the store, and an event that raises an alert

`LaterSteps` is both around one step: `Session.retry_later` returns it.

Invariant: a time is stored before its caller learns of it, and is waited for once. The lease of the session lets one process go on with it.
A run that goes on stays in the list of parked runs, due under its own key, until it ends or waits again. So if its process stops, another
one goes on.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from holdfast import options
from holdfast.events import OperatorAsked, Retry
from holdfast.faults import (
    AbortedError,
    BudgetError,
    Err,
    Fault,
    HoldfastError,
    InvalidError,
    Ok,
    Outcome,
    OutcomeUnknownError,
)
from holdfast.once.identity import is_outermost
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions.callee import name_of
from holdfast.sessions.journal import memory_of
from holdfast.sessions.manifest import decode_manifest
from holdfast.sessions.parked_runs import ParkedError, parked_fault, parked_until, shown_time
from holdfast.sessions.session import Session
from holdfast.stores import SessionState, shared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.log import RunParked
    from holdfast.sessions.questions.question import Interactor
    from holdfast.stores import SessionRecord, Store

__all__ = [
    "DueRun",
    "LaterSteps",
    "Origin",
    "Resumable",
    "ask_operator",
    "collected",
    "ends_the_run",
    "is_waiting",
    "resumable",
    "run_due",
    "wait_later",
    "watch_due",
]

P = ParamSpec("P")
T = TypeVar("T")

_LATEST_S = 30 * 86_400.0
"""The longest delay."""
_MOST_QUESTIONS = 3
"""To the operator about one step: an answer that is given automatically would never end it."""
_AGAIN_S = 600.0
"""Seconds until a due run is tried again that failed and has not ended: its program may be another one then, or its outcome known."""
_NOT_OURS = frozenset({"SESS_LEASE_LOST", "SESS_CLOSED", "SESS_NOT_FOUND", "SESS_NOT_RESUMABLE"})
"""Another process works in the session, or nobody will."""


class Resumable(Protocol):
    """What `run_due` can go on with: a `Workflow`, for example."""

    @property
    def run_name(self) -> str:
        """What the runs are called in every process: `workflow review`."""
        ...

    async def resume(self, session: Session, inputs: Any) -> Any:
        """Run in a session, with the inputs as JSON values; a run that was begun there goes on."""
        ...


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be run so that parked work goes on: a `Resumable`, and its inputs."""

    key: str
    """The key of the run, of `Session.numbered`."""
    program: str
    inputs: Any = None

    def has(self, run: RunParked) -> bool:
        """Whether this is what has to be run so that a parked run goes on."""
        return (run.program, run.given) == (self.program, self.inputs)

    @classmethod
    def of(cls, session: Session, program: str, inputs: Any, key: str) -> Origin | None:
        """Return the origin of the run with this key of `Session.numbered`.

        None if another process could not begin it the same way: inside of a turn, a step or another part of a program, for the second time with
        the same inputs, or with inputs that hold a secret.
        """
        if session.current_turn is not None or not is_outermost(key) or session.storable(inputs) != inputs:
            return None
        return cls(key=key, program=program, inputs=inputs)


class _Begun:
    """A run of a program that works in this process, from its begin to its end."""

    def __init__(self, session: Session, origin: Origin | None) -> None:
        self.session = session
        self.origin = origin
        self.went_on = False
        """Whether it has passed one of its timers, in this process."""

    async def ended(self) -> None:
        """Nothing of it is due any more, also no timer that an earlier version of the program had."""
        for run in self.session.parked.all():
            if self.origin is not None and self.origin.has(run):
                await self.session.parked.unpark(run.agent)

    async def stopped(self, error: Exception, ends: Callable[[Exception], bool]) -> None:
        """Store when it goes on. If nothing says so, it is due at once: it was cut off."""
        parked, origin = self.session.parked, self.origin
        if origin is None or (due := parked.of(origin.key)) is None:
            return
        if isinstance(error, ParkedError):
            own = [run.until for run in parked.all() if origin.has(run) and run is not due]
            if min(own, default=math.inf) <= error.until:
                await parked.unpark(origin.key)
            else:
                # It waits for something that is not its own timer, such as the usage limit of an agent.
                await parked.move(due, origin.key, error.until)
        elif self.went_on and ends(error):
            await parked.unpark(origin.key)


_BEGUN: ContextVar[_Begun | None] = ContextVar("holdfast_begun", default=None)


def _never(error: Exception) -> bool:
    del error
    return False


async def resumable(
    session: Session,
    program: str,
    inputs: Any,
    key: str,
    work: Callable[[Origin | None], Awaitable[T]],
    *,
    ends: Callable[[Exception], bool] = _never,
) -> T:
    """Return `await work(origin)`, the run of a program with this key of `Session.numbered`, so that `run_due` can go on with it.

        return await resumable(session, self.run_name, inputs, key, work, ends=is_failure)

    A run that returns, or that raises an exception for which `ends` is true after a timer, has ended. Any other failure stops it, and it stays due. A run inside of
    another one goes on with that one.
    """
    outer = _BEGUN.get()
    if outer is not None and outer.session is session:
        return await work(outer.origin)
    begun = _Begun(session, Origin.of(session, program, inputs, key))
    token = _BEGUN.set(begun)
    try:
        value = await work(begun.origin)
    except Exception as error:
        await begun.stopped(error, ends)
        raise
    finally:
        _BEGUN.reset(token)
    await begun.ended()
    return value


async def wait_later(
    session: Session,
    run: str,
    seconds: float,
    fault: Fault,
    *,
    origin: Origin | None = None,
    attempt: int = 1,
    attempts: int | None = None,
    runtime: Runtime | None = None,
) -> None:
    """Return when a delay is over that survives the process; until then raise `ParkedError`.

        await wait_later(session, f"{key}/again/1", 3600, fault, origin=origin)

    `run` names this delay, and is the same in every run of the program. The time is stored at the first call. `holdfast sessions ls` shows it, and
    `holdfast sessions unpark` ends it. `attempt` of `attempts` has failed, with `fault`.
    """
    runtime = runtime or default_runtime()
    timer = session.keyed(f"{run}/until")
    parked = session.parked.of(run)
    if not await timer.is_stored():
        if parked is None:
            until = runtime.clock.wall() + seconds
            await _park(session, run, until, fault, origin)
            runtime.bus.emit(
                Retry(
                    at=runtime.clock.wall(),
                    operation=run,
                    attempt=attempt,
                    max_attempts=attempts,
                    delay=seconds,
                    fault=fault,
                    why=f"parked until {shown_time(until)}",
                    session=session.id,
                )
            )
            parked = session.parked.of(run)
        # Written after the timer: a crash between the two leaves a timer, and no delay is lost.
        await timer.step(_written, None if parked is None else parked.until)
    now = runtime.clock.wall()
    if parked is not None and parked.until > now:
        context = {"parked_until": parked.until, "session_id": session.id, "agent": run}
        fault = parked_fault(parked)
        error = ParkedError(msgspec.structs.replace(fault, retry_after=parked.until - now, context=context))
        raise session.parked.waits(run, error)
    session.parked.goes_on(run)
    # Without an entry it was waited for before, or somebody ended it.
    await _go_on(session, parked, origin, now)


async def _go_on(session: Session, parked: RunParked | None, origin: Origin | None, now: float, by: str = "") -> None:
    """Store that a run has passed a timer. It is due until it ends, because its process may stop before."""
    begun = _BEGUN.get()
    if begun is not None:
        begun.went_on = True
    if parked is None:
        return
    if origin is None:
        await session.parked.unpark(parked.agent, by=by)
    else:
        await session.parked.move(parked, origin.key, now, by=by)


async def _written(until: float | None) -> float | None:
    return until


async def _park(session: Session, run: str, until: float, fault: Fault, origin: Origin | None) -> None:
    program, given = ("", None) if origin is None else (origin.program, origin.inputs)
    await session.parked.park(run, until, fault, program=program, given=given)


async def ask_operator(
    session: Session,
    run: str,
    fault: Fault,
    *,
    attempts: int,
    origin: Origin | None = None,
    runtime: Runtime | None = None,
) -> bool:
    """Ask whether work that has failed so often is to be tried again; return the answer.

        if not await ask_operator(session, f"{key}/operator/1", fault, attempts=3):
            raise error

    The question is an Approve of the session, so anybody may answer it: an interactor, or `holdfast sessions answer` later. The event
    `operator-asked` raises an alert, once. Without an interactor it raises SESS_NO_INTERACTOR; the question stays, and `run_due` goes on when
    it is answered.
    """
    runtime = runtime or default_runtime()
    alert = session.keyed(f"{run}/alert")
    if not await alert.is_stored():
        await _park(session, run, runtime.clock.wall(), fault, origin)
        runtime.bus.emit(
            OperatorAsked(at=runtime.clock.wall(), operation=run, attempts=attempts, fault=fault, session=session.id)
        )
        await alert.step(_written, None)
    reason = process_redactor().text(fault.message)
    answer = await session.approval(
        f"{run.partition('@')[0]} failed {attempts} times: {reason} Try it again?",
        details={"run": run, "code": fault.code, "attempts": attempts},
    )
    await _go_on(session, session.parked.of(run), origin, runtime.clock.wall(), by=answer.by)
    return answer.outcome == "accepted" and answer.value is not False


def is_waiting(error: BaseException) -> bool:
    """Whether a run stopped because it waits in its session: for a time, or for the answer of a person."""
    if isinstance(error, ParkedError):
        return True
    return isinstance(error, HoldfastError) and error.fault.code == "SESS_NO_INTERACTOR"


def ends_the_run(error: BaseException) -> bool:
    """Whether a failure is not the program's to handle: the session failed, the run was stopped, or a call may have happened."""
    if isinstance(error, (AbortedError, OutcomeUnknownError)):
        return True
    return isinstance(error, HoldfastError) and error.fault.code.startswith("SESS_")


async def collected(outcomes: AsyncIterator[Outcome[T]]) -> list[Outcome[T]]:
    """Return all outcomes of a map. An item that waits has no outcome yet: its `ParkedError` is raised when all others have one."""
    found = [outcome async for outcome in outcomes]
    waiting = [each.error for each in found if isinstance(each, Err) and isinstance(each.error, ParkedError)]
    if waiting:
        raise min(waiting, key=lambda error: error.until)
    return found


# --- one step that is tried again later ---


class LaterSteps:
    """Steps that are tried again later. `Session.retry_later` makes it."""

    __slots__ = ("_after", "_asks", "_attempts", "_backoff", "_runtime", "_session")

    def __init__(
        self, session: Session, runtime: Runtime | None, *, after: float, attempts: int, backoff: float, ask: bool
    ) -> None:
        options.seconds("retry_later.after", after)
        if after > _LATEST_S:
            raise InvalidError.at("retry_later.after", f"at most {_LATEST_S:.0f} seconds", after)
        options.count("retry_later.attempts", attempts)
        options.at_least("retry_later.backoff", backoff, 1)
        options.flag("retry_later.ask", ask)
        self._session = session
        self._runtime = runtime or default_runtime()
        self._after = after
        self._attempts = attempts
        self._backoff = backoff
        self._asks = ask

    @overload
    async def step(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` once, as `Session.step` does. If it fails, store when it is tried again.

            release = await session.retry_later(after=3600, attempts=5).step(deploy, "4.2")

        Raises `ParkedError` while it waits, SESS_NO_INTERACTOR while the operator is asked, and what `Session.step` raises. The failure of
        the last attempt is raised, too.
        """

        async def tried(key: str) -> Any:
            made = questions = 0
            while True:
                made += 1
                number = made + questions * self._attempts
                is_last = made == self._attempts
                failure = self._session.keyed(f"{key}/failed/{number}")
                original: Exception | None = None
                if not await failure.is_stored():
                    doubts = set(self._session.unknown)
                    try:
                        return await self._session.step(fn, *args, **kwargs)
                    except Exception as error:
                        is_over = is_last and not (self._asks and questions < _MOST_QUESTIONS)
                        if is_over or not _may_be_tried_again(error) or not doubts.issuperset(self._session.unknown):
                            raise
                        original = error
                stored = await failure.step(_given, None if original is None else self._stored(original))
                fault = msgspec.convert(stored, Fault)
                if not is_last:
                    await self._wait(f"{key}/later/{number}", made, fault)
                elif await self._ask(f"{key}/operator/{number}", fault, number):
                    made, questions = 0, questions + 1
                else:
                    raise original or HoldfastError(fault)

        return await self._session.numbered(name_of(fn), [args, kwargs], tried)

    def _stored(self, error: Exception) -> Any:
        fault = self._runtime.fault_of(error)
        return self._session.storable(msgspec.to_builtins(msgspec.structs.replace(fault, partial=None), enc_hook=str))

    async def _wait(self, run: str, made: int, fault: Fault) -> None:
        delay = min(_LATEST_S, self._after * self._backoff ** (made - 1))
        # A provider that says when it is back is not called before.
        seconds = max(delay, fault.retry_after or 0.0)
        await wait_later(
            self._session,
            run,
            seconds,
            fault,
            origin=self._origin,
            attempt=made,
            attempts=self._attempts,
            runtime=self._runtime,
        )

    async def _ask(self, run: str, fault: Fault, attempts: int) -> bool:
        return await ask_operator(
            self._session, run, fault, attempts=attempts, origin=self._origin, runtime=self._runtime
        )

    @property
    def _origin(self) -> Origin | None:
        """Return what has to be run so that it goes on; None: the program that holds it, which nobody else can begin."""
        begun = _BEGUN.get()
        return begun.origin if begun is not None and begun.session is self._session else None


def _may_be_tried_again(error: Exception) -> bool:
    return not (is_waiting(error) or ends_the_run(error) or isinstance(error, BudgetError))


async def _given(value: Any) -> Any:
    return value


# --- going on when the time has come ---


class DueRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose time had come, and how it ended: `Ok` with its value, or `Err`, also if it is parked again."""

    session: str
    program: str
    """Such as `workflow review`; empty if the log of the session cannot be read."""
    outcome: Outcome[Any]


async def run_due(
    store: Store | str | Path,
    *programs: Resumable,
    runtime: Runtime | None = None,
    interactors: Iterable[Interactor] = (),
) -> AsyncIterator[DueRun]:
    """Go on with the runs of these programs whose time has come, in every session of a store; yield how each ended.

        async for run in run_due("sqlite:work.db", Workflow.load("review.sexp", tasks=tasks)):
            print(run.session, run.outcome)

    `store` is an open store, or an address.
    Several processes may do that at the same time: the lease of a session lets one of them run it, and the others leave it out. A session
    with a question that nobody has answered is left alone, unless `interactors` can answer. A session that is damaged is an `Err`, and does
    not stop the others.

    Raises `InvalidError` if two programs have the same name, because a run is known by it; and SESS_STORE_UNAVAILABLE.
    """
    async with shared.opened(store) as opened:
        due_runs = _DueRuns(opened, programs, runtime or default_runtime(), tuple(interactors))
        after = ""
        while page := await opened.sessions(states=(SessionState.ACTIVE, SessionState.PAUSED), after=after):
            after = page[-1].id
            for record in page:
                async for run in due_runs.of(record):
                    yield run


async def watch_due(
    store: Store | str | Path,
    *programs: Resumable,
    every: float = 30.0,
    runtime: Runtime | None = None,
    interactors: Iterable[Interactor] = (),
) -> AsyncIterator[DueRun]:
    """Do the work of `run_due` every so many seconds, until it is cancelled.

    async for run in watch_due(store, workflow):
        print(run.session, run.outcome)
    """
    options.seconds("watch_due.every", every)
    answering = tuple(interactors)
    while True:
        async for run in run_due(store, *programs, runtime=runtime, interactors=answering):
            yield run
        await asyncio.sleep(every)


class _DueRuns:
    """Goes on with what is due in a session."""

    def __init__(
        self, store: Store, programs: tuple[Resumable, ...], runtime: Runtime, interactors: tuple[Interactor, ...]
    ) -> None:
        self._store = store
        self._programs: dict[str, Resumable] = {}
        for program in programs:
            if self._programs.setdefault(program.run_name, program) is not program:
                # One would go on with the runs of the other. The default name of a stage machine is always the same.
                raise InvalidError.saying(
                    "run_due", "programs with different names", f"two that are {program.run_name!r}"
                )
        self._runtime = runtime
        self._interactors = interactors

    async def of(self, record: SessionRecord) -> AsyncIterator[DueRun]:
        """Yield how each run of a session ended that was due."""
        until = parked_until(record)
        if until is None or until > self._now:
            return
        try:
            memory = await memory_of(self._store, record.id)
        except HoldfastError as error:
            if error.fault.code == "SESS_STORE_UNAVAILABLE":
                raise
            if error.fault.code not in _NOT_OURS:
                yield DueRun(session=record.id, program="", outcome=Err(error.fault, error))
            return
        if memory.pending() and not self._interactors:
            return
        for due in self._due(memory.parked.values()):
            outcome = await self._opened(record, due)
            if outcome is not None:
                yield DueRun(session=record.id, program=due.program, outcome=outcome)

    def _due(self, parked: Iterable[RunParked]) -> list[RunParked]:
        """Return what has to be run now, each once: several items of one run may wait."""
        found: list[RunParked] = []
        for run in sorted(parked, key=lambda run: run.until):
            is_due = run.program in self._programs and run.until <= self._now
            if is_due and not any(_is_same(run, other) for other in found):
                found.append(run)
        return found

    async def _opened(self, record: SessionRecord, due: RunParked) -> Outcome[Any] | None:
        """Open the session and go on; None if another process does, or has done."""
        opened = False
        try:
            async with self._session(record) as session:
                opened = True
                # Another process may have run it before this one got the lease.
                is_due = any(_is_same(due, run) for run in self._due(session.parked.all()))
                return await self._go_on(session, due) if is_due else None
        except HoldfastError as error:
            return None if not opened and error.fault.code in _NOT_OURS else Err(error.fault, error)

    def _session(self, record: SessionRecord) -> Session:
        manifest = decode_manifest(record.id, bytes(record.manifest))
        return Session.open(
            record.id,
            store=self._store,
            strict=True,
            mode=manifest.mode,
            allowed_tools=manifest.allowed_tools,
            runtime=self._runtime,
            interactors=self._interactors,
        )

    async def _go_on(self, session: Session, due: RunParked) -> Outcome[Any]:
        try:
            return Ok(await self._programs[due.program].resume(session, due.given))
        except Exception as error:  # noqa: BLE001 - any failure of a run is its outcome
            fault = self._runtime.fault_of(error)
            if not is_waiting(error):
                await self._put_back(session, due, fault)
            return Err(fault, error)

    async def _put_back(self, session: Session, due: RunParked, fault: Fault) -> None:
        """Let a run that has failed and not ended come again later, or this process would run it all the time."""
        for run in session.parked.all():
            if _is_same(run, due) and run.until <= self._now:
                again = self._now + _AGAIN_S
                await session.parked.park(run.agent, again, fault, program=run.program, given=run.given)

    @property
    def _now(self) -> float:
        return self._runtime.clock.wall()


def _is_same(run: RunParked, other: RunParked) -> bool:
    """Whether the same has to be run for both."""
    return (run.program, run.given) == (other.program, other.given)
