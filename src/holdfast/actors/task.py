"""Children that run as asyncio tasks: the host of coroutine functions.

Invariants: nothing that a child raises leaves its task, not even `SystemExit`. A cancellation counts as requested only if `stop` or
`kill` was called before it.
"""

from __future__ import annotations

import asyncio
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.actors.errors import IgnoreStart, StartError
from holdfast.events import ChildLeaked
from holdfast.faults import InvalidError
from holdfast.supervision.exits import Error, Exit, Killed, Normal, Shutdown

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.actors.child import Child
    from holdfast.actors.host import Place
    from holdfast.runtime.runtime import Runtime

__all__ = ["Handle", "TaskHost", "TaskRun", "abandon", "ready"]

T = TypeVar("T")

_READY: ContextVar[Callable[[], None] | None] = ContextVar("holdfast_ready", default=None)


def ready() -> None:
    """Report that this child has started. Its supervisor, which was given `ready=True`, goes on to the next child.

        async def serve(port: int) -> None:
            server = await asyncio.start_server(answer, port=port)
            ready()
            await server.serve_forever()

    Outside of such a child it does nothing.
    """
    report = _READY.get()
    if report is not None:
        report()


class Handle(Generic[T]):
    """What `Supervisor.start` returns for a coroutine function. It stays the same over restarts.

    For example:
        poller = await team.start(poll, "inbox")
        print(poller.path, poller.incarnation)
        how = await poller.wait()
    """

    __slots__ = ("_ended", "id", "incarnation", "path")

    def __init__(self, place: Place) -> None:
        self.id = place.id
        self.path = place.path
        self.incarnation = 0
        """How often it was started."""
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def wait(self) -> Exit:
        """Wait until the child has ended for good, and return how. A restart does not end this wait."""
        # Shielded: several may wait, and one that is cancelled must not cancel the others.
        return await asyncio.shield(self._ended)

    @property
    def exit(self) -> Exit | None:
        """How the child ended for good; None while it runs or may be restarted."""
        return self._ended.result() if self._ended.done() else None

    def _opened(self, incarnation: int) -> None:
        self.incarnation = incarnation
        if self._ended.done():
            # A group restart or a person brought the child back.
            self._ended = asyncio.get_running_loop().create_future()

    def _close(self, how: Exit) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    def __repr__(self) -> str:
        return f"<Handle {self.path} {'running' if self.exit is None else self.exit}>"


class TaskRun:
    """A coroutine as one incarnation of a child."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, Any]], name: str) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self._requested: Exit | None = None
        """How it ends if it obeys the cancellation that was requested."""
        self._task = loop.create_task(self._run(main), name=name)
        self._task.add_done_callback(self._done)

    async def _run(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            how: Exit = Normal(await main())
        except asyncio.CancelledError as error:
            how = self._requested or Error(error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and self._task.get_loop().is_closed():
                # Python throws an abandoned coroutine away; there is nobody to report to.
                raise
            # A child without `ready=True` has started already. It ends as if it had not.
            how = Error(error, "stop") if isinstance(error, IgnoreStart) else self._failed(error)
        if not self.exited.done():
            self.exited.set_result(how)

    def _failed(self, error: BaseException) -> Exit:
        """Return how a coroutine ended that raised."""
        return Error(error)

    async def stop(self, reason: Exit, grace: float | None) -> Exit | None:
        """Cancel the task and wait for its end."""
        self._cancel(reason)
        # Not `wait_for`: it would wait for a task that ignores its cancellation.
        await asyncio.wait({self.exited}, timeout=grace)
        return self.exited.result() if self.exited.done() else None

    def kill(self) -> None:
        """Cancel the task and do not wait."""
        self._cancel(Killed())

    @property
    def task(self) -> asyncio.Task[None]:
        """The task, to look at."""
        return self._task

    def _cancel(self, reason: Exit) -> None:
        if self.exited.done():
            return
        # The flag is set first: a task may end as soon as it is cancelled.
        self._requested = reason
        self._task.cancel()

    def _done(self, _task: asyncio.Task[None]) -> None:
        # Python cancels a coroutine that has not begun without running a line of it, so `_run` could not report.
        if not self.exited.done():
            self.exited.set_result(self._requested or Error(asyncio.CancelledError()))


class TaskHost:
    """Runs a coroutine function as a task."""

    def __init__(self, child: Child, place: Place) -> None:
        self._child = child
        self._place = place
        self.ref: Handle[Any] = Handle(place)

    async def start(self, incarnation: int, cause: Exit | None) -> TaskRun | None:
        """Start the coroutine. With `ready=True`, wait until it calls `ready()`."""
        del cause  # a coroutine function starts the same way every time
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        run = TaskRun(lambda: self._main(started), f"{self._place.path}#{incarnation}")
        self.ref._opened(incarnation)  # noqa: SLF001 - the host's own handle
        if not self._child.ready:
            return run
        try:
            either: set[asyncio.Future[Any]] = {started, run.exited}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if await run.stop(Shutdown("start cancelled"), _grace(self._child)) is None:
                self._report_leak(run, incarnation)
            raise
        if started.done():
            return run
        self._check_needed(run.exited.result())
        return None

    def close(self, how: Exit) -> None:
        """End the waits for the child."""
        self.ref._close(how)  # noqa: SLF001 - the host's own handle

    def _report_leak(self, run: TaskRun, incarnation: int) -> None:
        runtime, path = self._place.runtime, self._place.path.removesuffix(f"/{self._place.id}")
        abandon(run.task, runtime)
        leaked = ChildLeaked(at=runtime.clock.wall(), supervisor=path, child=self._place.id, incarnation=incarnation)
        runtime.bus.emit(leaked)

    async def _main(self, started: asyncio.Future[None]) -> Any:
        _READY.set(lambda: None if started.done() else started.set_result(None))
        main = self._child.factory(*self._child.args)
        if not inspect.isawaitable(main):
            raise InvalidError.at(f"child {self._place.path}", "a factory that returns a coroutine", main)
        return await main

    def _check_needed(self, how: Exit) -> None:
        """Raise why the child did not start, unless it is not needed."""
        if isinstance(how, Error):
            if isinstance(how.error, IgnoreStart):
                return
            if isinstance(how.error, Exception):
                raise how.error
            # A start fails with an Exception, so that a cancellation here always is the supervisor's own.
            raise StartError.because(actor=self._place.path, reason=str(how)) from how.error
        raise StartError.because(actor=self._place.path, reason="it ended before it called ready()")


def abandon(task: asyncio.Task[Any], runtime: Runtime) -> None:
    """Let go of a task that ignores its cancellation. It must not keep the event loop from ending."""
    # An event loop refers to its tasks weakly, so a task that nobody holds could vanish midway.
    runtime.leaked_tasks.add(task)
    task.add_done_callback(runtime.leaked_tasks.discard)
    # `asyncio.run` waits for every registered task when it ends. It would wait for this one for ever.
    asyncio.tasks._unregister_task(task)  # noqa: SLF001 - documented for authors of task classes
    task._log_destroy_pending = False  # type: ignore[attr-defined] # pyright: ignore # noqa: SLF001, PGH003 - the leak is reported


def _grace(child: Child) -> float | None:
    if child.shutdown == "brutal":
        return 0
    return child.shutdown if child.shutdown is not None and child.shutdown < float("inf") else 5.0
