"""What a request may cost at most, read from the request."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.quote import DEFAULT_OUTPUT, quote_of, quote_of_batch, text_tokens, tokens_of
from holdfast.providers.messages import Request, ToolSpec, User

ASK: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "x" * 4000}]}


def quoted(**changes: Any) -> Any:
    quote = quote_of({**ASK, **changes})
    assert quote is not None
    return quote


def test_four_characters_are_a_token_rounded_up_and_others_count_each() -> None:
    assert [text_tokens(text) for text in ("", "a", "abcd", "abcde", "日本語", "né")] == [0, 1, 1, 2, 3, 2]
    assert 1000 < quoted().input < 1050


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({}, 16_384),
        ({"max_tokens": 10}, 10),
        ({"max_tokens": 10, "max_completion_tokens": 20}, 20),
        ({"max_output_tokens": 30}, 30),
        ({"max_tokens": 10, "n": 3}, 30),
        ({"max_tokens": None}, 16_384),
        ({"model": "gpt-4o-mini-2024-07-18"}, 16_384),
        ({"model": "openai/gpt-5-mini"}, 128_000),
        ({"model": "unheard-of"}, DEFAULT_OUTPUT),
    ],
)
def test_the_answer_is_as_long_as_the_request_or_the_model_allows(changes: dict[str, Any], output: int) -> None:
    assert quoted(**changes).output == output


def test_tools_and_instructions_count() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"description": "y" * 400}}}]
    assert quoted(tools=tools).input > quoted().input + 600
    assert quoted(system="z" * 400).input >= quoted().input + 100


def test_pictures_and_files_count_much_whatever_their_data() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    file = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "A" * 40_000}}
    link = {"type": "input_file", "file_id": "file-1"}
    assert tokens_of([picture]) == 5_000
    assert tokens_of([file]) == 10_000
    assert tokens_of([link]) == 50_000


def test_a_prompt_that_is_stored_in_the_cache_may_cost_more() -> None:
    assert len(quoted().usages()) == 1
    plain, written = quoted(cache_control={"type": "ephemeral"}).usages()
    assert (plain.input, plain.written) == (written.written, written.input)


def test_our_own_requests_have_a_quote_too() -> None:
    tool = ToolSpec(name="f", description="d" * 40, parameters={"type": "object"})
    quote = quote_of(Request(messages=(User(text="x" * 400),), tools=(tool,), max_output=7), model="m", max_output=7)
    assert quote is not None
    assert (quote.output, quote.input > 600) == (7, True)


class Odd:
    @property
    def __dict__(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize(
    "request_", [None, {}, {"model": 3}, {"model": ""}, "text", {"model": "m", "messages": [Odd()]}]
)
def test_what_names_no_model_or_cannot_be_read_has_no_quote(request_: Any) -> None:
    assert quote_of(request_) is None


def test_a_conversation_that_holds_itself_is_read_once() -> None:
    class Message:
        def __init__(self) -> None:
            self.content = "x" * 40
            self.again = self

    assert 10 <= tokens_of([Message()]) < 20


def test_web_searches_and_the_cache_of_an_hour_are_in_the_price() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert quote_of({"model": "m", "max_tokens": 5, "tools": [{**search, "max_uses": 3}]}).usages()[0].searches == 3
    assert quote_of({"model": "m", "max_tokens": 5, "tools": [search]}).usages()[0].searches == 10
    assert quote_of({"model": "m", "max_tokens": 5, "tools": [{"type": "web_search"}]}).usages()[0].searches == 0
    block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    quote = quote_of({"model": "m", "max_tokens": 5, "system": [block]})
    assert [bool(usage.written_hour) for usage in quote.usages()] == [False, False, True]
    assert quote.seen(3, searches=1).written_hour == quote.input


def test_a_batch_has_the_price_of_all_its_requests() -> None:
    params = {"model": "claude-haiku-4-5", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]}
    requests = [{"custom_id": str(number), "params": params} for number in range(3)]
    batch, one = quote_of_batch({"requests": requests}), quote_of(params)
    assert (batch.tokens, len(batch.parts)) == (3 * one.tokens, 3)
    cost = LIST_PRICES.cost("claude-haiku-4-5", one.usages()[0])
    assert batch.price(LIST_PRICES.cost) == pytest.approx(3 * cost / 2)
    assert quote_of_batch({"requests": [{"params": {"messages": []}}]}).price(LIST_PRICES.cost) is None
    assert quote_of_batch({"input_file_id": "f"}).price(LIST_PRICES.cost) is None
