"""The real anthropic and openai SDKs against the fault provider, over a socket: good answers, and every fault there is."""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx2
import openai
import pytest
from provider_calls import CALLS, CLAUDE, GPT, MESSAGES, anthropic_client, openai_client, weather_for

from holdfast import fault_of
from holdfast.testing import FaultProvider, serve_in_thread
from holdfast.testing.provider.faults import ERRORS, FAULTS

ECHO = "You said: What is a holdfast?"
BOTH = ("whole", "stream")


@pytest.fixture(scope="module")
def shared():
    with serve_in_thread() as provider:
        yield provider


@pytest.fixture
def provider(shared):
    shared.set_script("")
    return shared


each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


# --- good answers ---


def test_messages_whole_and_streamed_are_the_same(provider):
    whole, streamed = CALLS["messages"](provider), CALLS["messages_stream"](provider)
    assert whole.content[0].text == streamed.content[0].text == ECHO
    assert whole.stop_reason == streamed.stop_reason == "end_turn"
    assert whole.usage.output_tokens == streamed.usage.output_tokens == 6
    assert whole.usage.input_tokens > 0


def test_chat_completions_whole_and_streamed_are_the_same(provider):
    whole = CALLS["chat"](provider)
    chunks = CALLS["chat_stream"](provider)
    assert whole.choices[0].message.content == ECHO
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ECHO
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 6


def test_chat_completions_stream_usage_on_request(provider):
    with openai_client(provider) as client:
        request = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last = client.chat.completions.create(model=GPT, messages=MESSAGES, **request)
    assert last.choices == []
    assert last.usage.completion_tokens == 6


def test_responses_whole_and_streamed_are_the_same(provider):
    whole, streamed = CALLS["responses"](provider), CALLS["responses_stream"](provider)
    assert whole.output_text == streamed.output_text == ECHO
    assert whole.status == streamed.status == "completed"
    assert whole.usage.output_tokens == streamed.usage.output_tokens == 6


def test_both_sdks_list_the_models(provider):
    with anthropic_client(provider) as one, openai_client(provider) as other:
        assert {CLAUDE, GPT} <= {model.id for model in one.models.list()} == {model.id for model in other.models.list()}


@pytest.mark.parametrize("stream", [False, True], ids=BOTH)
def test_a_conversation_with_a_tool_in_messages(provider, stream):
    provider.set_script('replies = "tools"')
    offered = weather_for("anthropic")
    with anthropic_client(provider) as client:

        def ask(messages):
            request = {"model": CLAUDE, "max_tokens": 99, "messages": messages, "tools": offered}
            if not stream:
                return client.messages.create(**request)
            with client.messages.stream(**request) as answer:
                return answer.get_final_message()

        called = ask(MESSAGES)
        (use,) = called.content
        assert (called.stop_reason, use.name, use.input) == ("tool_use", "weather", {"city": "example", "days": 1})
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
        final = ask(
            [
                *MESSAGES,
                {"role": "assistant", "content": [use.model_dump(include={"type", "id", "name", "input"})]},
                {"role": "user", "content": [result]},
            ]
        )
    assert final.content[0].text == "The tool says: rain"


@pytest.mark.parametrize("stream", [False, True], ids=BOTH)
def test_a_tool_call_in_chat_completions(provider, stream):
    provider.set_script('replies = "tools"')
    with openai_client(provider) as client:
        answer = client.chat.completions.create(model=GPT, messages=MESSAGES, tools=weather_for("chat"), stream=stream)
        if stream:
            deltas = [call for chunk in answer for call in chunk.choices[0].delta.tool_calls or ()]
            name, arguments = deltas[0].function.name, "".join(delta.function.arguments for delta in deltas)
            assert len(deltas) > 3
        else:
            (call,) = answer.choices[0].message.tool_calls
            name, arguments = call.function.name, call.function.arguments
        assert (name, json.loads(arguments)) == ("weather", {"city": "example", "days": 1})
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
        final = client.chat.completions.create(model=GPT, messages=[*MESSAGES, called, result])
    assert final.choices[0].message.content == "The tool says: rain"


