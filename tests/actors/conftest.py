"""Every test of this room is checked for what it leaves behind: tasks, processes and open files."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from pathlib import Path

import pytest

FILES, THREADS = Path("/proc/self/fd"), Path("/proc/self/task")


def open_files() -> int:
    return len(list(FILES.iterdir())) if FILES.is_dir() else 0


def processes() -> set[str]:
    found: set[str] = set()
    for thread in THREADS.iterdir() if THREADS.is_dir() else ():
        with suppress(OSError):  # the thread has ended meanwhile
            found.update((thread / "children").read_text().split())
    return found


def tasks() -> list[asyncio.Task[object]]:
    """Tasks of loops that do not run any more. The set has another name since Python 3.12."""
    known = getattr(asyncio.tasks, "_scheduled_tasks", None) or getattr(asyncio.tasks, "_all_tasks", ())
    return [task for task in list(known) if not task.done() and not task.get_loop().is_running()]


@pytest.fixture
def leaves_tasks():
    """For a test whose loop ends while tasks still run."""


@pytest.fixture(autouse=True)
def no_task_runs_when_the_loop_ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    # A loop cancels what still runs when it ends, and nobody would notice that it was left.
    left: list[asyncio.Task[object]] = []
    cancel_all = asyncio.runners._cancel_all_tasks

    def noting(loop: asyncio.AbstractEventLoop) -> None:
        # Python itself closes an async generator that a `break` has left, in a task that may not have begun.
        left.extend(task for task in asyncio.all_tasks(loop) if "async_generator_athrow" not in repr(task.get_coro()))
        cancel_all(loop)

    if "leaves_tasks" not in request.fixturenames:
        monkeypatch.setattr(asyncio.runners, "_cancel_all_tasks", noting)
    yield
    assert not left, f"tasks that still ran when the loop ended: {left}"


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    # A test that leaks on purpose ends its task itself, before its loop closes.
    # Tests of other rooms leave tasks of closed loops on purpose: those are no concern of this test.
    others = set(tasks())
    before, files = processes(), open_files()
    yield
    # A collection takes a tenth of a second, so it is made only if something seems to be left.
    if set(tasks()) - others or not processes() <= before or open_files() > files:
        gc.collect()
    left = set(tasks()) - others
    assert not left, f"tasks that still run: {left}"
    assert processes() <= before, f"processes that still run: {processes() - before}"
    assert open_files() <= files + 1, "files that are still open"
