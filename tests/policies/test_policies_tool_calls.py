"""Whether a stream was cut inside a tool call, with events as objects and as JSON."""

from __future__ import annotations

from types import SimpleNamespace as Object

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from pydantic_ai.messages import (
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from holdfast.policies.models.tool_calls import CallTracker

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
CALLING_ONE = {"choices": [{"delta": {"function_call": {"arguments": "{"}}, "finish_reason": None}]}
CONVERSE_START = {"contentBlockStart": {"start": {"toolUse": {"name": "pay"}}, "contentBlockIndex": 1}}
CONVERSE_INPUT = {"contentBlockDelta": {"delta": {"toolUse": {"input": "{"}}, "contentBlockIndex": 1}}
CONVERSE_TEXT = {"contentBlockDelta": {"delta": {"text": "hi"}, "contentBlockIndex": 0}}
CONVERSE_STOP = {"contentBlockStop": {"contentBlockIndex": 1}}


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
        ([CALLING_ONE], True),
        ([CALLING_ONE, FINISHED], False),
        ([CONVERSE_TEXT], False),
        ([CONVERSE_START], True),
        ([CONVERSE_START, CONVERSE_INPUT], True),
        ([CONVERSE_INPUT], True),
        ([CONVERSE_START, CONVERSE_INPUT, CONVERSE_STOP], False),
        ([CONVERSE_START, {"messageStop": {"stopReason": "tool_use"}}], False),
    ],
)
def test_FR15_inside_a_tool_call(form, items, inside):
    call = CallTracker()
    for item in items:
        call.follow(form(item))
    assert call.inside is inside


@pytest.mark.parametrize("item", ["text", b"bytes", 5, None, {"choices": "none"}, {"choices": [None]}, object()])
def test_an_item_that_is_no_event_changes_nothing(item):
    call = CallTracker()
    call.follow(START)
    call.follow(item)
    assert call.inside


def _langchain_chunks():
    calls = [{"name": "pay", "args": "{", "id": "1", "index": 0}]
    return (
        AIMessageChunk("hi"),
        AIMessageChunk("", tool_call_chunks=calls),
        AIMessageChunk("", response_metadata={"finish_reason": "tool_calls"}),
    )


def _in_a_generation(chunk):
    return ChatGenerationChunk(message=chunk)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda chunk: chunk,
        _in_a_generation,
        lambda chunk: (chunk, {"langgraph_step": 1}),
        lambda chunk: (("graph",), "messages", (chunk, {})),
        lambda chunk: {"event": "on_chat_model_stream", "data": {"chunk": chunk}},
    ],
    ids=["chunk", "generation", "langgraph", "subgraphs", "events"],
)
def test_FR15_inside_a_tool_call_of_langchain(wrap):
    text, part, last = _langchain_chunks()
    call = CallTracker()
    seen = []
    for chunk in (text, part, text, last):
        call.follow(wrap(chunk))
        seen.append(call.inside)
    # LangChain joins all fragments of a message, so text between them ends no call.
    assert seen == [False, True, True, False]


def test_FR15_inside_a_tool_call_of_pydantic_ai():
    part = ToolCallPart("pay", "{")
    call = CallTracker()
    seen = []
    for item in (
        PartStartEvent(index=0, part=TextPart("hi")),
        PartDeltaEvent(index=0, delta=TextPartDelta("!")),
        PartStartEvent(index=1, part=part),
        PartDeltaEvent(index=1, delta=ToolCallPartDelta(args_delta='"a"')),
        PartEndEvent(index=1, part=part),
        PartDeltaEvent(index=2, delta=ToolCallPartDelta(args_delta="{")),
        PartStartEvent(index=3, part=TextPart("so")),
        ToolCallPartDelta(args_delta="{"),
    ):
        call.follow(item)
        seen.append(call.inside)
    assert seen == [False, False, True, True, False, True, False, True]


def test_FR15_inside_a_tool_call_of_the_agents_sdk():
    call = CallTracker()
    call.follow(Object(type="raw_response_event", data=as_objects(ARGUMENTS)))
    assert call.inside
    call.follow(Object(type="run_item_stream_event", item=Object(type="message_output_item")))
    assert call.inside
    call.follow(Object(type="raw_response_event", data=as_objects(DONE)))
    assert not call.inside
