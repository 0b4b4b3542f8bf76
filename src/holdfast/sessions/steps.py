"""What to do about a step, decided from what the log says of it.

Invariant: a step that is done is not done again; one that may have happened and must not be repeated is not repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from holdfast.sessions.log import StepEnded, StepStarted

if TYPE_CHECKING:
    from holdfast.policies.effect import Effect

__all__ = ["Drifted", "Repeat", "Return", "Run", "StepDecision", "Unknown", "decide_step", "needs_start"]


class Run(msgspec.Struct, frozen=True):
    """It was never done: do it."""


class Repeat(msgspec.Struct, frozen=True):
    """It was begun and its end is not known, or it failed: do it again. `unknown`: it may have happened once already."""

    unknown: bool


class Return(msgspec.Struct, frozen=True):
    """It is done: this is what it returned."""

    result: msgspec.Raw


class Unknown(msgspec.Struct, frozen=True):
    """It may have happened and must not be repeated: somebody has to look."""


class Drifted(msgspec.Struct, frozen=True):
    """It was begun with other arguments."""

    stored: str


StepDecision: TypeAlias = Run | Repeat | Return | Unknown | Drifted


def decide_step(known: StepStarted | StepEnded | None, args: str, effect: Effect | None) -> StepDecision:
    """Decide about a step that is called with arguments of this hash."""
    match known:
        case None:
            return Run()
        case StepStarted() | StepEnded() if known.args != args:
            return Drifted(known.args)
        case StepEnded(ok=True, result=result):
            return Return(result)
        case StepEnded(unknown=unknown):
            return Unknown() if unknown and effect == "unsafe" else Repeat(unknown)
        case _:
            return Unknown() if effect == "unsafe" else Repeat(unknown=True)


def needs_start(effect: Effect | None) -> bool:
    """Whether it must be on record before it is done: not where doing it twice is declared harmless."""
    return effect not in ("read", "idempotent")
