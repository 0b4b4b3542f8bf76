"""Options that the tests of the manager share, and a call that fails."""

from __future__ import annotations

from holdfast import Backoff, Tries
from holdfast.manager import ExecutionOptions

__all__ = ["CLAUDE", "SECONDS", "reset_by_peer"]

CLAUDE = ExecutionOptions(provider="claude")
SECONDS = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, jitter=0))


def reset_by_peer() -> None:
    raise ConnectionResetError("gone")
