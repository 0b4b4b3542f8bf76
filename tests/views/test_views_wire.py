"""Document 000's own samples, written and read to the letter."""

from __future__ import annotations

import pytest

from holdfast.faults import CATALOG, Fault, InvalidError, ItemError, Partial
from holdfast.views import wire
from holdfast.views.wire import _HTTP_WORDS as WORDS

TLS_EXPIRED = {
    "type": "connection_error",
    "payload": {
        "code": "CONN_TLS_HANDSHAKE_FAILED",
        "message": "TLS certificate validation failed",
        "details": {
            "reason": "CERTIFICATE_EXPIRED",
            "expiry": "2026-03-01T00:00:00Z",
            "suggested_action": "regenerate_certificates",
        },
        "recoverable": False,
    },
}
INVALID_MESSAGE = {
    "type": "error",
    "id": "msg-123",
    "payload": {
        "code": "PROTO_INVALID_MESSAGE",
        "message": "Message validation failed",
        "violations": [{"field": "timestamp", "constraint": "iso8601", "received": "2026-03-20 14:32:00"}],
    },
}
NOT_FOUND = {
    "error": "NotFound",
    "code": "SESS_NOT_FOUND",
    "message": "Session 'sess-abc123' not found",
    "suggestions": [
        "Check session ID spelling",
        "Session may have expired",
        "Use GET /sessions to list active sessions",
    ],
}
TOOL_FAILED = {
    "type": "tool_error",
    "payload": {
        "tool_call_id": "tool-abc123",
        "tool": "bash",
        "code": "TOOL_EXECUTION_FAILED",
        "message": "Command exited with code 1",
        "details": {"exit_code": 1, "stderr": "error: file not found", "stdout": "", "execution_time_ms": 150},
        "retryable": True,
        "max_retries": 3,
    },
}
HOOK_REFUSED = {
    "received": False,
    "code": "HOOK_VALIDATION_FAILED",
    "errors": [{"field": "event", "message": "Invalid enum value. Expected one of: SessionStart, SessionEnd..."}],
}


def test_S0_11_connection_error():
    details = {
        "reason": "CERTIFICATE_EXPIRED",
        "expiry": "2026-03-01T00:00:00Z",
        "suggested_action": "regenerate_certificates",
    }
    fault = Fault.of("CONN_TLS_HANDSHAKE_FAILED", context=details)
    assert wire.connection_error(fault) == TLS_EXPIRED
    assert wire.read(TLS_EXPIRED) == fault


def test_S0_14_error_reply():
    violation = {"field": "timestamp", "constraint": "iso8601", "received": "2026-03-20 14:32:00"}
    fault = Fault.of("PROTO_INVALID_MESSAGE", context={"violations": [violation]})
    assert wire.error_reply(fault, "msg-123") == INVALID_MESSAGE
    heard = wire.read(INVALID_MESSAGE)
    assert heard.code == "PROTO_INVALID_MESSAGE"
    assert heard.context["violations"] == [violation]
    assert not heard.retryable
    assert wire.error_reply(heard) == INVALID_MESSAGE


def test_S0_14_the_reply_answers_the_message_it_is_given_not_the_one_it_was_read_from():
    assert wire.error_reply(wire.read(INVALID_MESSAGE), "msg-124")["id"] == "msg-124"


def test_S0_16_a_sequence_error_tells_expected_received_and_phase_in_the_documents_spelling():
    fault = Fault.of(
        "PROTO_SEQUENCE_ERROR", context={"expected": ["auth"], "received": "health_check", "phase": "connected"}
    )
    payload = wire.error_reply(fault)["payload"]
    assert payload["details"] == {"expected": ["auth"], "received": "health_check", "currentPhase": "connected"}
    assert wire.read(wire.error_reply(fault)) == fault


def test_B13_the_verdict_is_told_on_request():
    reply = wire.error_reply(Fault.of("PROTO_INVALID_MESSAGE"), verdict=True)
    assert reply["id"] is None
    assert reply["payload"]["severity"] == "warning"
    assert reply["payload"]["recoverable"] is False
    assert wire.error_reply(wire.read(INVALID_MESSAGE), verdict=True)["id"] == "msg-123"


@pytest.mark.parametrize("retryable", [True, False])
def test_N0_8_silence_about_recovery_never_turns_a_no_into_a_yes(retryable):
    for code in ("CONN_RATE_LIMITED", "AUTH_FAILED"):
        fault = Fault.of(code, "m", retryable=retryable, retry_after=1.5)
        reply = wire.error_reply(fault)
        assert reply["payload"]["retry_after_ms"] == 1500
        assert wire.read(reply) == fault


