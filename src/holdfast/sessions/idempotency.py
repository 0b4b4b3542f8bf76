"""The scope a step runs in: `call_key()` inside of it is the step's own, the same after a crash."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.runtime.ambient import AMBIENT, in_force

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.budget import Budget

__all__ = ["keyed"]


class _Step:
    """An ambient scope that adds a key to the one around it."""

    __slots__ = ("_keys", "around", "over", "run")

    def __init__(self, run: str, around: Ambient | None) -> None:
        self.run = run
        self.around = around
        self.over = False
        self._keys = {run: run}

    def key_of(self, run: str) -> str:
        """Return the key of a call made inside the step: the same program makes its calls in the same order."""
        return self._keys.setdefault(run, f"{self.run}/{len(self._keys)}")

    @property
    def deadline(self) -> float | None:
        around = in_force(self.around)
        return None if around is None else around.deadline

    @property
    def budget(self) -> Budget | None:
        around = in_force(self.around)
        return None if around is None else around.budget


@contextmanager
def keyed(run: str) -> Iterator[None]:
    """Run the block under this key."""
    step = _Step(run, AMBIENT.get())
    token = AMBIENT.set(step)
    try:
        yield
    finally:
        step.over = True
        AMBIENT.reset(token)
