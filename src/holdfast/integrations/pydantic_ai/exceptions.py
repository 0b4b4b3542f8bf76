"""Exceptions of pydantic-ai: the ones that steer its loop, the ones a fallback answers, the ones that inform the model."""

from __future__ import annotations

import json

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

from holdfast.faults import CircuitOpenError, DeadlineError, NextActor
from holdfast.runtime.failures.tool_fault import fault_of_tool

__all__ = ["FALLBACK_ON", "PASSING", "for_the_model"]

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
"""Exceptions that are not failures: messages for the model, and steps of pydantic-ai's own loop."""

FALLBACK_ON: tuple[type[Exception], ...] = (ModelAPIError, CircuitOpenError, DeadlineError)
"""Use it for a `FallbackModel(…, fallback_on=FALLBACK_ON)` around models that recover. Its default does not know our errors."""


def for_the_model(error: Exception) -> ModelRetry | ToolFailed:
    """Return the exception to raise in a tool so that the model learns of a failure.

        except httpx.HTTPError as error:
            raise for_the_model(error) from error

    Its text is `fault.for_model()` as JSON, with the words of an exception of the tool's own (`ValueError("unknown city")`),
    without stack, path or secret. It is a `ModelRetry` if the model can do something about the failure, such as send other
    arguments, and otherwise a `ToolFailed`.
    """
    fault = fault_of_tool(error)
    text = json.dumps(fault.for_model())
    return ModelRetry(text) if fault.next_actor is NextActor.MODEL else ToolFailed(text)
