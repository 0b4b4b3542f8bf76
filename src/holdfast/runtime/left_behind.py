"""The calls of this process whose threads still run although their callers have gone.

A thread cannot be stopped, so such a call may still take effect. Until its thread has ended, nobody can say that it did not happen.
"""

from __future__ import annotations

import os
import threading
from collections import Counter

__all__ = ["LEFT_BEHIND", "LeftBehind"]


class LeftBehind:
    """The keys (`call_key`) of these calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: Counter[str] = Counter()

    def add(self, key: str) -> None:
        """The caller of this call has gone, and its thread runs on."""
        with self._lock:
            self._keys[key] += 1

    def remove(self, key: str) -> None:
        """The thread has ended."""
        with self._lock:
            self._keys -= Counter((key,))

    def runs(self, key: str) -> bool:
        """Whether a thread of the call with this key, or of a call inside of it, still runs."""
        with self._lock:
            return any(left == key or left.startswith(f"{key}/") for left in self._keys)

    def after_fork(self) -> None:
        """The threads of the parent process do not exist in this one, and one of them may hold the lock."""
        self.__init__()  # type: ignore[misc] # it begins anew


LEFT_BEHIND = LeftBehind()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LEFT_BEHIND.after_fork)
