"""An operation while recovery is off: one plain call, nothing limited, nothing counted, nothing told (S1-25).

Invariant: whatever the call does, the caller sees it as if Holdfast were not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.runtime.operation import Operation

if TYPE_CHECKING:
    from holdfast.policies.retry import Decision
    from holdfast.runtime.plan import Plan

__all__ = ["begin"]


def begin(plan: Plan) -> Operation:
    """Return the operation of a call that begins now."""
    return _PlainOperation(plan) if plan.off else Operation(plan)


class _PlainOperation(Operation):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.deadline = self.outer_deadline = self.budget = None

    def admit(self) -> None:
        self.attempts += 1

    def limit(self) -> None:
        return None

    def succeeded(self, value: object = None) -> None:
        pass

    def failed(self, error: BaseException, decision: Decision | None = None) -> None:  # noqa: ARG002 - one shape for all
        return None

    def stopped(self, error: BaseException) -> None:
        pass

    def abandoned(self, error: BaseException | None) -> None:
        pass
