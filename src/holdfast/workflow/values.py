"""The values of a running workflow, and how they are compared, shown and turned into JSON.

Plain values are Python's own: None, booleans, numbers, texts, lists and dicts. Beside them there are symbols, closures, primitives and
references to tasks.

Invariant: none of these functions recurses, so no value is too deep for them. A list that stands in several places of a value is looked at
once, except by `plain`, which gives what JSON can hold: `size_of` says before how large that is.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.workflow.syntax import Form, Symbol

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.workflow.environment import Env
    from holdfast.workflow.syntax import Node

Value: TypeAlias = Any

CallKind: TypeAlias = Literal["task", "tool", "function", "template", "context", "script"]
"""Who performs a call: a registered atomic task, a tool, a Python function, a model with the template of `defatom`, the registered
context, or a program."""

_CUT = "…"


class Closure:
    """A function that a workflow made with `lambda`, together with the environment that it was made in."""

    __slots__ = ("body", "env", "form", "params")

    def __init__(self, params: tuple[str, ...], body: tuple[Node, ...], env: Env, form: Form) -> None:
        self.params = params
        self.body = body
        self.env = env
        self.form = form


class Primitive(NamedTuple):
    """A function of the language, or one that was registered. It is called with values and returns a value at once."""

    name: str
    run: Callable[..., Value]
    least: int
    most: int | None
    """How many arguments it takes; None for any number."""
    needs_meter: bool = False
    """Whether its first argument is the meter."""


class Reference(NamedTuple):
    """A task, tool or function as a value: `(map summarise documents)`."""

    kind: CallKind
    name: str


def kind_of(value: Value) -> str:
    """Return the word for a value's type, for messages: `a text` or `a list of 3`."""
    match value:
        case None:
            return "none"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"a dict of {len(value)}"
        case Symbol():
            return f"the symbol {value.name}"
        case Closure() | Primitive() | Reference():
            return "a function"
    return type(value).__name__


def equal(one: Value, other: Value) -> bool:
    """Whether two values are the same all through. A boolean equals no number, and a function only itself."""
    to_compare = [(one, other)]
    compared: set[tuple[int, int]] = set()
    while to_compare:
        a, b = to_compare.pop()
        if a is b or (id(a), id(b)) in compared:
            continue
        if isinstance(a, (list, dict)):
            compared.add((id(a), id(b)))
        if isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            to_compare.extend(zip(a, b, strict=True))
        elif isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            to_compare.extend((a[key], b[key]) for key in a)
        elif isinstance(a, bool) != isinstance(b, bool) or isinstance(a, Closure) or a != b:
            return False
    return True


_T = TypeVar("_T")

CELL = 8
"""Characters of a text that count as one cell."""


def fold(
    value: Value, atom: Callable[[Value], _T], join: Callable[[list[Value] | dict[str, Value], list[_T]], _T]
) -> _T:
    """Return what `join` makes of a list or dict and the results of its items; of another value what `atom` makes of it."""
    found: dict[int, _T] = {}
    to_fold = [value]
    while to_fold and isinstance(value, (list, dict)):
        item = to_fold[-1]
        inner = item if isinstance(item, list) else list(item.values())
        waiting = [each for each in inner if isinstance(each, (list, dict)) and id(each) not in found]
        if waiting and id(item) not in found:
            to_fold.extend(waiting)
            continue
        to_fold.pop()
        if id(item) not in found:
            found[id(item)] = join(item, [found[id(each)] if id(each) in found else atom(each) for each in inner])
    return found[id(value)] if id(value) in found else atom(value)


class Size(NamedTuple):
    """How large a value is."""

    cells: int
    """As JSON, where everything stands in its place: list items, dict entries and texts, 8 characters to a cell."""
    shared: int
    """How many of these cells are copies of what stands in several places."""
    depth: int


def size_of(value: Value) -> Size:
    """Return how large a value is, without making it."""
    seen: dict[int, int] = {}

    def atom(item: Value) -> tuple[int, int]:
        cells = len(item) // CELL if isinstance(item, str) else 0
        if cells:
            seen[id(item)] = cells
        return cells, 0

    def join(item: list[Value] | dict[str, Value], inner: list[tuple[int, int]]) -> tuple[int, int]:
        seen[id(item)] = own = len(item) + 1
        return own + sum(cells for cells, _ in inner), 1 + max((depth for _, depth in inner), default=0)

    cells, depth = fold(value, atom, join)
    return Size(cells, cells - sum(seen.values()), depth)


