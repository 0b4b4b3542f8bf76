"""Recovery that a workflow writes itself: `try`, `retry`, `retry-later`, `fallback` and `with-budget`.

Invariant: what a whole workflow may use cannot be caught, and a failure that cannot end otherwise is not retried: a wrong expression, an
unbound name, a budget that is used up, or a call that may have taken effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from holdfast.workflow.environment import Env
from holdfast.workflow.failure import EvaluationProblem
from holdfast.workflow.forms import clauses_of, symbol_at
from holdfast.workflow.frames import Frame, Sequence, check_count, special
from holdfast.workflow.requests import BudgetScope, Escalate, Later, WaitRequest
from holdfast.workflow.syntax import Form, Symbol
from holdfast.workflow.values import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.workflow.failure import Failure
    from holdfast.workflow.frames import Evaluation
    from holdfast.workflow.syntax import Node
    from holdfast.workflow.values import Value

__all__: list[str] = []

_MOST_ATTEMPTS = 100
_LONGEST_DELAY_S = 3_600.0
_BUDGET = ("turns", "steps", "seconds", "usd", "tokens")
_RETRY = ("attempts", "delay", "backoff")
_LATER = ("after", "attempts", "backoff", "ask")
_LATEST_S = 30 * 86_400.0
_MOST_QUESTIONS = 3
"""An answer that is given automatically would never end it."""


@special("try")
def _try(machine: Evaluation, form: Form, env: Env) -> None:
    """(try body … (catch (failure) handler …)): the handler's value if the body fails. The failure is a dict with code, message and line."""
    machine.at(form, env)
    check_count("try", len(form.items) - 1, 2, None)
    catch = form.items[-1]
    if not _is_clause(catch, "catch") or len(catch.items) < 3:
        raise EvaluationProblem.wrong("try ends with (catch (failure) handler …)", "syntax")
    param = catch.items[1]
    if not isinstance(param, Form) or len(param.items) != 1:
        raise EvaluationProblem.wrong(f"catch takes one name in a list, got {show(param, 60)}", "syntax")
    name = symbol_at(Form((catch.items[0], param.items[0])), 1, "one name in a list").name
    machine.push(_Catch(name, catch.items[2:], env))
    Sequence(form.items[1:-1], env).go_on(machine)


def _is_clause(node: Node, name: str) -> bool:
    return isinstance(node, Form) and bool(node.items) and node.items[0] == Symbol(name)


class _Catch(Frame):
    name: str
    handler: tuple[Node, ...]
    env: Env

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.give(value)

    def catches(self, failure: Failure) -> bool:
        return not failure.problem.is_fatal

    def handle(self, machine: Evaluation, failure: Failure) -> None:
        inner = Env({self.name: failure.value()}, self.env, machine.path)
        Sequence(self.handler, inner).go_on(machine)


@special("fallback")
def _fallback(machine: Evaluation, form: Form, env: Env) -> None:
    """(fallback first second …): the value of the first expression that does not fail."""
    machine.at(form, env)
    check_count("fallback", len(form.items) - 1, 1, None)
    _Fallback(form, env).go_on(machine)


class _Fallback(Frame):
    form: Form
    env: Env
    at: int = 1

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.give(value)

    def catches(self, failure: Failure) -> bool:
        return not failure.problem.is_fatal

    def handle(self, machine: Evaluation, failure: Failure) -> None:
        del failure
        self.go_on(machine)

    def go_on(self, machine: Evaluation) -> None:
        node = self.form.items[self.at]
        self.at += 1
        # A failure of the last one is the failure of the whole.
        if self.at < len(self.form.items):
            machine.push(self)
        machine.evaluate(node, self.env)


