"""Calls of tasks, tools and functions: which arguments have a name, and which parameter the others are.

    (summarise :text document)           a keyword names the argument
    (summarise (text document))          so does a list whose head is the parameter
    (summarise document)                 without a name, it is the task's first parameter

Invariant: if the parameters of a task are known, exactly they are names. If they are not, a list of two whose head is no form and no
function names an input. A call that does not fit is requested like any other: the caller of the machine
knows whether an earlier run made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.workflow.environment import MISSING
from holdfast.workflow.failure import EvaluationProblem, misfit
from holdfast.workflow.frames import SPECIAL, Frame, special
from holdfast.workflow.syntax import Form, Symbol
from holdfast.workflow.values import Closure, Primitive, Reference, kind_of, show

if TYPE_CHECKING:
    from holdfast.faults import Fault
    from holdfast.workflow.environment import Env
    from holdfast.workflow.frames import Evaluation
    from holdfast.workflow.syntax import Node
    from holdfast.workflow.values import Value


class _Argument(NamedTuple):
    name: str
    """Empty for one without a name."""
    node: Node


def begin_call(machine: Evaluation, fn: Reference, form: Form, env: Env) -> None:
    """Evaluate the arguments of a call, then ask for it."""
    machine.at(form, env)
    _Inputs(fn, form, env, _arguments(machine, fn, form.items[1:], env)).go_on(machine)


@special("call-atomic-task")
def _call_atomic_task(machine: Evaluation, form: Form, env: Env) -> None:
    """(call-atomic-task 'name (input value) …): call a task by its name."""
    machine.at(form, env)
    if len(form.items) < 2:
        raise EvaluationProblem.wrong("call-atomic-task takes the name of a task, got nothing", "arity")
    machine.push(_TaskNamed(form, env))
    machine.evaluate(form.items[1], env)


class _TaskNamed(Frame):
    """The name of the task of `call-atomic-task` is there."""

    form: Form
    env: Env

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.at(self.form, self.env)
        name = value.name if isinstance(value, (Symbol, Reference)) else value
        if not isinstance(name, str):
            raise EvaluationProblem.wrong(f"call-atomic-task takes the name of a task, got {kind_of(value)}")
        kind = machine.call_kind(name)
        if kind is None:
            known = ", ".join(sorted({*machine.operators.tasks, *machine.templates})) or "none"
            message = f"no task {name} is registered; registered are: {known}"
            raise EvaluationProblem("TASK_TEMPLATE_NOT_FOUND", message, {"request": name}, why="unknown_task")
        rest = self.form.items[2:]
        fn = Reference(kind, name)
        _Inputs(fn, self.form, self.env, _arguments(machine, fn, rest, self.env)).go_on(machine)


class _Inputs(Frame):
    """Evaluates the arguments of a call of a task, tool or function."""

    fn: Reference
    form: Form
    env: Env
    arguments: list[_Argument]
    values: list[Value] = msgspec.field(default_factory=list)

    def resume(self, machine: Evaluation, value: Value) -> None:
        self.values.append(value)
        self.go_on(machine)

    def go_on(self, machine: Evaluation) -> None:
        if len(self.values) < len(self.arguments):
            machine.push(self)
            machine.evaluate(self.arguments[len(self.values)].node, self.env)
            return
        args = [
            machine.meter.plain(value)
            for argument, value in zip(self.arguments, self.values, strict=True)
            if not argument.name
        ]
        inputs: dict[str, Any] = {}
        for argument, value in zip(self.arguments, self.values, strict=True):
            if argument.name:
                inputs[argument.name] = machine.meter.plain(value)
        machine.perform(self.fn, tuple(args), inputs, self.form, self.env)


def _arguments(machine: Evaluation, fn: Reference, nodes: tuple[Node, ...], env: Env) -> list[_Argument]:
    found: list[_Argument] = []
    params = _params(machine, fn)
    rest = iter(nodes)
    for node in rest:
        if isinstance(node, Symbol) and node.is_keyword and env.find(node.name) is MISSING:
            value = next(rest, MISSING)
            if value is MISSING:
                raise EvaluationProblem.wrong(f"{fn.name}: {node.name} has no value after it", "arity")
            found.append(_Argument(node.name[1:], value))
        else:
            found.append(_argument(machine, node, params, env))
    names = [argument.name for argument in found if argument.name]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EvaluationProblem.wrong(f"{fn.name}: the argument {twice} is given twice", "arity")
    return found


def _params(machine: Evaluation, fn: Reference) -> tuple[str, ...] | None:
    """Return the names of the parameters; None if they are not known."""
    if fn.kind == "template":
        return machine.templates[fn.name].params
    if fn.kind == "task":
        return machine.operators.tasks[fn.name]
    if fn.kind == "tool":
        return machine.operators.tools[fn.name]
    return {"context": ("query",), "script": ("command",)}.get(fn.kind)


def _argument(machine: Evaluation, node: Node, params: tuple[str, ...] | None, env: Env) -> _Argument:
    """Return an argument, with its name if it is written as a list, `(text document)`, and the list is no call."""
    if not isinstance(node, Form) or len(node.items) != 2 or not isinstance(node.items[0], Symbol):
        return _Argument("", node)
    name: str = node.items[0].name
    if params is not None:
        return _Argument(name, node.items[1]) if name in params else _Argument("", node)
    bound = env.find(name)
    fn = machine.operator(name) if bound is MISSING else bound
    is_callable = name in SPECIAL or isinstance(fn, (Closure, Primitive, Reference))
    return _Argument("", node) if is_callable else _Argument(name, node.items[1])


class Named(NamedTuple):
    """The arguments of a call, as far as they have names."""

    args: tuple[Any, ...]
    inputs: dict[str, Any]
    misfit: Fault | None = None
    """Why they do not fit the parameters, if they do not."""


def named(machine: Evaluation, fn: Reference, args: tuple[Any, ...], inputs: dict[str, Any]) -> Named:
    """Give arguments without a name the names of the parameters that are left, as far as they are known and fit."""
    params = _params(machine, fn)
    if params is None:
        return Named(args, inputs)
    takes = f"{fn.name} takes {', '.join(params) or 'no arguments'}"
    strange = next((name for name in inputs if name not in params), None)
    if strange is not None:
        return Named(args, inputs, misfit(f"{takes}; got {strange}"))
    free = [name for name in params if name not in inputs]
    if len(args) > len(free):
        got = f"{len(args)} arguments without a name: {show(list(args), 80)}"
        return Named(args, inputs, misfit(f"{takes}; got {got}"))
    return Named((), {**dict(zip(free, args, strict=False)), **inputs})
