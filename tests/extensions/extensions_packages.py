"""Small packages that are really installed: a module and a `.dist-info` with entry points, in a folder on the path."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

__all__ = ["Shelf", "rule_source"]


class Shelf:
    """A folder on the path that packages are installed into."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.syspath_prepend(folder)
        self._monkeypatch = monkeypatch

    def install(self, name: str, source: str, *, group: str = "holdfast.rules", value: str = "Extension") -> None:
        """Install package `name`, whose entry point names `value` in it (empty: the module itself)."""
        module = f"shelf_{name}"
        self._monkeypatch.delitem(sys.modules, module, raising=False)
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = self.folder / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        named = f"{module}:{value}" if value else module
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {named}\n", encoding="utf-8")


def rule_source(
    name: str, *, requires: tuple[str, ...] = (), contract: int = 1, start: str = "return lambda evidence: None"
) -> str:
    """Return the source of an extension that writes its starts and stops into `sys.shelf_diary`."""
    return f"""
import sys

diary = sys.__dict__.setdefault("shelf_diary", [])

class Extension:
    id = {name!r}
    contract = {contract}
    requires = {requires!r}

    def start(self, runtime):
        diary.append("start {name}")
        {start}

    def stop(self):
        diary.append("stop {name}")
"""
