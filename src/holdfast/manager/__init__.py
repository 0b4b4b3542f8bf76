"""`ResilienceManager` with the methods of document 001 (S1-22), and what it is given and gives.

from holdfast.manager import ExecutionOptions, ResilienceManager

manager = ResilienceManager()
answer = manager.execute(ask, ExecutionOptions(provider="claude", operation_type="llm-call"))
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
