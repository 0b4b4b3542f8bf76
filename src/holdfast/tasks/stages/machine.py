"""`StageMachine`: stages that lead to each other, run on a session."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import codec
from holdfast.tasks.stages.act import check_agent
from holdfast.tasks.stages.context import RunState
from holdfast.tasks.stages.execution import RunFacts
from holdfast.tasks.stages.run import StageRun
from holdfast.tasks.stages.stage import Stage
from holdfast.tasks.workflows.durable import Keeper, run_in_session
from holdfast.tools.schema import converted
from holdfast.tools.toolbox import Toolbox
from holdfast.workflow.stage_lifecycle import StageEnded
from holdfast.workflow.stage_plan import Graph

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.tool import ToolContract
    from holdfast.sessions.scopes import Scope
    from holdfast.sessions.session import Session

__all__ = ["MachineEnded", "StageError", "StageMachine"]

T = TypeVar("T")


class MachineEnded(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of a stage machine ended: `ended.results["review"]`."""

    value: Any = None
    """The result of the last stage that ended well."""
    results: dict[str, Any] = {}
    """The result of each stage that ended well, by id."""
    context: dict[str, Any] = {}
    executions: tuple[StageEnded, ...] = ()
    """How each execution ended, in order."""

    def result_of(self, stage: Stage[T]) -> T:
        """Return the result of a stage as a value of its `completion`, if that is a type: `ended.result_of(review)`.

        Raises `KeyError` if the stage did not end well.
        """
        value, kind = self.results[stage.id], stage.completion
        return converted(value, kind) if kind is not None and not isinstance(kind, Mapping) else value  # type: ignore[no-any-return]


class StageError(HoldfastError):
    """A stage could not recover, and its resolution ended the run. `error.ended` has the results of the other stages.

    For example:
        except StageError as error:
            print(error.fault.context["stage"], error.fault.message, error.ended.results)
    """

    code = "TASK_STAGE_FAILED"

    def __init__(self, fault: Fault, ended: MachineEnded | None = None) -> None:
        super().__init__(fault)
        self.ended = MachineEnded() if ended is None else ended


