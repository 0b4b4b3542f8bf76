"""Whether a task still gets anywhere: rounds that change nothing are counted.

Invariant: the same states give the same answer. Nothing here waits or measures time.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

__all__ = ["NO_PROGRESS", "Progress", "fingerprint"]

NO_PROGRESS = 3
"""How many rounds in a row may leave the state as it was."""


def fingerprint(*state: Any) -> str:
    """Return the same for states that differ in white space only.

    >>> fingerprint("a  b") == fingerprint("a b ")
    True
    """
    document = msgspec.json.encode(_folded(msgspec.to_builtins(state, enc_hook=repr)), order="deterministic")
    return hashlib.sha256(document).hexdigest()


def _folded(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {str(name): _folded(each) for name, each in value.items()}
    return [_folded(each) for each in value] if isinstance(value, (list, tuple)) else value


class Progress:
    """Counts the rounds in a row that end in the same state."""

    def __init__(self, most: int = NO_PROGRESS) -> None:
        self.most = most
        self._last = ""
        self._equal = 0

    def is_stuck(self, *state: Any) -> bool:
        """Take the state at the end of a round; return whether the last ones were all the same."""
        found = fingerprint(*state)
        self._equal = self._equal + 1 if found == self._last else 1
        self._last = found
        return self._equal >= self.most
