"""Error bodies however they are wrapped. Only fields that hold the failure are read; never raises; bounded."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.classify import from_http, from_text
from holdfast.classify.body import MAX_CHARS, Findings, read_body, read_object

INNER = {"error": {"message": "You exceeded your quota", "type": "insufficient_quota", "code": "insufficient_quota"}}


def joined(found: Findings) -> str:
    return "\n".join(found.messages)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(INNER),
        json.dumps(INNER, indent=2),
        "\ufeff" + json.dumps(INNER),
        json.dumps([INNER]),
        json.dumps(json.dumps(INNER)),
        json.dumps({"error": json.dumps(INNER)}),
        json.dumps({"detail": INNER}),
        json.dumps({"detail": json.dumps(INNER)}),
        json.dumps({"upstream_error": INNER}),
        json.dumps({"response": INNER}),
        json.dumps({"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps(INNER)}}}),
        json.dumps({"error": {"message": f"litellm.RateLimitError: {json.dumps(INNER)} LiteLLM Retried: 2 times"}}),
        json.dumps({"errors": [INNER["error"]]}),
        json.dumps({"error": {"innererror": INNER["error"]}}),
        f"Error code: 429 - {json.dumps(INNER)}",
        f"Error code: 429 - {INNER!r}",
        f"{INNER!r} (attempt 1 of 3)",
        f"b'{json.dumps(INNER)}'",
        f"upstream said {json.dumps(json.dumps(INNER))}",
    ],
)
def test_the_innermost_failure_is_found_however_it_is_wrapped(body: str):
    assert "insufficient_quota" in read_body(body).codes
    fault = from_http(429, {}, body)
    assert (fault.code, fault.retryable) == ("PROVIDER_BILLING", False)


@pytest.mark.parametrize(
    "body",
    [
        '{"message":"tok","done":false}\n{"error":{"code":"context_length_exceeded","message":"no"}}\n',
        'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"error":{"code":"context_length_exceeded","message":"no"}}\n\n',
        'event: error\ndata: {"error":{"code":"context_length_exceeded","message":"no"}}\n\n',
    ],
    ids=["ndjson", "sse", "sse-first"],
)
def test_every_line_of_ndjson_and_sse_is_read(body: str):
    """The error is rarely the first line: a stream that failed midway, kept as one body."""
    assert "context_length_exceeded" in read_body(body).codes
    assert from_http(200, {}, body).code == "PROVIDER_CONTEXT_OVERFLOW"


@pytest.mark.parametrize(
    ("body", "messages", "codes"),
    [
        ({"error": "plain"}, ["plain"], ["plain"]),
        ({"code": "Some resource was exhausted", "error": "text"}, ["text"], ["some resource was exhausted", "text"]),
        ({"error": {"message": "m", "type": "t", "code": "1113"}}, ["m"], ["t", "1113"]),
        ({"error": {"message": "m", "type": "t", "code": 1113}}, ["m"], ["t"]),
        ({"error": {"message": "m", "code": "None", "type": ""}}, ["m"], []),
        ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, ["insufficient balance"], ["base_resp:1008"]),
        ({"throttlingException": {"message": "slow"}}, ["slow"], ["throttlingexception"]),
        ({"error": {"details": [{"violations": [{"quotaId": "PerDayPerProject"}]}]}}, [], ["quota:perdayperproject"]),
        ({"detail": [{"msg": "field required", "type": "missing"}]}, ["field required"], ["missing"]),
        ({"error": {"code": True}}, [], []),
        ({}, [], []),
        ([], [], []),
    ],
)  # fmt: skip
def test_codes_and_messages_of_every_dialect(body: Any, messages: list[str], codes: list[str]):
    for found in (read_object(body), read_body(json.dumps(body))):
        assert found.messages == messages
        assert found.codes == codes


def test_what_the_user_wrote_and_the_server_echoed_is_never_searched():
    echo = "my invoice says: insufficient credit, invalid api key, content policy violation"
    body = {"error": {"message": "bad field"}, "input": echo, "messages": [{"content": echo}], "prompt": echo}
    found = read_object(body)
    assert joined(found) == "bad field"
    assert from_http(400, {}, body).code == "PROVIDER_BAD_REQUEST"


def test_an_echo_is_not_searched_in_a_body_over_the_limit_either():
    """64 KB of echoed input must not turn a bad request into an empty account."""
    body = json.dumps({"error": {"message": "bad field", "code": "oops"}, "input": "insufficient balance " * 5000})
    assert len(body) > MAX_CHARS
    assert from_http(400, {}, body).code == "PROVIDER_BAD_REQUEST"


def test_a_body_over_the_limit_still_gives_its_code():
    body = json.dumps({"error": {"message": "no", "code": "context_length_exceeded"}, "input": "x" * 2 * MAX_CHARS})
    assert from_http(400, {}, body).code == "PROVIDER_CONTEXT_OVERFLOW"


@pytest.mark.parametrize(
    "body", ["x" * 3 * MAX_CHARS, "{" * 3 * MAX_CHARS, '"' * 3 * MAX_CHARS, b"\xff" * 3 * MAX_CHARS]
)
def test_a_body_over_the_limit_is_read_up_to_it(body: Any):
    assert sum(map(len, read_object(body).messages)) <= MAX_CHARS
    assert from_http(503, {}, body).code == "PROVIDER_UNAVAILABLE"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>",
            "502 Bad Gateway",
        ),
        ("<!DOCTYPE html><html><body><h1>Just a moment...</h1></body></html>", "Just a moment..."),
        ("\n<HTML><BODY>nothing here</BODY></HTML>", "nothing here"),
        ("Error:\n<html><title>Down</title></html>", "Down"),
        ("<!--[if gt IE 8]><!--> <html> <!--<![endif]--><title>524: A timeout</title></html>", "524: A timeout"),
        ("<html><title>Cut off</title><div cla", "Cut off"),
        ("<HTML><SCRIPT>if (a < b) { overloaded }</SCRIPT><H1>Sorry</H1></HTML>", "Sorry"),
    ],
)
def test_a_page_is_known_for_one_and_its_words_are_kept(page: str, words: str):
    found = read_body(page)
    assert found.html
    assert words in joined(found)
    assert "<" not in joined(found)


def test_scripts_and_styles_of_a_page_are_no_words():
    page = "<html><style>p { color: red }</style><script>var unauthorized = 1</script><title>Sorry</title></html>"
    assert joined(read_body(page)) == "Sorry"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"code": 429}}, 429),
        ({"error": {"code": "529"}}, 529),
        ({"status": 503, "error": "x"}, 503),
        ({"statusCode": 404}, 404),
        ({"error": {"code": 402, "metadata": {"raw": '{"error": {"code": 429}}'}}}, 429),
        ({"error": {"code": 200}}, None),
        ({"error": {"code": 1113}}, None),
        ({"error": {"code": True}}, None),
        ({"error": {"code": "4e2"}}, 400),
    ],
)
def test_a_status_inside_the_body_is_the_wrapped_failures(body: Any, status: int | None):
    assert read_object(body).status == status


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        "{" * 100_000,
        '{"error":' * 20_000,
        '{"error":' * 500 + "1" + "}" * 500,
        "[" * 500 + "]" * 500,
        "{'error':" * 800 + "'x'" + "}" * 800,
        "{'a':" + "-" * 8000 + "1}",
        "{'a':" + "(" * 8000,
        '\\"{' * 20_000,
        "<" * 100_000,
        "<title>" * 10_000,
        "<script" * 10_000,
        "<style>" * 1_200,
        "\x00" * 1000,
        "\ud800{'error'",
    ],
    ids=lambda body: repr(body[:12]),
)
def test_depth_bombs_and_broken_markup_end_in_a_verdict_by_status(body: str):
    fault = from_http(503, {}, body)
    assert (fault.code, fault.rule) == ("PROVIDER_UNAVAILABLE", "status.bare_status")


@pytest.mark.parametrize(
    "body",
    [
        {1: {"error": "x"}, None: "y", ("a", "b"): 2},
        {"error": {"code": 10**5000, "message": "no"}},
        {"error": {"retry_after": 10**5000}},
        {"error": {"headers": {"a": 10**5000}}},
        {"base_resp": {"status_code": object()}},
        {"error": {"message": object(), "code": float("nan"), "retry_after": float("inf")}},
        {"error": {"details": ({"retryDelay": {"seconds": None}},)}},
        {"error": {b"bytes": b"\xff"}},
        object(),
        {1, 2},
        3.5,
        None,
    ],
    ids=lambda body: type(body).__name__,
)
def test_decoded_objects_that_are_no_json_do_not_hide_the_status(body: Any):
    """SDKs hand over whatever they decoded: msgpack has integer keys, protobuf bytes. The status still tells."""
    fault = from_http(429, {}, body)
    assert fault.code == "PROVIDER_RATE_LIMITED", fault.rule


def test_an_object_that_holds_itself_is_read_once_around():
    body: dict[str, Any] = {"message": "again"}
    body["error"] = body["details"] = body
    assert from_http(429, {}, body).code == "PROVIDER_RATE_LIMITED"


def test_the_walk_is_bounded_in_size_not_only_in_depth():
    """Sixteen references to one list at each of eight levels: 4 294 967 296 leaves."""

    class Counted(list):
        visits = 0

        def __getitem__(self, index):
            Counted.visits += 1
            assert Counted.visits < 10_000, "the walk of a body has no bound"
            return super().__getitem__(index)

        def __iter__(self):
            Counted.visits += 1
            assert Counted.visits < 10_000, "the walk of a body has no bound"
            return super().__iter__()

    bomb: Any = Counted([{"message": "x"}])
    for _ in range(8):
        bomb = Counted([bomb] * 16)
    read_object({"errors": bomb})
    assert Counted.visits > 0


@pytest.mark.parametrize(
    "text",
    [r"Error: {'message': 'C:\dir', 'code': 429}", "Error: {'code': 0x1for x in y}", r"{'regex': '\d+ \. \('}"],
)
def test_reading_a_repr_warns_nobody(text: str):
    """A literal's odd escapes are the foreign library's: no DeprecationWarning or SyntaxWarning may reach our user."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        from_text(text)
    assert [str(one.message) for one in raised] == []