@pytest.mark.parametrize("stream", [False, True], ids=BOTH)
def test_a_tool_call_in_responses(provider, stream):
    provider.set_script('replies = "tools"')
    request = {"model": GPT, "input": "The weather?", "tools": weather_for("responses")}
    with openai_client(provider) as client:
        if stream:
            with client.responses.stream(**request) as answer:
                (call,) = answer.get_final_response().output
        else:
            (call,) = client.responses.create(**request).output
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "example", "days": 1})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        called = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        asked = {"role": "user", "content": "The weather?"}
        final = client.responses.create(model=GPT, input=[asked, called, result])
    assert final.output_text == "The tool says: rain"


def test_scripted_turns_follow_the_conversation_and_not_the_number_of_requests(provider):
    provider.set_script('replies = ["one", { tool = "weather", arguments = { city = "Oslo" } }, "three"]')
    with anthropic_client(provider) as client:

        def ask(turns):
            history = [{"role": "assistant", "content": "…"}, {"role": "user", "content": "go on"}] * turns
            answer = client.messages.create(model=CLAUDE, max_tokens=9, messages=[*MESSAGES, *history])
            return getattr(answer.content[0], "text", None) or answer.content[0].input

        assert [ask(0), ask(0), ask(1), ask(2), ask(7)] == ["one", "one", {"city": "Oslo"}, "three", "three"]


def test_the_async_clients_work_too():
    async def main():
        async with (
            FaultProvider("ok*2, 529") as provider,
            anthropic_client(provider, anthropic.AsyncAnthropic) as one,
            openai_client(provider, openai.AsyncOpenAI) as other,
        ):
            async with one.messages.stream(model=CLAUDE, max_tokens=9, messages=MESSAGES) as stream:
                assert (await stream.get_final_message()).content[0].text == ECHO
            assert (await other.responses.create(model=GPT, input="What is a holdfast?")).output_text == ECHO
            with pytest.raises(anthropic.APIStatusError) as failed:
                await one.messages.create(model=CLAUDE, max_tokens=9, messages=MESSAGES)
            assert fault_of(failed.value).code == "PROVIDER_OVERLOADED"
            assert provider.counters.document() == {
                "received": 3,
                "answered": 2,
                "injected": {"529": 1},
                "limited": {},
                "refused": 0,
                "abandoned": 0,
                "connections": 2,
                "tls": 0,
            }

    asyncio.run(main())


def test_an_answer_announces_the_limits(provider):
    with anthropic_client(provider) as client:
        for left in ("3999", "3998"):
            raw = client.messages.with_raw_response.create(model=CLAUDE, max_tokens=9, messages=MESSAGES)
            assert raw.headers["anthropic-ratelimit-requests-remaining"] == left
    with openai_client(provider) as client:
        raw = client.chat.completions.with_raw_response.create(model=GPT, messages=MESSAGES)
        assert raw.headers["x-ratelimit-limit-requests"] == "4000"
        assert raw.headers["x-request-id"] == "req_000000000000000000000003"


# --- every fault ---

EXPECTED = {
    "auth": "AUTH_FAILED",
    "bad-request": "PROVIDER_BAD_REQUEST",
    "billing": "PROVIDER_BILLING",
    "content-type": None,
    "cut": "PROVIDER_STREAM_CUT",
    "cut-tool": "PROVIDER_STREAM_CUT",
    "disconnect": "PROVIDER_STREAM_CUT",
    "drip": None,
    "expired": "AUTH_TOKEN_EXPIRED",
    "hang": "PROVIDER_TIMEOUT",
    "html": "PROVIDER_UNAVAILABLE",
    "internal": "PROVIDER_INTERNAL_ERROR",
    "malformed-http": "PROVIDER_STREAM_CUT",
    "malformed-json": "PROVIDER_OUTPUT_INVALID",
    "not-found": "PROVIDER_MODEL_NOT_FOUND",
    "overflow": "PROVIDER_CONTEXT_OVERFLOW",
    "overloaded": "PROVIDER_OVERLOADED",
    "oversize": None,
    "quota": "PROVIDER_BILLING",
    "rate-limit": "PROVIDER_RATE_LIMITED",
    "reset": "CONN_RESET",
    "silence": "PROVIDER_TIMEOUT",
    "slow": "PROVIDER_TIMEOUT",
    "timeout": "PROVIDER_GATEWAY_TIMEOUT",
    "too-large": "PROVIDER_REQUEST_TOO_LARGE",
    "unavailable": "PROVIDER_UNAVAILABLE",
}
APART = {"forbidden", "sse-error", "failed", "error-200", "truncate", "empty"}
"""Faults that the SDKs report differently for different protocols: each has its own test."""
OPTIONS = {"drip": ";every=0.001", "oversize": ";bytes=100000", "html": ";status=502"}


