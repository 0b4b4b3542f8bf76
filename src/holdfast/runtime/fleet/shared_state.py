"""`SharedState`: the engine that keeps what a fleet knows, as a protocol. `stores/shared_state/` has the engines.

Invariant: changes to one target happen one after the other, by the engine's own clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.fleet import FleetTarget

__all__ = ["SharedState", "SharedStateError"]

T = TypeVar("T")


class SharedStateError(Exception):
    """The engine cannot be reached, refuses, or does not answer in time. Its text says which, without the engine's address."""


class SharedState(Protocol):
    """An engine. One thread uses it at a time."""

    place: str
    """Where it is, to show it to people: no user, no password."""

    def change(self, name: str, step: Callable[[FleetTarget, float], T]) -> T:
        """Apply `step` to a target at the engine's time, and return what it returns. It may be called several times before one counts.

        Raises `SharedStateError`.
        """
        ...

    def targets(self) -> dict[str, FleetTarget]:
        """Return every target that it keeps, by name. Raises `SharedStateError`."""
        ...

    def check(self) -> list[str]:
        """Return what is wrong with how the engine is set up, in sentences. Raises `SharedStateError`."""
        ...

    def close(self) -> None:
        """Close the connection. The next use opens another."""
        ...
