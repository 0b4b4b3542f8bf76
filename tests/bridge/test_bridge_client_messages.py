"""What the messages of a server become in the client."""

from __future__ import annotations

import pytest

from holdfast.bridge import Question, QuestionClosed, SessionEvent, Text, Unknown
from holdfast.bridge.client.messages import gap_of, message_of
from holdfast.wire.envelope import Envelope
from holdfast.wire.examples import SERVER_EXAMPLES
from holdfast.wire.messages import DURABLE
from holdfast.wire.position import Position

TIME = "2026-11-15T01:02:03.004Z"


def envelope(type_: str, payload: dict, offset: int = 7) -> Envelope:
    return Envelope(type=type_, id="i", timestamp=TIME, payload=payload, session_id="s", epoch="e", offset=offset)


@pytest.mark.parametrize("type_", sorted(DURABLE))
def test_every_message_of_a_log_has_a_value_with_its_position_and_all_that_it_contains(type_: str) -> None:
    payload = SERVER_EXAMPLES[type_]
    message = message_of(envelope(type_, payload))
    assert not isinstance(message, Unknown)
    assert message.position == Position(epoch="e", offset=7, id="i")
    assert message.at == TIME
    shown = repr(message)
    for value in payload.values():
        if isinstance(value, str) and type_ != "approval_resolved":
            assert value in shown


def test_an_approval_is_a_question_and_its_end_has_the_same_id() -> None:
    asked = message_of(envelope("approval_required", SERVER_EXAMPLES["approval_required"]))
    assert isinstance(asked, Question)
    assert asked.kind == "Approve"
    assert asked.prompt
    closed = message_of(envelope("approval_resolved", SERVER_EXAMPLES["approval_resolved"]))
    assert isinstance(closed, QuestionClosed)
    assert (closed.id, closed.outcome) == (SERVER_EXAMPLES["approval_resolved"]["question_id"], "approved")


def test_an_approval_without_a_question_has_the_id_of_its_call() -> None:
    asked = message_of(envelope("approval_required", {"tool_call_id": "tool-001", "tool": "bash", "params": {}}))
    assert isinstance(asked, Question)
    assert (asked.id, asked.prompt) == ("tool-001", "Run bash?")


def test_other_entries_keep_their_names() -> None:
    message = message_of(envelope("session_event", {"event": "turn_started", "turn": 3}))
    assert isinstance(message, SessionEvent)
    assert (message.event, message.details) == ("turn_started", {"turn": 3})


@pytest.mark.parametrize("payload", [{}, {"text": 5}, {"text": None}])
def test_what_cannot_be_read_is_unknown_and_still_moves_the_position(payload: dict) -> None:
    message = message_of(envelope("stream_chunk", payload))
    assert isinstance(message, Unknown)
    assert (message.type, message.payload) == ("stream_chunk", payload)
    assert message.position is not None


def test_a_type_of_a_newer_server_is_unknown_and_unknown_fields_are_ignored() -> None:
    assert isinstance(message_of(envelope("hologram", {"x": 1})), Unknown)
    text = message_of(envelope("stream_chunk", {"text": "hi", "stream_id": "a", "tone": "warm"}, offset=0))
    assert text == Text(text="hi", stream_id="a", at=TIME)


def test_a_gap_for_a_reason_of_a_newer_server_is_a_gap() -> None:
    assert gap_of({"reason": "moved", "requested": 3}).reason == "reset"
    assert gap_of({"reason": "ahead", "requested": 3}).requested == 3
