"""`ResilienceManager`: named circuits, executions, metrics and events behind one object.

from holdfast.manager import ExecutionOptions, ResilienceManager

manager = ResilienceManager()
answer = manager.execute(ask, ExecutionOptions(provider="claude", operation_type="llm-call"))

manager   `ResilienceManager`
options   how one operation or one agent is executed, and what answers when it fails
circuit   `CircuitHandle`, one circuit by its name
metrics   what a manager counts
functions the functions of SPEC-016, for programs that are written with them

It adds no machinery: what it executes recovers as with `recover`. It may import runtime and what stands before it.
"""

from __future__ import annotations

from holdfast.faults import AbortedError
from holdfast.manager.circuit import CircuitHandle
from holdfast.manager.functions import (
    DEFAULT_RETRY_CONFIG,
    calculate_delay,
    classify_error,
    create_circuit_breaker,
    execute_with_recovery,
    with_fallback,
    with_retry,
    with_timeout,
)
from holdfast.manager.manager import EVENT_NAMES, ResilienceManager
from holdfast.manager.metrics import ResilienceMetrics
from holdfast.manager.options import (
    AgentExecutionContext,
    CachedAnswers,
    ExecutionOptions,
    FallbackChain,
    FallbackStep,
)
from holdfast.policies.circuit import BreakerMetrics
from holdfast.runtime.operation.adapter import Abort

__all__ = [
    "DEFAULT_RETRY_CONFIG",
    "EVENT_NAMES",
    "Abort",
    "AbortedError",
    "AgentExecutionContext",
    "BreakerMetrics",
    "CachedAnswers",
    "CircuitHandle",
    "ExecutionOptions",
    "FallbackChain",
    "FallbackStep",
    "ResilienceManager",
    "ResilienceMetrics",
    "calculate_delay",
    "classify_error",
    "create_circuit_breaker",
    "execute_with_recovery",
    "with_fallback",
    "with_retry",
    "with_timeout",
]
