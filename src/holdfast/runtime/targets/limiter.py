"""The limiter of a target: how many calls run at once, and how many start per second.

Invariant: every acquired place is released once, however the call ends. A caller that is cancelled while it waits frees its
place in the queue (R69). Callers of any thread and event loop share one queue, in the order of `policies/queue.py`.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from contextlib import closing, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar
from weakref import ref

from msgspec import structs

from holdfast._lazy import lazy_module
from holdfast.faults import Fault, HoldfastError
from holdfast.policies.bulkhead import Bulkhead, BulkheadMachine, Place, Queued
from holdfast.policies.queue import WaitQueue
from holdfast.policies.rate_limit import RateLimit, RateLimitMachine, StartQueue
from holdfast.runtime.event_loop import ThreadOwner, is_abandoned, present_owner, running_loop, runs_loop
from holdfast.runtime.locks import After, if_free, new_lock
from holdfast.runtime.targets.limiter_shadow import LimiterShadow

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterator

    from holdfast.clock import Clock
    from holdfast.policies.queue import Priority, QueueTurn
    from holdfast.policies.rate_limit import Rank
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = [
    "CHECK_S",
    "Check",
    "Limiter",
    "LimiterOptions",
    "Seat",
    "StreamPlace",
    "limiter_for",
    "limits_of",
    "strictest",
]

CHECK_S = 0.05
"""Seconds between two checks of the caller's signal in a wait. Few kinds of signals can be awaited, so it is polled."""

Check: TypeAlias = "Callable[[], None]"
"""Raises if the caller no longer wants to wait."""
Report: TypeAlias = "Callable[[Literal['place', 'pace'], float | None], None]"
"""Called when a wait begins: for what, and for how many seconds if that is known."""


_LOOK_S = 10.0
"""Seconds after which a call that waits for a place looks whether those who hold the places can still end."""
_STOPS_LOOP = (
    ", and waiting for one here would stop the event loop of this thread: make the function async and await it, "
    "or call it with `await asyncio.to_thread(…)`"
)
_ROUNDING = 1e-6
"""Seconds. A timer may fire early by a rounding error."""


class Sleeper(Protocol):
    """The parts of a runtime that a wait needs."""

    clock: Clock
    waits: bool

    def sleep(self, seconds: float, until: threading.Lock | None = None) -> None:
        """Sleep in a thread. With the machine's own clock, releasing `until` ends the sleep."""
        ...


class Settings(Protocol):
    """What a waiting call was begun with: a `Plan`."""

    limiter: Limiter | None

    def fresh(self) -> Settings:
        """Return what a call that is begun now has."""
        ...


class Seat:
    """One call's place, taken or waited for.

    The limiter knows it weakly: a place whose seat nobody has any more is free, however its call was interrupted. It has no finaliser,
    which would swallow the exception of a signal's handler.
    """

    __slots__ = ("__weakref__", "owner", "ticket")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        """0: the call had no limit of places when it began, or needs none, and has none to give back."""
        self.owner = _handle(present_owner())


