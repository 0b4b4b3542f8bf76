"""The special forms: conditions, bindings, functions, and the forms that call a function for each item of a list.

Each begins with how it is written. Recovery (`try`, `retry` …) and loops are in modules of their own.

Invariant: the expressions in tail position (the branches of `if`, the last one of a body) need no frame, so a loop that is written as a tail
call runs in constant space.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.workflow.environment import MISSING, Env
from holdfast.workflow.failure import EvaluationProblem
from holdfast.workflow.frames import SPECIAL, Arguments, Frame, Sequence, check_count, special
from holdfast.workflow.requests import Log, Parallel, Template
from holdfast.workflow.syntax import Form, Symbol, is_list_of_symbols, quoted
from holdfast.workflow.values import Closure, Primitive, Reference, digest, kind_of, show

if TYPE_CHECKING:
    from holdfast.workflow.failure import Failure
    from holdfast.workflow.frames import Evaluation
    from holdfast.workflow.syntax import Node
    from holdfast.workflow.values import Value


def symbol_at(form: Form, index: int, what: str) -> Symbol:
    """Return the symbol at a place of a form; raise if there is something else."""
    node = form.items[index]
    if not isinstance(node, Symbol) or node.is_keyword:
        raise EvaluationProblem.wrong(f"{show(form.items[0])} takes {what}, got {show(node, 60)}", "syntax")
    return node


def clauses_of(form: Form, names: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Form]:
    """Return the clauses of a form by name; raise for one that is unknown, missing or there twice."""
    found: dict[str, Form] = {}
    head = show(form.items[0])
    for node in form.items[1:]:
        if not isinstance(node, Form) or not node.items or not isinstance(node.items[0], Symbol):
            raise EvaluationProblem.wrong(
                f"{head} takes clauses such as ({names[0]} …), got {show(node, 60)}", "syntax"
            )
        name = node.items[0].name
        if name not in names:
            raise EvaluationProblem.wrong(f"{head} takes the clauses {', '.join(names)}; got {name}", "syntax")
        if name in found:
            raise EvaluationProblem.wrong(f"{head} has the clause {name} twice", "syntax")
        if len(node.items) != 2:
            raise EvaluationProblem.wrong(
                f"the clause {name} of {head} takes one value, got {len(node.items) - 1}", "syntax"
            )
        found[name] = node
    missing = [name for name in needed if name not in found]
    if missing:
        raise EvaluationProblem.wrong(f"{head} needs the clause {missing[0]}", "syntax")
    return found


# --- conditions ---


@special("if")
def _if(machine: Evaluation, form: Form, env: Env) -> None:
    """(if test then else): one of two expressions. All three must be there."""
    machine.at(form, env)
    check_count("if", len(form.items) - 1, 3, 3)
    machine.push(_Branch(form, env))
    machine.evaluate(form.items[1], env)


class _Branch(Frame):
    form: Form
    env: Env

    def resume(self, machine: Evaluation, value: Value) -> None:
        machine.evaluate(self.form.items[2 if value else 3], self.env)


@special("and", "or")
def _and_or(machine: Evaluation, form: Form, env: Env) -> None:
    """(and a b …), (or a b …): the first value that decides, else the last; the others are not evaluated. (and) is true, (or) false."""
    is_and = form.items[0].name == "and"
    if len(form.items) == 1:
        machine.give(is_and)
        return
    _Deciding(form, env, is_and=is_and).go_on(machine)


class _Deciding(Frame):
    form: Form
    env: Env
    is_and: bool
    at: int = 1

    def resume(self, machine: Evaluation, value: Value) -> None:
        if bool(value) is self.is_and:
            self.go_on(machine)
        else:
            machine.give(value)

    def go_on(self, machine: Evaluation) -> None:
        node = self.form.items[self.at]
        self.at += 1
        if self.at < len(self.form.items):
            machine.push(self)
        machine.evaluate(node, self.env)


# --- bindings ---


@special("bind")
def _bind(machine: Evaluation, form: Form, env: Env) -> None:
    """(bind name value), (bind name value body …): binds a name here, or for the body only."""
    machine.at(form, env)
    check_count("bind", len(form.items) - 1, 2, None)
    symbol = symbol_at(form, 1, "a name first")
    machine.push(_Bound(form, symbol, env))
    machine.evaluate(form.items[2], env)


class _Bound(Frame):
    form: Form
    symbol: Symbol
    env: Env

    def resume(self, machine: Evaluation, value: Value) -> None:
        env, body, name = self.env, self.form.items[3:], self.symbol.name
        machine.at(self.form, env)
        if not body:
            machine.check_strand(f"bind of {name}", env.owner)
            env.bind(name, value)
            machine.bind(name, value, self.symbol.position)
            return
        inner = Env({name: value}, env, machine.path)
        machine.push(Sequence(body, inner))
        machine.bind(name, value, self.symbol.position)


@special("let")
def _let(machine: Evaluation, form: Form, env: Env) -> None:
    """(let ((a 1) (b 2)) body …): binds names for the body. The values do not see the new names."""
    machine.at(form, env)
    check_count("let", len(form.items) - 1, 2, None)
    pairs = form.items[1]
    if not isinstance(pairs, Form) or not all(isinstance(pair, Form) and len(pair.items) == 2 for pair in pairs.items):
        raise EvaluationProblem.wrong(f"let takes bindings such as ((a 1) (b 2)), got {show(pairs, 60)}", "syntax")
    names = [symbol_at(Form((form.items[0], pair.items[0])), 1, "names in its bindings") for pair in pairs.items]
    twice = next((name.name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EvaluationProblem.wrong(f"let binds {twice} twice", "syntax")
    _Let(form, env, names).go_on(machine)


class _Let(Frame):
    form: Form
    env: Env
    names: list[Symbol]
    values: list[Value] = msgspec.field(default_factory=list)

    def resume(self, machine: Evaluation, value: Value) -> None:
        self.values.append(value)
        symbol = self.names[len(self.values) - 1]
        self.go_on(machine)
        # The next expression, or the body, waits until the binding is kept.
        machine.keep(symbol.name, value, symbol.position)

    def go_on(self, machine: Evaluation) -> None:
        at = len(self.values)
        if at < len(self.names):
            machine.push(self)
            machine.evaluate(self.form.items[1].items[at].items[1], self.env)
            return
        names = {symbol.name: value for symbol, value in zip(self.names, self.values, strict=True)}
        Sequence(self.form.items[2:], Env(names, self.env, machine.path)).go_on(machine)


@special("set!")
def _set(machine: Evaluation, form: Form, env: Env) -> None:
    """(set! name value): changes a binding that exists."""
    machine.at(form, env)
    check_count("set!", len(form.items) - 1, 2, 2)
    machine.push(_Set(form, symbol_at(form, 1, "a name first"), env))
    machine.evaluate(form.items[2], env)


class _Set(Frame):
    form: Form
    symbol: Symbol
    env: Env

    def resume(self, machine: Evaluation, value: Value) -> None:
        name = self.symbol.name
        machine.at(self.form, self.env)
        holder = self.env.holder(name)
        if holder is None:
            message = f"set! changes a name that is bound, and {name} is not; bind it first"
            raise EvaluationProblem("TASK_UNBOUND_SYMBOL", message, {"symbol": name}, why="unbound_symbol")
        machine.check_strand(f"set! of {name}", holder.owner)
        holder.names[name] = value
        machine.bind(name, value, self.symbol.position)


@special("progn")
def _progn(machine: Evaluation, form: Form, env: Env) -> None:
    """(progn a b c): evaluates all, and is the last one."""
    if len(form.items) == 1:
        machine.give([])
        return
    Sequence(form.items[1:], env).go_on(machine)


@special("quote")
def _quote(machine: Evaluation, form: Form, env: Env) -> None:
    """(quote x), 'x: the expression itself as a value."""
    machine.at(form, env)
    check_count("quote", len(form.items) - 1, 1, 1)
    machine.give(quoted(form.items[1]))


