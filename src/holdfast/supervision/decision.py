"""What a supervisor does next, as values. A decision is a list of these steps, performed in order.

    [Restarting("b", …), Stop(("d",)), Stop(("c",)), Start("b", …), Start("c", …), Start("d", …)]

If a start fails, the rest of the list is dropped, and the machine decides again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from holdfast.supervision.exits import Exit

__all__ = ["Close", "Decision", "Finish", "GiveUp", "Purpose", "Restarting", "Start", "Step", "Stop", "Wait"]

Purpose: TypeAlias = Literal["open", "add", "revive", "recover"]
"""Why a child is started: with its supervisor; as a new child; because a person wants it back; to replace one that ended."""


class Start(msgspec.Struct, frozen=True):
    """Start this incarnation of a child."""

    id: str
    incarnation: int
    purpose: Purpose
    cause: Exit | None = None
    """How the last incarnation ended; None for the first."""


class Stop(msgspec.Struct, frozen=True):
    """Stop these children, all at the same time, and wait until they have stopped."""

    ids: tuple[str, ...]


class Restarting(msgspec.Struct, frozen=True):
    """A child ended and is restarted."""

    id: str
    attempt: int
    """Restarts in a row, this one included."""
    delay: float
    cause: Exit


class Wait(msgspec.Struct, frozen=True):
    """Report `retry(id, token)` to the machine after `delay`; meanwhile the supervisor goes on with its work."""

    id: str
    delay: float
    token: int


class Close(msgspec.Struct, frozen=True):
    """The child has ended and is not started again by itself."""

    id: str
    how: Exit
    removed: bool = False
    """Whether it is not listed any more."""


class GiveUp(msgspec.Struct, frozen=True):
    """Stop everything; this supervisor has failed. With `child_only` nothing else stops."""

    id: str
    how: Exit
    restarts: int
    """Restarts within the window."""
    escalated: bool = False
    """Whether the child escalated its failure; otherwise the restart budget is spent."""
    child_only: bool = False
    """Whether only this child is given up, and the supervisor goes on."""


class Finish(msgspec.Struct, frozen=True):
    """Stop everything; a significant child ended, so the work is done."""

    id: str


Step: TypeAlias = Start | Stop | Restarting | Wait | Close | GiveUp | Finish
Decision: TypeAlias = list[Step]
