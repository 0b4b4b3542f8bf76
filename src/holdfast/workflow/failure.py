"""A failure on its way through a running workflow, and the exception that it becomes.

Invariant: a failure knows the expression, its position and its environment from the moment it happens. They are masked and cut when they
leave the machine, not before: `try` inside of the workflow may need the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault
from holdfast.once.evidence import NOT_CALLED
from holdfast.views import task
from holdfast.views.view import jsonable
from holdfast.workflow.environment import partial_of
from holdfast.workflow.errors import UnboundSymbolError, WorkflowError
from holdfast.workflow.syntax import Position
from holdfast.workflow.values import plain, show

if TYPE_CHECKING:
    from holdfast.faults import Code, Redactor
    from holdfast.workflow.environment import Env
    from holdfast.workflow.requests import Request
    from holdfast.workflow.syntax import Node

_SHOWN = 200
"""Characters of the expression in a message."""
_EXPRESSION = 2_000
"""Characters of the expression that a failure carries."""


def misfit(message: str) -> Fault:
    """Return the fault of a call whose arguments its function does not take. It has surely not happened."""
    return Fault.of("TASK_EVALUATION_FAILED", message, context={"evidence": NOT_CALLED})


class EvaluationProblem(Exception):  # noqa: N818 - it never leaves the machine
    """Why an expression has no value. Forms and primitives raise it, and the machine looks for the frame that handles it."""

    def __init__(
        self,
        code: Code,
        message: str,
        facts: dict[str, Any] | None = None,
        *,
        why: str = "",
        is_fatal: bool = False,
        budget: str = "",
        cause: Fault | None = None,
    ) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
        self.facts = facts or {}
        self.why = why
        """What is wrong, in one word for programs: `wrong_type`, `arity`, `task_failed` …"""
        self.is_fatal = is_fatal
        """Whether the program cannot handle it: what the whole workflow may use is used up."""
        self.budget = budget
        """The id of the `with-budget` that is used up."""
        self.cause = cause
        """The fault of the task, tool or function that failed."""

    @classmethod
    def wrong(cls, message: str, why: str = "wrong_type") -> EvaluationProblem:
        """Return the problem of an expression that is wrong, whatever its tasks answer."""
        return cls("TASK_EVALUATION_FAILED", message, why=why)

    @classmethod
    def of_call(cls, fault: Fault, request: Request | None) -> EvaluationProblem:
        """Return the problem of a call that failed."""
        if fault.code == "TASK_EVALUATION_FAILED" and fault.context.get("evidence") == NOT_CALLED:
            # A misfit, now or in the run that stored it.
            return cls.wrong(fault.message, "arity")
        kind = str(getattr(request, "kind", "task"))
        name = str(getattr(request, "name", ""))
        inputs = getattr(request, "inputs", {})
        template = getattr(request, "template", None)
        if fault.code in {"TASK_TIMEOUT", "SYS_BUDGET_EXHAUSTED"}:
            # The budget around the call is used up; the call itself may be well.
            return cls(
                "TASK_TIMEOUT" if fault.code == "TASK_TIMEOUT" else fault.code, fault.message, why="budget", cause=fault
            )
        facts = {
            "subtask": name,
            "subtask_request": {
                "type": "atomic" if kind in {"task", "template"} else kind,
                "description": name if template is None else template.description(inputs),
                **getattr(request, "request", {}),
                "name": name,
                "inputs": {
                    **inputs,
                    **{str(n): value for n, value in enumerate(getattr(request, "args", ()), 1)},
                },
            },
            "subtask_error": task.write(fault),
            "nesting_depth": 1 + fault.context.get("nesting_depth", 0),
        }
        if fault.partial is not None and fault.partial.payload is not None:
            # The partial result of the workflow itself is its environment.
            facts["partialOutput"] = fault.partial.payload
        return cls(
            "TASK_EVALUATION_FAILED", f"{kind} {name} failed: {fault.message}", facts, why=f"{kind}_failed", cause=fault
        )


class Failure:
    """A problem with the place where it happened."""

    def __init__(self, problem: EvaluationProblem, env: Env, node: Node) -> None:
        self.problem = problem
        self.env = env
        self.expression = show(node, _EXPRESSION)
        self.position: Position = getattr(node, "position", Position())
        self.details: dict[str, Any] = {}
        """What the frames know that it went through, such as the iteration of a loop."""

    @property
    def fault(self) -> Fault:
        """The fault of the call that failed, or of the program itself."""
        cause, problem = self.problem.cause, self.problem
        return cause if cause is not None else Fault.of(problem.code, problem.message)

    @property
    def is_retryable(self) -> bool:
        """Whether another attempt may end otherwise: a call failed, or the program raised an error of its own."""
        cause = self.problem.cause
        if cause is None:
            return self.problem.why == "raised"
        return self.problem.why != "budget" and cause.code != "TOOL_OUTCOME_UNKNOWN"

    def value(self) -> dict[str, Any]:
        """Return the failure as a value of the language, for `catch` and for `map` with `:collect`."""
        problem, fault = self.problem, self.fault
        found: dict[str, Any] = {
            "code": fault.code,
            "reason": fault.entry.task.partition("/")[2],
            "message": fault.message,
            "retryable": self.is_retryable,
            "expression": self.expression[:_SHOWN],
            "line": self.position.line,
            "column": self.position.column,
        }
        if fault.partial is not None and fault.partial.payload is not None:
            found["partial"] = jsonable(fault.partial.payload)
        if problem.why == "raised" and "value" in problem.facts:
            found["value"] = problem.facts["value"]
        return found

    def error(self, redactor: Redactor) -> WorkflowError:
        """Return the exception: with the environment, masked and cut."""
        problem = self.problem
        where = f"line {self.position.line}, column {self.position.column}: "
        shown = self.expression if len(self.expression) <= _SHOWN else self.expression[:_SHOWN] + "…"
        context = {
            "failing_expression": self.expression,
            "line": self.position.line,
            "column": self.position.column,
            **({"why": problem.why} if problem.why else {}),
            **plain(problem.facts),
            **plain(self.details),
        }
        message = f"{where}{problem.message}; in {shown}"
        fault = Fault.of(
            problem.code,
            redactor.text(message),
            context=redactor.value(context),
            partial=partial_of(self.env, redactor),
        )
        return (UnboundSymbolError if problem.code == "TASK_UNBOUND_SYMBOL" else WorkflowError)(fault)
