"""Features that only some operating systems have: fork, user accounts, an event loop that watches files.

Invariant: every module of Holdfast can be imported on every system. A feature that the system lacks raises `HoldfastError` with
the code `SYS_NOT_IMPLEMENTED` when it is used.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

__all__ = ["after_fork", "boot_id", "is_posix", "need_posix", "need_selector_loop"]


def is_posix() -> bool:
    """Whether processes can be forked and signalled here, as on Linux and macOS."""
    return hasattr(os, "fork")


def after_fork(action: Callable[[], None]) -> None:
    """Call `action` in every child that this process forks. A system without fork has no such children."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(after_in_child=action)


@cache
def boot_id() -> str | None:
    """Return a name of this start of the machine, or None if the system has none. Containers of a machine share it."""
    try:
        # Without pathlib: everything that imports `recover` would load it.
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip() or None
    except OSError:
        return None


def need_posix(feature: str) -> None:
    """Raise `HoldfastError` on a system without POSIX, where `feature` cannot work."""
    if not is_posix():
        raise _not_here(f"{feature} needs Linux or macOS")


def need_selector_loop(feature: str, loop: AbstractEventLoop) -> None:
    """Raise if `feature` cannot work on `loop`. The default loop of Windows cannot watch sockets of other libraries."""
    # The class is compared by its name, because asyncio has it on Windows only.
    if any(base.__name__ == "ProactorEventLoop" for base in type(loop).__mro__):
        help_text = "run the program with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)"
        raise _not_here(f"{feature} does not work on asyncio's ProactorEventLoop: {help_text}")


def _not_here(message: str) -> HoldfastError:
    return HoldfastError(Fault.of("SYS_NOT_IMPLEMENTED", message, context={"platform": sys.platform}))
