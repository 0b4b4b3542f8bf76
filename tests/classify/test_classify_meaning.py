"""Sentences that every program builds in its own words: tools' stderr, agents, frameworks, tool servers, browsers."""

from __future__ import annotations

import pytest

from holdfast.classify import (
    from_exception,
    from_http,
    from_jsonrpc,
    from_process,
    from_record,
    from_stream,
    from_text,
    read_record,
)


@pytest.mark.parametrize(
    ("exit_code", "stderr", "code", "retryable"),
    [
        (35, "curl: (35) OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to x:443", "ACTOR_CLI_NETWORK", True),
        (255, "ssh: connect to host 10.0.0.5 port 22: No route to host", "CONN_UNREACHABLE", True),
        (1, "Cannot connect to the Docker daemon. Is the docker daemon running?", "CONN_RESET", True),
        (1, "Error: Get https://registry.example.com/v2/x/manifests/latest: EOF", "ACTOR_CLI_NETWORK", True),
        (1, "wget: unable to resolve host address 'files.example.com'", "CONN_DNS_FAILED", True),
        (1, "Error: UPGRADE FAILED: timed out waiting for the condition", "TOOL_TIMEOUT", True),
        (1, "ERROR 2006 (HY000): MySQL server has gone away", "CONN_RESET", True),
        (2, "The registry answered with nothing. The registry may be down.", "PROVIDER_UNAVAILABLE", True),
    ],
)
def test_FC3_a_network_word_on_stderr_counts_before_the_exit(exit_code: int, stderr: str, code: str, retryable: bool):
    fault = from_process(exit_code, stderr)
    assert (fault.code, fault.retryable) == (code, retryable)


@pytest.mark.parametrize(
    "stderr",
    [
        "FAILED tests/test_a.py::test_b - AssertionError: connection refused\n1 failed, 3 passed in 0.1s",
        "--- FAIL: TestDial (0.00s)\n    dial tcp 127.0.0.1:1: connect: connection refused\nFAIL",
        "error: could not compile `net` (lib): expected `connection reset`",
        "bash: line 1: unexpected EOF while looking for matching `\"'",
        "tool: error: unrecognized arguments: --timeout 3",
    ],
)
def test_FC3_a_report_that_quotes_a_network_word_is_not_retried(stderr: str):
    fault = from_process(1, stderr)
    assert (fault.code, fault.retryable) == ("TOOL_EXECUTION_FAILED", False)


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("npm ERR! code E401\nnpm ERR! Incorrect or missing password.", "AUTH_FAILED"),
        ('npm ERR! code E401\nnpm ERR! Unable to authenticate, need: BASIC realm="x"', "AUTH_FAILED"),
        ("npm error code EOTP\nnpm error This operation requires a one-time password", "AUTH_FAILED"),
        ("To get started with GitHub CLI, please run:  gh auth login", "AUTH_FAILED"),
        ("error: your authentication token is missing required scopes [read:project]", "AUTH_FORBIDDEN"),
        ("svn: E170001: Authorization failed", "AUTH_FAILED"),
    ],
)
def test_FC3_a_login_that_a_tool_lacks_is_an_authentication_failure(stderr: str, code: str):
    fault = from_process(1, stderr)
    assert (fault.code, fault.retryable) == (code, False)


@pytest.mark.parametrize(
    "text",
    [
        'Operation cannot be fulfilled on deployments.apps "web": the object has been modified; please try again',
        "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
        "error: the stack is currently locked by 1 lock(s). Wait for the other process to end",
        "fatal: Unable to create '.git/refs/heads/main.lock': File exists.",
    ],
)
def test_FC3_what_another_holds_or_changed_is_worth_a_retry(text: str):
    assert from_text(text).code == "TOOL_RESOURCE_BUSY"
    assert from_process(1, text).retryable


def test_FC3_a_rebase_in_progress_waits_for_a_person():
    fault = from_process(128, "error: a rebase is in progress; fix the conflicts, then run git rebase --continue")
    assert (fault.code, fault.retryable) == ("TOOL_EXECUTION_FAILED", False)


