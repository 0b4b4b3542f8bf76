"""A retry that only prose suggests gives way to words for what a person has to change."""

from __future__ import annotations

import pytest

from holdfast.classify import from_exception, from_jsonrpc, from_process, from_text


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (2, "This repository exceeded its LFS budget.\nerror: failed to fetch some objects", "TOOL_QUOTA_EXHAUSTED"),
        (1, "unable to connect: the address is not on the allowlist", "AUTH_FORBIDDEN"),
        (1, "the lock is held by another process, but --locked is not supported here", "TOOL_EXECUTION_FAILED"),
        (1, "Unable to connect to the server: EOF", "ACTOR_CLI_NETWORK"),
        (1, "Failed to connect to api.example.com port 443", "ACTOR_CLI_NETWORK"),
    ],
)
def test_output_that_names_what_stays_is_not_retried(code: int, text: str, expected: str):
    assert from_process(code, text).code == expected


@pytest.mark.parametrize(
    "text",
    [
        "Waiting for approval timed out",
        "Environment protection rule: waiting for reviewers timed out",
        "Login timed out. Please try signing in again.",
        "Your account has been temporarily locked due to suspicious activity",
        "The server is shutting down permanently on June 30",
    ],
)
def test_who_waits_for_a_person_does_not_ask_again(text: str):
    assert not from_text(text).retryable


def test_the_reason_that_a_sentence_gives_counts_before_its_consequence():
    assert not from_text("Cannot connect to the database: invalid password for user app").retryable
    assert from_text("Cannot connect to the database: Connection refused").retryable


def test_what_a_model_wrote_is_sampled_again_whatever_else_it_says():
    assert from_text("Failed to parse LLM response as JSON: syntax error while parsing value").retryable


def test_a_parser_that_reads_no_model_is_not_asked_again():
    sql = type("ParseError", (Exception,), {"__module__": "sqlglot.errors"})
    model = type("ParseError", (Exception,), {"__module__": "acme.agents"})
    assert not from_exception(sql("Expecting ). Line 1, Col: 20.")).retryable
    assert from_exception(model("the model wrote no action")).retryable


def test_a_body_that_a_tool_passes_on_is_read_by_its_fields():
    text = '{"object":"error","status":429,"code":"rate_limited","message":"slow down","retry_after":30}'
    message = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}], "isError": True}}
    fault = from_jsonrpc(message)
    assert fault.retryable
    assert fault.retry_after == 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("net::ERR_CERT_DATE_INVALID at https://x.example.com/", "CONN_TLS_HANDSHAKE_FAILED"),
        ("NS_ERROR_UNKNOWN_HOST", "CONN_DNS_FAILED"),
        ("net::ERR_CONNECTION_CLOSED", "CONN_RESET"),
        ("net::ERR_BLOCKED_BY_CLIENT", "PROVIDER_BAD_REQUEST"),
        ("ORA-00060: deadlock detected while waiting for resource", "TOOL_RESOURCE_BUSY"),
        ("ORA-28000: The account is locked.", "AUTH_FAILED"),
        ("ORA-00001: unique constraint (X.PK) violated", "TOOL_EXECUTION_FAILED"),
    ],
)
def test_a_name_or_a_number_of_a_program_means_one_failure(text: str, expected: str):
    assert from_text(text).code == expected


def test_a_status_behind_an_address_or_in_a_name_is_read():
    assert from_process(1, "error: GET https://npm.example.com/x - 503").code == "PROVIDER_UNAVAILABLE"
    unavailable = (
        "ERR_PNPM_FETCH_502  GET https://npm.example.com/x: Bad Gateway - 502\n\nNo authorization header was set."
    )
    assert from_process(1, unavailable).code == "PROVIDER_UNAVAILABLE"
