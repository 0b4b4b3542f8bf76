"""Perform a repair: call the user's function, and make the next attempt with the arguments it returned.

Invariant: if a repair returns nothing, raises, or would send the same request again, the original error surfaces.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from holdfast.events import Repaired
from holdfast.policies.repair import Changed
from holdfast.runtime.operation import reports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.runtime.callables import Request
    from holdfast.runtime.operation.due_repair import DueRepair
    from holdfast.runtime.operation.operation import Operation

__all__ = ["repair", "repair_async"]


async def repair_async(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request:
    """Return the request to send instead of the one that failed, or raise the error it failed with."""
    due = op.take_repair()
    try:
        result = due.fn(due.fault, args, kwargs)
        if inspect.isawaitable(result):
            result = await result
    except Exception as broken:  # noqa: BLE001 - the error that matters is the call's (R25)
        _suppress(op, due, broken)
        result = None
    except BaseException as stop:
        # The user's function was cancelled or interrupted, and no later step would report the end.
        op.stopped(stop)
        raise
    return _repaired(op, due, result, args, kwargs)


def repair(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request:
    """Do the same as `repair_async`, in a thread."""
    due = op.take_repair()
    try:
        result = due.fn(due.fault, args, kwargs)
    except Exception as broken:  # noqa: BLE001 - the error that matters is the call's (R25)
        _suppress(op, due, broken)
        result = None
    except BaseException as stop:
        op.stopped(stop)
        raise
    return _repaired(op, due, result, args, kwargs)


def _repaired(op: Operation, due: DueRepair, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request:
    changed = due.fn.request(result, args) if isinstance(result, Changed) else None
    if changed is not None and _differs(op, changed, args, kwargs):
        args, kwargs = changed.args, changed.kwargs
    # A refreshed credential is not among the arguments. So from such a repair, True means: send the same request again.
    elif result is not True or not due.repair.same_request:
        raise op.not_repaired(due)
    bus, clock = op.plan.runtime.bus, op.plan.runtime.clock
    if bus.wants(Repaired):
        bus.emit(
            Repaired(
                at=clock.wall(),
                run=op.run,
                operation=op.plan.name,
                attempt=op.attempts,
                action=due.repair.name,
                fault=due.fault,
            )
        )
    return args, kwargs


def _differs(op: Operation, changed: Changed, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a repaired request differs from every request that failed; `args` and `kwargs` are the latest of those."""
    assert op.decider is not None
    repairs = op.decider.repairs
    assert repairs is not None
    # The failed request is remembered before the new one is compared with all that were sent.
    repairs.sent(args, kwargs)
    return not repairs.repeats(changed)


def _suppress(op: Operation, due: DueRepair, broken: Exception) -> None:
    reports.suppressed(op, broken, f"the repair {due.repair.name} raised")
