"""The functions of the language: lists, dicts, texts, numbers and comparisons.

Each takes values and returns a value, without any effect. Truth is Python's: 0, "", nil, none and false are false.

Invariant: a primitive that gets a wrong type says what it expected and what it got. None of them can make a value that the meter does not
count, or run for long on a value that it has counted.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.workflow.failure import EvaluationProblem
from holdfast.workflow.syntax import Symbol
from holdfast.workflow.values import Primitive, equal, kind_of, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.workflow.meter import EvaluationMeter
    from holdfast.workflow.requests import Operators
    from holdfast.workflow.values import Value

CONSTANTS: dict[str, list[Value]] = {"nil": []}
PRIMITIVES: dict[str, Primitive] = {}
_BITS = 4_096


def _primitive(
    *names: str, least: int = 0, most: int | None = None, needs_meter: bool = False
) -> Callable[[Callable[..., Value]], Any]:
    def add(run: Callable[..., Value]) -> Callable[..., Value]:
        for name in names:
            PRIMITIVES[name] = Primitive(name, run, least, most, needs_meter)
        return run

    return add


def user_primitives(operators: Operators) -> dict[str, Primitive]:
    """Return the registered primitives. What one of them raises is a failure of the expression."""
    return {
        name: Primitive(name, partial(_run_users, name, run, operators), 0, None, needs_meter=True)
        for name, run in operators.primitives.items()
    }


def _run_users(
    name: str, run: Callable[..., Value], operators: Operators, meter: EvaluationMeter, *values: Value
) -> Value:
    try:
        return meter.received(run(*(meter.plain(value) for value in values)))
    except EvaluationProblem:
        raise
    except Exception as error:
        message = f"{name} raised {type(error).__name__}: {error}"
        cause = None if operators.fault_of is None else operators.fault_of(error)
        raise EvaluationProblem("TASK_EVALUATION_FAILED", message, why="primitive_failed", cause=cause) from error


def _wrong(name: str, expected: str, value: Value) -> EvaluationProblem:
    return EvaluationProblem.wrong(f"{name} takes {expected}, got {kind_of(value)}: {show(value, 60)}")


def _number(name: str, value: Value) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, "numbers", value)
    return value


def _whole(name: str, value: Value) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, "a whole number", value)
    return value


def _list(name: str, value: Value) -> list[Value]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(name, "a list", value)
    return value


def _text(name: str, value: Value) -> str:
    if isinstance(value, Symbol):
        return value.name
    if not isinstance(value, str):
        raise _wrong(name, "a text", value)
    return value


# --- numbers ---


@_primitive("+")
def _add(*values: Value) -> Value:
    """(+ 1 2 3): the sum."""
    total: int | float = 0
    for value in values:
        total += _number("+", value)
    return total


@_primitive("-", least=1)
def _subtract(first: Value, *rest: Value) -> Value:
    """(- 10 1 2): the first number less the others; (- 5) is -5."""
    total = _number("-", first)
    if not rest:
        return -total
    for value in rest:
        total -= _number("-", value)
    return total


@_primitive("*")
def _multiply(*values: Value) -> Value:
    """(* 2 3): the product."""
    total: int | float = 1
    for value in values:
        factor = _number("*", value)
        if isinstance(total, int) and isinstance(factor, int) and total.bit_length() + factor.bit_length() > _BITS:
            raise EvaluationProblem("TASK_OUTPUT_EXHAUSTED", "A number has more than 1,233 digits", {"limit": _BITS})
        total *= factor
    return total


@_primitive("/", least=2)
def _divide(first: Value, *rest: Value) -> Value:
    """(/ 6 4): the quotient, 1.5."""
    total: int | float = _number("/", first)
    for value in rest:
        divisor = _number("/", value)
        if divisor == 0:
            raise EvaluationProblem.wrong("/ by zero", "division_by_zero")
        try:
            total = total / divisor
        except OverflowError:
            raise EvaluationProblem.wrong("/ gives a number that is too large", "overflow") from None
    return total


def _compare(name: str, is_ordered: Callable[[Any, Any], bool], doc: str) -> None:
    def run(*values: Value) -> Value:
        if all(isinstance(value, str) for value in values):
            found = list(values)
        else:
            found = [_number(name, value) for value in values]
        return all(is_ordered(a, b) for a, b in pairwise(found))

    run.__doc__ = doc
    _primitive(name, least=2)(run)


_compare("<", lambda a, b: a < b, "(< 1 2 3): whether numbers or texts stand in rising order.")
_compare(">", lambda a, b: a > b, "(> 3 2): whether numbers or texts stand in falling order.")
_compare("<=", lambda a, b: a <= b, "(<= 1 1 2): whether no number or text is smaller than the one before.")
_compare(">=", lambda a, b: a >= b, "(>= 2 2 1): whether no number or text is larger than the one before.")


@_primitive("mod", least=2, most=2)
def _mod(number: Value, divisor: Value) -> Value:
    """(mod 7 3): what is left after a division, 1."""
    if _whole("mod", divisor) == 0:
        raise EvaluationProblem.wrong("mod by zero", "division_by_zero")
    return _whole("mod", number) % _whole("mod", divisor)


# --- comparison and truth ---


@_primitive("eq?", "equal?", "=", least=2, most=2)
def _equal(one: Value, other: Value) -> Value:
    """(equal? a b): whether two values are the same all through."""
    return equal(one, other)


@_primitive("string=?", least=2, most=2)
def _same_text(one: Value, other: Value) -> Value:
    """(string=? status "done"): whether two texts are the same."""
    return _text("string=?", one) == _text("string=?", other)


@_primitive("not", least=1, most=1)
def _not(value: Value) -> Value:
    """(not ready): true for a false value."""
    return not value


@_primitive("null?", "nil?", least=1, most=1)
def _is_nil(value: Value) -> Value:
    """(null? found): whether a value is none or an empty list."""
    return value is None or (isinstance(value, list) and not value)


@_primitive("list?", least=1, most=1)
def _is_list(value: Value) -> Value:
    """(list? value): whether it is a list."""
    return isinstance(value, list)


@_primitive("string?", least=1, most=1)
def _is_text(value: Value) -> Value:
    """(string? value): whether it is a text."""
    return isinstance(value, str)


@_primitive("number?", least=1, most=1)
def _is_number(value: Value) -> Value:
    """(number? value): whether it is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# --- lists and dicts ---


