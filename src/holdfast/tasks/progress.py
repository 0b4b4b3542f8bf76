"""Whether a task still gets anywhere: rounds that change nothing are counted.

Invariant: the same states give the same answer. Nothing here waits or measures time.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from holdfast.faults import Fault

__all__ = ["NO_PROGRESS", "Progress", "fingerprint"]

NO_PROGRESS = 3
"""How many rounds in a row may bring no state that was not there before, the first of them included."""


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
    """Counts the rounds in a row that end in a state that was there before: the same one, or some in turn.

    most: how many rounds may end in one state; None: any number, for work that waits for the world.
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._seen: set[str] = set()
        self._known = 0

    def is_stuck(self, *state: Any) -> bool:
        """Take the state at the end of a round; return whether the last ones brought nothing new."""
        if self.most is None:
            return False
        found = fingerprint(*state)
        self._known = self._known + 1 if found in self._seen else 1
        self._seen.add(found)
        return self._known >= self.most

    def fault(self) -> Fault:
        """Return the fault of a task that is stuck."""
        return Fault.of("TASK_HALTED", context={"reason": f"{self.most} rounds in a row changed nothing"})
