"""Every process that a command has started, so that all of them can be ended.

A command runs in a session and a group of its own, and most of its processes stay there. Others leave: a daemon calls `setsid`, and
its parent exits. On Linux these are found in `/proc`, by their parent or by a mark in their environment, which a child inherits.
Elsewhere only the group is known. A process that leaves the group, clears its environment and loses its parent is not found.

Invariant: a signal never reaches a process that is not part of the tree, even if the system uses a process id a second time.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

import msgspec

__all__ = ["MARK", "Member", "ProcessTree", "new_mark"]

MARK: Final = "HOLDFAST_PROCESS"
"""The environment variable with the mark. A command inside a command has both marks, so the outer one still finds it."""

_FULL_SEARCH_S = 10.0
"""After so many seconds process ids may have begun again at low numbers. Before, a descendant has a higher id than its root."""
_STATE, _PARENT, _GROUP, _SESSION, _STARTED = 0, 1, 2, 3, 19
"""Where these fields stand in `/proc/…/stat`, after the name of the program."""


class Member(msgspec.Struct, frozen=True):
    """One living process of a tree."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    """When it started, in ticks since the machine did. With the id it names a process for ever."""
    zombie: bool = False


def new_mark(prefix: str = "") -> str:
    """Return a mark for a new tree. It holds the marks of the trees that this process is part of itself."""
    outer = os.environ.get(MARK, "")
    own = f"{prefix}.{os.urandom(8).hex()}" if prefix else os.urandom(8).hex()
    return f"{outer}/{own}" if outer else own


class ProcessTree:
    """A command's main process, which leads a session and a group, and everything that it has started."""

    def __init__(self, root: int, mark: str) -> None:
        self.root = root
        self._mark = f"{MARK}=".encode(), mark.rpartition("/")[2].encode()
        self._born = time.monotonic()
        self._walks = os.path.exists("/proc/self/stat")  # noqa: PTH110 - hot path

    @property
    def sees_all(self) -> bool:
        """Whether processes that have left the group are seen too. Only Linux shows them."""
        return self._walks

    def others(self) -> list[Member]:
        """Return the living processes of the tree besides the root. Where `sees_all` is False, an empty list means nothing."""
        if not self._walks or _last_pid() == self.root:
            # No process was started since the root was, so it has no children. That is so for nearly every command.
            return []
        found = self._members()
        _reap([member for member in found if member.zombie])
        return [member for member in found if not member.zombie]

    def group_lives(self) -> bool:
        """Whether the group has a member. Until the root is reaped, the root itself is one."""
        try:
            os.killpg(self.root, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # macOS answers so for a group of zombies, and every system for processes of another user.
            return self._walks
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the group, and to every process of the tree outside of it."""
        # The others are found first: they may lose their parent, and with it the way to be found, when the group gets the signal.
        outside = [member for member in self.others() if member.group != self.root]
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.root, number)
        for member in outside:
            _send(member, number)

    def _members(self) -> list[Member]:
        floor = self.root if time.monotonic() - self._born < _FULL_SEARCH_S and _last_pid() >= self.root else 0
        own = os.getpid()
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - three times as fast
        seen = [member for pid in pids if pid > floor and pid not in (self.root, own) and (member := _read(pid))]
        root = self.root
        found = [member for member in seen if root in (member.session, member.group, member.parent)]
        rest = [member for member in seen if root not in (member.session, member.group, member.parent)]
        marked = [member for member in rest if not member.zombie and self._is_marked(member.pid)]
        return self._with_children([*found, *marked], rest)

    def _with_children(self, found: list[Member], rest: list[Member]) -> list[Member]:
        """Return the members with all their descendants."""
        pids = {member.pid for member in found}
        while grown := [member for member in rest if member.parent in pids and member.pid not in pids]:
            found += grown
            pids |= {member.pid for member in grown}
        return found

    def _is_marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - hot path
                environment = file.read()
        except OSError:
            # It has ended, or it belongs to another user.
            return False
        variable, mark = self._mark
        return mark in environment and any(
            entry.startswith(variable) and mark in entry for entry in environment.split(b"\0")
        )


def _last_pid() -> int:
    """Return the id of the process or thread that was started last in this namespace; 0 if the kernel does not tell."""
    # Not from /proc/loadavg: in some containers that file is emulated, and is seconds old.
    try:
        with open("/proc/sys/kernel/ns_last_pid", "rb") as file:  # noqa: PTH123 - hot path
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _read(pid: int) -> Member | None:
    """Return what is known about a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - hot path
            # The name of the program stands in parentheses and may contain anything, so the fields are counted after it.
            fields = file.read().rpartition(b")")[2].split()
        return Member(
            pid=pid,
            parent=int(fields[_PARENT]),
            group=int(fields[_GROUP]),
            session=int(fields[_SESSION]),
            started=int(fields[_STARTED]),
            zombie=fields[_STATE] in (b"Z", b"X"),
        )
    except (OSError, ValueError, IndexError):
        return None


def _send(member: Member, number: signal.Signals) -> None:
    """Send a signal to one process, if it is still the same one."""
    try:
        # While the descriptor is open the id is not given to another process, so the comparison and the signal mean the same one.
        descriptor = os.pidfd_open(member.pid)
    except OSError:
        return
    try:
        now = _read(member.pid)
        if now is not None and now.started == member.started:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _reap(zombies: list[Member]) -> None:
    """Reap the members that this process has inherited. It inherits them if it is the first of a container, or a subreaper."""
    own = os.getpid()
    for zombie in zombies:
        if zombie.parent == own:
            with suppress(ChildProcessError):
                os.waitpid(zombie.pid, os.WNOHANG)
