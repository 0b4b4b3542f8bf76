"""How a frame is read: the same everywhere, with all violations, and never a crash."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.wire.envelope import MAX_DEPTH, Envelope, Invalid, encode, is_timestamp, read, stamp, write
from holdfast.wire.examples import SERVER_EXAMPLES
from holdfast.wire.messages import FROM_SERVER

ID = "0b8a7f60-1111-4222-8333-444455556666"
GOOD: dict[str, Any] = {"type": "session_message", "id": ID, "timestamp": "2026-03-20T14:32:00Z", "payload": {}}


def violations(frame: str | bytes, **options: Any) -> list[tuple[str, str]]:
    found = read(frame, **options)
    assert isinstance(found, Invalid), found
    return [(each.field, each.constraint) for each in found.violations]


def test_S0_13_a_message_with_the_four_fields_is_read() -> None:
    assert read(json.dumps(GOOD)) == Envelope(**GOOD)


def test_B7_all_violations_are_listed_at_once() -> None:
    found = read('{"type": "session_message", "timestamp": "2026-03-20 14:32:00"}')
    assert isinstance(found, Invalid)
    assert found.fault.code == "PROTO_INVALID_MESSAGE"
    assert found.fault.message == "Message validation failed"
    assert found.fault.context["violations"] == [
        {"field": "id", "constraint": "required", "received": None},
        {"field": "timestamp", "constraint": "iso8601", "received": "2026-03-20 14:32:00"},
        {"field": "payload", "constraint": "required", "received": None},
    ]


@pytest.mark.parametrize("payload", [[], None, "text", 1, True])
def test_B9_a_payload_that_is_no_object_is_a_violation(payload: Any) -> None:
    assert violations(json.dumps(GOOD | {"payload": payload})) == [("payload", "object")]


@pytest.mark.parametrize(
    ("field", "value", "constraint"),
    [
        ("type", "", "required"),
        ("type", "Session", "matches"),
        ("type", "session\n", "matches"),
        ("type", 5, "matches"),
        ("id", "msg-123", "uuid"),
        ("id", ID + "\n", "uuid"),
        ("id", ID.replace("-", ""), "uuid"),
        ("timestamp", "2026-02-30T00:00:00Z", "iso8601"),
        ("timestamp", "2026-03-20T14:32:00", "iso8601"),
        ("timestamp", 1_700_000_000, "iso8601"),
        ("offset", -1, "offset"),
        ("offset", 1.5, "offset"),
        ("offset", 2**53, "offset"),
        ("epoch", 7, "string"),
    ],
)
def test_S0_14_the_violated_rule_is_named(field: str, value: Any, constraint: str) -> None:
    assert violations(json.dumps(GOOD | {field: value})) == [(field, constraint)]


def test_ids_of_older_clients_are_accepted_if_that_is_wanted_and_come_back_verbatim() -> None:
    assert isinstance(read(json.dumps(GOOD | {"id": "msg-123"}), lenient_ids=True), Envelope)
    found = read(json.dumps(GOOD | {"id": "msg 123", "type": "X"}))
    assert isinstance(found, Invalid)
    assert found.id == "msg 123"


def test_B11_unknown_fields_are_ignored() -> None:
    assert read(json.dumps(GOOD | {"later": {"a": 1}})) == Envelope(**GOOD)


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":',
        "",
        "{} x",
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":1e999}',
        '{"a":"\\ud800"}',
        '{"a":' + "9" * 5000 + "}",
        '{"a":18446744073709551616}',
        "\ufeff{}",
        "[" * 200_000,
        '{"a":' * 2000 + "1" + "}" * 2000,
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        b'{"a":"\xff"}',
    ],
    ids=range(14),
)
def test_B14_B21_B22_what_parsers_disagree_about_is_rejected_as_json(frame: str | bytes) -> None:
    assert violations(frame) == [("$", "json")]


@pytest.mark.parametrize("value", ["[{" * 500, "9" * 400, '"{[' * 90])
def test_what_only_looks_deep_or_long_inside_a_text_is_accepted(value: str) -> None:
    message = read(
        json.dumps(GOOD | {"payload": {"text": value, "n": 18446744073709551615, "f": 3.141592653589793238}})
    )
    assert isinstance(message, Envelope)
    assert message.payload["text"] == value


def test_B23_of_two_equal_keys_the_last_counts_everywhere() -> None:
    frame = json.dumps(GOOD)[:-1] + ', "payload": {"a": 2}}'
    message = read(frame)
    assert isinstance(message, Envelope)
    assert message.payload == {"a": 2}
    assert read(encode(message)) == message


def test_times_are_written_as_they_are_read() -> None:
    assert stamp(1_700_000_000.0045) == "2023-11-14T22:13:20.004Z"
    assert is_timestamp(stamp(0.0))


@given(
    st.floats(-1e9, 1e11)
    | st.integers(0, 10**11).map(lambda micros: micros / 1e6)
    | st.sampled_from([1.9999999, 0.9999995, -0.5])
)
@settings(max_examples=300, deadline=None)
def test_a_time_is_written_as_datetime_writes_it(wall: float) -> None:
    assert stamp(wall) == datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize("type_", sorted(SERVER_EXAMPLES))
def test_a_message_is_written_at_once_as_it_is_field_by_field(type_: str) -> None:
    example = SERVER_EXAMPLES[type_]
    payload = msgspec.convert(example, FROM_SERVER[type_])
    envelope = Envelope(
        type=type_, id=ID, timestamp=stamp(1.5), payload=msgspec.to_builtins(payload), session_id="s", re="r"
    )
    assert write(type_, payload, id_=ID, timestamp=stamp(1.5), session_id="s", re="r") == encode(envelope)
    raw = msgspec.Raw(msgspec.json.encode(example))
    sent = Envelope(type=type_, id=ID, timestamp=stamp(1.5), payload=example, epoch="e", offset=7)
    assert write(type_, raw, id_=ID, timestamp=stamp(1.5), epoch="e", offset=7) == encode(sent)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)  # the machine may be busy
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_whatever_a_message_holds_it_is_the_same_after_reading(payload: dict[str, Any]) -> None:
    try:
        frame = encode(Envelope(**GOOD | {"payload": payload}))
    except UnicodeEncodeError:
        return  # a lone surrogate, which cannot be sent
    assert read(frame) == Envelope(**GOOD | {"payload": msgspec.json.decode(msgspec.json.encode(payload))})


@settings(deadline=None)  # the machine may be busy
@given(st.binary(max_size=200) | st.text(max_size=200) | st.builds(lambda text, cut: json.dumps(GOOD | {"payload": {"t": text}})[:cut], st.text(), st.integers(0, 200)))  # fmt: skip
def test_no_frame_whatever_it_is_raises(frame: str | bytes) -> None:
    assert isinstance(read(frame), Envelope | Invalid)
