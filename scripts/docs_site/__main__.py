"""Builds the docs site into `build/docs/site`. Any warning fails the build: a page, a link or an anchor that is not there."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.docs_site import catalog
from scripts.docs_site.api import MODULES, Api, page_of
from scripts.docs_site.navigation import Entry, navigation
from scripts.docs_site.pages import DOCS, ROOT, address_of, page

from holdfast import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
BUILD = ROOT / "build" / "docs"
EXAMPLES = ROOT / "examples"
_SHIM = "https://unpkg.com/iframe-worker/shim"
_LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")


def known_names(api: Api) -> dict[str, str]:
    """Return the address of each code, of each public name in full, and of the names of `holdfast` alone."""
    known = dict(api.names)
    known |= {name.partition(".")[2]: address for name, address in api.names.items() if name.count(".") == 1}
    return known | {code: f"reference/errors/{code}.md" for code in catalog.CATALOG}


def generated(api: Api) -> Iterator[tuple[str, str]]:
    """Yield the place in `docs/` and the text of each page that is written from the code."""
    pages = (catalog.commands(), catalog.settings(), catalog.events(), catalog.metrics())
    for address, text in (*api.pages(), *catalog.code_pages(), *pages):
        yield f"docs/{address}", text


def written() -> Iterator[tuple[str, str]]:
    """Yield the place in the repository and the text of each page that people write, and of each example."""
    for path in (ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *EXAMPLES.rglob("*.md")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for path in EXAMPLES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(ROOT).as_posix(), f"# `{path.name}`\n\n```python\n{text}```\n"
    for folder in (path for path in EXAMPLES.iterdir() if path.is_dir() and any(path.glob("*.py"))):
        names = "\n".join(f"- [`{path.name}`]({path.name})" for path in sorted(folder.glob("*.py")))
        yield f"examples/{folder.name}/README.md", f"# Examples: {folder.name}\n\n{names}\n"


def menus() -> dict[str, list[Entry]]:
    """Return what the generated pages add to the sections of `docs/README.md`."""
    modules: list[Entry] = [{group: [{name: page_of(name)} for name in names]} for group, names in MODULES.items()]
    written: list[Entry] = [
        {"Public names": ["reference/api/README.md", *modules]},
        {"Error codes": "reference/error-codes.md"},
        {"Commands and their options": "reference/commands.md"},
        {"Settings, one by one": "reference/settings.md"},
        {"Events, one by one": "reference/event-types.md"},
        {"Metrics and span attributes": "reference/metrics.md"},
    ]
    return {
        "Start": [{"Examples": "examples.md"}],
        "Reference": [{"Written from the code": written}],
        "Background": [{"Changelog": "changelog.md"}],
    }


def stage(source: Path) -> int:
    """Write every page of the site, as Markdown, and return how many there are."""
    api = Api()
    known = known_names(api)
    pages = dict(written()) | dict(generated(api))
    for path, text in pages.items():
        target = source / address_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(path, text, known), encoding="utf-8")
    for path in (*DOCS.rglob("*.json"), *DOCS.rglob("*.toml"), *DOCS.rglob("*.svg")):
        target = source / path.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(HERE / "site.css", source / "site.css")
    return len(pages)


def configuration(menu: list[Entry] | None = None) -> str:
    """Return the settings of the generator, with the navigation: by default the one of `docs/README.md`."""
    menu = menu or navigation((DOCS / "README.md").read_text(encoding="utf-8"), menus())
    settings = (HERE / "zensical.toml").read_text(encoding="utf-8")
    return settings.replace("nav = []", f"nav = {_inline(menu)}").replace("VERSION", __version__)


def _inline(value: Any) -> str:
    """Return a value as TOML has it in one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_inline(key)} = {_inline(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(_inline(inner) for inner in value)}]"
    return json.dumps(value, ensure_ascii=False)


def localise(site: Path) -> None:
    """Have the pages load our own script in place of the one that the theme loads from elsewhere.

    Raises `ValueError` for a page that still loads something from elsewhere.
    """
    shutil.copy(HERE / "worker.js", site / "assets" / "worker.js")
    for path in site.rglob("*.html"):
        up = "../" * (len(path.relative_to(site).parts) - 1)
        text = path.read_text(encoding="utf-8").replace(_SHIM, f"{up}assets/worker.js")
        if found := _LOADED.search(text):
            message = f"{path.relative_to(site)} loads from elsewhere: {found[0]}"
            raise ValueError(message)
        path.write_text(text, encoding="utf-8")


def offer_text(pages: Path, site: Path) -> None:
    """Put the Markdown of each page beside it, and a list of all pages into `llms.txt`: agents read these."""
    lines = ["# Holdfast", "", "> Error handling and recovery for AI agents. Each page is also there as Markdown.", ""]
    for path in sorted(pages.rglob("*.md")):
        address = path.relative_to(pages).as_posix()
        shutil.copy(path, site / address)
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")
        lines.append(f"- [{title}]({address})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def generate(folder: Path, settings: str) -> str:
    """Build `folder/site` from `folder/pages`. Return what the generator complains about, or an empty text."""
    (folder / "zensical.toml").write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if made.returncode:
        return made.stdout + made.stderr.partition("Traceback")[0]
    localise(folder / "site")
    return ""


def build() -> int:
    """Build the site, print what it took, and return an exit code."""
    start = time.perf_counter()
    gc.disable()  # a quarter of the time it takes to read the source; the process ends soon
    shutil.rmtree(BUILD, ignore_errors=True)
    count = stage(BUILD / "pages")
    if complaint := generate(BUILD, configuration()):
        print(complaint, file=sys.stderr)
        return 1
    site = BUILD / "site"
    offer_text(BUILD / "pages", site)
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    took = time.perf_counter() - start
    print(f"{site.relative_to(ROOT)}: {count} pages, {size / 1e6:.1f} MB, {took:.1f} s. Open index.html in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(build())
