"""`ResilienceManager`: named circuits, executions, metrics and events behind one object.

from holdfast.manager import ExecutionOptions, ResilienceManager

manager = ResilienceManager()
answer = manager.execute(ask, ExecutionOptions(provider="claude", operation_type="llm-call"))

manager   `ResilienceManager`
options   how one operation or one agent is executed, and what answers when it fails
circuit   `CircuitHandle`, one circuit by its name
metrics   what a manager counts
"""

from __future__ import annotations

from holdfast.faults import AbortedError
from holdfast.manager.circuit import CircuitHandle
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
from holdfast.runtime.adapter import Abort

__all__ = [
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
]