def test_FC3_a_status_on_stderr_is_more_exact_than_the_words_around_it():
    fault = from_process(
        128, "error: RPC failed; HTTP 413 curl 22 The requested URL returned error: 413\nfatal: hung up"
    )
    assert (fault.code, fault.retryable) == ("PROVIDER_REQUEST_TOO_LARGE", False)
    assert from_process(2, "Error making API request. Code: 503. Errors:\n\n* Vault is sealed").retryable


@pytest.mark.parametrize(("reason", "code"), [("1", "PROVIDER_MALFORMED_RESPONSE"), ("3", "PROVIDER_CONTENT_POLICY")])
def test_FC3_geminis_quick_accessor_means_an_empty_answer_or_a_filter(reason: str, code: str):
    message = (
        "Invalid operation: The `response.text` quick accessor requires the response to contain a valid `Part`, but none "
        f"were returned. The candidate's [finish_reason](https://ai.google.dev/api#finishreason) is {reason}."
    )
    assert from_exception(ValueError(message)).code == code


@pytest.mark.parametrize(
    ("text", "code", "retryable"),
    [
        ("No object generated: response did not match schema.", "PROVIDER_OUTPUT_INVALID", True),
        ("The model returned an empty response", "PROVIDER_MALFORMED_RESPONSE", True),
        ("Could not parse the model output", "PROVIDER_MALFORMED_RESPONSE", True),
        ("SyntaxError: Unexpected end of JSON input", "PROVIDER_MALFORMED_RESPONSE", True),
        ("There was an unexpected error. Error type: APIConnectionError", "CONN_RESET", True),
        ("Worker process died unexpectedly", "TOOL_CRASHED", True),
        ("MCP error -32000: Connection closed", "TOOL_CONNECTION_LOST", True),
        ("MY_API_KEY environment variable is required.", "AUTH_FAILED", False),
        ("Loop detected, stopping", "TASK_LOOP_BOUND", False),
        ("The tool use was rejected by the user", "TOOL_APPROVAL_DENIED", False),
        ("上下文过长，请减少输入", "PROVIDER_CONTEXT_OVERFLOW", False),
    ],
)
def test_FC3_sentences_of_agents_and_frameworks(text: str, code: str, retryable: bool):
    fault = from_text(text)
    assert (fault.code, fault.retryable) == (code, retryable)


@pytest.mark.parametrize(
    "text",
    [
        "Something about your allowance for this week",
        "Your seat was deactivated by the owner",
        "The plan of this workspace needs an upgrade",
        "The value must be a positive number",
        "Widget 7 does not exist",
    ],
)
def test_FC4_what_names_a_limit_a_login_or_an_invalidity_is_not_retried(text: str):
    assert not from_text(text).retryable


def test_a_text_that_names_nothing_known_is_not_retried_but_an_exception_is_once():
    fault = from_text("the blimp is grounded")
    assert (fault.code, fault.retryable, fault.rule) == ("SYS_UNKNOWN", False, "nothing-matched")
    assert from_exception(Exception("the blimp is grounded")).retryable


def test_a_tool_server_may_use_its_own_words():
    message = {"error": {"code": -32603, "message": "Failed to fetch the page due to a connection issue"}}
    assert from_jsonrpc(message).retryable
    assert from_jsonrpc({"error": {"code": -32603, "message": "division by zero"}}).code == "TOOL_EXECUTION_FAILED"


def test_a_record_of_text_is_read_like_a_text():
    record = read_record('{"kind": "text", "body": "McpError: MCP error -32001: Request timed out"}')
    assert from_record(record).code == from_text("McpError: MCP error -32001: Request timed out").code == "TOOL_TIMEOUT"


def test_a_customers_declined_card_is_not_our_bill():
    class CardError(Exception):
        __module__ = "stripe"

    body = '{"error": {"code": "card_declined", "message": "Your card was declined.", "type": "card_error"}}'
    faults = (from_exception(CardError("Your card was declined.")), from_http(402, {}, body))
    assert {(fault.code, fault.retryable) for fault in faults} == {("TOOL_EXECUTION_FAILED", False)}
    assert from_text("Your card was declined. Update your payment method").code == "PROVIDER_BILLING"


