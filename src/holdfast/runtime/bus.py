"""The event bus: handlers by kind of event, and events as an async iterator.

Invariant: a reader never breaks or delays the call that reports. A handler that raises is reported once and the call goes on.
All handlers receive the events of one thread in the same order, also those that a handler causes.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

from holdfast._lazy import lazy_module
from holdfast.events import AttemptEnded, AttemptStarted, Event, SuppressedError
from holdfast.events.tracker import facts_of
from holdfast.faults import REDACTOR
from holdfast.runtime.lineage import placed
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.work import WORK

if TYPE_CHECKING:
    import asyncio
    import logging
    from collections.abc import Callable

    from holdfast.events.lines import LogLines
else:
    asyncio = lazy_module("asyncio", globals())
    logging = lazy_module("logging", globals())

__all__ = ["Bus", "EventStream", "Handler", "SilentBus", "Subscription", "log_writer", "structlog_writer"]

_MOST_REPORTED = 1_000
"""How many hooks are remembered as reported. The oldest are forgotten, and may be reported again."""

Handler: TypeAlias = "Callable[[Event], object]"

_E = TypeVar("_E", bound=Event)

QUEUE_SIZE = 1000
"""The most events that wait for one async reader. A slower reader loses the oldest events."""


class Bus:
    """The handlers of a runtime."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._handlers: dict[type[Event], tuple[Handler, ...]] = {}
        # By thread. It is no `threading.local`, which takes three times as long, and every watched call comes here twice.
        self._delivering: dict[int, deque[Event] | None] = {}
        """The threads that deliver an event, and the events that its handlers caused; None: none yet."""
        self._reported: dict[int, object] = {}
        """Hooks whose failure was reported. They are kept alive so that no other object gets the same id."""
        self.wants_attempts = False
        """Whether somebody reads the events that every attempt reports, even a successful one."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether events of this kind have readers; if not, the event need not be built."""
        # Inside a session everybody may be silent: its audit trail still records the events.
        return kind in self._handlers or WORK.get() is not None

    def subscribe(self, handler: Handler, kinds: tuple[type[Event], ...]) -> Subscription:
        """Call `handler` with each event of these kinds, in order, in the reporting call's own context."""
        self._change(lambda kept: (*kept, handler), kinds)
        return Subscription(lambda: self._change(lambda kept: _without(kept, handler), kinds))

    def emit(self, event: Event) -> None:
        """Call the handlers of an event, or leave it to the `emit` whose handler caused it.

        An event gets the request and the operations around it. Inside a session it gets the session's id, turn and step, and is
        recorded in the session's audit chain.
        """
        # The context is the caller's only here: an event that waits is delivered in the context of another.
        event, work = placed(event)
        if work is not None:
            work.record(event, work)
        delivering, thread = self._delivering, threading.get_ident()
        if thread in delivering:
            # A handler caused this event, for example by resetting a circuit. Delivered now, the handlers after that
            # one would receive the effect before its cause.
            waiting = delivering[thread]
            delivering[thread] = waiting = deque() if waiting is None else waiting
            waiting.append(event)
            return
        try:
            delivering[thread] = None
            self._deliver(event)
            while waiting := delivering[thread]:
                self._deliver(waiting.popleft())
        finally:
            # Also after an interrupt: this thread must not keep later events back.
            delivering.pop(thread, None)

    def _deliver(self, event: Event) -> None:
        for handler in self._handlers.get(type(event), ()):
            try:
                handler(event)
            except Exception as error:  # noqa: BLE001 - a reader never breaks a call (R25)
                self._report(handler, event, error)

    def hook_raised(self, hook: object, what: str, error: Exception, *, at: float, run: str = "") -> None:
        """Report once per hook, in the log and as an event, that it raised and that the error is ignored (R25)."""
        if id(hook) in self._reported:
            return
        # The hook is kept, because another object could get its id.
        self._reported[id(hook)] = hook
        if len(self._reported) > _MOST_REPORTED:
            del self._reported[next(iter(self._reported))]
        try:
            cause = REDACTOR.text(f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001 - the text of a foreign exception may raise, and the call must go on
            cause = type(error).__name__
        with suppress(Exception):  # the hook may be the log's own handler
            logging.getLogger("holdfast").error("%s raised and the error is ignored: %s", what, cause)
        self.emit(SuppressedError(at=at, run=run, reason=f"{what} raised", cause=cause))

    def after_fork(self) -> None:
        """Forget the other threads after a fork, and replace the lock that one of them may hold: they do not exist here."""
        self._lock = threading.Lock()
        thread = threading.get_ident()
        # Emptied in place: a handler that forks returns to the `emit` of this thread, which holds the same dict.
        for other in [ident for ident in self._delivering if ident != thread]:
            del self._delivering[other]

    def _change(
        self, change: Callable[[tuple[Handler, ...]], tuple[Handler, ...]], kinds: tuple[type[Event], ...]
    ) -> None:
        # The dict is replaced and never changed, so `emit` can iterate over it without a lock.
        with self._lock:
            handlers = dict(self._handlers)
            for kind in kinds:
                handlers[kind] = change(handlers.get(kind, ()))
            self._handlers = {kind: kept for kind, kept in handlers.items() if kept}
            self.wants_attempts = AttemptStarted in self._handlers or AttemptEnded in self._handlers
        self._changed()

    def _report(self, handler: Handler, event: Event, error: Exception) -> None:
        # The report is an event too, and the failing handler may receive it. Marking the handler first prevents an
        # endless recursion.
        name = getattr(handler, "__qualname__", type(handler).__name__)
        self.hook_raised(handler, f"event handler {name}", error, at=event.at, run=event.run)


class SilentBus(Bus):
    """The bus of a runtime that only works out what would happen: it reports nothing, not even to the session around."""

    def wants(self, kind: type[Event]) -> bool:  # noqa: ARG002 - whatever it is
        """Whether events of this kind have readers: never."""
        return False

    def emit(self, event: Event) -> None:
        """Drop the event: it did not happen."""


class Subscription:
    """A subscription to events, as `Runtime.on` returns it.

    It ends with `cancel`, or with the `with` block it is used in:

        with runtime.on(print):
            answer("hi")
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel: Callable[[], None] | None = cancel

    def cancel(self) -> None:
        """End the subscription; a second call does nothing."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def _without(handlers: tuple[Handler, ...], gone: Handler) -> tuple[Handler, ...]:
    return tuple(handler for handler in handlers if handler != gone)


class EventStream(Generic[_E]):
    """The events of a runtime, for one async reader: `async for event in runtime.events()`.

    It never delays the call that reports. Events that are not read in time are dropped, oldest first, and counted. A stream
    without references to it receives nothing.
    """

    def __init__(self, bus: Bus, kinds: tuple[type[Event], ...], wanted: Callable[[Event], bool] | None = None) -> None:
        self._events: deque[_E] = deque(maxlen=QUEUE_SIZE)
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._over = False
        self.dropped = 0
        """Events that were not read in time."""
        this = weakref.ref(self)

        # The bus holds only this function, and the function holds the stream weakly. So a forgotten stream unsubscribes
        # itself.
        def put(event: Any) -> None:
            reader = this()
            if reader is None:
                subscription.cancel()
            elif wanted is None or wanted(event):
                reader._put(event)  # noqa: SLF001 - the stream's own method

        subscription = self._subscription = bus.subscribe(put, kinds)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _E:
        # Each wait has its own `asyncio.Event`, because several events may arrive before the reader runs.
        while not self._events and not self._over:
            ready = asyncio.Event()
            self._waiting = (asyncio.get_running_loop(), ready)
            # An event that arrived before the line above woke nobody, so check again before waiting.
            if not self._events:
                await ready.wait()
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()

    async def aclose(self) -> None:
        """Stop receiving; a reader that waits for an event is released."""
        self._over = True
        self._subscription.cancel()
        self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _put(self, event: _E) -> None:
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        # The call that reports may run in another thread or loop, and an `asyncio.Event` is not safe to set from there.
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting[0].is_closed():
            waiting[0].call_soon_threadsafe(waiting[1].set)


def log_writer(log: logging.Logger, lines: LogLines) -> Handler:
    """Return a handler that writes the line of each event to a logger."""

    def write(event: Event) -> None:
        level, line = lines.of(event)
        # `lines.of` runs even if nothing is logged: it counts the failures for the summary.
        if level is not None and log.isEnabledFor(level):
            # The line is an argument, not the format: a `%` in a target's name must not be interpreted.
            log.log(level, "%s", line, extra={"holdfast": facts_of(event, process_redactor())})

    return write


def structlog_writer(log: Any, lines: LogLines, *, brief: bool = False) -> Handler:
    """Return a handler that writes the line of each event to a structlog logger.

    `holdfast` holds the event's fields. With `brief`, the few fields that people search for stand beside the line instead.
    """

    def write(event: Event) -> None:
        level, line = lines.of(event)
        if level is None:
            return
        facts = facts_of(event, process_redactor())
        fields = _brief(facts) if brief else {"holdfast": facts}
        # Not every kind of structlog's loggers has `log(level, …)`. All have the methods of the usual levels.
        name = logging.getLevelName(level).lower()
        if name in _METHODS:
            getattr(log, name)(line, **fields)
        else:
            log.log(level, line, **fields)

    return write


_METHODS = frozenset({"debug", "info", "warning", "error", "critical"})
_SEARCHED = ("run", "operation", "attempt", "attempts", "delay", "circuit", "to", "session")


def _brief(facts: dict[str, Any]) -> dict[str, Any]:
    fault = facts.get("fault") or {}
    code = {"code": fault["code"]} if "code" in fault else {}
    return code | {name: facts[name] for name in _SEARCHED if facts.get(name) not in (None, "")}
