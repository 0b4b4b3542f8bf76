"""After every test of tools: no process, no descriptor, no thread is left behind."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

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


def living(token: str) -> list[str]:
    """The command lines of living processes that inherited this token, and of zombies that are our children."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if (state == "Z" and int(parent) == os.getpid()) or token.encode() in (entry / "environ").read_bytes():
                found.append(f"{entry.name} {state} {(entry / 'cmdline').read_bytes()!r}")
        except OSError:
            continue
    return found


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
