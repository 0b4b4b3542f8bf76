"""A turn of the fault provider with a text and several tool calls, in every protocol, whole and streamed, read by the real SDKs."""

from __future__ import annotations

import asyncio
import json

import botocore.config
import botocore.session
import httpx2
import pytest
from provider_calls import CLAUDE, GPT, MESSAGES, anthropic_client, openai_client

from holdfast.testing import serve_in_thread
from holdfast.testing.provider import FaultProvider, Script, ToolCall, Turn, read_script

SAYS = "I look at both."
ASKED = [("read", {"path": "a"}), ("search", {"query": "a long enough text"}), ("read", {"path": "b"})]
THREE = Turn(text=SAYS, calls=tuple(ToolCall(*call) for call in ASKED))
CLAUDE_ON_AWS = "anthropic.claude-3-5-sonnet-20240620-v1:0"
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def shared():
    with serve_in_thread() as provider:
        yield provider


@pytest.fixture
def provider(shared):
    shared.set_script(Script(replies=(THREE, "Done.")))
    return shared


def by_messages(provider, stream, messages=MESSAGES):
    with anthropic_client(provider) as client:
        request = {"model": CLAUDE, "max_tokens": 99, "messages": messages}
        if not stream:
            return client.messages.create(**request)
        with client.messages.stream(**request) as answer:
            return answer.get_final_message()


def by_chat(provider, stream):
    with openai_client(provider) as client:
        if not stream:
            return client.chat.completions.create(model=GPT, messages=MESSAGES).choices[0].message
        with client.chat.completions.stream(model=GPT, messages=MESSAGES) as answer:
            return answer.get_final_completion().choices[0].message


def by_responses(provider, stream, given="What is a holdfast?"):
    with openai_client(provider) as client:
        if not stream:
            return client.responses.create(model=GPT, input=given)
        with client.responses.stream(model=GPT, input=given) as answer:
            return answer.get_final_response()


@BOTH
def test_messages_carry_a_text_and_three_calls_with_ids_of_their_own(provider, stream):
    answer = by_messages(provider, stream)
    text, *calls = answer.content
    assert (text.text, answer.stop_reason) == (SAYS, "tool_use")
    assert [(call.name, call.input) for call in calls] == ASKED
    assert len({call.id for call in calls}) == 3


@BOTH
def test_chat_completions_carry_a_text_and_three_calls_with_ids_of_their_own(provider, stream):
    message = by_chat(provider, stream)
    assert message.content == SAYS
    assert [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls] == ASKED
    assert len({call.id for call in message.tool_calls}) == 3


@BOTH
def test_responses_carry_a_text_and_three_calls_with_ids_of_their_own(provider, stream):
    answer = by_responses(provider, stream)
    message, *calls = answer.output
    assert message.content[0].text == answer.output_text == SAYS
    assert [(call.name, json.loads(call.arguments)) for call in calls] == ASKED
    assert len({call.call_id for call in calls} | {call.id for call in calls}) == 6


