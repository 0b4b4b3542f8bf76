"""What stays of an actor while its instances come and go: its name, its mailbox, its watchers, its count of restarts.

A `Ref` points to a cell, so it works across restarts. A host makes an instance, which takes letters from the cell.

Invariant: a cell belongs to one event loop. After `end` every letter that waits has been failed or reported as dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any

from holdfast.actors.mailbox import Mailbox
from holdfast.events import ActorResumed, MailboxPressure, MessageDropped, SuppressedError
from holdfast.faults import DeadlineError, Fault, HoldfastError, InvalidError, Scope
from holdfast.runtime.ambient import in_force

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.actors.health import HealthState
    from holdfast.actors.mailbox import Letter
    from holdfast.faults import Code
    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.runtime import Runtime
    from holdfast.supervision import Exit

__all__ = ["ASKER", "AskTimeoutError", "Cell", "handlers_of", "no_attribute", "stopped_error", "stopped_midway"]


_HOOKS = frozenset({"started", "stopping", "crashed", "down", "snapshot", "restore", "children"})
"""Methods of every actor that cannot be asked."""

_handlers: dict[type, Mapping[Any, Any]] = {}


def handlers_of(kind: type) -> Mapping[Any, Any]:
    """Return what an actor class can be asked: its public async methods."""
    found = _handlers.get(kind)
    if found is None:
        found = _handlers[kind] = {
            method: method
            for name in dir(kind)
            if not name.startswith("_") and name not in _HOOKS
            if inspect.iscoroutinefunction(method := getattr(kind, name, None))
        }
    return found


class AskTimeoutError(HoldfastError, TimeoutError):
    """An actor did not answer in time. The actor goes on; its answer is dropped.

    `error.fault.maybe_executed` is False if the actor had not begun to work on the message.

        try:
            notes = await coder.using(timeout=5).ask(Coder.review, diff)
        except TimeoutError:
            notes = None
    """

    code = "SYS_TIMEOUT"


class Cell:
    """The lasting part of one actor. `kind` is the class of its instances; `handlers` has what it can be asked."""

    __slots__ = (
        "__weakref__",
        "_is_counted",
        "_timer",
        "_watchers",
        "due",
        "exit",
        "handlers",
        "health",
        "kind",
        "loop",
        "mailbox",
        "name",
        "now",
        "restarts",
        "runtime",
        "task",
        "team",
        "timeout",
        "waits_for",
        "wrap",
    )

    def __init__(
        self,
        name: str,
        kind: Any,
        handlers: Mapping[Any, Any],
        runtime: Runtime,
        *,
        capacity: int = 1000,
        stash: int | None = None,
        timeout: float | None = 30.0,
    ) -> None:
        self.name = name
        self.kind = kind
        self.handlers = handlers
        self.runtime = runtime
        self.timeout = inf if timeout is None else timeout
        """Seconds that an `ask` waits for its answer where the caller gives no limit."""
        self.due = inf
        """When its timer fires, on the clock of the event loop: not after the first sender stops waiting."""
        self._timer: asyncio.TimerHandle | None = None
        self.loop = loop = asyncio.get_running_loop()
        # The loop's own `time` is a method in Python around this function. Every `ask` reads the time.
        self.now = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        self.mailbox = Mailbox(name, capacity=capacity, stash=stash)
        self.mailbox.on_pressure = self._pressure_changed
        self.restarts = 0
        """How often it was started again. A restart counts from the crash on."""
        self._is_counted = False
        """Whether the last restart is counted and has not begun."""
        self.exit: Exit | None = None
        """How it ended; None while it lives."""
        self.team: Any = None
        """The supervisor of the actor's own children, if it has any."""
        self.task: asyncio.Task[None] | None = None
        """The task that works on the messages, if it is one of this loop."""
        self.waits_for: Cell | None = None
        """The actor whose answer it waits for, in the message that it works on."""
        self.health: HealthState = "healthy"
        self.wrap: Callable[[Any], Any] | None = None
        """Returns what runs instead of a hook of its instances; None: the hook itself."""
        self._watchers: list[Callable[[Exit], None]] | None = None

    def handler_of(self, method: Any) -> Any:
        """Return what runs when `method` is asked. Raises `InvalidError` for anything that the actor cannot be asked."""
        if (handler := self.handlers.get(method)) is not None:
            return handler
        # A subclass may override the method, and a decorator may make a new object at each access. Then the name counts.
        owner, _, name = str(getattr(method, "__qualname__", "")).rpartition(".")
        if owner in {kind.__qualname__ for kind in self.kind.__mro__}:
            for known, handler in self.handlers.items():
                if known.__name__ == name:
                    return handler
        raise _cannot_be_asked(self.kind, method, self.handlers)

    def begin(self, incarnation: int) -> None:
        """A new instance is about to start."""
        self.restarts, self._is_counted = incarnation - 1, False
        if self.exit is not None:
            # It was stopped for good, and somebody starts it again: the same refs work again.
            self.exit = self.mailbox.closed = None
        self.mailbox.is_restarting = False

    def count_restart(self) -> int:
        """Count the restart that follows a crash, and return the count. It is taken back if the supervisor gives up."""
        if not self._is_counted:
            self.restarts, self._is_counted = self.restarts + 1, True
        return self.restarts

    def failed(self) -> None:
        """The instance ended; another one may follow. Until then letters wait in the stash."""
        self.mailbox.is_restarting = True

    def end(self, exit: Exit, error: HoldfastError | None = None) -> None:  # noqa: A002 - the word of the whole room
        """No further instance follows: fail what waits with `error`, and tell the watchers."""
        if self.exit is not None:
            return
        self.exit = exit
        if self._is_counted:
            self.restarts, self._is_counted = self.restarts - 1, False
        if self.team is not None and self.team.is_running:
            # Children that were kept for an instance that will not come.
            self.team.request_stop()
        error = stopped_error(self.name, exit) if error is None else error
        for letter in self.mailbox.close(error):
            self.drop(letter, "stopped", error)
        if self._timer is not None and not any(True for _ in self.mailbox.letters()):
            # It would hold the instance, its error and its last result until the longest `ask` had timed out.
            self._timer.cancel()
            self._timer = None
        watchers, self._watchers = self._watchers, None
        for notify in watchers or ():
            notify(exit)

    def drop(self, letter: Letter, why: str, error: HoldfastError) -> None:
        """Fail a letter that nobody will work on. If nobody waits for its answer, report it instead."""
        if not letter.fail(error) and not letter.withdrawn:
            at = self.runtime.clock.wall()
            self.runtime.bus.emit(MessageDropped(at=at, actor=self.name, message=letter.name, reason=why))

    def report(self, letter: Letter, fault: Fault) -> None:
        """Report the failure of a letter whose answer nobody waits for."""
        reason = f"{letter.name} of actor {self.name} failed, and nobody waits for its answer"
        self.runtime.bus.emit(SuppressedError.of(fault, reason, at=self.runtime.clock.wall()))

    def resumed(self, letter: Letter, fault: Fault) -> None:
        """Report that the actor goes on after a letter that failed: its state is what the failure left."""
        at = self.runtime.clock.wall()
        self.runtime.bus.emit(ActorResumed(at=at, actor=self.name, message=letter.name, fault=fault))

    def watch(self, notify: Callable[[Exit], None]) -> Callable[[], None]:
        """Call `notify` once when the actor has ended for good, at once if it has already. Return what undoes it."""
        if self.exit is not None:
            notify(self.exit)
            return _nothing
        watchers = self._watchers = self._watchers or []
        watchers.append(notify)

        def unwatch() -> None:
            if notify in watchers:
                watchers.remove(notify)

        return unwatch

    def check_wait(self, other: Cell) -> None:
        """Raise if this actor, in its message, must not wait for an answer of another one: that one waits for this one already."""
        asked: Cell | None = other
        while asked is not self:
            if asked is None:
                return
            asked = asked.waits_for
        names, asked = [self.name, other.name], other
        while asked is not self and (asked := asked.waits_for) is not None:
            names.append(asked.name)
        raise _waits_for_itself(names)

    # --- the time that senders wait. The letters know their ends, so one timer for each actor is enough, and an answer that comes in
    # time costs nothing. ---

    def clip(self, letter: Letter, ambient: Ambient) -> float:
        """Give a letter the scope and the end of the budget around its sender; return when the sender stops waiting."""
        scope = letter.ambient = in_force(ambient)
        ends = self._end_of(scope)
        if ends <= self.loop.time():
            raise self._too_late(letter)
        if ends < letter.ends:
            letter.ends, letter.is_clipped = ends, True
        return letter.ends

    def _end_of(self, scope: Ambient | None) -> float:
        """Return when the time of a scope is over, on the clock of the event loop."""
        monotonic = self.runtime.clock.monotonic
        cut = None if scope is None else scope.cut_on(monotonic)
        # The loop may count time from another start than the budget's clock.
        return inf if cut is None else self.loop.time() + cut - monotonic()

    async def relieved(self, ambient: Ambient | None) -> None:
        """Wait until the mailbox is relieved. Raises `DeadlineError` if the time of the budget around is over before."""
        ends = self._end_of(in_force(ambient))
        limit = asyncio.timeout_at(None if ends == inf else ends)
        try:
            async with limit:
                await self.mailbox.relieved()
        except TimeoutError as error:
            if not limit.expired():
                raise
            text = f"The budget's time was over before the mailbox of actor {self.name} was relieved"
            context = {"actor": self.name, "waiting": self.mailbox.size}
            fault = Fault.of("SYS_DEADLINE_EXCEEDED", text, scope=Scope.AGENT, maybe_executed=False, context=context)
            raise DeadlineError(fault) from error

    def set_timer(self, ends: float) -> None:
        """Fire at this time, or earlier."""
        if self._timer is not None:
            self._timer.cancel()
        self.due = ends
        self._timer = self.loop.call_at(ends, self._fire)

    def _fire(self) -> None:
        self._timer, self.due = None, inf
        now = self.loop.time()
        next_end, late = inf, 0
        for letter in tuple(self.mailbox.letters()):
            if letter.withdrawn:
                continue
            if letter.ends <= now:
                letter.fail(self._too_late(letter) if letter.is_clipped else self._timed_out(letter))
                late += 1
            elif letter.ends < next_end:
                next_end = letter.ends
        if next_end < inf:
            self.set_timer(next_end)
        self.mailbox.withdrew(late)

    def _timed_out(self, letter: Letter) -> HoldfastError:
        text = f"Actor {self.name} did not answer in time: {letter.name}"
        return AskTimeoutError(self._limit_fault("SYS_TIMEOUT", text, letter))

    def _too_late(self, letter: Letter) -> HoldfastError:
        text = f"The budget's time was over before actor {self.name} answered: {letter.name}"
        return DeadlineError(self._limit_fault("SYS_DEADLINE_EXCEEDED", text, letter))

    def _limit_fault(self, code: Code, text: str, letter: Letter) -> Fault:
        context = {"actor": self.name, "restarts": self.restarts, "waiting": self.mailbox.size}
        return Fault.of(code, text, scope=Scope.AGENT, maybe_executed=self.mailbox.begun is letter, context=context)

    def _pressure_changed(self, mailbox: Mailbox) -> None:
        at = self.runtime.clock.wall()
        record = MailboxPressure(
            at=at, actor=self.name, level=mailbox.pressure, size=mailbox.size, capacity=mailbox.capacity
        )
        self.runtime.bus.emit(record)