@special("retry")
def _retry(machine: Evaluation, form: Form, env: Env) -> None:
    """(retry ((attempts 3) (delay 1) (backoff 2)) body …): evaluates the body again after a failed call or an `error`.

    delay is in seconds before the second attempt, and backoff is by what it grows. (retry 3 body …) sets the attempts only.
    """
    machine.at(form, env)
    check_count("retry", len(form.items) - 1, 2, None)
    given = form.items[1]
    if isinstance(given, Form) and given.items and all(isinstance(item, Form) for item in given.items):
        clauses = clauses_of(Form((form.items[0], *given.items)), _RETRY, ("attempts",))
    else:
        clauses = {"attempts": Form((Symbol("attempts"), given))}
    _with_options(machine, form, env, clauses, _begin_retry)


def _begin_retry(machine: Evaluation, form: Form, env: Env, given: dict[str, Value]) -> None:
    attempts = _attempts("retry", given["attempts"])
    delay = _number("delay of retry", given.get("delay", 0))
    backoff = _number("backoff of retry", given.get("backoff", 1))
    _Retry(form, env, attempts, delay, backoff).begin(machine)


_Begin: TypeAlias = "Callable[[Evaluation, Form, Env, dict[str, Value]], None]"


def _with_options(machine: Evaluation, form: Form, env: Env, clauses: dict[str, Form], begin: _Begin) -> None:
    """Evaluate the options of a form, then begin with their values."""
    machine.push(_Options(form, env, tuple(clauses), begin))
    machine.evaluate(Form((Symbol("list"), *(clause.items[1] for clause in clauses.values()))), env)


class _Options(Frame):
    form: Form
    env: Env
    names: tuple[str, ...]
    begin: _Begin

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.at(self.form, self.env)
        self.begin(machine, self.form, self.env, dict(zip(self.names, value, strict=True)))


