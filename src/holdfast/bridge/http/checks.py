"""What `/health` looks at besides the bridge's own parts: whether the agent can be reached, and whether the disks take what is written.

A check that fails says why, and what to do: it raises `HoldfastError`, or returns False.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Final

from holdfast.events import CircuitState
from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.bridge.hub import Hub

__all__ = ["LEAST_FREE", "checks_of"]

LEAST_FREE: Final = 100_000_000
"""The bytes below which a disk counts as full: a store that cannot write stops every session."""
_PROBE_BYTES: Final = 65_536
_PROBED_S: Final = 10.0
"""For how long a disk that took a file counts as well. Everybody on this machine may ask for `/health`."""


def checks_of(hub: Hub, folder: Path) -> dict[str, Callable[[], bool | Awaitable[bool]]]:
    """Return the checks of a bridge by name: `agent_sdk`, and `disk_space` of the folder in which it keeps its state and of the store's."""
    file: Path | None = getattr(hub.store, "path", None)
    folders = [folder] if file is None else [folder, file.parent]
    probed = -_PROBED_S

    def agent_sdk() -> bool:
        if hub.host is not None and not hub.host.is_reached:
            return False
        providers = [each for each in hub.runtime.registry if each.name.startswith("provider:")]
        now = hub.clock.monotonic()
        # One provider that answers is enough for an agent that has several.
        return not providers or any(each.circuit_state(now) is not CircuitState.OPEN for each in providers)

    async def disk_space() -> bool:
        nonlocal probed
        now = hub.clock.monotonic()
        await asyncio.to_thread(_check_disks, folders, writes=now - probed >= _PROBED_S)
        probed = now
        return True

    return {"agent_sdk": agent_sdk, "disk_space": disk_space}


def _check_disks(folders: list[Path], *, writes: bool) -> None:
    for folder in folders:
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        free = shutil.disk_usage(there).free
        if free < LEAST_FREE:
            raise _full(f"{free / 1e6:.0f} MB are free, and {LEAST_FREE / 1e6:.0f} MB is the least")
        if not writes:
            continue
        try:
            # Free space says nothing about a quota, or a disk that takes no writes any more. Nothing of this file is left behind.
            with tempfile.TemporaryFile(dir=there) as probe:
                probe.write(bytes(_PROBE_BYTES))
                probe.flush()
                os.fsync(probe.fileno())
        except OSError as error:
            raise _full(os.strerror(error.errno or errno.EIO)) from error


def _full(reason: str) -> HoldfastError:
    return HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE", f"The disk cannot be written to: {reason}"))
