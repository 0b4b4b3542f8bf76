"""Failures that were once misread: the text of one failure contains the words of another."""

from __future__ import annotations

import http.client
import json
import subprocess
from xml.etree import ElementTree as ET

import pytest

from holdfast import fault_of
from holdfast.classify import (
    Record,
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
    ("status", "message"),
    [
        (503, "The model is currently unavailable. Please try again later."),
        (504, "The request took longer than the maximum allowed time"),
        (504, "Execution time exceeds the maximum"),
        (503, "Number of connections exceeds the limit of 1000"),
        (503, "Moderation service temporarily unavailable"),
        (503, "Server error while processing last message"),
        (503, "Authentication service unavailable: failed to authenticate upstream"),
    ],
)
def test_an_outage_is_not_overruled_by_the_words_of_a_refusal(status, message):
    assert from_http(status, {}, f'{{"error":{{"message":"{message}"}}}}').retryable


@pytest.mark.parametrize("body", ['{"code":1001,"message":"service restarting"}', '{"code":1301}', '{"code":1113}'])
def test_another_vendors_numbers_mean_nothing_here(body):
    assert from_http(503, {}, body).code == "PROVIDER_UNAVAILABLE"


def test_refused_to_connect_refuses_no_content():
    assert from_exception(Exception("localhost refused to connect.")).code != "PROVIDER_CONTENT_POLICY"


def test_an_address_is_not_prose():
    text = "Server error '502 Bad Gateway' for url 'https://api.openai.com/v1/moderations/flagged'"
    assert from_exception(RuntimeError(text)).code == "PROVIDER_UNAVAILABLE"
    text = "HTTPSConnectionPool(host='x', port=443): Max retries exceeded with url: /rate-limit (Caused by NameResolutionError)"
    assert from_exception(ConnectionError(text)).code != "PROVIDER_RATE_LIMITED"


def _called(script: str) -> Exception:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        subprocess.run(["sh", "-c", script], check=True, capture_output=True)
    return raised.value


def test_a_command_line_says_what_was_tried_and_stderr_what_failed():
    assert from_exception(_called("exit 1 # rate limit overloaded")).code == "TOOL_EXECUTION_FAILED"
    assert from_exception(_called("echo 'curl: (6) Could not resolve host: x' >&2; exit 6")).code == "CONN_DNS_FAILED"


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ('API Error: 503 {"type":"error","error":{"type":"api_error","message":"down"}}', "PROVIDER_UNAVAILABLE"),
        ("curl: (22) The requested URL returned error: 503", "PROVIDER_UNAVAILABLE"),
        ('Traceback (most recent call last):\n  File "a.py", line 1\nhttpx.ReadTimeout: timed out', "PROVIDER_TIMEOUT"),
        ("usage: x [--timeout N]\nx: error: argument --timeout: invalid int value: 'a'", "TOOL_EXECUTION_FAILED"),
    ],
)
def test_stderr_is_read_like_a_log_and_a_usage_error_is_no_network(stderr, code):
    assert from_process(1, stderr).code == code


def test_a_wrappers_sentence_gives_way_to_what_it_wraps():
    class LimitError(Exception):
        status_code = 429
        body = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}

    error = RuntimeError("rate limit hit, giving up")
    error.__cause__ = LimitError("429")
    assert from_exception(error).code == "PROVIDER_BILLING"


@pytest.mark.parametrize(
    "error", [TypeError("rate limit exceeded"), ValueError("invalid literal: 'server overloaded'")]
)
def test_a_defect_that_quotes_a_limit_is_never_retried(error):
    assert not from_exception(error).retryable


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("assert len(rows) == 429", "TOOL_EXECUTION_FAILED"),
        ("ValueError: timeout must be positive", "TOOL_EXECUTION_FAILED"),
        ("HTTP 503: Service Unavailable", "TOOL_RESOURCE_BUSY"),
        ("Quota exceeded for requests per minute per user", "TOOL_RATE_LIMITED"),
    ],
)
def test_mcp_texts_are_read_by_words_not_by_digits(text, code):
    result = {"content": [{"type": "text", "text": text}], "isError": True}
    assert from_jsonrpc({"jsonrpc": "2.0", "id": 1, "result": result}).code == code


