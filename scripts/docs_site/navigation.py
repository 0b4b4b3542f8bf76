"""The navigation of the site, read from `docs/README.md`: what a reader of the repository sees is what a visitor of the site gets.

A heading is a section, a bold line a group in it, and every link to a page is an entry, in the order of the file.
"""

from __future__ import annotations

import re
from typing import Any

Entry = dict[str, Any]
"""A title, and either an address or the entries below it."""


def navigation(index: str, generated: dict[str, list[Entry]]) -> list[Entry]:
    """Return the entries of the index, with generated ones at the end of the sections that they belong to."""
    top: list[Entry] = [{"Home": "README.md"}]
    here: list[Entry] = []
    for section, lines in _sections(index):
        here = []
        entries = here
        for line in lines:
            if found := re.fullmatch(r"\*\*(.+)\*\*", line):
                entries = []
                here.append({found[1]: entries})
            entries += [{_title(text): address} for text, address in _links(line)]
        here += generated.get(section, [])
        if here:
            top.append({section: here})
    return top


def _sections(index: str) -> list[tuple[str, list[str]]]:
    parts = re.split(r"^## (.+)$", index, flags=re.MULTILINE)[1:]
    return [(title, text.splitlines()) for title, text in zip(parts[::2], parts[1::2], strict=True)]


def _links(line: str) -> list[tuple[str, str]]:
    """Return the links of a list item or a row of a table to whole pages."""
    if not line.startswith(("- ", "| ", "  ")):
        return []
    return re.findall(r"\[([^\]]+)\]\(((?!\.\./|[a-z]+:)[^)#]+\.md)\)", line)


def _title(text: str) -> str:
    return text[:1].upper() + text[1:]
