"""The state of the program under test: a fresh copy of its folder for each trial."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BYTES = 256 * 1024 * 1024
_LEFT_OUT = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "venv",
        "env",
        "node_modules",
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".tox",
        ".nox",
        ".hypothesis",
    }
)


def copy_state(folder: Path, to: Path) -> None:
    """Copy a folder without environments, caches and version control. Links are copied as links."""
    shutil.copytree(folder, to, symlinks=True, ignore=_ignored, ignore_dangling_symlinks=True)


def _ignored(_folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in _LEFT_OUT or name.startswith(".venv")}


def check_size(folder: Path) -> None:
    """Raise `InvalidError` if a copy of the folder for each kill would be too large, or if there is no such folder."""
    if not folder.is_dir():
        raise InvalidError.saying("crashtest.folder", "a folder with the program's state", f"{folder}, which is none")
    total = 0
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _ignored(root, [name])]
        total += sum(os.lstat(os.path.join(root, name)).st_size for name in files)  # noqa: PTH118 - many files
        if total > MOST_BYTES:
            raise InvalidError.saying(
                "crashtest.folder",
                f"at most {MOST_BYTES // 1_048_576} MB, because each kill gets a copy; name the folder of the program's state",
                f"more in {folder}",
            )


def absolute_command(command: Sequence[str], folder: Path) -> list[str]:
    """Return the command as it works in a copy of the folder: what is not copied is named by its absolute path."""
    found = list(command)
    for number, word in enumerate(found):
        path = Path(word)
        # `.venv/bin/python` is not copied. The path of an interpreter is not resolved: it finds its packages by it.
        is_program = number == 0 and os.sep in word
        outside = word.startswith("..") and (folder / path).exists()
        if not path.is_absolute() and (is_program or outside):
            found[number] = os.path.normpath(folder / path)
    return found
