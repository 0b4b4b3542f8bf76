"""The server's side of a connection: what it lets through, what it answers, when it ends."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from holdfast.faults import Fault
from holdfast.testing import VirtualClock
from holdfast.wire.close import CloseCode
from holdfast.wire.messages import ConnectionAck, HealthStatus, Limits, SessionJoined
from holdfast.wire.outbox import AckResult
from holdfast.wire.phases import ConnectionPhase
from holdfast.wire.server import PUBLIC_WARNING, CloseConnection, HandleMessage, Rejected, Send, ServerConnection

LIMITS = Limits(max_frame=1, max_inflight=1, replay_bytes=1, replay_age_ms=1, grace_ms=1)
ACK = ConnectionAck(
    connection_id="c-1",
    protocol=2,
    server_version="0",
    server_time="2026-01-01T00:00:00Z",
    heartbeat_interval_ms=15_000,
    limits=LIMITS,
)
HEALTH = HealthStatus(
    status="healthy", connection_mode="local_only", ready=True, server_timestamp="2026-01-01T00:00:00Z"
)


def joined_to(session: str, role: Any = "controller") -> SessionJoined:
    return SessionJoined(
        session_id=session, state="active", role=role, epoch="k", oldest_offset=1, top_offset=0, from_offset=0,
        was_recovering=False, recovered=True, resume_token="t", resume_expires_in_ms=1, clients=1,
    )  # fmt: skip


class Wire:
    """A connection with ids that count, and frames as dicts."""

    def __init__(self, **options: Any) -> None:
        self.clock = VirtualClock()
        self.numbers = iter(range(1, 10_000))
        self.connection = ServerConnection(clock=self.clock, new_id=self.id, **options)

    def id(self) -> str:
        return str(UUID(int=next(self.numbers)))

    def send(self, type_: str, payload: Any = None, **fields: Any) -> list[Any]:
        document = {"type": type_, "id": self.id(), "timestamp": "2026-03-20T14:32:00Z", "payload": payload or {}}
        return self.connection.received(json.dumps(document | fields))

    def authenticated(self) -> Wire:
        (handle,) = self.send("auth", {"token": "secret"})
        self.connection.accepted(handle.message, ACK)
        return self

    def joined(self, session: str = "s", role: str = "controller") -> Wire:
        if self.connection.phase is ConnectionPhase.UNAUTHENTICATED:
            self.authenticated()
        (handle,) = self.send("session_join", {"session_id": session})
        self.connection.joined(handle.message.id, joined_to(session, role))
        return self


def documents(effects: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(effect.frame) for effect in effects if isinstance(effect, Send)]


def codes(effects: list[Any]) -> list[str]:
    return [document["payload"]["code"] for document in documents(effects)]


def test_B1_who_does_not_begin_with_auth_is_told_and_cut() -> None:
    effects = Wire().send("session_join", {"session_id": "s"})
    error, _ = documents(effects)
    assert error["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
    assert error["payload"]["details"]["expected"] == ["auth"]
    assert error["payload"]["details"]["received"] == "session_join"
    assert error["payload"]["details"]["currentPhase"] == "unauthenticated"
    assert effects[-1] == CloseConnection(CloseCode.SEQUENCE, "PROTO_SEQUENCE_ERROR")
    assert not any(isinstance(effect, HandleMessage) for effect in effects)


def test_B2_who_says_nothing_is_cut_when_the_time_is_over() -> None:
    wire = Wire()
    wire.clock.advance(9.9)
    assert wire.connection.tick() == []
    wire.clock.advance(0.1)
    assert wire.connection.next_at <= wire.clock.monotonic()
    assert wire.connection.tick()[-1] == CloseConnection(CloseCode.AUTH_TIMEOUT, "CONN_TIMEOUT")
    assert wire.send("auth") == []


def test_B3_the_ack_has_the_id_of_the_auth() -> None:
    wire = Wire()
    (handle,) = wire.send("auth", {"token": "secret"})
    (ack,) = documents(wire.connection.accepted(handle.message, ACK))
    assert (ack["type"], ack["id"]) == ("connection_ack", handle.message.id)
    assert ack["payload"]["heartbeat_interval_ms"] == 15_000


def test_B5_a_message_before_the_join_is_rejected_and_a_later_join_works() -> None:
    wire = Wire().authenticated()
    assert codes(wire.send("session_message", {"content": "hi"})) == ["PROTO_SEQUENCE_ERROR"]
    assert isinstance(wire.joined().send("session_message", {"content": "hi"})[0], HandleMessage)


def test_B6_a_second_auth_changes_nothing() -> None:
    wire = Wire().authenticated()
    assert codes(wire.send("auth", {"token": "other"})) == ["PROTO_SEQUENCE_ERROR"]
    assert wire.connection.phase is ConnectionPhase.AUTHENTICATED


def test_B13_an_error_names_the_message_and_whether_it_passes() -> None:
    wire = Wire().joined()
    rejected, sent = wire.send("session_join", {"role": "king"})
    assert isinstance(rejected, Rejected)
    document = json.loads(sent.frame)
    assert document["id"] == rejected.message.id
    assert {"code", "message", "severity", "recoverable", "violations"} <= set(document["payload"])
    fields = [each["field"] for each in document["payload"]["violations"]]
    assert fields == ["payload.session_id", "payload.role"]


def test_B14_too_many_messages_that_cannot_be_read_end_the_connection() -> None:
    wire = Wire().joined()
    for _ in range(9):
        (_, sent) = wire.connection.received('{"type":')
        assert json.loads(sent.frame)["id"] is None
        wire.clock.advance(1)
    assert wire.connection.received("{")[-1] == CloseConnection(CloseCode.TOO_MANY_ERRORS, "PROTO_INVALID_MESSAGE")


def test_errors_that_are_a_minute_old_are_forgotten() -> None:
    wire = Wire().joined()
    for _ in range(30):
        assert not any(isinstance(effect, CloseConnection) for effect in wire.connection.received("{"))
        wire.clock.advance(7)


def test_B17_a_binary_frame_ends_the_connection() -> None:
    assert Wire().joined().connection.received(b"{}")[-1].code == CloseCode.BINARY


@pytest.mark.parametrize(("text", "is_large"), [("x" * 8000, False), ("x" * 8193, True), ("ü" * 5000, True)])
def test_B18_what_is_too_large_is_not_read_and_before_auth_little_is(text: str, is_large: bool) -> None:
    effects = Wire().connection.received(text)
    assert (effects[-1] == CloseConnection(CloseCode.TOO_BIG, "PROTO_MESSAGE_TOO_LARGE")) is is_large


def test_a_message_without_a_session_is_for_the_one_that_was_joined_last_also_if_it_was_joined_before() -> None:
    wire = Wire().joined("a").joined("b").joined("a")
    handle = wire.send("session_message", {"content": "where?"})[0]
    assert isinstance(handle, HandleMessage)
    assert handle.session_id == "a"
    wire.connection.left("a")
    again = wire.send("session_message", {"content": "where?"})[0]
    assert isinstance(again, HandleMessage)
    assert again.session_id == "b"


def test_B50_a_session_that_is_not_joined_is_not_found() -> None:
    wire = Wire().joined("mine")
    assert codes(wire.send("session_message", {"session_id": "theirs", "content": "x"})) == ["SESS_NOT_FOUND"]


def test_B66_an_observer_may_watch_and_not_act() -> None:
    wire = Wire().joined(role="observer")
    for type_, payload in (
        ("session_message", {"content": "x"}),
        ("approval_response", {"tool_call_id": "t", "decision": "approved"}),
        ("answer", {"question_id": "q", "value": True}),
        ("stop", {}),
    ):
        rejected, _ = effects = wire.send(type_, payload)
        assert isinstance(rejected, Rejected)
        assert codes(effects) == ["AUTH_FORBIDDEN"]
    assert isinstance(wire.send("request_replay")[0], HandleMessage)


def test_N0_5_a_public_connection_joins_only_after_the_warning_was_acknowledged() -> None:
    wire = Wire(mode="direct_public").authenticated()
    assert codes(wire.send("session_join", {"session_id": "s"})) == ["PROTO_SEQUENCE_ERROR"]
    assert codes(wire.send("acknowledge_warning", {"warning_code": "OTHER"})) == ["PROTO_SEQUENCE_ERROR"]
    (accepted,) = documents(wire.send("acknowledge_warning", {"warning_code": PUBLIC_WARNING}))
    assert accepted["payload"] == {"warning_code": PUBLIC_WARNING, "ready": True, "session_timeout": "8h"}
    assert isinstance(wire.send("session_join", {"session_id": "s"})[0], HandleMessage)


def test_N0_1_the_phases_follow_the_health_check() -> None:
    wire = Wire().authenticated()
    (handle,) = wire.send("health_check")
    (status,) = documents(wire.connection.checked(handle.message, HEALTH))
    assert (status["type"], wire.connection.phase) == ("health_status", ConnectionPhase.HEALTHY)
    wire.joined()
    wire.connection.left("s")
    assert wire.connection.phase is ConnectionPhase.HEALTHY


def test_N0_6_pings_are_answered_and_silence_ends() -> None:
    wire = Wire().joined()
    (pong,) = documents(wire.send("heartbeat_ping"))
    assert pong["type"] == "heartbeat_pong"
    wire.clock.advance(15)
    assert documents(wire.connection.tick())[0]["type"] == "heartbeat_ping"
    wire.clock.advance(10)
    assert wire.connection.tick()[-1].code == CloseCode.NO_HEARTBEAT


def test_what_was_stored_is_acknowledged_by_id() -> None:
    wire = Wire().joined()
    results = [AckResult(id="a", status="stored", offset=7), AckResult(id="b", status="duplicate", offset=3)]
    (ack,) = documents(wire.connection.stored(results))
    assert ack["payload"]["ids"] == ["a", "b"]
    assert ack["payload"]["results"][0] == {"id": "a", "status": "stored", "offset": 7}


@pytest.mark.parametrize(
    ("code", "close"),
    [("AUTH_FAILED", 4500), ("AUTH_TOKEN_EXPIRED", 4005), ("AUTH_TOKEN_REVOKED", 4509), ("CONN_SUPERSEDED", 4507), ("SYS_UNKNOWN", 4004)],
)  # fmt: skip
def test_B49_B87_a_connection_that_is_ended_learns_why_and_whether_to_come_back(code: Any, close: int) -> None:
    wire = Wire().joined()
    effects = wire.connection.end(Fault.of(code))
    assert documents(effects)[0]["type"] == "connection_error"
    assert codes(effects) == [code]
    assert effects[-1] == CloseConnection(close, code)
    assert wire.connection.end(Fault.of(code)) == []
