"""What pydantic-ai raises that is no failure: words for the model, and steps of its own loop."""

from __future__ import annotations

from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelAPIError,
    ModelRetry,
    RetryModelRequest,
    SkipModelRequest,
    SkipToolExecution,
    SkipToolValidation,
    ToolFailed,
)

from holdfast.faults import CircuitOpenError, DeadlineError

__all__ = ["FALLBACK_ON", "PASSING"]

PASSING: tuple[type[Exception], ...] = (
    ModelRetry,
    ToolFailed,
    CallDeferred,
    ApprovalRequired,
    SkipModelRequest,
    RetryModelRequest,
    SkipToolValidation,
    SkipToolExecution,
)

FALLBACK_ON: tuple[type[Exception], ...] = (ModelAPIError, CircuitOpenError, DeadlineError)
"""For `FallbackModel(…, fallback_on=FALLBACK_ON)` around models that recover: its default knows no open circuit."""
