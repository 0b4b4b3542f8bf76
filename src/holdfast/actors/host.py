"""The seam between supervisors and what they supervise: a `Host` runs one child, incarnation after incarnation.

    host = host_for(child, place)          # once for each place in a supervisor
    running = await host.start(1, None)    # returns when the child has started; raises if it could not
    how = await running.exited            # how it ended
    running = await host.start(2, how)    # its next incarnation
    host.close(how)                       # it will not be started again

A factory names its host with an attribute `__holdfast_host__`, a function of child and place. Coroutine functions run as tasks, commands as processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from holdfast.actors.command import CommandHost
from holdfast.actors.task import TaskHost
from holdfast.tools.process import Run

if TYPE_CHECKING:
    import asyncio

    from holdfast.actors.child import Child
    from holdfast.runtime.runtime import Runtime
    from holdfast.supervision.exits import Exit

__all__ = ["Host", "Place", "Running", "host_for"]


class Place:
    """Where a child runs: its path in the tree of supervisors, and the runtime that it reports to."""

    __slots__ = ("id", "path", "runtime")

    def __init__(self, id: str, path: str, runtime: Runtime) -> None:  # noqa: A002 - the word that supervisors use
        self.id = id
        self.path = path
        """The names from the root to the child: `team/coder`."""
        self.runtime = runtime


class Running(Protocol):
    """One incarnation of a child."""

    @property
    def exited(self) -> asyncio.Future[Exit]:
        """Done when the incarnation has ended, with how it ended. It never holds an exception and is never cancelled."""
        ...

    async def stop(self, reason: Exit, grace: float | None, /) -> Exit | None:
        """Request the end and wait for it, at most `grace` seconds (None: as long as it takes).

        Returns how it ended, or None if it still runs. An end that this request caused is `Shutdown`.
        """
        ...

    def kill(self) -> None:
        """End it without asking and without waiting. A task that ignores its cancellation goes on; nothing can end it."""
        ...


class Host(Protocol):
    """Runs one child, incarnation after incarnation. What must survive a restart, such as a mailbox, lives here."""

    @property
    def ref(self) -> Any:
        """What the user holds of the child. It is the same over all restarts."""
        ...

    async def start(self, incarnation: int, cause: Exit | None, /) -> Running | None:
        """Start an incarnation, counted from 1, and return when it is ready. `cause` is how the last one ended.

        Returns None if the child is not needed (it is listed and does not run). Raises the `Exception` that the child raised
        while it started; another BaseException is the cause of a `StartError`. If this call is cancelled, nothing of the child may go on.
        """
        ...

    def close(self, how: Exit, /) -> None:
        """Note that the child is not started again by itself: what waits for it must end now.

        A group restart or a person may start it later; then it is open again.
        """
        ...


def host_for(child: Child, place: Place) -> Host:
    """Return the host for a child: its own, the one that its factory names, that of commands, or a task."""
    factory = getattr(child.factory, "func", child.factory)  # functools.partial
    usual = CommandHost if isinstance(factory, Run) else TaskHost
    make = child.host or getattr(factory, "__holdfast_host__", None) or usual
    return make(child, place)
