"""The recovering clients with whatever versions of the two SDKs are installed here: calls, streams, pools of keys."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module

import anthropic
import openai
import pytest

import holdfast.anthropic
import holdfast.openai
from holdfast import Policy, StreamCutError, fault_of
from holdfast.testing import no_waiting

EVENTS = [
    {
        "type": "message_start",
        "message": {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "c",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 1},
    },
    {"type": "message_stop"},
]
CHUNKS = [
    {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
    {"delta": {"content": "hi"}, "finish_reason": None},
    {"delta": {}, "finish_reason": "stop"},
]
MESSAGE = {
    **EVENTS[0]["message"],
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
}
COMPLETION = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "g",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}


def events(sdk, *, whole=True):
    if sdk is anthropic:
        told = EVENTS if whole else EVENTS[:3]
        return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in told)
    shell = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "g"}
    told = CHUNKS if whole else CHUNKS[:2]
    lines = [f"data: {json.dumps({**shell, 'choices': [{'index': 0, **choice}]})}\n\n" for choice in told]
    return "".join(lines) + ("data: [DONE]\n\n" if whole else "")


class Wire:
    """Answers as its script says: a status, or what a stream or a call returns."""

    def __init__(self, sdk, *script):
        # Newer versions of the SDKs have another HTTP library.
        self.http = import_module("httpx2" if hasattr(sdk._base_client, "httpx2") else "httpx")
        self.sdk, self.script, self.keys = sdk, list(script), []

    def __call__(self, request):
        self.keys.append(request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer "))
        step = self.script.pop(0)
        if isinstance(step, int):
            kind = {401: "authentication_error", 429: "rate_limit_error"}.get(step, "overloaded_error")
            body = {"type": "error", "error": {"type": kind, "message": "no", "code": kind}}
            return self.http.Response(step, json=body)
        if step == "call":
            return self.http.Response(200, json=MESSAGE if self.sdk is anthropic else COMPLETION)
        headers = {"content-type": "text/event-stream"}
        return self.http.Response(200, text=events(self.sdk, whole=step == "stream"), headers=headers)

    async def later(self, request):
        return self(request)

    def client(self, *, is_async=False, key="a"):
        transport = self.http.MockTransport(self.later if is_async else self)
        http = (self.http.AsyncClient if is_async else self.http.Client)(transport=transport)
        name = "Anthropic" if self.sdk is anthropic else "OpenAI"
        made = getattr(self.sdk, f"Async{name}" if is_async else name)
        return made(api_key=key, max_retries=2, http_client=http)


def recovering(sdk, *clients):
    module = holdfast.anthropic if sdk is anthropic else holdfast.openai
    return module.recovering(*clients, policy=Policy(attempts=3), name=f"{sdk.__name__}-{id(clients)}")


def create(sdk, client, **more):
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}
    return (
        client.messages.create(max_tokens=9, **asked) if sdk is anthropic else client.chat.completions.create(**asked)
    )


def text(sdk, answer):
    return answer.content[0].text if sdk is anthropic else answer.choices[0].message.content


@pytest.fixture(autouse=True)
def quick():
    with no_waiting():
        yield


each_sdk = pytest.mark.parametrize("sdk", [anthropic, openai], ids=["anthropic", "openai"])


@each_sdk
def test_FI8_calls_recover_and_one_attempt_is_one_request(sdk):
    wire = Wire(sdk, 529, 500, "call")
    assert text(sdk, create(sdk, recovering(sdk, wire.client()))) == "hi"
    assert wire.script == []
    later = Wire(sdk, 529, 500, "call")
    assert text(sdk, asyncio.run(create(sdk, recovering(sdk, later.client(is_async=True))))) == "hi"
    assert later.script == []


@each_sdk
def test_FI8_streams_recover_before_their_first_content_and_are_cut_after_it(sdk):
    wire = Wire(sdk, 529, "stream")
    kind = [
        getattr(item, "type", None) or item.object for item in create(sdk, recovering(sdk, wire.client()), stream=True)
    ]
    assert len(kind) == len(EVENTS if sdk is anthropic else CHUNKS)
    later = Wire(sdk, "truncated")

    async def read():
        async for _ in await create(sdk, recovering(sdk, later.client(is_async=True)), stream=True):
            pass

    with pytest.raises(StreamCutError):
        asyncio.run(read())


@each_sdk
def test_FI8_a_rejected_key_is_replaced_by_the_next_one(sdk):
    wire = Wire(sdk, 401, "call")
    pool = recovering(sdk, wire.client(key="a"), wire.client(key="b"))
    assert text(sdk, create(sdk, pool)) == "hi"
    assert len(set(wire.keys)) == 2


@each_sdk
def test_FI8_its_own_exception_surfaces(sdk):
    wire = Wire(sdk, 401, 401)
    with pytest.raises(sdk.AuthenticationError) as caught:
        create(sdk, recovering(sdk, wire.client()))
    assert fault_of(caught.value).code == "AUTH_FAILED"


@each_sdk
def test_FI8_copies_of_a_client_and_the_helper_for_streams_recover(sdk):
    wire = Wire(sdk, 529, "call", 529, "stream")
    client = recovering(sdk, wire.client()).with_options(timeout=5)
    assert text(sdk, create(sdk, client)) == "hi"
    if sdk is anthropic:
        asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
        with client.messages.stream(**asked) as stream:
            assert stream.get_final_text() == "hi"
