"""What users read has no requirement ids, no names of internal documents, and no words that hide what they mean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md")), *ROOT.glob("docs/**/*.json")]
INTERNAL = re.compile(r"(?i:\bdocument 00\d)|\bS[0-4]-\d+\b|\(R\d+\)|\bF[CDIMRU]\d+\b")
VAGUE = re.compile(r"\b(told|ditto)\b", re.IGNORECASE)


def _outside_code(page: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_it_names_nothing_that_only_we_know(page: Path):
    text = page.read_text(encoding="utf-8")
    assert [found[0] for found in INTERNAL.finditer(text)] == []
    assert [found[0] for found in VAGUE.finditer(_outside_code(text))] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "src" / "holdfast" / "faults" / "pages").glob("*.md")), ids=lambda path: path.stem
)
def test_the_page_of_a_code_names_nothing_that_only_we_know(page: Path):
    assert INTERNAL.findall(page.read_text(encoding="utf-8")) == []
