"""`TaskSystem`: performs tasks, and makes something of their failures.

    task ─▶ perform ─┬▶ TaskResult
                     └▶ fault ─▶ dispatch ─┬▶ resource: split it, merge the results
                                           ├▶ format: ask again with what was wrong
                                           ├▶ subtask: once more, in simpler words
                                           ├▶ matching: once more
                                           ├▶ halted: another approach, once
                                           └▶ your own handler

Invariant: a task ends as complete or failed, with everything it had. Nothing here loops without a bound: asking again, splitting, nesting and
rounds without progress are all counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast, overload

import msgspec

from holdfast import options
from holdfast.faults import Err, Fault, HoldfastError, InvalidError, NextActor, Ok, Partial, Schedule
from holdfast.policies.decide import is_repeatable
from holdfast.policies.profiles import TASK
from holdfast.runtime.runtime import Runtime, default_runtime
from holdfast.runtime.tool import contract_of
from holdfast.tasks.director import DirectorLoop, iterate, not_accepted
from holdfast.tasks.execution import ACTED, Execution, retries_of
from holdfast.tasks.limits import in_time, left_here, limits_of
from holdfast.tasks.parts.decomposition import Decomposer, Decomposition, Merge, check_parts
from holdfast.tasks.parts.partials import Summary, bounded
from holdfast.tasks.parts.slots import PartSlot, Slots
from holdfast.tasks.parts.split_failure import SPLITTABLE, is_of_split, merge_failed, not_done, split_failed, values_of
from holdfast.tasks.performer import Performer, is_agent
from holdfast.tasks.place import DEPTH, HERE, TaskPlace, check_depth
from holdfast.tasks.reports import TaskReport, subtask_failed
from holdfast.tasks.task import (
    MATCHING,
    Task,
    TaskError,
    TaskResult,
    as_json,
    joined_text,
    plain,
    plain_fault,
)
from holdfast.tasks.workflows.workflow import Workflow
from holdfast.views import task as view
from holdfast.views.task import Handler

if TYPE_CHECKING:
    from holdfast.faults import Outcome
    from holdfast.sessions.session import Session
    from holdfast.tasks.context.index import ContextIndex
    from holdfast.tasks.state import OpenTask
    from holdfast.tasks.task import DataUsage

__all__ = ["TaskSystem", "simplified"]

T = TypeVar("T")

HandlerName: TypeAlias = Literal["resource", "context", "subtask", "format", "general"]
Change: TypeAlias = Callable[[Task, Fault], "Task | None"]
"""Returns another request for a task that failed, or None."""
Handle: TypeAlias = Callable[[Task, Fault], Any]
"""Returns another request for a task that failed, or its result, or None to let it fail. It may be async."""

_FINAL = frozenset({"TASK_CYCLE", "TASK_DEPTH_EXCEEDED", "TASK_SUBTASK_FAILED"})


def simplified(task: Task, fault: Fault) -> Task | None:
    """Return the request in simpler words, with what the failed one had: how a failed subtask is tried once more by default.

    `TaskSystem(agent, change=None)` switches it off, and `change=` takes a function of yours.
    """
    had = _text_of(fault.partial)
    prompt = f"Retry with a simplified approach: {task.prompt}"
    if had:
        prompt += f"\n\nAn earlier try got this far before it failed:\n{_escaped(had)}"
    return task.with_(prompt=prompt, name=f"Retry: {task.label}")


class TaskSystem:
    """Performs tasks: with an agent, in parts where one attempt is not enough, and checked against their output.

        from holdfast.tasks import Task, TaskSystem, by_section

        tasks = TaskSystem(agent, decomposer=by_section)
        summary = await tasks.run(Task("Summarise {doc}", inputs={"doc": text}, turns=8))

    performer: an agent, or a function of an `Assignment`, plain or async.
    agents: more performers, by the name that `Task.agent` gives.
    decomposer: splits a task that used up its turns, context or output: `by_section`, `by_items`, `by_model(…)`, or your own.
    change: makes another request of a subtask that failed, for one more try; with None a subtask has one try.
    alternative: makes another request of a task that gets nowhere, for one more try.
    handlers: what you do about failures yourself, by the word for their kind: `resource`, `context`, `subtask`, `format`, `general`. A
    function of the task and its fault, plain or async; it returns another `Task`, which is performed once, or a `TaskResult`, or None.
    summary: makes a short text of the older partial results of a failed task, where all of them are too large.
    context: finds what a task with `ContextUse(fresh=True)` should know.
    max_depth: how deep subtasks may be nested, and how often a task may be split. At most 10.
    concurrency: how many parts of a split task run at once, with the parts of those that are split again.
    on_failure: what the failure of a part does to the others: `fail-fast` cancels them, `collect` lets them end.

    Wrong options raise `InvalidError`. `run` raises `TaskError` if the task fails; `outcome` returns it instead.
    """

    @options.suggests
    def __init__(
        self,
        performer: Performer,
        *,
        agents: Mapping[str, Performer] | None = None,
        decomposer: Decomposer | None = None,
        change: Change | None = simplified,
        alternative: Change | None = None,
        handlers: Mapping[HandlerName, Handle] | None = None,
        summary: Summary | None = None,
        context: ContextIndex | None = None,
        max_depth: int = DEPTH,
        concurrency: int = 4,
        on_failure: Literal["fail-fast", "collect"] = "fail-fast",
        runtime: Runtime | None = None,
    ) -> None:
        options.count("tasks.concurrency", concurrency)
        options.one_of("tasks.on_failure", on_failure, ("fail-fast", "collect"))
        if not is_agent(performer) and not callable(performer):
            raise InvalidError.at("tasks.performer", "an agent, or a function of an Assignment", performer)
        self._performer = performer
        self._agents = dict(agents or {})
        self._decomposer = decomposer
        self._change = change
        self._alternative = alternative
        self._handlers = dict(handlers or {})
        for name in self._handlers:
            options.one_of("tasks.handlers", name, tuple(Handler))
        for path, given in {
            "tasks.summary": summary,
            **{f"tasks.handlers[{n!r}]": h for n, h in self._handlers.items()},
        }.items():
            if given is not None and not callable(given):
                raise InvalidError.at(path, "a function", given)
        self._summary = summary
        self._index = context
        self._max_depth = check_depth(max_depth)
        self._concurrency = concurrency
        self._on_failure = on_failure
        self._given_runtime = runtime
        self._board: dict[str, OpenTask] = {}

    @property
    def open_tasks(self) -> tuple[OpenTask, ...]:
        """The tasks that have not ended, with their states, the oldest first.

        For example:
            for task in tasks.open_tasks:
                print("  " * task.depth, task.name, task.state)
        """
        return tuple(self._board.values())

    @overload
    async def run(self, task: Task[T], *, session: Session | None = None) -> T: ...
    @overload
    async def run(self, task: DirectorLoop, *, session: Session | None = None) -> str: ...
    @overload
    async def run(self, task: Workflow, *, session: Session | None = None) -> Any: ...
    async def run(self, task: Task | DirectorLoop | Workflow, *, session: Session | None = None) -> Any:
        """Perform a task, and return its output: a value of `task.output`, or the text. Raises `TaskError`.

        A `Workflow` runs with the tasks that it was made with, and raises `WorkflowError`: `await tasks.run(Workflow.load("review.sexp"))`.
        """
        if isinstance(task, Workflow):
            return await task.run(session)
        match await self.outcome(task, session=session):
            case Ok(result):
                return _value_of(task, result)
            case Err(error=error):
                assert error is not None
                raise error

    async def outcome(
        self, task: Task[T] | DirectorLoop | Workflow, *, session: Session | None = None
    ) -> Outcome[TaskResult[T]]:
        """Perform what `run` performs, and return `Ok` with its `TaskResult`, or `Err`. It raises only cancellations."""
        if isinstance(task, Workflow):
            try:
                return Ok(result_of(await task.run(session)))
            except Exception as failure:  # noqa: BLE001 - whatever it is, it is returned
                return Err(self._runtime.fault_of(failure), failure)
        result, error = await self._ended(task, session)
        fault = not_accepted(task, result) if isinstance(task, DirectorLoop) else result.fault
        if fault is None:
            return Ok(result)
        if result.fault is None:
            # A loop ended, and its last proposal was not accepted.
            result = _metered(TaskResult.of_fault(fault, result.notes), result.usage)
        failed = TaskError.of(result)
        failed.__cause__ = error
        return Err(fault, failed)

    async def _ended(
        self, task: Task | DirectorLoop | Mapping[str, Any], session: Session | None
    ) -> tuple[TaskResult, Exception | None]:
        """Perform a task, and return its result; of a failed one also the exception that ended it."""
        place = (HERE.get() or TaskPlace(limit=self._max_depth)).metered()
        error = None
        try:
            if isinstance(task, DirectorLoop):
                result = await iterate(task, lambda each: self._execute(each, place, session), self._runtime, session)
            else:
                given = task if isinstance(task, Task) else Task.from_request(task)
                result = await self._execute(given, place, session)
        except Exception as failed:  # noqa: BLE001 - whatever it is, it becomes the result
            error = _original(failed)
            result = TaskResult.of_fault(await bounded(self._runtime.fault_of(failed), self._summary, self._runtime))
        return _metered(result, place.meter.usage), error

    # --- one task, with all that can be made of its failure ---

    async def _execute(self, task: Task, place: TaskPlace, session: Session | None) -> TaskResult:
        """Perform a task within its limits. Raises an exception whose fault holds what there is."""
        with limits_of(task, self._runtime):
            return await self._recovered(task, place, session, self._report(task, place))

    async def _recovered(self, task: Task, place: TaskPlace, session: Session | None, report: TaskReport) -> TaskResult:
        """Perform a task, and make something of its failure. The limits of the task are in force."""
        place.check(task)
        task = self._with_window(task)
        with report:
            try:
                return await self._matched(task, place, session, report)
            except Exception as error:
                fault = self._runtime.fault_of(error)
                if _is_final(fault):
                    raise TaskError(fault) from error
                handler = view.dispatch(fault)
                taken = await self._handled(handler, task, fault, place, session, report=report)
                if taken is not None:
                    return taken
                match handler:
                    case Handler.RESOURCE if fault.code in SPLITTABLE:
                        return await self._split(task, error, fault, place, session, report=report)
                    case Handler.GENERAL if fault.code == "TASK_HALTED":
                        return await self._instead(task, fault, place, session, report=report)
                    case _:
                        raise TaskError(fault) from error

    async def _matched(self, task: Task, place: TaskPlace, session: Session | None, report: TaskReport) -> TaskResult:
        """Perform a task. A matching task that fails by itself is performed once more; no other task is."""
        tried: list[dict[str, Any]] = []
        attempts = TASK.schedules[Schedule.MATCHING].attempts or 1
        while True:
            try:
                result = await self._execution(task, place, session, report).run()
            except Exception as error:
                fault = self._runtime.fault_of(error)
                if len(tried) + 1 >= attempts or not _may_match_again(task, fault, self._performer_of(task)[1]):
                    raise
                report.rematched(fault)
                tried.append(_tried(fault))
            else:
                return (
                    result if not tried else msgspec.structs.replace(result, notes={**result.notes, "retried": tried})
                )

    async def _handled(
        self,
        handler: Handler,
        task: Task,
        fault: Fault,
        place: TaskPlace,
        session: Session | None,
        *,
        report: TaskReport,
    ) -> TaskResult | None:
        """Return what the caller's own handler makes of a failure, or None if there is no handler or it makes nothing of it.

        A handler with a defect is reported, and does not hide the failure.
        """
        handle = self._handlers.get(cast("HandlerName", str(handler)))
        if handle is None:
            return None
        try:
            found = handle(task, fault)
            found = await in_time(found) if isinstance(found, Awaitable) else found
        except HoldfastError:
            raise
        except Exception as broken:  # noqa: BLE001 - what it handles must not be hidden
            self._runtime.bus.hook_raised(
                handle, f"tasks.handlers[{str(handler)!r}]", broken, at=self._runtime.clock.wall()
            )
            return None
        if isinstance(found, Task):
            with limits_of(found, self._runtime, inside_of=task):
                return await self._execution(self._with_window(found), place, session, report).run()
        if found is None:
            return None
        if not isinstance(found, TaskResult):
            raise InvalidError.at(f"tasks.handlers[{str(handler)!r}]", "a Task, a TaskResult or None", found)
        if found.fault is not None:
            raise TaskError(found.fault)
        return found

    def _with_window(self, task: Task) -> Task:
        """Return the task with its limit of context in tokens, where it is a share of the window of a model."""
        if not isinstance(task.context, float):
            return task
        name, performer = self._performer_of(task)
        window = getattr(getattr(getattr(performer, "model", None), "offers", None), "context_window", None)
        if window is None:
            expected = f"a number of tokens: nobody knows the context window of {name}"
            raise InvalidError.at("task.context", expected, task.context, "TASK_MODEL_INVALID")
        return task.with_(context=int(window * task.context))

    def _execution(self, task: Task, place: TaskPlace, session: Session | None, report: TaskReport) -> Execution:
        return Execution(
            task,
            self._performer_of(task),
            place,
            session=session,
            runtime=self._runtime,
            subtask=self._subtask,
            index=self._index,
            report=report,
        )

    async def _instead(
        self, task: Task, fault: Fault, place: TaskPlace, session: Session | None, *, report: TaskReport
    ) -> TaskResult:
        """Try another approach, once."""
        other = None if self._alternative is None else self._alternative(task, fault)
        report.halted(fault, again=other is not None)
        if other is None:
            raise HoldfastError(fault)
        with limits_of(other, self._runtime, inside_of=task):
            return await self._execution(other, place, session, report).run()

    # --- subtasks ---

    async def _subtask(self, task: Task, place: TaskPlace, session: Session | None) -> TaskResult:
        """Perform a subtask that its parent asked for; if it fails, once more in other words. Raises TASK_SUBTASK_FAILED."""
        place = place.metered()
        try:
            result = await self._tried_twice(task, place, session, self._report(task, place))
        except Exception as error:
            fault = self._runtime.fault_of(error)
            if fault.code == "SYS_BUDGET_EXHAUSTED":
                # It is not the subtask that failed: a task around it has nothing left.
                raise
            if task.supervision != "ignore":
                raise self._subtask_failed(task, place, fault) from error
            result = TaskResult.of_fault(fault)
        return _metered(result, place.meter.usage)

    async def _tried_twice(
        self, task: Task, place: TaskPlace, session: Session | None, report: TaskReport
    ) -> TaskResult:
        with limits_of(task, self._runtime):
            try:
                return await self._recovered(task, place, session, report)
            except Exception as error:
                fault = self._runtime.fault_of(error)
                is_worth_it = _is_worth_another_try(fault) and not _is_final(fault)
                # A matching has a second try of its own.
                is_worth_it = is_worth_it and task.supervision == "restart" and task.subtype != MATCHING
                other = self._change(task, fault) if self._change is not None and is_worth_it else None
                subtask_failed(self._runtime, task, fault, depth=place.depth, again=other is not None)
                if other is None:
                    raise
                with limits_of(other, self._runtime, inside_of=task):
                    result = await self._recovered(other, place, session, report.restarted(other))
                return msgspec.structs.replace(result, notes={**result.notes, "retried_after": view.write(fault)})

    @staticmethod
    def _subtask_failed(task: Task, place: TaskPlace, fault: Fault) -> HoldfastError:
        context = {
            "subtask": task.title,
            "subtask_request": task.request(),
            "subtask_error": view.write(fault),
            "subtask_code": fault.code,
            "nesting_depth": max(place.depth, fault.context.get("nesting_depth", 0)),
        }
        return HoldfastError(Fault.of("TASK_SUBTASK_FAILED", context=context, partial=fault.partial))

    # --- decomposition ---

    async def _split(
        self,
        task: Task,
        error: Exception,
        fault: Fault,
        place: TaskPlace,
        session: Session | None,
        *,
        report: TaskReport,
    ) -> TaskResult:
        """Split the task, which failed with `error`, and merge the results of its parts. If that fails, raise what ended it."""
        if self._decomposer is None or not task.decompose:
            raise TaskError(fault) from error
        if place.splits >= place.limit:
            too_deep = msgspec.structs.replace(fault, context={**fault.context, "depth": place.splits})
            raise TaskError(too_deep) from error
        decomposition = await in_time(self._decomposer(task, fault, left_here()))
        if decomposition is None:
            raise TaskError(fault) from error
        check_parts(task, decomposition)
        # A part has the background of the task, and inherits what the task itself inherited.
        below = place.below(task, background=place.background, is_split=True)
        report.decomposed(len(decomposition.parts), below.splits, fault)
        with report.blocked():
            async with nullcontext() if place.slot is None else place.slot.lent():
                results = await self._all(decomposition.parts, fault, below, session)
        return await self._merged(task, decomposition, results, below, session)

    async def _all(
        self, parts: Sequence[Task], whole: Fault, place: TaskPlace, session: Session | None
    ) -> list[TaskResult]:
        """Return the result of each part, in order. After a failure the others are cancelled, or end, as configured, and it is raised."""
        around = place.slot if place.slot is not None and place.slot.slots.owner is self else None
        slots = Slots(self._concurrency, self) if around is None else around.slots
        failures: list[tuple[Task, Exception]] = []

        async def perform(part: Task) -> TaskResult:
            report = self._report(part, place)
            with report.in_line():
                async with PartSlot(slots, failures, around) as slot:
                    is_strict = self._on_failure == "fail-fast"
                    if is_strict and (failed := slot.stopped_by()) is not None:
                        return TaskResult.of_fault(not_done(failed, begun=False))
                    try:
                        here = msgspec.structs.replace(place, slot=slot).metered()
                        return _metered(await self._tried_twice(part, here, session, report), here.meter.usage)
                    except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the result
                        failures.append((part, error))
                        if is_strict:
                            slot.fail()
                        return TaskResult.of_fault(self._runtime.fault_of(error))

        async with asyncio.TaskGroup() as group:
            started = [group.create_task(perform(part)) for part in parts]
            if self._on_failure == "fail-fast":
                _cancel_after_failure(started)
        part, error = failures[0] if failures else (None, None)
        results = [
            TaskResult.of_fault(not_done(part, begun=True)) if each.cancelled() else each.result() for each in started
        ]
        failed = next((each.fault for each in results if each.fault is not None), None)
        if failed is None:
            return results
        ended_by = failed if error is None else self._runtime.fault_of(error)
        raise TaskError(
            split_failed(whole, parts, results, ended_by=ended_by, part=part, splits=place.splits)
        ) from error

    async def _merged(
        self,
        task: Task,
        decomposition: Decomposition,
        results: list[TaskResult],
        place: TaskPlace,
        session: Session | None,
    ) -> TaskResult:
        """Return the results of the parts as one. Raise what ended the merge, with those results."""
        notes: dict[str, Any] = {"decomposed": {"parts": len(results), "depth": place.splits}, **retries_of(results)}
        try:
            merged = await self._merge(decomposition.merge, results, place, session)
        except Exception as error:
            fault = self._merge_fault(task, decomposition.merge, self._runtime.fault_of(error))
            raise TaskError(merge_failed(fault, results)) from error
        return msgspec.structs.replace(merged, notes={**merged.notes, **notes})

    async def _merge(
        self, merge: Merge, results: list[TaskResult], place: TaskPlace, session: Session | None
    ) -> TaskResult:
        if isinstance(merge, Task):
            given = [each.content for each in results]
            return await self._execute(merge.with_(inputs={**merge.inputs, "results": given}), place, session)
        values = values_of(results)
        if merge == "collect":
            return TaskResult(content=as_json(values), value=values)
        if callable(merge):
            value = merge(results)
            value = await in_time(value) if isinstance(value, Awaitable) else value
            return result_of(value)
        if all(isinstance(value, list) for value in values):
            joined = [item for value in values for item in value]
            return TaskResult(content=as_json(joined), value=joined)
        text = joined_text(
            value if isinstance(value, str) else each.content for value, each in zip(values, results, strict=True)
        )
        return TaskResult(content=text, value=text)

    def _merge_fault(self, task: Task, merge: Merge, fault: Fault) -> Fault:
        """Return the fault of a merge; where a function with a defect performed it, with what it may not know."""
        if fault.code != "SYS_PROGRAMMING_ERROR":
            return fault
        if not isinstance(merge, Task):
            return fault.wrapped(f"{task.label} (merge)")
        if is_agent(self._performer_of(merge)[1]):
            return fault
        hint = "The parts are merged by a task with the input `results`, and the same function performs it"
        return msgspec.structs.replace(fault, message=f"{fault.message}. {hint}. Give the decomposer `merge=` instead")

    # --- parts of it ---

    @property
    def _runtime(self) -> Runtime:
        return self._given_runtime or default_runtime()

    def _report(self, task: Task, place: TaskPlace) -> TaskReport:
        return TaskReport(self._runtime, task, place.depth, self._board)

    def _performer_of(self, task: Task) -> tuple[str, Performer]:
        if not task.agent:
            hinted = next((name for name in task.hints if name in self._agents), None)
            if hinted is not None:
                return hinted, self._agents[hinted]
            return getattr(self._performer, "name", "default"), self._performer
        if task.agent not in self._agents:
            known = ", ".join(sorted(self._agents)) or "none"
            context = {"request": f"agent {task.agent!r} (known: {known})"}
            raise HoldfastError(Fault.of("TASK_TEMPLATE_NOT_FOUND", context=context))
        return task.agent, self._agents[task.agent]


def _metered(result: TaskResult, usage: DataUsage | None) -> TaskResult:
    """Return the result with what was used for it."""
    return msgspec.structs.replace(result, usage=usage)


def result_of(value: Any) -> TaskResult:
    return TaskResult(content=value if isinstance(value, str) else as_json(value), value=value)


def _value_of(task: Task | DirectorLoop, result: TaskResult) -> Any:
    """Return the output: None may be one, if the task says so."""
    is_read = isinstance(task, Task) and task.output is not None and "parseError" not in result.notes
    return result.value if is_read or result.value is not None else result.content


def _is_final(fault: Fault) -> bool:
    """Whether doing the task in another way could do something a second time."""
    return bool(fault.context.get(ACTED))


def _is_worth_another_try(fault: Fault) -> bool:
    """Return whether other words may help: not against a limit, not where a person must act, not after a subtask's own second try."""
    if fault.code in _FINAL or is_of_split(fault):
        return False
    return view.dispatch(fault) is not Handler.RESOURCE and fault.next_actor in {NextActor.MACHINE, NextActor.MODEL}