# --- functions ---


@special("lambda")
def _lambda(machine: Evaluation, form: Form, env: Env) -> None:
    """(lambda (a b) body …): a function. It sees the names around it."""
    machine.at(form, env)
    check_count("lambda", len(form.items) - 1, 2, None)
    params = form.items[1]
    if not is_list_of_symbols(params):
        raise EvaluationProblem.wrong(f"lambda takes a list of names first, got {show(params, 60)}", "syntax")
    names = tuple(symbol.name for symbol in params.items)
    if len(set(names)) < len(names):
        raise EvaluationProblem.wrong(f"lambda has a name twice in {show(params, 60)}", "syntax")
    machine.give(Closure(names, form.items[2:], env, form))


@special("recur")
def _recur(machine: Evaluation, form: Form, env: Env) -> None:
    """(recur value …): calls the function around it again. As the last expression it needs no space."""
    machine.at(form, env)
    closure = env.function()
    if closure is None:
        raise EvaluationProblem.wrong("recur stands inside of a lambda only", "syntax")
    Arguments(form, env, closure).go_on(machine)


@special("defatom")
def _defatom(machine: Evaluation, form: Form, env: Env) -> None:
    """(defatom name (params a b) (instructions "… {{a}} …") …): defines an atomic task that a model performs."""
    machine.at(form, env)
    check_count("defatom", len(form.items) - 1, 2, None)
    symbol = symbol_at(form, 1, "a name first")
    if symbol.name in SPECIAL or symbol.name in machine.operators.tasks:
        raise EvaluationProblem.wrong(f"{symbol.name} is taken: it is a form or a registered task", "syntax")
    machine.check_strand(f"defatom of {symbol.name}", "")
    params: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    for clause in form.items[2:]:
        if not isinstance(clause, Form) or not clause.items or not isinstance(clause.items[0], Symbol):
            raise EvaluationProblem.wrong(
                f"defatom takes clauses such as (instructions …), got {show(clause, 60)}", "syntax"
            )
        name = clause.items[0].name
        if name == "params":
            params = _names_of(clause.items[1:])
            continue
        check_count(f"the clause {name} of defatom", len(clause.items) - 1, 1, 1)
        options[name] = quoted(clause.items[1])
    instructions = options.pop("instructions", None)
    if not isinstance(instructions, str):
        raise EvaluationProblem.wrong("defatom needs the clause (instructions …) with a text", "syntax")
    template = Template(name=symbol.name, params=params, instructions=instructions, options=options)
    machine.templates[symbol.name] = template
    machine.give(symbol)


