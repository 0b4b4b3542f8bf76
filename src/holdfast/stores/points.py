"""Named points on the way of a write, so that tests can kill the process at each of them.

Invariant: outside of tests nothing is set and reaching a point does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["POINTS", "Points"]


class Points:
    """What happens when a point is reached."""

    def __init__(self) -> None:
        self.hook: Callable[[str], None] | None = None

    def reach(self, name: str) -> None:
        if self.hook is not None:
            self.hook(name)


POINTS = Points()
