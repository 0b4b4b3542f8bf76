"""Children that are commands: the host of `Child(["redis-server"])`.

Invariant: when an incarnation has ended, no process of the command's tree is alive. A kill is SIGKILL at once, for the whole tree.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from holdfast.actors.task import Handle, TaskRun
from holdfast.faults import InvalidError
from holdfast.supervision.exits import Error, Killed
from holdfast.tools.process import Process
from holdfast.tools.process_error import ProcessError

if TYPE_CHECKING:
    from holdfast.actors.child import Child
    from holdfast.actors.host import Place
    from holdfast.supervision.exits import Exit
    from holdfast.tools.process import Run
    from holdfast.tools.process_error import Finished

__all__ = ["CommandChildRun", "CommandHost"]


class CommandChildRun(TaskRun):
    """One run of a command, and the task that waits for it."""

    def __init__(self, command: Run, name: str) -> None:
        self._command = command.command
        self._process: Process | None = None
        super().__init__(self._finished, name)

    async def _finished(self) -> Finished:
        process = self._process = Process(self._command)
        try:
            return await process.finished()
        finally:
            # SIGTERM, and SIGKILL after the grace of the command, unless it has ended or is killed.
            await process.stop()

    def kill(self) -> None:
        """End the command and everything that it has started with SIGKILL, at once."""
        if self._process is not None:
            self._process.kill()
        self._cancel(Killed(signal.SIGKILL))

    def _failed(self, error: BaseException) -> Exit:
        # A command that a limit of its own has stopped was not killed from outside.
        if isinstance(error, ProcessError) and error.finished is not None and "limit" not in error.fault.context:
            code = error.finished.exit_code
            return Killed(-code, error) if code < 0 else Error(error)
        return Error(error)


class CommandHost:
    """Runs a command, each time anew."""

    def __init__(self, child: Child, place: Place) -> None:
        if child.ready:
            raise InvalidError.saying(
                f"child {place.path}.ready", "False for a command, which cannot call ready()", "True"
            )
        self._child = child
        self._place = place
        self.ref: Handle[Finished] = Handle(place)

    async def start(self, incarnation: int, cause: Exit | None) -> CommandChildRun:
        """Start the command."""
        del cause  # a command starts the same way every time
        self.ref._opened(incarnation)  # noqa: SLF001 - the host's own handle
        return CommandChildRun(self._child.factory, f"{self._place.path}#{incarnation}")

    def close(self, how: Exit) -> None:
        """End the waits for the command."""
        self.ref._close(how)  # noqa: SLF001 - the host's own handle
