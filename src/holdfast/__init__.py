"""Holdfast: when an AI agent's call fails, it decides what to do next, does it, and shows you why.

    from holdfast import fault_of

    try:
        ...
    except Exception as error:
        fault = fault_of(error)
        print(fault.code, fault.retryable, fault.retry_after, fault.next_actor)

Names are loaded when they are first used, so that `import holdfast` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader
from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.faults import (
        CODES,
        Attempt,
        BudgetError,
        Category,
        CircuitOpenError,
        Code,
        DeadlineError,
        Err,
        Fault,
        HoldfastError,
        InvalidError,
        ItemError,
        Kind,
        Layer,
        NextActor,
        Ok,
        Outcome,
        OutcomeUnknownError,
        Partial,
        Scope,
        Severity,
        StreamCutError,
    )
    from holdfast.runtime import fault_of

__all__ = [
    "CODES",
    "Attempt",
    "BudgetError",
    "Category",
    "CircuitOpenError",
    "Code",
    "DeadlineError",
    "Err",
    "Fault",
    "HoldfastError",
    "InvalidError",
    "ItemError",
    "Kind",
    "Layer",
    "NextActor",
    "Ok",
    "Outcome",
    "OutcomeUnknownError",
    "Partial",
    "Scope",
    "Severity",
    "StreamCutError",
    "__version__",
    "fault_of",
]

_HOMES = dict.fromkeys(__all__, "holdfast.faults") | {"fault_of": "holdfast.runtime"}

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
