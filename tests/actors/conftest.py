"""Every test of this room is checked for what it leaves behind: tasks, processes and open files."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0


def children() -> set[str]:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return set()
    return {pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()}


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest):
    # A test that leaks on purpose ends its task itself, before its loop closes.
    before, files = children(), open_files()
    yield
    gc.collect()
    left = (
        [task for task in asyncio.tasks._all_tasks if not task.done()] if hasattr(asyncio.tasks, "_all_tasks") else []
    )
    left = [task for task in left if not task.get_loop().is_running()]
    assert not left, f"tasks that still run: {left}"
    assert children() <= before, f"processes that still run: {children() - before}"
    assert open_files() <= files + 1, "files that are still open"
