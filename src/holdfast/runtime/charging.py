"""What the attempts of an operation cost the budget around it.

Invariant: a call is charged once, however many recoveries are around it. An attempt that makes its calls through other
recoveries is charged by them; its own is only what it answers beyond their answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.policies.models.usage import usage_of

if TYPE_CHECKING:
    from holdfast.runtime.operation import Operation

__all__ = ["begun", "ended", "entered"]


def entered(op: Operation) -> None:
    """An operation begins inside an attempt of another: the calls are made here, and that attempt is none."""
    outer = op.outer
    if outer is not None and outer.budget is not None and outer.inside is None:
        outer.inside = []
        outer.budget.attempt_taken_back(again=_is_recovery(outer))


def begun(op: Operation) -> None:
    """An attempt begins; until something inside it says otherwise, it is a call."""
    op.inside = None
    if op.budget is not None:
        op.budget.attempt_begun(again=_is_recovery(op))


def ended(op: Operation, answer: object) -> None:
    """An attempt has ended, with this answer or with none."""
    if op.budget is None:
        return
    inside = op.inside
    known = inside is not None and usage_of(answer) is not None and all(answer is not other for other in inside)
    if inside is None or known:
        op.budget.attempt_ended(answer, again=_is_recovery(op))
    outer = op.outer
    if outer is not None and outer.inside is not None and usage_of(answer) is not None:
        outer.inside.append(answer)


def _is_recovery(op: Operation) -> bool:
    """Whether the present attempt would not have been made if the first one, here or around, had succeeded."""
    part: Operation | None = op
    while part is not None:
        if part.attempts > 1:
            return True
        part = part.outer
    return False
