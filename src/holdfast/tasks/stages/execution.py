"""One execution of a stage: takes it through its phases, each once.

Invariant: the end of a phase is stored before anything follows from it. A phase that is stored is not entered again, so an execution that
was killed goes on in the phase where it was.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.events import StagePostFired, StagePreFired
from holdfast.faults import AbortedError, BudgetError, Fault, HoldfastError, OutcomeUnknownError
from holdfast.once.doubt import UnsettledError
from holdfast.once.outcome import Found, Mark, must_not_repeat
from holdfast.runtime.failures.evidence import in_doubt
from holdfast.sessions.later import is_waiting
from holdfast.tasks.stages.act import StageWork, act_contract, perform
from holdfast.tasks.stages.context import Changes, RunState, StageContext
from holdfast.tasks.task import filled
from holdfast.tasks.workflows.durable import constant, ends_the_run
from holdfast.workflow.stage_lifecycle import ActEnded, Enter, Lifecycle, PhaseEnded, StageEnded, check_word
from holdfast.workflow.stage_plan import Go

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.tool import ToolContract
    from holdfast.sessions.session import Session
    from holdfast.tasks.stages.stage import Stage
    from holdfast.tasks.workflows.durable import Keeper
    from holdfast.tools.toolbox import Toolbox
    from holdfast.workflow.stage_lifecycle import Phase
    from holdfast.workflow.stage_plan import Graph

__all__ = ["RunFacts", "StageExecution", "cut_short", "waits"]

_END = Mark("holdfast.stage")
"""Stands around the stored end of a phase."""
_MISTAKES = frozenset({"TASK_CONTEXT_MUTATION", "TASK_STAGE_CONTEXT_UNRESOLVED"})
"""Mistakes in a definition. They are raised, not retried and not stored: the corrected program goes on."""


class RunFacts(NamedTuple):
    """What is the same for all stages of a run."""

    graph: Graph
    keeper: Keeper
    key: str
    session: Session | None
    runtime: Runtime
    tools: Toolbox

    def emit(self, event: type[Any], **facts: Any) -> None:
        """Emit an event that happens now."""
        self.runtime.bus.emit(event(at=self.runtime.clock.wall(), **facts))


def waits(error: BaseException) -> bool:
    """Whether a stage stopped until its time has come, or until a person says something. Nothing has failed."""
    return isinstance(error, HoldfastError) and (is_waiting(error) or isinstance(error, OutcomeUnknownError))


def cut_short(runtime: Runtime, error: BaseException) -> dict[str, Any]:
    """Return what the events say about a phase or turn that the run goes on with when it is made again."""
    if isinstance(error, asyncio.CancelledError | AbortedError):
        return {"outcome": "cancelled"}
    return {"outcome": "waiting" if waits(error) else "fail", "fault": runtime.fault_of(error)}


class StageExecution:
    """One execution of a stage."""

    def __init__(self, run: RunFacts, stage: Stage, path: str, state: RunState) -> None:
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
                await self._wait(f"{place}/wait", following.attempt - 1)
            ended = await self._phase(f"{place}/{self._stage.id}.{following.phase}", following)
            self._take(following.phase, ended)
            following = lifecycle.ended(ended)
        return following, self._changes

    async def _wait(self, name: str, retry: int) -> None:
        """Wait before a retry. What is stored is when the wait ends, so a restart does not begin it anew."""
        run, delay = self._run, self._stage.retry.backoff.delay(retry, self._run.runtime.rng)
        if delay:
            begins = await run.keeper.stored(name) is None
            until = await run.keeper.once(name, constant(run.runtime.clock.wall() + delay))
            # At most the delay: the clock may have been set back.
            await asyncio.sleep(delay if begins else max(0.0, min(delay, until - run.runtime.clock.wall())))

    async def _phase(self, name: str, enter: Enter) -> PhaseEnded:
        """Run a phase, or return how it ended before.

        An unsafe Act that failed and may have happened raises `OutcomeUnknownError`: nothing follows from it before a person has resolved it.
        """
        contract = act_contract(self._stage, self._work()) if enter.phase == "Act" else None
        facts: dict[str, Any] = {"stage": self._stage.id, "phase": enter.phase, "attempt": enter.attempt}

        async def made() -> Any:
            self._run.emit(StagePreFired, **facts)
            try:
                ended = await self._performed(enter, contract)
            except (Exception, asyncio.CancelledError) as error:
                self._run.emit(StagePostFired, **cut_short(self._run.runtime, error), **facts)
                raise
            self._run.emit(StagePostFired, outcome=_shown(enter.phase, ended.value), fault=ended.fault, **facts)
            return self._stored(enter, ended)

        stored = _END.read(await self._run.keeper.once(name, made, contract))
        if isinstance(stored, Found):
            # Only an unsafe Act is ever in doubt.
            return PhaseEnded(value=ActEnded(value=stored.result))
        ended: PhaseEnded = msgspec.convert(stored, PhaseEnded)
        if enter.phase == "Act" and ended.fault is None:
            ended = msgspec.structs.replace(ended, value=msgspec.convert(ended.value, ActEnded))
        return ended

    async def _performed(self, enter: Enter, contract: ToolContract | None) -> PhaseEnded:
        """Perform a phase. `contract` is what its work declares about its effect."""
        ended = await self._value_or_fault(_WORK[enter.phase], contract)
        if ended.fault is not None:
            if contract is not None and must_not_repeat(contract.effect, ended.fault):
                raise self._unsettled(enter, ended.fault)
            return ended
        # Checked before it is stored: a corrected program must be able to go on.
        check_word(self._stage.id, enter.phase, ended.value)
        return PhaseEnded(value=self._checked_plan(ended.value)) if enter.phase == "Next" else ended

    async def _value_or_fault(
        self, work: Callable[[StageExecution], Awaitable[Any]], contract: ToolContract | None
    ) -> PhaseEnded:
        """Return the value of a phase's work, or the fault that ends the attempt. What ends the run is raised."""
        try:
            return PhaseEnded(value=await work(self))
        except Exception as error:
            fault = self._run.runtime.fault_of(error)
            if ends_the_run(error) or isinstance(error, BudgetError):
                raise
            # A run that is parked at a usage limit goes on when the limit has ended.
            if "parked_until" in fault.context or fault.code in _MISTAKES:
                raise
            if in_doubt(error, fault, contract):
                fault = msgspec.structs.replace(fault, maybe_executed=True)
            return PhaseEnded(fault=fault)

    def _stored(self, enter: Enter, ended: PhaseEnded) -> Any:
        """Return the end of a phase as it is stored."""
        document = msgspec.to_builtins(ended)
        if self._run.session is not None and (enter.phase == "Act" or ended.fault is not None):
            # What a model wrote, or a failure says, may hold a secret, which a store rejects.
            document = self._run.session.storable(document)
        return _END.on(document)

    def _unsettled(self, enter: Enter, fault: Fault) -> UnsettledError:
        """Return the error of an unsafe Act that failed. Whatever follows a failure, it must first be known whether it happened."""
        message = f"Act of stage {self._stage.id} failed and may have happened: {fault.message}"
        doubt = Fault.of("TOOL_OUTCOME_UNKNOWN", message, context=fault.context, cause=fault.cause)
        certain = msgspec.structs.replace(fault, maybe_executed=False)
        return UnsettledError(doubt, self._stored(enter, PhaseEnded(fault=certain)))

    def _checked_plan(self, plan: Any) -> Any:
        """Return the plan of a Next as it is stored; raise if it cannot be followed."""
        found = Go.of(plan, f"stage {self._stage.id}: what Next returns")
        if found is not None:
            self._run.graph.check(found, self._stage.id)
        return None if found is None else msgspec.to_builtins(found)

    def _work(self) -> StageWork:
        """Return what Act of this attempt gets."""
        run, attempt = self._run, self._lifecycle.attempt
        return StageWork(
            self._stage,
            self._prompt,
            execution=f"{run.key}/{self._path}",
            attempt=attempt,
            keeper=run.keeper,
            place=f"{self._path}/{attempt}/calls",
            session=run.session,
            tools=run.tools,
        )

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
        await _called(self._stage.setup, context)
        return msgspec.to_builtins(context.changes())

    async def init(self) -> str:
        context = self._context()
        returned = await _called(self._stage.init, context)
        return self._body(context) if returned is None else str(returned)

    async def check_gate(self) -> Any:
        return await _called(self._stage.check_gate, self._context())

    async def act(self) -> Any:
        run, place = self._run, f"{self._run.key}/{self._path}/{self._lifecycle.attempt}/act"
        # The steps of an Act are counted apart from all others.
        with nullcontext() if run.session is None else run.session.part(place):
            return msgspec.to_builtins(await perform(self._stage, self._work(), run.runtime))

    async def assert_(self) -> Any:
        outcome = await _called(self._stage.assert_, self._context())
        return self._lifecycle.default_outcome() if outcome is None else outcome

    async def exit(self) -> Any:
        # It cleans up, so it may return anything; only this word is a verdict.
        returned = await _called(self._stage.exit, self._context())
        return returned if isinstance(returned, str) and returned == "fail" else None

    async def next(self) -> Any:
        return await _called(self._stage.next, self._context()) if callable(self._stage.next) else None

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


_WORK: dict[Phase, Callable[[StageExecution], Awaitable[Any]]] = {
    "Setup": StageExecution.setup,
    "Init": StageExecution.init,
    "CheckGate": StageExecution.check_gate,
    "Act": StageExecution.act,
    "Assert": StageExecution.assert_,
    "Exit": StageExecution.exit,
    "Next": StageExecution.next,
}


async def _called(fn: Callable[..., Any] | None, context: StageContext) -> Any:
    """Call a function of a stage; return what it returns."""
    returned = None if fn is None else fn(context)
    return await returned if inspect.isawaitable(returned) else returned


def _shown(phase: Phase, value: Any) -> str:
    if phase == "Act":
        return "cap-hit" if isinstance(value, dict) and value.get("cap_hit") else ""
    return value if phase in {"CheckGate", "Assert", "Exit"} and isinstance(value, str) else ""
