"""The pages of `docs/` as the site shows them.

They are written to be read on a code host too. Here, links that leave `docs/` lead to pages of the site, and a code or a public name in
backquotes becomes a link to its description.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scripts.docs_site.diagrams import draw

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=mark)[ ]*$", re.MULTILINE | re.DOTALL)
_ALONE = {"CHANGELOG.md": "changelog.md", "examples": "examples.md", "examples/README.md": "examples.md"}
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_NOT_HERE = re.compile(r"<!-- repository only -->\n.*?<!-- end -->\n+", re.DOTALL)
"""What a reader of the site need not know: how to build the site."""
# A name in backquotes, but neither inside the text of a link nor in a heading.
_SPAN = re.compile(r"(?<![\[`\w])`([A-Za-z_][\w.]*)(\(\))?`(?![`\]])")


def address_of(path: str) -> str:
    """Return the address at which the site has a file or a folder of the repository. Raises `ValueError` if it has none."""
    if path in _ALONE:
        return _ALONE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("src/holdfast/faults/pages/"):
        return f"reference/errors/{PurePosixPath(path).name}"
    if path == "examples" or path.startswith("examples/"):
        return (
            path.removesuffix(".py") + ".md" if path.endswith(".py") else f"{path.removesuffix('/README.md')}/README.md"
        )
    message = f"a page links to {path}, which the site does not have"
    raise ValueError(message)


def page(path: str, text: str, known: Mapping[str, str]) -> str:
    """Return the text of a page as the site builds it.

    path: where the text is in the repository. Its links are relative to that.
    known: the address of each code and public name.
    """
    text = _NOT_HERE.sub("", text)
    seen: set[str] = set()
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [_prose(path, text[end : fence.start()], known, seen), _fenced(fence)]
        end = fence.end()
    return "".join([*parts, _prose(path, text[end:], known, seen)])


def _fenced(fence: re.Match[str]) -> str:
    language = fence["info"].partition(" ")[0]
    if language == "mermaid":
        return draw(fence["text"])
    return f"{fence['mark']}{ {'sh': 'console'}.get(language, language) }\n{fence['text']}{fence['mark']}"


def _prose(path: str, text: str, known: Mapping[str, str], seen: set[str]) -> str:
    here = address_of(path)

    def moved(found: re.Match[str]) -> str:
        target = address_of(os.path.normpath(PurePosixPath(path).parent / found[1]))
        return f"]({_between(here, target)}{found[2] or ''})"

    def linked(found: re.Match[str]) -> str:
        name = found[1]
        target = known.get(name)
        # A name is linked once on a page, a code each time.
        if target is None or name in seen or target.partition("#")[0] == here:
            return found[0]
        if not name.isupper():
            seen.add(name)
        return f"[{found[0]}]({_between(here, target)})"

    # Code hosts want a bar in a cell escaped, also inside code; the site's Markdown would show the backslash.
    text = re.sub(
        r"^\|.*$", lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.MULTILINE
    )
    lines = _LINK.sub(moved, text).split("\n")
    return "\n".join(line if line.startswith("#") else _SPAN.sub(linked, line) for line in lines)


def _between(here: str, target: str) -> str:
    address, mark, anchor = target.partition("#")
    return f"{os.path.relpath(address, PurePosixPath(here).parent)}{mark}{anchor}"
