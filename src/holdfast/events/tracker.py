"""What every reader of events needs: an event's facts, and a bounded memory of open operations. Without I/O.

Invariant: a reader never holds more than a fixed number of operations, and no fact it passes on holds a secret or content.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.events.records import Event
    from holdfast.faults import Redactor

MOST_UNDER_WAY = 10_000
"""The most open operations that are remembered. A program that has more of them leaks them."""

T = TypeVar("T")


def facts_of(event: Event, redactor: Redactor) -> dict[str, Any]:
    """Return the fields of the event's JSON, under the same names, with secrets masked."""
    fault = getattr(event, "fault", None)
    if isinstance(fault, Fault) and fault.partial is not None:
        # A partial result is content: what a model wrote must not reach logs or audit trails.
        fault = msgspec.structs.replace(fault, partial=None)
        event = msgspec.structs.replace(event, fault=fault)
    facts: dict[str, Any] = msgspec.to_builtins(event, enc_hook=unwritable)
    masked: dict[str, Any] = redactor.value(facts)
    return masked


def unwritable(value: object) -> str:
    """Return what stands in JSON for an object that has no form there, such as an event of an SDK: its class."""
    return f"<{type(value).__qualname__}>"


def tag_of(event: Event) -> str:
    """Return the event's kind as its JSON names it: `attempt-ended`."""
    return str(type(event).__struct_config__.tag)


class Tracker(Generic[T]):
    """A bounded memory of open operations, by run.

    When it is full the oldest operation is dropped, so one whose end is never reported is forgotten in time. It may be used
    from any thread: each method makes one change, and the interpreter makes that change atomically.
    """

    __slots__ = ("_dropped", "_most", "_under_way", "get")

    def __init__(self, most: int = MOST_UNDER_WAY, dropped: Callable[[T], object] | None = None) -> None:
        self._most = most
        self._dropped = dropped
        # Not a plain dict: its oldest item is found by iterating, and an insertion by another thread would break that.
        self._under_way: OrderedDict[str, T] = OrderedDict()
        # The bound method, not a wrapper: sinks call it for every attempt.
        self.get = self._under_way.get

    def put(self, run: str, value: T) -> None:
        """Remember the operation; drop the oldest one if there are too many."""
        self._under_way[run] = value
        if len(self._under_way) > self._most:
            self._drop_oldest()

    def take(self, run: str) -> T | None:
        """Return the operation and forget it."""
        return self._under_way.pop(run, None)

    def all(self) -> tuple[T, ...]:
        """Return every operation, the oldest first."""
        # A copy first: another thread may insert while the values are listed.
        return tuple(self._under_way.copy().values())

    def drop_all(self) -> None:
        """Drop every operation, the oldest first."""
        while self._under_way:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, oldest = self._under_way.popitem(last=False)
        if self._dropped is not None:
            self._dropped(oldest)

    def __len__(self) -> int:
        return len(self._under_way)