def test_a_chained_traceback_is_read_as_a_chain_whatever_is_logged_after_it():
    log = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        "openai.AuthenticationError: Error code: 401 - {'error': {'code': 'invalid_api_key', 'message': 'no'}}\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 2, in g\nRuntimeError: call failed\nWorker: exiting\n'
    )
    assert from_text(log).code == "AUTH_FAILED"


def test_a_body_that_aiohttp_has_read_is_read_here_too():
    class Response:
        status = 429
        headers = {}
        _body = b'{"error":{"code":"insufficient_quota","message":"no"}}'

    assert fault_of(Response()).code == "PROVIDER_BILLING"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"stop_reason":"model_context_window_exceeded","content":[]}', "PROVIDER_CONTEXT_OVERFLOW"),
        ('{"stopReason":"guardrail_intervened"}', "PROVIDER_CONTENT_POLICY"),
        ('{"stopReason":"content_filtered"}', "PROVIDER_CONTENT_POLICY"),
        ('{"finish_reason":"ERROR_TOXIC"}', "PROVIDER_CONTENT_POLICY"),
    ],
)
def test_a_success_that_was_refused_or_overflowed_is_not_sampled_again(body, code):
    for fault in (from_http(200, {}, body), from_stream(f"data: {body}\n\n")):
        assert (fault.code, fault.retryable) == (code, False)


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("Rate limited. The last retry failed after 30 seconds", None),
        ("rate limit: the service was not available for 10 minutes", None),
        ("rate limit: retries available: 3 days plan", None),
        ("Too many requests. Next request allowed in 4.2 seconds", 4.2),
        ("Rate limit reached. Please try again in 20s.", 20.0),
    ],
)
def test_a_wait_is_taken_only_from_a_sentence_that_asks_for_one(text, wait):
    assert from_http(429, {}, f'{{"error":{{"message":"{text}"}}}}').retry_after == wait


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("botocore.exceptions.SSOTokenLoadError: Error loading SSO Token: Token for dev does not exist", "AUTH_FAILED"),
        ("botocore.exceptions.NoRegionError: You must specify a region.", "PROVIDER_BAD_REQUEST"),
        ("http.client.BadStatusLine: \x15\x03\x01", "PROVIDER_MALFORMED_RESPONSE"),
        ("ssl.SSLEOFError", "CONN_RESET"),
        ("ssl.SSLZeroReturnError", "CONN_RESET"),
        ("request failed: SSLZeroReturnError while reading, ssl: closed", "CONN_RESET"),
        ("xml.etree.ElementTree.ParseError: mismatched tag: line 1, column 11", "PROVIDER_OUTPUT_INVALID"),
        ("GatewayTimeoutError", "PROVIDER_GATEWAY_TIMEOUT"),
        ("x509: certificate signed by unknown authority", "CONN_TLS_HANDSHAKE_FAILED"),
        ("x509: certificate is valid for a.example, not b.example", "CONN_TLS_HANDSHAKE_FAILED"),
        ("Error: UNABLE_TO_VERIFY_LEAF_SIGNATURE", "CONN_TLS_HANDSHAKE_FAILED"),
    ],
)
def test_a_failure_known_only_by_its_name_or_sentence(text: str, code: str):
    assert from_text(text).code == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (http.client.BadStatusLine("garbage"), "PROVIDER_MALFORMED_RESPONSE"),
        (http.client.RemoteDisconnected("Remote end closed connection without response"), "CONN_RESET"),
        (ET.ParseError("no element found: line 1, column 0"), "PROVIDER_OUTPUT_INVALID"),
        (SyntaxError("invalid syntax"), "SYS_PROGRAMMING_ERROR"),
    ],
)
def test_a_live_error_of_the_standard_library(error: Exception, code: str):
    assert from_exception(error).code == code


