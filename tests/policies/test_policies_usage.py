"""The usage that a response reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from holdfast.policies.models.usage import Usage, model_of, usage_of

ANTHROPIC = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "content": [],
    "model": "claude-haiku-4-5-20251001",
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 10,
        "output_tokens": 20,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 4000,
    },
}
CHAT = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o-2024-08-06",
    "choices": [],
    "usage": {
        "prompt_tokens": 310,
        "completion_tokens": 20,
        "total_tokens": 330,
        "prompt_tokens_details": {"cached_tokens": 300},
    },
}
RESPONSES = {
    "id": "r1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5-2025-08-07",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 310,
        "input_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 330,
    },
}
EMBEDDING = {
    "object": "list",
    "data": [],
    "model": "text-embedding-3-small",
    "usage": {"prompt_tokens": 7, "total_tokens": 7},
}
GEMINI = {
    "modelVersion": "gemini-2.5-flash",
    "usageMetadata": {
        "promptTokenCount": 300,
        "toolUsePromptTokenCount": 10,
        "cachedContentTokenCount": 300,
        "candidatesTokenCount": 15,
        "thoughtsTokenCount": 5,
        "totalTokenCount": 330,
    },
}
GEMINI_OBJECT = SimpleNamespace(
    model_version="gemini-2.5-flash",
    usage_metadata=SimpleNamespace(
        prompt_token_count=10, candidates_token_count=20, cached_content_token_count=None, thoughts_token_count=None
    ),
)


@pytest.mark.parametrize(
    ("result", "usage", "model"),
    [
        (ANTHROPIC, Usage(input=10, output=20, cached=300, written=4000), "claude-haiku-4-5-20251001"),
        (CHAT, Usage(input=10, output=20, cached=300), "gpt-4o-2024-08-06"),
        (RESPONSES, Usage(input=10, output=20, cached=300), "gpt-5-2025-08-07"),
        (EMBEDDING, Usage(input=7), "text-embedding-3-small"),
        (GEMINI, Usage(input=10, output=20, cached=300), "gemini-2.5-flash"),
        (GEMINI_OBJECT, Usage(input=10, output=20), "gemini-2.5-flash"),
    ],
    ids=["anthropic", "chat", "responses", "embedding", "gemini json", "gemini object"],
)
def test_the_counts_of_every_provider_become_one_shape(result, usage, model):
    assert usage_of(result) == usage
    assert model_of(result) == model


@pytest.mark.parametrize(
    ("kind", "answer"),
    [(Message, ANTHROPIC), (ChatCompletion, CHAT), (Response, RESPONSES), (CreateEmbeddingResponse, EMBEDDING)],
)
def test_objects_of_the_sdks_read_like_their_json(kind, answer):
    result = kind.model_validate(answer)
    assert usage_of(result) == usage_of(answer)
    assert usage_of(result) is not None
    assert model_of(result) == answer["model"]


def test_the_total_is_the_sum_of_all_kinds():
    assert Usage(input=1, output=20, cached=300, written=4000).total == 4321


class Hostile:
    """Every attribute raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Endless:
    """Every attribute exists, as with a mock."""

    def __getattr__(self, name: str) -> Any:
        return self


@pytest.mark.parametrize(
    "result",
    [
        None,
        "a text",
        42,
        [],
        {},
        {"usage": None},
        {"usage": {}},
        {"usage": {"input_tokens": None, "output_tokens": 5}},
        {"usage": {"input_tokens": "10", "output_tokens": 5}},
        {"usage": {"input_tokens": True, "output_tokens": 5}},
        {"usage": {"input_tokens": -1, "output_tokens": 5}},
        {"usage": {"input_tokens": 1, "output_tokens": 0.5}},
        {"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 11}}},
        {"usageMetadata": {"candidatesTokenCount": 4}},
    ],
    ids=repr,
)
def test_R90_what_cannot_be_read_is_unknown_and_not_zero(result):
    assert usage_of(result) is None


@pytest.mark.parametrize("result", [None, {}, {"model": ""}, {"model": 4}], ids=repr)
def test_a_model_that_is_not_named_is_unknown(result):
    assert model_of(result) is None


def test_objects_that_raise_or_have_every_attribute_report_no_usage():
    for result in (Hostile(), Endless()):
        assert usage_of(result) is None
        assert model_of(result) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["usage", "usageMetadata", "input_tokens", "prompt_tokens", "promptTokenCount", "model",
                             "input_tokens_details", "cached_tokens", "output_tokens"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)  # fmt: skip


@given(JSON)
def test_reading_never_raises_and_never_counts_below_zero(result):
    usage = usage_of(result)
    assert usage is None or min(usage.input, usage.output, usage.cached, usage.written) >= 0
    assert model_of(result) is None or isinstance(model_of(result), str)


def test_cache_writes_for_an_hour_and_web_searches_are_counted_apart() -> None:
    usage = {
        "input_tokens": 8,
        "output_tokens": 10,
        "cache_creation_input_tokens": 500,
        "cache_creation": {"ephemeral_1h_input_tokens": 400, "ephemeral_5m_input_tokens": 100},
        "server_tool_use": {"web_search_requests": 3, "web_fetch_requests": 1},
    }
    found = usage_of({"usage": usage})
    assert found == Usage(input=8, output=10, written=100, written_hour=400, searches=3)
    assert found.total == 518
    assert found + found == Usage(input=16, output=20, written=200, written_hour=800, searches=6)
    assert usage_of(Message.model_validate({**ANTHROPIC, "usage": usage})) == found


@pytest.mark.parametrize("extra", [{"cache_creation": None}, {"server_tool_use": None}, {"server_tool_use": {"web_search_requests": None}}, {"cache_creation": {"ephemeral_1h_input_tokens": "x"}}])  # fmt: skip
def test_details_that_cannot_be_read_do_not_hide_the_usage(extra: dict[str, Any]) -> None:
    usage = {"input_tokens": 8, "output_tokens": 10, "cache_creation_input_tokens": 500, **extra}
    assert usage_of({"usage": usage}) == Usage(input=8, output=10, written=500)
