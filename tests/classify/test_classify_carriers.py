"""One failure, one verdict, whatever carries it (XC4), and the innermost cause first (XC3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.classify import (
    from_exception,
    from_grpc,
    from_http,
    from_jsonrpc,
    from_process,
    from_record,
    from_stream,
    from_text,
    read_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Fault

quick = settings(max_examples=150, deadline=None, derandomize=True)

# What each message is, as a plain text. A 500 is retried like the text, unless the text says that it stays.
MESSAGES: dict[str, tuple[str, bool]] = {
    "Session not found": ("TOOL_SESSION_EXPIRED", True),
    "Connection refused": ("CONN_REFUSED", True),
    "Could not resolve host: api.example.com": ("CONN_DNS_FAILED", True),
    "getaddrinfo ENOTFOUND registry.example.com": ("CONN_DNS_FAILED", True),
    "Connection reset by peer": ("CONN_RESET", True),
    "socket hang up": ("CONN_RESET", True),
    "fetch failed": ("CONN_RESET", True),
    "net::ERR_CONNECTION_REFUSED": ("CONN_REFUSED", True),
    "net::ERR_NAME_NOT_RESOLVED": ("CONN_DNS_FAILED", True),
    "No route to host": ("CONN_UNREACHABLE", True),
    "certificate verify failed: self-signed certificate": ("CONN_TLS_HANDSHAKE_FAILED", False),
    "certificate has expired": ("CONN_TLS_HANDSHAKE_FAILED", False),
    "Request timed out": ("PROVIDER_TIMEOUT", True),
    "Timeout 30000ms exceeded": ("PROVIDER_TIMEOUT", True),
    "deadline exceeded": ("PROVIDER_TIMEOUT", True),
    "Rate limit exceeded": ("PROVIDER_RATE_LIMITED", True),
    "Too many requests": ("PROVIDER_RATE_LIMITED", True),
    "429 Too Many Requests": ("PROVIDER_RATE_LIMITED", True),
    "503 Service Unavailable": ("PROVIDER_UNAVAILABLE", True),
    "Service Unavailable": ("PROVIDER_UNAVAILABLE", True),
    "upstream connect error or disconnect/reset before headers": ("PROVIDER_UNAVAILABLE", True),
    "overloaded_error": ("PROVIDER_OVERLOADED", True),
    "Model overloaded, try again later": ("PROVIDER_OVERLOADED", True),
    "Insufficient credits": ("PROVIDER_BILLING", False),
    "insufficient_quota": ("PROVIDER_BILLING", False),
    "payment required": ("PROVIDER_BILLING", False),
    "quota exceeded for this month": ("PROVIDER_QUOTA_EXHAUSTED", False),
    "Invalid API key": ("AUTH_FAILED", False),
    "Unable to locate credentials": ("AUTH_FAILED", False),
    "token has expired": ("AUTH_TOKEN_EXPIRED", False),
    "account suspended": ("AUTH_ACCOUNT_DISABLED", False),
    "Permission denied": ("AUTH_FORBIDDEN", False),
    "context length exceeded: 210000 tokens > 200000": ("PROVIDER_CONTEXT_OVERFLOW", False),
    "content policy violation": ("PROVIDER_CONTENT_POLICY", False),
    "no such file or directory": ("TOOL_FILE_NOT_FOUND", False),
    "Unknown tool: frobnicate": ("TOOL_NOT_FOUND", False),
    "database is locked": ("TOOL_RESOURCE_BUSY", True),
    "index.lock: File exists": ("TOOL_RESOURCE_BUSY", True),
    "No space left on device": ("SYS_RESOURCE_EXHAUSTED", False),
    "too many open files": ("SYS_RESOURCE_EXHAUSTED", False),
    "disk quota exceeded": ("SYS_RESOURCE_EXHAUSTED", False),
    "segmentation fault": ("TOOL_CRASHED", True),
    "page crashed": ("TOOL_CRASHED", True),
    "transport closed": ("TOOL_CONNECTION_LOST", True),
    "operation was aborted by the user": ("SYS_CANCELLED", False),
    "max turns reached": ("TASK_TURNS_EXHAUSTED", False),
    "tool call was rejected by the user": ("TOOL_APPROVAL_DENIED", False),
}
CARRIERS: dict[str, Callable[[str], Fault]] = {
    "exception": lambda text: from_exception(RuntimeError(text)),
    "HTTP 500": lambda text: from_http(500, {}, {"error": {"message": text}}),
    "HTTP 200": lambda text: from_http(200, {}, {"error": {"message": text}}),
    "JSON-RPC error": lambda text: from_jsonrpc(
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": text}}
    ),
    "JSON-RPC internal": lambda text: from_jsonrpc({"id": 1, "error": {"code": -32603, "message": text}}),
    "tool result": lambda text: from_jsonrpc(
        {"result": {"isError": True, "content": [{"type": "text", "text": text}]}}
    ),
    "SSE event": lambda text: from_stream(f"event: error\ndata: {json.dumps({'error': {'message': text}})}\n\n"),
    "SSE event as text": lambda text: from_text(f"event: error\ndata: {json.dumps({'error': {'message': text}})}\n\n"),
    "SSE event of JSON-RPC as text": lambda text: from_text(
        f"id: 7\ndata: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'error': {'code': -32000, 'message': text}})}\n\n"
    ),
    "HTTP 200 with an SSE event": lambda text: from_http(
        200,
        {"content-type": "text/event-stream"},
        f"event: message\ndata: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'error': {'code': -32000, 'message': text}})}\n\n",
    ),
    "stderr, exit code 1": lambda text: from_process(1, text),
    "stderr, exit code unknown": lambda text: from_process(None, text),
    "log line": lambda text: from_text(f"2026-11-18T08:00:00.123Z ERROR [worker-1] {text}"),
    "log line with a logger": lambda text: from_text(f"[2026-11-18 08:00:00,123] ERROR app.client: {text}"),
    "JSON log line": lambda text: from_text(
        json.dumps({"level": "error", "msg": text, "time": "2026-11-18T08:00:00Z"})
    ),
}
RPC = frozenset({"JSON-RPC error", "JSON-RPC internal", "tool result", "HTTP 200 with an SSE event"})
PROCESS = frozenset({"stderr, exit code 1", "stderr, exit code unknown"})

# The carrier adds a fact: the login, the limit and the outage are those of a tool, and not those of the model's provider.
OF_A_TOOL = {
    "PROVIDER_RATE_LIMITED": "TOOL_RATE_LIMITED",
    "PROVIDER_BILLING": "TOOL_QUOTA_EXHAUSTED",
    "PROVIDER_QUOTA_EXHAUSTED": "TOOL_QUOTA_EXHAUSTED",
    "PROVIDER_TIMEOUT": "TOOL_TIMEOUT",
    "PROVIDER_UNAVAILABLE": "TOOL_RESOURCE_BUSY",
    "PROVIDER_OVERLOADED": "TOOL_RESOURCE_BUSY",
    "AUTH_FAILED": "TOOL_FORBIDDEN",
    "AUTH_FORBIDDEN": "TOOL_FORBIDDEN",
    "AUTH_TOKEN_EXPIRED": "TOOL_FORBIDDEN",
    "AUTH_ACCOUNT_DISABLED": "TOOL_FORBIDDEN",
}
# A program's own network, time and permission. A program that prints network words is repeated only once.
OF_A_PROGRAM = {
    "CONN_RESET": "ACTOR_CLI_NETWORK",
    "PROVIDER_TIMEOUT": "TOOL_TIMEOUT",
    "AUTH_FORBIDDEN": "TOOL_FORBIDDEN",
    "PROVIDER_QUOTA_EXHAUSTED": "TOOL_QUOTA_EXHAUSTED",
    "PROVIDER_UNAVAILABLE": "PROVIDER_UNAVAILABLE",
}


def _agrees(code: str, got: str, carrier: str, *, retryable: bool) -> bool:
    if got == code or (carrier in RPC and OF_A_TOOL.get(code) == got):
        return True
    if carrier in PROCESS and OF_A_PROGRAM.get(code) == got:
        return True
    # A 500 adds a fact: what passes is the server's own, whatever it names, and no circuit of this machine counts it.
    return (
        carrier == "HTTP 500" and got == "PROVIDER_INTERNAL_ERROR" and (retryable or code == "SYS_RESOURCE_EXHAUSTED")
    )


def _same_failure(text: str, code: str, got: str) -> bool:
    """A broken line has several codes that mean the same to a caller: it is sent again."""
    alike = ({"CONN_RESET", "PROVIDER_STREAM_CUT"}, {"TOOL_CONNECTION_LOST", "CONN_RESET"})
    return any({code, got} <= pair for pair in alike)


# A path that a server lacks is the server's own defect; the label stays "not retried".
OWN_DEFECTS = frozenset({"no such file or directory", "No space left on device"})


@pytest.mark.parametrize("text", MESSAGES)
def test_XC4_the_message_alone(text: str):
    fault = from_text(text)
    assert (fault.code, fault.retryable) == MESSAGES[text]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("text", MESSAGES)
def test_law_XC4_one_failure_has_one_verdict_whatever_carries_it(text: str, carrier: str):
    code, retryable = MESSAGES[text]
    fault = CARRIERS[carrier](text)
    assert fault.retryable is retryable, fault
    own = carrier == "HTTP 500" and text in OWN_DEFECTS
    assert own or _agrees(code, fault.code, carrier, retryable=retryable) or _same_failure(text, code, fault.code), (
        fault
    )


@quick
@given(st.sampled_from(sorted(MESSAGES)), st.integers(1, 123) | st.integers(2, 100))
def test_law_XC4_the_exit_code_of_a_failed_program_changes_nothing(text: str, exit_code: int):
    if exit_code not in (124, 126, 127):
        known, unknown = from_process(exit_code, text), from_process(None, text)
        assert (known.code, known.retryable) == (unknown.code, unknown.retryable)
        assert "exit_code" not in unknown.context


@quick
@given(
    st.sampled_from(sorted(MESSAGES)),
    st.sampled_from(["2026-11-18T08:00:00Z", "2026-11-18 08:00:00,123", "[2026/11/18 08:00:00]", "08:00:00.123"]),
    st.sampled_from(["ERROR", "[error]", "WARN", "FATAL:", ""]),
    st.sampled_from(["", "[worker-1] ", "[pid 12] ", "app.client: "]),
)
def test_law_XC4_the_prefix_of_a_log_changes_nothing(text: str, at: str, level: str, logger: str):
    plain, logged = from_text(text), from_text(f"{at} {level} {logger}{text}")
    assert (plain.code, plain.retryable) == (logged.code, logged.retryable)


def test_XC4_a_404_with_the_sentence_of_a_lost_session_is_that_session():
    for fault in (
        from_http(404, {}, "Session not found"),
        from_http(404, {}, {"error": {"message": "Session not found"}}),
        from_http(404, {}, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}}),
        from_record(read_record(json.dumps({"kind": "subprocess", "body": "Error: Session not found"}))),
    ):
        assert (fault.code, fault.retryable) == ("TOOL_SESSION_EXPIRED", True)


def test_XC4_the_session_of_a_login_is_not_the_session_of_a_protocol():
    assert not from_text("Your session was not found, please log in again").retryable
    assert not from_http(401, {}, "Session not found").retryable


def test_XC4_json_in_the_details_of_grpc_is_read():
    details = json.dumps({"error": {"code": "insufficient_quota", "message": "no"}})
    assert from_grpc("UNAVAILABLE", details).code == "PROVIDER_BILLING"


DOWNLOADS: list[tuple[str, str]] = [
    (
        "failed to download https://files.example.com/a.tgz: Could not resolve host: files.example.com",
        "CONN_DNS_FAILED",
    ),
    ("error downloading model: dial tcp: lookup hub.example.com: no such host", "CONN_DNS_FAILED"),
    ("unable to download archive: Connection refused", "CONN_REFUSED"),
    ("failed to retrieve metadata: certificate has expired", "CONN_TLS_HANDSHAKE_FAILED"),
    ("could not fetch index: No route to host", "CONN_UNREACHABLE"),
]


@pytest.mark.parametrize(("text", "code"), DOWNLOADS)
def test_XC3_the_cause_counts_before_the_sentence_around_it(text: str, code: str):
    for fault in (
        from_text(text),
        from_exception(RuntimeError(text)),
        from_process(1, text),
        from_process(None, text),
        from_stream(f'data: {{"error":{{"message":"{text}"}}}}'),
    ):
        assert fault.code == code, fault


def test_XC3_a_4xx_says_that_the_address_in_the_request_is_wrong():
    fault = from_http(
        400, {}, {"error": {"message": "failed to download image: Could not resolve host: x.example.com"}}
    )
    assert (fault.code, fault.retryable) == ("PROVIDER_REMOTE_FETCH_FAILED", False)


CAUSED: list[tuple[str, str]] = [
    (
        ("java.lang.IllegalStateException: Request failed: invalid configuration\n\tat com.example.A.b(A.java:1)\n"
        "Caused by: java.net.UnknownHostException: api.example.com"),
        "CONN_DNS_FAILED",
    ),
    (
        ("Error: failed to fetch manifest\n\nCaused by:\n    0: error sending request for url\n    1: client error (Connect)\n"
        "    2: tcp connect error: Connection refused (os error 111)"),
        "CONN_REFUSED",
    ),
    (
        "TypeError: fetch failed\n    at node:internal\n  [cause]: Error: getaddrinfo ENOTFOUND api.example.com",
        "CONN_DNS_FAILED",
    ),
    (
        ("npm error code ENOTFOUND\nnpm error network request to https://registry.example.com/x failed, reason: getaddrinfo "
        "ENOTFOUND registry.example.com\nnpm error network This is a problem related to network connectivity."),
        "CONN_DNS_FAILED",
    ),
    (
        ("ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='pypi.example.com', port=443): Max retries "
        "exceeded with url: /simple (Caused by NewConnectionError('Failed to establish a new connection: [Errno -2] Name or "
        "service not known'))"),
        "CONN_DNS_FAILED",
    ),
    (
        "Cloning into 'x'...\nfatal: unable to access 'https://git.example.com/x.git/': Could not resolve host: git.example.com",
        "CONN_DNS_FAILED",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code"), CAUSED)
def test_XC3_a_named_cause_counts_before_the_text_that_names_it(text: str, code: str):
    for fault in (from_text(text), from_process(1, text), from_process(None, text)):
        assert (fault.code, fault.retryable) == (code, True), fault


def test_XC3_a_cause_of_an_exception_counts_before_its_sentence():
    error = RuntimeError("failed to download the model")
    error.__cause__ = OSError(-2, "Name or service not known")
    assert from_exception(error).code == "CONN_DNS_FAILED"


def test_XC4_the_class_of_an_exception_in_a_log_is_no_logger():
    assert from_text("2026-11-18 08:00:00 ERROR socket.gaierror: x").code == "CONN_DNS_FAILED"
    assert from_text("2026-11-18 08:00:00 ERROR httpx.ReadTimeout: x").code == "PROVIDER_TIMEOUT"


@quick
@given(
    st.text(max_size=200),
    st.sampled_from(["Caused by: ", "[cause]: ", "root cause: ", "\nCaused by:\n  0: "]),
    st.text(max_size=60),
)
def test_law_XC3_a_cause_that_says_nothing_changes_nothing_and_nothing_raises(outer: str, marker: str, cause: str):
    for fault in (from_text(outer + marker + cause), from_process(1, outer + marker + cause)):
        assert fault.rule
        assert not fault.rule.startswith("classifier-failed")