class Limiter:
    """The places and the pace of one target."""

    _shadow: tuple[_Limits, LimiterShadow] | None = None

    def __init__(self, name: str, bulkhead: Bulkhead | None, rate: RateLimit | None) -> None:
        self.name = name
        self._lock = new_lock()
        self._after = After(self._pass_on)
        """`with self._after, self._lock:` hands on what was returned meanwhile."""
        self._is_torn = False
        """A change of the places was begun and not completed: an exception has interrupted it."""
        self._to_wake: dict[int, None] = {}
        """Tickets that have got a place and are not woken yet."""
        self._seats: dict[int, ref[Seat]] = {}
        """The seats of the calls that hold a place, or wait for one."""
        self._bulkhead = bulkhead
        self._places = None if bulkhead is None else BulkheadMachine(bulkhead)
        self._rate = rate
        self._pace = None if rate is None else RateLimitMachine(rate)
        self._starts = StartQueue()
        self._wakers: dict[int, Callable[[], None]] = {}
        self._naps: dict[Rank, Callable[[], None]] = {}
        """What wakes the calls that wait for a start."""
        self._settings: dict[int | Rank, Settings] = {}
        """What the waiting calls were begun with, by ticket or turn."""
        self._returned: deque[int] = deque()
        """Tickets of places that no other caller has yet."""
        self.readers: dict[StreamPlace, object] = {}
        """Who reads the streams that hold places: such a task or thread never waits for its own stream."""
        self._inside: dict[int, tuple[StreamPlace, ...]] = {}
        """Tickets of waiting calls that were begun while a stream was read, such as in a task that its reader waits for."""
        self._relief_due = False

    async def acquire_async(  # noqa: PLR0917 - what a call is begun with, in the order of its walk
        self,
        runtime: Sleeper,
        deadline: float | None,
        check: Check | None = None,
        priority: Priority = "normal",
        settings: Settings | None = None,
        report: Report | None = None,
    ) -> Seat:
        """Wait for a place and for the start of the call; return the seat for `release`.

        `check` is called often during the wait, and ends it by raising. Raises `HoldfastError` where the queue is full, or where
        the wait would pass the deadline. If `settings` name no such limit any more, the wait ends.
        """
        turn = WaitQueue.turn(priority)
        # The place comes first. A start that is reserved while the caller still waits for a place would pass unused.
        seat = self._seat()
        try:
            await self._place_async(seat, runtime.clock, deadline, check, turn, settings, report)
            if self._pace is not None:
                nap = _TaskNap()
                # Closed here, and not by the garbage collector: a start that is not used goes back at once.
                with closing(self._waits_for_start(runtime, deadline, priority, nap.wake, settings, report)) as waits:
                    for wait in waits:
                        for part in _parts(wait, check):
                            if await nap.sleep(part):
                                break
        except BaseException:
            self.release(seat)
            raise
        return seat

    def acquire(  # noqa: PLR0917 - as its twin
        self,
        runtime: Sleeper,
        deadline: float | None,
        check: Check | None = None,
        priority: Priority = "normal",
        settings: Settings | None = None,
        report: Report | None = None,
    ) -> Seat:
        """Do the same in a thread, which blocks during the wait."""
        turn = WaitQueue.turn(priority)
        seat = self._seat()
        try:
            self._place(seat, runtime.clock, deadline, check, turn, settings, report)
            if self._pace is not None:
                nap = _ThreadNap(runtime)
                with closing(self._waits_for_start(runtime, deadline, priority, nap.wake, settings, report)) as waits:
                    for wait in waits:
                        for part in _parts(wait, check):
                            if nap.sleep(part):
                                break
        except BaseException:
            self.release(seat)
            raise
        return seat

    def change(self, bulkhead: Bulkhead | None, rate: RateLimit | None, now: float) -> None:
        """Follow other limits. Calls that run keep their places, and count for the new number. Calls that wait follow it too."""
        with self._lock:
            self._begin_change()
            is_new_rate = rate != self._rate
            self._bulkhead, self._rate = bulkhead, rate
            # A limit that is gone stays as wide as can be: calls may wait behind it.
            if self._places is not None:
                self._to_wake.update(dict.fromkeys(self._places.resize(bulkhead or Bulkhead(concurrency=sys.maxsize))))
            elif bulkhead is not None:
                self._places = BulkheadMachine(bulkhead)
            if rate is None or self._pace is None:
                self._pace = None if rate is None else RateLimitMachine(rate)
            elif is_new_rate:
                self._pace.change(rate, len(self._starts))
            pace = self._pace
            if is_new_rate:
                self._starts.reassign(lambda: now if pace is None else now + pace.reserve(now))
            self._is_torn = False
        if is_new_rate:
            for wake in list(self._naps.values()):
                wake()
        self._pass_on()

    def follow_settings(self) -> None:
        """Settings have changed: calls that wait follow the new ones, and those that have no such limit any more go on."""
        waiting = dict(self._settings)
        # Looking settings up changes this limiter. Many calls have the same ones, which are looked up once.
        is_free = {one: _frees(one, self) for one in set(waiting.values())}
        for number in (number for number, one in waiting.items() if is_free[one]):
            if isinstance(number, int):
                with self._lock:
                    self._wake_beyond(number)
            else:
                with self._lock:
                    self._starts.free(number)
                if (wake := self._naps.get(number)) is not None:
                    wake()
        self._pass_on()

    @property
    def shadow(self) -> LimiterShadow:
        """For observe mode: what this limiter would do to plain calls. It begins anew when the limits change."""
        known = self._shadow
        if known is None or known[0] != (self._bulkhead, self._rate):
            known = self._shadow = ((self._bulkhead, self._rate), LimiterShadow(self._bulkhead, self._rate))
        return known[1]

    def try_acquire(self, now: float) -> bool:
        """Take a place and a start if both are free now; never wait. `release_added` gives the place back."""
        with self._after, self._lock:
            # Until the place is taken, the pace is only read: a reserved start would have to be given back.
            if self._pace is not None and self._pace.peek(now) > 0:
                return False
            if self._places is not None and not self._places.try_acquire():
                return False
            if self._pace is not None:
                self._pace.reserve(now)
            return True

    def release_added(self) -> None:
        """Give the place of `try_acquire` to the next waiter."""
        if self._places is not None:
            self._returned.append(0)
            self._pass_on()

    def release(self, seat: Seat) -> None:
        """Give the place to the next waiter. A second time changes nothing."""
        if seat.ticket:
            self._give_back(seat.ticket)
            seat.ticket = 0

    def _give_back(self, ticket: int) -> None:
        self._returned.append(ticket)
        self._seats.pop(ticket, None)
        self._forget(ticket)
        self._pass_on()

    def _pass_on(self) -> None:
        """Give returned places to waiters, unless somebody holds the lock: they are given on when it is free."""
        # This method never waits for the lock. The garbage collector may close a stream while this same thread holds the lock.
        # Closing returns the stream's place, and waiting for the lock would then never end.
        while bool(self._returned) and if_free(self._lock, self._take_back):
            # Outside the lock: a waiter whose event loop is closed returns its place.
            self._wake_due()
        self._wake_due()
        self.relieve()

    def _take_back(self) -> bool:
        """Take all returned places back, for those who wait. The caller holds the lock."""
        assert self._places is not None
        self._begin_change()
        while self._returned:
            # Removed afterwards: giving a place back twice changes nothing.
            ticket = self._returned[0] or self._returned.popleft()
            following = self._places.release(ticket)
            if following is not None:
                self._to_wake[following] = None
            if ticket:
                self._returned.popleft()
        self._is_torn = False
        return True

    def _begin_change(self) -> None:
        """A change of the places begins. If the last one was interrupted, complete that first. The caller holds the lock."""
        if self._is_torn and self._places is not None:
            self._to_wake.update(dict.fromkeys(self._places.mend()))
            self._to_wake.update(dict.fromkeys(t for t in list(self._wakers) if self._places.holds(t)))
        self._is_torn = True

    def _wake_beyond(self, ticket: int) -> None:
        """Let a waiting call go although no place is free. The caller holds the lock."""
        self._begin_change()
        if self._places is not None and ticket in self._wakers and not self._places.holds(ticket):
            self._places.wake_beyond(ticket)
            self._to_wake[ticket] = None
        self._is_torn = False

    # --- places ---

    def _seat(self) -> Seat:
        """Return a seat for a call. Its ticket is known before the place is taken, so the place can be given back at any moment."""
        places = self._places
        seat = Seat(0 if places is None else places.ticket())
        if seat.ticket:
            self._seats[seat.ticket] = ref(seat)
        return seat

    async def _place_async(  # noqa: PLR0917 - as `acquire_async` takes them
        self,
        seat: Seat,
        clock: Clock,
        deadline: float | None,
        check: Check | None,
        turn_in_line: QueueTurn,
        settings: Settings | None,
        report: Report | None,
    ) -> None:
        if not seat.ticket:
            return
        loop = running_loop()
        turn: asyncio.Future[bool] = loop.create_future()

        # The place may be released in another thread or event loop.
        def wake() -> None:
            loop.call_soon_threadsafe(_finish, turn, True)  # noqa: FBT003 - a callback of the loop

        if not self._enter(seat, wake, turn_in_line, settings):
            return
        if report is not None:
            report("place", None)
        timer = None if deadline is None else loop.call_later(_left(clock, deadline), _finish, turn, False)  # noqa: FBT003 - a callback of the loop
        try:
            while not turn.done():
                if check is not None:
                    check()
                await asyncio.wait((turn,), timeout=_LOOK_S if check is None else CHECK_S)
                self._look_for_abandoned()
            came = await turn
        finally:
            if timer is not None:
                timer.cancel()
        if not came:
            raise self._full()

    def _place(  # noqa: PLR0917 - as `acquire` takes them
        self,
        seat: Seat,
        clock: Clock,
        deadline: float | None,
        check: Check | None,
        turn_in_line: QueueTurn,
        settings: Settings | None,
        report: Report | None,
    ) -> None:
        if not seat.ticket:
            return
        # A bare lock: unlike an Event, it can be released while this very thread is about to wait for it.
        turn = threading.Lock()
        turn.acquire()

        def wake() -> None:
            with suppress(RuntimeError):  # it is woken already
                turn.release()

        if not self._enter(seat, wake, turn_in_line, settings):
            return
        if report is not None:
            report("place", None)
        if runs_loop() and not turn.acquire(blocking=False):
            # The calls before this one may need the loop to go on, and it stands still while this thread waits.
            raise self._full(_STOPS_LOOP)
        left = math.inf if deadline is None else _left(clock, deadline)
        for part in _parts(left, check, _LOOK_S):
            if turn.acquire(timeout=part):
                return
            self._look_for_abandoned()
        raise self._full()

    def _enter(self, seat: Seat, wake: Callable[[], None], turn: QueueTurn, settings: Settings | None) -> bool:
        """Take a place at once, or one in the queue; return whether the call has to wait. The reader of a stream with a place may go without one."""
        assert self._places is not None
        ticket = seat.ticket
        with self._after, self._lock:
            self._begin_change()
            # A copy, because the garbage collector may end a stream at any time.
            if self.readers and seat.owner in list(self.readers.values()):
                if not self._places.try_acquire(ticket):
                    seat.ticket = 0
                self._is_torn = False
                return False
            entry = self._places.acquire(turn, ticket)
            if isinstance(entry, Queued):
                self._wakers[ticket] = wake
                if settings is not None:
                    self._settings[ticket] = settings
                if self.readers and (reads := _READS.get()):
                    self._inside[ticket] = reads
            self._is_torn = False
        if entry is Place.FULL:
            raise self._full()
        if entry is Place.ACQUIRED:
            return False
        self.relieve()
        self._look_for_abandoned()
        return True

    def _look_for_abandoned(self) -> None:
        """Give on the places of calls that nothing can end: nobody has their seats any more, or their event loops were closed."""
        for ticket, known in list(self._seats.items()):
            seat = known()
            if seat is None or is_abandoned(seat.owner() if isinstance(seat.owner, ref) else seat.owner):
                self._give_back(ticket)

    def relieve(self) -> None:
        """If streams hold all places, let the first waiting call go that one of their readers may wait for."""
        # One at a time, beyond the number of places: so the reader goes on, and ends its stream sooner or later.
        self._relief_due = True
        # Like `_pass_on`, this never waits for the lock: who holds it looks here afterwards.
        while self._relief_due and self._inside and if_free(self._lock, self._let_one_go):
            self._wake_due()

    def _let_one_go(self) -> bool:
        self._relief_due = False
        if self._places is not None and self._places.running <= len(self.readers):
            waiting = (ticket for ticket, reads in self._inside.items() if any(one.is_held for one in reads))
            if (woken := next(waiting, None)) is not None:
                self._wake_beyond(woken)
        return True

    def _wake_due(self) -> None:
        """Wake those who have got a place. If the event loop of one is closed, its place is returned: call `_pass_on` after this."""
        for ticket in list(self._to_wake):
            # Woken before it is forgotten: being woken twice changes nothing.
            if (wake := self._wakers.get(ticket)) is not None:
                try:
                    wake()
                except RuntimeError:
                    self._returned.append(ticket)
            self._forget(ticket)
            self._to_wake.pop(ticket, None)

    def _forget(self, ticket: int) -> None:
        self._wakers.pop(ticket, None)
        self._settings.pop(ticket, None)
        self._inside.pop(ticket, None)

    def _full(self, why: str = "") -> HoldfastError:
        limit = 0 if self._bulkhead is None else self._bulkhead.concurrency
        fault = Fault.of("SYS_BULKHEAD_FULL", context={"limit": limit, "name": self.name})
        return HoldfastError(structs.replace(fault, message=fault.message + why) if why else fault)

    # --- pace ---

    def _waits_for_start(  # noqa: PLR0917 - as `acquire_async` takes them
        self,
        runtime: Sleeper,
        deadline: float | None,
        priority: Priority,
        wake: Callable[[], None],
        settings: Settings | None,
        report: Report | None,
    ) -> Generator[float]:
        """Yield the seconds to sleep until the call may start. Calls of a higher priority may delay it meanwhile."""
        now = runtime.clock.monotonic()
        turn: Rank | None = None
        started = False
        try:
            with self._after, self._lock:
                turn = self._starts.turn(priority)
            wait = self._reserve_start(now, deadline, turn)
            if not wait:
                return
            if report is not None:
                report("pace", wait)
            self._naps[turn] = wake
            if settings is not None:
                self._settings[turn] = settings
            while wait > _ROUNDING and runtime.waits:
                yield wait
                now = runtime.clock.monotonic()
                with self._after, self._lock:
                    wait = self._starts.start_of(turn) - now
                if wait > _ROUNDING and deadline is not None and now + wait >= deadline:
                    raise self._too_late(wait)
            started = True
        finally:
            if turn is not None:
                self._naps.pop(turn, None)
                self._settings.pop(turn, None)
                self._leave_start(turn, started=started)

    def _leave_start(self, turn: Rank, *, started: bool) -> None:
        with self._after, self._lock:
            if started or self._pace is None:
                self._starts.leave(turn)
            elif (start := self._starts.give_back(turn)) is not None:
                # The start is given back, so that the next caller can use it.
                self._pace.cancel(start)
            following = self._starts.next_to_wake
        if following is not None and (wake_next := self._naps.get(following)) is not None:
            wake_next()

    def _reserve_start(self, now: float, deadline: float | None, turn: Rank) -> float:
        """Reserve a start and return the wait for it; 0: it starts now, and has no start to give back."""
        if self._pace is None:
            return 0.0
        with self._after, self._lock:
            wait = self._pace.reserve(now)
            if not wait:
                return 0.0
            wait = self._starts.join(turn, now + wait) - now
        if deadline is None or now + wait < deadline:
            return wait
        raise self._too_late(wait)

    def _too_late(self, wait: float) -> HoldfastError:
        context = {"limit": 0.0 if self._rate is None else self._rate.per_second, "name": self.name}
        return HoldfastError(Fault.of("SYS_RATE_LIMITED", retry_after=wait, context=context))


