"""The checker: mistakes of a program that can be found without running it.

Invariant: a program that runs well has no findings. So only what is certainly wrong is named: a form with the wrong number of parts, a name
that nothing binds anywhere around it, an argument that a task does not have.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.workflow import machine as _machine  # noqa: F401 - it fills the table of special forms
from holdfast.workflow.failure import EvaluationProblem
from holdfast.workflow.frames import SPECIAL, check_count
from holdfast.workflow.primitives import CONSTANTS, PRIMITIVES
from holdfast.workflow.syntax import START, Form, Position, Symbol, is_list_of_symbols
from holdfast.workflow.values import show

if TYPE_CHECKING:
    from holdfast.workflow.requests import Operators
    from holdfast.workflow.syntax import Node

_COUNTS: dict[str, tuple[int, int | None]] = {
    "bind": (2, None),
    "call-atomic-task": (1, None),
    "defatom": (2, None),
    "fallback": (1, None),
    "filter": (2, 2),
    "if": (3, 3),
    "lambda": (2, None),
    "let": (2, None),
    "log-message": (1, None),
    "loop": (2, 2),
    "map": (2, 6),
    "quote": (1, 1),
    "reduce": (3, 3),
    "retry": (2, None),
    "retry-later": (2, None),
    "set!": (2, 2),
    "try": (2, None),
    "with-budget": (2, None),
}
_EACH = {"map", "filter", "reduce"}
"""Forms whose first operand is a function."""
_LOOPS = {"director-evaluator-loop", "iterative-loop"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A mistake in a program, with its place."""

    message: str
    position: Position = START

    def __str__(self) -> str:
        return f"{self.position.line}:{self.position.column}: {self.message}"


