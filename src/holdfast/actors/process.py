"""Actors in processes of their own: a segfault, `os._exit` or SIGKILL ends one actor, and nothing else.

    class Parser(Actor, host="process"):
        async def parse(self, text: str) -> list[str]: ...

The mailbox, the time limits and the refs are here, as for any actor; one message at a time is sent to the process.

Invariants: every message that was sent ends with the process: answered, or failed with ACTOR_CRASHED. When a run has ended, no
process of its tree is alive and none is a zombie.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._platform import need_posix
from holdfast.actors.cell import Cell, handlers_of, stopped_midway
from holdfast.actors.errors import StartError
from holdfast.actors.frames import Begin, Call, Failed, Ignored, Returned, Started, Stop, Values, pack, read_frame
from holdfast.actors.health import HealthMonitor
from holdfast.actors.ref import Ref
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.supervision import Error, Killed, Shutdown
from holdfast.tools.guard import note_end, note_start, owner_if_possible
from holdfast.tools.process_mark import MARK, new_mark
from holdfast.tools.process_tree import ProcessTree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.actors.child import Child
    from holdfast.actors.host import Place
    from holdfast.actors.mailbox import Letter
    from holdfast.supervision import Exit

__all__ = ["ProcessHost", "RemoteError"]

_REMAINING_FRAMES_S = 0.5
"""After a process has ended, so long is waited for frames that it sent before: somebody else may hold its socket."""
_POLL_S = 0.01
_ENDS_S = 5.0
"""A process that has closed its socket has so long to end."""


class RemoteError(HoldfastError):
    """What an actor in another process raised, if its class cannot be made again here. `fault` describes it.

    For example:
        except RemoteError as error:
            print(error.fault.code, error.fault.cause)
    """

    code = "ACTOR_ERROR"


class ProcessHost:
    """Runs an actor in a process of its own. The mailbox and the last snapshot are kept here while processes come and go."""

    def __init__(self, child: Child, place: Place) -> None:
        need_posix("an actor in a process")
        self.child = child
        factory: Any = child.factory
        kind: Any = getattr(factory, "func", factory)  # functools.partial
        self.kind: type = kind
        self.health, self.ping = kind.__holdfast_options__.health, kind._ping  # noqa: SLF001 - one room
        given = kind.__holdfast_options__
        self.cell = Cell(
            place.path,
            kind,
            handlers_of(kind),
            place.runtime,
            capacity=given.mailbox,
            stash=given.stash,
            timeout=given.timeout,
        )
        self.values = Values(self.kind, pickled=given.pickle)
        self.ref: Ref[Any] = Ref(self.cell)
        self.state: bytes | None = None
        """The last snapshot that the actor made of itself."""
        # Before the first start, so that a mistake is found where it is written.
        self._begin = self._first_frame(place.path)

    async def start(self, incarnation: int, cause: Exit | None) -> _Run | None:
        """Start a process and return when the actor's hook `started` is done."""
        del cause
        self.cell.begin(incarnation)
        run = _Run(self, msgspec.structs.replace(self._begin, state=self.state))
        try:
            return await run.started()
        except asyncio.CancelledError:
            run.kill()
            raise

    def close(self, how: Exit) -> None:
        """Fail what waits: no further process follows."""
        self.cell.end(how)

    def _first_frame(self, name: str) -> Begin:
        kind = self.kind
        if "<locals>" in kind.__qualname__:
            raise InvalidError.saying(
                f"{kind.__name__}",
                "an actor class at the top of a module, so that its process can import it",
                kind.__qualname__,
            )
        bound, named = getattr(self.child.factory, "args", ()), getattr(self.child.factory, "keywords", {})
        main = getattr(sys.modules.get("__main__"), "__file__", None) if kind.__module__ == "__main__" else None
        return Begin(
            name=name,
            path=[one or os.getcwd() for one in sys.path],  # noqa: PTH109 - as sys.path has it
            module=kind.__module__,
            main=main,
            kind=kind.__qualname__,
            args=self.values.pack_call(kind.__init__, (*bound, *self.child.args), named),  # type: ignore[misc]
            on=_on(self.child.on),
        )


