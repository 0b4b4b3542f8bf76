"""Docstrings of this project as Markdown.

They are plain text: paragraphs, examples that are indented by four, and paragraphs that list parameters as `name: what it is`.
"""

from __future__ import annotations

import ast
import re
from textwrap import dedent

_ITEM = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")


def render(doc: str, parameters: set[str] | frozenset[str] = frozenset()) -> str:
    """Return a docstring as Markdown. A paragraph that starts with one of the parameters is a list of them."""
    return "\n\n".join(_block(block, parameters) for block in _blocks(doc))


def first_sentence(doc: str) -> str:
    """Return the first sentence of a docstring, in one line."""
    paragraph = " ".join(doc.partition("\n\n")[0].split())
    return re.match(r".*?[.:!](?= |$)|.*", paragraph)[0].rstrip(":")  # type: ignore[index]  # it matches everything


def _blocks(doc: str) -> list[str]:
    """Cut at blank lines. An example stays whole, with the blank lines inside it."""
    blocks: list[str] = []
    for block in re.split(r"\n[ ]*\n", doc):
        if blocks and _is_code(block) and _is_code(blocks[-1]):
            blocks[-1] += f"\n\n{block}"
        elif block.strip():
            blocks.append(block)
    return blocks


def _is_code(block: str) -> bool:
    """Tell whether a paragraph is an example: it is indented, or it is Python.

    The formatter takes the indentation away where nothing but an example follows the first line.
    """
    if block.startswith("    "):
        return True
    try:
        statements = ast.parse(block).body
    except SyntaxError:
        return False
    return not all(isinstance(found, ast.Expr | ast.AnnAssign) and not _calls(found) for found in statements)


def _calls(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(statement))


def _block(block: str, parameters: set[str] | frozenset[str]) -> str:
    if _is_code(block):
        return f"```python\n{dedent(block)}\n```"
    if block.startswith(">>> "):
        return f"```pycon\n{block}\n```"
    names = set().union(*(_names(found[1]) for found in map(_ITEM.match, block.splitlines()) if found))
    # Two lines that begin like items are a list, also below a line that introduces them. One may be a sentence with a colon.
    if names <= parameters or len(names) > 1:
        return _list(block, names)
    return block


def _list(block: str, names: set[str]) -> str:
    lines: list[str] = []
    for line in block.splitlines():
        if (found := _ITEM.match(line)) and _names(found[1]) <= names:
            shown = ", ".join(f"`{name}`" for name in found[1].split(", "))
            # Markdown needs a blank line before a list.
            lines += ([""] if lines and not lines[-1].startswith("- ") else []) + [f"- {shown}: {found[2]}"]
        elif lines and lines[-1].startswith("- "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _names(listed: str) -> set[str]:
    return {name.lstrip("*") for name in listed.split(", ")}
