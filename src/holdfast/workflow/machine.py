"""The machine that evaluates a workflow, one step after the other.

    machine = Machine(read(source), operators)
    request = machine.run()                  # a Request, or None at the end
    request = machine.resume(answer)         # or machine.fail(fault)

It keeps its own stack of frames, so that no program can exhaust Python's. Special forms and primitives are in `forms`, `recovery`,
`loops` and `primitives`.

Invariant: the machine does no I/O and reads no clock. The same program with the same answers makes the same requests in the same order,
so a workflow is resumed by running it again with the answers that are stored.
"""

from __future__ import annotations

from collections import deque
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from holdfast.faults import REDACTOR, Fault, HoldfastError
from holdfast.workflow import forms, loops, recovery  # noqa: F401 - they fill the table of special forms
from holdfast.workflow.calls import begin_call, named
from holdfast.workflow.environment import MISSING, Env
from holdfast.workflow.failure import EvaluationProblem, Failure
from holdfast.workflow.frames import SPECIAL, Arguments, CallWith, Operator, Sequence, check_count
from holdfast.workflow.meter import EvaluationMeter, Limits
from holdfast.workflow.primitives import CONSTANTS, PRIMITIVES, user_primitives
from holdfast.workflow.requests import Binding, Bound, CallRequest, Escalate, Operators, Parallel, PauseRequest
from holdfast.workflow.syntax import Form, Position, Symbol
from holdfast.workflow.values import Closure, Primitive, Reference, kind_of, show

if TYPE_CHECKING:
    from holdfast.faults import Redactor
    from holdfast.workflow.errors import WorkflowError
    from holdfast.workflow.frames import Frame
    from holdfast.workflow.requests import BudgetScope, Request, Template
    from holdfast.workflow.syntax import Node
    from holdfast.workflow.values import CallKind, Value

_SLICE = 20_000
"""Steps after which others may run: some milliseconds."""
_MOST_BINDINGS = 1_000
"""Bindings that wait to be kept."""


