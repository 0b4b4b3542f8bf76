"""The code that a newcomer copies first type-checks as it stands: README, tutorial and examples, by mypy in strict mode."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from test_docs_snippets import ROOT, blocks_of

if TYPE_CHECKING:
    from pathlib import Path


def module_of(page: Path, folder: Path) -> Path:
    """Write the Python of a page to a module, each block on the lines that it has in the page."""
    lines: list[str] = []
    for block in blocks_of(page):
        if block.info == "python":
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    module = folder / f"{page.stem.lower()}_page.py"
    module.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return module


def test_FU3_readme_tutorial_and_examples_type_check(tmp_path: Path) -> None:
    pages = [module_of(page, tmp_path) for page in (ROOT / "README.md", ROOT / "docs" / "tutorial.md")]
    # The cache is that of `make check`, which has just read the same sources.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, pages), "examples"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0
