"""Loops: `loop`, and the two loops of plan, work, check and decide.

    (director-evaluator-loop (max-iterations 5) (initial-director-input goal)
      (director f) (executor f) (evaluator f) (controller f))
    (iterative-loop (max-iterations 5) (initial-input plan) (test-command "pytest")
      (executor f) (validator f) (controller f))

Their functions are called in this order, with the iteration counted from 1:

    director(input, i)   executor(plan, i)    evaluator(result, plan, i)    controller(feedback, plan, result, i)
    executor(input, i)   validator(command, i)                              controller(result, validation, input, i)

The controller returns (list 'continue next-input) or (list 'stop value). After the last iteration the value is the last executor's result.

Invariant: a failure in any phase ends the loop at once. It carries the iteration, the phase and the history, the failed iteration included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.workflow.environment import Env
from holdfast.workflow.failure import EvaluationProblem
from holdfast.workflow.forms import clauses_of
from holdfast.workflow.frames import Frame, check_count, special
from holdfast.workflow.syntax import Form, Symbol
from holdfast.workflow.values import Closure, Primitive, Reference, kind_of, plain, show

if TYPE_CHECKING:
    from holdfast.workflow.failure import Failure
    from holdfast.workflow.frames import Evaluation
    from holdfast.workflow.syntax import Node
    from holdfast.workflow.values import Value

_MOST = 1_000_000
_HISTORY_BYTES = 65_536
_ONE_VALUE = 4_000
_DIRECTOR = ("max-iterations", "initial-director-input", "director", "executor", "evaluator", "controller")
_ITERATIVE = ("max-iterations", "initial-input", "test-command", "executor", "validator", "controller")


def _count(what: str, value: Value) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise EvaluationProblem.wrong(f"{what} takes a whole number from 0 to {_MOST:,}, got {show(value, 60)}")
    return value


@special("loop")
def _loop(machine: Evaluation, form: Form, env: Env) -> None:
    """(loop count body): evaluates the body so many times, and is its last value; nil for 0."""
    machine.at(form, env)
    check_count("loop", len(form.items) - 1, 2, 2)
    machine.push(_LoopCount(form, env))
    machine.evaluate(form.items[1], env)


class _LoopCount(Frame):
    form: Form
    env: Env

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.at(self.form, self.env)
        _Loop(self.form.items[2], self.env, _count("loop", value)).resume(machine, [])


class _Loop(Frame):
    body: Node
    env: Env
    left: int

    def resume(self, machine: Evaluation, value: Value) -> None:
        if self.left == 0:
            machine.give(value)
            return
        self.left -= 1
        machine.push(self)
        machine.evaluate(self.body, self.env)


@special("director-evaluator-loop", "iterative-loop")
def _decided_loop(machine: Evaluation, form: Form, env: Env) -> None:
    """(director-evaluator-loop clauses …), (iterative-loop clauses …): plan, work, check and decide, until the controller stops it."""
    machine.at(form, env)
    names = _DIRECTOR if form.items[0].name == "director-evaluator-loop" else _ITERATIVE
    clauses = clauses_of(form, names, names)
    _LoopClauses(form, env, [clauses[name].items[1] for name in names]).go_on(machine)


class _LoopClauses(Frame):
    """Evaluates the clauses of a loop in their order. The functions see `*loop-config*`."""

    form: Form
    env: Env
    nodes: list[Node]
    values: list[Value] = msgspec.field(default_factory=list)

    def resume(self, machine: Evaluation, value: Value) -> None:
        self.values.append(value)
        self.go_on(machine)

    def go_on(self, machine: Evaluation) -> None:
        at = len(self.values)
        if at == 2:
            config = {"max-iterations": self.values[0], "initial-input": self.values[1]}
            self.env = Env({"*loop-config*": config}, self.env, machine.path)
        if at < len(self.nodes):
            machine.push(self)
            machine.evaluate(self.nodes[at], self.env)
            return
        machine.at(self.form, self.env)
        self._begin(machine)

    def _begin(self, machine: Evaluation) -> None:
        name = self.form.items[0].name
        count = _count(f"max-iterations of {name}", self.values[0])
        is_director = name == "director-evaluator-loop"
        functions = self.values[2 if is_director else 3 :]
        for phase, fn in zip((_DIRECTOR if is_director else _ITERATIVE)[-len(functions) :], functions, strict=True):
            if not isinstance(fn, (Closure, Primitive, Reference)):
                raise EvaluationProblem.wrong(f"{phase} of {name} is a function, got {kind_of(fn)}")
        if count == 0:
            machine.give([])
            return
        command = None if is_director else self.values[2]
        phases = _director_phases(functions) if is_director else _iterative_phases(functions)
        _Decided(self.form, self.env, count, {"input": self.values[1], "command": command}, phases).next_phase(machine)


def _director_phases(functions: list[Value]) -> list[tuple[str, str, Value, tuple[str, ...]]]:
    """Return each phase: its name, what its value is called, its function, and what it gets beside the iteration."""
    director, executor, evaluator, controller = functions
    return [
        ("director", "plan", director, ("input",)),
        ("executor", "result", executor, ("plan",)),
        ("evaluator", "feedback", evaluator, ("result", "plan")),
        ("controller", "decision", controller, ("feedback", "plan", "result")),
    ]


def _iterative_phases(functions: list[Value]) -> list[tuple[str, str, Value, tuple[str, ...]]]:
    executor, validator, controller = functions
    return [
        ("executor", "result", executor, ("input",)),
        ("validator", "validation", validator, ("command",)),
        ("controller", "decision", controller, ("result", "validation", "input")),
    ]


class _Decided(Frame):
    """A loop whose controller decides."""

    form: Form
    env: Env
    count: int
    values: dict[str, Value]
    phases: list[Any]
    iteration: int = 1
    at: int = 0
    history: list[dict[str, Any]] = msgspec.field(default_factory=lambda: [{"iteration": 1}])

    def next_phase(self, machine: Evaluation) -> None:
        _, _, fn, takes = self.phases[self.at]
        machine.push(self)
        machine.call(fn, [*(self.values[name] for name in takes), self.iteration], self.form, self.env)

    def resume(self, machine: Evaluation, value: Value) -> None:
        _, name, _, _ = self.phases[self.at]
        machine.at(self.form, self.env)
        self.values[name] = value
        self.history[-1][name] = _kept(value)
        self.at += 1
        if self.at < len(self.phases):
            self.next_phase(machine)
            return
        # A malformed decision is a failure of the controller, so it gets the same details.
        machine.push(self)
        word, decided = _decision(value)
        machine.stack.pop()
        if word == "stop":
            machine.give(decided)
        elif self.iteration == self.count:
            machine.give(self.values["result"])
        else:
            self.iteration += 1
            self.at = 0
            self.values["input"] = decided
            self.history.append({"iteration": self.iteration})
            self.next_phase(machine)

    def passed(self, machine: Evaluation, failure: Failure) -> None:
        del machine
        phase = self.phases[min(self.at, len(self.phases) - 1)][0]
        failed = {**self.history[-1], "phase": phase, "error": failure.problem.message[:_ONE_VALUE]}
        failure.details.setdefault("iteration", self.iteration)
        failure.details.setdefault("phase", phase)
        failure.details.setdefault("iteration_history", _cut([*self.history[:-1], failed]))


def _decision(value: Value) -> tuple[str, Value]:
    if isinstance(value, list) and len(value) == 2:
        word = value[0].name if isinstance(value[0], Symbol) else value[0]
        if word in {"continue", "stop"}:
            return str(word), value[1]
    message = f"the controller returns (list 'continue input) or (list 'stop value), got {show(value, 80)}"
    raise EvaluationProblem.wrong(message, "loop_decision")


def _kept(value: Value) -> Any:
    text = show(value, _ONE_VALUE)
    return plain(value) if len(text) < _ONE_VALUE and isinstance(value, (str, int, float, bool, type(None))) else text


def _cut(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest iterations that fit; older ones are left out, and a mark tells so."""
    kept: list[dict[str, Any]] = []
    left = _HISTORY_BYTES
    for entry in reversed(history):
        left -= len(show(entry, _HISTORY_BYTES))
        if left < 0 and kept:
            kept.append({"left_out": len(history) - len(kept)})
            break
        kept.append(entry)
    return kept[::-1]
