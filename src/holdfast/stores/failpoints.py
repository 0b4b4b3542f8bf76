"""Failpoints: named points of a write, so that tests can kill the process at each of them.

The points of the SQLite store, in order: `opening`, `connected`, `migrating` (each statement), `migrated`,
`opened`; for a batch of writes `taken`, `begun`, the first words of each statement (`INSERT INTO entry`), `written`,
`committed`; if the WAL is moved, `moving`, `moved`, `emptied`, then `settling`, `settled`; `closing`, `ended`, `closed`.
A call of a tool: `calling NAME`, `called NAME`.

Invariant: outside of tests no hook is set, and reaching a point does nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Failpoints:
    """Calls the hook of a test, if there is one, at each point."""

    def __init__(self) -> None:
        # A program under `holdfast crashtest` has this module from its start on.
        crashtest = sys.modules.get("_holdfast_crashtest")
        self.hook: Callable[[str], None] | None = None if crashtest is None else crashtest.failpoint

    def reach(self, name: str) -> None:
        if self.hook is not None:
            self.hook(name)


FAILPOINTS = Failpoints()
