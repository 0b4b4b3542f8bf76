"""Operations under way, by run, for sinks that must remember one until it ends.

Invariant: never more than `most` are kept; an operation whose end is never told goes when it is the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MOST_UNDER_WAY", "Tracker"]

MOST_UNDER_WAY = 10_000
"""More at once are taken for leaks."""

T = TypeVar("T")


class Tracker(Generic[T]):
    """A bounded memory of operations. Safe to use from any thread: each step is one step of the interpreter's own."""

    __slots__ = ("_dropped", "_most", "_under_way", "get")

    def __init__(self, most: int = MOST_UNDER_WAY, dropped: Callable[[T], object] | None = None) -> None:
        self._most = most
        self._dropped = dropped
        # Not a plain dict: there the oldest is found by iterating, which another thread's insertion would break.
        self._under_way: OrderedDict[str, T] = OrderedDict()
        self.get = self._under_way.get

    def put(self, run: str, value: T) -> None:
        """Remember the operation; the oldest goes where there are too many."""
        self._under_way[run] = value
        if len(self._under_way) > self._most:
            _, oldest = self._under_way.popitem(last=False)
            if self._dropped is not None:
                self._dropped(oldest)

    def take(self, run: str) -> T | None:
        """Return the operation and forget it."""
        return self._under_way.pop(run, None)

    def all(self) -> tuple[T, ...]:
        """Return every operation, the oldest first."""
        return tuple(self._under_way.copy().values())

    def drop_all(self) -> None:
        """Forget every operation, as if each were the oldest."""
        while self._under_way:
            _, oldest = self._under_way.popitem(last=False)
            if self._dropped is not None:
                self._dropped(oldest)

    def __len__(self) -> int:
        return len(self._under_way)
