"""The docs site: its navigation, the reference that is written from the code, and what it makes of a page."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts.docs_site import catalog
from scripts.docs_site.__main__ import configuration, known_names, menus
from scripts.docs_site.api import MODULES, Api
from scripts.docs_site.docstring import first_sentence, render
from scripts.docs_site.navigation import navigation
from scripts.docs_site.pages import page

import holdfast
from holdfast.faults import CATALOG

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Rooms that nobody imports from: their names reach users through other modules.
INTERNAL = {"cli", "compat", "extras", "integrations", "options", "wire"}


@pytest.fixture(scope="module")
def api() -> Api:
    return Api()


@pytest.fixture(scope="module")
def reference(api: Api) -> dict[str, str]:
    return dict(api.pages())


def _addresses(entries: list[Any]) -> list[str]:
    found = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found += _addresses(value) if isinstance(value, list) else [value]
    return found


def test_every_page_is_in_the_navigation_once():
    found = Counter(_addresses(navigation((DOCS / "README.md").read_text(encoding="utf-8"), {})))
    assert found == Counter(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_every_section_that_generated_pages_belong_to_is_in_the_index():
    sections = re.findall(r"^## (.+)$", (DOCS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(menus()) <= set(sections)
    assert "nav = [{" in configuration()


def test_a_heading_is_a_section_a_bold_line_a_group_and_a_link_an_entry():
    index = "# All\n\n## Use\n\n- [first](a.md), [other](b/c.md#part)\n\n**More**\n\n- [web](https://x.y/z.md)\n  [last](b/c.md)\n"
    assert navigation(index, {"Use": [{"Made": "made.md"}]}) == [
        {"Home": "README.md"},
        {"Use": [{"First": "a.md"}, {"More": [{"Last": "b/c.md"}]}, {"Made": "made.md"}]},
    ]


@pytest.mark.parametrize("module", [module for modules in MODULES.values() for module in modules])
def test_every_public_name_of_a_module_is_in_the_reference(module: str, api: Api, reference: dict[str, str]):
    offered = importlib.import_module(module)
    for name in offered.__all__:
        if name != "__version__" and not isinstance(getattr(offered, name), ModuleType):
            address, _, anchor = api.names[f"{module}.{name}"].partition("#")
            assert f"{{ #{anchor} }}" in reference[address]


def test_every_name_that_a_page_or_an_example_imports_is_in_the_reference(api: Api):
    missing = {}
    for path in (ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        blocks = (
            [text]
            if path.suffix == ".py"
            else re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        )
        for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "holdfast":
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                missing |= dict.fromkeys(names - api.names.keys() - set(_modules()), path.name)
    assert missing == {}


def _modules() -> list[str]:
    return [module for modules in MODULES.values() for module in modules]


def test_every_room_that_users_import_from_is_in_the_reference():
    rooms = {
        path.stem
        for path in (ROOT / "src" / "holdfast").iterdir()
        if not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    listed = {module.split(".")[1] for module in _modules() if module != "holdfast"}
    assert rooms - listed == INTERNAL - listed


def test_every_function_and_class_in_the_reference_says_what_it_is(api: Api):
    silent = [name for name in holdfast.__all__ if name != "__version__" and not api._thing("holdfast", name).docstring]
    assert silent == []


def test_every_code_command_setting_event_and_metric_is_in_the_reference():
    codes = dict(catalog.code_pages())
    assert {f"reference/errors/{code}.md" for code in CATALOG} < codes.keys()
    assert all(f"[`{code}`]({code}.md)" in codes["reference/errors/README.md"] for code in CATALOG)
    assert "## `holdfast sessions show`" in catalog.commands()[1]
    assert "| `--outage`" in catalog.commands()[1]
    assert "| `max_retry_after` | number | `900.0` |" in catalog.settings()[1]
    assert "| `circuit-state-change` |" in catalog.events()[1]
    assert "| `holdfast_circuit_state` | gauge | `circuit` |" in catalog.metrics()[1]


def test_a_docstring_becomes_markdown():
    doc = "Do it.\n\nseconds: how long\n    it may take.\nname: whose.\n\n    with it(1):\n\n        go()\n\nRaises: nothing.\n\nRead on."
    assert render(doc, {"seconds", "name"}) == (
        "Do it.\n\n- `seconds`: how long it may take.\n- `name`: whose.\n\n"
        "```python\nwith it(1):\n\n    go()\n```\n\nRaises: nothing.\n\nRead on."
    )


def test_an_example_that_lost_its_indentation_is_still_an_example():
    assert render('End it.\n\nself.stop("done")') == 'End it.\n\n```python\nself.stop("done")\n```'


def test_the_first_sentence_of_a_docstring_is_its_summary():
    assert first_sentence("Wait for\n`x.y` at most. Then go.\n\nMore.") == "Wait for `x.y` at most."


def test_codes_and_names_become_links_outside_of_code_headings_and_links(api: Api):
    known = known_names(api)
    text = (
        "# `recover`\n\n`recover` and `recover`, `SYS_TIMEOUT`, [`Policy`](p.md), `unknown`.\n\n```python no-run\n`recover`\n```\n"
        "[log](../../CHANGELOG.md#unreleased) [why](../../src/holdfast/faults/pages/SYS_TIMEOUT.md)\n"
    )
    assert page("docs/how-to/x.md", text, known) == (
        "# `recover`\n\n[`recover`](../reference/api/holdfast.md#holdfast.recover) and `recover`, "
        "[`SYS_TIMEOUT`](../reference/errors/SYS_TIMEOUT.md), [`Policy`](p.md), `unknown`.\n\n```python\n`recover`\n```\n"
        "[log](../changelog.md#unreleased) [why](../reference/errors/SYS_TIMEOUT.md)\n"
    )


def test_a_link_to_a_file_that_the_site_does_not_have_fails_the_build():
    with pytest.raises(ValueError, match=r"scripts/house\.py"):
        page("docs/how-to/x.md", "[rules](../../scripts/house.py)", {})