class Machine:
    """Evaluates a program. `run`, `resume` and `fail` return the next request, and None when it has ended.

    machine = Machine(read("(+ 1 2)"))
    assert machine.run() is None
    assert machine.value == 3
    """

    def __init__(
        self,
        program: tuple[Node, ...],
        operators: Operators | None = None,
        *,
        inputs: dict[str, Value] | None = None,
        env: Env | None = None,
        limits: Limits | None = None,
        redactor: Redactor = REDACTOR,
    ) -> None:
        self.operators = operators = operators or Operators()
        self.redactor = redactor
        self.meter = EvaluationMeter(limits or Limits())
        self.templates: dict[str, Template] = {}
        self.env = Env(dict(inputs or {})) if env is None else env
        self.stack: list[Frame] = []
        self.value: Value = None
        """The value of the program, or of the last expression."""
        self.failure: Failure | None = None
        """Why it failed; None while it has not."""
        self.path = ""
        """The strand that it is; empty for the program itself."""
        self.known = ""
        """The same by the values of the items, which an edit of the program does not change."""
        self.parent: tuple[Machine, bool] | None = None
        """The machine whose strand it is, and whether that collects failures."""
        self.scopes: tuple[BudgetScope, ...] = ()
        self.scope_use: dict[str, list[int]] = {}
        """Steps at the start, and calls, of each budget."""
        self.has_news = False
        """Whether something was performed since bindings were kept."""
        self._primitives: dict[str, Primitive] = {**PRIMITIVES, **user_primitives(operators)}
        self._waiting: deque[Binding] = deque()
        self._left_out = 0
        self._request: Request | None = None
        self._node: Node = None
        self._at: Env = self.env
        self._is_value = False
        self._numbers: dict[str, int] = {}
        if program:
            Sequence(program, self.env).go_on(self)
        else:
            self.give([])

    # --- what a driver calls ---

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.failure is not None or (self._is_value and not self.stack and self._request is None)

    def run(self, slice_: int = _SLICE) -> Request | None:
        """Evaluate until something has to be performed, or the slice is used; return None at the end."""
        end = max(0, self.meter.left - slice_)
        while not self.is_done:
            try:
                if self._evaluate(end):
                    break
            except EvaluationProblem as problem:
                self._unwind(problem)
        if self.is_done and self.failure is None and self.parent is None:
            try:
                self.meter.expanded(self.value)
            except EvaluationProblem as problem:
                self._unwind(problem)
        return self._request or (None if self.is_done else PauseRequest())

    def resume(self, answer: Value = None) -> Request | None:
        """Go on with the answer to the last request; for requests without an answer, leave it out.

        Raises `HoldfastError` (SYS_STACK_INVARIANT) if it has ended: two drivers work on it.
        """
        self._check_runs()
        request, self._request = self._request, None
        if isinstance(request, (CallRequest, Parallel, Escalate)):
            self.has_news = True
            try:
                # The results of strands were counted when they were made.
                is_own = isinstance(request, Parallel)
                self.give(self.meter.made(answer) if is_own else self.meter.received(answer))
            except EvaluationProblem as problem:
                self._unwind(problem)
        return self.run()

    def fail(self, fault: Fault, call: CallRequest | None = None) -> Request | None:
        """Go on after the last request has failed; `call` is the request as it was made. Raises as `resume` does."""
        self._check_runs()
        request, self._request = self._request, None
        self.has_news = True
        self._unwind(EvaluationProblem.of_call(fault, call or request))
        return self.run()

    def _check_runs(self) -> None:
        if self.is_done:
            reason = "a workflow that has ended was gone on with"
            raise HoldfastError(Fault.of("SYS_STACK_INVARIANT", context={"reason": reason}))

    def fail_strand(self, strand: Machine) -> Request | None:
        """Go on after a strand of the last request has failed, with that failure."""
        self._request = None
        self.has_news = True
        assert strand.failure is not None
        self._unwind_failure(strand.failure)
        return self.run()

    def will_catch(self, fault: Fault) -> bool:
        """Whether the program itself handles a failure of the last request: with `try`, `retry`, `fallback` or `map`."""
        return self._handles(Failure(EvaluationProblem.of_call(fault, self._request), self._at, self._node))

    def will_catch_strand(self, strand: Machine) -> bool:
        """Whether the program handles the failure of a strand of the last request."""
        assert strand.failure is not None
        return not strand.failure.problem.is_fatal and self._handles(strand.failure)

    def _handles(self, failure: Failure) -> bool:
        machine: Machine = self
        while True:
            if any(frame.catches(failure) for frame in reversed(machine.stack)):
                return True
            if machine.parent is None:
                return False
            machine, collects = machine.parent
            if collects:
                return True

    def error(self) -> WorkflowError:
        """Return the exception of the failure."""
        assert self.failure is not None
        return self.failure.error(self.redactor)

    def unsaved(self) -> Bound | None:
        """Return the bindings that no request had yet; None if there are none."""
        if not self._waiting:
            return None
        bound = Bound(tuple(self._waiting), self._left_out)
        self._waiting, self._left_out = deque(), 0
        return bound

    def bindings(self) -> dict[str, Value]:
        """Return what is bound at the place where the machine stands."""
        return self._at.bound()

    @property
    def place(self) -> tuple[Position, str]:
        """Where it stands: a position, and the expression there."""
        node = self._node
        return getattr(node, "position", Position()), show(node, 200)

    # --- what forms and frames call ---

    def evaluate(self, node: Node, env: Env) -> None:
        """Evaluate a node next."""
        self._node, self._at, self._is_value = node, env, False

    def give(self, value: Value) -> None:
        """The value of the expression is there."""
        self.value, self._is_value = value, True

    def ask(self, request: Request) -> None:
        """Stop until a request has its answer. For one without an answer, `give` the value first."""
        self._request = request

    def at(self, node: Node, env: Env) -> None:
        """Failures from here on are failures of this expression."""
        self._node, self._at = node, env

    def number(self, what: str) -> int:
        """Return 0, 1, 2 … for each use of a word."""
        found = self._numbers.get(what, 0)
        self._numbers[what] = found + 1
        return found

    def push(self, frame: Frame) -> None:
        """Put a frame on the stack."""
        self.stack.append(frame)

    def look_up(self, symbol: Symbol, env: Env) -> Value:
        """Return the value of a symbol: what it is bound to, or the function of that name."""
        name = symbol.name
        value = env.find(name)
        if value is not MISSING:
            return value
        if name in CONSTANTS:
            return list(CONSTANTS[name])
        if symbol.is_keyword:
            return symbol
        found = self.operator(name)
        if found is None:
            self.at(symbol, env)
            raise self._unbound(name, env)
        return found

    def operator(self, name: str) -> Value | None:
        """Return the primitive, task, tool or function of a name; None if there is none."""
        primitive = self._primitives.get(name)
        if primitive is not None:
            return primitive
        kind = self.call_kind(name)
        return None if kind is None else Reference(kind, name)

    def call_kind(self, name: str) -> CallKind | None:
        """Return who performs a call of this name; None if nobody does."""
        known = self.operators
        if name in self.templates:
            return "template"
        if name in known.tasks:
            return "task"
        if name in known.tools:
            return "tool"
        if name in known.functions:
            return "function"
        if name in {"get_context", "get-context"} and known.context:
            return "context"
        return "script" if name == "system:run_script" and known.scripts else None

    def apply(self, fn: Value, form: Form, env: Env) -> None:
        """Evaluate the arguments of a call, then call."""
        if isinstance(fn, Reference):
            begin_call(self, fn, form, env)
        elif isinstance(fn, (Closure, Primitive)):
            Arguments(form, env, fn).go_on(self)
        else:
            self.at(form, env)
            raise EvaluationProblem.wrong(
                f"expected a function at the head of the list, got {kind_of(fn)}", "not_callable"
            )

    def call(self, fn: Value, values: list[Value], form: Form, env: Env) -> None:
        """Call a function with values."""
        if isinstance(fn, Primitive):
            self.at(form, env)
            check_count(fn.name, len(values), fn.least, fn.most)
            self.give(self.meter.made(_run(fn, self.meter, values)))
        elif isinstance(fn, Closure):
            if len(values) != len(fn.params):
                self.at(form, env)
                name = f"(lambda ({' '.join(fn.params)}) …)"
                check_count(name, len(values), len(fn.params), len(fn.params))
            inner = Env(dict(zip(fn.params, values, strict=True)), fn.env, self.path, fn)
            Sequence(fn.body, inner).go_on(self)
        elif isinstance(fn, Reference):
            self.perform(fn, tuple(self.meter.plain(value) for value in values), {}, form, env)
        else:
            self.at(form, env)
            raise EvaluationProblem.wrong(f"expected a function, got {kind_of(fn)}", "not_callable")

    def perform(self, fn: Reference, args: tuple[Any, ...], inputs: dict[str, Any], form: Form, env: Env) -> None:
        """Ask for a call of a task, tool or function."""
        self.at(form, env)
        self.meter.turns += 1
        for scope in self.scopes:
            self._charge_turn(scope)
        args, inputs, misfit = named(self, fn, args, inputs)
        self.ask(
            CallRequest(
                kind=fn.kind,
                name=fn.name,
                args=args,
                inputs=inputs,
                position=form.position,
                expression=show(form, 200),
                template=self.templates.get(fn.name) if fn.kind == "template" else None,
                scopes=self.scopes,
                strand=self.known,
                misfit=misfit,
            )
        )

    def fail_with(self, failure: Failure) -> None:
        """Go on with a failure that a frame has kept, at the place where it happened."""
        self._unwind_failure(failure)

    def bind(self, name: str, value: Value, position: Position) -> None:
        """Note a binding, whose value is the value of the expression."""
        self.give(value)
        self.keep(name, value, position)

    def keep(self, name: str, value: Value, position: Position) -> None:
        """Note a binding. It is kept at once if something was performed since the last time, else with the next one."""
        if len(self._waiting) >= _MOST_BINDINGS:
            self._waiting.popleft()
            self._left_out += 1
        self._waiting.append(Binding(name, value, position))
        if self.has_news and self._request is None:
            self.has_news = False
            bound = self.unsaved()
            assert bound is not None
            self.ask(bound)

    def enter_budget(self, scope: BudgetScope) -> None:
        """Put a budget in force."""
        self.scope_use[scope.id] = [self.meter.steps, 0]
        self.scopes = (*self.scopes, scope)

    def strand(self, path: str, fn: Value, item: Value, form: Form, env: Env, *, known: str, collect: bool) -> Machine:
        """Return a machine that calls a function with one item, beside this one."""
        child = Machine((), self.operators, redactor=self.redactor)
        child.meter, child.templates, child.scopes = self.meter, self.templates, self.scopes
        child.scope_use, child.path, child.parent = self.scope_use, path, (self, collect)
        child.known = f"{self.known}{known}/"
        child.env = Env({}, env, path)
        child.evaluate(Form((Symbol("quote"), item), form.position), child.env)
        child.stack.append(CallWith(fn, form, child.env))
        return child

    def check_strand(self, what: str, owner: str) -> None:
        """Raise if something is changed that strands beside this one see too."""
        if len(owner) < len(self.path):
            message = f"{what} is not possible inside of map, because other items run at the same time; return a value"
            raise EvaluationProblem.wrong(message, "shared")

    # --- the steps ---

    def _evaluate(self, end: int) -> bool:
        """Make steps until a request, the end, or the end of the slice; return False if the slice goes on."""
        meter, stack, deepest = self.meter, self.stack, self.meter.limits.depth
        while self._request is None:
            if meter.left <= end:
                if meter.left <= 0:
                    self._out_of_steps()
                return True
            meter.left -= 1
            if self._is_value:
                if not stack:
                    return True
                stack.pop().resume(self, self.value)
                continue
            node = self._node
            kind = type(node)
            if kind is Form:
                if len(stack) > deepest:
                    message = f"Calls are nested deeper than {deepest:,}"
                    raise EvaluationProblem("TASK_DEPTH_EXCEEDED", message, {"limit": deepest}, is_fatal=True)
                self._begin(node, self._at)
            else:
                self.give(self.look_up(node, self._at) if kind is Symbol else node)
        return True

    def _begin(self, form: Form, env: Env) -> None:
        """Begin the evaluation of a list."""
        if not form.items:
            return self.give([])
        head = form.items[0]
        if type(head) is Symbol:
            special = SPECIAL.get(head.name)
            if special is not None:
                if self.scopes:
                    self._check_steps()
                return special(self, form, env)
            return self.apply(self.look_up(head, env), form, env)
        if type(head) is Form:
            self.stack.append(Operator(form, env))
            return self.evaluate(head, env)
        raise EvaluationProblem.wrong(
            f"expected a function at the head of the list, got {kind_of(head)}", "not_callable"
        )

    def _unbound(self, name: str, env: Env) -> EvaluationProblem:
        known = {
            *env.bound(),
            *SPECIAL,
            *self._primitives,
            *self.templates,
            *self.operators.tasks,
            *self.operators.tools,
        }
        near = get_close_matches(name, sorted(known | self.operators.functions), 1)
        message = f"the symbol {name} is not bound" + (f"; did you mean {near[0]}?" if near else "")
        return EvaluationProblem("TASK_UNBOUND_SYMBOL", message, {"symbol": name}, why="unbound_symbol")

    def _out_of_steps(self) -> None:
        limit = self.meter.limits.steps
        message = f"The workflow used its {limit:,} steps"
        raise EvaluationProblem("TASK_LOOP_BOUND", message, {"used": limit, "limit": limit}, is_fatal=True)

    def _charge_turn(self, scope: BudgetScope) -> None:
        use = self.scope_use[scope.id]
        if scope.turns is not None and use[1] >= scope.turns:
            message = f"The budget of {scope.turns} turns is used"
            raise EvaluationProblem(
                "TASK_TURNS_EXHAUSTED", message, {"used": use[1], "limit": scope.turns}, budget=scope.id
            )
        use[1] += 1

    def _check_steps(self) -> None:
        for scope in self.scopes:
            if scope.steps is not None and self.meter.steps - self.scope_use[scope.id][0] > scope.steps:
                message = f"The budget of {scope.steps:,} steps is used"
                used = {"used": scope.steps, "limit": scope.steps}
                raise EvaluationProblem("TASK_LOOP_BOUND", message, used, budget=scope.id)

    def _unwind(self, problem: EvaluationProblem) -> None:
        self._unwind_failure(Failure(problem, self._at, self._node))

    def _unwind_failure(self, failure: Failure) -> None:
        """Go back to the frame that handles a failure; without one the program has failed."""
        while self.stack:
            frame = self.stack.pop()
            if failure.problem.is_fatal or not frame.catches(failure):
                frame.passed(self, failure)
                continue
            try:
                return frame.handle(self, failure)
            except EvaluationProblem as another:
                failure = Failure(another, self._at, self._node)
        self.failure = failure
        return None


def _run(fn: Primitive, meter: EvaluationMeter, values: list[Value]) -> Value:
    try:
        return fn.run(meter, *values) if fn.needs_meter else fn.run(*values)
    except (ArithmeticError, RecursionError) as error:
        raise EvaluationProblem.wrong(f"{fn.name}: {error}", "overflow") from error
