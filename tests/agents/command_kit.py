"""What the tests of command-line agents share: a run that leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Backoff, Policy
from holdfast.testing import forget_targets

# Without site packages it starts in a third of the time.
PYTHON = [sys.executable, "-S", "-E"]
NOW = Policy(attempts=2, backoff=Backoff(initial=0, jitter=0.0), timeout=None, patience=None)


def living(token: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


@contextmanager
def no_process_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget_targets()
    token = f"leak-check-{os.urandom(6).hex()}"
    monkeypatch.setenv("HOLDFAST_LEAK_CHECK", token)
    yield
    # The guard of this process carries no token of a single test, because it was started before or has its own environment.
    left = [found for found in living(token) if "read -r _" not in found]
    assert left == []


def finish(coroutine):
    """Run in real time, and fail if a task is left behind."""

    async def main():
        value = await asyncio.wait_for(coroutine, 20)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return value

    return asyncio.run(main())
