"""How a child ended: `Normal`, `Shutdown`, `Error` or `Killed`.

Invariant: a cancellation that the supervisor did not request is an `Error`. A child never ends without one of these four.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["Error", "Exit", "Killed", "Normal", "Shutdown", "is_clean"]


class Normal(msgspec.Struct, frozen=True):
    """The child returned: `Normal(value=42)`."""

    value: Any = None
    """What it returned."""

    def __str__(self) -> str:
        return "ended normally"


class Shutdown(msgspec.Struct, frozen=True):
    """The child stopped because it was asked to, or because it decided to: `Shutdown("idle")`."""

    detail: Any = None
    """Why, in a word or two; None if there is no reason to give."""

    def __str__(self) -> str:
        return "was stopped" if self.detail is None else f"was stopped: {self.detail}"


class Error(msgspec.Struct, frozen=True):
    """The child raised: `Error(KeyError("plan"))`."""

    error: BaseException
    then: Literal["restart", "stop", "escalate"] = "restart"
    """What the child's directive says. `restart`: the restart type decides; `stop`: the child is not started again;
    `escalate`: it is the supervisor's own failure."""

    def __str__(self) -> str:
        return f"raised {type(self.error).__name__}"


class Killed(msgspec.Struct, frozen=True, eq=False):
    """The child's process or task was ended from outside: `Killed(signal=9)`."""

    signal: int | None = None
    """The number of the signal; None for a task."""
    error: BaseException | None = None
    """What is known besides, such as the `ProcessError` with a command's output. Two ends with different ones are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Killed) and self.signal == other.signal

    def __hash__(self) -> int:
        return hash((Killed, self.signal))

    def __str__(self) -> str:
        return "was killed" if self.signal is None else f"was killed by signal {self.signal}"


Exit: TypeAlias = Normal | Shutdown | Error | Killed
"""How a child ended."""


def is_clean(how: Exit) -> bool:
    """Whether a transient child that ended this way is not started again."""
    return isinstance(how, (Normal, Shutdown)) or (isinstance(how, Error) and how.then == "stop")
