"""One run of a stage machine: performs what the pure machines decide, each phase once.

Invariant: the end of a phase is stored before anything follows from it. A phase that is stored is not entered again, so a run that was
killed goes on in the phase where it was. When a run ends, nothing that it started is still running; only a plain
function in a thread may be, and a run that goes on there waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.events import SessionTurnEnd, SessionTurnStart, StagePostFired, StagePreFired
from holdfast.faults import AbortedError, BudgetError, Fault, HoldfastError, OutcomeUnknownError
from holdfast.once.doubt import UnsettledError
from holdfast.once.outcome import Found, Mark, must_not_repeat
from holdfast.runtime.failures.evidence import in_doubt
from holdfast.sessions.later import is_waiting
from holdfast.sessions.lifecycle import cancelled
from holdfast.sessions.scopes import Scope
from holdfast.tasks.stages.act import StageWork, act_contract, perform
from holdfast.tasks.stages.context import Changes, RunState, StageContext
from holdfast.tasks.task import filled
from holdfast.tasks.workflows.durable import ends_the_run
from holdfast.workflow.requests import Escalate, Later
from holdfast.workflow.stage_lifecycle import (
    ActEnded,
    Enter,
    Lifecycle,
    PhaseEnded,
    StageEnded,
    check_word,
)
from holdfast.workflow.stage_plan import (
    AbortChain,
    BranchEnded,
    FinishChain,
    Go,
    PutOff,
    RunSiblings,
    RunStage,
    StageChain,
    sibling_failed,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.tool import ToolContract
    from holdfast.sessions.session import Session
    from holdfast.tasks.stages.stage import Stage
    from holdfast.tasks.workflows.durable import Keeper
    from holdfast.tools.toolbox import Toolbox
    from holdfast.workflow.stage_lifecycle import Phase
    from holdfast.workflow.stage_plan import Graph, Move

__all__ = ["StageRun"]

_END = Mark("holdfast.stage")
"""Stands around the stored end of a phase."""
_MISTAKES = frozenset({"TASK_CONTEXT_MUTATION", "TASK_STAGE_CONTEXT_UNRESOLVED"})
"""Mistakes in a definition. They are raised, not retried and not stored: the corrected program goes on."""


class StageRun:
    """Drives the machines to their end."""

    def __init__(
        self,
        stages: dict[str, Stage],
        graph: Graph,
        keeper: Keeper,
        *,
        key: str,
        session: Session | None,
        runtime: Runtime,
        tools: Toolbox,
        limit: int,
        scopes: dict[str, list[Scope]],
    ) -> None:
        self._stages = stages
        self._graph = graph
        self._keeper = keeper
        self._key = key
        self._session = session
        self._runtime = runtime
        self._tools = tools
        self._limit = limit
        self._scopes = scopes
        """The scopes of the stages that run, by id."""
        self._ended: dict[str, StageEnded] = {}
        """How the executions ended, by their path, in the order of their ends."""

    @property
    def executions(self) -> tuple[StageEnded, ...]:
        """How the executions ended, in the order of their ends."""
        return tuple(self._ended.values())

    async def finish(self, state: RunState) -> AbortChain | None:
        """Run to the end; return why the workflow was aborted, or None."""
        chain = StageChain(self._graph, limit=self._limit)
        move, before, failures = chain.start(), None, 0
        while not isinstance(move, FinishChain):
            match move:
                case RunStage() | RunSiblings():
                    before, move = move, await self._turn(chain, move, state)
                    failures = failures + 1 if isinstance(move, PutOff) else 0
                case PutOff():
                    assert before is not None
                    if not await self._is_due_again(move, failures):
                        return AbortChain(move.stage, move.fault)
                    move = chain.again(before, move.branches)
                case AbortChain():
                    return move
        return None

    async def _is_due_again(self, move: PutOff, failures: int) -> bool:
        """Return True when a stage that was put off is due, False if it has failed often enough. Until then raise `ParkedError`."""
        stage = self._stages[move.stage]
        assert stage.later.attempts is not None
        if move.is_final or failures >= stage.later.attempts:
            asked = Escalate(fault=move.fault, attempts=failures)
            return stage.ask and await self._keeper.ask_operator(f"{move.number}/operator", asked)
        # A provider that says when it is back is not called before.
        delay = max(stage.later.backoff.delay(failures, self._runtime.rng), move.fault.retry_after or 0.0)
        later = Later(seconds=delay, fault=move.fault, attempt=failures, attempts=stage.later.attempts)
        await self._keeper.wait_later(f"{move.number}/later", later)
        return True

    async def _turn(self, chain: StageChain, move: RunStage | RunSiblings, state: RunState) -> Move:
        """Execute a stage, or parallel ones, as one turn."""
        stages = move.stages if isinstance(move, RunSiblings) else (move.stage,)
        facts: dict[str, Any] = {"number": move.number, "stages": stages}
        is_over = await self._keeper.stored(f"{move.number}/turn") is not None
        if not is_over:
            self._emit(SessionTurnStart(at=self._now, **facts))
        try:
            following, ended = await self._moved(chain, move, "", state)
        except (Exception, asyncio.CancelledError) as error:
            if not is_over:
                self._emit(SessionTurnEnd(at=self._now, **self._cut(error), **facts))
            raise
        if not is_over:
            await self._keeper.once(f"{move.number}/turn", _giving(ended.outcome))
            self._emit(SessionTurnEnd(at=self._now, outcome=ended.outcome, fault=ended.fault, **facts))
        return following

    async def _moved(
        self, chain: StageChain, move: RunStage | RunSiblings, path: str, state: RunState
    ) -> tuple[Move, BranchEnded]:
        """Perform a move; return the next one, and how this one ended."""
        await self._check_move(move, f"{path}{move.number}")
        if isinstance(move, RunStage):
            place = f"{path}{move.number}"
            ended = await self._execution(self._stages[move.stage], place, state)
            # A branch that ended before its siblings were put off passes here again.
            self._ended.setdefault(place, ended)
            end = BranchEnded(stage=ended.stage, outcome=ended.outcome, failed=ended.stage, fault=ended.fault)
            return chain.stage_ended(ended), end
        ends = await self._siblings(chain, move, path, state)
        failed = next((end for end in ends if end.outcome == "fail"), BranchEnded(stage=move.join))
        return chain.siblings_ended(move, ends), failed

    async def _check_move(self, move: RunStage | RunSiblings, path: str) -> None:
        """Raise SESS_STEP_DRIFT if an earlier run had other stages in this place: what they did would be done again under another name."""
        now = list(move.stages) if isinstance(move, RunSiblings) else [move.stage]
        then = await self._keeper.once(f"{path}/stages", _giving(now))
        if then != now:
            raise _drift("" if self._session is None else self._session.id, path, then, now)

    # --- parallel stages ---

    async def _siblings(self, chain: StageChain, move: RunSiblings, path: str, state: RunState) -> list[BranchEnded]:
        """Run the branches at the same time. The first that fails stops the others; one that waits in the session does not."""
        name = f"{path}{move.number}"
        stopped = await self._keeper.stored(f"{name}/stopped-by")
        if stopped is not None:
            return [await self._stopped(name, msgspec.convert(stopped, BranchEnded), (), set(), state)]
        states = [state.branch() for _ in move.stages]
        before = {*self._keeper.doubts(), *self._ended}
        waiting: list[HoldfastError] = []
        failed: list[BranchEnded] = []
        storing = asyncio.Lock()

        async def work(place: int) -> BranchEnded:
            begun = f"{path}{move.turn_of(place)}.{place}/"
            try:
                end = await self._branch(chain.branch(move, place), begun, states[place])
            except HoldfastError as error:
                if not _waits(error):
                    raise
                waiting.append(error)
                return BranchEnded(stage=move.stages[place])
            if end.outcome == "fail":
                failed.append(end)
                # Which one was first is stored, so that a run that is made again fails for the same reason.
                async with storing:
                    stored = await self._keeper.once(f"{name}/stopped-by", _giving(msgspec.to_builtins(end)))
                raise _SiblingFailed(msgspec.convert(stored, BranchEnded))
            return end

        try:
            ends = await _all_or_first_failure([work(place) for place in range(len(move.stages))])
        except _SiblingFailed as failure:
            # A branch that was cut in an earlier turn is still in doubt.
            before -= {error.key for error in waiting if isinstance(error, OutcomeUnknownError)}
            return [await self._stopped(name, failure.end, failed, before, state)]
        if waiting:
            raise min(waiting, key=lambda error: error.fault.context.get("parked_until", float("inf")))
        begun = state.branch()
        for branch in states:
            state.merge(begun, branch)
        return ends

    async def _stopped(
        self, name: str, end: BranchEnded, failed: Sequence[BranchEnded], before: set[str], state: RunState
    ) -> BranchEnded:
        """Return how the branch ended that stopped the others, with what became of those. `before` has older doubts and ends."""
        found: dict[str, Any] = {
            "ended": {place: msgspec.to_builtins(each) for place, each in self._ended.items() if place not in before},
            "in_doubt": [each for each in self._keeper.doubts() if each not in before],
            "failed_too": [each.stage for each in failed if each.stage != end.stage and not each.is_final],
        }
        # Stored, because a run that is made again tells the same, also if somebody has found out.
        found = await self._keeper.once(f"{name}/stopped", _giving(found))
        for place, each in found["ended"].items():
            self._ended.setdefault(place, msgspec.convert(each, StageEnded))
        # In a session a stage that is in doubt stops the run when it goes on. Without one nobody would know.
        is_final = end.is_final or (bool(found["in_doubt"]) and self._session is None)
        end = msgspec.structs.replace(
            end, in_doubt=tuple(found["in_doubt"]), failed_too=tuple(found["failed_too"]), is_final=is_final
        )
        state.failures = {**state.failures, end.failed: sibling_failed(end)}
        return end

    async def _branch(self, chain: StageChain, path: str, state: RunState) -> BranchEnded:
        move = chain.start()
        first = move.stage if isinstance(move, RunStage) else ""
        end = BranchEnded(stage=first)
        while isinstance(move, RunStage | RunSiblings):
            move, end = await self._moved(chain, move, path, state)
        if isinstance(move, AbortChain):
            return BranchEnded(stage=first, outcome="fail", failed=move.stage, fault=move.fault, is_final=move.is_final)
        return BranchEnded(stage=first, outcome="skip" if end.outcome == "skip" else "ok")

    # --- one stage ---

    async def _execution(self, stage: Stage, path: str, state: RunState) -> StageEnded:
        """Take a stage through its phases."""
        parent = (
            None if self._session is None or self._session.current_turn is None else self._session.current_turn.scope
        )
        scope = Scope("stage", parent=parent, name=stage.id)
        async with scope:
            self._scopes.setdefault(stage.id, []).append(scope)
            try:
                ended, changes = await _Execution(self, stage, path, state).run()
            except asyncio.CancelledError as error:
                if scope.reason is not None:
                    cancelled(scope, error, self._runtime)
                raise
            finally:
                self._scopes[stage.id].remove(scope)
        state.context = changes.applied(state.context)
        if ended.outcome == "ok":
            state.results = {**state.results, stage.id: ended.value}
            state.failures = {name: fault for name, fault in state.failures.items() if name != stage.id}
        elif ended.fault is not None:
            state.failures = {**state.failures, stage.id: ended.fault}
        return ended

    def _emit(self, event: Any) -> None:
        self._runtime.bus.emit(event)

    def _cut(self, error: BaseException) -> dict[str, Any]:
        """Return what the events say about a phase or turn that the run goes on with when it is made again."""
        if isinstance(error, asyncio.CancelledError | AbortedError):
            return {"outcome": "cancelled"}
        waits = isinstance(error, HoldfastError) and _waits(error)
        return {"outcome": "waiting" if waits else "fail", "fault": self._runtime.fault_of(error)}

    @property
    def _now(self) -> float:
        return self._runtime.clock.wall()

    # --- what an execution needs ---

    async def phase(
        self,
        name: str,
        stage: Stage,
        enter: Enter,
        make: Callable[[], Awaitable[PhaseEnded]],
        contract: ToolContract | None,
    ) -> PhaseEnded:
        """Run a phase, or return how it ended before. `contract` is what its work declares about its effect.

        An unsafe Act that failed and may have happened raises `OutcomeUnknownError`: nothing follows from it before somebody knows.
        """
        facts: dict[str, Any] = {"stage": stage.id, "phase": enter.phase, "attempt": enter.attempt}

        async def made() -> Any:
            self._emit(StagePreFired(at=self._now, **facts))
            try:
                ended = await make()
            except (Exception, asyncio.CancelledError) as error:
                self._emit(StagePostFired(at=self._now, **self._cut(error), **facts))
                raise
            outcome = _shown(enter.phase, ended.value)
            self._emit(StagePostFired(at=self._now, outcome=outcome, fault=ended.fault, **facts))
            return self._stored(enter, ended)

        stored = _END.read(await self._keeper.once(name, made, contract))
        if isinstance(stored, Found):
            # Only an unsafe Act is ever in doubt.
            return PhaseEnded(value=ActEnded(value=stored.result))
        ended: PhaseEnded = msgspec.convert(stored, PhaseEnded)
        if enter.phase == "Act" and ended.fault is None:
            ended = msgspec.structs.replace(ended, value=msgspec.convert(ended.value, ActEnded))
        return ended

    def _stored(self, enter: Enter, ended: PhaseEnded) -> Any:
        """Return the end of a phase as it is stored."""
        document = msgspec.to_builtins(ended)
        if self._session is not None and (enter.phase == "Act" or ended.fault is not None):
            # What a model wrote, or a failure says, may hold a secret, which a store rejects.
            document = self._session.storable(document)
        return _END.on(document)

    def unsettled(self, stage: Stage, enter: Enter, fault: Fault) -> UnsettledError:
        """Return the error of an unsafe Act that failed. Whatever follows a failure, it must first be known whether it happened."""
        message = f"Act of stage {stage.id} failed and may have happened: {fault.message}"
        doubt = Fault.of("TOOL_OUTCOME_UNKNOWN", message, context=fault.context, cause=fault.cause)
        certain = msgspec.structs.replace(fault, maybe_executed=False)
        return UnsettledError(doubt, self._stored(enter, PhaseEnded(fault=certain)))

    async def failed_or(self, work: Callable[[], Awaitable[Any]], contract: ToolContract | None = None) -> PhaseEnded:
        """Return the value of a phase's work, or the fault that ends the attempt. What ends the run is raised.

        `contract` is what the work declares about its effect.
        """
        try:
            return PhaseEnded(value=await work())
        except Exception as error:
            fault = self._runtime.fault_of(error)
            if ends_the_run(error) or isinstance(error, BudgetError):
                raise
            # A run that is parked at a usage limit goes on when the limit has ended.
            if "parked_until" in fault.context or fault.code in _MISTAKES:
                raise
            if in_doubt(error, fault, contract):
                fault = msgspec.structs.replace(fault, maybe_executed=True)
            return PhaseEnded(fault=fault)

    def work_of(self, stage: Stage, prompt: str, attempt: int, path: str) -> StageWork:
        """Return what Act gets."""
        return StageWork(
            stage,
            prompt,
            execution=f"{self._key}/{path}",
            attempt=attempt,
            keeper=self._keeper,
            place=f"{path}/{attempt}/calls",
            session=self._session,
            tools=self._tools,
        )

    def part(self, path: str) -> AbstractContextManager[None]:
        """Return the block in which the steps of an Act are counted apart from all others."""
        return nullcontext() if self._session is None else self._session.part(f"{self._key}/{path}")

    async def wait(self, name: str, stage: Stage, retry: int) -> None:
        """Wait before a retry. What is stored is when the wait ends, so a restart does not begin it anew."""
        delay = stage.retry.backoff.delay(retry, self._runtime.rng)
        if delay:
            begins = await self._keeper.stored(name) is None
            until = await self._keeper.once(name, _giving(self._now + delay))
            # At most the delay: the clock may have been set back.
            await asyncio.sleep(delay if begins else max(0.0, min(delay, until - self._now)))

    async def act(self, stage: Stage, work: StageWork) -> ActEnded:
        """Let Act work."""
        return await perform(stage, work, self._runtime)

    async def called(self, fn: Callable[..., Any] | None, context: StageContext) -> Any:
        """Call a function of a stage; return what it returns."""
        returned = None if fn is None else fn(context)
        return await returned if inspect.isawaitable(returned) else returned

    def check_plan(self, stage: Stage, plan: Any) -> Any:
        """Return the plan of a Next as it is stored; raise if it cannot be followed."""
        found = Go.of(plan, f"stage {stage.id}: what Next returns")
        if found is not None:
            self._graph.check(found, stage.id)
        return None if found is None else msgspec.to_builtins(found)


class _Execution:
    """One execution of a stage."""

    def __init__(self, run: StageRun, stage: Stage, path: str, state: RunState) -> None:
        self._run = run
        self._stage = stage
        self._path = path
        self._state = state
        self._lifecycle = Lifecycle(stage.id, stage.attempts)
        self._changes = Changes()
        """What Setup of this attempt changed."""
        self._prompt = ""

    async def run(self) -> tuple[StageEnded, Changes]:
        """Take the stage through its phases; return how it ended, and what its last Setup changed."""
        lifecycle = self._lifecycle
        following: Enter | StageEnded = lifecycle.start()
        while isinstance(following, Enter):
            place = f"{self._path}/{following.attempt}"
            if following.is_retry:
                self._changes = Changes()
                await self._run.wait(f"{place}/wait", self._stage, following.attempt - 1)
            ended = await self._phase(f"{place}/{self._stage.id}.{following.phase}", following)
            self._take(following.phase, ended)
            following = lifecycle.ended(ended)
        return following, self._changes

    async def _phase(self, name: str, enter: Enter) -> PhaseEnded:
        work = _WORK[enter.phase]

        contract = act_contract(self._stage, self._work()) if enter.phase == "Act" else None

        async def make() -> PhaseEnded:
            ended = await self._run.failed_or(lambda: work(self), contract)
            if ended.fault is not None:
                if contract is not None and must_not_repeat(contract.effect, ended.fault):
                    raise self._run.unsettled(self._stage, enter, ended.fault)
                return ended
            # Checked before it is stored: a corrected program must be able to go on.
            check_word(self._stage.id, enter.phase, ended.value)
            if enter.phase == "Next":
                return PhaseEnded(value=self._run.check_plan(self._stage, ended.value))
            return ended

        return await self._run.phase(name, self._stage, enter, make, contract)

    def _work(self) -> StageWork:
        """Return what Act of this attempt gets."""
        return self._run.work_of(self._stage, self._prompt, self._lifecycle.attempt, self._path)

    def _take(self, phase: Phase, ended: PhaseEnded) -> None:
        if ended.fault is None and phase == "Setup":
            self._changes = msgspec.convert(ended.value, Changes)
        elif ended.fault is None and phase == "Init":
            self._prompt = ended.value

    def _context(self) -> StageContext:
        lifecycle = self._lifecycle
        state = self._state.branch()
        state.context = self._changes.applied(state.context)
        is_ending = lifecycle.phase in {"Exit", "Next"}
        return StageContext(
            state,
            stage=self._stage.id,
            phase=lifecycle.phase,
            attempt=lifecycle.attempt,
            act=lifecycle.act,
            outcome=lifecycle.outcome if is_ending else "",
            fault=lifecycle.fault,
        )

    # --- the phases ---

    async def setup(self) -> Any:
        context = self._context()
        await self._run.called(self._stage.setup, context)
        return msgspec.to_builtins(context.changes())

    async def init(self) -> str:
        context = self._context()
        returned = await self._run.called(self._stage.init, context)
        return self._body(context) if returned is None else str(returned)

    async def check_gate(self) -> Any:
        return await self._run.called(self._stage.check_gate, self._context())

    async def act(self) -> Any:
        with self._run.part(f"{self._path}/{self._lifecycle.attempt}/act"):
            return msgspec.to_builtins(await self._run.act(self._stage, self._work()))

    async def assert_(self) -> Any:
        outcome = await self._run.called(self._stage.assert_, self._context())
        return self._lifecycle.default_outcome() if outcome is None else outcome

    async def exit(self) -> Any:
        # It cleans up, so it may return anything; only this word is a verdict.
        returned = await self._run.called(self._stage.exit, self._context())
        return returned if isinstance(returned, str) and returned == "fail" else None

    async def next(self) -> Any:
        return await self._run.called(self._stage.next, self._context()) if callable(self._stage.next) else None

    def _body(self, context: StageContext) -> str:
        values = {**context.results, **context}

        def missing(name: str) -> HoldfastError:
            known = ", ".join(sorted(values)) or "nothing"
            message = (
                f"Stage context {name} cannot be resolved: the body of stage {self._stage.id} names {{{name}}}, and the context has "
                f"{known}. Write {{{{ for a brace"
            )
            facts = {"name": name, "stage": self._stage.id}
            return HoldfastError(Fault.of("TASK_STAGE_CONTEXT_UNRESOLVED", message, context=facts))

        return filled(self._stage.body, values, missing)


_WORK: dict[Phase, Callable[[_Execution], Awaitable[Any]]] = {
    "Setup": _Execution.setup,
    "Init": _Execution.init,
    "CheckGate": _Execution.check_gate,
    "Act": _Execution.act,
    "Assert": _Execution.assert_,
    "Exit": _Execution.exit,
    "Next": _Execution.next,
}


class _SiblingFailed(Exception):  # noqa: N818 - it never leaves this module
    """A branch failed, and stops the others."""

    def __init__(self, end: BranchEnded) -> None:
        super().__init__(end.stage)
        self.end = end


def _waits(error: HoldfastError) -> bool:
    """Whether a branch stopped until its time has come, or until a person says something. Nothing has failed."""
    return is_waiting(error) or isinstance(error, OutcomeUnknownError)


async def _all_or_first_failure(work: list[Any]) -> list[BranchEnded]:
    """Run all at the same time. The first that fails stops the others, and is raised when they have ended."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    failures = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    # What ends the run is more important than the failure of a branch.
    for failure in sorted(failures, key=lambda failure: isinstance(failure, _SiblingFailed)):
        raise failure
    return [task.result() for task in tasks]


def _drift(session: str, path: str, then: list[str], now: list[str]) -> HoldfastError:
    before, after = (" and ".join(stages) for stages in (then, now))
    message = (
        f"Stage {after} was not run: execution {path} of this run was {before} before, and now it is {after}. What {before} did could be done "
        f"again. Give the stages the ids and the order that they had (stages after them may change), or run the machine in a new session"
    )
    context = {"session_id": session, "before": before, "now": after, "number": path}
    return HoldfastError(Fault.of("SESS_STEP_DRIFT", message, context=context))


def _shown(phase: Phase, value: Any) -> str:
    if phase == "Act":
        return "cap-hit" if isinstance(value, dict) and value.get("cap_hit") else ""
    return value if phase in {"CheckGate", "Assert", "Exit"} and isinstance(value, str) else ""


def _giving(value: Any) -> Callable[[], Awaitable[Any]]:
    async def give() -> Any:
        return value

    return give
