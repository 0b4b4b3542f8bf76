"""Which stages follow which, as a pure machine: sequences, parallel siblings with their join, and what a failed stage leads to.

Invariant: nothing here does I/O. A join runs only after all its siblings ended with `ok`. A chain of stages always ends: it has a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError

if TYPE_CHECKING:
    from holdfast.workflow.stage_lifecycle import StageEnded

Resolution: TypeAlias = Literal["skip", "retry-later", "abort-workflow"]
"""What becomes of the workflow if a stage cannot recover."""

END: Final = "(end)"
"""What Next returns to end the workflow, or a branch of it."""


class Go(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a stage leads: `Go(stages=("lint", "test"), execution="parallel", join="merge")`.

    stages: their ids. In sequence they run one after the other; parallel ones are two or more, and run at the same time.
    join: the stage that runs after all parallel ones ended with `ok`.
    """

    stages: tuple[str, ...]
    execution: Literal["sequential", "parallel"] = "sequential"
    join: str | None = None

    @classmethod
    def of(cls, given: Any, where: str) -> Go | None:
        """Return what a stage leads to, from what Next returned or the definition says: an id, several, or a `Go`; None if neither names one."""
        match given:
            case None | Go():
                return given
            case str():
                return cls(stages=() if given == END else (given,))
            case Mapping():
                return cls._of_document(given, where)
            case Sequence() if all(isinstance(each, str) for each in given):
                return cls(stages=tuple(given))
        raise InvalidError.at(where, "the id of a stage, several ids, Go(…), END or None", given)

    @classmethod
    def _of_document(cls, given: Mapping[str, Any], where: str) -> Go:
        """Return a plan that was stored, or is written as `{nextStages, execution, join}`."""
        named = {"nextStages": "stages"}
        try:
            return msgspec.convert({named.get(key, key): value for key, value in given.items()}, cls)
        except msgspec.ValidationError as error:
            raise InvalidError.saying(where, "{nextStages, execution, join}", str(error)) from None