def _attempts(form: str, value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_ATTEMPTS:
        raise EvaluationProblem.wrong(f"{form} takes 1 to {_MOST_ATTEMPTS} attempts, got {show(value, 60)}")
    return value


def _number(what: str, value: Value, most: float = _LONGEST_DELAY_S) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise EvaluationProblem.wrong(f"the {what} is a number from 0 to {most:.0f}, got {show(value, 60)}")
    return float(value)


class _Retry(Frame):
    form: Form
    env: Env
    left: int
    delay: float
    backoff: float

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.give(value)

    def catches(self, failure: Failure) -> bool:
        return self.left > 0 and failure.is_retryable

    def handle(self, machine: Evaluation, failure: Failure) -> None:
        del failure
        delay, self.delay = self.delay, min(_LONGEST_DELAY_S, self.delay * self.backoff)
        self.begin(machine)
        if delay:
            machine.ask(WaitRequest(delay))

    def begin(self, machine: Evaluation) -> None:
        self.left -= 1
        machine.push(self)
        # Names that an attempt binds are its own: the next attempt begins as this one did.
        Sequence(self.form.items[2:], Env({}, self.env, machine.path)).go_on(machine)


@special("retry-later")
def _retry_later(machine: Evaluation, form: Form, env: Env) -> None:
    """(retry-later ((after 3600) (attempts 3) (backoff 2) (ask true)) body …): evaluates the body again after a failed call or an `error`, later.

    after is in seconds, up to 30 days; a longer time that the failure itself says is kept. In a session the time is stored and the run ends with
    `ParkedError`: any process goes on when it is over. With ask the operator is asked after the last attempt.
    """
    machine.at(form, env)
    check_count("retry-later", len(form.items) - 1, 2, None)
    given = form.items[1]
    if not isinstance(given, Form) or not given.items:
        raise EvaluationProblem.wrong(
            f"retry-later takes options such as ((after 3600)), got {show(given, 60)}", "syntax"
        )
    clauses = clauses_of(Form((form.items[0], *given.items)), _LATER, ("after",))
    _with_options(machine, form, env, clauses, _begin_later)


def _begin_later(machine: Evaluation, form: Form, env: Env, given: dict[str, Value]) -> None:
    attempts = _attempts("retry-later", given.get("attempts", 3))
    after = _number("time after of retry-later", given["after"], _LATEST_S)
    backoff = _number("backoff of retry-later", given.get("backoff", 1))
    asks = given.get("ask", False)
    if not isinstance(asks, bool):
        raise EvaluationProblem.wrong(f"ask of retry-later is true or false, got {show(asks, 60)}")
    _RetryLater(form, env, attempts, after, backoff, asks=asks).begin(machine)


class _RetryLater(Frame):
    form: Form
    env: Env
    attempts: int
    after: float
    backoff: float
    asks: bool
    made: int = 0
    """Attempts since the beginning, or since the operator agreed."""
    questions: int = 0
    waiting: Failure | None = None
    """The failure that the operator is asked about."""

    def catches(self, failure: Failure) -> bool:
        may_ask = self.asks and self.questions < _MOST_QUESTIONS
        return failure.is_retryable and self.waiting is None and (self.made < self.attempts or may_ask)

    def handle(self, machine: Evaluation, failure: Failure) -> None:
        fault = failure.fault
        made = self.made
        if made == self.attempts:
            self.waiting = failure
            self.questions += 1
            machine.push(self)
            machine.ask(Escalate(fault=fault, attempts=made * self.questions))
            return
        delay = min(_LATEST_S, self.after * self.backoff ** (made - 1))
        self.begin(machine)
        # A provider that says when it is back is not called before.
        seconds = max(delay, fault.retry_after or 0.0)
        machine.ask(Later(seconds=seconds, fault=fault, attempt=made, attempts=self.attempts))

    def resume(self, machine: Evaluation, value: Value) -> None:
        failure, self.waiting = self.waiting, None
        if failure is None:
            machine.give(value)
        elif value is True:
            self.made = 0
            self.begin(machine)
        else:
            machine.fail_with(failure)

    def begin(self, machine: Evaluation) -> None:
        self.made += 1
        machine.push(self)
        Sequence(self.form.items[2:], Env({}, self.env, machine.path)).go_on(machine)


@special("with-budget")
def _with_budget(machine: Evaluation, form: Form, env: Env) -> None:
    """(with-budget ((turns 5) (seconds 60) (usd 0.5) (tokens 1000) (steps 500)) body …): what the body may use. A used-up budget is a failure."""
    machine.at(form, env)
    check_count("with-budget", len(form.items) - 1, 2, None)
    given = form.items[1]
    if not isinstance(given, Form) or not given.items:
        raise EvaluationProblem.wrong(f"with-budget takes limits such as ((turns 5)), got {show(given, 60)}", "syntax")
    clauses = clauses_of(Form((form.items[0], *given.items)), _BUDGET, ())
    machine.push(_BudgetLimits(form, env, tuple(clauses)))
    machine.evaluate(Form((Symbol("list"), *(clause.items[1] for clause in clauses.values()))), env)


class _BudgetLimits(Frame):
    form: Form
    env: Env
    names: tuple[str, ...]

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.at(self.form, self.env)
        limits = dict(zip(self.names, value, strict=True))
        for name, limit in limits.items():
            is_number = isinstance(limit, (int, float) if name in {"seconds", "usd"} else int)
            if not is_number or isinstance(limit, bool) or limit < 0:
                raise EvaluationProblem.wrong(
                    f"the limit {name} of with-budget is a number from 0, got {show(limit, 60)}"
                )
        scope = BudgetScope(id=f"{machine.path}budget-{machine.number('budget')}", **limits)
        machine.push(_Spending(machine.scopes))
        machine.enter_budget(scope)
        Sequence(self.form.items[2:], self.env).go_on(machine)


class _Spending(Frame):
    before: tuple[BudgetScope, ...]

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.scopes = self.before
        machine.give(value)

    def passed(self, machine: Evaluation, failure: Failure) -> None:
        del failure
        machine.scopes = self.before
