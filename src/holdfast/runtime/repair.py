"""Performing a repair: ask the function that knows how, and call with what it changed.

Invariant: a repair that cannot help, raises, or would send the same again leaves the original error to surface.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from holdfast.events import Repaired, SuppressedError
from holdfast.policies.repair import Changed
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.faults import Fault
    from holdfast.policies.repair import Repair
    from holdfast.runtime.operation import Operation

__all__ = ["DueRepair", "mend", "repair_async"]

Request = tuple[tuple[Any, ...], "Mapping[str, Any]"]


class DueRepair:
    """A repair that is due: what failed, and who may put it right."""

    __slots__ = ("error", "fault", "fn", "repair")

    def __init__(self, repair: Repair, fn: Callable[..., Any], fault: Fault, error: Exception) -> None:
        self.repair = repair
        self.fn = fn
        self.fault = fault
        self.error = error


async def repair_async(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request:
    """Return the request to send instead of the one that failed, or raise the error it failed with."""
    mending, op.mending = op.mending, None
    assert mending is not None
    try:
        answer = mending.fn(mending.fault, *args, **kwargs)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as broken:  # noqa: BLE001 - the error that matters is the call's (R25)
        _suppress(op, mending, broken)
        answer = None
    except BaseException as stop:
        op.stopped(stop)
        raise
    return _changed(op, mending, answer, args, kwargs)


def mend(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request:
    """Do the same in a thread."""
    mending, op.mending = op.mending, None
    assert mending is not None
    try:
        answer = mending.fn(mending.fault, *args, **kwargs)
    except Exception as broken:  # noqa: BLE001 - ditto
        _suppress(op, mending, broken)
        answer = None
    except BaseException as stop:
        op.stopped(stop)
        raise
    return _changed(op, mending, answer, args, kwargs)


def _changed(
    op: Operation, mending: DueRepair, answer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Request:
    repairs, repair = op.repairs, mending.repair
    assert repairs is not None
    repairs.sent(args, kwargs)
    if isinstance(answer, Changed) and not repairs.repeats(answer):
        args, kwargs = answer.args, answer.kwargs
    elif answer is not True or not repair.same_request:
        op.give_up_unrepaired(mending.error, mending.fault)
        raise mending.error
    bus = op.plan.runtime.bus
    if bus.wants(Repaired):
        bus.emit(
            Repaired(
                at=op.plan.runtime.clock.wall(),
                run=op.run,
                operation=op.plan.name,
                attempt=op.attempts,
                action=repair.name,
                fault=mending.fault,
            )
        )
    return args, kwargs


def _suppress(op: Operation, mending: DueRepair, broken: Exception) -> None:
    runtime = op.plan.runtime
    reason = f"the repair {mending.repair.name} raised"
    runtime.bus.emit(SuppressedError.of(fault_of(broken), reason, at=runtime.clock.wall(), run=op.run))