def test_a_document_that_cannot_be_parsed_is_a_validation_failure():
    assert from_exception(ET.ParseError("x")).category.value == "validation"


def test_a_crashed_model_comes_back_although_the_server_says_400():
    body = '{"error":"The model has crashed without additional information. (Exit code: 18446744072635812000)"}'
    fault = from_http(400, {}, body)
    assert (fault.code, fault.retryable) == ("PROVIDER_UNAVAILABLE", True)


def test_the_kernels_sentence_tells_of_memory():
    assert from_process(1, "python invoked oom-killer: gfp_mask=0xcc0").code == "TOOL_OUT_OF_MEMORY"


@pytest.mark.parametrize("given", [137, -9, 503, 0, True, 1.5, None])
def test_a_bare_number_is_no_failure_and_the_answer_says_so(given):
    fault = fault_of(given)
    assert (fault.code, fault.rule, fault.retryable) == ("SYS_UNKNOWN", "not-a-failure", False)
    assert type(given).__name__ in fault.message


def verdict(message, kind="not_found_error"):
    body = f'{{"type":"error","error":{{"type":"{kind}","message":"{message}"}}}}'
    return from_record(read_record(json.dumps({"kind": "http", "status": 404, "headers": {}, "body": body})), now=0.0)


def test_anthropic_names_the_missing_model_and_says_no_more():
    assert verdict("model: claude-9").code == "PROVIDER_MODEL_NOT_FOUND"
    assert verdict("model: claude-9").scope == "model"
    assert verdict("file: report.pdf").code == "PROVIDER_ENDPOINT_NOT_FOUND"


def test_openai_misses_the_last_event_of_a_stream():
    error = RuntimeError("Didn't receive a `response.completed` event.")
    assert fault_of(error).code == "PROVIDER_STREAM_CUT"


# Findings FC1 to FC7


@pytest.mark.parametrize("exit_code", [7, 8, 16])
def test_FC1_an_exit_status_is_not_a_grpc_status(exit_code):
    message = f"Command '['make']' returned non-zero exit status {exit_code}."
    exception = {"module": "subprocess", "type": "CalledProcessError", "message": message}
    record = {"kind": "subprocess", "returncode": exit_code, "exception": exception}
    assert from_record(read_record(json.dumps(record))).code == "TOOL_EXECUTION_FAILED"
    assert from_text(f"the worker ended with exit status {exit_code}").code == "TOOL_EXECUTION_FAILED"


def test_FC1_a_grpc_status_is_still_read_in_a_text():
    assert from_text("call failed: grpc-status: 8").code == "PROVIDER_RATE_LIMITED"
    assert from_text("RpcError: status = UNAVAILABLE").code == "PROVIDER_UNAVAILABLE"


@pytest.mark.parametrize("size", [900_000, 1_048_576, 3_000_000])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_FC2_a_large_body_is_read_if_the_error_comes_first(size, as_bytes):
    body = '{"error":{"type":"insufficient_quota","message":"You have no credits left"},"request":"' + "x" * size + '"}'
    assert from_http(429, {}, body.encode() if as_bytes else body).code == "PROVIDER_BILLING"
    inside = '{"error":{"code":"insufficient_quota","input":"' + "x" * size + '"}}'
    assert from_http(429, {}, inside.encode() if as_bytes else inside).code == "PROVIDER_BILLING"


