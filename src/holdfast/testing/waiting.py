"""A switch that turns waiting off: retries, fallbacks and circuits do what they do, without the pauses between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime

__all__ = ["WaitingOff", "no_waiting"]


class WaitingOff:
    """Waiting as it was before, to be restored: by `restore()`, or at the end of a `with` block."""

    def __init__(self, runtime: Runtime) -> None:
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


def no_waiting(runtime: Runtime | None = None) -> WaitingOff:
    """Turn waiting off, from now on or, in a `with` statement, for its block: of `runtime`, or of the default one."""
    return WaitingOff(default_runtime() if runtime is None else runtime)
