"""What a workflow asks of the world, as values: the machine makes them, and a driver performs them.

Invariant: a request holds everything that is needed to perform it. The machine goes on only with the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from holdfast.faults import Fault
from holdfast.workflow.syntax import Position


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """An atomic task that a workflow defined with `defatom`: a prompt with places for its inputs."""

    name: str
    params: tuple[str, ...] = ()
    instructions: str = ""
    options: dict[str, Any] = {}
    """Its other clauses, such as `model`, `description` and `output_format`."""

    def prompt(self, inputs: dict[str, Any]) -> str:
        """Return the instructions with the inputs in their places: `{{name}}`."""
        text = self.instructions
        for name, value in inputs.items():
            text = text.replace(f"{{{{{name}}}}}", value if isinstance(value, str) else _json(value))
        return text

    def description(self, inputs: Iterable[str]) -> str:
        """Return the instructions as the prompt of a task, in which a place is `{name}` and a brace is doubled."""
        text = self.instructions.replace("{", "{{").replace("}", "}}")
        for name in inputs:
            text = text.replace(f"{{{{{{{{{name}}}}}}}}}", f"{{{name}}}")
        return text


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class BudgetScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the work inside of a `with-budget` may use."""

    id: str
    """It is the same in every run of the workflow."""
    turns: int | None = None
    """Calls of tasks, tools and functions."""
    steps: int | None = None
    """Steps of evaluation."""
    seconds: float | None = None
    usd: float | None = None
    tokens: int | None = None


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Call a task, a tool, a function, the context or a program. The answer is its result, or a fault."""

    kind: str
    """One of `CallKind`."""
    name: str
    request: dict[str, Any] = {}
    """That of the task which is registered under the name, if it is one."""
    inputs: dict[str, Any] = {}
    """Named arguments, as JSON values."""
    args: tuple[Any, ...] = ()
    """Arguments without a name."""
    position: Position = Position()
    expression: str = ""
    template: Template | None = None
    scopes: tuple[BudgetScope, ...] = ()
    """The budgets around it, outer ones first."""
    strand: str = ""
    """Names the strand that makes it by the items of the maps around it, and by no index: an edit of the program leaves it as it is."""
    misfit: Fault | None = None
    """Why it cannot be made, if its arguments do not fit. An earlier run may have made it: its function may have taken them then."""


class Binding(msgspec.Struct, frozen=True):
    """A name that got a value."""

    name: str
    value: Any
    position: Position


class Bound(msgspec.Struct, frozen=True):
    """Keep that these names have these values. There is no answer."""

    bindings: tuple[Binding, ...]
    left_out: int = 0
    """Older bindings that are not in the list, because there were too many."""


class Log(msgspec.Struct, frozen=True):
    """Show a line to the people who watch. There is no answer."""

    text: str
    position: Position


class WaitRequest(msgspec.Struct, frozen=True):
    """Wait before the next attempt. There is no answer."""

    seconds: float


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """Wait before the next attempt, also if the process ends meanwhile. There is no answer."""

    seconds: float
    fault: Fault
    """Why the last attempt failed."""
    attempt: int
    """The attempt that failed, counted from 1."""
    attempts: int


class Escalate(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the operator whether to try again. The answer is whether they say yes."""

    fault: Fault
    attempts: int
    """How often it failed."""


class PauseRequest(msgspec.Struct, frozen=True):
    """Nothing to perform: the machine has used its slice, and others may run."""


class Parallel(msgspec.Struct, frozen=True):
    """Run strands at the same time. The answer is the list of their results, in order."""

    path: str
    """Names this use of `map`. It is the same in every run of the workflow."""
    count: int
    limit: int | None
    collect: bool
    """Whether a failed strand leaves its failure in its place; otherwise the first failure stops the others."""
    strand: Callable[[int], Any]
    """Makes the strand of an item: a `Machine`."""
    scopes: tuple[BudgetScope, ...] = ()


Request: TypeAlias = CallRequest | Bound | Log | WaitRequest | Later | Escalate | PauseRequest | Parallel


class Operators(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow may call beside the language: names of tasks, tools and functions, and user primitives.

        Operators(tasks={"summarise": ("text",)}, primitives={"shout": str.upper})

    A task or tool stands with the names of its parameters, or with None if they are not known.
    """

    tasks: dict[str, tuple[str, ...] | None] = {}
    tools: dict[str, tuple[str, ...] | None] = {}
    functions: frozenset[str] = frozenset()
    primitives: dict[str, Callable[..., Any]] = {}
    """Functions of values, without any effect: they run again when a workflow is resumed."""
    context: bool = False
    """Whether `get_context` is there."""
    scripts: bool = False
    """Whether `system:run_script` is there."""
    fault_of: Callable[[Exception], Fault] | None = None
    """Describes what a user primitive raised."""