@pytest.mark.parametrize(
    "body",
    [
        '{"error":{"type":"insufficient_quota","message":"You exceeded your curr',
        '{"error":{"message":"x","type":"insufficient_quota","par',
        '{"error":{"message":"x","type":"insufficient_quota","param":nu',
        '{"error":{"message":"x","type":"insufficient_quota","a":[1,{"b":"c\\\\',
    ],
)
def test_FC2_a_body_that_is_cut_off_is_read_as_far_as_it_goes(body):
    assert from_http(429, {}, body).code == "PROVIDER_BILLING"


_CamelCase = type("_CamelCase", (Exception,), {"statusCode": 429})
_CamelCaseResponse = type("_CamelCaseResponse", (Exception,), {"response": type("R", (), {"statusCode": 503})()})


def test_FC5_the_status_has_the_name_of_javascript_clients():
    assert from_exception(_CamelCase("x")).code == "PROVIDER_RATE_LIMITED"
    assert from_exception(_CamelCaseResponse("x")).code == "PROVIDER_UNAVAILABLE"
    assert from_record(read_record('{"statusCode": 529}')).code == "PROVIDER_OVERLOADED"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ENOTFOUND", "CONN_DNS_FAILED"),
        ("max tokens exceeded", "PROVIDER_CONTEXT_OVERFLOW"),
        ("process killed", "TOOL_KILLED"),
        ("invalid input", "PROVIDER_BAD_REQUEST"),
        ("invalid parameter", "PROVIDER_BAD_REQUEST"),
    ],
)
def test_FC5_plain_words_are_known(text, code):
    assert from_text(text).code == code


@pytest.mark.parametrize(
    "text",
    [
        "You have reached the seat limit of this team",
        "Login required to continue with this workspace",
        "the given colour is invalid",
        "Your workspace is not eligible for this preview",
    ],
)
def test_FC4_an_unknown_text_that_names_a_limit_a_login_or_an_invalidity_is_not_retried(text):
    fault = from_text(text)
    assert not fault.retryable
    assert not from_exception(Exception(text)).retryable


def test_FC4_other_unknown_exceptions_are_still_retried_once_if_that_is_safe():
    fault = from_exception(Exception("the gripper lost its grip on item 7"))
    assert (fault.code, fault.retryable, fault.rule) == ("SYS_UNKNOWN", True, "nothing-matched")


@pytest.mark.parametrize("fault", [from_text("{}"), from_http(None, {}, "{}"), from_record(Record())])
def test_FC4_a_failure_that_says_nothing_is_reported_as_such(fault):
    assert (fault.rule, fault.message) == ("nothing-to-read", "The failure has no status, no code and no text")


@pytest.mark.parametrize("status", [0, 99, 600, -1])
def test_FC4_an_impossible_status_is_reported_and_not_retried(status):
    fault = from_http(status, {}, "{}")
    assert (fault.rule, fault.retryable) == ("impossible-status", False)
    assert "not an HTTP status" in fault.message


def test_FC6_a_record_may_begin_with_a_byte_order_mark_and_hold_half_a_character():
    assert read_record(b'\xef\xbb\xbf{"status": 529}').status == 529
    assert read_record('\ufeff{"status": 529}').status == 529
    half = read_record(b'{"id": "a\\ud83d", "status": 503, "body": "cut \\ud83d"}')
    assert (half.id, half.body) == ("a?", "cut ?")
    assert read_record(b'{"status": 503, "body": "cut \xed\xa0\xbd"}').status == 503


def test_FC7_the_fault_of_a_failed_process_keeps_what_it_printed():
    fault = fault_of(_called("echo half the work; echo 'no such thing' >&2; exit 3"))
    assert fault.partial is not None
    assert fault.partial.payload == {"stdout": "half the work\n", "stderr": "no such thing\n"}
    done = subprocess.run(["sh", "-c", "echo half; exit 3"], capture_output=True, text=True, check=False)
    partial = fault_of(done).partial
    assert partial is not None
    assert partial.payload == {"stdout": "half\n"}


