"""One failure as a JSON record: what is wrong is named with its place, what is right is always classified."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.classify import Record, from_record, read_record
from holdfast.faults import InvalidError

WRONG: list[tuple[str, Any, str, str, str]] = [
    ("no object", [1], "$", "object", "array"),
    ("a text", "x", "$", "object", "str"),
    ("null", None, "$", "object", "null"),
    ("id", {"id": 1.5}, "$.id", "int | str | null", "float"),
    ("provider", {"provider": 7}, "$.provider", "str | null", "int"),
    ("kind", {"kind": 7}, "$.kind", "str", "int"),
    ("kind null", {"kind": None}, "$.kind", "str", "null"),
    ("unknown kind", {"kind": "carrier-pigeon"}, "$.kind", "one of ", "'carrier-pigeon'"),
    ("status", {"status": "429"}, "$.status", "int | null", "str"),
    ("status float", {"status": 429.5}, "$.status", "int | null", "float"),
    ("headers", {"headers": []}, "$.headers", "object | null", "array"),
    ("exception", {"exception": "x"}, "$.exception", "object | null", "str"),
    ("exception.type", {"exception": {"type": 7}}, "$.exception.type", "str | null", "int"),
    ("exception.module", {"exception": {"module": []}}, "$.exception.module", "str | null", "array"),
    ("exception.message", {"exception": {"message": {}}}, "$.exception.message", "str | null", "object"),
    ("exception.cause", {"exception": {"cause": "x"}}, "$.exception.cause", "object | array | null", "str"),
    ("inside one cause", {"exception": {"cause": {"type": 1}}}, "$.exception.cause.type", "str | null", "int"),
    ("inside a cause", {"exception": {"cause": [{}, {"type": 1}]}}, "$.exception.cause[1].type", "str | null", "int"),
    ("a leaf", {"exception": {"exceptions": [3]}}, "$.exception.exceptions[0]", "object", "int"),
    ("returncode", {"returncode": "1"}, "$.returncode", "int | null", "str"),
    ("now", {"now": []}, "$.now", "float | str | null", "array"),
    ("now is no date", {"now": "yesterday"}, "$.now", "an RFC 3339 date and time", "'yesterday'"),
]


@pytest.mark.parametrize(
    ("given", "path", "expected", "received"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_a_wrong_field_is_refused_with_path_expected_and_received(given: Any, path: str, expected: str, received: str):
    with pytest.raises(InvalidError) as refused:
        read_record(json.dumps(given))
    fault = refused.value.fault
    assert fault.code == "PROTO_INVALID_MESSAGE"
    assert fault.context["path"] == path
    assert fault.context["expected"].startswith(expected)
    assert fault.context["received"] == received
    for part in (path, received):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    "raw",
    ["", " ", "{", '{"id": }', "nonsense", '{"a": 1} trailing', b"\xff\xfe", "[" * 100_000],
    ids=["empty", "blank", "cut", "no value", "word", "trailing", "no utf-8", "deep"],
)
def test_what_is_no_json_is_refused(raw: Any):
    with pytest.raises(InvalidError) as refused:
        read_record(raw)
    assert refused.value.fault.context["path"].startswith("$")
    assert refused.value.fault.context["expected"]
    assert refused.value.__cause__ is None


def test_a_refusal_shows_no_secret():
    with pytest.raises(InvalidError) as refused:
        read_record('{"kind": "sk-ant-api03-abcdefghij0123456789"}')
    assert "abcdefghij" not in str(refused.value)
    assert "abcdefghij" not in str(refused.value.fault.context)


def test_the_notes_of_a_collection_are_not_read_and_every_field_has_a_default():
    noted = read_record('{"status": 503, "expect": {}, "source": "x", "notes": [1], "provenance": "reported"}')
    assert noted == Record(status=503)
    assert from_record(Record()).rule


@pytest.mark.parametrize(
    ("given", "path", "named"),
    [
        ({"status": 503, "statuscode": 503}, "$.statuscode", "perhaps status"),
        ({"kind": "subprocess", "exit_code": 1, "stderr": "killed"}, "$.exit_code", "perhaps returncode"),
        ({"kind": "subprocess", "returncode": 1, "stderr": "killed"}, "$.stderr", "perhaps body"),
        ({"kind": "text", "message": "overloaded"}, "$.message", "perhaps body"),
        ({"kind": "exception", "exception": {"type": "X", "msg": "y"}}, "$.exception.msg", "module, type, message"),
        ({"status": 503, "zzz": 1}, "$.zzz", "one of the fields"),
    ],
)
def test_XC5_an_unknown_field_is_named_and_not_dropped(given: Any, path: str, named: str):
    with pytest.raises(InvalidError) as refused:
        read_record(json.dumps(given))
    assert refused.value.fault.code == "PROTO_INVALID_MESSAGE"
    assert refused.value.fault.context["path"] == path
    assert named in str(refused.value)


NOTHING: list[Any] = [
    {},
    {"kind": "http"},
    {"id": "a", "provider": "openai"},
    {"kind": "text", "body": " \n"},
    {"kind": "jsonrpc", "body": {}},
    {"kind": "http", "body": None, "headers": {}},
    {"kind": "subprocess", "returncode": None, "body": ""},
    {"kind": "exception", "exception": {"type": None, "message": "", "module": None}},
    {"kind": "sse"},
]


@pytest.mark.parametrize("given", NOTHING, ids=str)
def test_XC5_a_record_that_holds_nothing_readable_is_not_read(given: Any):
    with pytest.raises(InvalidError) as refused:
        read_record(json.dumps(given))
    assert refused.value.fault.context["path"] == "$"
    assert "something to read" in str(refused.value)


def test_XC5_an_empty_stream_is_a_failure_to_read():
    assert from_record(read_record('{"kind": "sse", "body": ""}')).code == "PROVIDER_STREAM_CUT"


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"status": 529}, "PROVIDER_OVERLOADED"),
        ({"kind": "http", "status": 429, "body": {"error": {"code": "insufficient_quota"}}}, "PROVIDER_BILLING"),
        ({"kind": "http", "status": 429, "headers": None, "body": None}, "PROVIDER_RATE_LIMITED"),
        ({"kind": "sse", "body": 'data: {"error":{"type":"overloaded_error"}}'}, "PROVIDER_OVERLOADED"),
        ({"kind": "sse", "body": {"error": {"type": "overloaded_error"}}}, "PROVIDER_OVERLOADED"),
        ({"kind": "jsonrpc", "body": {"error": {"code": -32601, "message": "x"}}}, "TOOL_NOT_FOUND"),
        ({"kind": "jsonrpc", "body": '{"error": {"code": -32601, "message": "x"}}'}, "TOOL_NOT_FOUND"),
        ({"kind": "subprocess", "returncode": -11, "body": ""}, "TOOL_CRASHED"),
        ({"kind": "subprocess", "exception": {"type": "FileNotFoundError", "module": "builtins"}}, "TOOL_COMMAND_NOT_FOUND"),
        ({"kind": "text", "body": "Overloaded"}, "PROVIDER_OVERLOADED"),
        ({"kind": "exception", "body": "HTTP 503"}, "PROVIDER_UNAVAILABLE"),
        ({"kind": "exception", "exception": {"module": "httpx", "type": "ReadTimeout"}}, "PROVIDER_TIMEOUT"),
        ({"kind": "exception", "exception": {"type": "Oddity", "message": None, "module": None}}, "SYS_UNKNOWN"),
        (
            {"kind": "exception", "exception": {"module": "openai", "type": "APIConnectionError", "message": "Connection error.",
             "cause": [{"module": "socket", "type": "gaierror", "message": "[Errno -2] Name or service not known"}]}},
            "CONN_DNS_FAILED",
        ),
        (
            {"kind": "exception", "exception": {"module": "openai", "type": "APIConnectionError", "message": "Connection error.",
             "cause": {"module": "httpx", "type": "ConnectError", "cause": {"module": "socket", "type": "gaierror"}}}},
            "CONN_DNS_FAILED",
        ),
        (
            {"kind": "exception", "exception": {"type": "ExceptionGroup", "exceptions": [
                {"module": "builtins", "type": "ConnectionResetError"},
                {"module": "", "type": "ExceptionGroup", "exceptions": [{"module": "anthropic", "type": "AuthenticationError"}]}]}},
            "AUTH_FAILED",
        ),
    ],
)  # fmt: skip
def test_every_kind_of_record_is_classified(record: Any, code: str):
    assert from_record(read_record(json.dumps(record))).code == code


def test_grpc_is_a_kind_of_its_own():
    record = read_record('{"kind": "grpc", "body": "StatusCode.UNAVAILABLE: Connect Failed"}')
    assert from_record(record).code == "PROVIDER_UNAVAILABLE"


def test_a_records_own_time_beats_the_callers():
    raw = {"status": 429, "headers": {"retry-after": "Tue, 10 Mar 2026 12:01:00 GMT"}, "now": "2026-03-10T12:00:00Z"}
    assert from_record(read_record(json.dumps(raw)), now=0.0).retry_after == 60
    del raw["now"]
    assert from_record(read_record(json.dumps(raw)), now=1773144030.0).retry_after == 30


@pytest.mark.parametrize("depth", [10, 100, 300])
def test_a_group_nested_deep_is_classified(depth: int):
    nested = '{"exceptions": [' * depth + '{"module": "builtins", "type": "TimeoutError"}' + "]}" * depth
    assert from_record(read_record(f'{{"kind": "exception", "exception": {nested}}}')).code == "SYS_TIMEOUT"


@pytest.mark.parametrize("depth", range(400, 1000, 50))
def test_a_group_nested_too_deep_is_refused_or_classified_but_never_raises_else(depth: int):
    nested = '{"exceptions": [' * depth + '{"module": "builtins", "type": "TimeoutError"}' + "]}" * depth
    try:
        record = read_record(f'{{"kind": "exception", "exception": {nested}}}')
    except InvalidError:
        return
    assert from_record(record).code == "SYS_TIMEOUT"
