"""How a runtime comes to its link: the engine's address, and the events that say when it is lost and back."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from holdfast.events import SharedStateBack, SharedStateLost
from holdfast.runtime.fleet.engines import opener_of
from holdfast.runtime.fleet.link import FleetLink

if TYPE_CHECKING:
    from holdfast.policies.fleet_options import SharedOptions
    from holdfast.runtime.runtime import Runtime

__all__ = ["link_of"]


def link_of(runtime: Runtime, shared: SharedOptions) -> FleetLink:
    """Return a link to the engine of these options. Raises as `Runtime.share` does."""
    # The link's thread must not keep a runtime alive that nobody uses any more.
    return FleetLink(opener_of(shared), runtime.clock.monotonic, _Reporter(runtime, _shown(shared.url)), shared)


class _Reporter:
    """Says once that the engine is lost, and once that it is back."""

    def __init__(self, runtime: Runtime, place: str) -> None:
        self._runtime = ref(runtime)
        self._place = place
        self._lost_at = 0.0

    def __call__(self, reason: str | None) -> None:
        runtime = self._runtime()
        if runtime is None:
            return
        now = runtime.clock.wall()
        if reason is None:
            after = round(max(0.0, now - self._lost_at), 3)
            runtime.bus.emit(SharedStateBack(at=now, place=self._place, after=after))
        else:
            self._lost_at = now
            runtime.bus.emit(SharedStateLost(at=now, place=self._place, reason=reason))


def _shown(url: str) -> str:
    """Return an address without user, password and parameters."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}" if rest else f"{scheme}:\u2026"
