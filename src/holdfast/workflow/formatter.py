"""The formatter: one layout for every program. Comments stay where they are, and so do single blank lines.

    (bind plan (make-plan goal))
    (map
      (lambda (part) (review part))
      (get-field plan "parts"))

Invariant: the formatted text is read as the same program, and formatting it again changes nothing. Like the reader it has a stack of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.workflow.reader import read, tokens

if TYPE_CHECKING:
    from holdfast.workflow.reader import Token

WIDTH = 100
_HEADS = {
    "bind": 1,
    "set!": 1,
    "let": 1,
    "lambda": 1,
    "if": 1,
    "loop": 1,
    "retry": 1,
    "retry-later": 1,
    "with-budget": 1,
    "defatom": 1,
    "call-atomic-task": 1,
    "catch": 1,
}
"""How many arguments stay in the line of the head, if the form does not fit into one line."""


class _Piece:
    """An atom, a comment, or a list with everything in it."""

    __slots__ = ("blank_before", "children", "flat", "is_comment", "is_trailing", "prefix")

    def __init__(self, flat: str | None, *, prefix: str = "", is_comment: bool = False) -> None:
        self.flat = flat
        """The text in one line; None if it cannot be written so."""
        self.children: list[_Piece] | None = None
        self.prefix = prefix
        """The quotes before it."""
        self.is_comment = is_comment
        self.is_trailing = False
        """Whether a comment stands behind something in its line."""
        self.blank_before = False


def format_source(text: str, source: str = "") -> str:
    r"""Return the text of a program in the standard layout; raise `WorkflowSyntaxError` if it cannot be read.

    >>> format_source("(list   1\n2)")
    '(list 1 2)\n'
    """
    # The reader checks everything, limits too.
    read(text, source)
    return _Layout().write(_pieces(text))


def _pieces(text: str) -> list[_Piece]:
    """Return the top level of a program as pieces."""
    top = _Piece(None)
    top.children = []
    stack, prefix = [top], ""
    lines, has_content = 0, False
    for token in tokens(text):
        if token.kind == "space":
            lines += token.text.count("\n")
            continue
        holder = stack[-1].children
        assert holder is not None
        if token.kind == "close":
            _close(stack)
        elif token.kind == "quote":
            prefix += "'"
            continue
        else:
            piece = _piece(token, prefix)
            piece.blank_before = lines > 1 and bool(holder)
            piece.is_trailing = piece.is_comment and lines == 0 and has_content
            holder.append(piece)
            if piece.children is not None:
                stack.append(piece)
        # A comment may stand between a quote and its expression.
        prefix = prefix if token.kind == "comment" else ""
        # The first comment of a list stands behind nothing.
        lines, has_content = 0, token.kind != "open"
    return top.children


def _piece(token: Token, prefix: str) -> _Piece:
    if token.kind == "open":
        piece = _Piece(None, prefix=prefix)
        piece.children = []
        return piece
    if token.kind == "comment":
        return _Piece(token.text.rstrip(), is_comment=True)
    word = token.text
    if token.kind == "atom" and prefix:
        # 'name' is another way to write 'name.
        word = word.rstrip("'")
    return _Piece(prefix + word)


def _close(stack: list[_Piece]) -> None:
    piece = stack.pop()
    assert piece.children is not None
    flats = [child.flat for child in piece.children if not child.is_comment]
    if len(flats) == len(piece.children) and not any(flat is None or "\n" in flat for flat in flats):
        text = f"{piece.prefix}({' '.join(flat for flat in flats if flat is not None)})"
        # A longer one never fits, and to keep all of them would take quadratic space.
        piece.flat = text if len(text) <= WIDTH else None


def _is_keyword(piece: _Piece) -> bool:
    return piece.children is None and (piece.flat or "").startswith(":")


class _Layout:
    def __init__(self) -> None:
        self._parts: list[str] = []
        self._column = 0
        self._todo: list[tuple[Any, ...]] = []

    def write(self, pieces: list[_Piece]) -> str:
        for number, piece in enumerate(pieces):
            if number and not piece.is_trailing:
                self._newline(0, blank=piece.blank_before)
            self._begin(piece)
            while self._todo:
                what, *given = self._todo.pop()
                what(*given)
        return "".join(self._parts) + ("\n" if pieces else "")

    def _emit(self, text: str) -> None:
        self._parts.append(text)
        last = text.rfind("\n")
        self._column = self._column + len(text) if last < 0 else len(text) - last - 1

    def _newline(self, indent: int, *, blank: bool = False) -> None:
        self._parts.append("\n\n" if blank else "\n")
        self._parts.append(" " * indent)
        self._column = indent

    def _begin(self, piece: _Piece, closing: int = 0) -> None:
        """Write a piece; `closing` is how many parentheses follow it directly."""
        if piece.is_comment:
            self._emit(("  " if piece.is_trailing else "") + (piece.flat or ""))
        elif piece.children is None:
            self._emit(piece.flat or "")
        elif piece.flat is not None and self._column + len(piece.flat) + closing <= WIDTH:
            self._emit(piece.flat)
        else:
            self._break(piece, closing)

    def _break(self, piece: _Piece, closing: int) -> None:
        """Write a list over several lines."""
        children = piece.children or []
        start = self._column + len(piece.prefix)
        self._emit(piece.prefix + "(")
        head = children[0] if children else None
        is_call = head is not None and head.children is None and not head.is_comment
        indent = start + (2 if is_call else 1)
        beside = 1 + _HEADS.get(head.flat or "", 0) if is_call and head is not None else 1
        steps: list[tuple[Any, ...]] = []
        after_comment = False
        for number, child in enumerate(children):
            is_last = number == len(children) - 1
            if number == 0 or child.is_trailing:
                pass
            elif (number < beside or _is_keyword(children[number - 1])) and not after_comment and not child.is_comment:
                steps.append((self._emit, " "))
            else:
                steps.append((self._newline_step, indent, child.blank_before))
            steps.append((self._begin, child, closing + 1 if is_last else 0))
            after_comment = child.is_comment or (after_comment and number < beside)
        if children and children[-1].is_comment:
            steps.append((self._newline_step, indent, False))
        steps.append((self._emit, ")"))
        self._todo.extend(reversed(steps))

    def _newline_step(self, indent: int, blank: bool) -> None:  # noqa: FBT001 - a step of the list above
        self._newline(indent, blank=blank)
