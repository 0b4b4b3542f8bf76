"""How a sink subscribes to the events of a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.faults import InvalidError
from holdfast.runtime.bus import Subscription
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["subscribe"]


def subscribe(
    runtime: Runtime | None,
    handlers: Mapping[Any, Callable[[Any], object]],
    *,
    on_cancel: Callable[[], object] | None = None,
    replaces_log: bool = False,
) -> Subscription:
    """Call each handler with the events of its kind, from `runtime` or the default runtime, until it is cancelled.

    There is one handler per kind, because a dispatch inside the sink would cost time in every watched call. `on_cancel` runs
    after the last event. With `replaces_log` people read this sink, so the runtime's own log leaves these kinds out meanwhile.
    """
    if runtime is not None and not isinstance(runtime, Runtime):
        raise InvalidError.at("runtime", "a Runtime", runtime)
    # Find the runtime once: a sink stays with its runtime even if another runtime becomes the default.
    source = runtime or default_runtime()
    subscriptions = [source.on(handler, kind) for kind, handler in handlers.items()]
    # Each subscription has its own token: two log sinks may be installed, and each removes only its own mark.
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