class _Text:
    """A text that is written piece by piece up to a length."""

    def __init__(self, most: int) -> None:
        self._parts: list[str] = []
        self._left = most

    def add(self, part: str) -> bool:
        """Add a part; return whether there is room for more."""
        if len(part) > self._left:
            self._parts.append(part[: max(0, self._left)] + _CUT)
            self._left = -1
            return False
        self._parts.append(part)
        self._left -= len(part)
        return True

    def __str__(self) -> str:
        return "".join(self._parts)


_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_CLOSE = object()


def show(value: Value | Node, most: int = 400) -> str:
    """Return a value or an expression as the reader reads it, cut after `most` characters: `(list "a" 1.5 true)`."""
    text = _Text(most)
    to_show: list[Any] = [value]
    is_first = True
    while to_show:
        item = to_show.pop()
        if item is _CLOSE:
            is_first = False
            if not text.add(")"):
                break
            continue
        opened = "" if is_first else " "
        inner = _inner(item)
        if inner is None:
            is_first = False
            if not text.add(opened + _atom(item, most)):
                break
            continue
        head, items = inner
        is_first = not head or head == "("
        if not text.add(opened + head):
            break
        to_show.append(_CLOSE)
        to_show.extend(reversed(items[: most + 1]))
    return str(text)


def _inner(item: Any) -> tuple[str, list[Any]] | None:
    """Return how a compound value begins, and its items; None for any other value."""
    if isinstance(item, Form):
        return "(", list(item.items)
    if isinstance(item, list):
        return "(", item
    if isinstance(item, dict):
        pairs: list[Any] = []
        for key, value in item.items():
            pairs += (str(key), value)
        return "(dict", pairs
    return None


def _atom(value: Any, most: int) -> str:
    match value:
        case str():
            return '"' + value[: most + 1].translate(_QUOTED) + '"'
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case Symbol() | Primitive() | Reference():
            return value.name
        case Closure():
            return f"<lambda ({' '.join(value.params)})>"
    return f"<{type(value).__name__}>"


def plain(value: Value) -> Any:
    """Return a value as JSON can hold it: a symbol as its name, a function as its text.

    Other types than those of the language are given back as they are.
    """
    if not isinstance(value, (list, dict)):
        return _plain_atom(value)
    whole: list[Any] = [None]
    to_fill: list[tuple[Any, Any, Any]] = [(value, whole, 0)]
    while to_fill:
        item, holder, at = to_fill.pop()
        if isinstance(item, list):
            holder[at] = made = [None] * len(item)
            to_fill.extend((inner, made, n) for n, inner in enumerate(item))
        elif isinstance(item, dict):
            holder[at] = fields = {str(key): None for key in item}
            to_fill.extend((inner, fields, str(key)) for key, inner in item.items())
        else:
            holder[at] = _plain_atom(item)
    return whole[0]


def _plain_atom(value: Any) -> Any:
    if isinstance(value, Symbol):
        return value.name
    if isinstance(value, (Closure, Primitive, Reference)):
        return _atom(value, 80)
    return value


_MOST_COPIES = 10_000
"""Cells of a value that are copies, up to which its digest is that of its JSON."""


def digest(value: Any) -> str:
    """Return a short text that tells values apart, also after a restart."""
    if size_of(value).shared > _MOST_COPIES:
        return fold(value, _digest_of_atom, _digest_of_items)
    try:
        written = msgspec.json.encode(plain(value))
    except (RecursionError, TypeError, ValueError, OverflowError):
        written = show(value, 1_000_000).encode()
    return sha256(written).hexdigest()[:16]


def _digest_of_atom(value: Any) -> str:
    return sha256(show(value, 1_000_000).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _digest_of_items(value: list[Any] | dict[str, Any], inner: list[str]) -> str:
    names = "list" if isinstance(value, list) else msgspec.json.encode(list(value)).decode()
    return sha256(" ".join((names, *inner)).encode()).hexdigest()[:16]
