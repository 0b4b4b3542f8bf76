"""Sentences that every program builds in its own words: tools' stderr, agents, frameworks, tool servers, browsers."""

from __future__ import annotations

import pytest

from holdfast.classify import from_exception, from_jsonrpc, from_process, from_record, from_text, read_record


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
