"""`LocalState`: what runtimes of one process share, for tests and for programs with several runtimes: `local:NAME`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

from holdfast.policies.fleet import KEPT_S, restored, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.fleet import FleetTarget

__all__ = ["LocalState", "open_state"]

T = TypeVar("T")


class LocalState:
    """An engine in memory. All that are made of one `kept` share it.

    For example:
        kept: dict[str, bytes] = {}
        one, other = LocalState(kept), LocalState(kept)
    """

    place = "this process"

    def __init__(self, kept: dict[str, bytes] | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept = {} if kept is None else kept
        self._clock = clock

    def change(self, name: str, step: Callable[[FleetTarget, float], T]) -> T:
        """See `SharedState.change`."""
        with _CHANGING:
            target, now = restored(self._kept.get(name), self._clock())
            result = step(target, now)
            self._kept[name] = stored(target, now)
            return result

    def targets(self) -> dict[str, FleetTarget]:
        """See `SharedState.targets`."""
        now = self._clock()
        with _CHANGING:
            found = {name: restored(raw, now)[0] for name, raw in self._kept.items()}
        return {name: target for name, target in found.items() if now - target.at < KEPT_S}

    def check(self) -> list[str]:
        """There is nothing to set up."""
        return []

    def close(self) -> None:
        """There is nothing to close."""


_CHANGING = threading.Lock()
_NAMED: dict[str, dict[str, bytes]] = {}


def open_state(url: str, namespace: str) -> LocalState:
    """Return the engine at an address: `local:NAME`."""
    return LocalState(_NAMED.setdefault(f"{url}/{namespace}", {}))
