"""How an answer without an error ended, and which failures leave it open whether the request took effect."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.classify import from_http, from_stream
from holdfast.classify.endings import bad_finish, ending
from holdfast.faults import CATALOG, CODES, Kind
from holdfast.faults.effects import MAY_HAVE_HAPPENED


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


def test_every_code_that_may_have_taken_effect_exists_in_the_catalog():
    assert set(CODES) >= MAY_HAVE_HAPPENED
    assert CATALOG.keys() >= MAY_HAVE_HAPPENED


@pytest.mark.parametrize(
    "code",
    ["CONN_REFUSED", "CONN_DNS_FAILED", "CONN_TLS_HANDSHAKE_FAILED", "PROVIDER_RATE_LIMITED", "PROVIDER_OVERLOADED"],
)
def test_a_refusal_before_anything_was_done_did_not_take_effect(code: str):
    assert code not in MAY_HAVE_HAPPENED


def test_no_refusal_is_listed():
    """A key, a plan, a limit, a bad request: the other side said no and did nothing."""
    for code in MAY_HAVE_HAPPENED:
        assert not code.startswith(("AUTH_", "CONFIG_", "PROTO_")), code
        assert CATALOG[code].kind is not Kind.PERMANENT or code.startswith(("TOOL_", "SYS_")), code


@pytest.mark.parametrize(
    ("status", "maybe"), [(500, True), (504, True), (408, True), (429, False), (503, False), (529, False), (400, False)]
)
def test_a_fault_says_whether_the_effect_may_have_happened(status: int, maybe: bool):
    assert from_http(status).maybe_executed is maybe
