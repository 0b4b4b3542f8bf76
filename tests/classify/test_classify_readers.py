"""Readers: one kind of foreign failure each, as evidence and, where it shows better, as the verdict it leads to."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast.classify import Source, from_grpc, from_http, from_jsonrpc, from_process, from_stream
from holdfast.classify.readers.responses import (
    GRPC_NAMES,
    bad_finish,
    ending,
    read_grpc,
    read_http,
    read_jsonrpc,
    read_stream,
)
from holdfast.classify.readers.text import read_process
from holdfast.faults import CATALOG, Kind
from holdfast.faults.catalog import MAY_HAVE_HAPPENED

# HTTP


@pytest.mark.parametrize(
    ("outer", "inner", "tells"),
    [
        (200, 429, 429),
        (400, 429, 429),
        (500, 402, 402),
        (None, 503, 503),
        (429, 503, 429),
        (503, 400, 503),
        (404, None, 404),
        (529, 529, 529),
    ],
)
def test_http_the_status_that_tells_is_the_wrapped_one_under_success_and_plain_refusal(
    outer: int | None, inner: int | None, tells: int
):
    assert read_http(outer, {}, {"error": {"code": inner, "message": "x"}}).status == tells


def test_http_the_innermost_message_comes_first_and_each_is_said_once():
    body = {"error": {"message": "Provider returned error", "metadata": {"raw": '{"error": {"message": "no credit"}}'}}}
    evidence = read_http(502, {}, body)
    assert evidence.message.splitlines()[0] == "no credit"
    assert evidence.message.count("Provider returned error") == 1


def test_http_names_of_headers_are_lowered_and_values_are_text():
    evidence = read_http(429, {"Retry-After": 7, b"X-Request-Id": b"abc", "N": None})
    assert evidence.headers == {"retry-after": "7", "x-request-id": "abc", "n": "None"}


def test_http_the_aws_error_type_header_is_a_code_without_its_namespace():
    evidence = read_http(400, {"x-amzn-ErrorType": "ThrottlingException:http://internal.amazon.com/coral/"}, "{}")
    assert evidence.codes[0] == "throttlingexception"
    assert from_http(400, {"x-amzn-ErrorType": "ThrottlingException:http://x"}, "{}").code == "PROVIDER_RATE_LIMITED"


def test_http_headers_inside_a_body_do_not_override_the_real_ones():
    evidence = read_http(429, {"retry-after": "3"}, {"error": {"headers": {"Retry-After": "60", "X-Other": 1}}})
    assert evidence.headers == {"retry-after": "3", "x-other": "1"}


@pytest.mark.parametrize(
    "body",
    ['{"error": {"message": "hi"}}', b'{"error": {"message": "hi"}}', bytearray(b'{"error":"hi"}'), {"error": "hi"}],
)
def test_http_a_body_may_be_text_bytes_or_decoded(body: Any):
    assert read_http(400, {}, body).message == "hi"


def test_http_bytes_that_are_no_utf_8_are_read_as_far_as_they_go():
    assert "overloaded" in read_http(503, {}, b"\xff\xfe server overloaded \xff").text


@pytest.mark.parametrize(
    ("name", "value"),
    [("request-id", "req_1"), ("X-Request-Id", "req_1"), ("x-amzn-RequestId", "req_1"), ("cf-ray", "req_1")],
)
def test_http_the_request_id_reaches_the_context(name: str, value: str):
    context = from_http(500, {name: value}, provider="OpenAI").context
    assert context == {"provider": "openai", "status": 500, "request_id": "req_1"}


# Streams

OK = 'data: {"choices":[{"delta":{"content":"hello"}}]}\n\n'
OVERLOADED = '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
NO_MONEY = '{"error":{"code":"insufficient_quota","message":"check your plan"}}'


@pytest.mark.parametrize(
    "stream",
    [
        f"event: error\ndata: {OVERLOADED}\n\n",
        f"{OK}event: error\ndata: {OVERLOADED}\n\n",
        f"{OK}data: {OVERLOADED}\n\ndata: [DONE]\n\n",
        f"data:{OVERLOADED}\r\n\r\n",
        f"{OK}\n: keep-alive\n\ndata: {OVERLOADED}\n\n",
        OVERLOADED,
        json.dumps(json.loads(OVERLOADED), indent=2),
        'data: {"type":"response.failed","response":{"error":{"code":"server_is_overloaded","message":"busy"}}}\n\n',
        f'{{"message":{{"content":"hi"}},"done":false}}\n{OVERLOADED}\n',
    ],
    ids=[
        "alone",
        "after content",
        "before done",
        "crlf",
        "comments",
        "event as text",
        "pretty",
        "responses api",
        "ndjson",
    ],
)
def test_R81_an_overload_inside_a_200_stream_is_overloaded_and_retryable(stream: str):
    fault = from_stream(stream)
    assert (fault.code, fault.retryable) == ("PROVIDER_OVERLOADED", True)


@pytest.mark.parametrize("error", [OVERLOADED, NO_MONEY], ids=["overloaded", "no money"])
@pytest.mark.parametrize(
    "wrapped",
    ["[{}]", "data: [{}]\n\n", "[{}\n]\n", '[{{"candidates":[{{"content":{{"parts":[]}}}}]}}\n,\n{}\n]'],
    ids=["array", "sse array", "array over lines", "gemini array"],
)
def test_R81_an_error_inside_an_array_is_found(error: str, wrapped: str):
    """Gemini streams a JSON array unless the request sets SSE, and its errors are arrays of one."""
    expected = "PROVIDER_OVERLOADED" if error is OVERLOADED else "PROVIDER_BILLING"
    assert from_stream(wrapped.format(error)).code == expected
    if not wrapped.startswith("data:"):
        assert from_stream(wrapped.format(json.dumps(json.loads(error), indent=2))).code == expected


@pytest.mark.parametrize("error", [OVERLOADED, NO_MONEY], ids=["overloaded", "no money"])
def test_R81_an_error_at_the_end_of_a_long_stream_is_found(error: str):
    """A long answer is more than 64 KB of frames; giving up on its end would retry an empty account as a cut stream."""
    fault = from_stream(OK * 4000 + f"data: {error}\n\n")
    assert fault.code == ("PROVIDER_OVERLOADED" if error is OVERLOADED else "PROVIDER_BILLING")


def test_the_ending_of_a_long_stream_is_seen():
    filtered = 'data: {"choices":[{"delta":{},"finish_reason":"content_filter"}]}\n\ndata: [DONE]\n\n'
    assert from_stream(OK * 4000 + filtered).code == "PROVIDER_CONTENT_POLICY"
    assert read_stream(OK * 4000 + "data: [DONE]\n\n").stream == "done"


@pytest.mark.parametrize(
    ("stream", "how", "code"),
    [
        (OK, "cut", "PROVIDER_STREAM_CUT"),
        (OK + 'data: {"choices":[{"del', "cut", "PROVIDER_STREAM_CUT"),
        ("", "cut", "PROVIDER_STREAM_CUT"),
        ("data: [DONE]\n\n", "empty", "PROVIDER_EMPTY_RESPONSE"),
        (OK + "data: [DONE]\n\n", "done", "PROVIDER_MALFORMED_RESPONSE"),
    ],
)
def test_a_stream_without_an_error_is_known_by_its_ending(stream: str, how: str, code: str):
    assert read_stream(stream).stream == how
    assert from_stream(stream).code == code


def test_a_stream_of_aws_names_the_failure_in_the_key():
    assert from_stream('{"throttlingException":{"message":"Too many tokens"}}').code == "PROVIDER_RATE_LIMITED"


def test_a_stream_that_began_with_a_refusal_keeps_its_status():
    assert read_stream(OVERLOADED, status=529).status == 529
    assert read_stream(OVERLOADED, status=200).status is None


def test_the_words_a_model_wrote_are_no_evidence():
    text = 'data: {"choices":[{"delta":{"content":"Error: insufficient_quota, invalid api key, rate limit"}}]}\n\n'
    assert from_stream(text).code == "PROVIDER_STREAM_CUT"


# JSON-RPC and MCP


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (-32700, "PROVIDER_BAD_REQUEST"),
        (-32600, "PROVIDER_BAD_REQUEST"),
        (-32601, "TOOL_NOT_FOUND"),
        (-32602, "TOOL_INPUT_INVALID"),
        (-32603, "TOOL_EXECUTION_FAILED"),
        (-32000, "TOOL_EXECUTION_FAILED"),
        (-32001, "TOOL_EXECUTION_FAILED"),
        (-32002, "TOOL_NOT_FOUND"),
        (-32042, "AUTH_REQUIRED"),
        (-32800, "SYS_CANCELLED"),
        (12345, "TOOL_EXECUTION_FAILED"),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_jsonrpc_by_number(number: int, code: str, as_text: bool):
    message = {"jsonrpc": "2.0", "id": 1, "error": {"code": number, "message": "it failed"}}
    fault = from_jsonrpc(json.dumps(message) if as_text else message)
    assert fault.code == code
    assert fault.context == {"rpc_code": number, "source": "jsonrpc"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("API rate limit exceeded for user", "TOOL_RATE_LIMITED"),
        ("429 Too Many Requests", "TOOL_RATE_LIMITED"),
        ("The tool timed out", "TOOL_TIMEOUT"),
        ("User rejected the request", "TOOL_APPROVAL_DENIED"),
        ("EACCES: permission denied", "TOOL_FORBIDDEN"),
        ("Unknown tool: frobnicate", "TOOL_NOT_FOUND"),
        ("ENOENT: no such file or directory", "TOOL_FILE_NOT_FOUND"),
        ("connect ECONNREFUSED 127.0.0.1:1", "CONN_REFUSED"),
        ("database is locked", "TOOL_RESOURCE_BUSY"),
        ("Input validation error: 'path' is required", "TOOL_INPUT_INVALID"),
        ("something odd", "TOOL_EXECUTION_FAILED"),
        ("", "TOOL_EXECUTION_FAILED"),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["result alone", "in an envelope"])
def test_mcp_a_tool_result_that_says_isError_is_read_by_its_words(text: str, code: str, inside: bool):
    result = {"isError": True, "content": [{"type": "text", "text": text}, {"type": "image", "data": "…"}]}
    message = {"jsonrpc": "2.0", "id": 1, "result": result} if inside else result
    assert read_jsonrpc(message).rpc_code == 0
    assert from_jsonrpc(message).code == code


@pytest.mark.parametrize("message", ["Session not found", "Session terminated", "no valid session id"])
def test_mcp_a_forgotten_session_is_initialised_again(message: str):
    assert from_jsonrpc({"error": {"code": -32001, "message": message}}, status=404).code == "TOOL_SESSION_EXPIRED"


def test_mcp_a_closed_connection_is_restarted():
    assert from_jsonrpc({"error": {"code": -32000, "message": "Connection closed"}}).code == "TOOL_CONNECTION_LOST"


@pytest.mark.parametrize(
    "message", [None, "", "no json", [], [1], 7, {"error": "text"}, {"error": {"code": "x"}}, b"\xff"]
)
def test_jsonrpc_what_is_no_message_has_no_number(message: Any):
    evidence = read_jsonrpc(message)
    assert evidence.source is Source.JSONRPC
    assert evidence.rpc_code is None


# Processes


@pytest.mark.parametrize(
    ("exit_code", "stderr", "code", "retryable"),
    [
        (-9, "", "TOOL_KILLED", None),
        (137, "", "TOOL_KILLED", None),
        (-15, "", "TOOL_KILLED", None),
        (143, "", "TOOL_KILLED", None),
        (-11, "", "TOOL_CRASHED", None),
        (139, "", "TOOL_CRASHED", None),
        (-6, "terminate called", "TOOL_CRASHED", None),
        (134, "FATAL ERROR: JavaScript heap out of memory", "TOOL_OUT_OF_MEMORY", None),
        (-2, "", "SYS_CANCELLED", False),
        (130, "", "SYS_CANCELLED", False),
        (124, "", "TOOL_TIMEOUT", None),
        (126, "", "TOOL_FORBIDDEN", False),
        (127, "", "TOOL_COMMAND_NOT_FOUND", False),
        (1, "bash: foo: command not found", "TOOL_COMMAND_NOT_FOUND", False),
        (1, "cat: x: No such file or directory", "TOOL_FILE_NOT_FOUND", False),
        (1, "rm: cannot remove 'x': Permission denied", "TOOL_FORBIDDEN", False),
        (1, "fatal: Unable to create 'index.lock': File exists", "TOOL_RESOURCE_BUSY", True),
        (1, "curl: (7) connection refused", "CONN_REFUSED", True),
        (1, "No space left on device", "SYS_RESOURCE_EXHAUSTED", None),
        (1, "Argument list too long", "TOOL_INPUT_TOO_LARGE", False),
        (1, "assertion failed: x == y", "TOOL_EXECUTION_FAILED", False),
        (2, "", "TOOL_EXECUTION_FAILED", False),
        (255, "", "TOOL_EXECUTION_FAILED", False),
        (None, "", "SYS_UNKNOWN", None),
    ],
)
def test_process_exit_code_signal_and_last_words(exit_code: int | None, stderr: str, code: str, retryable: bool | None):
    fault = from_process(exit_code, stderr)
    assert fault.code == code, fault.rule
    assert retryable is None or fault.retryable is retryable


def test_process_the_end_of_stderr_tells():
    banner = "info: starting\n" * 5000
    assert read_process(1, banner + "Permission denied").text.endswith("permission denied")
    assert from_process(1, banner + "fatal: could not resolve host: x").code == "CONN_DNS_FAILED"


def test_process_a_provider_error_on_stderr_is_the_providers():
    stderr = 'API Error: 429 {"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'
    assert from_process(1, stderr).code == "PROVIDER_RATE_LIMITED"


def test_process_undecodable_output_is_readable_as_json():
    """`errors="surrogateescape"` is how subprocess output with a broken file name arrives."""
    fault = from_process(1, b"cannot open caf\xe9.txt".decode("utf-8", "surrogateescape"))
    assert b"cannot open caf" in msgspec.json.encode(fault)


# gRPC


@pytest.mark.parametrize(
    ("name", "code", "retryable"),
    [
        ("CANCELLED", "SYS_CANCELLED", False),
        ("UNKNOWN", "PROVIDER_INTERNAL_ERROR", True),
        ("INVALID_ARGUMENT", "PROVIDER_BAD_REQUEST", False),
        ("DEADLINE_EXCEEDED", "PROVIDER_TIMEOUT", True),
        ("NOT_FOUND", "PROVIDER_MODEL_NOT_FOUND", False),
        ("ALREADY_EXISTS", "PROVIDER_BAD_REQUEST", False),
        ("PERMISSION_DENIED", "AUTH_FORBIDDEN", False),
        ("RESOURCE_EXHAUSTED", "PROVIDER_RATE_LIMITED", True),
        ("FAILED_PRECONDITION", "PROVIDER_BAD_REQUEST", False),
        ("ABORTED", "PROVIDER_UNAVAILABLE", True),
        ("OUT_OF_RANGE", "PROVIDER_BAD_REQUEST", False),
        ("UNIMPLEMENTED", "PROVIDER_CAPABILITY_MISSING", False),
        ("INTERNAL", "PROVIDER_INTERNAL_ERROR", True),
        ("UNAVAILABLE", "PROVIDER_UNAVAILABLE", True),
        ("DATA_LOSS", "PROVIDER_STREAM_CUT", True),
        ("UNAUTHENTICATED", "AUTH_FAILED", False),
    ],
)
def test_grpc_by_name_number_and_qualified_name(name: str, code: str, retryable: bool):
    for status in (name, name.lower(), f"StatusCode.{name}", GRPC_NAMES.index(name)):
        fault = from_grpc(status)
        assert (fault.code, fault.retryable) == (code, retryable), status


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ("received message larger than max (5 vs. 4)", "PROVIDER_REQUEST_TOO_LARGE"),
        ("Quota exceeded for GenerateRequestsPerDay", "PROVIDER_DAILY_LIMIT"),
        ("The model is in high demand", "PROVIDER_OVERLOADED"),
        ("You exceeded your current quota", "PROVIDER_QUOTA_EXHAUSTED"),
        ("", "PROVIDER_RATE_LIMITED"),
    ],
)
def test_R82_grpc_resource_exhausted_is_many_things(details: str, code: str):
    assert from_grpc("RESOURCE_EXHAUSTED", details).code == code


@pytest.mark.parametrize("status", [17, -1, 10**9, "", "NOPE", True])
def test_grpc_a_status_nobody_knows_is_unknown(status: Any):
    assert from_grpc(status).code in ("SYS_UNKNOWN", "SYS_CANCELLED")


def test_grpc_the_evidence_names_its_source():
    evidence = read_grpc(14, "Connect Failed", provider="Vertex")
    assert (evidence.source, evidence.codes, evidence.provider) == (Source.GRPC, ("unavailable",), "vertex")


# How a response without an error ended


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        ({"choices": [{"finish_reason": "content_filter"}]}, "filtered"),
        ({"candidates": [{"finishReason": "SAFETY"}]}, "filtered"),
        ({"candidates": [{"finishReason": "RECITATION"}]}, "filtered"),
        ({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, "filtered"),
        ({"delta": {"stop_reason": "refusal"}}, "filtered"),
        ({"choices": [{"finish_reason": "length"}]}, "length"),
        ({"delta": {"stop_reason": "max_tokens"}}, "length"),
        ({"response": {"incomplete_details": {"reason": "max_output_tokens"}}}, "length"),
        ({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]}, "malformed"),
        ({"choices": [{"finish_reason": "error"}]}, "cut"),
        ({"choices": [{"finish_reason": "stop"}]}, ""),
        ({"choices": [{"finish_reason": None}]}, ""),
        ({"delta": {"stop_reason": "end_turn"}}, ""),
        ({"choices": "none"}, ""),
        ({"choices": [None, 3, "x"]}, ""),
        (None, ""),
        ([], ""),
        ("text", ""),
    ],
)
def test_a_finish_reason_tells_in_every_providers_words(frame: Any, found: str):
    assert bad_finish([frame]) == found


def test_the_worst_reason_of_several_frames_does_not_depend_on_their_order():
    frames = [{"choices": [{"finish_reason": "length"}]}, {"choices": [{"finish_reason": "content_filter"}]}]
    assert bad_finish(frames) == bad_finish(frames[::-1]) == "filtered"


CONTENT = {"choices": [{"delta": {"content": "hello"}}]}


@pytest.mark.parametrize(
    ("text", "frames", "how"),
    [
        ("data: [DONE]", [CONTENT], "done"),
        ('data: {"type":"message_stop"}', [{"delta": {"text": "hi"}}], "done"),
        ('{"done":true}', [{"message": {"content": "hi"}, "done": True}], "done"),
        ("", [CONTENT, {"choices": [{"finish_reason": "stop"}]}], "done"),
        ("data: [DONE]", [], "empty"),
        ("data: [DONE]", [{"choices": [{"delta": {}, "finish_reason": "stop"}]}], "empty"),
        ("data: [DONE]", [{"choices": True}], "empty"),
        ("data: [DONE]", [{"candidates": 3}], "empty"),
        ("data:[DONE]\r\n", [CONTENT], "done"),
        ("[DONE]", [CONTENT], "done"),
        ('data: {"choices":[{"delta":{"content":"streams end with [DONE]"}}]}', [CONTENT], "cut"),
        ('data: {"choices":[{"delta":{"content":"\\\\ndata: [DONE]"}}]}', [CONTENT], "cut"),
        ("", [CONTENT], "cut"),
        ("", [], "cut"),
        ("", [None], "cut"),
        ("data: [DONE]", [CONTENT, {"choices": [{"finish_reason": "content_filter"}]}], "filtered"),
    ],
)
def test_a_stream_ends_by_the_book_cut_empty_or_badly(text: str, frames: list[Any], how: str):
    assert ending(text, frames) == how


@pytest.mark.parametrize(
    ("finish", "code", "retryable"),
    [
        ("content_filter", "PROVIDER_CONTENT_POLICY", False),
        ("length", "PROVIDER_OUTPUT_INVALID", False),
        ("malformed_function_call", "PROVIDER_OUTPUT_INVALID", True),
        ("error", "PROVIDER_STREAM_CUT", True),
    ],
)
def test_a_bad_ending_is_a_failure_in_a_body_and_in_a_stream(finish: str, code: str, retryable: bool):
    body = {"choices": [{"message": {"content": "so far"}, "finish_reason": finish}]}
    stream = f'data: {{"choices":[{{"delta":{{"content":"so far"}},"finish_reason":"{finish}"}}]}}\n\ndata: [DONE]\n\n'
    for fault in (from_http(200, {}, body), from_stream(stream)):
        assert (fault.code, fault.retryable) == (code, retryable)


@pytest.mark.parametrize(
    "code",
    ["CONN_REFUSED", "CONN_DNS_FAILED", "CONN_TLS_HANDSHAKE_FAILED", "PROVIDER_RATE_LIMITED", "PROVIDER_OVERLOADED"],
)
def test_a_refusal_before_anything_was_done_did_not_take_effect(code: str):
    assert code not in MAY_HAVE_HAPPENED


def test_no_refusal_is_listed():
    """A key, a plan, a limit, a bad request: the other side rejected the call and did nothing."""
    for code in MAY_HAVE_HAPPENED:
        assert not code.startswith(("AUTH_", "CONFIG_", "PROTO_")), code
        assert CATALOG[code].kind is not Kind.PERMANENT or code.startswith(("TOOL_", "SYS_")), code


@pytest.mark.parametrize(
    ("status", "maybe"), [(500, True), (504, True), (408, True), (429, False), (503, False), (529, False), (400, False)]
)
def test_a_fault_says_whether_the_effect_may_have_happened(status: int, maybe: bool):
    assert from_http(status).maybe_executed is maybe
