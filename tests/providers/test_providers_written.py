"""What is remembered of a conversation never changes what is sent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers import Assistant, ToolCall, ToolResult, User, anthropic, openai, xai
from holdfast.providers.written import Written

texts = st.sampled_from(["", "one", "two"])
calls = st.lists(
    st.builds(ToolCall, id=st.sampled_from("ab"), name=st.just("t"), arguments=st.just({"n": 1})), max_size=2
)
messages = st.one_of(
    st.builds(User, text=texts),
    st.builds(ToolResult, id=st.sampled_from("ab"), text=texts),
    st.builds(Assistant, text=texts, calls=calls.map(tuple)),
)
# Each request keeps so many messages of the one before, by identity, and adds some.
steps = st.lists(st.tuples(st.integers(0, 5), st.lists(messages, min_size=1, max_size=4)), max_size=8)


@pytest.mark.parametrize("add", [anthropic._add, openai._add, xai._add], ids=["anthropic", "openai", "xai"])
@given(steps=steps)
def test_the_turns_are_those_of_a_conversation_that_is_written_anew(add: Any, steps: Any):
    written = Written(add)
    conversation: list[Any] = []
    sent: list[tuple[Any, Any]] = []
    for kept, added in steps:
        conversation = [*conversation[:kept], *added]
        turns = written.of(tuple(conversation))
        assert turns == Written(add).of(tuple(conversation))
        sent.append((turns, copy.deepcopy(turns)))
    # What was returned before has not changed.
    assert all(turns == before for turns, before in sent)


def test_XA12_each_message_of_a_long_conversation_is_written_once():
    """So a turn costs the same, however long the conversation is."""
    added: list[Any] = []

    def add(turns: list[dict[str, Any]], message: Any) -> None:
        added.append(message)
        turns.append({"text": message.text})

    written, conversation = Written(add), []
    for number in range(200):
        conversation.append(User(text=f"{number}"))
        assert len(written.of(tuple(conversation))) == number + 1
    assert len(added) == 200