class _Run:
    """One process of an actor."""

    def __init__(self, host: ProcessHost, begin: Begin) -> None:
        self._host = host
        self._begin = begin
        self._cell = host.cell
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self._requested: Exit | None = None
        self._how: Exit | None = None
        """How it ends, as the worker has reported."""
        self._answer: asyncio.Future[Any] | None = None
        self._first: asyncio.Future[Any] = loop.create_future()
        ours, theirs = socket.socketpair()
        self._socket = ours
        # What the actor starts ends with this process, too, if it is killed.
        owner = owner_if_possible()
        self._is_guarded = owner is not None
        self._mark = new_mark(owner)
        try:
            self._popen = _spawn(theirs, self._mark.text)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        if self._is_guarded:
            note_start()
        self.pid = self._popen.pid
        self._tree = ProcessTree(self.pid, self._mark)
        self._gone: asyncio.Future[None] = loop.create_future()
        self._descriptor = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._exited)
        self._monitor: HealthMonitor | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._life = loop.create_task(self._live(), name=f"{host.cell.name}@{self.pid}")

    # --- what its supervisor does ---

    async def started(self) -> _Run | None:
        """Wait until the actor has started; None if it is not needed."""
        waited: set[asyncio.Future[Any]] = {self._first, self.exited}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        name = self._cell.name
        if not self._first.done():
            raise StartError.because(actor=name, reason=f"its process {self.exited.result()} while it was starting")
        first = self._first.result()
        if isinstance(first, Started):
            if self._host.health is not None:
                self._monitor = HealthMonitor(self._cell, self._host.health, self._host.ping, self._hung)
            return self
        await self.exited
        if isinstance(first, Ignored):
            return None
        error = _rebuilt(first, self.pid)
        if isinstance(error, Exception):
            raise error
        raise StartError.because(actor=name, reason=first.fault.message) from error

    async def stop(self, reason: Exit, grace: float | None) -> Exit | None:
        """Have the present message cancelled and the hook `stopping` run, and wait for the end."""
        if not self.exited.done() and self._requested is None:
            self._requested = reason
            self._send(Stop(str(getattr(reason, "detail", None) or reason)))
        await asyncio.wait({self.exited}, timeout=grace)
        return self.exited.result() if self.exited.done() else None

    def kill(self) -> None:
        """End the process and everything that it has started, at once."""
        if not self.exited.done():
            self._requested = Killed(signal.SIGKILL)
            self._tree.send(signal.SIGKILL)

    def _hung(self, error: HoldfastError) -> None:
        self._how = Error(error)
        self._tree.send(signal.SIGKILL)

    # --- its life ---

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_unix_connection(sock=self._socket, limit=1 << 20)
        self._writer = writer
        self._send(self._begin)
        reading = loop.create_task(self._read(reader))
        working = loop.create_task(self._work())
        working.add_done_callback(self._worked)
        try:
            ends: set[asyncio.Future[Any]] = {reading, self._gone}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._gone.done():
                await asyncio.wait({reading}, timeout=_REMAINING_FRAMES_S)
            else:
                await asyncio.wait({self._gone}, timeout=_ENDS_S)
        finally:
            for task in (reading, working):
                task.cancel()
            try:
                await self._end_tree()
            finally:
                self._finish()
            writer.close()
            await asyncio.gather(reading, working, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(
            asyncio.IncompleteReadError, ConnectionError
        ):  # the process has ended; its exit is reported elsewhere
            while True:
                frame = await read_frame(reader)
                if not self._first.done():
                    self._first.set_result(frame)
                elif self._answer is not None and not self._answer.done():
                    self._answer.set_result(frame)

    async def _work(self) -> None:
        """Send one message after the other, and wait for each answer."""
        await asyncio.wait({self._first})
        if not isinstance(self._first.result(), Started):
            return
        mailbox = self._cell.mailbox
        new_future = self._cell.loop.create_future
        while True:
            if mailbox.size:
                letter = mailbox.take()
            else:
                reader = mailbox.reader = new_future()
                letter = await reader
            if letter.withdrawn:
                continue
            call = self._call(letter)
            if call is None:
                continue
            mailbox.begun = letter
            self._answer = new_future()
            self._send(call)
            if not self._settle(letter, await self._answer):
                return

    def _worked(self, working: asyncio.Task[None]) -> None:
        """End the process if a defect has ended the work: nobody would send it messages any more."""
        if not working.cancelled() and (error := working.exception()) is not None:
            self._how = Error(error)
            self._tree.send(signal.SIGKILL)

    def _call(self, letter: Letter) -> Call | None:
        """Return the frame of a message; None if its arguments cannot be sent: then its sender has the error."""
        try:
            args = self._host.values.pack_call(letter.handler, letter.args, letter.kwargs)
        except Exception as error:  # noqa: BLE001 - pickle raises whatever the value's own code raises
            self._fail(letter, error)
            return None
        seconds = None
        if letter.ambient is not None:
            monotonic = self._cell.runtime.clock.monotonic
            cut = letter.ambient.cut_on(monotonic)
            seconds = None if cut is None else max(0.001, cut - monotonic())
        return Call(letter.handler.__name__, args, seconds, letter.request)

    def _settle(self, letter: Letter, frame: Returned | Failed) -> bool:
        """Give the sender its answer; return whether the actor goes on."""
        if isinstance(frame, Failed):
            error = _rebuilt(frame, self.pid)
            if frame.then == "resume":
                self._fail(letter, error)
                self._cell.resumed(letter, frame.fault)
                return True
            self._how = Error(error, frame.then)
            self._fail(letter, self._crash(letter, f"{frame.kind.partition(':')[2]}: {frame.fault.message}", error))
            return False
        if frame.state is not None:
            self._host.state = frame.state
        try:
            value = self._host.values.unpack(frame.value, letter.handler)
        except Exception as error:  # noqa: BLE001 - as for the arguments
            self._fail(letter, error)
        else:
            if letter.reply is not None and not letter.reply.done():
                letter.reply.set_result(value)
        if frame.leaving:
            self._how = Shutdown("by itself")
        return not frame.leaving

    async def _end_tree(self) -> None:
        """Kill what is left of the process and of what it has started, and wait until it is gone."""
        self._tree.send(signal.SIGKILL)
        ends = self._cell.loop.time() + _ENDS_S
        while self._tree.others() and self._cell.loop.time() < ends:
            await asyncio.sleep(_POLL_S)
            self._tree.send(signal.SIGKILL)

    def _exited(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        if not self._gone.done():
            self._gone.set_result(None)

    def _finish(self) -> None:
        """Reap the process, and report how it ended."""
        if self._monitor is not None:
            self._monitor.stop()
        self._tree.send(signal.SIGKILL)
        code = self._popen.wait()
        if self._is_guarded and not self._tree.others():
            note_end()
        if self._descriptor >= 0:
            with suppress(ValueError, RuntimeError):  # the loop is closed or no longer watches it
                self._cell.loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        how = self._how or self._requested or _how_ended(code, self._cell.name)
        is_stop = isinstance(how, Shutdown) or how is self._requested
        mailbox = self._cell.mailbox
        letter = mailbox.current
        if letter is not None and mailbox.begun is letter and not letter.withdrawn:
            if is_stop:
                self._cell.drop(letter, "stopped", stopped_midway(self._cell.name, how))
            else:
                self._fail(letter, self._crash(letter, f"its process {_shown(code)}", None))
        mailbox.put_back()
        if not is_stop:
            self._cell.failed()
        if not self.exited.done():
            self.exited.set_result(how)

    def _fail(self, letter: Letter, error: BaseException) -> None:
        """Give the sender its error. If nobody waits for an answer, the failure is reported."""
        if not letter.fail(error) and not letter.withdrawn:
            self._cell.report(letter, self._cell.runtime.fault_of(error))

    def _crash(self, letter: Letter, reason: str, cause: BaseException | None) -> HoldfastError:
        is_kept = self._host.child.restart != "temporary" and (
            self._how is None or getattr(self._how, "then", "") == "restart"
        )
        context = {
            "actor": self._cell.name,
            "reason": reason,
            "message": letter.name,
            "restart_count": self._cell.count_restart() if is_kept else self._cell.restarts,
            "pid": self.pid,
        }
        crash = HoldfastError(Fault.of("ACTOR_CRASHED", maybe_executed=True, context=context))
        crash.__cause__ = cause
        return crash

    def _send(self, frame: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(frame))


def _spawn(connection: socket.socket, mark: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast.actors.worker", str(connection.fileno()), str(os.getpid())]
    return subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(connection.fileno(),),
        env={**os.environ, MARK: mark},
        # A session of its own: Ctrl-C in the terminal reaches the program, which then stops its actors in order.
        start_new_session=True,
    )


def _how_ended(code: int, name: str) -> Exit:
    if code < 0:
        return Killed(-code)
    context = {"actor": name, "reason": f"its process {_shown(code)}", "exit_code": code}
    return Error(HoldfastError(Fault.of("ACTOR_CRASHED", context=context)))


def _shown(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


def _rebuilt(failed: Failed, pid: int) -> BaseException:
    """Return what the actor raised: the same exception if it is a builtin one, otherwise a `RemoteError`."""
    module, _, name = failed.kind.partition(":")
    kind = getattr(builtins, name, None) if module == "builtins" else None
    error: BaseException
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            error = kind(*failed.args)
        except Exception:  # noqa: BLE001 - an exception class may need other arguments
            error = RemoteError(failed.fault)
    else:
        error = RemoteError(failed.fault)
    error.add_note(f"raised as {failed.kind.replace(':', '.')} in the process {pid}")
    return error


def _on(on: Mapping[Any, str] | None) -> list[tuple[str, str]]:
    """Return directives as text: exception classes by the place where they stand."""
    found = []
    for key, directive in (on or {}).items():
        if isinstance(key, type):
            if "<locals>" in key.__qualname__ or key.__module__ == "__main__":
                raise InvalidError.saying("child.on", "exception classes that a process can import", key.__qualname__)
            found.append((f"{key.__module__}:{key.__qualname__}", directive))
        else:
            found.append((key, directive))
    return found
