"""The process of an isolated actor: `python -m holdfast.actors.worker SOCKET HOST`. Its host is `actors/process.py`.

Invariants: it works on one message at a time. It ends when its host does, however that ends. Standard input, output and error are the
program's own; frames go through the socket. A fork of it, which a method makes, is not the actor: it says nothing in its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import os
import runpy
import signal
import socket
import sys
from multiprocessing import util
from typing import Any, NoReturn

import msgspec

from holdfast import Budget
from holdfast.actors.errors import IgnoreStart
from holdfast.actors.frames import Begin, Call, Failed, Ignored, Returned, Started, Stop, Values, pack, read_frame
from holdfast.faults import InvalidError
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.lineage import named
from holdfast.supervision import Shutdown, directive_for

_PR_SET_PDEATHSIG = 1
_HOOK_S = 5.0


class ActorProcess:
    """One actor in this process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._instance: Any = None
        self._on: dict[Any, Any] = {}
        self._values: Values
        self._leaving: Shutdown | None = None
        self._stop: Stop | None = None
        self._main = asyncio.current_task()
        self._pid = os.getpid()

    async def run(self) -> None:
        """Make the actor and work until the host ends it, or it ends itself."""
        begin = await read_frame(self._reader)
        assert isinstance(begin, Begin)
        if not await self._start(begin):
            return
        calls: asyncio.Queue[Call] = asyncio.Queue()
        reading = asyncio.ensure_future(self._read(calls))
        try:
            while self._leaving is None:
                if not await self._work(await calls.get()):
                    return
            await self._hook(self._instance.stopping(self._leaving), None)
        except asyncio.CancelledError:
            if self._stop is None:
                raise
            await self._hook(self._instance.stopping(Shutdown(self._stop.reason)), None)
        finally:
            reading.cancel()

    async def _start(self, begin: Begin) -> bool:
        try:
            kind = _load(begin)
            self._values = Values(kind, pickled=kind.__holdfast_options__.pickle)
            self._on = {_key(key): directive for key, directive in begin.on}
            args, named = self._values.unpack_call(kind.__init__, begin.args)
            self._instance = kind(*args, **named)
            self._instance._holdfast_run = _Leave(self)  # noqa: SLF001 - what `Actor.stop` calls
            if begin.state is not None:
                self._instance.restore(self._values.unpack(begin.state, kind.snapshot))
            await self._instance.started()
        except IgnoreStart:
            await self._send(Ignored())
            return False
        except BaseException as error:  # noqa: BLE001 - the host gets whatever it was
            await self._send(_failure(error, self._on))
            return False
        await self._send(Started())
        return True

    async def _read(self, calls: asyncio.Queue[Call]) -> None:
        """Read what the host says, also while a message is worked on."""
        while True:
            try:
                frame = await read_frame(self._reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                # The host has ended. Nobody is left who could use what this process does.
                os._exit(0)
            if isinstance(frame, Call):
                calls.put_nowait(frame)
            elif isinstance(frame, Stop):
                self._stop = frame
                assert self._main is not None
                self._main.cancel()

    async def _work(self, call: Call) -> bool:
        """Work on a message; return whether the actor goes on."""
        handler = getattr(type(self._instance), call.method)
        try:
            args, kwargs = self._values.unpack_call(handler, call.args)
            budget = contextlib.nullcontext() if call.seconds is None else Budget(seconds=call.seconds)
            with budget, named(call.request):
                value = await handler(self._instance, *args, **kwargs)
            if os.getpid() != self._pid:
                _end_fork(None)
        except BaseException as error:
            if os.getpid() != self._pid:
                _end_fork(error)
            if isinstance(error, asyncio.CancelledError) and self._stop is not None:
                raise
            failure = _failure(error, self._on)
            if failure.then != "resume":
                await self._hook(self._instance.crashed(error), _HOOK_S)
            await self._send(failure)
            return failure.then == "resume"
        try:
            packed, state = self._values.pack(value, handler), self._snapshot()
        except Exception as error:  # noqa: BLE001 - pickle, and the hook `snapshot`, raise whatever they like
            # The method has done its work, so the actor is well. Only its result cannot be sent.
            await self._send(msgspec.structs.replace(_failure(error, self._on), then="resume"))
        else:
            await self._send(Returned(value=packed, state=state, leaving=self._leaving is not None))
        return True

    def leave(self, how: Shutdown) -> None:
        """End after the present message."""
        self._leaving = how

    def _snapshot(self) -> bytes | None:
        snapshot = type(self._instance).snapshot
        state = snapshot(self._instance)
        return None if state is None else self._values.pack(state, snapshot)

    async def _hook(self, call: Any, seconds: float | None) -> None:
        # What a hook raises goes to this process's standard error: it must not keep the actor from ending.
        try:
            async with asyncio.timeout(seconds):
                await call
        except BaseException as error:  # noqa: BLE001
            sys.excepthook(type(error), error, error.__traceback__)

    async def _send(self, frame: Any) -> None:
        self._writer.write(pack(frame))
        with contextlib.suppress(ConnectionError):  # `run` sees that the host has gone
            await self._writer.drain()


class _Leave:
    """What an instance knows of its run: in a process it can only end itself."""

    def __init__(self, worker: ActorProcess) -> None:
        self.leave = worker.leave

    def __getattr__(self, name: str) -> Any:
        raise InvalidError.saying(
            "an actor in a process",
            "only `self.stop()` of what actors can do with others",
            "`ref`, `watch` or `children`",
        )


def _end_fork(error: BaseException | None) -> NoReturn:
    """End a fork of this process that has left the method, as it would end by itself, before it uses what belongs to the actor."""
    code = error.code if isinstance(error, SystemExit) else error
    if code is not None and not isinstance(code, int):
        assert error is not None
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    # What multiprocessing does at the end of its forks: what the fork has printed is still in its buffers.
    util._flush_std_streams()  # type: ignore[attr-defined]  # noqa: SLF001
    os._exit(code or 0)


def _silence_forks(connection: socket.socket) -> None:
    """Let forks of this process have something else in the place of the socket: what they write there would come from the actor."""
    number = connection.fileno()

    def silence() -> None:
        # A fork without a free descriptor keeps the socket: an exception in this hook would only be printed.
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number, inheritable=False)
            os.close(nowhere)

    os.register_at_fork(after_in_child=silence)