class _TaskNap:
    """A sleep in a task that ends early if something wakes it, in whatever thread."""

    __slots__ = ("_loop", "_woken")

    def __init__(self) -> None:
        self._loop = running_loop()
        self._woken: asyncio.Future[bool] | None = None

    async def sleep(self, seconds: float) -> bool:
        """Sleep; return whether something woke it."""
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._woken = woken
        timer = self._loop.call_later(seconds, _finish, woken, False)  # noqa: FBT003 - a callback of the loop
        try:
            return await woken
        finally:
            timer.cancel()

    def wake(self) -> None:
        # A closed loop has no sleepers.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._woken is not None:
            _finish(self._woken, True)  # noqa: FBT003 - as a callback of the loop


def _finish(turn: asyncio.Future[bool], came: bool) -> None:  # noqa: FBT001 - a callback of the loop takes positional arguments
    if not turn.done():
        turn.set_result(came)


class _ThreadNap:
    """The same in a thread."""

    __slots__ = ("_asleep", "_runtime", "_woken")

    def __init__(self, runtime: Sleeper) -> None:
        self._runtime = runtime
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._woken = False

    def sleep(self, seconds: float) -> bool:
        self._runtime.sleep(seconds, self._asleep)
        woken, self._woken = self._woken, False
        return woken

    def wake(self) -> None:
        self._woken = True
        with suppress(RuntimeError):  # it is woken already
            self._asleep.release()


