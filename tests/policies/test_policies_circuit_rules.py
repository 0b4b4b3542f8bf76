"""Which circuit counts a failure."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from holdfast import CODES, Fault, Kind, Layer, Scope
from holdfast.policies.circuit import counted_by

PROVIDER = (Scope.PROVIDER,)
ALL = (Scope.AGENT, Scope.TOOL, Scope.PROVIDER, Scope.MODEL, Scope.CREDENTIAL)


@pytest.mark.parametrize(
    ("code", "scopes", "counted"),
    [
        ("CONN_RESET", PROVIDER, Scope.PROVIDER),
        ("PROVIDER_OVERLOADED", PROVIDER, Scope.PROVIDER),
        ("PROVIDER_RATE_LIMITED", PROVIDER, Scope.PROVIDER),
        ("PROVIDER_TIMEOUT", (Scope.AGENT,), Scope.AGENT),
        ("AUTH_FAILED", PROVIDER, None),
        ("AUTH_FAILED", (Scope.PROVIDER, Scope.CREDENTIAL), Scope.CREDENTIAL),
        ("PROVIDER_BAD_REQUEST", PROVIDER, None),
        ("PROVIDER_CONTEXT_OVERFLOW", ALL, None),
        ("SYS_PROGRAMMING_ERROR", (Scope.TOOL, Scope.PROVIDER), None),
        ("SYS_PROGRAMMING_ERROR", ALL, Scope.AGENT),  # an agent that crashes is the agent's own failure
        ("ACTOR_CRASHED", ALL, Scope.AGENT),
        ("ACTOR_CLI_ERROR", ALL, None),  # a program that ends with an error is not down
        ("SYS_CANCELLED", ALL, None),
        ("SYS_DEADLINE_EXCEEDED", ALL, None),
        ("SYS_BULKHEAD_FULL", ALL, None),
        ("CIRCUIT_OPEN", ALL, None),
    ],
)
def test_R53_the_callers_mistakes_never_count_against_the_callee(code: Any, scopes: Any, counted: Any) -> None:
    if code not in CODES:
        pytest.fail(f"{code} is no code")
    assert counted_by(Fault.of(code), scopes) is counted


@pytest.mark.parametrize("code", sorted(CODES))
def test_R53_no_code_counts_where_it_should_not(code: Any) -> None:
    fault = Fault.of(code)
    for size in (1, 2, 3):
        for scopes in itertools.permutations(ALL, size):
            counted = counted_by(fault, scopes)
            assert counted is None or counted in scopes
            if fault.kind is Kind.CANCELLED or fault.layer is Layer.RECOVERY:
                assert counted is None
            if fault.kind is Kind.TRANSIENT and fault.layer is not Layer.RECOVERY:
                assert counted is not None
