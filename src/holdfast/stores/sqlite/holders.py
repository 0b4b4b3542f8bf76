"""Which process holds a lock, for the person who has to end its wait.

A file lock cannot be taken over: the system gives it back when its process goes on, or ends. So a process that stands still in the
middle of a write (SIGSTOP, a debugger, a frozen container) makes all others wait, and only a person knows what to do with it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LOCKS = Path("/proc/locks")
_STOPPED = ("T", "t")
"""The states of a process that was stopped, by a signal and by a debugger."""


class Holder(NamedTuple):
    """A process that holds a lock."""

    pid: int
    name: str
    stopped: bool

    def __str__(self) -> str:
        process = f"process {self.pid} ({self.name})"
        if self.stopped:
            return (
                f"{process}, which is stopped: continue it (kill -CONT {self.pid}), or end it (kill -KILL {self.pid})"
            )
        return f"{process}: wait for it, or end it"


def holder_of(path: Path) -> Holder | None:
    """Return the other process that has locked a file for writing; None if the system does not say. Only Linux does, in one container."""
    with suppress(OSError, ValueError, IndexError):  # a system that does not say leaves the answer None
        inode = path.stat().st_ino
        for line in _LOCKS.read_text().splitlines():
            # 1: FLOCK  ADVISORY  WRITE 1234 fe:00:2211867 0 EOF
            _, kind, _, access, pid, place, *_ = line.split()
            # A line with an arrow is a process that waits.
            if kind == "->" or access != "WRITE" or int(pid) == os.getpid():
                continue
            if place.rpartition(":")[2] == str(inode) and _has_open(pid, path):
                return _described(int(pid))
    return None


def _has_open(pid: str, path: Path) -> bool:
    """Whether a process has the file open. Another file system may have a file of the same number."""
    wanted = path.resolve()
    with suppress(OSError):  # the process has ended, or is another user's
        return any(one.resolve() == wanted for one in Path("/proc", pid, "fd").iterdir())
    return False


def _described(pid: int) -> Holder:
    # 1234 (python3) T …
    name, _, rest = Path("/proc", str(pid), "stat").read_text().partition("(")[2].rpartition(")")
    return Holder(pid, name, rest.split()[0] in _STOPPED)
