"""The caller's own signal to stop: looked at before each attempt, and all through the waits between them.

Invariant: what an abort ends is cancelled. It is no failure, no timeout, and no circuit counts it (N1-9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Abort", "parts_of"]

LOOK_EVERY_S = 0.05
"""How soon a wait notices: signals of any kind, of threads as of event loops, can be asked, few can be awaited."""


class Abort(Protocol):
    """A signal that somebody else sets: `threading.Event` and `asyncio.Event` are such signals."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


def parts_of(abort: Abort, seconds: float) -> Iterator[float]:
    """Cut a wait into parts short enough to notice the signal; there are no more once it is set."""
    left = seconds
    while left > 0 and not abort.is_set():
        yield min(left, LOOK_EVERY_S)
        left -= LOOK_EVERY_S
