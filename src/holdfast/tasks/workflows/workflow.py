"""`Workflow`: a program, together with everything that it may call.

Invariant: in a session a workflow is done once, however often the program around it is started: calls with a stored result are not made
again, and a workflow that has ended returns its value. A failed or interrupted one goes on where it stood.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast import options
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.tasks.workflows.durable import Keeper, plain_result, run_in_session
from holdfast.tasks.workflows.registered import Registered
from holdfast.tasks.workflows.run import WorkflowRun
from holdfast.workflow.errors import WorkflowError
from holdfast.workflow.machine import Machine
from holdfast.workflow.meter import Limits
from holdfast.workflow.reader import read
from holdfast.workflow.values import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from os import PathLike

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session
    from holdfast.tasks.workflows.observation import Observation
    from holdfast.tasks.workflows.registered import Callables, Scripts
    from holdfast.tools import Toolbox
    from holdfast.workflow.requests import Operators

__all__ = ["Workflow"]


class Workflow:
    """A program in the workflow language, with the tasks, tools and functions that it may call.

        async def summarise(text: str) -> str: ...

        workflow = Workflow.load("review.sexp", tasks=[summarise])
        async with Session.open("review-42") as session:
            value = await workflow.run(session, inputs={"document": text})

    source: the program. name: what its runs are called in the session.
    tasks: atomic tasks: functions or agents by name, or a list of functions. Each call is a step of the session. A function that must not
        run twice is declared with `@tool(effect="unsafe")`.
    tools: a `Toolbox`, or tools. functions: Python functions, called with their arguments in order.
    primitives: plain functions of values without any effect. They run again when a workflow is resumed.
    agent: performs the tasks that the program defines with `defatom`.
    context: a function that `get_context` calls. scripts: lets the program run commands with `system:run_script`; `"idempotent"` if they
        may run again after a crash, `"unsafe"` if a person must look first.
    limits: what one run may use. concurrency: how many items of a `map` run at the same time at most.

    Raises `WorkflowSyntaxError` if the program cannot be read, and `InvalidError` for wrong options.
    """

    @options.suggests
    def __init__(
        self,
        source: str,
        *,
        name: str = "workflow",
        tasks: Callables = (),
        tools: Toolbox | Iterable[Any] = (),
        functions: Callables = (),
        primitives: Mapping[str, Callable[..., Any]] | None = None,
        agent: Any = None,
        context: Callable[..., Any] | None = None,
        scripts: Scripts | None = None,
        limits: Limits | None = None,
        concurrency: int = 16,
        runtime: Runtime | None = None,
        file: str = "",
    ) -> None:
        options.name("workflow.name", name)
        options.count("workflow.concurrency", concurrency)
        self.name = name
        self.source = source
        self.program = read(source, file)
        self.limits = limits or Limits()
        self.concurrency = concurrency
        self._runtime = runtime
        self.registered = Registered(
            tasks, tools, functions, primitives or {}, agent=agent, context=context, scripts=scripts, runtime=runtime
        )

    @classmethod
    def load(cls, path: str | PathLike[str], **given: Any) -> Self:
        """Return the workflow of a file: `Workflow.load("review.sexp", tasks=[summarise])`.

        The other arguments are those of `Workflow`; its name is that of the file. Raises `OSError` if the file cannot be read, and
        `WorkflowSyntaxError` if it is no program.
        """
        file = Path(path)
        return cls(file.read_text(encoding="utf-8"), **{"name": file.stem, "file": str(file), **given})

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    @property
    def operators(self) -> Operators:
        """The names that the program may call beside the language."""
        return self.registered.operators

    @property
    def run_name(self) -> str:
        """What its runs are called in a session: `workflow review`."""
        return f"workflow {self.name}"

    async def run(
        self,
        session: Session | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        observe: Callable[[Observation], object] | None = None,
    ) -> Any:
        """Run the program and return its value, as plain JSON values.

            value = await workflow.run(session, inputs={"document": text})

        `inputs` are bound before it begins. In a session it is done once per session and inputs, or inside a `turn` block once per turn;
        a run that failed or was interrupted goes on when it is called again. `observe` gets what happens: see `holdfast.tasks.workflows.Observation`.

        Raises `WorkflowError` if the program fails, with the environment, the expression and its position; `OutcomeUnknownError` if an
        unsafe call was cut off and may have happened; `ParkedError` if it waits in `retry-later`, and SESS_NO_INTERACTOR if it waits for the
        operator's answer: any process goes on then, see `holdfast.sessions.later.run_due`; and the failures of the session.
        """
        given = {name: plain_result(value, f"inputs.{name}") for name, value in (inputs or {}).items()}
        if session is None:
            return await self._finish(Keeper(), None, given, observe)

        async def finish(key: str, keeper: Keeper) -> Any:
            del key
            return await self._finish(keeper, session, given, observe)

        runtime = self._runtime or default_runtime()
        return await run_in_session(
            session, self.run_name, given, finish, runtime, program=self._digest, ends=_is_failure
        )

    async def resume(self, session: Session, inputs: Any) -> Any:
        """Go on with a run that was begun in a session: `holdfast.sessions.run_due` does it when its time has come."""
        return await self.run(session, inputs=inputs)

    async def _finish(
        self,
        keeper: Keeper,
        session: Session | None,
        inputs: dict[str, Any],
        observe: Callable[[Observation], object] | None,
    ) -> Any:
        redactor = process_redactor()
        machine = Machine(self.program, self.operators, inputs=inputs, limits=self.limits, redactor=redactor)
        run = WorkflowRun(
            machine,
            self.registered,
            keeper,
            session=session,
            runtime=self._runtime or default_runtime(),
            concurrency=self.concurrency,
            observe=observe,
        )
        return plain(await run.finish())

    @property
    def _digest(self) -> str:
        return sha256(self.source.encode()).hexdigest()[:12]


def _is_failure(error: Exception) -> bool:
    return isinstance(error, WorkflowError)
