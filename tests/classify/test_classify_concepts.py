"""Identifiers and word groups: what they recognise, and which words must not mislead them.

`tests/corpus/reconstructed/sentences.jsonl` holds several hundred sentences that they read. Here stand the reasons for the order.
"""

from __future__ import annotations

import smtplib

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
from holdfast.faults import Scope


@pytest.mark.parametrize(
    ("text", "code", "retryable"),
    [
        ("stream closed: ERR_STREAM_PREMATURE_CLOSE", "CONN_RESET", True),
        ("fetch: ERR_SOCKET_TIMEOUT", "PROVIDER_TIMEOUT", True),
        ("Reason: ImagePullBackOff", "TOOL_FILE_NOT_FOUND", False),
        ("pod is OOMKilled", "TOOL_OUT_OF_MEMORY", True),
        ("launch: InsufficientInstanceCapacity", "PROVIDER_OVERLOADED", True),
        ("launch: VcpuLimitExceeded", "TOOL_QUOTA_EXHAUSTED", False),
        ("token endpoint: invalid_grant", "AUTH_TOKEN_EXPIRED", False),
        ("slack: missing_scope", "AUTH_FORBIDDEN", False),
        ("write failed: ConcurrentModificationException", "TOOL_RESOURCE_BUSY", True),
        ("finish: model_context_window_exceeded", "PROVIDER_CONTEXT_OVERFLOW", False),
        ("ERROR: deadlock (SQLSTATE 40P01)", "TOOL_RESOURCE_BUSY", True),
        ("ERROR: cannot connect now (SQLSTATE 57P03)", "PROVIDER_UNAVAILABLE", True),
        ("ERROR: duplicate (SQLSTATE 23505)", "TOOL_EXECUTION_FAILED", False),
        ("ERROR: bad login (SQLSTATE 28P01)", "AUTH_FAILED", False),
    ],
)
def test_an_identifier_is_recognised_in_any_sentence(text: str, code: str, retryable: bool):
    fault = from_text(text)
    assert (fault.code, fault.retryable) == (code, retryable)


@pytest.mark.parametrize(
    ("text", "code", "retryable"),
    [
        ("Your prepaid balance has run out", "PROVIDER_BILLING", False),
        ("The trial of this workspace expired", "PROVIDER_ENTITLEMENT_MISSING", False),
        ("The sso principal was rejected", "AUTH_FAILED", False),
        ("The role lacks what this call needs", "AUTH_FORBIDDEN", False),
        ("What you sent is 9001 tokens, larger than what fits", "PROVIDER_CONTEXT_OVERFLOW", False),
        ("The attachment is above the 20 MB we take", "PROVIDER_REQUEST_TOO_LARGE", False),
        ("model foo-2 was sunset in May", "PROVIDER_MODEL_NOT_FOUND", False),
        ("top_p and temperature cannot both be given", "PROVIDER_BAD_REQUEST", False),
        ("Our moderation layer stopped this prompt", "PROVIDER_CONTENT_POLICY", False),
        ("the human pressed escape and interrupted it", "SYS_CANCELLED", False),
        ("stream stalled for 60s", "PROVIDER_TIMEOUT", True),
        ("gave up after 30s without a first byte", "PROVIDER_TIMEOUT", True),
        ("the tunnel to the office was severed", "CONN_RESET", True),
        ("the workers are draining", "PROVIDER_UNAVAILABLE", True),
        ("invalid character '<' looking for beginning of value", "PROVIDER_MALFORMED_RESPONSE", True),
        ("the reply is truncated", "PROVIDER_MALFORMED_RESPONSE", True),
        ("25 steps reached, stopping", "TASK_LOOP_BOUND", False),
        ("the hunk could not be matched", "TOOL_EXECUTION_FAILED", False),
    ],
)
def test_a_sentence_is_read_by_what_it_is_about_and_what_is_said_of_it(text: str, code: str, retryable: bool):
    fault = from_text(text)
    assert (fault.code, fault.retryable) == (code, retryable)


