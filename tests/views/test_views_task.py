"""Document 003's TaskError and TaskResult."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.faults import Fault, InvalidError, ItemError, Partial
from holdfast.views import Handler, Status, dispatch, task

WRONG_FORMAT = {
    "type": "TASK_FAILURE",
    "reason": "output_format_failure",
    "message": 'Expected output of type "array" but got "object"',
    "details": {"expectedType": "array", "actualType": "object", "originalOutput": "..."},
}
SUBTASK_FAILED = {
    "type": "TASK_FAILURE",
    "reason": "subtask_failure",
    "message": 'Subtask "Process complex data" failed',
    "details": {
        "subtaskRequest": {"type": "atomic", "description": "Process complex data", "inputs": {}},
        "subtaskError": {
            "type": "TASK_FAILURE",
            "reason": "execution_halted",
            "message": "Failed to process data format",
        },
        "nestingDepth": 2,
        "partialOutput": "Partial processing results before failure",
    },
}
INDEX_CORRUPT = {
    "type": "TASK_FAILURE",
    "reason": "context_retrieval_failure",
    "message": "Failed to access memory system index",
    "details": {"error": "Index corruption detected"},
}


def test_S3_9_output_format_failure_keeps_the_original_output():
    fault = Fault.of(
        "TASK_OUTPUT_FORMAT", context={"expected": "array", "actual": "object"}, partial=Partial(payload="...")
    )
    both = {**WRONG_FORMAT["details"], "partialOutput": "..."}
    assert task.write(fault) == {**WRONG_FORMAT, "details": both}
    assert task.read(task.write(fault)) == fault


def test_FM3_a_document_with_either_name_of_the_original_output_stays_as_it_came():
    for details in (
        {"originalOutput": "..."},
        {"partialOutput": "..."},
        {"originalOutput": 1, "partialOutput": True},
        {"originalOutput": None, "partialOutput": "..."},
    ):
        document = {**WRONG_FORMAT, "details": details}
        assert task.write(task.read(document)) == document
    assert task.read(WRONG_FORMAT).partial == Partial(payload="...")


def test_FM1_the_message_of_a_failed_subtask_quotes_its_request_if_the_specification_s_words_are_wanted():
    fault = Fault.of(
        "TASK_SUBTASK_FAILED",
        "The model stopped in the middle",
        context={"subtask_request": {"type": "atomic", "description": "Process complex data"}},
    )
    sentence = 'Subtask "Process complex data" failed'
    assert task.write(fault)["message"] == "The model stopped in the middle"
    assert task.write(fault, literal=True)["message"] == sentence
    assert task.write_result(fault, literal=True)["notes"]["error"]["message"] == sentence
    unnamed = Fault.of("TASK_SUBTASK_FAILED", "m", context={"subtask_request": "?"})
    assert task.write(unnamed, literal=True)["message"] == "m"


def test_S3_15_subtask_failure_names_the_subtask_and_keeps_its_partial_output():
    details = SUBTASK_FAILED["details"]
    fault = Fault.of(
        "TASK_SUBTASK_FAILED",
        'Subtask "Process complex data" failed',
        context={
            "subtask_request": details["subtaskRequest"],
            "subtask_error": details["subtaskError"],
            "nesting_depth": 2,
        },
        partial=Partial(payload="Partial processing results before failure"),
    )
    assert task.write(fault) == SUBTASK_FAILED
    assert task.read(SUBTASK_FAILED) == fault


def test_S3_17_context_failure():
    fault = task.read(INDEX_CORRUPT)
    assert fault.code == "TASK_CONTEXT_RETRIEVAL_FAILED"
    assert fault.context == {"error": "Index corruption detected"}
    assert task.write(fault) == INDEX_CORRUPT


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ("turns", "TASK_TURNS_EXHAUSTED"),
        ("context", "TASK_CONTEXT_EXHAUSTED"),
        ("output", "TASK_OUTPUT_EXHAUSTED"),
    ],
)
def test_S3_2_resource_exhaustion_has_metrics(resource, code):
    fault = Fault.of(
        code, "spent", context={"used": 10, "limit": 10, "model": "haiku"}, partial=Partial(payload="so far")
    )
    document = {
        "type": "RESOURCE_EXHAUSTION",
        "resource": resource,
        "message": "spent",
        "metrics": {"used": 10, "limit": 10},
        "details": {"model": "haiku"},
        "content": "so far",
    }
    assert task.write(fault) == document
    assert task.read(document) == fault


@pytest.mark.parametrize(
    "reason",
    [
        "context_retrieval_failure",
        "context_matching_failure",
        "context_parsing_failure",
        "xml_validation_failure",
        "output_format_failure",
        "execution_timeout",
        "execution_halted",
        "subtask_failure",
        "input_validation_failure",
        "unexpected_error",
        "unbound_symbol",
    ],
)
def test_S3_3_every_reason_the_document_names_is_known(reason):
    fault = task.read({"type": "TASK_FAILURE", "reason": reason, "message": "m"})
    assert fault.entry.task == f"TASK_FAILURE/{reason}"
    assert "said" not in fault.context


def test_S3_13_a_reason_in_upper_case_means_the_same_and_stays_as_it_came():
    document = {"type": "TASK_FAILURE", "reason": "SUBTASK_FAILURE", "message": "m"}
    fault = task.read(document)
    assert fault.code == "TASK_SUBTASK_FAILED"
    assert dispatch(fault) is Handler.SUBTASK
    assert task.write(fault) == document


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"type": "INVALID_OUTPUT", "message": "m", "violations": ["a", "b"]}, "TASK_OUTPUT_INVALID"),
        ({"type": "VALIDATION_ERROR", "message": "m", "path": "$.a", "invalidModel": True}, "TASK_MODEL_INVALID"),
        ({"type": "XML_PARSE_ERROR", "message": "m", "location": "3:14"}, "TASK_XML_PARSE_ERROR"),
    ],
)
def test_N3_2_S3_4_the_types_of_others_are_read_and_what_we_write_has_a_reason_and_details(document, code):
    fault = task.read(document)
    assert fault.code == code
    assert task.write(fault) == document
    ours = task.write(Fault.of(code, "m", context={"violations": ["a"], "path": "$.a", "location": "3:14"}))
    assert (ours["type"], set(ours)) == ("TASK_FAILURE", {"type", "message", "reason", "details"})
    assert ours["reason"] in get_args(task.Reason)
    assert ours["details"] == {"violations": ["a"], "path": "$.a", "location": "3:14"}


@pytest.mark.parametrize(
    ("code", "payload", "place"),
    [
        ("TASK_UNEXPECTED", [{"stepIndex": 0, "content": "a", "notes": {}}], "partialResults"),
        ("TASK_EVALUATION_FAILED", {"x": 1}, "s_expression_environment"),
        ("TASK_UNBOUND_SYMBOL", {"x": 1}, "s_expression_environment"),
        ("TASK_SUBTASK_FAILED", "half", "partialOutput"),
    ],
)
def test_C26_a_partial_result_stands_where_its_reader_looks_and_only_there(code, payload, place):
    document = task.write(Fault.of(code, partial=Partial(payload=payload)))
    assert document["details"] == {place: payload}
    assert "content" not in document
    assert task.read(document).partial == Partial(payload=payload)


def test_S3_6_an_atomic_task_leaves_its_output_as_content():
    document = task.write(Fault.of("TASK_TIMEOUT", "late", partial=Partial(payload="Once upon")))
    assert document == {
        "type": "TASK_FAILURE",
        "reason": "execution_timeout",
        "message": "late",
        "content": "Once upon",
    }


def test_S3_8_truncation_is_signalled_and_item_errors_are_listed():
    partial = Partial(payload=["b"], truncated=True, errors=(ItemError(item=2, code="TASK_TIMEOUT", message="m"),))
    document = task.write(Fault.of("TASK_UNEXPECTED", partial=partial))
    assert document["details"] == {
        "partialResults": ["b"],
        "truncated": True,
        "errors": [{"item": 2, "code": "TASK_TIMEOUT", "message": "m"}],
    }
    assert task.read(document).partial == partial


def test_item_errors_alone_are_no_content():
    partial = Partial(errors=(ItemError(item=2, code="TASK_TIMEOUT", message="m"),))
    assert "content" not in task.write(Fault.of("TASK_TIMEOUT", partial=partial))


def test_S3_13_a_failed_loop_tells_its_error_and_its_iterations():
    history = [{"iteration": 1, "output": "a", "evaluation": "no"}, {"iteration": 2, "output": None}]
    document = {
        "content": "",
        "status": "FAILED",
        "notes": {
            "error": {
                "type": "TASK_FAILURE",
                "reason": "SUBTASK_FAILURE",
                "message": "Evaluator failed in iteration 2",
                "details": {"subtaskError": {"content": "", "status": "FAILED", "notes": {}}},
            },
            "iteration_history": history,
        },
    }
    fault = task.read_result(document)
    assert fault.code == "TASK_SUBTASK_FAILED"
    assert fault.context["subtask_error"] == {"content": "", "status": "FAILED", "notes": {}}
    assert task.write_result(fault) == document


def test_S3_13_write_result_adds_the_notes_it_is_given():
    fault = Fault.of("TASK_SUBTASK_FAILED", "Director failed", partial=Partial(payload="half"))
    assert task.write_result(fault, notes={"iteration_history": [1], "successScore": 0.2}) == {
        "content": "",
        "status": "FAILED",
        "notes": {
            "error": {
                "type": "TASK_FAILURE",
                "reason": "subtask_failure",
                "message": "Director failed",
                "details": {"partialOutput": "half"},
            },
            "iteration_history": [1],
            "successScore": 0.2,
        },
    }


def test_S3_6_failed_marks_the_content_of_a_result_as_partial():
    fault = Fault.of("TASK_TIMEOUT", "late", partial=Partial(payload="Once upon"))
    document = task.write_result(fault)
    assert document["content"] == "Once upon"
    assert document["notes"] == {"error": {"type": "TASK_FAILURE", "reason": "execution_timeout", "message": "late"}}
    assert task.read_result(document) == fault


def test_a_result_that_failed_without_a_word_is_unexpected():
    fault = task.read_result({"content": "half", "status": "FAILED"})
    assert (fault.code, fault.partial) == ("TASK_UNEXPECTED", Partial(payload="half"))
    assert task.write_result(fault) == {"content": "half", "status": "FAILED"}


def test_notes_given_to_a_result_that_came_without_any_are_kept():
    fault = task.read_result({"content": "half", "status": "FAILED"})
    assert task.write_result(fault, notes={"a": 1})["notes"] == {"a": 1}


@pytest.mark.parametrize("status", [Status.COMPLETE, Status.CONTINUATION])
def test_N3_1_a_result_that_did_not_fail_tells_no_fault(status):
    assert task.read_result({"content": "x", "status": str(status), "notes": {"subtask_request": {}}}) is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (7, "$: expected an object, got int"),
        ({"type": "TASK_FAILURE", "message": "m"}, "$.reason: expected a reason, got nothing"),
        ({"type": "RESOURCE_EXHAUSTION", "message": "m"}, "$.resource: expected turns or context or output, got ''"),
        (
            {"type": "RESOURCE_EXHAUSTION", "resource": "disk", "message": "m"},
            "$.resource: expected turns or context or output, got 'disk'",
        ),
        (
            {"type": "task_failure", "message": "m"},
            "$.type: expected RESOURCE_EXHAUSTION or TASK_FAILURE or INVALID_OUTPUT or VALIDATION_ERROR or XML_PARSE_ERROR, got 'task_failure'",
        ),
        ({"type": "INVALID_OUTPUT", "message": "m", "details": 5}, "$.details: expected object, got int"),
    ],
)
def test_what_is_no_task_error_is_refused(document, message):
    with pytest.raises(InvalidError) as caught:
        task.read(document)
    assert caught.value.fault.code == "TASK_INPUT_INVALID"
    assert caught.value.fault.message == message


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"content": "", "status": "DONE"}, "$.status: expected COMPLETE or CONTINUATION or FAILED, got 'DONE'"),
        ({"status": "COMPLETE"}, "$.content: expected a value, got nothing"),
        ({"content": "", "status": "FAILED", "notes": []}, "$.notes: expected object, got array"),
        (
            {"content": "", "status": "FAILED", "notes": {"error": "boom"}},
            "$.notes.error: expected an object, got str",
        ),
        (
            {"content": "", "status": "FAILED", "notes": {"error": {"type": "TASK_FAILURE", "message": "m"}}},
            "$.notes.error.reason: expected a reason, got nothing",
        ),
    ],
)
def test_what_is_no_task_result_is_refused_with_the_whole_path(document, message):
    with pytest.raises(InvalidError) as caught:
        task.read_result(document)
    assert caught.value.fault.code == "TASK_INPUT_INVALID"
    assert caught.value.fault.message == message


@pytest.mark.parametrize(
    ("document", "handler"),
    [
        ({"type": "RESOURCE_EXHAUSTION", "resource": "output"}, Handler.RESOURCE),
        ({"type": "TASK_FAILURE", "reason": "context_parsing_failure"}, Handler.CONTEXT),
        ({"type": "TASK_FAILURE", "reason": "context_of_the_future"}, Handler.CONTEXT),
        ({"type": "TASK_FAILURE", "reason": "subtask_failure"}, Handler.SUBTASK),
        ({"type": "TASK_FAILURE", "reason": "output_format_failure"}, Handler.FORMAT),
        ({"type": "TASK_FAILURE", "reason": "xml_validation_failure"}, Handler.GENERAL),
        ({"type": "TASK_FAILURE", "reason": "execution_halted"}, Handler.GENERAL),
        ({"type": "INVALID_OUTPUT"}, Handler.FORMAT),
        ({"type": "VALIDATION_ERROR"}, Handler.GENERAL),
        ({"type": "XML_PARSE_ERROR"}, Handler.GENERAL),
    ],
)
def test_S3_10_dispatch(document, handler):
    assert dispatch(task.read({**document, "message": "m"})) is handler


def test_S3_10_a_failure_from_outside_the_task_system_is_general():
    assert dispatch(Fault.of("PROVIDER_RATE_LIMITED")) is Handler.GENERAL


def test_S3_4_details_hold_what_there_was_of_context_and_results_and_the_step_that_failed():
    steps = [{"stepIndex": 0, "content": "a", "notes": {}}]
    fault = Fault.of(
        "TASK_CONTEXT_RETRIEVAL_FAILED",
        context={
            "partial_context": "the first file",
            "context_metrics": {"files": 3, "read": 1},
            "violations": ["too long"],
            "failed_step": 1,
        },
        partial=Partial(payload=steps),
    )
    written = task.write(fault)
    assert written["details"] == {
        "partial_context": "the first file",
        "context_metrics": {"files": 3, "read": 1},
        "violations": ["too long"],
        "failedStep": 1,
        "partialResults": steps,
    }
    assert task.write(task.read(written)) == written
