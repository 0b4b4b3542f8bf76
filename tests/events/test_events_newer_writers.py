"""A log may come from a newer Holdfast: what is not known here is neither refused nor lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events import (
    VERSION,
    AttemptEnded,
    CircuitStateChange,
    Failed,
    RetryDenied,
    SuppressedError,
    Unknown,
    decode,
    decode_lines,
    encode,
    encode_lines,
)
from holdfast.faults import CODES, Attempt, Fault, InvalidError, Scope
from holdfast.views import category, wire

NEW = "PROVIDER_FROM_THE_FUTURE"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


# A record of a type nobody knows here


def test_a_record_of_a_new_type_is_kept_whole():
    line = b'{"type":"hedged","at":1773860656.25,"v":2,"run":"r-1","operation":"claude","lanes":[1,2]}'
    event = decode(line)
    assert event == Unknown(
        type="hedged", at=1773860656.25, v=2, run="r-1", operation="claude", raw=b"".join(line.split())
    )
    assert event.document["lanes"] == [1, 2]
    assert encode(event) == line


@given(st.dictionaries(st.text(), JSON, max_size=4), st.integers(1, 9), st.sampled_from([None, 2]))
@settings(max_examples=100, deadline=None)
def test_law_a_record_of_a_new_type_says_the_same_after_reading_and_writing(more, version, indent):
    document = {**more, "type": "hedged", "at": 1.0, "v": version, "run": "", "operation": ""}
    written = encode(decode(json.dumps(document, indent=indent)))
    assert b"\n" not in written
    assert json.loads(written) == document
    assert encode(decode(written)) == written


@pytest.mark.parametrize(
    "number", ["12345678901234567890123", "0.1000000000000000055", "1E5", "-0.0", "9007199254740993"]
)
def test_a_number_keeps_every_digit(number):
    assert number.encode() in encode(decode(f'{{"type": "hedged", "at": 1, "v": 2, "cost": {number}}}'))


def test_a_log_with_new_records_can_be_copied():
    lines = [encode(SuppressedError(at=1.0, reason="r", cause="c")) + b"\n", b'{"type":"hedged","at":2,"v":1}\n']
    assert list(encode_lines(decode_lines(lines))) == lines


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"circuit-state-change","at":1.0,"v":2,"circuit":"c","from":"ajar","to":"open"}',
        b'{"type":"retry","at":1.0,"v":2,"fault":"AUTH_FAILED"}',
    ],
    ids=["a new word", "a new shape"],
)
def test_a_newer_version_of_a_known_record_that_does_not_fit_is_kept_whole(line):
    event = decode(line)
    assert isinstance(event, Unknown)
    assert encode(event) == line


def test_a_newer_version_that_does_fit_is_the_record_it_says():
    assert isinstance(decode(b'{"type":"cancelled","at":1.0,"v":7}').reason, str)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b'{"type":"hedged","at":1.0}', "$.type"),
        (b'{"type":"hedged","v":2}', "$.type"),
        (b'{"type":"hedged","at":"noon","v":2}', "$.type"),
        (b'{"type":7,"at":1.0,"v":2}', "$.type"),
        (b'{"type":"hedged","at":1.0,"v":"2"}', "$.type"),
        (b'{"type":"retry","at":1.0,"v":%d}' % VERSION, "$.attempt"),
        (b'{"type":"hedged","at":1.0,"v":2} and more', "$"),
        (b'{"type":"hedged","at":1.0,"v":2,"x":}', "$"),
        (b'{"type":"hedged","at":1.0,"v":2,"x":"\xff"}', "$"),
        (b'{"type":"hedged","at":1.0,"v":2,"x":' + b"[" * 100_000, "$"),
    ],
    ids=["unversioned", "undated", "bad date", "no type", "bad version", "ours", "more", "half", "bytes", "deep"],
)
def test_what_no_writer_could_have_meant_is_refused(line, path):
    with pytest.raises(InvalidError) as refused:
        decode(line)
    assert refused.value.fault.code == "PROTO_INVALID_MESSAGE"
    assert refused.value.fault.context["path"] == path


# A code nobody knows here

NEWER = Fault(
    code=NEW, message="m", retryable=True, scope=Scope.PROVIDER, attempts=(Attempt(number=1, code="TOOL_OF_TOMORROW"),)
)


@pytest.mark.parametrize(
    "event",
    [
        Failed(at=1.0, fault=NEWER, exhausted=True),
        AttemptEnded(at=1.0, attempt=1, took=0.5, fault=NEWER),
        RetryDenied(at=1.0, attempt=1, because="SYS_NEWEST_QUOTA", fault=NEWER),
        CircuitStateChange(at=1.0, circuit="c", from_="closed", to="open", reason=NEW),
        SuppressedError(at=1.0, reason="r", cause="c", code=NEW),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_code_of_a_newer_catalog_survives_in_a_known_record(event):
    line = encode(event)
    read = decode(line)
    assert type(read) is type(event)
    assert encode(read) == line


@pytest.mark.parametrize(
    ("code", "stand_in"),
    [
        (NEW, "SYS_UNKNOWN"),
        ("SYS_NEWEST_QUOTA", "SYS_UNKNOWN"),
        ("NOBODY_KNOWS", "SYS_UNKNOWN"),
        ("AUTH_BY_THOUGHT", "AUTH_FAILED"),
        ("TOOL_OF_TOMORROW", "TOOL_EXECUTION_FAILED"),
    ],
)
def test_a_newer_code_means_what_its_prefix_means(code, stand_in):
    fault = decode(
        encode(Failed(at=1.0, fault=Fault(code=code, message="m", retryable=True, scope="tool"), exhausted=True))
    ).fault
    assert fault.code == code
    assert fault.retryable, "the verdict is the writer's"
    assert fault.entry.code == stand_in
    assert fault.for_user()
    assert fault.for_model()["context"]["fault"] == fault.for_audit()["fault"]["code"] == code


def test_a_newer_code_travels_through_the_views():
    assert category.read(category.write(NEWER, with_fault=True)) == NEWER
    assert wire.error_reply(NEWER)["payload"]["code"] == NEW


@pytest.mark.parametrize("code", ["", "nope", "Auth_Failed", "AUTH", "AUTH FAILED", "AUTH_", "7_UP", "AUTH_FAILED\n"])
def test_what_no_catalog_could_hold_is_no_code(code):
    line = json.dumps({"type": "suppressed-error", "at": 1.0, "v": 1, "reason": "r", "cause": "c", "code": code})
    with pytest.raises(InvalidError) as refused:
        decode(line)
    assert refused.value.fault.context["path"] == "$.code"


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_ours_can_be_read(code):
    event = SuppressedError(at=1.0, reason="r", cause="c", code=code)
    assert decode(encode(event)) == event