@pytest.mark.parametrize(
    "text",
    [
        # A word of a network, a server or a time stands in a sentence about a setting, a login, a limit or a model.
        "The config value for 'retry' must be an integer",
        "Invalid connection string: missing host",
        "Unknown server type 'foo' in settings",
        "The timeout option is not supported by this provider",
        "timeout must be positive",
        "Your plan does not include network access",
        "Tool 'restart_server' requires approval",
        "Unable to validate the stream parameter: expected boolean",
        "Cannot parse connection URL",
        "The server rejected the login: password expired",
        "Proxy URL is malformed",
        "network policy denied egress to api.example.com",
        "Model 'server-down-7b' not found",
        "Please log in again; your connection was reset by an administrator",
        "account locked: too many failed attempts, try again in 24 hours",
        "duplicate server name 'api' in config",
        "Service account key file is missing",
        "backend 'foo' is not a supported engine",
        "insufficient funds; please try again after adding credits",
        "Device code has expired - please try again",
        "interrupted (Ctrl-C). Something went wrong? Send feedback.",
        "This desktop supports at most 5 models; deselect one and try again",
        "disk quota exceeded",
    ],
)
def test_words_of_a_network_do_not_hide_what_never_heals(text: str):
    assert not from_text(text).retryable
    assert not from_exception(RuntimeError(text)).retryable


@pytest.mark.parametrize(
    "stderr",
    [
        "FAIL tests/net.test.ts\n  ● retries on ECONNRESET\n    expect(received).toBe(expected)",
        "src/a.ts(3,1): error TS2304: Cannot find name 'ETIMEDOUT'.",
        "1 failing\n  1) handles EAI_AGAIN:\n     AssertionError [ERR_ASSERTION]",
        "src/a.py:3:1: F821 undefined name 'ThrottlingException'",
        "usage: tool [--throttled] [--lock]\ntool: error: the following arguments are required: --server",
        "warning: deprecated option --timeout\nerror: unknown option '--retry-delay'",
        "Error: Cannot find module 'connection-error'",
        "npm ERR! code ERESOLVE\nnpm ERR! Could not resolve dependency:",
        "ERROR! couldn't resolve module/action 'foo'",
        'psql: error: connection to server failed: FATAL:  database "apo" does not exist',
        "Unable to connect to the server: getting credentials: exec: executable aws failed",
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.",
        "ValidationError(Pod.spec): unknown field",
        "MongoServerError: E11000 duplicate key error collection",
        "ERROR 1153 (08S01): Got a packet bigger than 'max_allowed_packet' bytes",
    ],
)
def test_a_report_or_a_reason_on_stderr_counts_before_a_network_word(stderr: str):
    assert not from_process(1, stderr).retryable


def test_a_guess_about_a_key_concerns_only_this_call():
    fault = from_text("The sso principal was rejected by the vault")
    assert (fault.code, fault.scope) == ("AUTH_FAILED", Scope.REQUEST)


def test_word_groups_are_not_combined_over_a_long_text():
    text = "The balance of this chapter is good. " + "It goes on and on about gardens. " * 20 + "They ran out."
    assert from_text(text).code == "SYS_UNKNOWN"


def test_a_status_is_more_exact_than_an_identifier_but_for_quotas():
    assert from_http(401, body='{"error": {"message": "upstream said ECONNRESET"}}').code == "AUTH_FAILED"
    assert from_process(1, "googleapi: Error 403: Quota 'CPUS' exceeded, quotaExceeded").code == "TOOL_QUOTA_EXHAUSTED"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("(535, b'5.7.8 Username and Password not accepted.')", "AUTH_FAILED"),
        ("(421, b'4.7.0 Try again later, closing connection.')", "PROVIDER_UNAVAILABLE"),
        ("(550, b'5.1.1 No such user')", "PROVIDER_BAD_REQUEST"),
    ],
)
def test_smtp_replies_are_not_http_statuses(message: str, code: str):
    number, text = int(message[1:4]), message[8:-2].encode()
    assert from_exception(smtplib.SMTPResponseException(number, text)).code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Slack API error: ratelimited", "TOOL_RATE_LIMITED"),
        ("Slack API error: missing_scope", "TOOL_FORBIDDEN"),
        ("Query exceeded the maximum execution time of 60 seconds", "TOOL_TIMEOUT"),
        ("The upstream service returned an error: 503", "TOOL_RESOURCE_BUSY"),
        ("The search quota of this plan is used up", "TOOL_QUOTA_EXHAUSTED"),
        ("ValueError: timeout must be positive", "TOOL_EXECUTION_FAILED"),
    ],
)
def test_a_tool_result_is_read_with_the_codes_of_tools(text: str, code: str):
    result = {"content": [{"type": "text", "text": text}], "isError": True}
    assert from_jsonrpc({"jsonrpc": "2.0", "id": 1, "result": result}).code == code


def test_a_tool_server_that_never_started_is_not_connected_again():
    text = "error: Failed to spawn: `x` Caused by: program not found MCP error -32000: Connection closed"
    assert from_text(text).code == "TOOL_COMMAND_NOT_FOUND"


