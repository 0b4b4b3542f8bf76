"""The guard: a small process that ends our programs if this process dies and cannot end them itself.

A process that is killed with SIGKILL, or crashes, runs no cleanup, and its programs go on. The guard is a shell that waits at a pipe.
When the pipe closes and this process is gone, for whatever reason, it ends every process that carries a mark of this process: also one
with a session, a parent and an environment of its own. It is no child of this process, which may wait for all of its children. A
process that ends in order, and has ended its programs, tells the guard to go.

Invariant: there is at most one guard for each process, and it outlives that process by two seconds at most.
"""

from __future__ import annotations

import atexit
import os
import select
from contextlib import suppress
from typing import Final

from holdfast._platform import need_posix
from holdfast.faults import Fault, HoldfastError
from holdfast.tools.process_mark import MARK_BITS, new_mark
from holdfast.tools.process_tree import read_member

__all__ = ["guarded_owner", "note_end", "note_start", "owner_if_possible"]

_SCRIPT: Final = """
exec 3<&0
prlimit --rttime=unlimited:unlimited --pid $$ 2>/dev/null
since() {
    read -r line < "/proc/$1/stat" || return
    set -- ${line##*) }
    [ "$1" = Z ] || [ "$1" = X ] || echo "${20}"
}
{
read -r _ <&3 && exit 0
while [ "$(since "$4")" = "$5" ]; do sleep 0.5; done
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
} &
"""

# A process inside of another command has that command's mark, which its guard must lose: it would be ended with that command's tree.
_OWNER_BYTES = 5


class _Guard:
    """The guard of this process."""

    owner = 0
    """The process that has started it. A forked child needs a guard of its own."""
    number = 0
    """What the marks of its commands have in common."""
    pipe = -1
    running = 0
    """How many of the programs that it watches have been started, and have not ended in order."""


def owner_if_possible() -> int | None:
    """Return what `guarded_owner` returns; None where there can be no guard."""
    try:
        return guarded_owner()
    except (HoldfastError, OSError):
        return None


def note_start() -> None:
    """A program was started that the guard watches."""
    _Guard.running += 1


def note_end() -> None:
    """Such a program has ended, with all that it has started."""
    _Guard.running -= 1


def guarded_owner() -> int:
    """Return the number that the marks of this process's commands have in common, after making sure that its guard runs.

    Raises `HoldfastError` (SYS_NOT_IMPLEMENTED) where there is no `/proc` to find processes in.
    """
    need_posix("a guarded program")
    if not os.path.exists("/proc/self/environ"):  # noqa: PTH110 - without pathlib
        raise HoldfastError(
            Fault.of("SYS_NOT_IMPLEMENTED", "a guarded program needs Linux, which shows marks in /proc")
        )
    if _Guard.owner != os.getpid() or _has_ended():
        _start()
    return _Guard.number


def _start() -> None:
    if _Guard.owner == os.getpid() and _Guard.pipe >= 0:
        with suppress(OSError):  # the descriptor is closed already
            os.close(_Guard.pipe)
    # Both ends are closed in every program that is started, so only we hold the writing end.
    reading, writing = os.pipe()
    number = int.from_bytes(os.urandom(_OWNER_BYTES), "big")
    own = read_member(os.getpid())
    # The time of the start tells this process from a later one of its id.
    ours = [str(os.getpid()), str(own.started if own is not None else 0)]
    common = [f"guarded-{number:x}.", str(new_mark(number).number >> MARK_BITS), str(MARK_BITS), *ours]
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
        # The first shell ends at once, and leaves the one that waits.
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    if not _Guard.number:
        atexit.register(_dismiss)
        os.register_at_fork(after_in_child=_forget)
    _Guard.owner, _Guard.number, _Guard.pipe = os.getpid(), number, writing


def _has_ended() -> bool:
    """Whether nobody waits at the other end of the pipe any more."""
    waiting = select.poll()
    waiting.register(_Guard.pipe, 0)
    return bool(waiting.poll(0))


def _dismiss() -> None:
    if _Guard.owner == os.getpid() and not _Guard.running:
        with suppress(OSError):  # the guard has ended by itself
            os.write(_Guard.pipe, b"\n")


def _forget() -> None:
    """Close the pipe in a forked child: it would keep the guard waiting after its parent's death."""
    with suppress(OSError):  # the descriptor is closed already
        os.close(_Guard.pipe)
    _Guard.owner, _Guard.pipe, _Guard.running = 0, -1, 0
