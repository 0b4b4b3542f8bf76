"""Handlers to their events, as one subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.faults import InvalidError
from holdfast.runtime.bus import Subscription
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from holdfast.events import Event

__all__ = ["missing", "read"]


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


def missing(what: str, package: str, extra: str) -> ModuleNotFoundError:
    """Return what to raise where a sink's library is not installed: it says what to type."""
    return ModuleNotFoundError(f"{what} needs {package}; run: python -m pip install 'holdfast[{extra}]'", name=package)
