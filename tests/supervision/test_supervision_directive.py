"""What an actor does after a failed message: a function of the failure and the map alone."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Fault, InvalidError, fault_of
from holdfast.supervision.directive import check_on, directive_for


@pytest.mark.parametrize(
    ("error", "directive"),
    [
        (KeyError("plan"), "restart"),
        (ConnectionResetError(), "resume"),
        (TimeoutError(), "resume"),
        (PermissionError(), "escalate"),
        (SystemExit(1), "restart"),
        (asyncio.CancelledError(), "restart"),
    ],
)
def test_the_kind_of_a_failure_decides_where_no_map_does(error, directive):
    assert directive_for(fault_of(error), error) == directive


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
