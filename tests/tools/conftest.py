"""After every test of tools: no process, no descriptor, no thread is left behind."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from living_processes import living

from holdfast.testing import forget_targets

_SETTLE_S = 3.0


def _descriptors() -> set[str]:
    open_files = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            open_files.add(f"{entry.name} {entry.readlink()}")
        except OSError:
            continue  # the descriptor of the listing itself
    return open_files


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """A word that every process started in this test has in its environment."""
    word = f"leak-check-{os.urandom(6).hex()}"
    monkeypatch.setenv("HOLDFAST_LEAK_CHECK", word)
    return word


@pytest.fixture(autouse=True)
def _no_leaks(token: str):
    forget_targets()
    before, threads = _descriptors(), threading.active_count()
    yield
    until = time.monotonic() + _SETTLE_S
    while (left := living(token)) and time.monotonic() < until:
        time.sleep(0.02)  # a killed process needs a moment; the bound makes a leak fail
    assert left == []
    while _descriptors() - before and time.monotonic() < until:
        time.sleep(0.02)
    assert _descriptors() - before == set()
    while threading.active_count() > threads and time.monotonic() < until:
        time.sleep(0.02)
    assert threading.active_count() <= threads
