"""The guard: a small process that ends our programs if this process dies and cannot end them itself.

A process that is killed with SIGKILL, or crashes, runs no cleanup, and its programs go on. The guard is a shell that waits at a pipe.
When the pipe closes, because this process is gone for whatever reason, it ends every process that carries a mark of this process.

Invariant: there is at most one guard for each process, and it outlives that process by two seconds at most.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from holdfast._platform import need_posix
from holdfast.faults import Fault, HoldfastError
from holdfast.tools.process_mark import MARK_BITS, new_mark

__all__ = ["guarded_owner"]

_SCRIPT: Final = """
read -r _
for signal in TERM KILL KILL; do
    for found in $(grep -lsaF "$1" /proc/[0-9]*/environ); do
        found=${found#/proc/}
        kill -$signal "${found%/environ}" 2>/dev/null
    done
    grep -s "^Max realtime timeout *[0-9]" /proc/[0-9]*/limits | while read -r found _ _ number _; do
        found=${found#/proc/}
        [ $((number >> $3)) = "$2" ] && kill -$signal "${found%%/*}" 2>/dev/null
    done
    sleep 0.5
done
"""

_OWNER_BYTES = 5


class _Guard:
    """The guard of this process."""

    owner = 0
    """The process that has started it. A forked child needs a guard of its own."""
    pid = 0
    number = 0
    """What the marks of its commands have in common."""
    pipe = -1


def guarded_owner() -> int:
    """Return the number that the marks of this process's commands have in common, after making sure that its guard runs.

    Raises `HoldfastError` (SYS_NOT_IMPLEMENTED) where there is no `/proc` to find processes in.
    """
    need_posix("a guarded program")
    if not os.path.exists("/proc/self/environ"):  # noqa: PTH110 - without pathlib
        raise HoldfastError(
            Fault.of("SYS_NOT_IMPLEMENTED", "a guarded program needs Linux, which shows marks in /proc")
        )
    if _Guard.owner != os.getpid() or _has_ended(_Guard.pid):
        _start()
    return _Guard.number


def _start() -> None:
    if _Guard.owner == os.getpid() and _Guard.pipe >= 0:
        with suppress(OSError):
            os.close(_Guard.pipe)
    # Both ends are closed in every program that is started, so only we hold the writing end.
    reading, writing = os.pipe()
    number = int.from_bytes(os.urandom(_OWNER_BYTES), "big")
    common = [f"guarded-{number:x}.", str(new_mark(number).number >> MARK_BITS), str(MARK_BITS)]
    try:
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _SCRIPT, "holdfast-guard", *common],
            # Without our environment: it must not carry a mark itself.
            {"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
            ],
            # Ctrl-C in the terminal must not end the guard before us.
            setsid=True,
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    _Guard.owner, _Guard.pid, _Guard.number, _Guard.pipe = os.getpid(), pid, number, writing


def _has_ended(pid: int) -> bool:
    """Whether the guard has ended; if so, it is reaped."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
