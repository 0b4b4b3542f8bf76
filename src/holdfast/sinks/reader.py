"""Handlers to their events, as one subscription."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.faults import InvalidError
from holdfast.runtime.bus import Subscription
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.events import Event
    from holdfast.faults import Redactor

__all__ = ["MOST_UNDER_WAY", "Tracker", "facts_of", "read", "tag_of"]

MOST_UNDER_WAY = 10_000
"""More at once are taken for leaks."""

T = TypeVar("T")


def read(
    runtime: Runtime | None,
    handlers: Mapping[type[Event], Callable[[Any], object]],
    *,
    ended: Callable[[], object] | None = None,
) -> Subscription:
    """Call each handler with the events of its kind, of `runtime` or of the default one, until it is cancelled.

    One handler per kind: choosing among them for every event would cost each call that is watched. `ended` is called last.
    """
    if runtime is not None and not isinstance(runtime, Runtime):
        raise InvalidError.at("runtime", "a Runtime", runtime)
    read_from = runtime or default_runtime()
    orders = [read_from.on(handler, kind) for kind, handler in handlers.items()]

    def cancel() -> None:
        for order in orders:
            order.cancel()
        if ended is not None:
            ended()

    return Subscription(cancel)


def facts_of(event: Event, redactor: Redactor) -> dict[str, Any]:
    """Return the fields of the event's JSON under the same names."""
    facts: dict[str, Any] = msgspec.to_builtins(event)
    fault = facts.get("fault")
    if fault is not None:
        fault.pop("partial", None)
    masked: dict[str, Any] = redactor.value(facts)
    return masked


def tag_of(event: Event) -> str:
    """Return the event's kind as its JSON names it: `attempt-ended`."""
    return str(type(event).__struct_config__.tag)


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
