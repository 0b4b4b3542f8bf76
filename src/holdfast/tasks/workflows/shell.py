"""A workflow that is typed in piece by piece. Nothing is stored.

Invariant: what an expression binds is there for the next one, also if a later expression fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.tasks.workflows.durable import Keeper
from holdfast.tasks.workflows.run import WorkflowRun
from holdfast.workflow.environment import Env
from holdfast.workflow.machine import Machine
from holdfast.workflow.reader import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.tasks.workflows.observation import Observation
    from holdfast.tasks.workflows.workflow import Workflow
    from holdfast.workflow.requests import Template

__all__ = ["WorkflowShell"]


class WorkflowShell:
    """Evaluates expressions one after the other, with the tasks of a workflow.

    shell = WorkflowShell(Workflow("", tasks=[summarise]))
    value = await shell.evaluate("(bind x 1) (+ x 1)")
    """

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        self._env = Env({})
        self._templates: dict[str, Template] = {}

    @property
    def bindings(self) -> dict[str, Any]:
        """What is bound."""
        return dict(self._env.names)

    async def evaluate(self, text: str, observe: Callable[[Observation], object] | None = None) -> Any:
        """Evaluate expressions and return the last value; raise `WorkflowError` if one fails.

        value = await shell.evaluate("(+ 1 2)")
        """
        machine = Machine(
            read(text),
            self._workflow.operators,
            env=self._env,
            limits=self._workflow.limits,
            redactor=process_redactor(),
        )
        machine.templates = self._templates
        run = WorkflowRun(
            machine,
            self._workflow.registered,
            Keeper(),
            session=None,
            runtime=default_runtime(),
            concurrency=self._workflow.concurrency,
            observe=observe,
        )
        return await run.finish()
