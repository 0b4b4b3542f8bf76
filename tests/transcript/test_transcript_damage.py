"""Random valid histories stay as they are; random damage is repaired, whatever it is, and stays repaired.

The judge is the fault provider: its rules share no code with the repair.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, convert_to_openai_messages
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)
from transcript_kit import call_item, chat_call, chat_result, output, reasoning, result, use, user

from holdfast.testing.provider.dialect import as_json
from holdfast.testing.provider.history import anthropic_mistake, chat_mistake, responses_mistake
from holdfast.testing.provider.http import Request
from holdfast.transcript import check, repair

# A turn: the number of calls, whether the answer has text, thinking, a text of the user beside the results.
turns = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.booleans(), st.permutations(range(3))),
    min_size=1,
    max_size=5,
)
damage = st.lists(
    st.tuples(st.sampled_from(["delete", "duplicate", "swap", "truncate", "behead"]), st.integers(0, 60), st.integers(0, 60)),
    min_size=1,
    max_size=4,
)  # fmt: skip
FORMS = ["anthropic", "chat", "responses", "langchain", "pydantic-ai"]
each_form = pytest.mark.parametrize("form", FORMS)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(few, max_examples=2_000)


def written(form: str, shape: list[Any]) -> list[Any]:
    """Return a valid history of this shape."""
    history: list[Any] = []
    for number, (count, has_text, has_thinking, has_more, order) in enumerate(shape):
        ids = [f"call_{number}_{at}" for at in range(count)]
        answered = [ids[at] for at in order if at < count]
        history += WRITERS[form](number, ids, answered, has_text or not count, has_thinking, has_more)
    return history


def _anthropic(number, ids, answered, has_text, has_thinking, has_more):
    thought = [{"type": "thinking", "thinking": "hm", "signature": "sig"}] if has_thinking else []
    blocks = [*thought, *use(*ids, text="Yes" if has_text else "")["content"]]
    answer = [user(f"Question {number}"), {"role": "assistant", "content": blocks}]
    return [*answer, user(*map(result, answered), *(["and?"] if has_more else []))] if ids else answer


def _chat(number, ids, answered, has_text, has_thinking, has_more):
    if not ids:
        return [user(f"Question {number}"), {"role": "assistant", "content": "Yes"}]
    answer = chat_call(*ids, text="Yes" if has_text else None)
    return [{"role": "user", "content": f"Question {number}"}, answer, *map(chat_result, answered)]


def _responses(number, ids, answered, has_text, has_thinking, has_more):
    text = [{"role": "assistant", "content": "Yes"}] if has_text else []
    thought = [reasoning(f"rs_{number}")] if has_thinking and (ids or text) else []
    calls = [call_item(id_, f"fc_{id_}") for id_ in ids]
    more = [{"role": "user", "content": "and?"}] if has_more else []
    return [{"role": "user", "content": f"Question {number}"}, *thought, *text, *calls, *more, *map(output, answered)]


def _langchain(number, ids, answered, has_text, has_thinking, has_more):
    calls = [{"name": "pay", "args": {"usd": 5}, "id": id_, "type": "tool_call"} for id_ in ids]
    answer = AIMessage("Yes" if has_text else "", tool_calls=calls)
    return [HumanMessage(f"Question {number}"), answer, *(ToolMessage("paid", tool_call_id=id_) for id_ in answered)]


def _pydantic_ai(number, ids, answered, has_text, has_thinking, has_more):
    thought = [ThinkingPart("hm")] if has_thinking else []
    text = [TextPart("Yes")] if has_text else []
    answer = ModelResponse([*thought, *text, *(ToolCallPart("pay", {"usd": 5}, tool_call_id=id_) for id_ in ids)])
    more = [UserPromptPart("and?")] if has_more else []
    returns = [ToolReturnPart("pay", "paid", tool_call_id=id_) for id_ in answered]
    asked = ModelRequest([UserPromptPart(f"Question {number}")])
    return [asked, answer, ModelRequest([*returns, *more])] if ids else [asked, answer]


WRITERS = {
    "anthropic": _anthropic,
    "chat": _chat,
    "responses": _responses,
    "langchain": _langchain,
    "pydantic-ai": _pydantic_ai,
}


def mistake(form: str, history: list[Any]) -> str | None:
    """Return what the provider says to the history, or None if it accepts it."""
    if form == "langchain":
        return mistake("chat", convert_to_openai_messages(history))
    if form == "pydantic-ai":
        return _mistake_of_parts(history)
    name = "input" if form == "responses" else "messages"
    request = Request("POST", "/", {}, as_json({"model": "m", name: history}))
    return {"anthropic": anthropic_mistake, "chat": chat_mistake, "responses": responses_mistake}[form](request)


def _mistake_of_parts(history: list[Any]) -> str | None:
    """pydantic-ai's own repair finds nothing to add and nothing to drop."""
    theirs = repair_messages(copy.deepcopy(history))
    before = [part for message in history for part in message.parts]
    after = [part for message in theirs for part in message.parts]
    calls = [part.tool_call_id for part in before if part.part_kind == "tool-call"]
    returns = [part.tool_call_id for part in before if part.part_kind == "tool-return"]
    if len(before) != len(after):
        return "pydantic-ai repairs it"
    return None if sorted(calls) == sorted(returns) == sorted(set(calls)) else "a call without exactly one result"