def no_attribute(ref: object, kind: Any, name: str) -> AttributeError:
    """Return the error of `ref.add(5)`: a method of an actor is asked and not called."""
    hint = ""
    if not name.startswith("_") and any(method.__name__ == name for method in handlers_of(kind)):
        hint = f"; use await ref.ask({kind.__name__}.{name}, …)"
    return AttributeError(f"{type(ref).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=ref)


def stopped_error(name: str, exit: Exit) -> HoldfastError:  # noqa: A002 - the word of the whole room
    """Return the error for messages to an actor that has ended for good."""
    return HoldfastError(
        Fault.of("ACTOR_STOPPED", f"Actor {name} has stopped: it {exit}", context={"actor": name, "exit": str(exit)})
    )


def stopped_midway(name: str, how: Exit) -> HoldfastError:
    """Return the error for a message that an actor worked on when it was stopped."""
    context = {"actor": name, "exit": str(how)}
    text = f"Actor {name} was stopped while it worked on this message"
    return HoldfastError(Fault.of("ACTOR_STOPPED", text, maybe_executed=True, context=context))


def _cannot_be_asked(kind: type, method: Any, handlers: Mapping[Any, Any]) -> InvalidError:
    known = ", ".join(sorted(f"{kind.__name__}.{method.__name__}" for method in handlers))
    expected = f"a public async method of {kind.__name__}: {known or 'it has none'}"
    given = str(getattr(method, "__qualname__", type(method).__name__))
    return InvalidError.saying(f"ask of {kind.__name__}", expected, given)


def _nothing() -> None:
    """Nothing is watched any more."""


def _waits_for_itself(names: list[str]) -> InvalidError:
    """Return the error for actors that would wait for each other until their time is over."""
    if len(names) == 2:
        received = "a question of the actor to itself"
        expected = "another actor, `await self.method(…)`, or `tell`"
    else:
        received = f"a circle: {' waits for '.join(names)}"
        expected = "an actor that does not wait for this one, or `tell`"
    text = f"ask of {names[1]}: expected {expected}, got {received}"
    context = {"actor": names[1], "cycle": names}
    return InvalidError(Fault.of("ACTOR_ERROR", text, retryable=False, maybe_executed=False, context=context))


ASKER: ContextVar[Cell | None] = ContextVar("holdfast_asker", default=None)
"""The actor in whose message this runs."""