class StageMachine:
    """Stages that lead to each other.

        from holdfast import Session, Stage, StageMachine

        machine = StageMachine([
            Stage("plan", planner, body="Plan {ticket}."),
            Stage("build", builder, body="Build this: {plan}", resolution="retry-later"),
        ])
        async with Session.open("ticket-7") as session:
            ended = await machine.run(session, inputs={"ticket": "dark mode"})

    stages: in the order in which they follow each other, where `next` does not say otherwise.
    name: tells the machines of one session, and of one store, apart. A due run that another machine of the same name goes on with stops with
        SESS_STEP_DRIFT, and nothing of it is done.
    tools: what functions call with `StageWork.call`. Agents have their own tools.
    limit: how many stages one run may execute.

    Raises TASK_PARALLEL_INVALID and TASK_JOIN_DANGLING for plans that cannot run, and `InvalidError` for other mistakes.
    """

    @options.suggests
    def __init__(
        self,
        stages: Iterable[Stage],
        *,
        name: str = "stages",
        tools: Toolbox | Iterable[Any] = (),
        limit: int = 1_000,
        runtime: Runtime | None = None,
    ) -> None:
        options.name("stage_machine.name", name)
        options.count("stage_machine.limit", limit)
        given = options.listed("stage_machine.stages", stages, "stages, such as Stage(id, act)")
        for stage in given:
            if not isinstance(stage, Stage):
                raise InvalidError.at("stage_machine.stages", "a Stage", stage)
        self.name = name
        self.stages: dict[str, Stage] = {stage.id: stage for stage in given}
        """The stages by id."""
        self._graph = Graph([stage.node() for stage in given])
        self._tools = tools if isinstance(tools, Toolbox) else Toolbox(list(tools), runtime=runtime)
        for stage in given:
            check_agent(stage, self._tools)
        self._limit = limit
        self._runtime = runtime
        self._scopes: dict[str, list[Scope]] = {}

    def __repr__(self) -> str:
        return f"<stage machine {self.name}: {', '.join(self.stages)}>"

    @property
    def run_name(self) -> str:
        """What its runs are called in a session: `stages release`."""
        return f"stages {self.name}"

    def cancel(self, stage: str) -> bool:
        """Cancel a stage that runs: the run raises `AbortedError` with TASK_STAGE_CANCELLED, and goes on there when it is run again.

        Return whether the stage was running.
        """
        return sum(scope.cancel() for scope in list(self._scopes.get(stage, ()))) > 0

    async def run(self, session: Session | None = None, *, inputs: Mapping[str, Any] | None = None) -> MachineEnded:
        """Run the stages and return how it ended.

            ended = await machine.run(session, inputs={"ticket": "dark mode"})

        `inputs` are the values that its context begins with. In a session it is done once per session and inputs, or inside a `turn` block
        once per turn: what is stored is not done again, and a run that was cut off goes on in the phase where it was. A stage with the
        resolution `retry-later` parks the run: `holdfast.sessions.later.run_due` goes on with it when it is due, or the next call does.
        Without a session it waits.

        Raises `StageError` if a stage fails and its resolution is `abort-workflow` (the code is TASK_SIBLING_FAILED if parallel stages ran);
        `ParkedError` if a stage is executed again later; `AbortedError` if it is cancelled; TASK_CONTEXT_MUTATION,
        TASK_STAGE_CONTEXT_UNRESOLVED, TASK_PARALLEL_INVALID, TASK_JOIN_VIOLATED, TASK_JOIN_DANGLING and TASK_LOOP_BOUND for mistakes in the
        stages; `OutcomeUnknownError` if an unsafe function was cut off and may have happened; SESS_STEP_DRIFT if a stage that an earlier
        run entered has another id or another place now; and the failures of the session.
        """
        given = {name: codec.plain(value, f"inputs.{name}") for name, value in (inputs or {}).items()}
        runtime = self._runtime or default_runtime()
        if session is None:
            ended = await self._finish("", _Memory(), None, given, runtime)
        else:

            async def finish(key: str, keeper: Keeper) -> MachineEnded | StageError:
                return await self._finish(key, keeper, session, given, runtime)

            ended = await run_in_session(session, self.run_name, given, finish, runtime)
        if isinstance(ended, StageError):
            # It was returned and not raised before, because the run has ended: the next call is another run.
            raise ended
        return ended

    async def resume(self, session: Session, inputs: Any) -> MachineEnded:
        """Go on with a run that was begun in a session: `holdfast.sessions.run_due` does it when its time has come."""
        return await self.run(session, inputs=inputs)

    async def _finish(
        self, key: str, keeper: Keeper, session: Session | None, context: dict[str, Any], runtime: Runtime
    ) -> MachineEnded | StageError:
        state = RunState(context=context)
        facts = RunFacts(self._graph, keeper, key, session, runtime, self._tools)
        run = StageRun(self.stages, facts, limit=self._limit, scopes=self._scopes)
        aborted = await run.finish(state)
        ended = _ended(state, run)
        return ended if aborted is None else StageError(aborted.fault, ended)


def _ended(state: RunState, run: StageRun) -> MachineEnded:
    last = next((each.value for each in reversed(run.executions) if each.outcome == "ok"), None)
    return MachineEnded(value=last, results=state.results, context=state.context, executions=run.executions)


class _Memory(Keeper):
    """Remembers what was done in this run, and stores nothing: a run without a session."""

    def __init__(self) -> None:
        self._done: dict[str, Any] = {}
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._unsafe: dict[str, None] = {}
        """The unsafe calls that have begun and not ended."""

    async def once(
        self,
        name: str,
        make: Callable[[], Awaitable[Any]],
        contract: ToolContract | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Make it, if it was not made in this run."""
        async with self._busy[name]:
            if name not in self._done:
                if contract is not None and contract.effect == "unsafe":
                    self._unsafe[name] = None
                self._done[name] = await super().once(name, make, contract, arguments)
                self._unsafe.pop(name, None)
        return self._done[name]

    def doubts(self) -> tuple[str, ...]:
        """Return the unsafe calls that were cut off."""
        return tuple(self._unsafe)

    async def stored(self, name: str) -> Any:
        """Return what was made."""
        return self._done.get(name)