def test_FC7_the_fault_of_a_process_that_timed_out_keeps_what_it_printed():
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        raise subprocess.TimeoutExpired(["sleep", "5"], 0.2, output=b"half the work\n")
    fault = fault_of(raised.value)
    assert fault.code == "TOOL_TIMEOUT"
    assert fault.partial is not None
    assert fault.partial.payload == {"stdout": "half the work\n"}


def test_FC7_a_long_output_is_kept_at_its_end_and_secrets_are_masked():
    error = subprocess.CalledProcessError(1, ["x"], output="x" * 100_000 + "the end")
    partial = fault_of(error).partial
    assert partial is not None
    assert len(partial.payload["stdout"]) == 65_536
    assert partial.payload["stdout"].endswith("the end")
    assert fault_of(subprocess.CalledProcessError(1, ["x"])).partial is None


def test_FC7_a_finished_process_that_prints_its_error_to_stdout_is_read():
    done = subprocess.CompletedProcess(["x"], 6, stdout="curl: (6) Could not resolve host: x", stderr="")
    assert fault_of(done).code == "CONN_DNS_FAILED"


@pytest.mark.parametrize(
    "stderr",
    [
        "sh: -c: line 1: unexpected EOF while looking for matching `\"'",
        "FAILED tests/test_net.py::test_timeout - assert 1 == 2",
        "AssertionError: expected i/o timeout, got nothing",
        "parse error: EOF",
        "usage: x [--timeout N]",
    ],
)
def test_FC3_a_tool_that_only_quotes_network_words_is_not_retried(stderr):
    assert from_process(1, stderr).code == "TOOL_EXECUTION_FAILED"


def test_FC3_a_network_word_on_stderr_comes_before_the_exit_code():
    assert from_process(1, "dial tcp 10.0.0.1:443: i/o timeout").code == "CONN_TIMEOUT"
    assert from_process(126, "sh: ./tool: Text file busy").code == "TOOL_RESOURCE_BUSY"
    assert from_process(126, "sh: ./tool: Permission denied").code == "TOOL_FORBIDDEN"


@pytest.mark.parametrize(
    ("text", "retryable"),
    [
        ("net/http: TLS handshake timeout", True),
        ("tls handshake eof", True),
        ("invalid peer certificate: UnknownIssuer", False),
        ("error sending request: invalid peer certificate: Expired", False),
        ("remote error: tls: handshake failure", False),
    ],
)
def test_FC3_a_cut_handshake_heals_and_a_refused_certificate_does_not(text, retryable):
    assert from_text(text).retryable is retryable


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rpc error: code = NotFound desc = x", "PROVIDER_MODEL_NOT_FOUND"),
        ("3 INVALID_ARGUMENT: bad field", "PROVIDER_BAD_REQUEST"),
        ("ConnectError: [invalid_argument] x", "PROVIDER_BAD_REQUEST"),
        ("ConnectError: [unavailable] x", "PROVIDER_UNAVAILABLE"),
        ("TypeError: terminated", "PROVIDER_STREAM_CUT"),
        ("TypeError: terminated is not a function", "SYS_PROGRAMMING_ERROR"),
    ],
)
def test_FC3_codes_and_cut_connections_inside_text(text, code):
    assert from_text(text).code == code


def test_FC3_a_500_that_the_request_causes_is_not_retried_and_an_outage_is():
    assert not from_http(500, {}, '{"error":"unsupported content part: input_audio"}').retryable
    assert not from_http(500, {}, '{"error":"error loading model: unknown model architecture"}').retryable
    assert from_http(503, {}, '{"error":"unsupported content part: input_audio"}').retryable
    assert from_http(503, {}, '{"error":"model is loading"}').retryable


def test_FI11_an_ollama_that_does_not_run_refuses_the_connection():
    """Its client hides the cause (`from None`), so only its words are left."""
    words = "Failed to connect to Ollama. Please check that Ollama is downloaded, running and accessible. https://ollama.com/download"
    assert from_exception(ConnectionError(words)).code == "CONN_REFUSED"


