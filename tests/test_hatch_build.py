"""The description that a package index shows has no link that is dead there."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
RELATIVE = re.compile(r"\]\((?!https?:|mailto:|#)|src(?:set)?=\"(?!https?:)")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The build hook's names. Only a build has hatchling, so its base class is replaced by an empty one."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))


def test_links_into_the_source_tree_become_text_and_path(build: SimpleNamespace):
    assert build.for_an_index("[Tutorial](docs/tutorial.md), [costs](docs/performance.md#many).") == (
        "Tutorial (`docs/tutorial.md`), costs (`docs/performance.md`)."
    )


def test_a_picture_becomes_its_description(build: SimpleNamespace):
    picture = '<picture>\n<source srcset="docs/a.svg">\n<img alt="Calls wait." src="docs/b.svg">\n</picture>'
    assert build.for_an_index(f"Look:\n\n{picture}\n") == "Look:\n\n*Calls wait.*\n"


@pytest.mark.parametrize("text", ["[site](https://example.org/a)", "[below](#figures)", "`rows[0]`"])
def test_everything_else_stays(build: SimpleNamespace, text: str):
    assert build.for_an_index(text) == text


def test_the_readme_has_no_dead_link_left(build: SimpleNamespace):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE.search(readme)
    hook = build.ReadmeHook()
    hook.root = str(ROOT)
    metadata: dict[str, dict[str, str]] = {}
    hook.update(metadata)
    assert metadata["readme"]["content-type"] == "text/markdown"
    assert not RELATIVE.search(metadata["readme"]["text"])
