"""The docs site: its navigation, the reference that is written from the code, and what it makes of a page."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from scripts.docs_site import catalog
from scripts.docs_site.__main__ import HERE, configuration, generate, localise, menus, offer_text
from scripts.docs_site.api import MODULES, Api
from scripts.docs_site.diagrams import draw
from scripts.docs_site.docstring import first_sentence, render
from scripts.docs_site.navigation import navigation
from scripts.docs_site.pages import page

import holdfast
from holdfast.faults import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Rooms that nobody imports from: their names reach users through other modules.
INTERNAL = {"cli", "compat", "extras", "integrations", "once", "options", "wire"}


@pytest.fixture(scope="module")
def api() -> Api:
    return Api()


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


def test_every_public_name_of_every_module_is_in_the_reference(api: Api):
    reference = dict(api.pages())
    for module in _modules():
        offered = importlib.import_module(module)
        names = [name for name in offered.__all__ if name != "__version__"]
        for name in (name for name in names if not isinstance(getattr(offered, name), ModuleType)):
            address, _, anchor = api.names[f"{module}.{name}"].partition("#")
            assert f"{{ #{anchor} }}" in reference[address]
    silent = [name for name in holdfast.__all__ if name != "__version__" and not api._thing("holdfast", name).docstring]
    assert silent == []


def _imports() -> Iterator[tuple[str, str, str]]:
    """Yield page, module and name of everything that pages and examples import from us."""
    for path in (ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        blocks = (
            [text]
            if path.suffix == ".py"
            else re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        )
        for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "holdfast":
                yield from ((path.name, node.module or "", alias.name) for alias in node.names)


def test_every_name_that_a_page_or_an_example_imports_is_in_the_reference(api: Api):
    known = api.names.keys() | set(_modules())
    missing = {f"{module}.{name}": page for page, module, name in _imports() if f"{module}.{name}" not in known}
    assert missing == {}, "list their modules in scripts/docs_site/api.py"


# They import a library of their own, or give a document's names, so the package around them cannot offer their names.
ALONE = {
    *(f"holdfast.providers.{name}" for name in ("anthropic", "openai", "xai")),
    *(f"holdfast.documents.{name}" for name in ("bridge", "spec016", "stud", "task", "actor")),
}


def test_pages_and_examples_import_from_packages_and_not_from_modules_inside_them():
    inside = {}
    for where, module, name in _imports():
        depth = module.count(".")
        is_package = (ROOT / "src" / module.replace(".", "/") / "__init__.py").exists()
        if depth > 2 or (depth == 2 and not is_package and module not in ALONE):
            inside[f"{module}.{name}"] = where
    assert inside == {}, "offer the name in the __init__ of its package, lazily, and import it from there"


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


def test_every_code_command_setting_event_and_metric_is_in_the_reference():
    codes = dict(catalog.code_pages())
    assert {f"reference/errors/{code}.md" for code in CATALOG} < codes.keys()
    assert all(f"[`{code}`](errors/{code}.md)" in codes["reference/error-codes.md"] for code in CATALOG)
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


def test_codes_and_names_become_links_outside_of_code_headings_and_links():
    known = {
        "recover": "reference/api/holdfast.md#holdfast.recover",
        "Policy": "reference/api/holdfast.md#holdfast.Policy",
        "SYS_TIMEOUT": "reference/errors/SYS_TIMEOUT.md",
    }
    text = (
        "# `recover`\n\n`recover` and `recover`, `SYS_TIMEOUT`, [`Policy`](p.md), `unknown`.\n\n```python no-run\n`recover`\n```\n"
        "[log](../../CHANGELOG.md#unreleased) [why](../../src/holdfast/faults/pages/SYS_TIMEOUT.md)\n"
    )
    assert page("docs/how-to/x.md", text, known) == (
        "# `recover`\n\n[`recover`](../reference/api/holdfast.md#holdfast.recover) and `recover`, "
        "[`SYS_TIMEOUT`](../reference/errors/SYS_TIMEOUT.md), [`Policy`](p.md), `unknown`.\n\n```python\n`recover`\n```\n"
        "[log](../changelog.md#unreleased) [why](../reference/errors/SYS_TIMEOUT.md)\n"
    )


def test_a_bar_inside_code_in_a_table_has_no_backslash_on_the_site():
    assert page("docs/x.md", "| `a\\|b` | c \\| d |\n\n`a\\|b`", {}) == "| `a|b` | c \\| d |\n\n`a\\|b`"


def test_how_to_build_the_site_is_not_on_the_site():
    text = "a\n\n<!-- repository only -->\n`make docs`\nbuilds it.\n<!-- end -->\n\nb\n"
    assert page("docs/README.md", text, {}) == "a\n\nb\n"


def test_a_default_that_is_a_constant_is_shown_as_its_value(api: Api):
    pages = dict(api.pages())
    assert "`patience`<br>`float \\| None` | `120.0` |" in pages["reference/api/holdfast.md"]
    assert "lease: float = 30.0" in pages["reference/api/holdfast.md"]


def _section(page: str, anchor: str) -> str:
    """Return what a page says of one name, up to the next heading."""
    return page.partition(f"{{ #{anchor} }}")[2].partition("\n#")[0]


def test_an_overloaded_function_shows_its_overloads_and_not_its_untyped_implementation(api: Api):
    page = dict(api.pages())["reference/api/holdfast.md"]
    recover = _section(page, "holdfast.recover")
    assert "recover(target: Callable[P, Coroutine[Any, Any, T]]) -> AsyncRecovered[P, T]\n" in recover
    assert "\n) -> Recovery\n" in recover
    assert "_Untyped" not in page
    step = _section(page, "holdfast.Session.step")
    assert "async step(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T\n" in step
    for name in ("Session.step", "Session.map", "Runtime.on"):
        assert "-> Any" not in _section(page, f"holdfast.{name}"), name
    start = _section(page, "holdfast.Supervisor.start")
    assert "-> Ref[A]" in start
    assert start.count("async start(") > 3


def test_what_recover_returns_is_described_with_its_methods(api: Api):
    page = dict(api.pages())["reference/api/holdfast.md"]
    assert "It returns [`AsyncRecovered`](holdfast.md#holdfast.runtime.decorated.AsyncRecovered) or " in page
    for name in ("outcome", "fallback", "cached", "degraded", "notify", "repair"):
        for kind in ("AsyncRecovered", "Recovered"):
            assert "```python" in _section(page, f"holdfast.runtime.decorated.{kind}.{name}")
    for name in ("call", "outcome", "stream"):
        assert f"{name}(" in _section(page, f"holdfast.runtime.recover.Recovery.{name}")
    assert "partial: Partial" in _section(page, "holdfast.runtime.streams.stream.Stream.partial")


def test_a_type_that_is_named_only_in_signatures_is_described_on_their_page(api: Api):
    pages = dict(api.pages())
    merge = _section(pages["reference/api/holdfast.tasks.md"], "holdfast.tasks.parts.decomposition.Merge")
    assert "Merge = Literal['concatenate', 'collect'] | Callable[[list[TaskResult]], Any] | Task" in merge
    assert "Performer = " in _section(pages["reference/api/holdfast.md"], "holdfast.tasks.performer.Performer")
    options = _section(pages["reference/api/holdfast.md"], "holdfast.actors.child.ChildOptions")
    assert "| `restart`" in options


def test_a_field_shows_the_values_of_its_own_type_and_not_a_public_type_of_the_same_name(api: Api):
    text = dict(api.pages())["reference/api/holdfast.sessions.md"]
    shown = page("docs/reference/api/holdfast.sessions.md", text, {"Outcome": "x.md#O", "Kind": "x.md#K"})
    assert "| `outcome`<br>`Literal['accepted', 'rejected', 'timeout', 'dismissed']` |" in shown
    assert "| `kind`<br>[`Kind`](holdfast.sessions.questions.md#holdfast.sessions.questions.Kind) |" in shown


def test_a_link_to_a_file_that_the_site_does_not_have_fails_the_build():
    with pytest.raises(ValueError, match=r"scripts/house\.py"):
        page("docs/how-to/x.md", "[rules](../../scripts/house.py)", {})


def test_a_sequence_is_drawn_with_everybody_and_everything_that_is_said():
    source = "sequenceDiagram\n  participant a as A & Co\n  participant b\n  a->>b: go\n  Note over b: busy\n  b--xa: 5 < 6\n"
    drawn = draw(source + "  alt well\n    b->>b: wait\n  end\n")
    texts = re.findall(r"<text[^>]*>([^<]+)<", drawn)
    assert texts == ["A &amp; Co", "b", "go", "busy", "5 &lt; 6", "well", "wait"]
    assert 'aria-label="go; busy; 5 &lt; 6; well; wait"' in drawn


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (
            "stateDiagram-v2\n  [*] --> closed\n  closed --> half_open: it waits\n  half_open: one call\n",
            [
                "| from | when | to |",
                "| start |  | **closed** |",
                "| **closed** | it waits | **half-open** (one call) |",
            ],
        ),
        (
            'flowchart LR\n  a[First] -- fails --> b --> c["Last"]\n  b -->|ends| a\n',
            ["| from | by | to |", "| First | fails | b |", "| b |  | Last |", "| b | ends | First |"],
        ),
        (
            'xychart-beta\n  title "t"\n  x-axis "retry" [1, 2]\n  y-axis "s" 0 --> 3\n  line "steps" [2, 3]\n',
            ["| retry | steps |", "| 1 | 2 |", "| 2 | 3 |"],
        ),
    ],
)
def test_states_flows_and_charts_become_tables(source, rows):
    assert [row for row in draw(source).splitlines() if "---" not in row] == rows


def test_a_diagram_that_cannot_be_drawn_fails_the_build():
    with pytest.raises(ValueError, match="pie"):
        draw('pie\n  "a" : 1\n')


def _write(folder: Path, index: str) -> str:
    """Write a site of two pages, build it with our settings, and return the complaints."""
    (folder / "pages" / "deep").mkdir(parents=True)
    (folder / "pages" / "README.md").write_text(index, encoding="utf-8")
    (folder / "pages" / "deep" / "page.md").write_text("# The page\n\nAbout barnacles.\n", encoding="utf-8")
    (folder / "pages" / "site.css").write_bytes((HERE / "site.css").read_bytes())
    return generate(folder, configuration([{"Home": "README.md"}, {"Deep": [{"The page": "deep/page.md"}]}]))


def test_a_page_from_a_folder_loads_nothing_from_elsewhere_and_finds_words(tmp_path: Path):
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is missing: the test of the docs site in a browser is SKIPPED")
    assert _write(tmp_path, "# Home\n\nSee [the page](deep/page.md).\n") == ""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        tab = browser.new_page()
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{(tmp_path / 'site').as_uri()}/deep/page.html")
        tab.keyboard.press("Control+k")
        box = tab.locator("input:focus")
        box.press_sequentially("barnacles")
        tab.get_by_text("1 result").first.wait_for(timeout=15_000)
        assert box.input_value() == "barnacles"
        browser.close()
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []


def test_a_dead_link_and_a_dead_anchor_fail_the_build(tmp_path: Path):
    complaint = _write(tmp_path, "# Home\n\n[a](gone.md) [b](deep/page.md#gone)\n")
    assert "page does not exist" in complaint
    assert "anchor does not exist" in complaint


def test_a_page_that_loads_from_elsewhere_fails_the_build(tmp_path: Path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "page.html").write_text('<script src="https://cdn.example/x.js"></script>', encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.html loads from elsewhere"):
        localise(tmp_path)


def test_agents_get_the_pages_as_text(tmp_path: Path):
    pages, site = tmp_path / "pages", tmp_path / "site"
    for folder in (pages / "deep", site / "deep"):
        folder.mkdir(parents=True)
    (pages / "deep" / "page.md").write_text("# `x`: the page\n\nAbout barnacles.\n", encoding="utf-8")
    offer_text(pages, site)
    assert "- [x: the page](deep/page.md)" in (site / "llms.txt").read_text(encoding="utf-8")
    assert (site / "deep" / "page.md").read_text(encoding="utf-8").endswith("About barnacles.\n")