def _frees(settings: Settings, limiter: Limiter) -> bool:
    """Whether a call with these settings is not limited any more. Settings that are wrong change nothing."""
    try:
        return settings.fresh().limiter is not limiter
    except HoldfastError:
        return False


class StreamPlace:
    """The place of a stream, which holds it until it is over. The reader may make other calls between two items."""

    __slots__ = ("_limiter", "_seat")

    def __init__(self, limiter: Limiter, seat: Seat) -> None:
        self._limiter = limiter
        self._seat = seat
        if seat.ticket:
            self.read()
            # Perhaps streams now hold all places.
            limiter.relieve()

    def read(self) -> None:
        """The present task or thread reads the stream."""
        if not self._seat.ticket:
            return
        readers = self._limiter.readers
        readers[self] = _handle(present_owner())
        reads = _READS.get()
        if self not in reads:
            _READS.set((*(one for one in reads if one.is_held), self))

    @property
    def is_held(self) -> bool:
        """Whether the stream is not over yet."""
        return self in self._limiter.readers

    def release(self) -> None:
        """Give the place back. The garbage collector may call this at any time, so it waits for nothing."""
        self._limiter.readers.pop(self, None)
        self._limiter.release(self._seat)


_READS: ContextVar[tuple[StreamPlace, ...]] = ContextVar("holdfast_reads", default=())
"""The places of the streams that the present task reads, or read when it began the task or thread that is present."""


