"""Events to their readers: handlers by type.

Invariant: a reader never breaks the call that reports. A handler that raises is reported once and the call goes on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self, TypeAlias

from holdfast._lazy import lazy_module
from holdfast.events import AttemptEnded, AttemptStarted, Event, SuppressedError
from holdfast.faults import REDACTOR

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
else:
    logging = lazy_module("logging", globals())

__all__ = ["Bus", "Handler", "Subscription"]

Handler: TypeAlias = "Callable[[Event], object]"


class Bus:
    """Who listens to what."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._handlers: dict[type[Event], tuple[Handler, ...]] = {}
        self._reported: dict[int, object] = {}
        """Hooks whose failure was told, kept so that no other object gets their identity."""
        self.wants_attempts = False
        """Whether anybody reads the events that even a call without failures would report."""

    def wants(self, kind: type[Event]) -> bool:
        return kind in self._handlers

    def subscribe(self, handler: Handler, kinds: tuple[type[Event], ...]) -> Subscription:
        """Call `handler` with each event of these kinds, in order, in the reporting call's own context."""
        self._change(lambda kept: (*kept, handler), kinds)
        return Subscription(lambda: self._change(lambda kept: _without(kept, handler), kinds))

    def emit(self, event: Event) -> None:
        for handler in self._handlers.get(type(event), ()):
            try:
                handler(event)
            except Exception as error:  # noqa: BLE001 - a reader never breaks a call (R25)
                self._report(handler, event, error)

    def hook_raised(self, hook: object, what: str, error: Exception, *, at: float, run: str = "") -> None:
        """Say once per hook, in the log and as an event, that it raised and the error is ignored (R25)."""
        if id(hook) in self._reported:
            return
        self._reported[id(hook)] = hook
        cause = REDACTOR.text(f"{type(error).__name__}: {error}")
        logging.getLogger("holdfast").error("%s raised and the error is ignored: %s", what, cause)
        self.emit(SuppressedError(at=at, run=run, reason=f"{what} raised", cause=cause))

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def _change(
        self, change: Callable[[tuple[Handler, ...]], tuple[Handler, ...]], kinds: tuple[type[Event], ...]
    ) -> None:
        with self._lock:
            handlers = dict(self._handlers)
            for kind in kinds:
                handlers[kind] = change(handlers.get(kind, ()))
            self._handlers = {kind: kept for kind, kept in handlers.items() if kept}
            self.wants_attempts = AttemptStarted in self._handlers or AttemptEnded in self._handlers
        self._changed()

    def _report(self, handler: Handler, event: Event, error: Exception) -> None:
        # Whoever reads of it may be the one that fails: it is marked before it is told, so this ends.
        name = getattr(handler, "__qualname__", type(handler).__name__)
        self.hook_raised(handler, f"event handler {name}", error, at=event.at, run=event.run)


class Subscription:
    """A standing order for events; `cancel` it, or use it as a context manager."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel: Callable[[], None] | None = cancel

    def cancel(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def _without(handlers: tuple[Handler, ...], gone: Handler) -> tuple[Handler, ...]:
    return tuple(handler for handler in handlers if handler != gone)