def test_every_fault_has_a_test():
    assert set(EXPECTED) | APART == set(FAULTS) | set(ERRORS)


@each_call
@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_has_its_effect_and_one_call_is_one_request(provider, name, call):
    provider.set_script(name + OPTIONS.get(name, ""))
    try:
        call(provider)
    except Exception as error:
        met = fault_of(error).code
    else:
        met = None
    assert met == EXPECTED[name]
    assert provider.counters.received == 1
    assert provider.counters.injected == {name: 1}


@pytest.mark.parametrize(
    ("call", "code"),
    [("messages", "AUTH_FORBIDDEN"), ("chat", "AUTH_REGION_BLOCKED"), ("responses", "AUTH_REGION_BLOCKED")],
)
def test_forbidden_has_each_providers_own_words(provider, call, code):
    provider.set_script("forbidden")
    with pytest.raises((anthropic.PermissionDeniedError, openai.PermissionDeniedError)) as failed:
        CALLS[call](provider)
    assert fault_of(failed.value).code == code


@pytest.mark.parametrize("fault", ["sse-error;after=2", "error-200"])
@pytest.mark.parametrize("call", ["messages_stream", "chat_stream", "responses_stream"])
def test_an_error_in_a_good_stream_is_raised_as_that_error(provider, call, fault):
    provider.set_script(f"{fault};error=overloaded" if ";" not in fault else f"{fault};error=rate-limit")
    with pytest.raises((anthropic.APIError, openai.APIError)) as failed:
        CALLS[call](provider)
    assert fault_of(failed.value).code == ("PROVIDER_RATE_LIMITED" if ";" in fault else "PROVIDER_OVERLOADED")


@pytest.mark.parametrize("fault", ["sse-error", "error-200", "failed"])
@pytest.mark.parametrize("call", ["messages", "chat"])
def test_an_error_inside_a_200_is_not_noticed_by_the_sdks(provider, call, fault):
    """The SDKs return an object without content, which is why this fault is worth injecting."""
    provider.set_script(fault)
    answer = CALLS[call](provider)
    assert not getattr(answer, "content", None)
    assert not getattr(answer, "choices", None)
    assert "overloaded" in answer.to_json()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("messages", "PROVIDER_OUTPUT_INVALID"),
        ("messages_stream", None),
        ("chat_stream", None),
        ("responses_stream", "PROVIDER_STREAM_CUT"),
    ],
)
def test_a_stream_that_ends_too_early_is_noticed_by_one_sdk_only(provider, call, code):
    provider.set_script("truncate;after=2")
    if code is None:
        answer = CALLS[call](provider)
        ends = answer[-1].choices[0].finish_reason if call == "chat_stream" else answer.stop_reason
        assert ends is None
    else:
        with pytest.raises(Exception) as failed:
            CALLS[call](provider)
        assert fault_of(failed.value).code == code


def test_a_body_that_is_empty(provider):
    provider.set_script("empty")
    with pytest.raises(json.JSONDecodeError) as failed:
        CALLS["chat"](provider)
    assert fault_of(failed.value).code == "PROVIDER_MALFORMED_RESPONSE"


