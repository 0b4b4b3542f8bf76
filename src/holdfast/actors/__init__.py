"""Supervisors and what they supervise: coroutine functions, actors, nested supervisors.

child  `Child`: a factory, its arguments, and how to supervise what it makes
host   the seam: a `Host` runs one child, incarnation after incarnation
task   the host of coroutine functions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.actors.child import Child
    from holdfast.actors.host import Host, Place, Running
    from holdfast.actors.task import Handle, IgnoreStart, StartError, ready
    from holdfast.supervision.exits import Error, Exit, Killed, Normal, Shutdown

__all__ = [
    "Child",
    "Error",
    "Exit",
    "Handle",
    "Host",
    "IgnoreStart",
    "Killed",
    "Normal",
    "Place",
    "Running",
    "Shutdown",
    "StartError",
    "ready",
]

_HOMES = (
    dict.fromkeys(("Error", "Exit", "Killed", "Normal", "Shutdown"), "holdfast.supervision.exits")
    | dict.fromkeys(("Handle", "IgnoreStart", "StartError", "ready"), "holdfast.actors.task")
    | dict.fromkeys(("Host", "Place", "Running"), "holdfast.actors.host")
    | {"Child": "holdfast.actors.child"}
)

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
