"""Document 001's ClassifiedError."""

from __future__ import annotations

import pytest

from holdfast.faults import Category, Cause, Fault
from holdfast.views import category


def test_S1_7_classified_error():
    fault = Fault.of(
        "PROVIDER_OVERLOADED", "Overloaded", retry_after=4.0, cause=Cause(type="OverloadedError", message="529")
    )
    document = {
        "category": "unavailable",
        "isRetryable": True,
        "suggestedDelay": 4000,
        "maxRetries": 3,
        "message": "Overloaded",
        "originalError": {"name": "OverloadedError", "message": "529"},
    }
    assert category.write(fault) == document
    heard = category.read(document)
    assert (heard.code, heard.retry_after, heard.cause) == ("PROVIDER_UNAVAILABLE", 4.0, fault.cause)


def test_FM1_a_timeout_names_its_milliseconds_if_the_specification_s_words_are_wanted():
    fault = Fault.of("TOOL_TIMEOUT", context={"limit_s": 120.0})
    assert category.write(fault)["message"] == fault.message
    assert category.write(fault, literal=True)["message"] == "Operation timed out after 120000ms"
    for other in (Fault.of("TOOL_TIMEOUT"), Fault.of("AUTH_FAILED", context={"limit_s": 1})):
        assert category.write(other, literal=True) == category.write(other)


@pytest.mark.parametrize(
    ("name", "retryable", "retries"),
    [
        ("rate_limit", True, 5),
        ("timeout", True, 3),
        ("network", True, 3),
        ("unavailable", True, 3),
        ("auth", False, 0),
        ("invalid", False, 0),
        ("not_found", False, 0),
        ("overflow", False, 0),
        ("tool_error", True, 2),
        ("agent_crash", True, 2),
        ("validation", False, 0),
        ("unknown", True, 1),
        ("cancelled", False, 0),
    ],
)
def test_N1_1_category_defaults_without_the_delay_that_would_override_backoff_N1_9(name, retryable, retries):
    document = {
        "category": name,
        "isRetryable": retryable,
        "suggestedDelay": 0,
        "maxRetries": retries,
        "message": "it failed",
        "originalError": None,
    }
    fault = category.of(Category(name), "it failed")
    assert category.write(fault) == document
    assert category.read(document) == fault


def test_S1_6_every_category_has_a_code_of_that_category():
    for name in Category:
        assert category.of(name).category is name


def test_a_verdict_against_the_catalog_holds():
    document = {
        "category": "rate_limit",
        "isRetryable": False,
        "suggestedDelay": 0,
        "maxRetries": 5,
        "message": "daily limit",
        "originalError": None,
    }
    fault = category.read(document)
    assert fault.code == "PROVIDER_RATE_LIMITED"
    assert not fault.retryable
    assert category.write(fault) == document


@pytest.mark.parametrize(
    ("delay", "wait"), [(7000, 7.0), (0.5, 0.0005), (0, None), (-1, None), (10**400, None), (1e308, 1e305)]
)
def test_S1_26_suggested_delay_is_the_wait_the_other_side_asked_for(delay, wait):
    document = category.write(category.of(Category.RATE_LIMIT, "m")) | {"suggestedDelay": delay}
    fault = category.read(document)
    assert fault.retry_after == wait
    assert category.write(fault) == document


def test_a_fault_that_may_be_retried_against_its_category_is_retried_once():
    assert category.write(Fault.of("AUTH_FAILED", retryable=True))["maxRetries"] == 1


def test_a_wait_without_end_is_no_delay():
    assert category.write(Fault.of("PROVIDER_OVERLOADED", retry_after=float("inf")))["suggestedDelay"] == 0


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("RATE_LIMIT", "PROVIDER_RATE_LIMITED"),
        ("TIMEOUT", "PROVIDER_TIMEOUT"),
        ("x", "SYS_UNKNOWN"),
        ("SESS_CLOSED", "SYS_UNKNOWN"),
    ],
)
def test_only_a_category_is_a_category(name, code):
    document = category.write(category.of(Category.UNKNOWN, "m")) | {"category": name}
    fault = category.read(document)
    assert fault.code == code
    assert category.write(fault) == document


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("boom", Cause(type="Error", message="boom")),
        ({"message": "boom", "stack": "at x"}, Cause(type="Error", message="boom")),
        ({"name": "TypeError", "message": "boom"}, Cause(type="TypeError", message="boom")),
        ({}, None),
        (5, None),
    ],
)
def test_an_original_error_of_any_form_is_kept(error, cause):
    document = category.write(category.of(Category.UNKNOWN, "m")) | {"originalError": error}
    fault = category.read(document)
    assert fault.cause == cause
    assert category.write(fault) == document
