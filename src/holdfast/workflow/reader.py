"""The reader: the text of a workflow becomes forms with positions.

    (bind plan (make-plan :goal "release 4.2"))    ; a comment
    '(continue "once more")                         ; a quoted list

Invariant: every text is either read or rejected with the position of the first mistake. The reader keeps its own stack, so no nesting
can exhaust Python's, and what it reads is bounded by `ReadLimits`.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.workflow.errors import WorkflowSyntaxError
from holdfast.workflow.syntax import Form, Node, Position, Symbol

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
      (?P<space>[\s]+)
    | (?P<comment>;[^\n]*)
    | (?P<open>\()
    | (?P<close>\))
    | (?P<quote>')
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<cut>")
    | (?P<atom>[^\s()";]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(?:\d+|\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?\Z")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_CONSTANTS = {"true": True, "#t": True, "false": False, "#f": False, "none": None}
_LONGEST_NUMBER = 400
"""Digits of a number. Longer ones are a mistake, and Python takes quadratic time for them."""
_END = "the end of the source"


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a source may be: `read(text, limits=ReadLimits(depth=50))`."""

    characters: int = 4_000_000
    nodes: int = 200_000
    """Symbols, values and lists together."""
    depth: int = 1_000


_LIMITS = ReadLimits()


class Token(NamedTuple):
    """A piece of a source: `open`, `close`, `quote`, `text`, `atom`, `space` or `comment`."""

    kind: str
    text: str
    position: Position


def read(text: str, source: str = "", *, limits: ReadLimits = _LIMITS) -> tuple[Node, ...]:
    """Return the forms of a source; raise `WorkflowSyntaxError` for what cannot be read.

    `source` is the name of its file, for messages.

    >>> read("(list 1 2)")[0].items
    (Symbol('list'), 1, 2)
    """
    if len(text) > limits.characters:
        raise _error(Position(), f"at most {limits.characters:,} characters", f"{len(text):,}", source)
    return _Reading(source, limits).read(text)


def read_one(text: str, source: str = "") -> Node:
    """Return the only form of a source; raise `WorkflowSyntaxError` if there is none, or more than one."""
    forms = read(text, source)
    if len(forms) != 1:
        raise _error(Position(), "one expression", f"{len(forms)}", source)
    return forms[0]


def tokens(text: str, source: str = "") -> Iterator[Token]:
    """Yield the pieces of a source in order, spaces and comments too."""
    line, start, at = 1, 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        # The alternatives cover every character, so there is always a match.
        assert match is not None
        kind, found, position = str(match.lastgroup), match.group(), Position(line, at - start + 1)
        if kind == "cut":
            raise _error(position, 'a " that closes this text', _END, source)
        yield Token(kind, found, position)
        at = match.end()
        if kind in {"space", "text"} and "\n" in found:
            line += found.count("\n")
            start = at - (len(found) - found.rfind("\n") - 1)


class _Open(NamedTuple):
    """A list that is not closed yet, or a quote whose expression has not come yet."""

    items: list[Node]
    position: Position
    is_quote: bool


class _Reading:
    def __init__(self, source: str, limits: ReadLimits) -> None:
        self._source = source
        self._limits = limits
        self._nodes = 0
        self._top = _Open([], Position(), is_quote=False)
        self._stack = [self._top]

    def read(self, text: str) -> tuple[Node, ...]:
        for token in tokens(text, self._source):
            match token.kind:
                case "space" | "comment":
                    pass
                case "open" | "quote":
                    self._begin(token)
                case "close":
                    self._end(token)
                case "text":
                    self._add(self._text(token))
                case _:
                    self._add(self._atom(token))
        last = self._stack[-1]
        if last.is_quote:
            raise _error(last.position, "an expression after '", _END, self._source)
        if last is not self._top:
            raise _error(last.position, "a ) that closes this list", _END, self._source)
        return tuple(self._top.items)

    def _begin(self, token: Token) -> None:
        is_quote = token.kind == "quote"
        if len(self._stack) > self._limits.depth:
            expected = f"lists nested at most {self._limits.depth:,} deep"
            raise _error(token.position, expected, "one more level", self._source)
        items: list[Node] = [Symbol("quote", token.position)] if is_quote else []
        self._stack.append(_Open(items, token.position, is_quote))

    def _end(self, token: Token) -> None:
        closed = self._stack[-1]
        if closed.is_quote:
            raise _error(closed.position, "an expression after '", "a )", self._source)
        if closed is self._top:
            raise _error(token.position, "no ) here, because no list is open", "a )", self._source)
        self._stack.pop()
        self._add(Form(tuple(closed.items), closed.position))

    def _add(self, node: Node) -> None:
        self._nodes += 1
        if self._nodes > self._limits.nodes:
            position = self._stack[-1].position
            raise _error(position, f"at most {self._limits.nodes:,} symbols and values", "more", self._source)
        # A quote is complete with its one expression.
        while self._stack[-1].is_quote:
            quote = self._stack.pop()
            node = Form((quote.items[0], node), quote.position)
        self._stack[-1].items.append(node)

    def _text(self, token: Token) -> str:
        body = token.text[1:-1]
        if "\\" not in body:
            return body

        def replaced(match: re.Match[str]) -> str:
            escape = match.group(1)
            if len(escape) == 5:
                return chr(int(escape[1:], 16))
            if escape not in _ESCAPES:
                expected = 'one of \\n \\t \\r \\" \\\\ \\u0000 in this text'
                raise _error(token.position, expected, f"\\{escape}", self._source)
            return _ESCAPES[escape]

        return _ESCAPE.sub(replaced, body)

    def _atom(self, token: Token) -> Any:
        word = token.text
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if _NUMBER.match(word):
            return self._number(token)
        # Some write a quoted name between two quotes: 'task-a'.
        if word.endswith("'") and self._stack[-1].is_quote:
            word = word.rstrip("'")
        if "'" in word:
            raise _error(token.position, "a space or ( before '", word, self._source)
        return Symbol(word, token.position)

    def _number(self, token: Token) -> int | float:
        word = token.text
        if len(word) > _LONGEST_NUMBER:
            raise _error(token.position, f"a number of at most {_LONGEST_NUMBER} digits", f"{len(word)}", self._source)
        if word.lstrip("+-").isdigit():
            return int(word)
        number = float(word)
        if math.isinf(number):
            raise _error(token.position, "a number below 1.8e308", word, self._source)
        return number


def _error(position: Position, expected: str, received: str, source: str) -> WorkflowSyntaxError:
    return WorkflowSyntaxError.at_position(position, expected, received, source)
