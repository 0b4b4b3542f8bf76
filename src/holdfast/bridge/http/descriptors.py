"""How many sockets this process may open. The store, the agents and their tools need files, too, and the system gives both from one number.

Many shells and services start a program with 1,024 files, fewer than a bridge has connections.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

__all__ = ["most_sockets", "raise_limit"]

_RESERVE: Final = 256
"""The files that are left for everything else, and for sockets that are accepted before others are closed."""
_ENOUGH: Final = 65_536


def most_sockets() -> int | None:
    """Return how many sockets of clients may be open at once; None if nothing limits them."""
    if resource is None:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else max(soft - _RESERVE, soft // 2)


def raise_limit() -> None:
    """Let this process open as many files as it may allow itself, if it has fewer."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        with suppress(OSError, ValueError):  # some systems have another limit below
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
