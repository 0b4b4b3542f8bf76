"""Failures that look like they pass, and wrap what somebody must change."""

from __future__ import annotations

import json

import pytest

from holdfast.classify import from_exception, from_http, from_record, read_record


@pytest.mark.parametrize(
    "body",
    [
        {"detail": "KeyError: 'customer'"},
        {"error": {"message": "BILLING_API_KEY environment variable is not set", "type": "server_error"}},
        {"message": "Unique constraint failed on the fields: (`slug`)"},
        {"error": "Failed to deserialize the JSON body into the target type: items[2]: missing field `name`"},
        {"error": "Object of type Decimal is not JSON serializable"},
        {"message": "Bind for 0.0.0.0:9090 failed: port is already allocated"},
    ],
)
def test_a_500_that_wraps_what_somebody_must_change_is_not_retried(body: dict[str, object]):
    assert not from_http(500, body=json.dumps(body)).retryable


def test_a_500_that_says_nothing_is_still_retried():
    assert from_http(500, body=json.dumps({"error": "The server had an error while processing your request"})).retryable


@pytest.mark.parametrize("name", ["SchemaError", "TemplateSyntaxError"])
def test_a_schema_or_a_template_that_somebody_wrote_is_not_sampled_again(name: str):
    exception = {"module": "acme.store", "type": name, "message": "column `embedding` has 3 parts"}
    assert not from_record(read_record(json.dumps({"kind": "exception", "exception": exception}))).retryable


def test_a_client_that_its_own_program_closed_is_not_retried():
    assert not from_exception(RuntimeError("Attempted to use a closed client")).retryable
