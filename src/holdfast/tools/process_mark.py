"""The mark of a command: a number that every process it starts inherits, so that all of them are found.

It stands in two places. One is a variable of the environment, which a program can clear. The other, on Linux, is the limit of processor
time for real-time work (RLIMIT_RTTIME), which a child inherits whatever it does: a new session, an empty environment, another parent.
Usually that limit is unlimited. The mark is a number of microseconds of more than 140,000 years, so it limits nothing.

A program should have its mark before it runs. Python can set a limit between fork and exec only with `preexec_fn`, which is slow in a large
process and unsafe beside threads. So `prlimit` of util-linux sets it and becomes the program. Where `prlimit` is missing, the mark is
put on a process that runs already (`put_on`), and a command that must not escape waits at a gate until then.

Invariant: two commands that run on one machine have different marks.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_limits: Any = None
with suppress(ImportError):  # not on Windows
    import resource

    # Only Linux sets the limits of another process.
    _limits = resource if hasattr(resource, "prlimit") else None

__all__ = [
    "MARK",
    "MARK_BITS",
    "ProcessMark",
    "behind_gate",
    "born_with",
    "is_startable",
    "last_pid",
    "limit_of",
    "new_mark",
    "of_outer_command",
    "open_gate",
]

MARK: Final = "HOLDFAST_PROCESS"
"""The environment variable with the mark. A command inside a command has both marks, so the outer one still finds it."""
MARK_BITS: Final = 22
"""How many bits of a mark count the commands of one owner. The owner's number stands before them."""

_IS_MARK = 1 << 62
_LINE = b"\nMax realtime timeout"
_numbers = count(1)


class ProcessMark(msgspec.Struct, frozen=True):
    """The mark of one command."""

    text: str
    """What stands in the environment. It holds the marks of the trees that this process is part of itself."""
    number: int
    """What stands in the limit; 0 if nothing of its own does."""

    def put_on(self, pid: int) -> None:
        """Put the number on a process that was just started, and on what it may have started already."""
        if not self.number or not _can_be_put_on():
            return
        marked: set[int] = set()
        waiting = [pid]
        while waiting:
            one = waiting.pop()
            # A program that runs as another user (setuid) cannot be limited.
            with suppress(OSError):
                _limits.prlimit(one, _limits.RLIMIT_RTTIME, (self.number, _limits.RLIM_INFINITY))
            marked.add(one)
            # What it starts from now on inherits the number. What it started before does not, if there is any.
            if last_pid() != pid:
                waiting += [child for child in _children(one) if child not in marked]

    def is_in_environment(self, pid: int) -> bool:
        """Whether the process has inherited the environment of the command."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - hot path
                environment = file.read()
        except OSError:
            # It has ended, or it belongs to another user.
            return False
        own = self.text.rpartition("/")[2].encode()
        variable = f"{MARK}=".encode()
        return own in environment and any(
            entry.startswith(variable) and own in entry for entry in environment.split(b"\0")
        )


def new_mark(owner: int | None = None) -> ProcessMark:
    """Return the mark of a new command. The marks of one owner (a number of 40 bits) have that number in common."""
    if owner is None:
        number = _IS_MARK | int.from_bytes(os.urandom(8), "big") >> 2
        own = f"{number:x}"
    else:
        number = _IS_MARK | owner << MARK_BITS | next(_numbers) % (1 << MARK_BITS)
        own = f"guarded-{owner:x}.{number:x}"
    outer = os.environ.get(MARK, "")
    return ProcessMark(f"{outer}/{own}" if outer else own, number)


def of_outer_command(mark: ProcessMark) -> ProcessMark:
    """Return the mark of a command whose leftovers nobody ends, as it is within another command: that one's limit stays.

    A limit holds one number. With a number of its own, what the command leaves behind would be lost to the outer command.
    """
    return ProcessMark(mark.text, 0) if limit_of("self") else mark


def _can_be_put_on() -> bool:
    # Elsewhere than on Linux there is no such limit. Or somebody limits our real-time work in earnest, and the command's with it.
    return _limits is not None and _limits.getrlimit(_limits.RLIMIT_RTTIME)[1] == _limits.RLIM_INFINITY


@cache
def _prlimit() -> str | None:
    return shutil.which("prlimit")


def born_with(mark: ProcessMark, argv: Sequence[str]) -> list[str] | None:
    """Return a command that puts the mark on itself and becomes this one, with the same process id; None where that cannot be done."""
    prlimit = _prlimit() if mark.number and _can_be_put_on() else None
    return None if prlimit is None else [prlimit, f"--rttime={mark.number}:unlimited", "--", *argv]


_GATE = 'kill -STOP $$; exec "$@"'
"""Run by a shell: stop until somebody goes on with it, then become the program, with the same process id."""


def is_startable(argv: Sequence[str], cwd: str | None, env: Mapping[str, str]) -> bool:
    """Whether a program can be started by another one. If it is missing, starting it directly tells best why."""
    program = argv[0] if cwd is None or "/" not in argv[0] else os.path.join(cwd, argv[0])  # noqa: PTH118 - as texts
    is_there = shutil.which(program, path=env.get("PATH", os.defpath)) is not None
    return _limits is not None and is_there


def behind_gate(argv: Sequence[str]) -> list[str]:
    """Return a command that waits for `open_gate` before it runs this one.

    Without it, a program that starts a daemon in its first moment, on a machine that is busy, can be faster than `put_on`.
    """
    return ["/bin/sh", "-c", _GATE, "sh", *argv]


def open_gate(pid: int) -> None:
    """Let a command begin that waits at its gate. Waits until it stands there, about a millisecond."""
    with suppress(ChildProcessError):  # it is no child of ours, or has ended
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, signal.SIGCONT)


def limit_of(pid: int | str) -> int:
    """Return the mark in the limits of a process; 0 if it has none."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:  # noqa: PTH123 - hot path
            limits = file.read()
        value = limits[limits.index(_LINE) + len(_LINE) :].split(None, 1)[0]
        number = int(value)
    except (OSError, ValueError, IndexError):
        # It has ended, or its limit is `unlimited`.
        return 0
    return number if number & _IS_MARK else 0


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:  # noqa: PTH123 - hot path
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def last_pid() -> int:
    """Return the id of the process or thread that was started last in this namespace; 0 if the kernel does not tell."""
    # Not from /proc/loadavg: in some containers that file is emulated, and is seconds old.
    try:
        with open("/proc/sys/kernel/ns_last_pid", "rb") as file:  # noqa: PTH123 - hot path
            return int(file.read())
    except (OSError, ValueError):
        return 0
