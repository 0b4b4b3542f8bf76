"""What the code inside of a block has done that must not be done twice: unsafe calls that happened, or may have.

Invariant: an unsafe step of a session and an unsafe call of a tool count, in whatever task or thread they run. A plain function that acts without either
is not seen.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Acts", "acted", "watch_acts"]


class Acts:
    """The names of the unsafe calls inside of a block, each once."""

    def __init__(self, around: Acts | None) -> None:
        self._around = around
        self.names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """An unsafe call happened, or may have: inside of this block and of those around it."""
        block: Acts | None = self
        while block is not None:
            block.names[name] = None
            block = block._around  # noqa: SLF001 - one of this class


_ACTS: ContextVar[Acts | None] = ContextVar("holdfast_acts", default=None)


@contextmanager
def watch_acts() -> Iterator[Acts]:
    """Enter a block, and count the unsafe calls inside of it."""
    acts = Acts(_ACTS.get())
    token = _ACTS.set(acts)
    try:
        yield acts
    finally:
        _ACTS.reset(token)


def acted(name: str) -> None:
    """An unsafe call of this name happened here, or may have."""
    if (acts := _ACTS.get()) is not None:
        acts.add(name)