class PlanNode(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, as far as the plan knows it."""

    id: str
    resolution: Resolution = "abort-workflow"
    leads_to: Go | None = None
    """Where it always leads; None: to the next one of the list, or where its Next says."""
    decides: bool = False
    """Whether it has a Next of its own, which may lead anywhere."""
    is_join: bool = False
    """Whether it runs only as the join of parallel stages."""


class RunStage(msgspec.Struct, frozen=True):
    """Execute one stage."""

    stage: str
    number: int
    """The place in its chain, the same in every run."""


class RunSiblings(msgspec.Struct, frozen=True):
    """Execute several stages at the same time, as one compound turn."""

    stages: tuple[str, ...]
    join: str
    number: int
    begun: tuple[int, ...] = ()
    """The number of the turn in which the branch of each stage began; empty: this one."""

    def turn_of(self, place: int) -> int:
        """Return the number of the turn in which a branch began."""
        return self.begun[place] if self.begun else self.number


class FinishChain(msgspec.Struct, frozen=True):
    """The chain has ended well."""


class PutOff(msgspec.Struct, frozen=True):
    """Execute a stage, or siblings, again later."""

    stage: str
    number: int
    fault: Fault
    branches: tuple[str, ...] = ()
    """The siblings whose branches failed. They begin again, the others go on."""
    is_final: bool = False
    """Whether only a person may say that it is executed again: what it did may have happened."""


class AbortChain(msgspec.Struct, frozen=True):
    """The workflow has failed."""

    stage: str
    fault: Fault
    is_final: bool = False
    """Whether it must not be executed again: what it did may have happened."""


Move: TypeAlias = RunStage | RunSiblings | FinishChain | PutOff | AbortChain


class BranchEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the branch of one parallel stage ended."""

    stage: str
    """The sibling that the branch begins with."""
    outcome: Literal["ok", "skip", "fail"] = "ok"
    failed: str = ""
    """The stage that failed in it."""
    fault: Fault | None = None
    is_final: bool = False
    """Whether it must not be executed again: what it did may have happened."""
    in_doubt: tuple[str, ...] = ()
    """The unsafe calls of the other branches that it stopped, and that may have happened."""
    failed_too: tuple[str, ...] = ()
    """The siblings whose branches failed before they were stopped, and may be executed again."""


class Graph:
    """The stages of a machine, checked.

    Raises TASK_PARALLEL_INVALID for a parallel plan of fewer than two stages, of stages that do not exist, or without a join;
    TASK_JOIN_DANGLING for a join that no parallel plan leads to; and `InvalidError` for ids that are not there or are there twice.
    """

    def __init__(self, nodes: Sequence[PlanNode]) -> None:
        if not nodes:
            raise InvalidError.saying("stages", "at least one stage", "none")
        self.nodes = {node.id: node for node in nodes}
        self.order = tuple(node.id for node in nodes)
        if len(self.nodes) != len(nodes):
            twice = next(each for each in self.order if self.order.count(each) > 1)
            raise InvalidError.saying("stages", "an id of its own for each stage", f"{twice!r} twice")
        for node in nodes:
            if node.leads_to is not None:
                self.check(node.leads_to, node.id)
        fans = [node.leads_to for node in nodes if node.leads_to is not None and node.leads_to.execution == "parallel"]
        self._fanned = {each for fan in fans for each in (*fan.stages, fan.join)}
        led_to = {fan.join for fan in fans if fan.join is not None}
        self.joins = frozenset(led_to | {node.id for node in nodes if node.is_join})
        if not any(node.decides for node in nodes):
            # A Next of its own may lead to any join, and is checked when it does.
            for join in self.joins - led_to:
                raise HoldfastError(Fault.of("TASK_JOIN_DANGLING", context={"stage": join}))

    def check(self, plan: Go, stage: str) -> None:
        """Raise if a plan cannot be followed. `stage` is where it comes from."""
        options.one_of(f"stage {stage}: execution", plan.execution, get_args(Literal["sequential", "parallel"]))
        if plan.execution == "sequential":
            if plan.join is not None:
                message = f"Join {plan.join} has no branch that leads to it: the plan of stage {stage} is sequential"
                raise HoldfastError(Fault.of("TASK_JOIN_DANGLING", message, context={"stage": plan.join}))
            for each in plan.stages:
                if each not in self.nodes:
                    expected = f"the id of a stage ({options.suggestion(each, self.order)})"
                    raise InvalidError.saying(f"stage {stage}: next", expected, repr(each))
            return
        if (reason := self._wrong(plan)) is not None:
            context = {"reason": reason, "stage": stage}
            raise HoldfastError(Fault.of("TASK_PARALLEL_INVALID", context=context))

    def _wrong(self, plan: Go) -> str | None:
        if len(plan.stages) < 2:
            return f"{len(plan.stages)} stage named, at least 2 needed"
        if len(set(plan.stages)) != len(plan.stages):
            return "a stage is named twice"
        if plan.join is None:
            return "no join named, so nothing would follow"
        for each in (*plan.stages, plan.join):
            if each not in self.nodes:
                return f"there is no stage {each!r}: {options.suggestion(each, self.order)}"
        if plan.join in plan.stages:
            return f"{plan.join} is its own join"
        return None

    def after(self, stage: str) -> str | None:
        """Return the stage that follows in the list. Those that a parallel plan leads to are left out: they have their own way."""
        later = self.order[self.order.index(stage) + 1 :]
        return next((each for each in later if each not in self._fanned), None)


class StageChain:
    """The way through the stages, or through one branch of parallel ones.

        chain = Chain(graph)
        move = chain.start()                            # RunStage("plan", 1)
        move = chain.stage_ended(ended)                 # RunStage, RunSiblings, Finish, PutOff or Abort

    first: where it begins; by default with the first stage of the list.
    reserved: the joins that wait for this branch. It must not run them.
    limit: how many stages it may execute, with all its branches.
    """

    def __init__(
        self, graph: Graph, *, first: str | None = None, reserved: frozenset[str] = frozenset(), limit: int = 1_000
    ) -> None:
        self._graph = graph
        self._first = first
        self.reserved = reserved
        self._bound = _Bound(limit)
        self._queue: list[str] = []
        """What a sequential plan has named, and has not run yet."""
        self.number = 0

    def branch(self, move: RunSiblings, place: int) -> StageChain:
        """Return the way of one of parallel stages. What it executes counts here too."""
        branch = StageChain(self._graph, first=move.stages[place], reserved=self.reserved | {move.join})
        branch._bound = self._bound
        return branch

    def start(self) -> Move:
        """Return the first move."""
        return self._run(self._graph.order[0] if self._first is None else self._first)

    def again(self, move: RunStage | RunSiblings, branches: Sequence[str] = ()) -> RunStage | RunSiblings:
        """Return a move that was put off, as another execution. Of parallel stages only `branches` begin again, the others go on."""
        if isinstance(move, RunStage):
            return msgspec.structs.replace(move, number=self._counted())
        number = self._counted(0)
        begun = (number if stage in branches else move.turn_of(place) for place, stage in enumerate(move.stages))
        return msgspec.structs.replace(move, number=number, begun=tuple(begun))

    def stage_ended(self, ended: StageEnded) -> Move:
        """Return what follows an execution."""
        node = self._graph.nodes[ended.stage]
        plan = Go.of(ended.plan, f"stage {ended.stage}: what Next returns")
        if ended.outcome == "fail" and plan is None:
            assert ended.fault is not None
            end = BranchEnded(stage="", failed=ended.stage, fault=ended.fault, is_final=ended.is_final)
            return self._resolved(end, ended.fault) or self._onward(ended.stage, node.leads_to)
        if plan is not None:
            self._graph.check(plan, ended.stage)
        return self._onward(ended.stage, plan or node.leads_to)

    def siblings_ended(self, move: RunSiblings, ends: Sequence[BranchEnded]) -> Move:
        """Return what follows parallel stages. The first branch that failed is the reason."""
        for end in ends:
            if end.outcome == "fail":
                # Without the join: it needs the results of all.
                return self._resolved(end, sibling_failed(end)) or self._onward(
                    move.join, self._graph.nodes[move.join].leads_to
                )
        not_ok = [end.stage for end in ends if end.outcome != "ok"]
        if not_ok:
            raise _join_violated(move.join, f"{', '.join(not_ok)} ended with skip")
        return RunStage(move.join, self._counted())

    def _resolved(self, end: BranchEnded, fault: Fault) -> Move | None:
        """Return what the resolution of a failed stage says; None: go on without it."""
        if self._first is not None:
            # One failure ends all siblings. The chain around them asks the stage's resolution.
            return AbortChain(end.failed, fault, end.is_final)
        match self._graph.nodes[end.failed].resolution:
            case "skip":
                return None
            case "retry-later":
                return PutOff(end.failed, self.number, fault, (end.stage, *end.failed_too), end.is_final)
            case "abort-workflow":
                return AbortChain(end.failed, fault, end.is_final)

    def _onward(self, stage: str, plan: Go | None) -> Move:
        if plan is not None and plan.execution == "parallel":
            assert plan.join is not None
            for each in plan.stages:
                self._check_no_join(each)
            if plan.join in self.reserved:
                why = f"{stage} is in a branch of it, and has parallel stages with the same join. Give them their own"
                raise _join_violated(plan.join, why)
            return RunSiblings(plan.stages, plan.join, self._counted(0))
        if plan is not None:
            if not plan.stages:
                return FinishChain()
            self._queue[:0] = plan.stages
        if self._queue:
            return self._run(self._queue.pop(0))
        # A branch ends where nothing leads on: what follows in the list belongs to another way.
        following = None if self._first is not None else self._graph.after(stage)
        return FinishChain() if following is None else self._run(following)

    def _run(self, stage: str) -> RunStage:
        self._check_no_join(stage)
        return RunStage(stage, self._counted())

    def _check_no_join(self, stage: str) -> None:
        if stage in self._graph.joins or stage in self.reserved:
            raise _join_violated(stage, "a stage that is no fan-out leads to it")

    def _counted(self, stages: int = 1) -> int:
        self._bound.count(stages)
        self.number += 1
        return self.number


class _Bound:
    """How many stages a chain and all its branches may execute."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._executed = 0

    def count(self, stages: int) -> None:
        """Count stages that are to be executed; raise TASK_LOOP_BOUND if there are too many."""
        self._executed += stages
        if self._executed > self._limit:
            context = {"limit": self._limit, "unit": "stages"}
            message = f"The stage machine executed {self._limit} stages without an end; a Next leads back each time"
            raise HoldfastError(Fault.of("TASK_LOOP_BOUND", message, context=context))


def sibling_failed(end: BranchEnded) -> Fault:
    """Return the fault of parallel stages that one of them stopped."""
    fault, message = end.fault, None
    assert fault is not None
    context: dict[str, Any] = {"stage": end.failed, "cause": fault.code, "reason": fault.message}
    if end.in_doubt:
        context["in_doubt"] = list(end.in_doubt)
        cut = ", ".join(end.in_doubt)
        message = f"Parallel stage {end.failed} failed and its siblings were stopped. This may have happened: {cut}"
    maybe = fault.maybe_executed or bool(end.in_doubt)
    return Fault.of(
        "TASK_SIBLING_FAILED",
        message,
        context=context,
        partial=fault.partial,
        maybe_executed=maybe,
        retry_after=fault.retry_after,
    )


def _join_violated(stage: str, why: str) -> HoldfastError:
    message = f"Join {stage} was reached before all its branches succeeded: {why}"
    return HoldfastError(Fault.of("TASK_JOIN_VIOLATED", message, context={"stage": stage, "reason": why}))
