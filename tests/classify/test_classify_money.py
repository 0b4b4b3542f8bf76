"""Fields for machines that name money, a budget or a quota are more exact than the status and the sentence (XC2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.classify import from_exception, from_grpc, from_http, from_jsonrpc, from_stream, from_text

MONEY = [
    "budget_exceeded",
    "BudgetExceededError",
    "monthly_budget_reached",
    "insufficient_credits",
    "NO_CREDITS_REMAINING",
    "credits-exhausted",
    "billing_disabled",
    "billingNotActive",
    "spend_cap_reached",
    "MonthlySpendLimitExceeded",
    "payment_required",
    "balance_too_low",
    "insufficient_funds",
]
NOT_MONEY = [
    "openrouter_in_flight_budget",
    "credit_limit",
    "rate_limit_exceeded",
    "throttling.ratequota",
    "load_balancer_error",
    "invalid_credentials",
    "retry_budget_exceeded",
    "account_suspended",
    "thinking_budget_exceeded",
]


@pytest.mark.parametrize("status", [400, 403, 429, 500, 503])
@pytest.mark.parametrize("code", MONEY)
def test_XC2_a_code_that_names_money_is_not_retried_whatever_is_around_it(code: str, status: int):
    for field in ("type", "code", "reason"):
        body = {"error": {field: code, "message": "Too many requests, please slow down"}}
        fault = from_http(status, {"x-ratelimit-reset-requests": "2s"}, body)
        assert (fault.code, fault.retryable) == ("PROVIDER_BILLING", False), (field, fault)


@pytest.mark.parametrize("code", NOT_MONEY)
def test_XC2_a_code_that_only_resembles_one_is_judged_by_the_other_rules(code: str):
    fault = from_http(429, {}, {"error": {"code": code, "message": "Too many requests"}})
    assert fault.rule != "limits.money_by_code"


@pytest.mark.parametrize("code", ["quota_exhausted", "QuotaExceeded", "monthly_quota_reached", "allowance_used_up"])
@pytest.mark.parametrize("status", [400, 403, 429, 500, 503])
def test_XC2_a_quota_that_is_used_up_is_not_retried_without_a_reset(code: str, status: int):
    fault = from_http(status, {}, {"error": {"code": code, "message": "Request failed, try again later"}})
    assert (fault.code, fault.retryable) == ("PROVIDER_QUOTA_EXHAUSTED", False)


@pytest.mark.parametrize("code", ["budget_exceeded", "quota_exhausted"])
def test_XC2_a_short_reset_in_the_same_fields_is_worth_the_wait(code: str):
    def judged(**fields: Any) -> tuple[bool, float | None]:
        fault = from_http(429, {}, {"error": {"code": code, "message": "Too many requests", **fields}}, now=1e9)
        return fault.retryable, fault.retry_after

    assert judged(retry_after=20) == (True, 20.0)
    assert judged(resets_at=1e9 + 60) == (True, 60.0)
    assert judged(retry_after=86_400)[0] is False
    assert judged()[0] is False
    assert from_http(429, {"retry-after": "20"}, {"error": {"code": code}}).retryable


def test_XC2_an_empty_account_is_not_retried_after_any_reset():
    fault = from_http(429, {"retry-after": "5"}, {"error": {"code": "insufficient_credits", "retry_after": 5}})
    assert (fault.code, fault.retryable) == ("PROVIDER_BILLING", False)


class _Refused(Exception):
    def __init__(self, body: Any) -> None:
        super().__init__("Error code: 429 - Too many requests")
        self.status_code = 429
        self.body = body


def test_XC2_every_carrier_of_the_field_counts():
    error = {"type": "budget_exceeded", "message": "Too many requests"}
    faults = [
        from_http(429, {"x-error-code": "budget_exceeded"}, "Too many requests"),
        from_http(429, {}, json.dumps({"detail": error})),
        from_stream(f"data: {json.dumps({'error': error})}\n\n"),
        from_exception(_Refused({"error": error})),
        from_text(f"Error code: 429 - {json.dumps({'error': error})}"),
        from_text("Error code: 429 - budget_exceeded: Too many requests"),
        from_grpc("RESOURCE_EXHAUSTED", json.dumps({"error": error})),
        from_grpc("RESOURCE_EXHAUSTED", 'reason: "BUDGET_EXCEEDED" domain: "example.com"'),
    ]
    assert {(fault.code, fault.retryable) for fault in faults} == {("PROVIDER_BILLING", False)}
    # A tool's money is another account's, so the code is the tool's.
    rpc = from_jsonrpc({"error": {"code": -32000, "message": "Too many requests", "data": error}})
    assert (rpc.code, rpc.retryable) == ("TOOL_QUOTA_EXHAUSTED", False)