def test_S0_17_http_body():
    fault = Fault.of("SESS_NOT_FOUND", context={"session_id": "sess-abc123"})
    assert wire.http_body(fault) == NOT_FOUND
    heard = wire.read(NOT_FOUND)
    assert heard == Fault.of("SESS_NOT_FOUND", "Session 'sess-abc123' not found")
    assert wire.http_body(heard) == NOT_FOUND


def test_N0_14_the_envelope_is_additive():
    fault = Fault.of("CONN_RATE_LIMITED", "Slow down", retry_after=30.0)
    body = wire.http_body(
        fault, request_id="req-1", timestamp="2026-03-20T14:32:00Z", documentation_url="https://example.test/429"
    )
    assert body == {
        "error": "TooManyRequests",
        "code": "CONN_RATE_LIMITED",
        "message": "Slow down",
        "suggestions": ["Wait as long as Retry-After says"],
        "retry_after": 30,
        "request_id": "req-1",
        "timestamp": "2026-03-20T14:32:00Z",
        "documentation_url": "https://example.test/429",
    }
    heard = wire.read(body)
    assert heard.retry_after == 30.0
    assert wire.http_body(heard) == body
    assert wire.http_body(heard, request_id="req-2") == {**body, "request_id": "req-2"}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("SESSION_NOT_FOUND", "SESS_NOT_FOUND"),
        ("SESSION_CLOSED", "SESS_CLOSED"),
        ("RATE_LIMIT_EXCEEDED", "CONN_RATE_LIMITED"),
        ("INTERNAL_ERROR", "SYS_INTERNAL_ERROR"),
        ("AUTH_INVALID_TOKEN", "AUTH_INVALID_TOKEN"),
        ("INSECURE_TRANSPORT", "CONN_INSECURE_TRANSPORT"),
        ("VERSION_INCOMPATIBLE", "PROTO_VERSION_INCOMPATIBLE"),
        ("AGENT_ERROR", "ACTOR_ERROR"),
        ("TOOL_ERROR", "TOOL_EXECUTION_FAILED"),
    ],
)
def test_N0_3_N0_7_N0_14_old_names_mean_the_canonical_codes_and_stay_as_they_came(name, code):
    body = {"error": "Whatever", "code": name, "message": "m", "suggestions": []}
    fault = wire.read(body)
    assert fault.code == code
    assert wire.http_body(fault) == body


def test_an_http_body_lists_the_violations_its_suggestion_speaks_of():
    violations = [{"field": "id", "constraint": "uuid", "received": "x"}]
    body = wire.http_body(Fault.of("PROTO_INVALID_MESSAGE", context={"violations": violations}))
    assert body["violations"] == violations
    assert wire.read(body).context == {"violations": violations}


def test_every_status_of_the_catalog_has_a_word():
    assert {entry.http_status for entry in CATALOG.values()} <= WORDS.keys()


def test_S0_21_tool_error():
    fault = Fault.of(
        "TOOL_EXECUTION_FAILED",
        "Command exited with code 1",
        retryable=True,
        context={"exit_code": 1, "execution_time_ms": 150, "tool_call_id": "tool-abc123", "tool": "bash"},
        partial=Partial(payload={"stdout": "", "stderr": "error: file not found"}),
    )
    assert wire.tool_error(fault) == TOOL_FAILED
    assert wire.read(TOOL_FAILED) == fault