def _load(begin: Begin) -> Any:
    sys.path[:] = begin.path
    if begin.main is not None:
        # As multiprocessing does: the program's file is loaded under another name, so its `if __name__ == "__main__"` does not run.
        try:
            namespace: Any = runpy.run_path(begin.main, run_name="__holdfast_main__")
        except BaseException as error:
            raise InvalidError.saying(
                "the program of an actor in a process",
                "a file that its process can load again",
                f'{type(error).__name__}: {error}; put what starts {begin.main} below `if __name__ == "__main__":`',
            ) from error
        parts = begin.kind.split(".")
        found: Any = namespace[parts[0]]
        parts = parts[1:]
    else:
        found = importlib.import_module(begin.module)
        parts = begin.kind.split(".")
    for part in parts:
        found = getattr(found, part)
    return found


def _key(key: str) -> Any:
    """Return the key of a directive: a code, a kind, or an exception class by the place where it stands."""
    module, colon, name = key.partition(":")
    if not colon:
        return key
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _failure(error: BaseException, on: Any) -> Failed:
    fault = fault_of(error)
    kind = type(error)
    args: list[Any] = []
    # Arguments that cannot be sent are left out: the fault has their text.
    with contextlib.suppress(Exception):
        if kind.__module__ == "builtins":
            is_plain = all(isinstance(one, (str, int, float, bool, type(None))) for one in error.args)
            found = list(error.args) if is_plain else [str(error)]
            msgspec.msgpack.encode(found)
            args = found
    then = directive_for(fault, error, on)
    return Failed(fault=fault, then=then, kind=f"{kind.__module__}:{kind.__qualname__}", args=args)


def die_with(host: int) -> None:
    """End this process when its host ends, also while it is busy. Only Linux can do that; elsewhere the socket's end does."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # without it the end of the socket ends the worker
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != host:
        os._exit(0)


async def serve(connection: socket.socket) -> None:
    """Be one actor for the host at the other end of the socket."""
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=1 << 20)
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the host has gone, so the worker ends
        await ActorProcess(reader, writer).run()
    with contextlib.suppress(ConnectionError):  # the host has gone, so nobody reads it
        await writer.drain()
    writer.close()


def main() -> None:
    """Serve on the socket of this number, for the host of this process id."""
    die_with(int(sys.argv[2]))
    connection = socket.socket(fileno=int(sys.argv[1]))
    # Programs that the actor starts must not hold the socket: the host could not see this process end.
    connection.set_inheritable(False)
    _silence_forks(connection)
    asyncio.run(serve(connection))


if __name__ == "__main__":
    main()
