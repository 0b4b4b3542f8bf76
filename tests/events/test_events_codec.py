"""Events as JSON, both ways."""

from __future__ import annotations

import json
import subprocess

import jsonschema
import pytest
from events_strategies import KINDS, events
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.events import (
    Cancelled,
    Degraded,
    Failed,
    Retry,
    SuppressedError,
    decode,
    decode_lines,
    encode,
    encode_lines,
    schema,
)
from holdfast.faults import Fault, InvalidError
from holdfast.runtime import fault_of

KEY = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"


@given(events)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_law_what_was_written_is_read(event):
    line = encode(event)
    assert decode(line) == event
    assert decode(line.decode()) == event
    assert b"\n" not in line


@given(events)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_law_the_version_is_always_written(event):
    assert json.loads(encode(event))["v"] == event.v


@given(events, st.dictionaries(st.sampled_from(["mood", "x-trace", "v2"]), st.integers(), min_size=1))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_law_what_a_newer_writer_adds_is_ignored(event, more):
    newer = {**json.loads(encode(event)), **more}
    assert decode(json.dumps(newer)) == event


def test_a_newer_version_is_read():
    assert decode(b'{"type":"cancelled","at":1.0,"v":7}').v == 7


def test_a_line_without_a_version_is_of_the_first():
    assert decode(b'{"type":"cancelled","at":1.0}').v == 1


@pytest.mark.parametrize(
    ("line", "path", "expected", "received"),
    [
        (b'{"type":"retry","at":"noon"}', "$.at", "float", "str"),
        (b'{"type":"cancelled"}', "$.at", "a value", "nothing"),
        (b'{"at":1.0}', "$.type", "a value", "nothing"),
        (b'{"type":"fallback","at":1.0,"from":1,"to":"b"}', "$.from", "str", "int"),
        (b'{"type":"fallback","at":1.0,"from_":"a","to":"b"}', "$.from", "a value", "nothing"),
        (b'{"type":"failed","at":1.0,"exhausted":false,"fault":[]}', "$.fault", "object", "array"),
        (b"[]", "$", "object", "array"),
        (b"7", "$", "object", "int"),
        (b"null", "$", "object", "null"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_path_expected_and_received(line, path, expected, received):
    with pytest.raises(InvalidError) as refused:
        decode(line)
    fault = refused.value.fault
    assert fault.code == "PROTO_INVALID_MESSAGE"
    assert fault.context == {"path": path, "expected": expected, "received": received}


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b'{"type":"party","at":1.0}', "$.type"),
        (b'{"type":"circuit-state-change","at":1.0,"circuit":"c","from":"ajar","to":"open"}', "$.from"),
        (b'{"type":"suppressed-error","at":1.0,"reason":"r","cause":"c","code":"no such"}', "$.code"),
    ],
)
def test_a_word_nobody_knows_is_refused_where_it_stands(line, path):
    with pytest.raises(InvalidError) as refused:
        decode(line)
    assert refused.value.fault.context["path"] == path


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nope",
        b'{"type":',
        b"\xff\xfe",
        "\ud800",
        b"[" * 100_000,
        b'{"type":"cancelled","at":1}{"type":"cancelled","at":1}',
    ],
    ids=["empty", "word", "half", "bytes", "surrogate", "deep", "two"],
)
def test_a_line_that_is_no_json_is_refused_in_the_same_way(line):
    with pytest.raises(InvalidError) as refused:
        decode(line)
    assert refused.value.fault.code == "PROTO_INVALID_MESSAGE"
    assert refused.value.fault.context["path"] == "$"
    assert refused.value.__cause__ is None


def test_a_refusal_does_not_repeat_a_secret():
    with pytest.raises(InvalidError) as refused:
        decode(json.dumps({"type": KEY, "at": 1.0}))
    assert KEY not in str(refused.value)


def test_lines_are_written_and_read_and_blank_ones_skipped():
    events = [Cancelled(at=1.0), Degraded(at=2.0, reason="a\nb")]
    lines = list(encode_lines(events))
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert list(decode_lines([*lines[:1], b"\n", "  \n", *lines[1:]])) == events


def test_lines_are_read_one_by_one():
    read = decode_lines(iter([encode(Cancelled(at=1.0)), b"nope"]))
    assert next(read) == Cancelled(at=1.0)
    with pytest.raises(InvalidError):
        next(read)


def test_what_a_failed_process_said_can_always_be_written_down():
    """stderr holds bytes of any encoding; subprocess passes them on as lone surrogates with `surrogateescape`."""
    ended = subprocess.run(
        ["sh", "-c", r"printf 'caf\351 failed' >&2; exit 1"],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    event = Failed(at=1.0, fault=fault_of(ended), exhausted=False)
    assert decode(encode(event)).fault.code == event.fault.code


@pytest.fixture(scope="module")
def checker() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


@given(event=events)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_the_schema_describes_what_is_written(checker, event):
    checker.validate(json.loads(encode(event)))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"type": "party", "at": 1.0},
        {"type": "retry", "at": 1.0},
        {"type": "degraded", "at": "noon", "reason": "x"},
        {"type": "fallback", "at": 1.0, "from": "a"},
    ],
)
def test_the_schema_refuses_what_is_none(checker, document):
    with pytest.raises(jsonschema.ValidationError):
        checker.validate(document)


def test_the_schema_names_every_kind():
    named = json.dumps(schema())
    assert [kind.__name__ for kind in KINDS if f'"{kind.__struct_config__.tag}"' not in named] == []


def test_events_of_one_fact_are_equal_and_hashable_where_their_parts_are():
    assert Retry(at=1.0, attempt=1, max_attempts=2, delay=0.0, fault=Fault.of("SYS_UNKNOWN")) == Retry(
        at=1.0, attempt=1, max_attempts=2, delay=0.0, fault=Fault.of("SYS_UNKNOWN")
    )
    assert len({SuppressedError(at=1.0, reason="r", cause="c"), SuppressedError(at=1.0, reason="r", cause="c")}) == 1
