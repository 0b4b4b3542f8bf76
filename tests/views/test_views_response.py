"""Document 004's Response, its factories and its decision tree."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from holdfast import Policy, Runtime, recover
from holdfast.faults import Attempt, Err, Fault, InvalidError, Kind, Ok, Partial
from holdfast.testing import Midpoint, VirtualClock, run
from holdfast.views import ActorError, Errors, Strategy, category, decide, response


def failure(**error):
    return {"success": False, "error": error}


SAMPLES = {
    "PROTO_INVALID_MESSAGE": failure(
        type="validation", code="INVALID_MESSAGE", message="Message payload is invalid", retryable=False
    ),
    "CONN_TIMEOUT": failure(type="transient", code="NETWORK_TIMEOUT", message="timed out", retryable=True),
    "CIRCUIT_OPEN": failure(
        type="transient", code="CIRCUIT_OPEN", message="Service temporarily unavailable", retryable=False
    ),
    "TOOL_TIMEOUT": failure(
        type="transient", code="TIMEOUT", message='Operation "Claude API call" timed out after 120000ms', retryable=True
    ),
    "ACTOR_NOT_FOUND": failure(
        type="permanent", code="ACTOR_NOT_FOUND", message="Actor claude-1 not found", retryable=False
    ),
    "ACTOR_MAX_RESTARTS": failure(
        type="fatal",
        code="MAX_RESTARTS_EXCEEDED",
        message="Actor claude-1 failed 3 times in 60000ms",
        retryable=False,
        context={"originalError": "boom"},
    ),
    "ACTOR_CRASHED": failure(
        type="fatal",
        code="ACTOR_CRASHED",
        message="Actor claude-1 crashed: boom",
        retryable=False,
        context={"restartCount": 1},
    ),
    "PROTO_UNKNOWN_TYPE": failure(
        type="validation",
        code="UNKNOWN_MESSAGE_TYPE",
        message="Task does not support message type: dance",
        retryable=False,
        context={
            "supportedTypes": ["get", "observe", "update", "start", "spawn", "eval", "complete", "block"],
            "receivedType": "dance",
        },
    ),
    "PROVIDER_STREAM_STALLED": failure(
        type="transient",
        code="STREAM_TIMEOUT",
        message="Stream exceeded timeout of 300000ms",
        retryable=True,
        context={"durationMs": 300_001},
    ),
    "ACTOR_CLI_NETWORK": failure(type="transient", code="CLAUDE_CLI_NETWORK", message="ECONNREFUSED", retryable=True),
    "ACTOR_CLI_ERROR": failure(type="permanent", code="CLAUDE_CLI_ERROR", message="bad flag", retryable=False),
}
FACTS = {
    "ACTOR_MAX_RESTARTS": {"original_error": "boom"},
    "ACTOR_CRASHED": {"restart_count": 1},
    "PROTO_UNKNOWN_TYPE": {
        "supported": ["get", "observe", "update", "start", "spawn", "eval", "complete", "block"],
        "received": "dance",
    },
    "PROVIDER_STREAM_STALLED": {"duration_ms": 300_001},
}


@pytest.mark.parametrize("code", SAMPLES)
def test_S4_6_S4_7_S4_17_every_sample_of_the_document(code):
    document = SAMPLES[code]
    fault = Fault.of(code, document["error"]["message"], context=FACTS.get(code))
    assert response.write(fault) == document
    assert response.read(document) == fault


@pytest.mark.parametrize(
    ("factory", "kind", "retryable"),
    [
        (Errors.validation, "validation", False),
        (Errors.transient, "transient", True),
        (Errors.fatal, "fatal", False),
        (Errors.permanent, "permanent", False),
    ],
)
def test_S4_20_factories_make_what_their_name_says_and_only_transient_is_retryable(factory, kind, retryable):
    error = factory("TEST", "test message", {"field": "foo"})
    assert error == ActorError(
        type=kind, code="TEST", message="test message", retryable=retryable, context={"field": "foo"}
    )
    document = response.failed(error)
    assert document == failure(
        type=kind, code="TEST", message="test message", retryable=retryable, context={"field": "foo"}
    )
    assert response.write(response.read(document)) == document
    assert "context" not in msgspec.to_builtins(factory("TEST", "test message"))


def test_S4_17_unknown_message_type_as_an_actor_returns_it():
    error = Errors.validation(
        "UNKNOWN_MESSAGE_TYPE",
        "Task does not support message type: dance",
        SAMPLES["PROTO_UNKNOWN_TYPE"]["error"]["context"],
    )
    assert response.failed(error) == SAMPLES["PROTO_UNKNOWN_TYPE"]


def test_S4_6_metadata():
    metadata = {"durationMs": 12, "costUsd": 0.01, "sessionId": "s-1"}
    document = response.failed(Errors.permanent("X", "m"), metadata=metadata)
    assert document["metadata"] == metadata
    fault = response.read(document)
    assert response.write(fault) == document
    assert response.write(fault, metadata={"durationMs": 13})["metadata"] == {"durationMs": 13}


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        ("validation", "PROTO_INVALID_MESSAGE", Kind.RECOVERABLE),
        ("transient", "ACTOR_ERROR", Kind.TRANSIENT),
        ("fatal", "ACTOR_CRASHED", Kind.FATAL),
        ("permanent", "ACTOR_CLI_ERROR", Kind.PERMANENT),
    ],
)
def test_an_actors_own_code_stands_by_its_type_and_keeps_its_name(kind, code, expected):
    document = failure(type=kind, code="OUT_OF_COFFEE", message="m", retryable=False)
    fault = response.read(document)
    assert (fault.code, fault.kind, fault.retryable) == (code, expected, False)
    assert response.write(fault) == document


def test_a_cancellation_is_neither_retried_nor_restarted():
    error = response.write(Fault.of("SYS_CANCELLED"))["error"]
    assert (error["type"], error["retryable"]) == ("permanent", False)


def test_S4_15_a_failed_commands_streams_and_exit_code_stand_in_data():
    payload = {"stdout": "a", "stderr": "b", "exitCode": 1}
    fault = Fault.of("TOOL_EXECUTION_FAILED", "Exit code 1", partial=Partial(payload=payload))
    document = response.write(fault)
    assert document["data"] == payload
    assert response.read(document) == fault


def test_ok_and_err_become_responses_and_back():
    assert response.from_outcome(Ok([1, 2])) == {"success": True, "data": [1, 2]}
    assert response.from_outcome(Ok(None), metadata={"costUsd": 0}) == {
        "success": True,
        "data": None,
        "metadata": {"costUsd": 0},
    }
    assert response.to_outcome({"success": True, "data": [1, 2], "metadata": {}}) == Ok([1, 2])
    assert response.to_outcome({"success": True}) == Ok(None)
    fault = Fault.of("ACTOR_NOT_FOUND", "m")
    assert response.from_outcome(Err(fault), metadata={"a": 1}) == response.write(fault, metadata={"a": 1})
    assert response.to_outcome(response.from_outcome(Err(fault))) == Err(fault)


def test_a_successful_result_is_neither_masked_nor_cut():
    data = {"token": "abcdefgh", "text": "x" * 100_000, "rows": list(range(5_000))}
    assert response.from_outcome(Ok(data))["data"] == data


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"success": True, "data": 1}, "$.success: expected false, got true"),
        ({"success": False}, "$.error: expected a value, got nothing"),
        ({"success": False, "error": "Node not found: task_123"}, "$.error: expected object, got str"),
        ([], "$: expected an object, got list"),
        (
            failure(type="odd", code="X", message="m", retryable=False),
            "$.error.type: expected one of the known values, got 'odd'",
        ),
    ],
)
def test_what_is_no_failed_response_is_refused(document, message):
    with pytest.raises(InvalidError) as caught:
        response.read(document)
    assert caught.value.fault.code == "PROTO_INVALID_MESSAGE"
    assert caught.value.fault.message == message


@pytest.mark.parametrize("document", [{"success": True, "metadata": 5}, {"success": True, "data": float("nan")}, {}])
def test_what_is_no_response_at_all_has_no_outcome(document):
    with pytest.raises(InvalidError):
        response.to_outcome(document)


def test_S4_2_the_decision_tree_asks_in_order():
    for expected, temporary, can_continue, restart_helps in itertools.product([True, False], repeat=4):
        answer = decide(expected=expected, temporary=temporary, can_continue=can_continue, restart_helps=restart_helps)
        if expected:
            assert answer is Strategy.RETURN
        elif temporary:
            assert answer is Strategy.RETRY
        elif can_continue:
            assert answer is Strategy.CONTINUE
        else:
            assert answer is (Strategy.RESTART if restart_helps else Strategy.ESCALATE)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("return", Kind.RECOVERABLE),
        ("retry", Kind.TRANSIENT),
        ("continue", Kind.RECOVERABLE),
        ("restart", Kind.FATAL),
        ("escalate", Kind.PERMANENT),
    ],
)
def test_S4_1_each_answer_belongs_to_a_kind(strategy, kind):
    assert Strategy(strategy).kind is kind


LITERAL = {
    "PROTO_INVALID_MESSAGE": ({"field": "id"}, "Message payload is invalid", None),
    "CIRCUIT_OPEN": ({"circuit": "claude"}, "Service temporarily unavailable", None),
    "TOOL_TIMEOUT": (
        {"operation": "Claude API call", "limit_s": 120.0},
        'Operation "Claude API call" timed out after 120000ms',
        None,
    ),
    "PROVIDER_STREAM_STALLED": (
        {"idle_s": 300, "duration_ms": 300_001, "model": "m"},
        "Stream exceeded timeout of 300000ms",
        {"durationMs": 300_001},
    ),
    "ACTOR_MAX_RESTARTS": (
        {"actor": "claude-1", "restarts": 3, "window_s": 60, "original_error": "boom"},
        "Actor claude-1 failed 3 times in 60000ms",
        {"originalError": "boom"},
    ),
    "ACTOR_CRASHED": (
        {"actor": "claude-1", "reason": "boom", "restart_count": 1},
        "Actor claude-1 crashed: boom",
        {"restartCount": 1},
    ),
    "ACTOR_NOT_FOUND": ({"actor": "claude-1"}, "Actor claude-1 not found", None),
    "PROTO_UNKNOWN_TYPE": (
        {"received": "dance", "supported": ["get"], "phase": "ready"},
        "Task does not support message type: dance",
        {"receivedType": "dance", "supportedTypes": ["get"]},
    ),
}


@pytest.mark.parametrize("code", LITERAL)
def test_FM1_the_specification_s_own_sentence_and_context(code):
    context, message, shown = LITERAL[code]
    fault = Fault.of(code, context=context)
    error = response.write(fault, literal=True)["error"]
    assert (error["message"], error.get("context")) == (message, shown)
    assert response.from_outcome(Err(fault), literal=True)["error"] == error
    # Ours stays in the fault, and in the document without `literal`.
    assert response.write(fault)["error"]["message"] == fault.message
    assert set(response.write(fault)["error"]["context"]) >= set(shown or {})
    assert response.read(response.write(fault, literal=True, with_fault=True)).message == fault.message


def test_FM1_without_the_facts_of_a_sentence_the_message_stays_ours():
    for code in ("TOOL_TIMEOUT", "PROVIDER_STREAM_STALLED", "ACTOR_MAX_RESTARTS", "PROTO_UNKNOWN_TYPE"):
        fault = Fault.of(code)
        assert response.write(fault, literal=True)["error"]["message"] == fault.message


def given_up(target, policy, takes, failure=None):
    """The fault of an operation that really gave up."""

    async def call():
        await asyncio.sleep(takes)
        if failure is not None:
            raise failure

    clock = VirtualClock()
    runtime = Runtime(clock=clock, rng=Midpoint())
    outcome = run(recover(target, policy, runtime=runtime).outcome(call), clock=clock)
    assert isinstance(outcome, Err)
    assert not outcome.fault.retryable
    return outcome.fault


def test_FM2_S4_20_a_bash_timeout_is_transient_and_retryable_after_its_only_attempt():
    fault = given_up("tool:bash", Policy(timeout=0.1), takes=10)
    error = response.write(fault)["error"]
    assert (error["type"], error["code"], error["retryable"]) == ("transient", "TIMEOUT", True)
    assert error["message"] == fault.message
    assert category.write(fault)["isRetryable"] is True


def test_FR28_S4_9_after_retries_the_message_names_the_attempts():
    fault = given_up("claude", Policy(timeout=10, patience=None, attempts=3), takes=99)
    error = response.write(fault)["error"]
    assert error["message"] == f"Failed after 3 attempts: {fault.message}"
    assert error["retryable"] is True
    document = response.write(fault)
    assert response.write(response.read(document)) == document


@pytest.mark.parametrize(
    ("then", "retryable"),
    [
        ("attempts", True),
        ("undeclared", True),
        ("deadline", True),
        ("permanent", False),
        ("unwanted", False),
        ("", False),
    ],
)
def test_FM2_the_reason_to_give_up_says_whose_verdict_it_is(then, retryable):
    made = (Attempt(number=1, code="PROVIDER_OVERLOADED", then=then),)
    fault = Fault.of("PROVIDER_OVERLOADED", retryable=False).with_attempts(made)
    assert response.write(fault)["error"]["retryable"] is retryable
    final = Fault.of("AUTH_FAILED").with_attempts(made)
    assert response.write(final)["error"]["retryable"] is False


def test_FM2_what_cannot_be_retried_stays_so_after_an_operation():
    fault = given_up("claude", Policy(), takes=0, failure=PermissionError("no"))
    error = response.write(fault)["error"]
    assert (error["retryable"], error["message"]) == (False, fault.message)
    assert category.write(fault)["isRetryable"] is False
