"""Callers of a target: whom the other side has answered and never rejected since it last had no limit.

A rejection says that somebody's calls are too many, but not whose. A caller that was answered each time may have a limit of its own.
"""

from __future__ import annotations

MOST = 1024
"""So many callers are remembered."""


class Callers:
    """The callers of one target. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_rejected",)

    def __init__(self) -> None:
        self._rejected: dict[int, bool] = {}
        """Callers that were answered or rejected, and whether they were rejected."""

    def answered(self, caller: int) -> None:
        """A call of this caller was answered."""
        if len(self._rejected) >= MOST:
            self._rejected = {}
        self._rejected.setdefault(caller, False)

    def rejected(self, caller: int) -> None:
        """A call of this caller was rejected, because there were too many."""
        self._rejected[caller] = True

    def was_only_answered(self, caller: int) -> bool:
        """Return whether the caller was answered and never rejected."""
        return self._rejected.get(caller) is False

    def forget(self) -> None:
        """The other side has no limit any more."""
        self._rejected = {}
