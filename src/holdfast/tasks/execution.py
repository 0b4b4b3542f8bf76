"""`Execution`: one task, performed once: its prompt, its turns, its output, and the subtasks that it asks for.

Invariant: limits are checked before each call. Whatever ends it, the fault holds what there is of the output, and its turns are closed: what it
did not use belongs to the task around it again.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import BudgetError, Fault, HoldfastError, Partial
from holdfast.runtime.acts import Acts, watch_acts
from holdfast.runtime.ambient import WAITING
from holdfast.runtime.budgets.budget import Budget
from holdfast.runtime.failures.evidence import in_doubt
from holdfast.runtime.tool import contract_of
from holdfast.supervision.directive import is_plain
from holdfast.tasks.context.lookup import Background, background_of, read_files
from holdfast.tasks.limits import in_time
from holdfast.tasks.output.format import OutputFormat, UnreadableError
from holdfast.tasks.performer import Assignment, Performer, is_agent, is_unsafe, performed, requested_subtask
from holdfast.tasks.place import HERE, TaskPlace
from holdfast.tasks.progress import Progress
from holdfast.tasks.task import MATCHING, Status, Task, TaskError, TaskResult, tokens_in
from holdfast.views import task as view

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.faults import Code
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session
    from holdfast.tasks.context.index import ContextIndex
    from holdfast.tasks.reports import TaskReport

    Subtask = Callable[[Task, TaskPlace, Session | None], Awaitable[TaskResult]]

__all__ = ["ACTED", "Execution", "retries_of"]

ACTED = "unsafe_calls"
"""The field of a task's fault that names the unsafe calls which were made for it: doing it in another way could make them again."""

_WORD = re.compile(r"\w{4,}")
_OVERFLOWS = frozenset({"PROVIDER_CONTEXT_OVERFLOW", "PROVIDER_REQUEST_TOO_LARGE"})
_TURNS = frozenset({"TASK_LOOP_BOUND", "TASK_TURNS_EXHAUSTED"})