def test_an_event_that_calls_itself_an_error_is_one():
    record = read_record(
        '{"kind": "sse", "body": "data: {\\"event\\": \\"error\\", \\"status\\": 400, \\"message\\": \\"no\\"}"}'
    )
    assert not from_record(record).retryable


@pytest.mark.parametrize(
    ("text", "code"),
    [("The process exited with code 137", "TOOL_KILLED"), ("terminated with exit code: 139", "TOOL_CRASHED")],
)
def test_a_text_may_quote_the_exit_code_of_a_signal(text: str, code: str):
    assert from_text(text).code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("premium_credits_exhausted", "PROVIDER_BILLING"),
        ("upstream_connection_lost", "CONN_RESET"),
        ("SeatSuspendedError: no", "PROVIDER_ENTITLEMENT_MISSING"),
        ("errorCode=MODEL_NOT_CONFIGURED", "PROVIDER_BAD_REQUEST"),
    ],
)
def test_a_code_that_no_table_lists_is_read_by_its_words(text: str, code: str):
    assert from_text(text).code == code


@pytest.mark.parametrize(
    ("text", "status"),
    [('400: {"error": {"message": "no"}}', 400), ("503 - upstream", 503), ("404: Not Found", 404)],
)
def test_a_status_may_stand_before_a_colon(text: str, status: int):
    assert from_text(text).context["status"] == status


@pytest.mark.parametrize("text", ["line 404: syntax", "550-8 steps", "4040: x"])
def test_a_number_that_only_looks_like_a_status_is_none(text: str):
    assert "status" not in from_text(text).context


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        ('event: error\ndata: {"message":"Your credit balance is too low"}\n\n', "PROVIDER_BILLING"),
        ('event: error\ndata: {"detail":"Invalid API key"}\n\n', "AUTH_FAILED"),
        ("event: error\ndata: Too many requests\n\n", "PROVIDER_RATE_LIMITED"),
        (
            'data: {"object":"error","message":"maximum context length is 8192 tokens","code":400}',
            "PROVIDER_CONTEXT_OVERFLOW",
        ),
        ('data: {"code":"InvalidParameter","message":"temperature is out of range"}', "PROVIDER_BAD_REQUEST"),
        ('data: {"errors":[{"message":"model not found"}]}', "PROVIDER_MODEL_NOT_FOUND"),
        ('data: {"success":false,"message":"insufficient balance"}', "PROVIDER_BILLING"),
        ('data: {"status":"error","message":"Invalid token"}', "AUTH_FAILED"),
        ('data: {"detail":"Not authenticated"}', "AUTH_FAILED"),
        ("data: [ERROR] Invalid API key", "AUTH_FAILED"),
        ('data: {"choices":[{"finish_reason":"error","error":{"code":502,"message":"no"}}]}', "PROVIDER_UNAVAILABLE"),
        ('data: {"message":"Internal server error"}', "PROVIDER_INTERNAL_ERROR"),
        # These are no failures of their own: the stream only lacks its end.
        ('data: {"choices":[{"delta":{"content":"error: invalid api key"}}]}', "PROVIDER_STREAM_CUT"),
        ('event: ping\ndata: {}\n\ndata: {"id":"x","code":0,"message":"ok"}', "PROVIDER_STREAM_CUT"),
    ],
)
def test_a_stream_may_report_its_failure_in_many_shapes(stream: str, code: str):
    assert from_stream(stream).code == code


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("Request was throttled. Expected available in 12 seconds.", 12.0),
        ("429 Too Many Requests retryDelay: 26s", 26.0),
        ("Too many requests, the feature is available in 3 regions", None),
    ],
)
def test_a_delay_may_follow_other_words(text: str, delay: float | None):
    assert from_text(text).retry_after == delay


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("The Gradle daemon disappeared unexpectedly (it may have been killed)", "TOOL_CRASHED"),
        ("Error: Failed to download https://files.example.com/x.tar.gz", "ACTOR_CLI_NETWORK"),
        ("Error: Failed to download x: unsupported platform", "TOOL_EXECUTION_FAILED"),
        ("yum: Another app is currently holding the yum lock", "TOOL_RESOURCE_BUSY"),
        ("Error: container runtime is down", "PROVIDER_UNAVAILABLE"),
        ("ERROR: (gcloud.run.deploy) ABORTED: Unable to queue the operation", "PROVIDER_UNAVAILABLE"),
        ("MongoServerError: operation exceeded time limit", "TOOL_TIMEOUT"),
        ("Communications link failure", "ACTOR_CLI_NETWORK"),
    ],
)
def test_what_passes_is_recognised_on_stderr_in_other_words(stderr: str, code: str):
    assert from_process(1, stderr).code == code