@pytest.mark.parametrize("after", [0, 2])
def test_a_cut_stream_gave_as_much_as_was_scripted(provider, after):
    provider.set_script(f"cut;after={after}")
    got = []
    with (
        anthropic_client(provider) as client,
        pytest.raises(httpx2.RemoteProtocolError),
        client.messages.stream(model=CLAUDE, max_tokens=9, messages=MESSAGES) as stream,
    ):
        got.extend(stream.text_stream)
    assert got == ["You", " said:"][:after]


def test_a_cut_tool_call_leaves_arguments_that_are_no_json(provider):
    provider.set_script("cut-tool;after=2")
    got = []
    with openai_client(provider) as client, pytest.raises(openai.APIConnectionError) as failed:
        request = {"model": GPT, "messages": MESSAGES, "tools": weather_for("chat"), "stream": True}
        for chunk in client.chat.completions.create(**request):
            got.extend(call.function.arguments for call in chunk.choices[0].delta.tool_calls or ())
    assert fault_of(failed.value).code == "PROVIDER_STREAM_CUT"
    assert "".join(got) == '{"city":"examp'


def test_an_answer_of_the_wrong_type_is_read_all_the_same(provider):
    provider.set_script("content-type")
    with anthropic_client(provider) as client:
        raw = client.messages.with_raw_response.create(model=CLAUDE, max_tokens=9, messages=MESSAGES)
    assert raw.headers["content-type"] == "text/plain"
    assert raw.parse().content[0].text == ECHO


def test_an_oversize_answer_has_as_many_bytes_as_were_scripted(provider):
    provider.set_script("oversize;bytes=1000000")
    assert len(CALLS["chat"](provider).choices[0].message.content) == 1_000_000


def test_a_tls_handshake_fails():
    with serve_in_thread() as provider:
        client = anthropic.Anthropic(base_url=provider.tls_url, api_key="test", max_retries=0, timeout=5)
        with client, pytest.raises(anthropic.APIConnectionError) as failed:
            client.messages.create(model=CLAUDE, max_tokens=9, messages=MESSAGES)
        assert fault_of(failed.value).code == "CONN_TLS_HANDSHAKE_FAILED"
        assert (provider.counters.tls, provider.counters.received) == (1, 0)


@pytest.mark.parametrize(
    "header",
    [
        "retry-after=7",
        "retry-after=7.0",
        "retry-after-ms=7000",
        "retry-after=date+7",
        "anthropic-ratelimit-requests-remaining=0;anthropic-ratelimit-requests-reset=rfc3339+7",
        "x-ratelimit-remaining-requests=0;x-ratelimit-reset-requests=7s",
        "hint=7s",
    ],
)
def test_retry_after_in_every_form(provider, header):
    provider.set_script(f"429;{header}")
    with pytest.raises((anthropic.RateLimitError, openai.RateLimitError)) as failed:
        CALLS["messages" if "anthropic" in header else "chat"](provider)
    assert fault_of(failed.value).retry_after == pytest.approx(7, abs=1.5)


def test_a_bare_429_has_no_retry_after(provider):
    for call in ("messages", "chat", "chat_of_xai"):
        provider.set_script("429")
        with pytest.raises((anthropic.RateLimitError, openai.RateLimitError)) as failed:
            CALLS[call](provider)
        assert fault_of(failed.value).retry_after is None


def test_a_request_without_a_key_or_a_model_gets_an_error_and_takes_no_step(provider):
    provider.set_script("503")
    with httpx2.Client(base_url=provider.url) as client:
        assert client.post("/v1/messages", json={"model": CLAUDE}).status_code == 401
        assert client.post("/v1/messages", json={}, headers={"x-api-key": "k"}).status_code == 400
        assert client.post("/v1/nothing", json={}, headers={"x-api-key": "k"}).status_code == 404
        assert client.post("/v1/messages", json={"model": CLAUDE}, headers={"x-api-key": "k"}).status_code == 503
    assert provider.counters.refused == 3
    assert provider.counters.injected == {"503": 1}
    assert provider.counters.received == 4
