"""One task that owns a supervisor's children: it takes one report at a time and performs what the machine decides.

Invariants: children start, stop and restart only in this task, so there are no locks. A delay or a failed restart is posted to the
queue again and never awaited, so administrative calls and `stop` are served between attempts. Whatever a child does, the task goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.actors.crash import fault_of_exit, log_traceback
from holdfast.actors.errors import ChildStoppedError, GaveUpError, StartError
from holdfast.actors.host import Place, host_for
from holdfast.actors.task import abandon
from holdfast.events import ChildExited, ChildLeaked, ChildRestarting, ChildStarted, ChildStopped, Event, GaveUp
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.supervision import decision as do
from holdfast.supervision.exits import Error, Exit, Killed, Shutdown
from holdfast.supervision.machine import SupervisorMachine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.actors.child import Child
    from holdfast.actors.host import Host, Running
    from holdfast.runtime.runtime import Runtime
    from holdfast.supervision.intensity import Rules

__all__ = ["ChildSeat", "SupervisorLoop"]

T = TypeVar("T")

_KILL_WAIT_S = 0.5
"""How long a killed child may take to be gone. What is not gone by then is reported as leaked."""

_START_WAIT_S = 1.0
"""How long a child that starts may wait for its own supervisor."""


class ChildSeat:
    """A child, the host that runs it, and its present incarnation."""

    __slots__ = ("child", "host", "incarnation", "is_closed", "place", "running", "shutdown")

    def __init__(self, child: Child, place: Place) -> None:
        self.child = child
        self.shutdown = child.spec(place.id).shutdown
        self.place = place
        self.host: Host = host_for(child, place)
        self.running: Running | None = None
        self.incarnation = 0
        self.is_closed = False


class _Start:
    """A start that is under way. What a child does while it starts runs in a context that names this."""

    __slots__ = ("around", "id")

    def __init__(self, id: str, around: _Start | None) -> None:  # noqa: A002 - the word that supervisors use
        self.id = id
        self.around = around
        """The start of the supervisor itself, if it is a child that starts."""


_START: ContextVar[_Start | None] = ContextVar("holdfast_start", default=None)


class SupervisorLoop:
    """Supervises the children of one supervisor, from `open` until `ended`."""

    def __init__(self, path: str, rules: Rules, children: Mapping[str, Child], runtime: Runtime) -> None:
        self.path = path
        self.runtime = runtime
        self.machine = SupervisorMachine(rules, [child.spec(name) for name, child in children.items()])
        self._loop = asyncio.get_running_loop()
        self.seats: dict[str, ChildSeat] = {}
        for id, child in children.items():  # noqa: A001 - the word that supervisors use
            self.seats[id] = self._seat(id, child)
        self.first_refs = {name: seat.host.ref for name, seat in self.seats.items()}
        """The refs of the children that it was opened with, by id. A child that has ended may have no seat any more."""
        self.ended: asyncio.Future[Exit] = self._loop.create_future()
        """How this supervisor ended: `Shutdown`, or `Error` with the error that its block raises."""
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._queue: deque[Callable[[], Awaitable[Exit | None]]] = deque()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._is_hurried = False
        self._start_limit: asyncio.Timeout | None = None
        self._present_start: _Start | None = None
        self.since = self._loop.time()
        """When it was opened."""
        self._timers: set[asyncio.TimerHandle] = set()
        self._calls: set[asyncio.Future[Any]] = set()
        self._task = self._loop.create_task(self._main(), name=f"supervisor {path}")

    # For the supervisor

    async def open(self) -> None:
        """Wait until all children have started. Raises `StartError` if one did not; then none of them runs."""
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            await self.stop()
            raise
        except BaseException:
            # The children that had started are stopped first.
            await self._until_ended()
            raise

    async def stop(self) -> Exit:
        """Stop all children in reverse order and return how the supervisor ended.

        A cancellation kills what still runs, so that the caller need not wait for it.
        """
        self.request_stop()
        return await self._until_ended()

    def request_stop(self) -> None:
        """Begin to stop. A start that is under way is broken off."""
        self._is_stopping = True
        self._wake.set()
        self._break_start()

    def _break_start(self) -> None:
        if self._start_limit is not None:
            self._start_limit.reschedule(self._loop.time())

    def _break_start_if_cancelled(self, reply: asyncio.Future[Any]) -> None:
        # Nobody waits for this start any more, and everything else that the supervisor does waits behind it.
        if reply.cancelled():
            self._break_start()

    @property
    def starts(self) -> str | None:
        """The id of the child that it is starting."""
        return None if self._present_start is None else self._present_start.id

    async def _until_ended(self) -> Exit:
        try:
            return await asyncio.shield(self.ended)
        except asyncio.CancelledError:
            if self.ended.cancelled():
                raise
        # Whoever waited is cancelled and must not wait any longer than it takes to kill.
        self.hurry()
        await asyncio.wait({self.ended})
        raise asyncio.CancelledError

    def hurry(self) -> None:
        """Kill what still runs."""
        if not self.ended.done():
            self.request_stop()
            self._is_hurried = True
            self._task.cancel()

    async def call(self, work: Callable[[], Awaitable[T]], undo: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Run `work` in the supervisor's task, between two reports, and return its result.

        If the caller is cancelled before it has the result, `undo` runs.
        """
        self._check_caller()
        if self.ended.done() or self._is_stopping:
            raise self._stopped()
        reply: asyncio.Future[T] = self._loop.create_future()
        self._calls.add(reply)
        self._post(partial(self._answer, work, reply, undo))
        try:
            await self._check_deadlock(reply)
            return await reply
        except asyncio.CancelledError:
            # The result may be there already, and lost with the caller that was cancelled before it woke up.
            if not reply.cancel() and undo is not None and not reply.cancelled() and reply.exception() is None:
                self._post(partial(undo, reply.result()))
            raise

    def _check_caller(self) -> None:
        """Raise if the caller runs in another event loop, whose futures cannot be waited for here."""
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidError.saying(
                f"supervisor {self.path}",
                "a call in its own event loop; from elsewhere use asyncio.run_coroutine_threadsafe",
                "a call in another loop",
            )

    async def _check_deadlock(self, reply: asyncio.Future[Any]) -> None:
        """Raise if the caller is a child that this supervisor is starting: each would wait for the other."""
        start = _START.get()
        while start is not None and start is not self._present_start:
            start = start.around
        if start is None:
            return
        # A child that has just started may call before the supervisor has noticed.
        await asyncio.wait({reply}, timeout=_START_WAIT_S)
        if start is self._present_start and not reply.done():
            reply.cancel()
            raise InvalidError.saying(
                f"supervisor {self.path}",
                f"a call after {start.id} has started",
                f"one while {start.id} starts, and each would wait for the other",
            )

    # The task

    async def _main(self) -> None:
        how: Exit = Shutdown()
        try:
            how = await self._open_all() or await self._serve()
        except asyncio.CancelledError:
            # The event loop ends, or somebody hurries.
            how = Shutdown("cancelled")
        except BaseException as error:  # noqa: BLE001 - a defect of ours must not leave children running
            how = Error(error)
        await self._close_all(how)
        if not self._opened.done():
            self._opened.set_exception(_raisable(how) or self._stopped())
            self._opened.exception()
        self.ended.set_result(how)

    async def _open_all(self) -> Exit | None:
        try:
            ended = await self._perform(self.machine.open())
        except StartError as error:
            return Error(error)
        if ended is None and not self._is_stopping:
            self._opened.set_result(None)
        return ended

    async def _serve(self) -> Exit:
        while True:
            while not self._queue and not self._is_stopping:
                self._wake.clear()
                await self._wake.wait()
            if self._is_stopping:
                return Shutdown("stopped")
            ended = await self._queue.popleft()()
            if ended is not None:
                return ended

    def _post(self, report: Callable[[], Awaitable[Exit | None]]) -> None:
        self._queue.append(report)
        self._wake.set()

    async def _answer(
        self,
        work: Callable[[], Awaitable[T]],
        reply: asyncio.Future[T],
        undo: Callable[[T], Awaitable[None]] | None,
    ) -> None:
        self._calls.discard(reply)
        if reply.cancelled():
            return
        if undo is not None:
            reply.add_done_callback(self._break_start_if_cancelled)
        try:
            result = await work()
        except asyncio.CancelledError:
            reply.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it is the caller's
            if not reply.done():
                reply.set_exception(error)
            return
        if not reply.done():
            reply.set_result(result)
        elif undo is not None:
            await undo(result)

    async def _exited(self, seat: ChildSeat, incarnation: int, how: Exit) -> Exit | None:
        if seat.running is None or seat.incarnation != incarnation:
            return None
        seat.running = None
        if isinstance(how, Error):
            log_traceback(how.error, seat.place.path, self.runtime)
        if self._wants(ChildExited):
            self._emit(
                ChildExited(
                    at=self._now_wall(),
                    supervisor=self.path,
                    child=seat.place.id,
                    incarnation=incarnation,
                    reason=str(how),
                    fault=self._fault(seat.place.id, how),
                )
            )
        if isinstance(how, Error) and isinstance(how.error, KeyboardInterrupt):
            return how
        return await self._perform(
            self.machine.exited(seat.place.id, incarnation, how, self._loop.time(), self.runtime.rng)
        )

    async def _retry(self, step: do.Wait) -> Exit | None:
        return await self._perform(self.machine.retry(step.id, step.token, self._loop.time()))

    # Performing

    async def _perform(self, decision: do.Decision) -> Exit | None:
        """Perform the steps in order. Returns how the supervisor ends, if one of them ends it.

        Raises `StartError` if a child did not start that somebody waits for.
        """
        steps = deque(decision)
        failure: StartError | None = None
        while steps and not self._is_stopping:
            step = steps.popleft()
            if isinstance(step, do.Start):
                how = await self._start(step)
                now = self._loop.time()
                if isinstance(how, Error):
                    if step.purpose == "recover":
                        # Nobody waits for this start. Otherwise the caller gets the error.
                        log_traceback(how.error, self.seats[step.id].place.path, self.runtime)
                    # What was to follow depends on this child, so the machine decides again.
                    steps = deque(self.machine.start_failed(step, how, now, self.runtime.rng))
                    failure = None if step.purpose == "recover" else self._start_error(step.id, how.error)
                else:
                    steps.extendleft(reversed(self.machine.started(step, now, runs=how is None)))
            elif isinstance(step, do.Stop):
                await self._stop_all(step.ids)
            elif (ended := self._note(step)) is not None:
                return ended
        if failure is not None:
            raise failure
        return None

    def _note(self, step: do.Step) -> Exit | None:
        """Perform a step that takes no time. Returns how the supervisor ends, if the step ends it."""
        match step:
            case do.Wait():
                self._later(step)
            case do.Close():
                self._close(step)
            case do.Restarting():
                self._report_restart(step)
            case do.GiveUp():
                self._report_give_up(step)
                return None if step.child_only else Error(self._give_up_error(step))
            case do.Finish():
                return Shutdown(f"{step.id}, which is significant, has ended")
            case _:
                pass
        return None

    async def _start(self, step: do.Start) -> Exit | None:
        """Start a child. Returns None if it runs, `Shutdown` if it is not needed, `Error` if it did not start."""
        seat = self.seats[step.id]
        limit = asyncio.timeout(seat.child.start_timeout)
        self._present_start = start = _Start(step.id, _START.get())
        token = _START.set(start)
        try:
            async with limit:
                # `stop` ends a start that is under way through this limit.
                self._start_limit = limit
                running = await seat.host.start(step.incarnation, step.cause)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return Error(error)
        except BaseException as error:  # noqa: BLE001 - a child never takes its supervisor with it
            return Error(self._too_slow(seat) if limit.expired() else error)
        finally:
            self._start_limit = self._present_start = None
            _START.reset(token)
        if running is None:
            return Shutdown("not needed")
        seat.running, seat.incarnation, seat.is_closed = running, step.incarnation, False
        running.exited.add_done_callback(
            lambda future: self._post(partial(self._exited, seat, step.incarnation, future.result()))
        )
        self._emit(ChildStarted(at=self._now_wall(), supervisor=self.path, child=step.id, incarnation=step.incarnation))
        return None

    async def _stop_all(self, ids: tuple[str, ...]) -> None:
        """Stop these children, all at the same time."""
        seats = [seat for id in ids if (seat := self.seats.get(id)) is not None and seat.running is not None]  # noqa: A001
        if len(seats) == 1:
            return await self._stop_one(seats[0])
        stops = {self._loop.create_task(self._stop_one(seat)) for seat in seats}
        while stops:
            try:
                _, stops = await asyncio.wait(stops)
            except asyncio.CancelledError:
                self._is_hurried = True
                for stop in stops:
                    stop.cancel()
        return None

    async def _stop_one(self, seat: ChildSeat) -> None:
        running, seat.running = seat.running, None
        if running is None:
            return
        shutdown = seat.shutdown
        how: Exit | None = None
        if not isinstance(shutdown, str) and not self._is_hurried:
            try:
                how = await running.stop(Shutdown("stopped by its supervisor"), None if shutdown == inf else shutdown)
            except asyncio.CancelledError:
                self._is_hurried = True
            except Exception as error:  # noqa: BLE001 - a host that cannot stop its child is killed
                self.runtime.bus.hook_raised(seat.host, f"stopping {seat.place.path}", error, at=self._now_wall())
        if how is None:
            how = await self._kill(running)
        self._report_stop(seat, running, how)

    async def _kill(self, running: Running) -> Exit | None:
        running.kill()
        deadline = self._loop.time() + _KILL_WAIT_S
        while not running.exited.done() and (left := deadline - self._loop.time()) > 0:
            try:
                await asyncio.wait({running.exited}, timeout=left)
            except asyncio.CancelledError:
                self._is_hurried = True
        return running.exited.result() if running.exited.done() else None

    def _later(self, step: do.Wait) -> None:
        if not step.delay:
            self._post(partial(self._retry, step))
            return

        def due() -> None:
            self._timers.discard(timer)
            self._post(partial(self._retry, step))

        timer = self._loop.call_later(step.delay, due)
        self._timers.add(timer)

    def _close(self, step: do.Close) -> None:
        seat = self.seats[step.id]
        self._close_seat(seat, step.how)
        if step.removed:
            del self.seats[step.id]

    def _close_seat(self, seat: ChildSeat, how: Exit) -> None:
        if not seat.is_closed:
            seat.is_closed = True
            try:
                seat.host.close(how)
            except Exception as error:  # noqa: BLE001 - a child never takes its supervisor with it
                self.runtime.bus.hook_raised(seat.host, f"closing {seat.place.path}", error, at=self._now_wall())

    async def _close_all(self, how: Exit) -> None:
        self._is_stopping = True
        for timer in self._timers:
            timer.cancel()
        with_it = Shutdown("its supervisor gave up" if isinstance(how, Error) else "its supervisor stopped")
        ends = {id: with_it if seat.running else self._last_exit(id, with_it) for id, seat in self.seats.items()}  # noqa: A001
        for step in self.machine.close():
            if isinstance(step, do.Stop):
                await self._stop_all(step.ids)
        for id, seat in self.seats.items():  # noqa: A001 - the word that supervisors use
            self._close_seat(seat, ends[id])
        for reply in self._calls:
            if not reply.done():
                reply.set_exception(self._stopped())

    def _last_exit(self, id: str, otherwise: Exit) -> Exit:  # noqa: A002 - the word that supervisors use
        slot = self.machine.slots.get(id)
        return otherwise if slot is None or slot.last is None else slot.last

    # For administrative calls: they run in the task

    def _seat(self, id: str, child: Child) -> ChildSeat:  # noqa: A002 - the word that supervisors use
        return ChildSeat(child, Place(id, f"{self.path}/{id}", self.runtime))

    async def add(self, id: str, child: Child) -> Host:  # noqa: A002 - the word that supervisors use
        """Start a new child and return its host. Raises `StartError` if it did not start."""
        # First the seat: where no host can be made, nothing is listed.
        try:
            seat = self._seat(id, child)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._start_error(id, error) from error
        decided = self.machine.add(child.spec(id))
        if isinstance(decided, str):
            raise StartError.because(actor=f"{self.path}/{id}", reason="a child of this id is listed already")
        self.seats[id] = seat
        await self._perform(decided)
        if self._is_stopping:
            raise self._stopped()
        return seat.host

    async def perform(self, decision: do.Decision) -> None:
        """Perform what an administrative call decided."""
        await self._perform(decision)

    # Errors and events

    def _stopped(self) -> ChildStoppedError:
        return ChildStoppedError.because(actor=self.path)

    def _too_slow(self, seat: ChildSeat) -> StartError:
        limit = seat.child.start_timeout
        reason = (
            "its supervisor stops" if self._is_stopping else f"it took longer than its start_timeout of {limit:g} s"
        )
        return StartError.because(actor=seat.place.path, reason=reason)

    def _start_error(self, id: str, error: BaseException) -> StartError:  # noqa: A002 - the word that supervisors use
        path = f"{self.path}/{id}"
        # A nested supervisor names the child that failed, which is further down.
        if isinstance(error, StartError):
            return error
        fault = self.runtime.fault_of(error)
        wrapped = StartError.because(actor=path, reason=f"{type(error).__name__}: {fault.message}")
        wrapped.__cause__ = error
        return wrapped

    def _give_up_error(self, step: do.GiveUp) -> BaseException:
        path = f"{self.path}/{step.id}"
        cause = step.how.error if isinstance(step.how, (Error, Killed)) else None
        if step.escalated:
            reason = f"it escalated {type(cause).__name__}"
            error = GaveUpError(Fault.of("ACTOR_CRASHED", context={"actor": path, "reason": reason, "escalated": True}))
        else:
            window = self.machine.rules.window
            context = {"actor": path, "restarts": step.restarts, "window_s": window, "exit": str(step.how)}
            error = GaveUpError(Fault.of("ACTOR_MAX_RESTARTS", _exhausted_text(path, step, window), context=context))
        error.__cause__ = cause
        return error

    def _wants(self, kind: type[Event]) -> bool:
        """Whether somebody reads these events. To classify a failure for nobody would be most of a restart's time."""
        return self.runtime.bus.wants(kind)

    def _emit(self, event: Event) -> None:
        self.runtime.bus.emit(event)

    def _now_wall(self) -> float:
        return self.runtime.clock.wall()

    def _fault(self, id: str, how: Exit) -> Fault | None:  # noqa: A002 - the word that supervisors use
        return fault_of_exit(how, f"{self.path}/{id}", self.runtime)

    def _report_restart(self, step: do.Restarting) -> None:
        if not self._wants(ChildRestarting):
            return
        self._emit(
            ChildRestarting(
                at=self._now_wall(),
                supervisor=self.path,
                child=step.id,
                attempt=step.attempt,
                delay=step.delay,
                fault=self._fault(step.id, step.cause),
            )
        )

    def _report_give_up(self, step: do.GiveUp) -> None:
        self._emit(
            GaveUp(
                at=self._now_wall(),
                supervisor=self.path,
                child=step.id,
                restarts=step.restarts,
                window=self.machine.rules.window,
                fault=self._fault(step.id, step.how),
                child_only=step.child_only,
            )
        )

    def _report_stop(self, seat: ChildSeat, running: Running, how: Exit | None) -> None:
        if how is not None and not self._wants(ChildStopped):
            return
        facts: dict[str, Any] = {
            "at": self._now_wall(),
            "supervisor": self.path,
            "child": seat.place.id,
            "incarnation": seat.incarnation,
        }
        if how is None:
            if isinstance(task := getattr(running, "task", None), asyncio.Task):
                abandon(task, self.runtime)
            self._emit(ChildLeaked(**facts))
        else:
            self._emit(ChildStopped(**facts, fault=self._fault(seat.place.id, how) if isinstance(how, Error) else None))


def _exhausted_text(path: str, step: do.GiveUp, window: float) -> str:
    restarts = f"{step.restarts} restart{'' if step.restarts == 1 else 's'}"
    return f"Actor {path} failed again after {restarts} in {window:g} s: it {step.how}"


def _raisable(how: Exit) -> BaseException | None:
    return how.error if isinstance(how, Error) else None
