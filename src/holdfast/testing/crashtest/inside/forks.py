"""Runs a program by forking a process that has imported what the program imports: 20 ms instead of the start of an interpreter.

The process that forks has one thread and no event loop, or it does not fork: a lock that another thread holds would be held in the child
for ever. Like its neighbour it may run under any Python 3.9 or newer without Holdfast, so it imports nothing but the standard library.

    pid = start(program, folder, output="out", errors="err")
    status = wait(pid, 30.0)            # None: it ran out of time, and was killed with all it had started
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def is_single() -> bool:
    """Whether a fork of this process is safe: Linux says that it has one thread."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


def preload(names: Iterable[str]) -> None:
    """Import modules, so that the children need not. One that cannot be imported here is left to them."""
    for name in names:
        # Whatever a foreign module does at its import, the program can do itself.
        with suppress(Exception):
            importlib.import_module(name)
    # Objects that nobody looks through are not copied by the first collection of each child.
    gc.collect()
    gc.freeze()


def start(program: Callable[[], None], folder: str, *, output: str, errors: str) -> int:
    """Fork a child that runs the program in its own process group, and ends as an interpreter does; return its pid."""
    pid = os.fork()
    if pid == 0:
        _run(program, folder, output, errors)
    return pid


def wait(pid: int, seconds: float) -> int | None:
    """Wait for a child and end what it has started; return its status as `os.waitpid` does, or None if its time ran out."""
    handle = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
        end_group(pid)
    status = os.waitpid(pid, 0)[1]
    return status if ended else None


def end_group(pid: int) -> None:
    """Kill a child with all it has started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # It has ended, or has not begun: its group is made before anything of the program runs.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _run(program: Callable[[], None], folder: str, output: str, errors: str) -> NoReturn:
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            file = os.open(path, flags, 0o600)
            os.dup2(file, number)
            os.close(file)
        # Python's own streams write to these numbers; they have buffered nothing, since PYTHONUNBUFFERED is set.
        status = _as_main(program)
    except BaseException:  # noqa: BLE001 - nobody else reports it
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _as_main(program: Callable[[], None]) -> int:
    """Run the program, its threads and its exit handlers to their ends, as an interpreter does; return the exit code."""
    import atexit  # noqa: PLC0415 - only in a child
    import threading  # noqa: PLC0415

    status = 0
    try:
        program()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            os.write(2, f"{error.code}\n".encode())
    except BaseException:  # noqa: BLE001 - what an interpreter prints at its end
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return status & 0xFF


def _program(command: list[str]) -> Callable[[], None]:
    """Return what `python COMMAND` does: a script, or a module after `-m`."""

    def program() -> None:
        if command[0] == "-m":
            sys.argv = command[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
            return
        sys.argv = command
        path = os.path.abspath(command[0])
        sys.path[0] = os.path.dirname(path)
        main: Any = types.ModuleType("__main__")
        main.__file__, main.__builtins__ = path, builtins
        # This module was the main one so far, and goes on under no name.
        sys.modules["__main__"] = main
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 - the user's own program

    return program


def serve() -> None:
    """Read what to run from stdin, a line for each run; write its pid, then its status."""
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    first = json.loads(requests.readline())
    preload(first["modules"])
    answer: dict[str, Any] = {"safe": is_single()}
    while True:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        line = requests.readline()
        if not line:
            return
        request = json.loads(line)
        pid = start(_program(request["command"]), request["folder"], output=request["output"], errors=request["errors"])
        answers.write(json.dumps({"pid": pid}) + "\n")
        answers.flush()
        answer = {"status": os.waitpid(pid, 0)[1]}
        end_group(pid)


if __name__ == "__main__":
    serve()