GC = """<--- Last few GCs --->

[1234:0x55]   45000 ms: Mark-sweep 2045.1 (2083.2) -> 2044.5 (2083.2) MB, 1200 ms

<--- JS stacktrace --->

FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"""


def test_XC5_the_heap_report_of_node_is_no_page():
    for fault in (from_process(134, GC), from_process(None, GC), from_text(GC)):
        assert fault.code == "TOOL_OUT_OF_MEMORY"


@pytest.mark.parametrize(
    "text", ["<stdin>:1: SyntaxError: invalid syntax", "<nil>", "<3>audit: error", "<class 'X'>: bad"]
)
def test_XC5_an_angle_bracket_does_not_make_a_page(text: str):
    assert from_text(text).rule != "status.html_page"


@pytest.mark.parametrize(
    "text",
    ["<!DOCTYPE html><html><title>x</title>", "<html>", "<p>Sorry</p>", "<Foo><Bar>x</Bar></Foo>", "<!-- x --><html/>"],
)
def test_XC5_a_page_is_still_one(text: str):
    assert from_http(200, {}, text).rule == "status.html_page"


@pytest.mark.parametrize(
    "text",
    [
        (
            "curl: (60) SSL: no alternative certificate subject name matches target host name 'api.example.com'\n"
            "More details here: https://curl.se/docs/sslcerts.html\n\n"
            "curl failed to verify the legitimacy of the server and therefore could not\nestablish a secure connection to it."
        ),
        "curl failed to verify the legitimacy of the server and therefore could not establish a secure connection to it.",
        "no alternative certificate subject name matches target ipv4 address '192.0.2.1'",
        "ERROR: no certificate subject alternative name matches requested host name 'x.example.com'.",
        "SSL peer certificate or SSH remote key was not OK",
        "schannel: SNI or certificate check failed: SEC_E_WRONG_PRINCIPAL (0x80090322)",
    ],
)
def test_XC5_a_certificate_that_does_not_match_is_not_retried(text: str):
    for fault in (
        from_process(60, text),
        from_process(None, text),
        from_text(text),
        from_exception(RuntimeError(text)),
    ):
        assert (fault.code, fault.retryable) == ("CONN_TLS_HANDSHAKE_FAILED", False), fault


@pytest.mark.parametrize(
    ("stderr", "code", "retryable"),
    [
        ("Error: Another `brew update` process is already running.", "TOOL_RESOURCE_BUSY", True),
        ("Failed to connect to the bus\nError: Failed to launch the browser process!", "TOOL_EXECUTION_FAILED", False),
        ("invalid session id: session deleted because of page crash", "TOOL_CRASHED", True),
        ("Protocol error (Runtime.callFunctionOn): Execution context was destroyed.", "TOOL_RESOURCE_BUSY", True),
    ],
)
def test_what_tools_print_about_locks_and_browsers(stderr: str, code: str, retryable: bool):
    for exit_code in (1, None):
        fault = from_process(exit_code, stderr)
        assert (fault.code, fault.retryable) == (code, retryable)


@pytest.mark.parametrize("sentence", ["the request failed", "could not get the answer", "the call to the model failed"])
@pytest.mark.parametrize(
    ("status", "code"), [(503, "PROVIDER_UNAVAILABLE"), (429, "PROVIDER_RATE_LIMITED"), (401, "AUTH_FAILED")]
)
def test_the_status_of_a_cause_says_more_than_the_sentence_around_it(sentence: str, status: int, code: str):
    class StatusError(Exception):
        status_code = status

    error = RuntimeError(sentence)
    error.__cause__ = StatusError()
    assert from_exception(error).code == code
    # A wrapper that says what failed is believed.
    late = TimeoutError("the model did not answer")
    late.__cause__ = StatusError()
    assert from_exception(late).category == "timeout"
