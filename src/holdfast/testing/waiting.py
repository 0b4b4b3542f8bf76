"""A switch that turns waiting off: retries, fallbacks and circuits do what they do, without the pauses between."""

from __future__ import annotations

from typing import Protocol, Self

__all__ = ["WaitingOff", "Waits", "no_waiting"]


class Waits(Protocol):
    """What has the switch: a `Runtime`."""

    waits: bool
    """Whether a decision to wait is performed."""


class WaitingOff:
    """Waiting as it was before, to be restored: by `restore()`, or at the end of a `with` block."""

    def __init__(self, runtime: Waits) -> None:
        self._runtime = runtime
        self._before = runtime.waits
        runtime.waits = False

    def restore(self) -> None:
        """Let the runtime wait again if it did before."""
        self._runtime.waits = self._before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def no_waiting(runtime: Waits) -> WaitingOff:
    """Turn waiting off, from now on or, in a `with` statement, for its block."""
    return WaitingOff(runtime)
