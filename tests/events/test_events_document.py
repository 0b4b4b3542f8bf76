"""Document 001's own shape of the recovery events."""

from __future__ import annotations

import json

import pytest
from events_strategies import events
from hypothesis import HealthCheck, given, settings

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
    write_document,
)
from holdfast.faults import Fault
from holdfast.views import category

OVERLOADED = Fault.of("PROVIDER_OVERLOADED", retry_after=4.0)


@pytest.mark.parametrize(
    ("event", "document"),
    [
        (
            Retry(at=9.0, operation="claude messages.create", attempt=1, max_attempts=3, delay=4.0, fault=OVERLOADED),
            {
                "type": "retry",
                "attempt": 1,
                "maxAttempts": 3,
                "delay": 4000.0,
                "error": category.write(OVERLOADED),
                "operationName": "claude messages.create",
            },
        ),
        (
            CircuitStateChange(at=9.0, circuit="claude", from_=CircuitState.OPEN, to=CircuitState.HALF_OPEN),
            {"type": "circuit-state-change", "circuit": "claude", "from": "open", "to": "half-open"},
        ),
        (Fallback(at=9.0, from_="claude", to="openai"), {"type": "fallback", "from": "claude", "to": "openai"}),
        (
            AgentFallback(at=9.0, from_="builder", to="builder-simple"),
            {"type": "agent-fallback", "from": "builder", "to": "builder-simple"},
        ),
        (Degraded(at=9.0, reason="cached"), {"type": "degraded", "reason": "cached"}),
        (Recovered(at=9.0, after=5.6, attempts=2), {"type": "recovered", "after": 5600.0, "attempts": 2}),
        (
            Failed(at=9.0, fault=OVERLOADED, exhausted=True),
            {"type": "failed", "error": category.write(OVERLOADED), "exhausted": True},
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_S1_21_the_union_as_the_document_shows_it(event, document):
    assert write_document(event) == document


def test_S1_21_an_error_is_a_ClassifiedError():
    error = write_document(Failed(at=1.0, fault=OVERLOADED, exhausted=False))["error"]
    assert (error["category"], error["isRetryable"], error["suggestedDelay"]) == ("unavailable", True, 4000)


@given(events.filter(lambda event: isinstance(event, RecoveryEvent)))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_law_the_document_is_json_and_names_the_events_own_kind(event):
    document = write_document(event)
    json.dumps(document, allow_nan=False).encode()
    assert document["type"] == event.__struct_config__.tag
