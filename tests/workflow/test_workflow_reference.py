"""The machine equals a simple recursive semantics on random programs: value or failure, and every call in its order."""

from __future__ import annotations

import random

import pytest
from workflow_support import Drive

from holdfast import Fault
from holdfast.workflow import Form, Operators, Symbol, read, show
from holdfast.workflow.values import equal

NAMES = ("x", "y", "z", "f", "g")
TASKS = Operators(tasks={"ask": ("q",), "fetch": ("q",)})


class Failed(Exception):
    def __init__(self, code, retryable=False):
        self.code, self.retryable = code, retryable


class Function:
    def __init__(self, params, body, scope):
        self.params, self.body, self.scope = params, body, scope


class Scope:
    def __init__(self, names, outer=None, strand=0):
        self.names, self.outer, self.strand = names, outer, strand

    def holder(self, name):
        if name in self.names:
            return self
        return self.outer.holder(name) if self.outer else None


class World:
    """Answers calls: every third fails, and the answer tells how many there were."""

    def __init__(self):
        self.calls = []

    def __call__(self, name, inputs):
        self.calls.append((name, show(_normal(inputs), 10_000)))
        return None if len(self.calls) % 3 == 0 else [name, len(self.calls)]


class Reference:
    """The language as one recursive function."""

    def __init__(self, world):
        self.world = world
        self.strand = 0

    def run(self, program):
        scope, value = Scope({}), []
        for node in program:
            value = self.eval(node, scope)
        return value

    def eval(self, node, scope):
        if isinstance(node, Symbol):
            holder = scope.holder(node.name)
            if holder is not None:
                return holder.names[node.name]
            if node.name == "nil":
                return []
            if node.name in PRIMS:
                return PRIMS[node.name]
            raise Failed("TASK_UNBOUND_SYMBOL")
        if not isinstance(node, Form):
            return node
        if not node.items:
            return []
        head, *rest = node.items
        if isinstance(head, Symbol) and (form := getattr(self, "do_" + WORDS.get(head.name, ""), None)):
            return form(rest, scope)
        if isinstance(head, Symbol) and head.name in TASKS.tasks and scope.holder(head.name) is None:
            return self.task(head.name, self.eval(rest[0], scope))
        if not isinstance(head, (Symbol, Form)):
            raise Failed("TASK_EVALUATION_FAILED")
        fn = self.eval(head, scope)
        if not callable(fn) and not isinstance(fn, Function):
            raise Failed("TASK_EVALUATION_FAILED")
        return self.call(fn, [self.eval(item, scope) for item in rest])

    def task(self, name, value):
        answer = self.world(name, value)
        if answer is None:
            raise Failed("PROVIDER_OVERLOADED", retryable=True)
        return answer

    def call(self, fn, values):
        if not isinstance(fn, Function):
            return fn(*values)
        if len(values) != len(fn.params):
            raise Failed("TASK_EVALUATION_FAILED")
        return self.body(fn.body, Scope(dict(zip(fn.params, values, strict=True)), fn.scope, self.strand))

    def body(self, nodes, scope):
        value = []
        for node in nodes:
            value = self.eval(node, scope)
        return value

    def do_if(self, rest, scope):
        return self.eval(rest[1 if self.eval(rest[0], scope) else 2], scope)

    def do_bind(self, rest, scope):
        value = self.eval(rest[1], scope)
        if len(rest) > 2:
            return self.body(rest[2:], Scope({rest[0].name: value}, scope, self.strand))
        if scope.strand != self.strand:
            raise Failed("TASK_EVALUATION_FAILED")
        scope.names[rest[0].name] = value
        return value

    def do_let(self, rest, scope):
        names = {pair.items[0].name: self.eval(pair.items[1], scope) for pair in rest[0].items}
        return self.body(rest[1:], Scope(names, scope, self.strand))

    def do_set(self, rest, scope):
        value = self.eval(rest[1], scope)
        holder = scope.holder(rest[0].name)
        if holder is None:
            raise Failed("TASK_UNBOUND_SYMBOL")
        if holder.strand < self.strand:
            raise Failed("TASK_EVALUATION_FAILED")
        holder.names[rest[0].name] = value
        return value

    def do_progn(self, rest, scope):
        return self.body(rest, scope)

    def do_lambda(self, rest, scope):
        return Function([symbol.name for symbol in rest[0].items], rest[1:], scope)

    def do_and(self, rest, scope):
        value = True
        for node in rest:
            value = self.eval(node, scope)
            if not value:
                break
        return value

    def do_or(self, rest, scope):
        value = False
        for node in rest:
            value = self.eval(node, scope)
            if value:
                break
        return value

    def do_loop(self, rest, scope):
        value = []
        for _ in range(self.eval(rest[0], scope)):
            value = self.eval(rest[1], scope)
        return value

    def do_map(self, rest, scope):
        fn, items = self.eval(rest[0], scope), self.eval(rest[1], scope)
        self.check(fn, items)
        self.strand += 1
        try:
            return [self.call(fn, [item]) for item in items]
        finally:
            self.strand -= 1

    def do_reduce(self, rest, scope):
        fn, value, items = (self.eval(node, scope) for node in rest)
        self.check(fn, items)
        for item in items:
            value = self.call(fn, [value, item])
        return value

    def check(self, fn, items):
        if (not callable(fn) and not isinstance(fn, Function)) or not isinstance(items, list):
            raise Failed("TASK_EVALUATION_FAILED")

    def do_try(self, rest, scope):
        try:
            return self.body(rest[:-1], scope)
        except Failed as failed:
            catch = rest[-1].items
            return self.body(catch[2:], Scope({catch[1].items[0].name: failed.code}, scope, self.strand))

    def do_fallback(self, rest, scope):
        for node in rest[:-1]:
            try:
                return self.eval(node, scope)
            except Failed:
                continue
        return self.eval(rest[-1], scope)

    def do_retry(self, rest, scope):
        for left in reversed(range(rest[0])):
            try:
                return self.body(rest[1:], Scope({}, scope, self.strand))
            except Failed as failed:
                if not left or not failed.retryable:
                    raise
        raise AssertionError