@_primitive("list")
def _make_list(*values: Value) -> Value:
    """(list 1 "a" x): a list of values."""
    return list(values)


@_primitive("dict")
def _make_dict(*values: Value) -> Value:
    """(dict "name" name "size" 3): a dict of names and values."""
    if len(values) % 2:
        raise EvaluationProblem.wrong(f"dict takes names and values in pairs, got {len(values)} arguments", "arity")
    return {_text("dict", name): value for name, value in zip(values[::2], values[1::2], strict=True)}


@_primitive("length", least=1, most=1)
def _length(value: Value) -> Value:
    """(length documents): how many items a list or dict has, or characters a text."""
    if value is None:
        return 0
    if not isinstance(value, (list, dict, str)):
        raise _wrong("length", "a list, a dict or a text", value)
    return len(value)


@_primitive("first", least=1, most=1)
def _first(value: Value) -> Value:
    """(first items): the first item; none for an empty list."""
    items = _list("first", value)
    return items[0] if items else None


@_primitive("rest", least=1, most=1)
def _rest(value: Value) -> Value:
    """(rest items): a list without its first item."""
    return _list("rest", value)[1:]


@_primitive("nth", least=2, most=2)
def _nth(value: Value, index: Value) -> Value:
    """(nth items 0): the item at a place, counted from 0; none if there is none."""
    items, at = _list("nth", value), _whole("nth", index)
    return items[at] if 0 <= at < len(items) else None


@_primitive("append", needs_meter=True)
def _append(meter: EvaluationMeter, *values: Value) -> Value:
    """(append items more): lists put together."""
    lists = [_list("append", value) for value in values]
    meter.expect_items(sum(len(items) for items in lists))
    return [item for items in lists for item in items]


@_primitive("reverse", least=1, most=1)
def _reverse(value: Value) -> Value:
    """(reverse items): the items from the last to the first."""
    return _list("reverse", value)[::-1]


@_primitive("range", least=1, most=2, needs_meter=True)
def _range(meter: EvaluationMeter, *bounds: Value) -> Value:
    """(range 3), (range 1 4): the list (0 1 2), and (1 2 3)."""
    numbers = range(*(_whole("range", bound) for bound in bounds))
    meter.expect_items(len(numbers))
    return list(numbers)


