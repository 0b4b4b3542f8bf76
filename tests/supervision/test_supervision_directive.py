"""What an actor does after a failed message: a function of the failure and the map alone."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Fault, HoldfastError, InvalidError, fault_of
from holdfast.faults import CODES
from holdfast.supervision.directive import BY_KIND, check_on, directive_for


@pytest.mark.parametrize(
    ("error", "directive"),
    [
        (KeyError("plan"), "restart"),
        (ConnectionResetError(), "resume"),
        (TimeoutError(), "resume"),
        (PermissionError(), "resume"),
        (FileNotFoundError(2, "no such file"), "resume"),
        (OSError("boom"), "resume"),
        (OSError(28, "No space left on device"), "resume"),
        (SystemExit(1), "restart"),
        (asyncio.CancelledError(), "restart"),
    ],
)
def test_the_kind_of_a_failure_decides_where_no_map_does(error, directive):
    assert directive_for(fault_of(error), error) == directive


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 418, 422, 429, 451, 500, 503, 529])
def test_what_an_http_service_answers_fails_the_message_alone(status):
    error = type("HTTPStatusError", (Exception,), {"status_code": status})("no")
    assert directive_for(fault_of(error), error) == "resume"


@pytest.mark.parametrize("code", sorted(CODES))
def test_only_a_wrong_configuration_a_failed_start_and_a_spent_budget_escalate(code):
    escalates = code.startswith("CONFIG_") or code in ("ACTOR_START_FAILED", "ACTOR_MAX_RESTARTS")
    error = HoldfastError(Fault.of(code))
    assert (directive_for(error.fault, error) == "escalate") is escalates
    assert (directive_for(error.fault) == "escalate") is escalates


@pytest.mark.parametrize(
    "code",
    ["TOOL_FORBIDDEN", "TOOL_INPUT_INVALID", "TOOL_OUTCOME_UNKNOWN", "TOOL_CANCELLED", "AUTH_FAILED", "PROVIDER_BILLING",
     "PROVIDER_CONTEXT_OVERFLOW", "CIRCUIT_OPEN", "ACTOR_CRASHED", "ACTOR_STOPPED", "SESS_CLOSED", "SYS_BUDGET_EXHAUSTED",
     "SYS_DEADLINE_EXCEEDED", "SYS_FALLBACKS_EXHAUSTED", "TASK_STAGE_FAILED"],
)  # fmt: skip
def test_a_failure_of_one_request_fails_the_message_alone(code):
    error = HoldfastError(Fault.of(code))
    assert directive_for(error.fault, error) == "resume"


@pytest.mark.parametrize(
    ("error", "directive"),
    [
        (KeyError("plan"), "restart"),
        (RuntimeError("permission denied"), "restart"),
        (ConnectionResetError(), "resume"),
        (PermissionError(13, "no"), "escalate"),
        (HoldfastError(Fault.of("AUTH_FAILED")), "escalate"),
        (HoldfastError(Fault.of("PROTO_INVALID_MESSAGE")), "resume"),
        (HoldfastError(Fault.of("SYS_INTERNAL_ERROR")), "restart"),
        (HoldfastError(Fault.of("SYS_BUDGET_EXHAUSTED")), "resume"),
        (asyncio.CancelledError(), "restart"),
    ],
)
def test_the_preset_by_kind_decides_by_the_kind_alone(error, directive):
    assert directive_for(fault_of(error), error, BY_KIND) == directive


def test_the_words_of_an_ordinary_exception_choose_no_kind_of_an_own_map():
    error = RuntimeError("permission denied")
    assert directive_for(fault_of(error), error, {"permanent": "escalate"}) == "restart"


def test_a_failure_that_nobody_recognises_restarts_although_it_counts_as_transient():
    error = RuntimeError("something odd")
    fault = fault_of(error)
    assert (fault.code, fault.kind) == ("SYS_UNKNOWN", "transient")
    assert directive_for(fault, error) == "restart"


class InvalidTicketError(Exception):
    """A class of the user's own, whose name has a word that rules know."""


class UpstreamTimeoutError(Exception):
    """A class of a library that nobody knows, whose name says that the failure passes."""


@pytest.mark.parametrize(
    "kind", [Exception, RuntimeError, ValueError, TypeError, KeyError, LookupError, InvalidTicketError]
)
@pytest.mark.parametrize(
    "words",
    ["boom", "cannot parse this ticket", "not found", "permission denied", "rate limit exceeded", "connection reset by peer"],
)  # fmt: skip
def test_the_words_of_an_ordinary_exception_choose_no_directive(kind, words):
    error = kind(words)
    assert directive_for(fault_of(error), error) == "restart"


def test_a_class_whose_name_says_that_the_failure_passes_resumes():
    error = UpstreamTimeoutError("the ticket is invalid")
    assert directive_for(fault_of(error), error) == "resume"


def test_an_ordinary_exception_follows_its_cause():
    error = RuntimeError("no ticket")
    error.__cause__ = ConnectionResetError()
    assert directive_for(fault_of(error), error) == "resume"


def test_the_words_of_a_librarys_error_and_of_a_status_count():
    known = type("APIError", (Exception,), {"__module__": "openai"})("overloaded_error: Overloaded")
    answered = type("GatewayError", (Exception,), {"status_code": 503})("Service Unavailable")
    assert [directive_for(fault_of(error), error) for error in (known, answered)] == ["resume", "resume"]


def test_a_group_with_one_ordinary_exception_restarts():
    error = ExceptionGroup("two", [ConnectionResetError(), RuntimeError("rate limit exceeded")])
    assert directive_for(fault_of(error), error) == "restart"
    assert directive_for(fault_of(error.exceptions[0]), ExceptionGroup("one", error.exceptions[:1])) == "resume"


def test_a_rule_of_the_users_own_is_followed():
    fault = Fault.of("PROVIDER_OVERLOADED", rule="ours.the_ticket_desk_is_full")
    assert directive_for(fault, InvalidTicketError("full")) == "resume"


def test_validation_resumes():
    assert directive_for(Fault.of("PROTO_INVALID_MESSAGE")) == "resume"


def test_the_more_exact_key_wins():
    error = ConnectionResetError()
    fault = fault_of(error)
    on = {"CONN_RESET": "stop", ConnectionError: "restart", OSError: "escalate", "transient": "resume"}
    assert directive_for(fault, error, on) == "stop"
    del on["CONN_RESET"]
    assert directive_for(fault, error, on) == "restart"
    del on[ConnectionError]
    assert directive_for(fault, error, on) == "escalate"
    del on[OSError]
    assert directive_for(fault, error, on) == "resume"


def test_an_actors_own_map_wins_over_the_default_even_by_kind():
    assert directive_for(Fault.of("SYS_UNKNOWN"), RuntimeError(), {"transient": "resume"}) == "resume"
    assert directive_for(Fault.of("PROTO_INVALID_MESSAGE"), None, {"validation": "stop"}) == "stop"
    assert directive_for(Fault.of("PROTO_INVALID_MESSAGE"), None, {"recoverable": "stop"}) == "stop"


@pytest.mark.parametrize(
    ("on", "text"),
    [
        ({"AUTH_FAILD": "stop"}, "AUTH_FAILED"),
        ({"fatl": "stop"}, "fatal"),
        ({"fatal": "kill"}, "escalate, restart, resume, stop"),
        ({int: "stop"}, "exception classes"),
        ({3: "stop"}, "exception classes"),
        (["fatal"], "map"),
    ],
)
def test_a_key_that_can_never_match_is_rejected_with_a_suggestion(on, text):
    with pytest.raises(InvalidError, match=text):
        check_on("child.on", on)
