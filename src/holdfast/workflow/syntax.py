"""What the source of a workflow is made of: symbols and lists, each with its position.

Numbers, texts, `true`, `false` and `none` are plain Python values. A symbol that begins with a colon names an argument: `:limit 4`.

Invariant: two symbols of one name are equal wherever they stand, and a symbol never equals a text.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias


class Position(NamedTuple):
    """A place in a source, counted from 1: `Position(3, 14)` is line 3, column 14."""

    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


START = Position()


class Symbol:
    """A name in a source, such as `summarise` or `:limit`.

    >>> Symbol("x") == Symbol("x", Position(2, 1))
    True
    """

    __slots__ = ("name", "position")

    def __init__(self, name: str, position: Position = START) -> None:
        self.name = name
        self.position = position

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and other.name == self.name

    def __hash__(self) -> int:
        return hash(("symbol", self.name))

    def __repr__(self) -> str:
        return f"Symbol({self.name!r})"

    @property
    def is_keyword(self) -> bool:
        """Whether it names an argument: `:limit`."""
        return self.name[:1] == ":" and len(self.name) > 1


class Form:
    """A list in a source, such as `(if ready (deploy) nil)`. It is code until `quote` makes a value of it."""

    __slots__ = ("items", "position")

    def __init__(self, items: tuple[Node, ...], position: Position = START) -> None:
        self.items = items
        self.position = position

    def __repr__(self) -> str:
        return f"Form({len(self.items)} items at {self.position})"


Node: TypeAlias = Any
"""A `Form`, a `Symbol`, or a plain value."""


def is_list_of_symbols(node: Node) -> bool:
    """Whether a node is a list that holds nothing but symbols, such as the parameters of a lambda."""
    return isinstance(node, Form) and all(isinstance(item, Symbol) for item in node.items)


def quoted(node: Node) -> Any:
    """Return what `(quote node)` is as a value: lists instead of forms."""
    if not isinstance(node, Form):
        return node
    value: list[Any] = []
    to_fill = [(node, value)]
    while to_fill:
        form, items = to_fill.pop()
        for item in form.items:
            if isinstance(item, Form):
                inner: list[Any] = []
                items.append(inner)
                to_fill.append((item, inner))
            else:
                items.append(item)
    return value
