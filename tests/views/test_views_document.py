"""Documents that are none, and what may not leave the process."""

from __future__ import annotations

import json
from enum import StrEnum

import pytest

from holdfast import views
from holdfast.faults import CATALOG, Fault, InvalidError, Partial
from holdfast.views import category, classed, response, task, wire

CLASSIFIED = {"category": "timeout", "isRetryable": True, "suggestedDelay": 0, "maxRetries": 3, "message": "slow"}


def refused(read, document):
    with pytest.raises(InvalidError) as caught:
        read(document)
    fault = caught.value.fault
    return fault.code, fault.message


def nested(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "$: expected an object, got null"),
        ([], "$: expected an object, got list"),
        ({**CLASSIFIED, "message": 5}, "$.message: expected str, got int"),
        ({**CLASSIFIED, "isRetryable": 1}, "$.isRetryable: expected bool, got int"),
        ({"category": "timeout"}, "$.isRetryable: expected a value, got nothing"),
        ({**CLASSIFIED, "suggestedDelay": float("nan")}, "$.suggestedDelay: expected a finite number, got nan"),
        ({**CLASSIFIED, "more": [0, float("inf")]}, "$.more[1]: expected a finite number, got inf"),
        ({**CLASSIFIED, 5: 5}, "$: expected names that are text, got int"),
        ({**CLASSIFIED, "more": {None: 5}}, "$.more: expected names that are text, got null"),
        ({**CLASSIFIED, "more": {"x": b"raw"}}, "$.more.x: expected a JSON value, got bytes"),
        ({**CLASSIFIED, "more": (1, 2)}, "$.more: expected a JSON value, got tuple"),
        ({**CLASSIFIED, "message": "\ud800"}, "$.message: expected valid Unicode, got half a surrogate pair"),
    ],
)
def test_what_is_no_document_is_refused_with_path_expected_and_received(document, message):
    assert refused(category.read, document) == ("PROTO_INVALID_MESSAGE", message)


def test_a_document_nested_too_deep_is_refused_before_it_can_exhaust_the_stack():
    code, message = refused(category.read, {**CLASSIFIED, "more": nested(100_000)})
    assert code == "PROTO_INVALID_MESSAGE"
    assert message.endswith(": expected less nesting, got too deep a value")


@pytest.mark.parametrize("name", ["more", "originalError"])
def test_the_deepest_document_that_is_accepted_travels_whole(name):
    document = {**CLASSIFIED, "originalError": None, name: nested(15)}
    fault = category.read(document)
    assert category.write(fault) == document
    assert category.read(category.write(fault, with_fault=True)) == fault
    refused(category.read, {**document, name: nested(16)})


def test_the_deepest_details_travel_whole_inside_a_fault_inside_a_document():
    error = {"type": "TASK_FAILURE", "reason": "new", "message": "m", "details": {"said": nested(12)}}
    document = {"content": "", "status": "FAILED", "notes": {"error": error}}
    fault = task.read_result(document)
    assert task.write_result(fault) == document
    assert wire.read(wire.connection_error(fault, with_fault=True)) == fault


def test_a_refusal_shows_no_secret_of_the_document():
    secret = "sk-ant-" + "a" * 40
    _, message = refused(task.read, {"type": secret, "message": ""})
    assert secret not in message
    _, message = refused(category.read, {**CLASSIFIED, secret: b""})
    assert secret not in message


def test_words_that_are_enums_become_plain_text():
    class Colour(StrEnum):
        RED = "red"

    document = category.write(category.read({**CLASSIFIED, "message": Colour.RED, "more": [True, 1, 1.5, Colour.RED]}))
    assert type(document["message"]) is str
    assert document["more"] == [True, 1, 1.5, "red"]


def test_what_is_read_is_not_shared_with_the_caller():
    document = {"class": "Session", "code": "ManifestDrift", "message": "m", "context": {"fields": ["a"]}}
    fault = classed.read(document)
    document["context"]["fields"].append("b")
    assert fault.context == {"fields": ["a"]}
    classed.write(fault)["context"]["fields"].append("c")
    assert fault.context == {"fields": ["a"]}


SECRET = "sk-ant-api03-" + "a1B2" * 12


@pytest.mark.parametrize(
    "write",
    [
        wire.connection_error,
        wire.error_reply,
        wire.tool_error,
        wire.http_body,
        wire.hook_reply,
        category.write,
        response.write,
    ],
)
def test_S2_11_views_that_leave_the_process_show_no_secret(write):
    fault = Fault.of(
        "TOOL_EXECUTION_FAILED",
        f"login with {SECRET} failed",
        context={"api_key": "hunter2hunter2", "reason": SECRET, "violations": [{"field": SECRET}]},
        partial=Partial(payload={"stdout": SECRET}),
    )
    for with_fault in (False, True):
        text = json.dumps(write(fault, with_fault=with_fault))
        assert SECRET not in text
        assert "hunter2" not in text


def test_a_secret_that_was_read_does_not_go_out_again():
    document = {**CLASSIFIED, "message": f"key {SECRET} refused", "token": SECRET}
    written = category.write(category.read(document))
    assert written["message"] == "key [redacted] refused"
    assert written["token"] == "[redacted]"


def test_facts_that_are_no_json_are_told_as_text():
    fault = Fault.of("TASK_UNEXPECTED", "m", context={"ratio": float("nan"), "pair": (1, 2), "what": object()})
    details = task.write(fault)["details"]
    assert details["ratio"] == "nan"
    assert details["pair"] == [1, 2]
    assert details["what"] == "<builtins.object>"
    json.dumps(details, allow_nan=False)


def test_a_fault_of_a_newer_holdfast_is_a_field_like_any_other():
    document = {**CLASSIFIED, "originalError": None, "holdfast": {"code": "CODE_OF_THE_FUTURE", "message": "m"}}
    fault = category.read(document)
    assert fault.code == "PROVIDER_TIMEOUT"
    assert category.write(fault) == document


def test_the_room_lists_what_it_offers_in_order():
    assert views.__all__ == sorted(views.__all__)
    for module in (category, classed, response, task, wire):
        assert module.__all__ == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


def test_every_name_the_catalog_gives_a_code_is_read_back_as_it_was_written():
    """No stand-ins among ourselves: each category, pair and reason of the catalog is known to the reading side."""
    for code, entry in CATALOG.items():
        fault = Fault.of(code, "m")
        assert category.read(category.write(fault)).category is entry.category
        assert classed.read(classed.write(fault)).entry.classed == entry.classed
        assert task.read(task.write(fault)).entry.task == entry.task
        assert response.read(response.write(fault)).code == code
        assert wire.read(wire.connection_error(fault)).code == code
