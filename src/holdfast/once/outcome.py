"""How a call of a step ended, and what the log says to do about it.

Invariant: a step whose result is stored is not run again. An unsafe step that may have happened is not repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.faults import Fault
from holdfast.once.records import StepEnded, StepStarted, may_have_happened

if TYPE_CHECKING:
    from holdfast.policies.decide import Effect

__all__ = [
    "Drifted",
    "Found",
    "InDoubt",
    "Mark",
    "Repeat",
    "Return",
    "RunStep",
    "StepDecision",
    "decide_step",
    "did_nothing",
    "must_not_repeat",
    "needs_start",
]


class Found(msgspec.Struct, frozen=True):
    """The result of a step that `verify` or a person gave: its function did not return it."""

    result: Any


class Mark(msgspec.Struct, frozen=True):
    """Stands around what the function of a step returned, and tells it from what `verify` or a person gave.

    Marks are stored, so their names never change.
    """

    name: str

    def on(self, returned: Any) -> dict[str, Any]:
        """Return the result of the step."""
        return {self.name: returned}

    def read(self, stored: Any) -> Any:
        """Return what the function returned, or `Found`."""
        return stored[self.name] if isinstance(stored, dict) and stored.keys() == {self.name} else Found(stored)


class RunStep(msgspec.Struct, frozen=True):
    """The log does not know the step: run it."""


class Repeat(msgspec.Struct, frozen=True):
    """The step failed, or was started and its end is not known: run it again."""

    unknown: bool
    """Whether it may have happened once already."""


class Return(msgspec.Struct, frozen=True):
    """The step has a stored result: return it."""

    result: msgspec.Raw


class InDoubt(msgspec.Struct, frozen=True):
    """The step may have happened and must not be repeated: a person has to find out."""


class Drifted(msgspec.Struct, frozen=True):
    """The log has another step of this unsafe function, which the program has not called: its arguments may have changed."""

    stored: StepStarted | StepEnded


StepDecision: TypeAlias = RunStep | Repeat | Return | InDoubt | Drifted


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
            return RunStep() if other is None else Drifted(other)
        case StepEnded(ok=True, result=result):
            return Return(result)
        # The effect is what the function declares now. It may be safe to repeat now, even if it was not before the crash.
        case StepEnded(unknown=unknown):
            return InDoubt() if unknown and effect == "unsafe" else Repeat(unknown)
        case _:
            # The step was started, and the process died before the end was stored.
            return InDoubt() if effect == "unsafe" else Repeat(unknown=True)


def needs_start(effect: Effect | None) -> bool:
    """Whether the start must be in the log before the step runs.

    Only the start of an unsafe step decides something after a crash. Every other step is run again, with the same key.
    """
    return effect == "unsafe"


def must_not_repeat(effect: Effect | None, fault: Fault) -> bool:
    """Whether a call that failed must not be made again, nor anything in its place: it is unsafe and may have happened."""
    return effect == "unsafe" and fault.maybe_executed


def did_nothing(returned: Any) -> bool:
    """Whether what an unsafe step returned is a stored failure that shows that nothing happened: its caller goes on from that."""
    document = next(iter(returned.values())) if isinstance(returned, dict) and len(returned) == 1 else None
    if not isinstance(document, dict) or not str(next(iter(returned))).startswith(_OURS):
        return False
    fault = document.get("fault")
    return isinstance(fault, dict) and not msgspec.convert(fault, Fault).ended_itself


_OURS = "holdfast."
"""Begins the names of our marks."""