class Execution:
    """Performs one task."""

    def __init__(
        self,
        task: Task,
        performer: tuple[str, Performer],
        place: TaskPlace,
        *,
        session: Session | None,
        runtime: Runtime,
        subtask: Subtask,
        report: TaskReport,
        index: ContextIndex | None = None,
    ) -> None:
        self._task = task
        self._name, self._performer = performer
        self._place = place
        self._session = session
        self._runtime = runtime
        self._subtask = subtask
        self._index = index
        self._report = report
        self._found: Background | None = None
        """What the index has for this task."""
        self._files = ""
        """The texts of the files that the task names."""
        self._format = None if task.output is None else OutputFormat(task.output)
        self._budget = Budget(turns=task.turns, runtime=runtime)
        self._progress = Progress(task.unchanged)
        self._begun = False
        """The performer was called."""
        self._acts = Acts(None)
        """The unsafe calls that were made for the task, also by its subtasks."""
        self._last: TaskResult | None = None
        """The last answer, whatever it is worth."""
        self._results: list[TaskResult] = []
        """Of the subtasks."""

    async def run(self) -> TaskResult:
        """Return the result, or raise an exception whose fault holds what there is."""
        with self._budget, watch_acts() as self._acts:
            try:
                return await self._run()
            except Exception as error:
                known = self._runtime.fault_of(error)
                fault = self._own_fault(self._without_guess(known, error))
                if self._begun and in_doubt(error, known, contract_of(self._performer)):
                    self._acts.add(self._name)
                if self._acts.names:
                    facts = {**fault.context, ACTED: list(self._acts.names)}
                    fault = msgspec.structs.replace(fault, maybe_executed=True, context=facts)
                raise TaskError(fault) from error

    async def _run(self) -> TaskResult:
        inherited = self._background()
        if self._task.files:
            self._files = await in_time(asyncio.to_thread(read_files, self._index, self._task.files, inherited))
        if self._task.use.fresh and self._index is not None:
            self._found = await in_time(background_of(self._task, self._index, inherited))
        wrong = ""
        reasks = 0
        while True:
            result = await self._answer(wrong)
            if (subtask := requested_subtask(result)) is not None:
                wrong = ""
                await self._do(subtask)
            else:
                fault, checked = self._checked(result)
                if fault is None:
                    return self._noted(checked, reasks)
                reasks += 1
                self._report.rejected(fault, reasks)
                if reasks > self._task.reasks or is_unsafe(self._performer) or not self._may_ask_again():
                    raise HoldfastError(fault)
                wrong = fault.message
            # Each result once: the same subtask with the same result, again and again, is no progress.
            known = list(dict.fromkeys(each.content for each in self._results))
            if self._progress.is_stuck(result.content, result.notes, known):
                raise HoldfastError(self._progress.fault())

    def _may_ask_again(self) -> bool:
        """Whether another answer repeats nothing. An agent in a session goes on with its conversation, and so knows what it has done."""
        return not self._acts.names or (is_agent(self._performer) and self._session is not None)

    async def _answer(self, wrong: str) -> TaskResult:
        """Ask for one answer."""
        task = self._task
        assignment = Assignment(task=task, prompt=self._prompt(wrong), results=tuple(self._results))
        self._check_before(assignment.prompt)
        if not is_agent(self._performer):
            # An agent takes its own turns.
            self._budget.take_turn()
        here, waiting = (
            HERE.set(self._place.below(task, background=self._background())),
            WAITING.set(self._report.blocked),
        )
        self._begun = True
        try:
            performance = await in_time(performed(self._name, self._performer, assignment, self._session))
        finally:
            HERE.reset(here)
            WAITING.reset(waiting)
        self._last = result = performance.result
        self._place.meter.add(tokens_in(assignment.prompt), performance.output_tokens)
        if result.status == Status.FAILED:
            raise HoldfastError(result.fault or _said(result, task))
        if task.max_output is not None and performance.output_tokens > task.max_output:
            raise self._exhausted("TASK_OUTPUT_EXHAUSTED", performance.output_tokens, task.max_output)
        return result

    def _check_before(self, prompt: str) -> None:
        """Raise if a limit is reached. The time, money and tokens of an agent's calls are checked by their recoveries."""
        task = self._task
        if (spent := self._budget.exhausted()) is not None:
            raise BudgetError.because(**spent)
        used = tokens_in(prompt)
        if task.context is not None and used > task.context:
            raise self._exhausted("TASK_CONTEXT_EXHAUSTED", used, task.context)

    async def _do(self, subtask: Task) -> None:
        place = self._place.below(self._task, background=self._background())
        with self._report.blocked():
            self._results.append(await self._subtask(subtask, place, self._session))

    def _checked(self, result: TaskResult) -> tuple[Fault | None, TaskResult]:
        """Return the result with its value; with a fault if the output does not have the form that it must have."""
        if self._format is None:
            return None, result
        try:
            return None, msgspec.structs.replace(result, value=self._format.read(result.content))
        except UnreadableError as error:
            is_strict = self._format.is_strict if self._task.strict is None else self._task.strict
            if not is_strict:
                return None, msgspec.structs.replace(result, notes={**result.notes, "parseError": str(error)})
            context = {"violations": [str(error)]}
            return Fault.of("TASK_OUTPUT_INVALID", context=context, partial=Partial(payload=result.content)), result
        except HoldfastError as error:
            return error.fault, result

    def _noted(self, result: TaskResult, reasks: int) -> TaskResult:
        """Return the result with notes about what went wrong before it came."""
        notes: dict[str, Any] = {"rejected_outputs": reasks} if reasks else {}
        notes |= retries_of(self._results)
        if (found := self._found) is not None and (found.is_second_try or found.unread):
            unread = {"unread": list(found.unread)} if found.unread else {}
            notes["context"] = {
                "strategy": found.strategy,
                "successScore": found.score,
                "retried": found.is_second_try,
                **unread,
            }
        criteria = result.criteria or self._task.criteria
        return msgspec.structs.replace(result, notes={**result.notes, **notes}, criteria=criteria)

    # --- what is sent ---

    def _background(self) -> str:
        inherited = ""
        if self._task.use.inherit == "full":
            inherited = self._place.background
        elif self._task.use.inherit == "subset":
            inherited = _fitting(self._place.background, self._task.text())
        found = "" if self._found is None else self._found.text
        return "\n\n".join(each for each in (inherited, found, self._files, self._task.background) if each)

    def _prompt(self, wrong: str) -> str:
        parts = [self._background(), self._task.text()]
        if self._task.criteria:
            parts.append(f"The answer is good if: {self._task.criteria}")
        if self._format is not None:
            parts.append(self._format.instruction)
        if self._results and is_agent(self._performer):
            parts += [f"The result of the subtask that you asked for:\n{each}" for each in self._accumulated()]
        if wrong:
            last = "" if self._last is None else self._last.content
            parts.append(f"Your last answer could not be used: {wrong}\n\nIt was:\n{last}")
        return "\n\n".join(each for each in parts if each)

    def _accumulated(self) -> list[str]:
        """Return what an agent sees of its subtasks, the last one's result last."""
        *earlier, last = self._results
        match self._task.use.accumulate:
            case "full_output":
                seen = [each.content for each in earlier]
            case "notes_only":
                seen = [msgspec.json.encode(each.notes, enc_hook=str).decode() for each in earlier]
            case _:
                seen = []
        return [*seen, last.content]

    # --- how it failed ---

    def _exhausted(self, code: Any, used: int, limit: float) -> HoldfastError:
        return HoldfastError(Fault.of(code, context={"used": used, "limit": limit}))

    def _own_fault(self, fault: Fault) -> Fault:
        """Return the fault of the task for what happened inside it, with the partial output."""
        task = self._task
        spent = self._budget.spend()
        if fault.code == "SYS_BUDGET_EXHAUSTED" and self._budget.is_out_of_turns:
            fault = self._renamed(fault, "TASK_TURNS_EXHAUSTED", used=spent.turns, limit=task.turns)
        elif fault.code in _TURNS and "used" not in fault.context:
            limit = fault.context.get("limit", spent.turns)
            fault = self._renamed(fault, "TASK_TURNS_EXHAUSTED", used=limit, limit=limit)
        elif fault.code in _OVERFLOWS:
            fault = self._renamed(fault, "TASK_CONTEXT_EXHAUSTED")
        elif fault.code == "SYS_UNKNOWN":
            # Nothing recognised what failed. For an agent that is its call of a model.
            code = "TASK_LLM_FAILED" if is_agent(self._performer) else "TASK_UNEXPECTED"
            known = self._renamed(fault, code, reason=fault.message)
            fault = msgspec.structs.replace(known, cause=fault.cause, attempts=fault.attempts)
        elif fault.code == "SYS_PROGRAMMING_ERROR" and not is_agent(self._performer):
            # The same function performs parts and merges too, so the fault says which of them it was.
            fault = fault.wrapped(task.label)
        partial = fault.partial
        if partial is not None and is_agent(self._performer) and isinstance(partial.payload, dict):
            # What an agent had is a whole reply. Its text is what the task has.
            text = partial.payload.get("text", "")
            fault = msgspec.structs.replace(fault, partial=msgspec.structs.replace(partial, payload=text))
        if self._last is not None:
            if (fault.partial is None or fault.partial.is_empty) and self._last.content:
                fault = msgspec.structs.replace(fault, partial=Partial(payload=self._last.content))
            if (score := self._last.notes.get("successScore")) is not None:
                fault = msgspec.structs.replace(fault, context={"success_score": score, **fault.context})
        return fault

    def _without_guess(self, fault: Fault, error: Exception) -> Fault:
        """Return the fault of an exception. The words of a function's own exception choose no code: they are a programmer's sentence."""
        is_known = fault.code in {"SYS_PROGRAMMING_ERROR", "SYS_UNKNOWN"}
        if is_known or is_agent(self._performer) or not is_plain(fault, error):
            return fault
        renamed = self._renamed(fault, "TASK_UNEXPECTED", reason=str(error))
        return msgspec.structs.replace(renamed, cause=fault.cause, attempts=fault.attempts)

    @staticmethod
    def _renamed(fault: Fault, code: Any, **facts: Any) -> Fault:
        """Return a fault of the task that holds the facts and the partial output of the one that it stands for."""
        context = {"cause": fault.code, **facts}
        return Fault.of(code, context=context, partial=fault.partial)


def _said(result: TaskResult, task: Task) -> Fault:
    """Return why a performer's result is a failed one: the error in its notes, or what its task was for."""
    if "error" in result.notes:
        error = view.read(result.notes["error"])
        return msgspec.structs.replace(error, partial=error.partial or Partial(payload=result.content))
    # A search that says no more than that it has failed has found too little.
    code: Code = "TASK_CONTEXT_MATCHING_FAILED" if task.subtype == MATCHING else "TASK_UNEXPECTED"
    return Fault.of(code, partial=Partial(payload=result.content))


def retries_of(results: list[TaskResult]) -> dict[str, Any]:
    """Return the note about subtasks that ended well in their second try: why the first ones failed."""
    failed = [each.notes["retried_after"] for each in results if "retried_after" in each.notes]
    return {"retried_subtasks": failed} if failed else {}


def _fitting(background: str, text: str) -> str:
    """Return the paragraphs of a background that share a word of some length with a text."""
    words = set(_WORD.findall(text.casefold()))
    return "\n\n".join(each for each in background.split("\n\n") if words & set(_WORD.findall(each.casefold())))
