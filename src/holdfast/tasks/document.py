"""`TaskSystem` as document 003 knows it, with the document's verbs. `holdfast.documents.task` exports it.

Invariant: a verb returns the result of a failed task too, and raises only cancellations.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.tasks.parts.partials import bounded
from holdfast.tasks.performer import is_agent
from holdfast.tasks.system import TaskSystem, result_of
from holdfast.tasks.task import Task, TaskResult, as_json, plain
from holdfast.tasks.workflows.registered import REQUEST
from holdfast.tasks.workflows.workflow import Workflow
from holdfast.views import task as view
from holdfast.views.task import Handler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.faults import Fault
    from holdfast.sessions.session import Session
    from holdfast.tasks.director import DirectorLoop
    from holdfast.tasks.task import TaskError

__all__ = ["DocumentTaskSystem"]


class DocumentTaskSystem(TaskSystem):
    """A `TaskSystem` with the verbs of document 003: `await TaskSystem(agent).execute_task(Task("Summarise {doc}"))`.

    Options, and the errors for wrong ones, are those of `holdfast.TaskSystem`.
    """

    async def execute_task(
        self, task: Task | DirectorLoop | Mapping[str, Any], *, session: Session | None = None
    ) -> TaskResult:
        """Perform a task, and return its result, a failed one too: `status`, `content`, `notes`. It raises only cancellations."""
        return (await self._ended(task, session))[0]

    async def execute_s_expression(
        self,
        source: str,
        *,
        tasks: Mapping[str, Task | Callable[..., Any]] | None = None,
        inputs: Mapping[str, Any] | None = None,
        session: Session | None = None,
    ) -> TaskResult:
        """Run a program of the workflow language, and return its result, a failed one too. It raises only cancellations.

            result = await tasks.execute_s_expression("(bind x (call-atomic-task 'plan) (list x))", tasks={"plan": Task("Make a plan")})

        tasks: what the program may call by name: tasks, whose inputs are the arguments of the call, or functions.
        """
        known = {
            name: self._callable(given) if isinstance(given, Task) else given for name, given in (tasks or {}).items()
        }
        agent = self._performer if is_agent(self._performer) else None
        try:
            workflow = Workflow(source, tasks=known, agent=agent, runtime=self._given_runtime)
            value = await workflow.run(session, inputs=inputs)
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the result
            return TaskResult.of_fault(await bounded(self._runtime.fault_of(error), self._summary, self._runtime))
        return result_of(value)

    def _callable(self, task: Task) -> Callable[..., Awaitable[Any]]:
        """Return a function that performs the task with its arguments as inputs. The workflow makes each call a step."""

        async def perform(**inputs: Any) -> Any:
            return plain(await self.run(task.with_(inputs=inputs)))

        setattr(perform, REQUEST, task.request())
        return partial(perform, **task.inputs) if task.inputs else perform

    async def recover_from_context_failure(
        self, error: Mapping[str, Any] | Fault | TaskError, query: str = ""
    ) -> TaskResult:
        """Look for the context of a failed task in another way: by the names of the files.

        query: what the task is about. A failure of ours says it itself; without any, the files are listed by their names.
        The content of the result is a list of matches. A failure that is not about context is returned as it is.
        """
        try:
            fault = view.fault_in(error)
            if view.dispatch(fault) is not Handler.CONTEXT or self._index is None:
                return TaskResult.of_fault(fault)
            query = query or str(fault.context.get("query", ""))
            found = await (self._index.match(query, strategy="metadata") if query else self._index.files())
        except Exception as failed:  # noqa: BLE001 - whatever it is, it becomes the result
            return TaskResult.of_fault(self._runtime.fault_of(failed))
        document = msgspec.to_builtins(found)
        return TaskResult(
            content=as_json(document["matches"]), value=document, notes={"successScore": found.matches[0].relevance}
        )
