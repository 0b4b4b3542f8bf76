"""What a stream has delivered, remembered for whoever must go on without the rest.

Invariant: memory is bounded. Beyond the cap the newest is not kept and the partial says so.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.faults import Fault, Partial

__all__ = ["Delivered"]

_MOST_ITEMS = 100_000
_MOST_TEXT = 4 * 1024 * 1024


class Delivered:
    """The items handed on so far."""

    __slots__ = ("_items", "_text", "count")

    def __init__(self) -> None:
        self.count = 0
        self._items: list[Any] = []
        self._text = 0

    def add(self, item: Any) -> None:
        self.count += 1
        if len(self._items) < _MOST_ITEMS and self._text < _MOST_TEXT:
            self._items.append(item)
            if isinstance(item, str):
                self._text += len(item)

    def partial(self) -> Partial:
        """Return what there is: text joined, other items as a list."""
        items = self._items
        whole: Any = "".join(items) if items and all(isinstance(item, str) for item in items) else list(items)
        return Partial(payload=whole, complete=self.count, truncated=len(items) < self.count)

    def on(self, fault: Fault) -> Fault:
        """Return the fault with what was delivered on it; a failure nobody recognised is at least a cut stream."""
        if fault.code == "SYS_UNKNOWN":
            cut = Fault.of("PROVIDER_STREAM_CUT", fault.message, cause=fault.cause, context=fault.context)
            fault = cut.with_attempts(fault.attempts)
        return msgspec.structs.replace(fault, partial=self.partial())
