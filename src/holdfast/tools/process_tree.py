"""Every process that a command has started, so that all of them can be ended.

A command runs in a session and a group of its own, and most of its processes stay there. Others leave: a daemon calls `setsid`, and
its parent exits. On Linux these are found in `/proc`, by their parent or by the mark of the command (`process_mark`), which a child
inherits. Elsewhere only the group is known.

Invariant: a signal never reaches a process that is not part of the tree, even if the system uses a process id a second time.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.tools.process_mark import last_pid, limit_of

if TYPE_CHECKING:
    from holdfast.tools.process_mark import ProcessMark

__all__ = ["ProcessTree", "TreeProcess", "read_member"]

_FULL_SEARCH_S = 10.0
"""After so many seconds process ids may have begun again at low numbers. Before, a descendant's id is between its root's and the last one."""
_STATE, _PARENT, _GROUP, _SESSION, _STARTED = 0, 1, 2, 3, 19
"""Where these fields stand in `/proc/…/stat`, after the name of the program."""


class TreeProcess(msgspec.Struct, frozen=True):
    """One living process of a tree."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    """When it started, in ticks since the machine did. With the id it names a process for ever."""
    zombie: bool = False


class ProcessTree:
    """A command's main process, which leads a session and a group, and everything that it has started."""

    def __init__(self, root: int, mark: ProcessMark) -> None:
        """Take a process that was just started with the mark in its environment."""
        self.root = root
        self._owner = os.getpid()
        self._mark = mark
        self._numbers = {mark.number} - {0}
        """The numbers that tell a member: our own, and those of commands that members have started with marks of their own."""
        mark.put_on(root)
        self._walks = os.path.exists("/proc/self/stat")  # noqa: PTH110 - hot path
        self._born = time.monotonic()

    @property
    def sees_all(self) -> bool:
        """Whether processes that have left the group are seen too. Only Linux shows them."""
        return self._walks

    @property
    def is_ours(self) -> bool:
        """Whether this process started the root. A fork of it has a copy of everything here, and none of the processes."""
        return self._owner == os.getpid()

    def others(self) -> list[TreeProcess]:
        """Return the living processes of the tree besides the root. Where `sees_all` is False, an empty list means nothing."""
        if not self._walks or last_pid() == self.root:
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
        if not self.is_ours:
            return
        # The others are found first: they may lose their parent, and with it the way to be found, when the group gets the signal.
        outside = [member for member in self.others() if member.group != self.root]
        with suppress(ProcessLookupError, PermissionError):  # the group has ended, or is another user's
            os.killpg(self.root, number)
        for member in outside:
            _send(member, number)

    def _members(self) -> list[TreeProcess]:
        root, own = self.root, os.getpid()
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - three times as fast
        # Read after the list, so that it is not below any id in it.
        last = last_pid()
        is_young = time.monotonic() - self._born < _FULL_SEARCH_S and last >= root
        if is_young:
            pids = [pid for pid in pids if root < pid <= last]
        seen = [member for pid in pids if pid not in (root, own) and (member := read_member(pid))]
        if not is_young and (first := read_member(root)):
            # A descendant started after the root. The others need not be looked at closely.
            seen = [member for member in seen if member.started >= first.started]
        found = [member for member in seen if root in (member.session, member.group, member.parent)]
        rest = [member for member in seen if root not in (member.session, member.group, member.parent)]
        self._learn_numbers([root, *(member.pid for member in found)])
        marked = [member for member in rest if not member.zombie and self._is_marked(member.pid)]
        return self._with_children([*found, *marked], rest)

    def _learn_numbers(self, pids: list[int]) -> None:
        """Take over the marks of commands that members have started themselves: their processes are members, too."""
        # Our own process may have a mark itself, of the command that it is a part of. That one tells nothing here.
        ours = limit_of("self")
        self._numbers |= {number for pid in pids if (number := limit_of(pid)) not in (0, ours)}

    def _with_children(self, found: list[TreeProcess], rest: list[TreeProcess]) -> list[TreeProcess]:
        """Return the members with all their descendants."""
        pids = {member.pid for member in found}
        while grown := [member for member in rest if member.parent in pids and member.pid not in pids]:
            found += grown
            pids |= {member.pid for member in grown}
        return found

    def _is_marked(self, pid: int) -> bool:
        return limit_of(pid) in self._numbers or self._mark.is_in_environment(pid)


def read_member(pid: int) -> TreeProcess | None:
    """Return what is known about a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - hot path
            # The name of the program stands in parentheses and may contain anything, so the fields are counted after it.
            fields = file.read().rpartition(b")")[2].split()
        return TreeProcess(
            pid=pid,
            parent=int(fields[_PARENT]),
            group=int(fields[_GROUP]),
            session=int(fields[_SESSION]),
            started=int(fields[_STARTED]),
            zombie=fields[_STATE] in (b"Z", b"X"),
        )
    except (OSError, ValueError, IndexError):
        return None


def _send(member: TreeProcess, number: signal.Signals) -> None:
    """Send a signal to one process, if it is still the same one."""
    try:
        # While the descriptor is open the id is not given to another process, so the comparison and the signal mean the same one.
        descriptor = os.pidfd_open(member.pid)
    except OSError:
        return
    try:
        now = read_member(member.pid)
        if now is not None and now.started == member.started:
            with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _reap(zombies: list[TreeProcess]) -> None:
    """Reap the members that this process has inherited. It inherits them if it is the first of a container, or a subreaper."""
    own = os.getpid()
    for zombie in zombies:
        if zombie.parent == own:
            with suppress(ChildProcessError):  # somebody else has reaped it
                os.waitpid(zombie.pid, os.WNOHANG)
