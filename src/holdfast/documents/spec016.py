"""Document 001, error recovery and resilience: its names, in Python's spelling.

from holdfast.documents.spec016 import ResilienceManager

manager = ResilienceManager()
"""

from __future__ import annotations

from holdfast.events import CircuitState
from holdfast.faults import Category as ErrorCategory
from holdfast.faults import CircuitOpenError
from holdfast.manager import AgentExecutionContext, FallbackChain, ResilienceManager, ResilienceMetrics

__all__ = [
    "AgentExecutionContext",
    "CircuitOpenError",
    "CircuitState",
    "ErrorCategory",
    "FallbackChain",
    "ResilienceManager",
    "ResilienceMetrics",
]