def _cancel_after_failure(started: list[asyncio.Task[TaskResult]]) -> None:
    def ended(task: asyncio.Task[TaskResult]) -> None:
        if not task.cancelled() and task.exception() is None and task.result().fault is None:
            return
        for other in started:
            other.cancel()

    for task in started:
        task.add_done_callback(ended)


def _original(error: Exception) -> Exception:
    """Return the exception that a performer, a budget or a limit raised, without those that were made of it here."""
    while isinstance(error, TaskError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def _may_match_again(task: Task, fault: Fault, performer: Performer) -> bool:
    """Return whether a matching task failed that nobody has tried in another way yet, and nothing could happen a second time."""
    if task.subtype != MATCHING or "alternative" in fault.context or _is_final(fault):
        return False
    if fault.code == "TASK_UNEXPECTED":
        # Nobody foresaw this exception, and so nobody knows what had happened before it.
        contract = contract_of(performer)
        return contract is not None and is_repeatable(contract.effect)
    return view.dispatch(fault) is Handler.CONTEXT or _is_worth_another_try(fault)


def _tried(fault: Fault) -> dict[str, Any]:
    """Return the note about an attempt that failed: why, and what it had."""
    note: dict[str, Any] = {"error": view.write(plain_fault(fault))}
    if fault.partial is not None and not fault.partial.is_empty:
        note["partialOutput"] = plain(fault.partial.payload)
    if (score := fault.context.get("success_score")) is not None:
        note["successScore"] = score
    return note


def _text_of(partial: Partial | None) -> str:
    if partial is None or partial.payload is None:
        return ""
    return partial.payload if isinstance(partial.payload, str) else as_json(partial.payload)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
