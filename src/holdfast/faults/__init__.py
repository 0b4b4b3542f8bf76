"""The vocabulary of failure: codes, the catalog behind them, `Fault`, the exceptions that carry one, and `Ok | Err`.

Every failure in an agent system becomes one `Fault` with one code. The code's entry in the catalog names the kind of
failure and who must act next. `views/` writes a fault in other formats. `classify/` turns a foreign failure into a
fault.
"""

from __future__ import annotations

from holdfast.faults.catalog import CATALOG, Entry, meaning, nearest, resolve
from holdfast.faults.codes import CODES, AnyCode, Code
from holdfast.faults.enums import Category, Kind, Layer, NextActor, Schedule, Scope, Severity
from holdfast.faults.errors import (
    AbortedError,
    BudgetError,
    CircuitOpenError,
    DeadlineError,
    HoldfastError,
    InvalidError,
    OutcomeUnknownError,
    StreamCutError,
)
from holdfast.faults.fault import PATIENCE_S, Attempt, Cause, Fault, ItemError, Partial
from holdfast.faults.outcome import Err, Ok, Outcome
from holdfast.faults.redaction import CAP_BYTES, REDACTOR, Redactor, cap
from holdfast.faults.visible import visible

__all__ = [
    "CAP_BYTES",
    "CATALOG",
    "CODES",
    "PATIENCE_S",
    "REDACTOR",
    "AbortedError",
    "AnyCode",
    "Attempt",
    "BudgetError",
    "Category",
    "Cause",
    "CircuitOpenError",
    "Code",
    "DeadlineError",
    "Entry",
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
    "Redactor",
    "Schedule",
    "Scope",
    "Severity",
    "StreamCutError",
    "cap",
    "meaning",
    "nearest",
    "resolve",
    "visible",
]
