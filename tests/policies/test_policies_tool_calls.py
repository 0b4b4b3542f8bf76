"""Whether a stream was cut inside a tool call, with events as objects and as JSON."""

from __future__ import annotations

from types import SimpleNamespace as Object

import pytest

from holdfast.policies.models.tool_calls import OpenCall

START = {"type": "content_block_start", "content_block": {"type": "tool_use"}}
TEXT = {"type": "content_block_start", "content_block": {"type": "text"}}
DELTA = {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}
STOP = {"type": "content_block_stop"}
ADDED = {"type": "response.output_item.added", "item": {"type": "function_call"}}
ARGUMENTS = {"type": "response.function_call_arguments.delta", "delta": "{"}
DONE = {"type": "response.function_call_arguments.done", "arguments": "{}"}
CALLING = {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}, "finish_reason": None}]}
SAYING = {"choices": [{"delta": {"content": "hi"}, "finish_reason": None}]}
FINISHED = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}


def as_objects(document):
    if isinstance(document, dict):
        return Object(**{name: as_objects(value) for name, value in document.items()})
    return [as_objects(item) for item in document] if isinstance(document, list) else document


@pytest.mark.parametrize("form", [dict, as_objects], ids=["documents", "objects"])
@pytest.mark.parametrize(
    ("items", "inside"),
    [
        ([], False),
        ([TEXT], False),
        ([START], True),
        ([START, DELTA], True),
        ([START, DELTA, STOP], False),
        ([START, DELTA, STOP, TEXT], False),
        ([ADDED], True),
        ([ADDED, ARGUMENTS], True),
        ([ADDED, ARGUMENTS, DONE], False),
        ([SAYING], False),
        ([SAYING, CALLING], True),
        ([CALLING, FINISHED], False),
    ],
)
def test_inside_a_tool_call(form, items, inside):
    call = OpenCall()
    for item in items:
        call.follow(form(item))
    assert call.inside is inside


@pytest.mark.parametrize("item", ["text", b"bytes", 5, None, {"choices": "none"}, {"choices": [None]}, object()])
def test_an_item_that_is_no_event_changes_nothing(item):
    call = OpenCall()
    call.follow(START)
    call.follow(item)
    assert call.inside
