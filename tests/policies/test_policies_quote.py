"""What a request may cost at most, read from the request."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.policies.models.quote import DEFAULT_OUTPUT, quote_of, text_tokens, tokens_of
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