def damaged(history: list[Any], deeds: list[Any]) -> list[Any]:
    """Return the history after accidents: on whole messages, and on blocks or parts inside them."""
    history = copy.deepcopy(history)
    for deed, one, other in deeds:
        places = [history, *(content for message in history if isinstance(content := _content(message), list))]
        within = places[other % len(places)] or history
        if not within:
            continue
        at, to = one % len(within), other % len(within)
        if deed == "delete":
            del within[at]
        elif deed == "duplicate":
            within.insert(to, copy.deepcopy(within[at]))
        elif deed == "swap":
            within[at], within[to] = within[to], within[at]
        elif deed == "truncate":
            del within[at:]
        else:
            del within[:at]
    return history


def _content(message: Any) -> Any:
    if isinstance(message, dict):
        return message.get("content") if message.get("role") in {"user", "assistant"} else None
    return getattr(message, "parts", getattr(message, "tool_calls", None))


@each_form
@given(shape=turns)
@few
def test_G2_random_valid_histories_stay_as_they_are(form, shape):
    history = written(form, shape)
    assert mistake(form, history) is None
    repaired = repair(history, form)
    assert repaired.changes == ()
    assert all(before is after for before, after in zip(history, repaired.history, strict=True))


@each_form
@given(shape=turns, deeds=damage)
@few
def test_G2_random_damage_is_repaired_and_stays_repaired(form, shape, deeds):
    history = damaged(written(form, shape), deeds)
    was = copy.deepcopy(history)
    repaired = repair(history, form)
    assert mistake(form, repaired.history) is None
    assert history == was
    assert check(repaired.history, form) == ()
    if not repaired.changes:
        assert mistake(form, history) is None
        assert repaired.history == history


@each_form
@given(shape=turns, deeds=damage)
@few
def test_G2_nothing_is_lost_without_being_listed(form, shape, deeds):
    """Every block, part, call and item is in the repaired history, or in a change that took it out or gave it another id."""
    history = damaged(written(form, shape), deeds)
    repaired = repair(history, form)
    removed = Counter(map(repr, leaves([change.removed for change in repaired.changes if change.removed is not None])))
    missing = Counter(map(repr, leaves(history))) - Counter(map(repr, leaves(repaired.history))) - removed
    renamed = [change.id for change in repaired.changes if change.what == "id-changed"]
    assert [leaf for leaf in missing if not any(f"'{id_}'" in leaf for id_ in renamed)] == []


def leaves(values: list[Any]) -> Iterator[Any]:
    """Return what messages consist of: their blocks, parts and calls. Everything else is a leaf itself."""
    for value in values:
        inner = _content(value)
        calls = value.get("tool_calls") if isinstance(value, dict) else getattr(value, "tool_calls", None)
        if isinstance(inner, list):
            yield from inner
        elif not calls:
            yield value
        # In pydantic-ai's messages the calls are among the parts.
        if isinstance(calls, list) and calls is not inner and not hasattr(value, "parts"):
            yield from calls


@each_form
@given(shape=turns, cut=st.integers(0, 40))
@few
def test_G1_a_history_that_was_cut_anywhere_is_accepted_with_a_new_prompt(form, shape, cut):
    """The process is killed at any point; the user comes back with another question."""
    history = written(form, shape)[:cut]
    asked = {"langchain": HumanMessage("Go on"), "pydantic-ai": ModelRequest([UserPromptPart("Go on")])}
    history.append(asked.get(form, {"role": "user", "content": "Go on"}))
    repaired = repair(history, form)
    assert mistake(form, repaired.history) is None
    assert {change.what for change in repaired.changes} <= {"result-added", "message-dropped"}


@pytest.mark.soak
@each_form
@given(shape=turns, deeds=damage)
@many
def test_G2_much_random_damage_is_repaired(form, shape, deeds):
    history = damaged(written(form, shape), deeds)
    repaired = repair(history, form)
    assert mistake(form, repaired.history) is None
    assert check(repaired.history, form) == ()