@_primitive("get-field", "get-property", least=2, most=3)
def _get_field(value: Value, name: Value, default: Value = None) -> Value:
    """(get-field result "status"): a field of a dict or of a list of pairs, or an item by number; none, or the third argument, if there is none."""
    if isinstance(name, int) and not isinstance(name, bool):
        items = _list("get-field", value)
        return items[name] if -len(items) <= name < len(items) else default
    key = _text("get-field", name)
    if isinstance(value, dict):
        return value.get(key, default)
    for pair in _list("get-field", value):
        if isinstance(pair, list) and len(pair) == 2 and _is_named(pair[0], key):
            return pair[1]
    return default


def _is_named(name: Value, key: str) -> bool:
    return bool((name.name if isinstance(name, Symbol) else name) == key)


@_primitive("put", least=3, most=3)
def _put(value: Value, name: Value, item: Value) -> Value:
    """(put result "status" "done"): a copy of a dict with a field changed."""
    if not isinstance(value, dict):
        raise _wrong("put", "a dict", value)
    return {**value, _text("put", name): item}


@_primitive("keys", least=1, most=1)
def _keys(value: Value) -> Value:
    """(keys result): the names in a dict."""
    if not isinstance(value, dict):
        raise _wrong("keys", "a dict", value)
    return list(value)


@_primitive("contains?", least=2, most=2)
def _contains(value: Value, item: Value) -> Value:
    """(contains? text "error"): whether a text has a part, a list an item, or a dict a name."""
    if isinstance(value, str):
        return _text("contains?", item) in value
    if isinstance(value, dict):
        return _text("contains?", item) in value
    return any(equal(one, item) for one in _list("contains?", value))


# --- texts ---


@_primitive("concat", needs_meter=True)
def _concat(meter: EvaluationMeter, *values: Value) -> Value:
    """(concat "a" 1 x): values put together as text."""
    parts = [_written(meter, value) for value in values]
    meter.expect_text(sum(len(part) for part in parts))
    return "".join(parts)


def _written(meter: EvaluationMeter, value: Value) -> str:
    return value if isinstance(value, str) else _json(meter, value)


@_primitive("join", least=1, most=2, needs_meter=True)
def _join(meter: EvaluationMeter, value: Value, between: Value = "") -> Value:
    r"""(join lines "\n"): the items of a list as one text."""
    separator = _text("join", between)
    parts = [_written(meter, item) for item in _list("join", value)]
    meter.expect_text(sum(len(part) for part in parts) + len(separator) * len(parts))
    return separator.join(parts)


@_primitive("split", least=1, most=2, needs_meter=True)
def _split(meter: EvaluationMeter, value: Value, between: Value = None) -> Value:
    r"""(split text "\n"): the parts of a text; without a second argument, its words."""
    text = _text("split", value)
    if between is None:
        return text.split()
    separator = _text("split", between)
    if not separator:
        raise EvaluationProblem.wrong("split takes a text that is not empty as its second argument")
    meter.expect_items(text.count(separator) + 1)
    return text.split(separator)


@_primitive("to-json", least=1, most=1, needs_meter=True)
def _to_json(meter: EvaluationMeter, value: Value) -> Value:
    """(to-json value): a value as JSON."""
    return _json(meter, value)


def _json(meter: EvaluationMeter, value: Value) -> str:
    if isinstance(value, Symbol):
        return value.name
    try:
        return msgspec.json.encode(meter.plain(value)).decode()
    except (RecursionError, TypeError, ValueError, OverflowError) as error:
        raise EvaluationProblem.wrong(f"a value cannot be written as JSON: {error}") from error


@_primitive("parse-json", least=1, most=1, needs_meter=True)
def _parse_json(meter: EvaluationMeter, value: Value) -> Value:
    """(parse-json text): the value that a JSON text holds."""
    try:
        return meter.received(msgspec.json.decode(_text("parse-json", value)))
    except (msgspec.DecodeError, RecursionError) as error:
        raise EvaluationProblem.wrong(f"parse-json takes JSON: {error}", "not_json") from error


# --- failures ---


@_primitive("error", least=1, most=2, needs_meter=True)
def _error(meter: EvaluationMeter, message: Value, value: Value = None) -> Value:
    """(error "no plan" details): fail. `try` and `fallback` handle it, and the value is in the failure."""
    text = message if isinstance(message, str) else show(message, 200)
    raise EvaluationProblem("TASK_EVALUATION_FAILED", text, {"value": meter.plain(value)}, why="raised")