def _names_of(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """Return the names of `(params a b)`; `(params (a text) (b number))` and `(params (a b))` are read too."""
    if len(nodes) == 1 and is_list_of_symbols(nodes[0]) and len(nodes[0].items) != 2:
        nodes = nodes[0].items
    names: list[str] = []
    for node in nodes:
        name = node.items[0] if isinstance(node, Form) and node.items else node
        if not isinstance(name, Symbol):
            raise EvaluationProblem.wrong(f"params takes names, got {show(node, 60)}", "syntax")
        names.append(name.name)
    return tuple(names)


# --- for each item ---


def _function(form: Form, value: Value) -> Value:
    if not isinstance(value, (Closure, Primitive, Reference)):
        raise EvaluationProblem.wrong(f"{form.items[0].name} takes a function, got {kind_of(value)}")
    return value


def _items(form: Form, value: Value) -> list[Value]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise EvaluationProblem.wrong(f"{form.items[0].name} takes a list, got {kind_of(value)}")
    return value


class _Operands(Frame):
    """Evaluates the operands of a form, one after the other."""

    form: Form
    env: Env
    values: list[Value] = msgspec.field(default_factory=list)

    def resume(self, machine: Evaluation, value: Value) -> None:
        self.values.append(value)
        self.go_on(machine)

    def go_on(self, machine: Evaluation) -> None:
        if len(self.values) + 1 < len(self.form.items):
            machine.push(self)
            machine.evaluate(self.form.items[len(self.values) + 1], self.env)
        else:
            self.begin(machine)

    def begin(self, machine: Evaluation) -> None:
        """All operands are there, in `values`."""
        raise NotImplementedError


class _Each(_Operands):
    """The operands of `map`, `filter` and `reduce`."""

    def begin(self, machine: Evaluation) -> None:
        machine.at(self.form, self.env)
        _BEGIN[self.form.items[0].name](machine, self.form, self.env, self.values)


@special("map", "filter", "reduce")
def _each(machine: Evaluation, form: Form, env: Env) -> None:
    """(map f items :limit 4 :collect true), (filter f items), (reduce f start items): call a function for each item.

    map runs its items at the same time, as many as `:limit` allows. The first failure stops the others; with `:collect true` the failure
    stands in the place of the result. filter and reduce go from item to item.
    """
    machine.at(form, env)
    least, most = {"map": (2, 6), "filter": (2, 2), "reduce": (3, 3)}[form.items[0].name]
    check_count(form.items[0].name, len(form.items) - 1, least, most)
    _Each(form, env).go_on(machine)


def _begin_map(machine: Evaluation, form: Form, env: Env, values: list[Value]) -> None:
    fn, items = _function(form, values[0]), _items(form, values[1])
    options = _map_options(values[2:])
    if not items:
        machine.give([])
        return
    path = f"{machine.path}{machine.number('map')}"
    collect = bool(options.get("collect", False))

    known = _numbered(items)

    def strand(index: int) -> Any:
        return machine.strand(f"{path}.{index}/", fn, items[index], form, env, known=known[index], collect=collect)

    machine.ask(Parallel(path, len(items), options.get("limit"), collect, strand, machine.scopes))


def _numbered(items: list[Value]) -> list[str]:
    """Return what each item is known by: its value, and its number among equal ones."""
    seen: Counter[str] = Counter()
    known = []
    for item in items:
        value = digest(item)
        seen[value] += 1
        known.append(f"{value}#{seen[value]}")
    return known


def _map_options(values: list[Value]) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for key, value in zip(values[::2], [*values[1::2], MISSING], strict=False):
        name = key.name[1:] if isinstance(key, Symbol) and key.is_keyword else ""
        if name not in {"limit", "collect"} or value is MISSING:
            raise EvaluationProblem.wrong(f"map takes :limit and :collect with a value, got {show(key, 60)}", "syntax")
        if name == "limit" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise EvaluationProblem.wrong(f"map :limit takes a whole number from 1, got {show(value, 60)}")
        options[name] = value
    return options


def _begin_filter(machine: Evaluation, form: Form, env: Env, values: list[Value]) -> None:
    _Filter(form, env, _function(form, values[0]), _items(form, values[1])).go_on(machine)


class _Filter(Frame):
    form: Form
    env: Env
    fn: Value
    items: list[Value]
    kept: list[Value] = msgspec.field(default_factory=list)
    at: int = 0

    def resume(self, machine: Evaluation, value: Value) -> None:
        if value:
            self.kept.append(self.items[self.at - 1])
        self.go_on(machine)

    def go_on(self, machine: Evaluation) -> None:
        if self.at == len(self.items):
            machine.give(machine.meter.made(self.kept))
            return
        item = self.items[self.at]
        self.at += 1
        machine.push(self)
        machine.call(self.fn, [item], self.form, self.env)


def _begin_reduce(machine: Evaluation, form: Form, env: Env, values: list[Value]) -> None:
    _Reduce(form, env, _function(form, values[0]), values[1], _items(form, values[2])).resume(machine, values[1])


class _Reduce(Frame):
    form: Form
    env: Env
    fn: Value
    so_far: Value
    items: list[Value]
    at: int = 0

    def resume(self, machine: Evaluation, value: Value) -> None:
        self.so_far = value
        if self.at == len(self.items):
            machine.give(value)
            return
        item = self.items[self.at]
        self.at += 1
        machine.push(self)
        machine.call(self.fn, [value, item], self.form, self.env)

    def passed(self, machine: Evaluation, failure: Failure) -> None:
        """Tell which item failed, and what there was before it."""
        del machine
        details = failure.details
        details.setdefault("failedInputIndex", self.at - 1)
        details.setdefault("totalInputs", len(self.items))
        details.setdefault("processedInputs", self.at - 1)
        details.setdefault("currentAccumulator", show(self.so_far, 2_000))


_BEGIN = {"map": _begin_map, "filter": _begin_filter, "reduce": _begin_reduce}


@special("log-message")
def _log_message(machine: Evaluation, form: Form, env: Env) -> None:
    """(log-message "plan:" plan …): shows a line to the people who watch, and is the last value."""
    machine.at(form, env)
    check_count("log-message", len(form.items) - 1, 1, None)
    _Logged(form, env).go_on(machine)


class _Logged(_Operands):
    def begin(self, machine: Evaluation) -> None:
        text = " ".join(value if isinstance(value, str) else show(value) for value in self.values)
        machine.give(self.values[-1])
        machine.ask(Log(text, self.form.position))