class _Scope:
    """The names that are bound here. A function's body is looked at after everything around it, so later bindings count too."""

    __slots__ = ("names", "outer")

    def __init__(self, names: set[str], outer: _Scope | None = None) -> None:
        self.names = names
        self.outer = outer

    def has(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return True
            scope = scope.outer
        return False


def check_program(
    program: tuple[Node, ...],
    operators: Operators,
    *,
    inputs: frozenset[str] = frozenset(),
    unknown_calls: set[str] | None = None,
) -> list[Finding]:
    """Return the mistakes of a program, in the order of their places; an empty list if none is found.

    `inputs` are names that are bound before it begins. If `unknown_calls` is given, names that are called and that nothing has are added to
    it, and are no mistake: the tasks are registered elsewhere.
    """
    checking = _Checking(operators, unknown_calls)
    checking.check(program, _Scope(set(inputs)))
    return sorted(checking.findings, key=lambda finding: finding.position)


class _Checking:
    def __init__(self, operators: Operators, unknown_calls: set[str] | None) -> None:
        self.findings: list[Finding] = []
        self._operators = operators
        self._unknown = unknown_calls
        self._known = {*CONSTANTS, *PRIMITIVES, *operators.tasks, *operators.tools, *operators.functions}
        self._known |= set(operators.primitives)
        self._known |= {"get_context", "get-context"} if operators.context else set()
        self._known |= {"system:run_script"} if operators.scripts else set()
        self._todo: list[tuple[Node, _Scope]] = []
        self._bodies: list[tuple[tuple[Node, ...], _Scope]] = []

    def check(self, program: tuple[Node, ...], scope: _Scope) -> None:
        self._bodies.append((program, scope))
        while self._bodies:
            body, inner = self._bodies.pop(0)
            self._todo.extend((node, inner) for node in reversed(body))
            while self._todo:
                self._node(*self._todo.pop())

    def _add(self, message: str, node: Node) -> None:
        self.findings.append(Finding(message=message, position=getattr(node, "position", START)))

    def _each(self, nodes: tuple[Node, ...], scope: _Scope) -> None:
        self._todo.extend((node, scope) for node in reversed(nodes))

    def _node(self, node: Node, scope: _Scope) -> None:
        if isinstance(node, Symbol):
            if not node.is_keyword and not scope.has(node.name) and node.name not in self._known:
                self._unbound(node, scope)
        elif isinstance(node, Form) and node.items:
            self._form(node, scope)

    def _unbound(self, symbol: Symbol, scope: _Scope) -> None:
        bound: set[str] = set()
        inner: _Scope | None = scope
        while inner is not None:
            bound |= inner.names
            inner = inner.outer
        near = get_close_matches(symbol.name, sorted(bound | self._known | set(SPECIAL)), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        self._add(f"the symbol {symbol.name} is not bound{hint}", symbol)

    def _form(self, form: Form, scope: _Scope) -> None:
        head = form.items[0]
        if isinstance(head, Symbol):
            if head.name in SPECIAL:
                return self._special(head.name, form, scope)
            if not scope.has(head.name):
                return self._call(head, form, scope)
        elif not isinstance(head, Form):
            self._add(f"expected a function at the head of the list, got {show(head, 40)}", form)
        return self._each(form.items, scope)

    def _call(self, head: Symbol, form: Form, scope: _Scope) -> None:
        name = head.name
        primitive = PRIMITIVES.get(name) if name not in self._operators.primitives else None
        if primitive is not None:
            self._count(name, form, primitive.least, primitive.most)
            return self._each(form.items[1:], scope)
        if name not in self._known:
            if self._unknown is None:
                self._unbound(head, scope)
            else:
                self._unknown.add(name)
        return self._arguments(name, form.items[1:], scope)

    def _arguments(self, name: str, nodes: tuple[Node, ...], scope: _Scope) -> None:
        """Check the arguments of a call of a task, which may have names."""
        params = {**self._operators.tools, **self._operators.tasks}.get(name)
        for node in nodes:
            if isinstance(node, Symbol) and node.is_keyword:
                if params is not None and node.name[1:] not in params:
                    self._add(f"{name} takes {', '.join(params) or 'no arguments'}; got {node.name}", node)
                continue
            self._todo.append((self._value(node, params), scope))

    def _value(self, node: Node, params: tuple[str, ...] | None) -> Node:
        """Return the value of an argument, without its name if it has one."""
        if not isinstance(node, Form) or len(node.items) != 2 or not isinstance(node.items[0], Symbol):
            return node
        name, value = node.items
        if params is None:
            return node if name.name in SPECIAL or name.name in self._known else value
        return value if name.name in params else node

    def _count(self, name: str, form: Form, least: int, most: int | None) -> bool:
        try:
            check_count(name, len(form.items) - 1, least, most)
        except EvaluationProblem as problem:
            self._add(problem.message, form)
            return False
        return True

    def _special(self, name: str, form: Form, scope: _Scope) -> None:
        least, most = _COUNTS.get(name, (0, None))
        if not self._count(name, form, least, most) or name == "quote":
            return
        special: Any = getattr(self, f"_{name.replace('-', '_').replace('!', '')}", None)
        if special is not None:
            special(form, scope)
        elif name in _EACH and self._is_unknown_call(form.items[1], scope):
            self._each(form.items[2:], scope)
        elif name in _LOOPS:
            inner = _Scope({"*loop-config*"}, scope)
            self._each(tuple(node for clause in form.items[1:] for node in _rest(clause)), inner)
        else:
            self._each(form.items[1:], scope)

    def _is_unknown_call(self, node: Node, scope: _Scope) -> bool:
        """Whether a node names a task that is registered elsewhere; it is added to the list."""
        is_unknown = isinstance(node, Symbol) and not scope.has(node.name) and node.name not in self._known
        if self._unknown is None or not is_unknown:
            return False
        self._unknown.add(node.name)
        return True

    def _name(self, form: Form) -> str | None:
        node = form.items[1]
        if isinstance(node, Symbol) and not node.is_keyword:
            return node.name
        self._add(f"{show(form.items[0])} takes a name first, got {show(node, 40)}", form)
        return None

    def _bind(self, form: Form, scope: _Scope) -> None:
        name = self._name(form)
        if name is None:
            return
        if len(form.items) == 3:
            # The value is looked at first; a function in it is looked at later and sees the name.
            scope.names.add(name)
            self._todo.append((form.items[2], scope))
            return
        self._each(form.items[3:], _Scope({name}, scope))
        self._todo.append((form.items[2], scope))

    def _set(self, form: Form, scope: _Scope) -> None:
        name = self._name(form)
        if name is not None and not scope.has(name):
            self._unbound(form.items[1], scope)
        self._todo.append((form.items[2], scope))

    def _let(self, form: Form, scope: _Scope) -> None:
        pairs = form.items[1]
        if not isinstance(pairs, Form) or not all(
            isinstance(pair, Form) and len(pair.items) == 2 for pair in pairs.items
        ):
            return self._add(f"let takes bindings such as ((a 1) (b 2)), got {show(pairs, 40)}", form)
        names = {pair.items[0].name for pair in pairs.items if isinstance(pair.items[0], Symbol)}
        self._each(form.items[2:], _Scope(names, scope))
        return self._each(tuple(pair.items[1] for pair in pairs.items), scope)

    def _lambda(self, form: Form, scope: _Scope) -> None:
        params = form.items[1]
        if not is_list_of_symbols(params):
            return self._add(f"lambda takes a list of names first, got {show(params, 40)}", form)
        self._bodies.append((form.items[2:], _Scope({symbol.name for symbol in params.items}, scope)))
        return None

    def _try(self, form: Form, scope: _Scope) -> None:
        nothing: Node = None
        head, names, *handler = (*_rest(form.items[-1], 0), nothing, nothing)
        if head != Symbol("catch") or len(handler) < 3 or not is_list_of_symbols(names) or len(names.items) != 1:
            return self._add("try ends with (catch (failure) handler …)", form)
        self._each(tuple(handler[:-2]), _Scope({names.items[0].name}, scope))
        return self._each(form.items[1:-1], scope)

    def _retry(self, form: Form, scope: _Scope) -> None:
        self._each(form.items[2:], _Scope(set(), scope))
        given = form.items[1]
        if isinstance(given, Form) and given.items and all(isinstance(item, Form) for item in given.items):
            return self._each(tuple(node for clause in given.items for node in _rest(clause)), scope)
        return self._todo.append((given, scope))

    def _retry_later(self, form: Form, scope: _Scope) -> None:
        self._retry(form, scope)

    def _with_budget(self, form: Form, scope: _Scope) -> None:
        self._each(form.items[2:], scope)
        self._each(tuple(node for clause in _rest(form.items[1], 0) for node in _rest(clause)), scope)

    def _defatom(self, form: Form, scope: _Scope) -> None:
        del scope
        name = self._name(form)
        if name is not None:
            self._known.add(name)

    def _call_atomic_task(self, form: Form, scope: _Scope) -> None:
        task = form.items[1]
        nothing: Node = None
        quote, quoted, *_ = (*_rest(task, 0), nothing, nothing)
        name = quoted.name if quote == Symbol("quote") and isinstance(quoted, Symbol) else task
        if not isinstance(name, str):
            return self._each(form.items[1:], scope)
        if name not in self._known:
            if self._unknown is None:
                self._add(f"no task {name} is registered", form)
            else:
                self._unknown.add(name)
        return self._arguments(name, form.items[2:], scope)


def _rest(clause: Node, begin: int = 1) -> tuple[Node, ...]:
    return clause.items[begin:] if isinstance(clause, Form) else ()
