"""What waits on the machine's stack, and the table of special forms.

Invariant: a frame is used once. A frame that is needed again puts itself on the stack again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from holdfast.workflow.environment import Env
from holdfast.workflow.failure import EvaluationProblem
from holdfast.workflow.syntax import Form, Node, Symbol
from holdfast.workflow.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.workflow.failure import Failure
    from holdfast.workflow.meter import EvaluationMeter
    from holdfast.workflow.requests import BudgetScope, Operators, Request, Template
    from holdfast.workflow.syntax import Position
    from holdfast.workflow.values import CallKind, Reference

Special: TypeAlias = "Callable[[Evaluation, Form, Env], None]"
"""Begins the evaluation of a special form."""

SPECIAL: dict[str, Special] = {}
"""The special forms, by name. No binding hides them."""


def special(*names: str) -> Callable[[Special], Special]:
    """Add a special form to the table."""

    def add(begin: Special) -> Special:
        SPECIAL.update(dict.fromkeys(names, begin))
        return begin

    return add


def check_count(name: str, count: int, least: int, most: int | None) -> None:
    """Raise if a function or form has too few or too many arguments."""
    if count >= least and (most is None or count <= most):
        return
    if most is None:
        expected = f"at least {least}"
    elif least == most:
        expected = f"{least}" if least else "no"
    else:
        expected = f"{least} to {most}"
    raise EvaluationProblem.wrong(
        f"{name} takes {expected} argument{'' if expected == '1' else 's'}, got {count}", "arity"
    )


class Evaluation(Protocol):
    """The running machine, as forms and frames see it."""

    operators: Operators
    meter: EvaluationMeter
    templates: dict[str, Template]
    stack: list[Frame]
    scopes: tuple[BudgetScope, ...]
    path: str

    def evaluate(self, node: Node, env: Env) -> None:
        """Evaluate a node next."""

    def give(self, value: Value) -> None:
        """The value of the expression is there."""

    def ask(self, request: Request) -> None:
        """Stop until a request has its answer. For one without an answer, `give` the value first."""

    def at(self, node: Node, env: Env) -> None:
        """Failures from here on are failures of this expression."""

    def push(self, frame: Frame) -> None:
        """Put a frame on the stack."""

    def number(self, what: str) -> int:
        """Return 0, 1, 2 … for each use of a word."""
        ...

    def look_up(self, symbol: Symbol, env: Env) -> Value:
        """Return the value of a symbol: what it is bound to, or the function of that name."""
        ...

    def operator(self, name: str) -> Value | None:
        """Return the primitive, task, tool or function of a name; None if there is none."""
        ...

    def call_kind(self, name: str) -> CallKind | None:
        """Return who performs a call of this name; None if nobody does."""
        ...

    def apply(self, fn: Value, form: Form, env: Env) -> None:
        """Evaluate the arguments of a call, then call."""

    def call(self, fn: Value, values: list[Value], form: Form, env: Env) -> None:
        """Call a function with values."""

    def perform(self, fn: Reference, args: tuple[Any, ...], inputs: dict[str, Any], form: Form, env: Env) -> None:
        """Ask for a call of a task, tool or function."""

    def fail_with(self, failure: Failure) -> None:
        """Go on with a failure that a frame has kept."""

    def bind(self, name: str, value: Value, position: Position) -> None:
        """Note a binding, whose value is the value of the expression."""

    def keep(self, name: str, value: Value, position: Position) -> None:
        """Note a binding. It is kept at once if something was performed since the last time, else with the next one."""

    def enter_budget(self, scope: BudgetScope) -> None:
        """Put a budget in force."""

    def strand(self, path: str, fn: Value, item: Value, form: Form, env: Env, *, known: str, collect: bool) -> Any:
        """Return a machine that calls a function with one item, beside this one."""

    def check_strand(self, what: str, owner: str) -> None:
        """Raise if something is changed that strands beside this one see too."""


class Frame(msgspec.Struct, eq=False):
    """What is done with the value of an expression when it is there."""

    def resume(self, machine: Evaluation, value: Value) -> None:
        """Go on with the value."""
        raise NotImplementedError

    def catches(self, failure: Failure) -> bool:
        """Whether a failure inside of it ends here."""
        del failure
        return False

    def handle(self, machine: Evaluation, failure: Failure) -> None:
        """Go on after a failure that ended here."""
        raise NotImplementedError

    def passed(self, machine: Evaluation, failure: Failure) -> None:
        """A failure goes through it."""


class Arguments(Frame):
    """Evaluates the arguments of a call one by one, then makes the call."""

    form: Form
    env: Env
    fn: Value
    values: list[Value] = msgspec.field(default_factory=list)
    at: int = 1

    def resume(self, machine: Evaluation, value: Value) -> None:
        self.values.append(value)
        self.go_on(machine)

    def go_on(self, machine: Evaluation) -> None:
        items, values, env = self.form.items, self.values, self.env
        while self.at < len(items):
            item = items[self.at]
            self.at += 1
            if type(item) is Form:
                machine.stack.append(self)
                machine.evaluate(item, env)
                return
            # Symbols and plain values need no step of their own: most arguments are such.
            values.append(machine.look_up(item, env) if type(item) is Symbol else item)
        machine.call(self.fn, values, self.form, env)


class Operator(Frame):
    """The operator of a call is an expression of its own: `((lambda (x) x) 1)`."""

    form: Form
    env: Env

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.apply(value, self.form, self.env)


class Sequence(Frame):
    """Evaluates expressions one after the other; the last one is the value."""

    body: tuple[Node, ...]
    env: Env
    at: int = 0

    def resume(self, machine: Evaluation, value: Value) -> None:
        del value
        self.go_on(machine)

    def go_on(self, machine: Evaluation) -> None:
        node = self.body[self.at]
        self.at += 1
        # The last one is in tail position: it needs no frame.
        if self.at < len(self.body):
            machine.stack.append(self)
        machine.evaluate(node, self.env)


class CallWith(Frame):
    """Calls a function with the value."""

    fn: Value
    form: Form
    env: Env

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.call(self.fn, [value], self.form, self.env)
