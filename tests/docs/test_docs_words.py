"""What users read has no requirement ids, no names of internal documents, and no words that hide what they mean."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md")), *ROOT.glob("docs/**/*.json")]
# They are about the documents themselves.
ABOUT_THE_DOCUMENTS = {
    ROOT / "docs" / "reference" / "documents.md",
    ROOT / "docs" / "explanation" / "the-five-documents.md",
    *ROOT.glob("docs/explanation/documents/*.md"),
}
INTERNAL = re.compile(r"(?i:\bdocument 00\d)|\b[NS][0-4]-\d+\b|\(R\d+\)|\bF[CDIMRU]\d+\b")
# In our own docstrings a letter with a number is always an id: the rules R1-R99, the cases C1-C99 and their families.
ID = re.compile(rf"{INTERNAL.pattern}|\b[A-Z]\d\d\b|\([A-Z]\d\)|\b(?:DESIGN|STYLE|HOUSE|PLAN)\b")
# What users import, and the modules that the pages of docs/ name.
PACKAGES = [
    "holdfast",
    *sorted(f"holdfast.{path.stem}" for path in (ROOT / "src" / "holdfast").glob("*.py") if path.stem[0] != "_"),
    "holdfast.classify",
    "holdfast.compat.tenacity",
    "holdfast.config",
    "holdfast.events",
    "holdfast.extensions",
    "holdfast.faults",
    "holdfast.manager",
    "holdfast.policies",
    "holdfast.policies.alerts",
    "holdfast.policies.budget",
    "holdfast.policies.bulkhead",
    "holdfast.policies.circuit",
    "holdfast.policies.hedge",
    "holdfast.policies.quota",
    "holdfast.policies.rate_limit",
    "holdfast.providers",
    "holdfast.sessions",
    "holdfast.sessions.admin",
    "holdfast.sessions.questions",
    "holdfast.sessions.retention",
    "holdfast.sessions.transfer",
    "holdfast.sinks",
    "holdfast.stores",
    "holdfast.testing",
    "holdfast.testing.postgres",
    "holdfast.testing.provider",
    "holdfast.testing.proxy",
    "holdfast.testing.stores",
    "holdfast.transcript",
    "holdfast.views",
]
VAGUE = re.compile(r"\b(told|ditto)\b", re.IGNORECASE)


def _outside_code(page: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_it_names_nothing_that_only_we_know(page: Path):
    text = page.read_text(encoding="utf-8")
    if page not in ABOUT_THE_DOCUMENTS:
        assert [found[0] for found in INTERNAL.finditer(text)] == []
    assert [found[0] for found in VAGUE.finditer(_outside_code(text))] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "src" / "holdfast" / "faults" / "pages").glob("*.md")), ids=lambda path: path.stem
)
def test_the_page_of_a_code_names_nothing_that_only_we_know(page: Path):
    assert INTERNAL.findall(page.read_text(encoding="utf-8")) == []


def _public(package: str) -> Iterator[tuple[str, Any]]:
    """Yield a package, what it exports, and the public methods and properties of these."""
    module = importlib.import_module(package)
    yield package, module
    for name in getattr(module, "__all__", ()):
        exported = getattr(module, name)
        yield f"{package}.{name}", exported
        if isinstance(exported, ModuleType):
            yield from _public(exported.__name__)
        elif inspect.isclass(exported):
            # Without inherited members: those of `int` or `Exception` are not our words.
            members = ((own, member) for own, member in vars(exported).items() if not own.startswith("_"))
            yield from ((f"{package}.{name}.{own}", member) for own, member in members)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_docstring_of_a_public_name_names_nothing_that_only_we_know(package: str):
    found = {
        name: words
        for name, thing in _public(package)
        if (words := ID.findall(inspect.getdoc(thing) or "") + VAGUE.findall(inspect.getdoc(thing) or ""))
    }
    assert found == {}
