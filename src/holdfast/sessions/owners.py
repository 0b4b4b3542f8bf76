"""Who owns a session: this process, by a name that tells others on the same machine whether it still lives."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

__all__ = ["is_gone", "this_process"]


def this_process() -> str:
    """Return a name for one owner in this process: host, process, when that began, and chance."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{pid}/{_began(pid)}/{secrets.token_hex(4)}"


def is_gone(owner: str) -> bool:
    """Whether an owner is known to be dead: a process of this machine that is not there any more."""
    host, _, rest = owner.partition("/")
    pid, _, rest = rest.partition("/")
    began = rest.partition("/")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # The number may belong to another process by now.
    return began != _began(int(pid))


def _began(pid: int) -> str:
    """When a process began, in the kernel's own count; empty where that cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
