"""Words for failure: codes, the catalog behind them, `Fault`, the exceptions that carry one, and `Ok | Err`.

Everything that fails in an agent system becomes one `Fault` with one code. The code's entry in the catalog says what
kind of failure it is, who must act next and how it is named in each of the five documents; `views/` writes it in their
shapes, `classify/` recognises it in somebody else's.
"""

from __future__ import annotations

from holdfast.faults.catalog import CATALOG, Entry, meaning, nearest, resolve
from holdfast.faults.codes import CODES, AnyCode, Code
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
from holdfast.faults.fault import Attempt, Cause, Fault
from holdfast.faults.partial import ItemError, Partial
from holdfast.faults.redact import CAP_BYTES, REDACTOR, Redactor, cap
from holdfast.faults.results import Err, Ok, Outcome
from holdfast.faults.words import Category, Kind, Layer, NextActor, Schedule, Scope, Severity

__all__ = [
    "CAP_BYTES",
    "CATALOG",
    "CODES",
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
]