def test_a_repr_is_read_and_nothing_in_it_is_run():
    found = read_body("Error: {'message': __import__('os').system('echo never'), 'code': 'insufficient_quota'}")
    assert found.codes == []


@pytest.mark.parametrize(
    "shape",
    ["'<' * 65536", "'<style>' * 9000", "'{' * 65536", "'A' * 65000 + '!'", "'aB' * 32000 + '='", "'pwd' * 20000"],
)
def test_no_text_of_64_kb_takes_longer_than_a_moment(shape: str):
    """A base64 image in a log line, a page of brackets: measured in a process of its own, killed when it takes too long."""
    program = f"from holdfast.classify import from_http, from_text\nfrom_text({shape})\nfrom_http(502, {{}}, {shape})"
    try:
        subprocess.run([sys.executable, "-c", program], check=True, timeout=5)
    except subprocess.TimeoutExpired:
        pytest.fail("classifying 64 KB took more than 5 s: a pattern backtracks")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["error", "message", "code", "details", "metadata", "raw", "status", "x"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(json_values)
def test_law_text_and_decoded_object_say_the_same(body: Any):
    decoded, read = read_object(body), read_body(json.dumps(body))
    if isinstance(body, (dict, list)):
        assert (read.codes, read.messages, read.status) == (decoded.codes, decoded.messages, decoded.status)
        assert (read.delays, read.resets, read.headers) == (decoded.delays, decoded.resets, decoded.headers)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_law_any_text_is_read_without_raising(body: str | bytes):
    assert isinstance(read_object(body), Findings)
