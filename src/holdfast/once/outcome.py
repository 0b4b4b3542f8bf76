"""What the log says to do about a call of a step.

Invariant: a step whose result is stored is not run again. An unsafe step that may have happened is not repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from holdfast.once.records import StepEnded, StepStarted, may_have_happened

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
    """The log has another step of this unsafe function, which the program has not called: its arguments may have changed."""

    stored: StepStarted | StepEnded


StepDecision: TypeAlias = Run | Repeat | Return | Unknown | Drifted


def decide_step(
    known: StepStarted | StepEnded | None,
    effect: Effect | None,
    not_replayed: tuple[StepStarted | StepEnded, ...] = (),
) -> StepDecision:
    """Return what to do about a step.

    `known` is the last entry of the log about it; `not_replayed` are other steps of its function that the log knows and this run of
    the program has not called.
    """
    match known:
        case None:
            # `deploy(plan, now())` has other arguments each time. To run it again would be a second deployment.
            other = next(filter(may_have_happened, not_replayed), None) if effect == "unsafe" else None
            return Run() if other is None else Drifted(other)
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

    Only the start of an unsafe step decides something after a crash. Every other step is run again, with the same key.
    """
    return effect == "unsafe"
