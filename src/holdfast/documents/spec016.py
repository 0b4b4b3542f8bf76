"""SPEC-016, error recovery and resilience (document 001): its names, in Python's spelling. Times are seconds where no name says `ms`.

    from holdfast.documents.spec016 import FallbackChain, FallbackStep, ResilienceManager, ResilienceOptions

    manager = ResilienceManager()
    chain = FallbackChain(fallbacks=(FallbackStep(name="openai", operation=ask_openai),))
    answer = await manager.execute(ask_claude, ResilienceOptions(provider="claude", fallback_chain=chain))

`RetryConfig` is `holdfast.Tries` with its `Backoff`, `CircuitBreakerConfig` is `holdfast.Circuit`, and a `CircuitBreaker` is what
`ResilienceManager.get_circuit` returns. For names that are no import here:

    TimeoutError              Python's own, which needs no import
    TimeoutConfig             `spec016.timeout("llm-call")`; a limit of your own is `ResilienceOptions.timeout`
    provider_circuits         `ResilienceManager.provider_circuits`
    agent_circuits            `ResilienceManager.agent_circuits`
    agent_fallback_chain      `AGENT_CHAINS`
    execute_with_resilience   `ResilienceManager.execute`
    execute_agent, emit, sleep   yours: a function of an agent's name; the runtime emits and waits
"""

from __future__ import annotations

from holdfast.events import (
    AgentFallback,
    CircuitState,
    CircuitStateChange,
    Degraded,
    Failed,
    Fallback,
    Recovered,
    RecoveryEvent,
    Retry,
)
from holdfast.faults import Category as ErrorCategory
from holdfast.faults import CircuitOpenError
from holdfast.manager import (
    DEFAULT_RETRY_CONFIG,
    AgentExecutionContext,
    CachedAnswers,
    FallbackChain,
    FallbackStep,
    ResilienceManager,
    ResilienceMetrics,
    calculate_delay,
    classify_error,
    create_circuit_breaker,
    execute_with_recovery,
    with_fallback,
    with_retry,
    with_timeout,
)
from holdfast.manager import CircuitHandle as CircuitBreaker
from holdfast.manager import ExecutionOptions as ResilienceOptions
from holdfast.policies import Backoff
from holdfast.policies import Circuit as CircuitBreakerConfig
from holdfast.policies import Tries as RetryConfig
from holdfast.profiles import AGENT_CHAINS, AGENTS, PROVIDER_CHAINS, PROVIDERS, spec016
from holdfast.views.category import ClassifiedError

__all__ = [
    "AGENTS",
    "AGENT_CHAINS",
    "DEFAULT_RETRY_CONFIG",
    "PROVIDERS",
    "PROVIDER_CHAINS",
    "AgentExecutionContext",
    "AgentFallback",
    "Backoff",
    "CachedAnswers",
    "CircuitBreaker",
    "CircuitBreakerConfig",
    "CircuitOpenError",
    "CircuitState",
    "CircuitStateChange",
    "ClassifiedError",
    "Degraded",
    "ErrorCategory",
    "Failed",
    "Fallback",
    "FallbackChain",
    "FallbackStep",
    "Recovered",
    "RecoveryEvent",
    "ResilienceManager",
    "ResilienceMetrics",
    "ResilienceOptions",
    "Retry",
    "RetryConfig",
    "calculate_delay",
    "classify_error",
    "create_circuit_breaker",
    "execute_with_recovery",
    "spec016",
    "with_fallback",
    "with_retry",
    "with_timeout",
]
