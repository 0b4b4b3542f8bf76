"""Decides from the log what to do about a step: run it, repeat it, or return its stored result.

Invariant: a step whose result is stored is not run again. An unsafe step that may have happened is not repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from holdfast.sessions.log import StepEnded, StepStarted

if TYPE_CHECKING:
    from holdfast.policies.decide import Effect

__all__ = ["Drifted", "Repeat", "Return", "Run", "StepDecision", "Unknown", "decide_step", "needs_start"]


class Run(msgspec.Struct, frozen=True):
    """The log does not know the step: run it."""


class Repeat(msgspec.Struct, frozen=True):
    """The step failed, or was started and its end is not known: run it again."""

    unknown: bool
    """Whether it may have happened once already."""


class Return(msgspec.Struct, frozen=True):
    """The step has a stored result: return it."""

    result: msgspec.Raw


class Unknown(msgspec.Struct, frozen=True):
    """The step may have happened and must not be repeated: a person has to find out."""


class Drifted(msgspec.Struct, frozen=True):
    """The log has the step with other arguments: the program has changed."""

    stored: str
    """The hash of the arguments in the log."""


StepDecision: TypeAlias = Run | Repeat | Return | Unknown | Drifted


def decide_step(known: StepStarted | StepEnded | None, args: str, effect: Effect | None) -> StepDecision:
    """Return what to do about a step that is called with arguments of this hash.

    `known` is the last entry of the log about it.
    """
    match known:
        case None:
            return Run()
        # This case comes first: with other arguments even a stored result must not be used.
        case StepStarted() | StepEnded() if known.args != args:
            return Drifted(known.args)
        case StepEnded(ok=True, result=result):
            return Return(result)
        # The effect is what the function declares now. It may be safe to repeat now, even if it was not before the crash.
        case StepEnded(unknown=unknown):
            return Unknown() if unknown and effect == "unsafe" else Repeat(unknown)
        case _:
            # The step was started, and the process died before the end was stored.
            return Unknown() if effect == "unsafe" else Repeat(unknown=True)


def needs_start(effect: Effect | None) -> bool:
    """Whether the start must be in the log before the step runs.

    A step that is declared as safe to repeat does not need this write.
    """
    return effect not in ("read", "idempotent")
