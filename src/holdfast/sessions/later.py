"""Work of a session that is retried later: a timer in its log, a question to the operator, and who goes on when the time has come.

    failure ─▶ wait_later ─▶ ParkedError: the time is stored, and the process may end
                                   └──▶ run_due, in any process that knows the program: the work goes on
            └▶ ask_operator ─▶ an Approve question in the store, and an event that raises an alert

Invariant: a time is stored before its caller learns of it, and is waited for once. The lease of the session lets one process go on with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast import options
from holdfast.events import OperatorAsked, Retry
from holdfast.faults import Err, Fault, HoldfastError, Ok, Outcome
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions.journal import memory_of
from holdfast.sessions.manifest import decode_manifest
from holdfast.sessions.parked_runs import ParkedError, parked_fault, parked_until, shown_time
from holdfast.sessions.session import Session
from holdfast.sessions.steps import is_outermost
from holdfast.stores import SessionState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.log import RunParked
    from holdfast.sessions.questions.question import Interactor
    from holdfast.stores import SessionRecord, Store

__all__ = ["DueRun", "Origin", "Program", "ask_operator", "is_waiting", "run_due", "wait_later", "watch_due"]

_AGAIN_S = 600.0
"""Seconds until a due run is tried again that failed before it reached its timer: its program may be another one now."""
_NOT_OURS = frozenset({"SESS_LEASE_LOST", "SESS_CLOSED", "SESS_NOT_FOUND", "SESS_NOT_RESUMABLE"})
"""Another process works in the session, or nobody will."""


class Program(Protocol):
    """What `run_due` can go on with: a `Workflow`, for example."""

    @property
    def run_name(self) -> str:
        """What the runs are called in every process: `workflow review`."""
        ...

    async def run(self, session: Session, *, inputs: Any) -> Any:
        """Run in a session; a run that was begun there goes on."""
        ...


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be run so that parked work goes on: a `Program`, and its inputs."""

    program: str
    inputs: Any = None

    @classmethod
    def of(cls, session: Session, program: str, inputs: Any, key: str) -> Origin | None:
        """Return the origin of the run with this key of `Session.numbered`.

        None if another process could not begin it the same way: inside of a turn or another part of a program, for the second time with
        the same inputs, or with inputs that hold a secret.
        """
        if session.current_turn is not None or not is_outermost(key) or session.storable(inputs) != inputs:
            return None
        return cls(program=program, inputs=inputs)


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
    if parked is None:
        # It was waited for before, or somebody ended it.
        return
    now = runtime.clock.wall()
    if parked.until > now:
        context = {"parked_until": parked.until, "session_id": session.id, "agent": run}
        fault = parked_fault(parked)
        raise ParkedError(msgspec.structs.replace(fault, retry_after=parked.until - now, context=context))
    await session.parked.unpark(run)


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
    await session.parked.unpark(run, by=answer.by)
    return answer.outcome == "accepted" and answer.value is not False


def is_waiting(error: BaseException) -> bool:
    """Whether a run stopped because it waits in its session: for a time, or for the answer of a person."""
    if isinstance(error, ParkedError):
        return True
    return isinstance(error, HoldfastError) and error.fault.code == "SESS_NO_INTERACTOR"


# --- going on when the time has come ---


class DueRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose time had come, and how it ended: `Ok` with its value, or `Err`, also if it is parked again."""

    session: str
    program: str
    outcome: Outcome[Any]


async def run_due(
    store: Store, *programs: Program, runtime: Runtime | None = None, interactors: Iterable[Interactor] = ()
) -> AsyncIterator[DueRun]:
    """Go on with the runs of these programs whose time has come, in every session of a store; yield how each ended.

        async for run in run_due(store, Workflow.load("review.sexp", tasks=tasks)):
            print(run.session, run.outcome)

    Several processes may do that at the same time: the lease of a session lets one of them run it, and the others leave it out. A session
    with a question that nobody has answered is left alone, unless `interactors` can answer.
    """
    due_runs = _DueRuns(store, programs, runtime or default_runtime(), tuple(interactors))
    after = ""
    while page := await store.sessions(states=(SessionState.ACTIVE, SessionState.PAUSED), after=after):
        after = page[-1].id
        for record in page:
            async for run in due_runs.of(record):
                yield run


async def watch_due(
    store: Store,
    *programs: Program,
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
        self, store: Store, programs: tuple[Program, ...], runtime: Runtime, interactors: tuple[Interactor, ...]
    ) -> None:
        self._store = store
        self._programs = {program.run_name: program for program in programs}
        self._runtime = runtime
        self._interactors = interactors

    async def of(self, record: SessionRecord) -> AsyncIterator[DueRun]:
        """Yield how each run of a session ended that was due."""
        until = parked_until(record)
        if until is None or until > self._now:
            return
        memory = await memory_of(self._store, record.id)
        if memory.pending() and not self._interactors:
            return
        for origin in self._due(memory.parked.values()):
            outcome = await self._opened(record, origin)
            if outcome is not None:
                yield DueRun(session=record.id, program=origin.program, outcome=outcome)

    def _due(self, parked: Iterable[RunParked]) -> list[Origin]:
        """Return what has to be run now, each once: several items of one run may wait."""
        found: list[Origin] = []
        for run in sorted(parked, key=lambda run: run.until):
            origin = _origin(run)
            if run.program in self._programs and run.until <= self._now and origin not in found:
                found.append(origin)
        return found

    async def _opened(self, record: SessionRecord, origin: Origin) -> Outcome[Any] | None:
        """Open the session and go on; None if another process does, or has done."""
        manifest = decode_manifest(record.id, bytes(record.manifest))
        session = Session.open(
            record.id,
            store=self._store,
            strict=True,
            mode=manifest.mode,
            allowed_tools=manifest.allowed_tools,
            runtime=self._runtime,
            interactors=self._interactors,
        )
        opened = False
        try:
            async with session:
                opened = True
                # Another process may have run it before this one got the lease.
                is_due = origin in self._due(session.parked.all())
                return await self._go_on(session, origin) if is_due else None
        except HoldfastError as error:
            return None if not opened and error.fault.code in _NOT_OURS else Err(error.fault, error)

    async def _go_on(self, session: Session, origin: Origin) -> Outcome[Any]:
        try:
            return Ok(await self._programs[origin.program].run(session, inputs=origin.inputs))
        except Exception as error:  # noqa: BLE001 - any failure of a run is its outcome
            fault = self._runtime.fault_of(error)
            if not is_waiting(error):
                await self._put_back(session, origin, fault)
            return Err(fault, error)

    async def _put_back(self, session: Session, origin: Origin, fault: Fault) -> None:
        """Let timers that the failed run has not reached come again later, or this process would run it all the time."""
        for run in session.parked.all():
            if _origin(run) == origin and run.until <= self._now:
                await _park(session, run.agent, self._now + _AGAIN_S, fault, origin)

    @property
    def _now(self) -> float:
        return self._runtime.clock.wall()


def _origin(run: RunParked) -> Origin:
    return Origin(program=run.program, inputs=run.given)
