"""What every sink needs to read events: a subscription, an event's facts, and a bounded memory of open operations.

Invariant: a sink never holds more than a fixed number of operations, and no fact it passes on holds a secret or content.
"""

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

__all__ = ["MOST_UNDER_WAY", "Tracker", "facts_of", "subscribe", "tag_of"]

MOST_UNDER_WAY = 10_000
"""A program that has more operations open at once leaks them."""

T = TypeVar("T")


def subscribe(
    runtime: Runtime | None,
    handlers: Mapping[Any, Callable[[Any], object]],
    *,
    on_cancel: Callable[[], object] | None = None,
    replaces_log: bool = False,
) -> Subscription:
    """Call each handler with the events of its kind, from `runtime` or the default one, until it is cancelled.

    There is one handler per kind: a dispatch inside the sink would cost every call that is watched. `on_cancel` runs after
    the last event. `replaces_log`: people read this sink, so the runtime's own log leaves these kinds out meanwhile.
    """
    if runtime is not None and not isinstance(runtime, Runtime):
        raise InvalidError.at("runtime", "a Runtime", runtime)
    # Resolved once: a sink stays with its runtime even if another one becomes the default.
    source = runtime or default_runtime()
    subscriptions = [source.on(handler, kind) for kind, handler in handlers.items()]
    # A token per subscription: two log sinks may be installed, and each removes only its own mark.
    token = object()
    if replaces_log:
        source.log_readers[token] = frozenset(handlers)

    def cancel() -> None:
        for subscription in subscriptions:
            subscription.cancel()
        source.log_readers.pop(token, None)
        if on_cancel is not None:
            on_cancel()

    return Subscription(cancel)


def facts_of(event: Event, redactor: Redactor) -> dict[str, Any]:
    """Return the fields of the event's JSON, under the same names, with secrets masked."""
    facts: dict[str, Any] = msgspec.to_builtins(event)
    fault = facts.get("fault")
    if fault is not None:
        # A partial result is content: what a model wrote must not reach logs or audit trails.
        fault.pop("partial", None)
    masked: dict[str, Any] = redactor.value(facts)
    return masked


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
