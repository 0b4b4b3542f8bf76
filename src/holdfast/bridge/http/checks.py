"""What `/health` looks at besides the bridge's own parts: whether the agent can be reached, and whether the disk has room."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from holdfast.events import CircuitState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.bridge.hub import Hub

__all__ = ["LEAST_FREE", "checks_of"]

LEAST_FREE: Final = 100_000_000
"""The bytes below which a disk counts as full: a store that cannot write stops every session."""


def checks_of(hub: Hub, folder: Path) -> dict[str, Callable[[], bool]]:
    """Return the checks of a bridge by name: `agent_sdk`, and `disk_space` of the folder in which it keeps its state."""

    def agent_sdk() -> bool:
        if hub.host is not None and not hub.host.is_reached:
            return False
        providers = [each for each in hub.runtime.registry if each.name.startswith("provider:")]
        now = hub.clock.monotonic()
        # One provider that answers is enough for an agent that has several.
        return not providers or any(each.circuit_state(now) is not CircuitState.OPEN for each in providers)

    def disk_space() -> bool:
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        return shutil.disk_usage(there).free >= LEAST_FREE

    return {"agent_sdk": agent_sdk, "disk_space": disk_space}