@BOTH
def test_gemini_carries_a_text_and_three_calls(provider, stream):
    path = f"/v1beta/models/gemini-2.5-pro:{'streamGenerateContent' if stream else 'generateContent'}"
    with httpx2.Client(base_url=provider.url, headers={"x-goog-api-key": "k"}) as http:
        answer = http.post(path, json={"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}).json()
    chunks = answer if stream else [answer]
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(part.get("text", "") for part in parts) == SAYS
    called = [part["functionCall"] for part in parts if "functionCall" in part]
    assert [(call["name"], call["args"]) for call in called] == ASKED


def test_bedrock_converse_carries_a_text_and_three_calls(provider):
    session = botocore.session.Session()
    session.set_credentials("AKIDEXAMPLE", "secret")
    client = session.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=provider.url)
    request = {"modelId": CLAUDE_ON_AWS, "messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    text, *whole = client.converse(**request)["output"]["message"]["content"]
    events = list(client.converse_stream(**request)["stream"])
    client.close()
    assert text["text"] == SAYS
    assert [(part["toolUse"]["name"], part["toolUse"]["input"]) for part in whole] == ASKED
    assert len({part["toolUse"]["toolUseId"] for part in whole}) == 3
    starts = [event["contentBlockStart"] for event in events if "contentBlockStart" in event]
    deltas = [event["contentBlockDelta"] for event in events if "contentBlockDelta" in event]
    for start, (name, arguments) in zip(starts, ASKED, strict=True):
        at = start["contentBlockIndex"]
        written = [each["delta"]["toolUse"]["input"] for each in deltas if each["contentBlockIndex"] == at]
        assert (start["start"]["toolUse"]["name"], json.loads("".join(written))) == (name, arguments)
    ends = [event["contentBlockStop"]["contentBlockIndex"] for event in events if "contentBlockStop" in event]
    assert ends == [0, 1, 2, 3]


def test_a_turn_with_three_calls_counts_as_one_turn_of_messages(provider):
    called = by_messages(provider, stream=False)
    content = [block.model_dump(exclude_none=True, exclude={"citations", "caller"}) for block in called.content]
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "x"}
        for block in called.content
        if block.type == "tool_use"
    ]
    history = [*MESSAGES, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
    assert by_messages(provider, stream=False, messages=history).content[0].text == "Done."


@pytest.mark.parametrize("interleaved", [False, True], ids=["results-last", "each-result-after-its-call"])
def test_a_turn_with_three_calls_counts_as_one_turn_of_responses(provider, interleaved):
    message, *calls = [item.model_dump(exclude_none=True) for item in by_responses(provider, stream=False).output]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "x"} for call in calls]
    pairs = [item for pair in zip(calls, results, strict=True) for item in pair]
    items = [message, *(pairs if interleaved else [*calls, *results])]
    given = [{"role": "user", "content": "What is a holdfast?"}, *items]
    assert by_responses(provider, stream=False, given=given).output_text == "Done."


@pytest.mark.parametrize(("pieces", "block"), [(3, 0), (5, 1), (8, 2), (12, 3)])
def test_a_stream_may_be_cut_inside_any_of_the_calls(provider, pieces, block):
    """The text has four pieces, the calls have two, five and two."""
    cut = b"".join(frames(provider, f"truncate;after={pieces}"))
    events = [json.loads(line.removeprefix(b"data: ")) for line in cut.splitlines() if line.startswith(b"data: ")]
    deltas = [event for event in events if event["type"] == "content_block_delta"]
    assert (len(deltas), deltas[-1]["index"]) == (pieces, block)
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == list(range(block))


def frames(provider, steps):
    provider.set_script(Script(replies=(THREE,), rules=read_script(steps).rules))
    with httpx2.Client(base_url=provider.url, headers={"x-api-key": "k"}) as http:
        request = {"model": CLAUDE, "max_tokens": 9, "messages": MESSAGES, "stream": True}
        return list(http.post("/v1/messages", json=request).iter_bytes())


@BOTH
def test_arguments_may_be_broken_json_where_the_protocol_writes_them_as_text(provider, stream):
    provider.set_script("""replies = [{ calls = [{ tool = "a", arguments = '{"x": ' }, { tool = "b" }] }]""")
    first, second = by_chat(provider, stream).tool_calls
    assert (first.function.arguments, second.function.arguments) == ('{"x": ', "{}")
    # Messages without a stream write arguments as JSON, so a broken text can only be a string there.
    if not stream:
        assert [block.input for block in by_messages(provider, stream).content] == ['{"x": ', {}]


def test_a_turn_may_say_that_it_has_a_first_tool_and_more():
    assert [call.tool for call in Turn(tool="a", calls=(ToolCall("b"),)).all_calls] == ["a", "b"]


def test_a_system_message_between_the_others_is_accepted_even_if_it_is_empty():
    """Claude Code 2.1.325 sends them so, in every request."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": []},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}]},
    ]
    body = {"model": "claude-haiku-4-5", "max_tokens": 10, "messages": messages}

    async def send(changed: list) -> int:
        async with httpx2.AsyncClient(transport=FaultProvider().transport(), base_url="http://provider") as client:
            headers = {"x-api-key": "test", "anthropic-version": "2023-06-01"}
            return (await client.post("/v1/messages", json={**body, "messages": changed}, headers=headers)).status_code

    assert asyncio.run(send(messages)) == 200
    # An empty message of a user is still rejected, and so is a call without its result.
    assert (
        asyncio.run(send([*messages, {"role": "assistant", "content": "ok"}, {"role": "user", "content": []}])) == 400
    )
    assert asyncio.run(send([*messages[:3], {"role": "user", "content": "go on"}])) == 400
