"""XL7: a name of a document is importable under that name, or its module says what stands for it."""

from __future__ import annotations

from functools import reduce
from importlib import import_module

import pytest

NAMES = {
    "spec016": """
        ErrorCategory ClassifiedError RetryConfig DEFAULT_RETRY_CONFIG calculate_delay with_retry classify_error
        CircuitBreakerConfig CircuitState CircuitBreaker create_circuit_breaker FallbackChain with_fallback AgentExecutionContext
        execute_with_recovery CircuitOpenError with_timeout RecoveryEvent ResilienceManager ResilienceOptions
        ResilienceMetrics
    """,
    "stud": "SuppressedError RetryPolicy DeviceCode Stage",
    "task": """
        TaskFailureReason TaskError TaskResult TaskSystem handle_task_error Task
    """,
}
"""What a document declares or calls by name."""

STAND_INS = {
    "spec016": {
        "TimeoutConfig": "spec016.timeout",
        "provider_circuits": "ResilienceManager.provider_circuits",
        "agent_circuits": "ResilienceManager.agent_circuits",
        "agent_fallback_chain": "AGENT_CHAINS",
        "execute_with_resilience": "ResilienceManager.execute",
    },
    "stud": {"Approve": "Session.approve", "Ask": "Session.ask", "RateLimited": "typed_error"},
    "task": {
        "handle_resource_exhaustion": "Handler.RESOURCE",
        "handle_context_failure": "Handler.CONTEXT",
        "handle_subtask_failure": "Handler.SUBTASK",
        "handle_output_format_failure": "Handler.FORMAT",
        "handle_general_failure": "Handler.GENERAL",
        "recover_from_context_failure": "TaskSystem.recover_from_context_failure",
        "execute_s_expression": "TaskSystem.execute_s_expression",
    },
}
"""Names that are a method, an option or the program's own here, and the thing that stands for each."""


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in NAMES.items() for name in names.split()]
)
def test_XL7_a_name_of_the_document_is_importable_under_that_name(module, name):
    found = import_module(f"holdfast.documents.{module}")
    assert name in found.__all__
    assert getattr(found, name) is not None


@pytest.mark.parametrize(
    ("module", "name", "ours"), [(module, *pair) for module, pairs in STAND_INS.items() for pair in pairs.items()]
)
def test_XL7_the_module_says_what_stands_for_a_name_that_is_no_import(module, name, ours):
    found = import_module(f"holdfast.documents.{module}")
    assert not hasattr(found, name)
    assert name in (found.__doc__ or "")
    assert reduce(getattr, ours.split("."), found) is not None