@pytest.mark.parametrize("key", ["content", "message", "output"])
def test_a_key_that_any_dictionary_may_have_is_a_defect_of_the_code(key: str):
    fault = from_exception(KeyError(key))
    assert (fault.code, fault.retryable) == ("SYS_PROGRAMMING_ERROR", False)


class InternalServerError(Exception):
    """As an SDK raises it: the status is an attribute, the body in the text."""

    status_code = 500


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Error code: 500 - {'detail': 'The speech extension is not installed.'}", "PROVIDER_INTERNAL_ERROR"),
        ("Error code: 500 - {'error': 'An unsupported language was used'}", "PROVIDER_CAPABILITY_MISSING"),
        ("Error code: 500 - {'error': 'this model does not support images'}", "PROVIDER_CAPABILITY_MISSING"),
    ],
)
def test_a_500_that_stays_is_not_retried_inside_an_sdk_error_either(text: str, code: str):
    fault = from_exception(InternalServerError(text))
    assert (fault.code, fault.retryable) == (code, False)


def test_a_gateway_that_passes_on_a_denial_is_not_retried():
    denied = "Model access is denied: the role is not authorized to perform the required actions"
    assert from_http(502, {}, f'{{"error": "{denied}"}}').code == "AUTH_FORBIDDEN"
    assert from_http(502, {}, "<html><title>502 Bad Gateway</title></html>").retryable


def test_a_number_of_a_vendor_does_not_outweigh_a_failed_server():
    body = '{"message": "Service unavailable.", "type": "internal_server_error", "code": "1000"}'
    assert (from_http(401, {}, body).code, from_http(500, {}, body).retryable) == ("AUTH_FAILED", True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("EUCLEAN: unknown error, mkdir '/srv/session'", "TOOL_EXECUTION_FAILED"),
        ("DNS resolution failed for :10000: unparseable host:port", "PROVIDER_BAD_REQUEST"),
        ("Request URL is missing an 'http://' or 'https://' protocol.", "PROVIDER_BAD_REQUEST"),
        ("MCP error -32000: Connection closed\nenv: node: No such file or directory", "TOOL_COMMAND_NOT_FOUND"),
        ("O limite de uso da sua conta acabou e volta na segunda-feira.", "PROVIDER_QUOTA_EXHAUSTED"),
    ],
)
def test_a_text_that_names_what_must_change_is_not_retried(text: str, code: str):
    fault = from_text(text)
    assert (fault.code, fault.retryable) == (code, False)


def test_a_process_whose_exit_code_is_not_known_is_not_retried_for_words_that_nobody_knows():
    fault = from_process(None, "the flux rotor declined")
    assert (fault.code, fault.retryable, fault.rule) == ("TOOL_EXECUTION_FAILED", False, "process.exited")


def test_a_sentence_that_a_terminal_has_wrapped_still_names_its_delay():
    assert from_text("Rate limit reached. Please try again\n    in 12s. Visit our page.").retry_after == 12


def test_what_a_form_says_about_each_field_is_read():
    fault = from_http(None, {}, '{"errors": {"title": "cannot be set", "tags": ["must not be empty"]}}')
    assert "cannot be set" in fault.message
    assert not fault.retryable


def test_an_error_in_the_data_stream_of_the_ai_sdk_is_read():
    part = '0:"An "\n3:"{\\"type\\":\\"overloaded_error\\",\\"message\\":\\"Overloaded\\"}"\n'
    assert from_stream(part).code == "PROVIDER_OVERLOADED"


def test_a_database_server_without_a_free_connection_is_overloaded():
    assert from_text("FATAL:  sorry, too many clients already").code == "PROVIDER_OVERLOADED"


def test_a_wrapper_that_calls_a_defect_a_connection_error_is_not_believed():
    class APIConnectionError(Exception):
        __module__ = "litellm.exceptions"

    text = "litellm.APIConnectionError: create() got an unexpected keyword argument 'output_config'"
    assert from_exception(APIConnectionError(text)).code == "SYS_PROGRAMMING_ERROR"