def test_FM1_the_other_messages_say_the_specification_s_sentence_too():
    tls = Fault.of("CONN_TLS_HANDSHAKE_FAILED", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired")
    assert wire.connection_error(tls)["payload"]["message"] == tls.message
    assert wire.connection_error(tls, literal=True)["payload"]["message"] == "TLS certificate validation failed"
    invalid = Fault.of("PROTO_INVALID_MESSAGE", "$.id: expected a UUID, got 'x'")
    assert wire.error_reply(invalid, "m-1", literal=True)["payload"]["message"] == "Message validation failed"
    gone = Fault.of("SESS_NOT_FOUND", "no row", context={"session_id": "sess-abc123"})
    assert wire.http_body(gone, literal=True)["message"] == "Session 'sess-abc123' not found"
    for other in (Fault.of("SESS_NOT_FOUND", "no row"), Fault.of("AUTH_FAILED", "denied")):
        assert wire.http_body(other, literal=True) == wire.http_body(other)


def test_FM1_a_command_that_failed_says_the_specification_s_sentence_and_its_contract_s_retries():
    fault = Fault.of("TOOL_EXECUTION_FAILED", "error: no such file", context={"exit_code": 1, "tool": "bash"})

    def verdict(**contract):
        payload = wire.tool_error(fault, **contract)["payload"]
        return payload["message"], payload["retryable"], payload["max_retries"]

    assert verdict() == ("error: no such file", False, 0)
    assert verdict(literal=True, retryable=True) == ("Command exited with code 1", True, 3)
    assert verdict(retryable=True, max_retries=5) == ("error: no such file", True, 5)
    assert wire.read(wire.tool_error(fault, literal=True, retryable=True)).retryable
    crashed = Fault.of("TOOL_CRASHED", context={"exit_code": 139})
    assert wire.tool_error(crashed, literal=True) == wire.tool_error(crashed)
    assert wire.tool_error(crashed, retryable=False)["payload"]["max_retries"] == 0


@pytest.mark.parametrize(
    ("code", "retryable", "retries"),
    [
        ("TOOL_TIMEOUT", True, 3),
        ("TOOL_FILE_NOT_FOUND", False, 0),
        ("TOOL_RATE_LIMITED", True, 3),
        ("TOOL_OUT_OF_MEMORY", True, 1),
    ],
)
def test_S0_22_retries_out_of_memory_once_and_never_what_is_not_found(code, retryable, retries):
    payload = wire.tool_error(Fault.of(code))["payload"]
    assert (payload["retryable"], payload["max_retries"]) == (retryable, retries)


def test_C26_a_tool_without_streams_leaves_its_payload_and_item_errors():
    errors = (
        ItemError(item=3, code="TOOL_TIMEOUT", message="slow"),
        ItemError(item=4, code="TOOL_FORBIDDEN", message="no"),
    )
    partial = Partial(payload=["a", "b", "c"], errors=errors, truncated=True)
    message = wire.tool_error(Fault.of("TOOL_EXECUTION_FAILED", "2 of 5 failed", partial=partial))
    details = message["payload"]["details"]
    assert details["payload"] == ["a", "b", "c"]
    assert [error["item"] for error in details["errors"]] == [3, 4]
    assert wire.read(message).partial == partial


def test_errors_that_are_not_ours_are_facts_not_item_errors():
    message = {**TOOL_FAILED, "payload": {**TOOL_FAILED["payload"], "details": {"errors": ["disk", "net"]}}}
    fault = wire.read(message)
    assert fault.partial is None
    assert fault.context["errors"] == ["disk", "net"]
    assert wire.tool_error(fault) == message


def test_S0_25_hook_reply():
    fault = Fault.of("HOOK_VALIDATION_FAILED", context={"errors": HOOK_REFUSED["errors"]})
    assert wire.hook_reply(fault) == HOOK_REFUSED
    assert wire.read(HOOK_REFUSED) == fault


def test_S0_25_a_fault_that_lists_no_errors_is_the_one_error():
    fault = Fault.of("HOOK_INVALID_SESSION_ID", context={"field": "session_id"})
    assert wire.hook_reply(fault) == {
        "received": False,
        "code": "HOOK_INVALID_SESSION_ID",
        "errors": [{"field": "session_id", "message": "Hook session_id is missing or empty"}],
    }


def test_N0_17_the_other_spelling_names_a_code_per_field():
    reply = {
        "received": False,
        "validation_errors": [{"field": "timestamp", "message": "too old", "code": "HOOK_STALE_TIMESTAMP"}],
        "timestamp": "2026-03-20T14:32:00Z",
    }
    fault = wire.read(reply)
    assert fault.code == "HOOK_STALE_TIMESTAMP"
    assert wire.hook_reply(fault) == reply


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("CONN_NEVER_SEEN", "CONN_WEBSOCKET_CLOSED"),
        ("AUTH_NEVER_SEEN", "AUTH_FAILED"),
        ("SESS_NEVER_SEEN", "SESS_ILLEGAL_TRANSITION"),
        ("NEVER_SEEN", "SYS_UNKNOWN"),
        ("", "SYS_UNKNOWN"),
    ],
)
def test_a_code_never_heard_of_stands_by_its_prefix(name, code):
    message = {"type": "error", "payload": {"code": name, "message": "m"}}
    fault = wire.read(message)
    assert fault.code == code
    assert wire.error_reply(fault) == message


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (5, "$: expected an object, got int"),
        ({"type": "tool_result"}, "$.type: expected connection_error or error or tool_error, got 'tool_result'"),
        ({"type": []}, "$.type: expected connection_error or error or tool_error, got list"),
        ({"type": "error"}, "$.payload: expected a value, got nothing"),
        ({"type": "error", "payload": {"code": 5, "message": ""}}, "$.payload.code: expected str, got int"),
        ({"received": True}, "$.received: expected false, got true"),
        ({"received": False}, "$.errors: expected a list of errors, got nothing"),
        ({"error": "NotFound"}, "$.code: expected a value, got nothing"),
    ],
)
def test_what_is_none_of_these_documents_is_refused(document, message):
    with pytest.raises(InvalidError) as caught:
        wire.read(document)
    assert caught.value.fault.code == "PROTO_INVALID_MESSAGE"
    assert caught.value.fault.message == message