def _handle(owner: object) -> object:
    """Return what stands for a task or a thread. A task is not kept alive: its stream would never be dropped."""
    return owner if isinstance(owner, ThreadOwner) else ref(owner)


LimiterOptions: TypeAlias = tuple[int | None, int | None, float | None, int | None]
"""`concurrency`, `waiting`, `per_second` and `burst` of a policy."""
_N = TypeVar("_N", int, float)
_Limits: TypeAlias = "tuple[Bulkhead | None, RateLimit | None]"


def limits_of(
    concurrency: int | None, waiting: int | None, per_second: float | None, burst: int | None = None
) -> _Limits:
    """Return the limits that these options of a policy describe."""
    bulkhead = None if concurrency is None else Bulkhead(concurrency=concurrency, waiting=waiting)
    return bulkhead, None if per_second is None else RateLimit(per_second=per_second, burst=burst or 1)


def strictest(present: LimiterOptions, wanted: LimiterOptions) -> LimiterOptions:
    """Return the smaller number of each option; an option that only one of them has is as that one has it."""
    return (
        _smaller(present[0], wanted[0]),
        _smaller(present[1], wanted[1]),
        _smaller(present[2], wanted[2]),
        _smaller(present[3], wanted[3]),
    )


def _smaller(one: _N | None, other: _N | None) -> _N | None:
    return one if other is None or (one is not None and one <= other) else other


def limiter_for(
    name: str, concurrency: int | None, waiting: int | None, per_second: float | None, burst: int | None = None
) -> Limiter:
    """Return the limiter that these options of a policy describe."""
    return Limiter(name, *limits_of(concurrency, waiting, per_second, burst))


def _parts(seconds: float, check: Check | None, most: float = math.inf) -> Iterator[float]:
    """Cut a wait into parts of at most so many seconds, and short enough for `check` to end it in time."""
    part = most if check is None else min(most, CHECK_S)
    while seconds > 0:
        if check is not None:
            check()
        yield min(seconds, part)
        seconds -= part


def _left(clock: Clock, deadline: float) -> float:
    return max(0.0, deadline - clock.monotonic())
