"""The ids of tool calls: whatever a model sends, the next provider must accept the conversation."""

from __future__ import annotations

import re

from agents_kit import Scripted, World
from hypothesis import given
from hypothesis import strategies as st

from holdfast import tool
from holdfast.agents.conversation import CallIds, is_valid, with_own_ids
from holdfast.faults import Fault, HoldfastError
from holdfast.providers import Assistant, Reply, ToolCall, User


@tool(effect="read")
async def look(x: int) -> str:
    """Look."""
    return f"saw {x}"


def reply(*ids: str) -> Reply:
    return Reply(calls=tuple(ToolCall(id=id_, name="look", arguments={"x": n}) for n, id_ in enumerate(ids)))


def test_ids_that_another_provider_rejects_are_made_valid_and_different():
    first = Scripted(
        reply("functions.look:0", "functions.look:0"), HoldfastError(Fault.of("PROVIDER_BAD_REQUEST")), "x"
    )
    world = World()
    ended = world.run(world.agent(look, model=first).outcome("go"))
    messages = first.requests[-1].messages
    ids = [call.id for call in messages[1].calls]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", id_) for id_ in ids)
    assert is_valid(messages)
    assert [result.text for result in messages[2:]] == ["saw 0", "saw 1"]
    assert ended.fault.code == "PROVIDER_BAD_REQUEST"


def test_an_id_that_comes_again_in_a_later_reply_is_another_one():
    model = Scripted(reply("call_0"), reply("call_0"), "Done.")
    world = World()
    assert world.run(world.agent(look, model=model).run("go")).text == "Done."
    ids = [call.id for message in model.requests[-1].messages for call in getattr(message, "calls", ())]
    assert ids[0] == "call_0"
    assert len(set(ids)) == 2


_IDS = st.lists(st.text(max_size=5) | st.sampled_from(["a", "a_2", "a.2", "", "call_1"]), max_size=8)


@given(_IDS, _IDS)
def test_ids_are_valid_and_unique_and_the_same_each_time(earlier: list[str], now: list[str]):
    before = with_own_ids(reply(*earlier), frozenset())
    messages = [User(text="go"), before.message]
    after = with_own_ids(reply(*now), CallIds().of(messages))
    assert after == with_own_ids(reply(*now), CallIds().of(messages))
    ids = [call.id for call in (*before.calls, *after.calls)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", id_) for id_ in ids)
    assert [call.arguments for call in after.calls] == [call.arguments for call in reply(*now).calls]


@given(st.lists(st.from_regex(r"\A[a-zA-Z0-9_-]{1,20}\Z"), unique=True, max_size=6))
def test_ids_that_are_valid_and_unique_stay(ids: list[str]):
    given_reply = reply(*ids)
    assert with_own_ids(given_reply, frozenset()) is given_reply


def test_a_provider_s_own_form_of_the_answer_has_the_new_ids_too():
    thinking = {"type": "thinking", "thinking": "…", "signature": "s"}
    calls = ({"type": "tool_use", "id": "a.1", "name": "look"}, {"type": "tool_use", "id": "b", "name": "look"})
    changed = with_own_ids(Reply(calls=reply("a.1", "b").calls, blocks=(thinking, *calls)), frozenset())
    assert changed.blocks[0] is thinking
    assert [block["id"] for block in changed.blocks[1:]] == [call.id for call in changed.calls] == ["a_1", "b"]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=2), max_size=6), st.integers(0, 6))
def test_the_ids_of_a_growing_conversation_are_those_of_all_its_messages(answers, looks):
    messages, ids = [], CallIds()
    for number, called in enumerate(answers):
        messages.append(Assistant(calls=tuple(ToolCall(id=one, name="t", arguments={}) for one in called)))
        if number % (looks + 1) == 0:
            assert ids.of(messages) == {call.id for message in messages for call in message.calls}
    shorter = messages[-1:]
    assert ids.of(shorter) == CallIds().of(shorter)
