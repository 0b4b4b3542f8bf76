"""One run of a stage machine: executes the stages that the plan says, one after the other or side by side.

Invariant: when a run ends, nothing that it started is still running; only a plain function in a thread may be, and a run that goes on
there waits for it. What a stage does in its phases, and what is stored of it, is in `execution`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.events import SessionTurnEnd, SessionTurnStart
from holdfast.faults import Fault, HoldfastError, OutcomeUnknownError
from holdfast.sessions.lifecycle import cancelled
from holdfast.sessions.scopes import Scope
from holdfast.tasks.stages.execution import StageExecution, cut_short, waits
from holdfast.tasks.workflows.durable import all_or_first_failure, constant
from holdfast.workflow.requests import Escalate, Later
from holdfast.workflow.stage_lifecycle import StageEnded
from holdfast.workflow.stage_plan import (
    AbortChain,
    BranchEnded,
    FinishChain,
    PutOff,
    RunSiblings,
    RunStage,
    StageChain,
    sibling_failed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.tasks.stages.context import RunState
    from holdfast.tasks.stages.execution import RunFacts
    from holdfast.tasks.stages.stage import Stage
    from holdfast.workflow.stage_plan import Move

__all__ = ["StageRun"]


class StageRun:
    """Drives the machines to their end."""

    def __init__(self, stages: dict[str, Stage], run: RunFacts, *, limit: int, scopes: dict[str, list[Scope]]) -> None:
        self._stages = stages
        self._run = run
        self._graph, self._keeper, self._session, self._runtime = run.graph, run.keeper, run.session, run.runtime
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
            escalation = Escalate(fault=move.fault, attempts=failures)
            return stage.ask and await self._keeper.ask_operator(f"{move.number}/operator", escalation)
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
            self._run.emit(SessionTurnStart, **facts)
        try:
            following, ended = await self._moved(chain, move, "", state)
        except (Exception, asyncio.CancelledError) as error:
            if not is_over:
                self._run.emit(SessionTurnEnd, **cut_short(self._runtime, error), **facts)
            raise
        if not is_over:
            await self._keeper.once(f"{move.number}/turn", constant(ended.outcome))
            self._run.emit(SessionTurnEnd, outcome=ended.outcome, fault=ended.fault, **facts)
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
        then = await self._keeper.once(f"{path}/stages", constant(now))
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
                if not waits(error):
                    raise
                waiting.append(error)
                return BranchEnded(stage=move.stages[place])
            if end.outcome == "fail":
                failed.append(end)
                # Which one was first is stored, so that a run that is made again fails for the same reason.
                async with storing:
                    stored = await self._keeper.once(f"{name}/stopped-by", constant(msgspec.to_builtins(end)))
                raise _SiblingFailed(msgspec.convert(stored, BranchEnded))
            return end

        try:
            ends = await all_or_first_failure([work(place) for place in range(len(move.stages))], _SiblingFailed)
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
        # Stored, so that a run that is made again reports the same, also after a person has resolved a doubt.
        found = await self._keeper.once(f"{name}/stopped", constant(found))
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
                ended, changes = await StageExecution(self._run, stage, path, state).run()
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


class _SiblingFailed(Exception):  # noqa: N818 - it never leaves this module
    """A branch failed, and stops the others."""

    def __init__(self, end: BranchEnded) -> None:
        super().__init__(end.stage)
        self.end = end


def _drift(session: str, path: str, then: list[str], now: list[str]) -> HoldfastError:
    before, after = (" and ".join(stages) for stages in (then, now))
    message = (
        f"Stage {after} was not run: execution {path} of this run was {before} before, and now it is {after}. What {before} did could be done "
        f"again. Give the stages the ids and the order that they had (stages after them may change), or run the machine in a new session"
    )
    context = {"session_id": session, "before": before, "now": after, "number": path}
    return HoldfastError(Fault.of("SESS_STEP_DRIFT", message, context=context))