WORDS = {name: name.removesuffix("!") for name in ("if", "bind", "let", "set!", "progn", "lambda", "and", "or", "loop")}
WORDS |= {name: name for name in ("map", "reduce", "try", "fallback", "retry")}


def _add(*values):
    if any(isinstance(value, bool) or not isinstance(value, int) for value in values):
        raise Failed("TASK_EVALUATION_FAILED")
    return sum(values)


def _length(*values):
    if len(values) != 1 or not isinstance(values[0], (list, str)):
        raise Failed("TASK_EVALUATION_FAILED")
    return len(values[0])


def _error(*values):
    raise Failed("TASK_EVALUATION_FAILED", retryable=len(values) == 1)


PRIMS = {
    "get-field": lambda value, _: value,
    "+": _add,
    "list": lambda *values: list(values),
    "length": _length,
    "error": _error,
}


# --- random programs ---


class Programs:
    """Makes random programs: those of one seed are always the same."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def program(self):
        return [self.node(4) for _ in range(self.rng.randint(1, 4))]

    def symbol(self):
        return Symbol(self.rng.choice(NAMES))

    def body(self, depth, least=1, most=2):
        return [self.node(depth) for _ in range(self.rng.randint(least, most))]

    def node(self, depth):
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            return rng.choice([rng.randint(0, 3), self.symbol(), self.symbol(), Symbol("nil"), True])
        return Form(tuple(getattr(self, "make_" + rng.choice(KINDS))(depth - 1)))

    def function(self, params, depth):
        return Form((Symbol("lambda"), Form(tuple(params)), *self.body(depth)))

    def items(self, depth):
        return Form((Symbol("list"), *self.body(depth, 0, 3)))

    def make_if(self, depth):
        return Symbol("if"), *self.body(depth, 3, 3)

    def make_bind(self, depth):
        return Symbol("bind"), self.symbol(), *self.body(depth, 1, 2)

    def make_set(self, depth):
        return Symbol("set!"), self.symbol(), self.node(depth)

    def make_let(self, depth):
        names = self.rng.sample(NAMES, self.rng.randint(1, 2))
        pairs = [Form((Symbol(name), self.node(depth))) for name in names]
        return Symbol("let"), Form(tuple(pairs)), *self.body(depth)

    def make_word(self, depth):
        return Symbol(self.rng.choice(["progn", "and", "or"])), *self.body(depth, 0, 3)

    def make_lambda(self, depth):
        names = self.rng.sample(NAMES, self.rng.randint(0, 2))
        return self.function([Symbol(name) for name in names], depth).items

    def make_loop(self, depth):
        return Symbol("loop"), self.rng.randint(0, 3), self.node(depth)

    def make_map(self, depth):
        fn = self.function([self.symbol()], depth) if self.rng.random() < 0.8 else self.symbol()
        return Symbol("map"), fn, self.items(depth) if self.rng.random() < 0.8 else self.node(depth)

    def make_reduce(self, depth):
        return Symbol("reduce"), self.function([Symbol("x"), Symbol("y")], depth), self.node(depth), self.items(depth)

    def make_try(self, depth):
        # A failure is a dict in the language and a code in the reference, so handlers see its code.
        code = Form((Symbol("bind"), Symbol("z"), Form((Symbol("get-field"), Symbol("z"), "code"))))
        catch = Form((Symbol("catch"), Form((Symbol("z"),)), code, *self.body(depth)))
        return Symbol("try"), *self.body(depth), catch

    def make_fallback(self, depth):
        return Symbol("fallback"), *self.body(depth, 1, 3)

    def make_retry(self, depth):
        return Symbol("retry"), self.rng.randint(1, 3), *self.body(depth)

    def make_task(self, depth):
        return Symbol(self.rng.choice(["ask", "fetch"])), self.node(depth)

    def make_primitive(self, depth):
        if self.rng.random() < 0.1:
            return Symbol("error"), "broken"
        return Symbol(self.rng.choice(["+", "list", "length"])), *self.body(depth)

    def make_call(self, depth):
        head = self.symbol() if self.rng.random() < 0.5 else self.function([self.symbol()], depth)
        return head, *self.body(depth)


KINDS = [name.removeprefix("make_") for name in dir(Programs) if name.startswith("make_")]


def _normal(value):
    """A caught failure is a dict in the language and a code in the reference; functions are only functions."""
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, dict):
        return value["code"]
    is_text = isinstance(value, str) and not value.startswith("<lambda") and value not in PRIMS
    return value if is_text or isinstance(value, (int, type(None))) else "function"


def expected_of(program):
    world = World()
    try:
        return ("ok", _normal(Reference(world).run(program))), world.calls
    except Failed as failed:
        return ("failed", "TASK_EVALUATION_FAILED" if failed.retryable else failed.code), world.calls


def actual_of(program):
    world = World()

    def answer(call):
        (value,) = call.inputs.values()
        found = world(call.name, value)
        return Fault.of("PROVIDER_OVERLOADED") if found is None else found

    source = "\n".join(show(node, 1_000_000) for node in program)
    drive = Drive(source, TASKS, answer)
    failure = drive.machine.failure
    if failure is not None:
        return ("failed", failure.problem.code), world.calls
    return ("ok", _normal(drive.machine.value)), world.calls


def check(program):
    try:
        expected, calls = expected_of(program)
    except RecursionError:
        return
    actual, made = actual_of(program)
    assert equal(list(actual), list(expected)), (actual, expected)
    assert made == calls


@pytest.mark.parametrize("seed", range(10))
def test_the_machine_equals_the_reference_on_random_programs(seed):
    programs = Programs(seed)
    for _ in range(100):
        check(programs.program())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 1_200))
def test_the_machine_equals_the_reference_on_many_random_programs(seed):
    programs = Programs(seed)
    for _ in range(1_000):
        check(programs.program())


def test_the_reference_and_the_machine_agree_on_programs_that_end_well():
    """A guard: random programs often fail early. These do not."""
    for source in (
        "(bind x (ask 1)) (bind f (lambda (y) (fallback (fetch y) (list y)))) (map f (list 1 2 3))",
        "(bind x 1) (loop 3 (set! x (+ x 1))) (try (ask x) (fetch x) (ask 3) (catch (z) (list x)))",
        "(ask 0) (retry 3 (ask 1) (fetch 2))",
    ):
        program = read(source)
        (outcome, _), calls = expected_of(program)
        assert outcome == "ok"
        assert calls
        check(program)
