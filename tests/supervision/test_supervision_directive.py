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
