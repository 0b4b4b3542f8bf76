"""Histories that providers reject become histories that they accept, and nothing that was valid changes.

The fault provider judges with rules of its own; the real SDKs and frameworks send the requests.
"""

from __future__ import annotations

import asyncio
import copy
import json

import httpx2
import pytest
from anthropic import AsyncAnthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from transcript_kit import (
    ASK,
    GO_ON,
    Sender,
    call_item,
    chat_call,
    chat_result,
    output,
    reasoning,
    result,
    use,
    user,
)

from holdfast.faults import InvalidError
from holdfast.runtime.fault_of import fault_of
from holdfast.testing.provider import FaultProvider, serve_in_thread
from holdfast.transcript import Change, OpenCall, check, repair


@pytest.fixture(scope="module")
def sender():
    return Sender()


def whats(changes):
    return [change.what for change in changes]


def thinking(text="hm"):
    return {"type": "thinking", "thinking": text, "signature": "sig"}


def searched(id_):
    return {"type": "server_tool_use", "id": id_, "name": "web_search", "input": {"query": "x"}}


def found(id_):
    return {"type": "web_search_tool_result", "tool_use_id": id_, "content": []}


def calls_with(arguments):
    return {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "pay", "input": arguments}]}


DAMAGED = {
    # G1: the process was killed between a call and its result.
    "anthropic, orphan, then a new prompt": ("anthropic", [ASK, use("a"), GO_ON], ["result-added"]),
    "anthropic, orphan at the end": ("anthropic", [ASK, use("a")], ["result-added"]),
    "anthropic, one of three": ("anthropic", [ASK, use("a", "b", "c"), user(result("b"))], ["result-added"] * 2),
    "chat, orphan, then a new prompt": ("chat", [ASK, chat_call("a"), GO_ON], ["result-added"]),
    "chat, orphan at the end": ("chat", [ASK, chat_call("a", "b"), chat_result("b")], ["result-added"]),
    "responses, orphan, then a new prompt": ("responses", [ASK, call_item("a"), GO_ON], ["result-added"]),
    "responses, orphan with reasoning": ("responses", [ASK, reasoning("rs_1"), call_item("a")], ["result-added"]),
    # G2: duplicated.
    "anthropic, a result twice": ("anthropic", [ASK, use("a"), user(result("a"), result("a"))], ["result-dropped"]),
    "anthropic, a result again later": (
        "anthropic",
        [ASK, use("a"), user(result("a")), {"role": "assistant", "content": "Paid"}, user(result("a"), "and?")],
        ["result-dropped"],
    ),
    "chat, a result twice": ("chat", [ASK, chat_call("a"), chat_result("a"), chat_result("a")], ["result-dropped"]),
    "responses, a result twice": ("responses", [ASK, call_item("a"), output("a"), output("a")], ["result-dropped"]),
    "responses, an item twice": (
        "responses",
        [ASK, call_item("a", "fc_1"), call_item("a", "fc_1"), output("a")],
        ["message-dropped"],
    ),
    "anthropic, an answer stored twice": (
        "anthropic",
        [ASK, use("a"), use("a"), user(result("a"))],
        ["message-dropped"],
    ),
    "chat, an answer stored twice": ("chat", [ASK, chat_call("a"), chat_call("a"), chat_result("a")], ["message-dropped"]),
    # G2: reordered.
    "anthropic, text before the result": ("anthropic", [ASK, use("a"), user("wait", result("a"))], ["result-moved"]),
    "anthropic, a result one turn late": (
        "anthropic",
        [ASK, use("a"), GO_ON, {"role": "assistant", "content": "Yes?"}, user(result("a"))],
        ["result-moved"],
    ),
    "anthropic, a result before its call": ("anthropic", [user("Pay", result("a")), use("a"), GO_ON], ["result-moved"]),
    "chat, a user between call and result": (
        "chat",
        [ASK, chat_call("a"), GO_ON, chat_result("a")],
        ["result-moved"],
    ),
    "chat, two answers, then their results": (
        "chat",
        [ASK, chat_call("a"), chat_call("b"), chat_result("a"), chat_result("b")],
        ["result-moved"],
    ),
    "responses, a result before its call": ("responses", [ASK, output("a"), call_item("a")], ["result-moved"]),
    # Results whose call was cut away, for instance by a compaction.
    "anthropic, a result without a call": ("anthropic", [user(result("a"), "Hello")], ["result-dropped"]),
    "chat, a result without a call": ("chat", [chat_result("a"), ASK], ["result-dropped"]),
    "chat, a result for another call": (
        "chat",
        [ASK, chat_call("a"), chat_result("z"), chat_result("a")],
        ["result-dropped"],
    ),
    "responses, a result without a call": ("responses", [output("a"), ASK], ["result-dropped"]),
    # Ids.
    "anthropic, an id used again": (
        "anthropic",
        [ASK, use("a"), user(result("a")), use("a"), user(result("a", "again"))],
        ["id-changed"],
    ),
    "anthropic, ids of another provider": ("anthropic", [ASK, use("pay:0"), user(result("pay:0"))], ["id-changed"]),
    "responses, an id used again": (
        "responses",
        [ASK, call_item("pay:0"), output("pay:0"), GO_ON, call_item("pay:0"), output("pay:0")],
        ["id-changed"],
    ),
    "chat, two calls with one id": (
        "chat",
        [ASK, {**chat_call("a"), "tool_calls": [*chat_call("a")["tool_calls"], {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}, chat_result("a"), chat_result("a")],
        ["id-changed"],
    ),
    # What else providers reject.
    "anthropic, a blank text": ("anthropic", [ASK, use("a", text=" "), user(result("a"))], ["block-dropped"]),
    "anthropic, an empty message": ("anthropic", [ASK, {"role": "assistant", "content": []}, GO_ON], ["message-dropped"]),
    "anthropic, an answer cut in thinking": (
        "anthropic",
        [ASK, {"role": "assistant", "content": [thinking()]}, GO_ON],
        ["block-dropped"],
    ),
    "anthropic, the beginning is missing": ("anthropic", [use("a"), user(result("a"))], ["message-added"]),
    "anthropic, an open call of the provider's own tool": (
        "anthropic",
        [ASK, {"role": "assistant", "content": [searched("srvtoolu_1")]}, GO_ON],
        ["block-added"],
    ),
    "anthropic, an open call of the provider's own tool, and one of ours": (
        "anthropic",
        [ASK, {"role": "assistant", "content": [searched("srvtoolu_1"), *use("a", text="")["content"]]}, user(result("a"), "and?")],
        ["block-added"],
    ),
    "XA13 anthropic, a call whose input is text": (
        "anthropic",
        [ASK, calls_with('{"usd": 5}'), user(result("a"))],
        ["block-changed"],
    ),
    "XA13 anthropic, a call whose input was cut": ("anthropic", [ASK, calls_with('{"usd": '), user(result("a"))], ["block-changed"]),
    "XA13 anthropic, a call whose input is null": ("anthropic", [ASK, calls_with(None), user(result("a"))], ["block-changed"]),
    "XA13 anthropic, a call without an input": (
        "anthropic",
        [ASK, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "pay"}]}, user(result("a"))],
        ["block-changed"],
    ),
    "XA13 anthropic, thinking without a signature": (
        "anthropic",
        [ASK, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, *use("a")["content"]]}, user(result("a"))],
        ["block-dropped"],
    ),
    "XA13 anthropic, thinking with an empty signature": (
        "anthropic",
        [ASK, {"role": "assistant", "content": [{**thinking(), "signature": ""}, {"type": "text", "text": "5"}]}, GO_ON],
        ["block-dropped"],
    ),
    "XA13 anthropic, a blank text in a result": (
        "anthropic",
        [ASK, use("a"), user(result("a", [{"type": "text", "text": ""}, {"type": "text", "text": "paid"}]))],
        ["block-changed"],
    ),
    "XA13 anthropic, nothing but a blank text in a result": (
        "anthropic",
        [ASK, use("a"), user(result("a", [{"type": "text", "text": " "}]))],
        ["block-changed"],
    ),
    "XA13 anthropic, a call in a message of the user": (
        "anthropic",
        [ASK, {**use("a"), "role": "user"}, user(result("a"))],
        ["call-moved"],
    ),
    "chat, an empty list of calls": (
        "chat",
        [ASK, {"role": "assistant", "content": "Yes", "tool_calls": []}, GO_ON],
        ["block-dropped"],
    ),
    "responses, reasoning that led to nothing": ("responses", [ASK, reasoning("rs_1"), GO_ON], ["message-dropped"]),
}  # fmt: skip


@pytest.mark.parametrize(("form", "history", "changes"), DAMAGED.values(), ids=DAMAGED.keys())
def test_G1_G2_what_the_provider_rejects_it_accepts_after_the_repair(form, history, changes, sender):
    """The history is rejected as a history, is accepted after the repair, the changes are listed, and repairing again changes nothing."""
    given = copy.deepcopy(history)
    rejection = sender.rejection(form, history)
    assert rejection is not None
    assert fault_of(rejection).code == "PROVIDER_HISTORY_INVALID"

    repaired = repair(history, form)

    sender.send(form, repaired.history)
    assert whats(repaired.changes) == changes
    assert history == given, "what was given was changed"
    assert repair(repaired.history, form) == (repaired.history, ())


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('{"usd": 5}', {"usd": 5}),
        (None, {}),
        ("", {}),
        ('{"usd": ', {"invalid_json": '{"usd": '}),
        ([1], {"invalid_json": [1]}),
    ],
)
def test_XA13_the_input_of_a_call_becomes_an_object_that_holds_what_it_said(given, read):
    history, (change,) = repair([ASK, calls_with(given), user(result("a"))], "anthropic")
    assert history[1]["content"][0]["input"] == read
    assert change.removed["input"] == given


def test_XA13_a_call_in_a_message_of_the_user_keeps_its_real_result():
    call = {"type": "tool_use", "id": "a", "name": "pay", "input": {}}
    history, changes = repair([user("Pay", call), user(result("a"), "and?")])
    assert [message["role"] for message in history] == ["user", "assistant", "user"]
    assert history[1]["content"] == [call]
    assert history[2] == user(result("a"), "and?")
    assert [(change.what, change.id) for change in changes] == [("call-moved", "a")]


VALID = {
    "anthropic": [
        ASK,
        {"role": "assistant", "content": [thinking(), *use("a", "b")["content"]]},
        user(result("b"), result("a"), "go on"),
        {"role": "assistant", "content": [searched("srvtoolu_1"), found("srvtoolu_1"), {"type": "text", "text": "Done"}]},
        ASK,
        GO_ON,
        {"role": "assistant", "content": [thinking()]},
        use("c"),
        user(result("c")),
    ],
    "chat": [
        {"role": "system", "content": "Be brief"},
        ASK,
        chat_call("a", "b"),
        chat_result("b"),
        chat_result("a"),
        {"role": "assistant", "content": "Done"},
        GO_ON,
        GO_ON,
        chat_call("a"),
        chat_result("a"),
    ],
    "responses": [
        {"role": "developer", "content": "Be brief"},
        ASK,
        reasoning("rs_1"),
        call_item("a", "fc_1"),
        call_item("b", "fc_2"),
        output("b"),
        {"role": "user", "content": "meanwhile"},
        output("a"),
        reasoning("rs_2"),
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Done"}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", VALID)
def test_G2_nothing_valid_is_changed(form, sender):
    history = VALID[form]
    assert sender.rejection(form, history) is None
    repaired = repair(history)
    assert repaired.changes == ()
    assert check(history) == ()
    assert repaired.history is not history
    assert [id(message) for message in repaired.history] == [id(message) for message in history]


def test_G1_a_paused_answer_of_the_provider_is_left_as_it_is(sender):
    """A turn that the provider paused is sent back with its open call, and the provider goes on."""
    paused = [ASK, {"role": "assistant", "content": [searched("srvtoolu_1")]}]
    assert sender.rejection("anthropic", paused) is None
    assert check(paused) == ()


def test_settings_between_the_turns_are_left_as_they_are(sender):
    """Claude Code sends empty messages of role `system` that hold only settings."""
    settings = {"role": "system", "content": [], "output_config": {"effort": "medium"}}
    history = [ASK, settings, use("a"), settings, user(result("a")), settings]
    assert sender.rejection("anthropic", history) is None
    assert check(history) == ()
    damaged = [ASK, settings, use("a", "b"), settings, user(result("a"))]
    repaired = repair(damaged)
    assert whats(repaired.changes) == ["result-added"]
    assert len(repaired.history) == len(damaged)
    sender.send("anthropic", repaired.history)


def test_G1_the_result_of_an_orphan_is_data_that_a_model_can_act_on():
    repaired = repair([ASK, use("a", "b"), user(result("b"), "go on")], outcome="unknown")
    orphan = repaired.history[2]["content"][0]
    assert orphan["tool_use_id"] == "a"
    assert orphan["is_error"] is True
    shown = json.loads(orphan["content"])
    assert shown["context"]["fault"] == "TOOL_OUTCOME_UNKNOWN"
    assert shown["context"]["outcome"] == "unknown"
    assert shown["context"]["tool"] == "pay"
    assert repaired.history[2]["content"][1:] == [result("b"), {"type": "text", "text": "go on"}]
    assert repaired.changes == (Change(what="result-added", where=1, id="a", why="the call has no result: unknown"),)


def test_G1_a_function_decides_what_became_of_each_call():
    asked = []

    def outcome(call):
        asked.append(call)
        return "not-run" if call.id == "b" else "interrupted"

    repaired = repair([ASK, use("a", "b")], outcome=outcome)
    assert asked == [OpenCall(id=id_, name="pay", arguments={"usd": 5}, where=1) for id_ in ("a", "b")]
    told = [json.loads(block["content"])["context"] for block in repaired.history[2]["content"]]
    assert [each["outcome"] for each in told] == ["interrupted", "not-run"]
    assert [each["retryable"] for each in told] == [False, True]


def test_what_was_taken_out_is_in_the_change():
    (change,) = check([chat_result("a", "the whole text"), ASK])
    assert change.removed == chat_result("a", "the whole text")
    assert (change.where, change.id) == (0, "a")


def test_blocks_that_were_stored_as_messages_of_their_own_are_one_answer(sender):
    """Anthropic takes consecutive messages of one role as one, but documents that results are in the next message."""
    history = [ASK, use("a"), use("b", text=""), user(result("a")), user(result("b"), "go on")]
    repaired = repair(history)
    sender.send("anthropic", repaired.history)
    assert whats(repaired.changes) == ["messages-merged", "result-moved"]
    assert repaired.history == [
        ASK,
        {"role": "assistant", "content": [*use("a")["content"], *use("b", text="")["content"]]},
        user(result("a"), result("b")),
        user("go on"),
    ]


def test_the_objects_of_the_sdks_are_repaired_as_they_are(sender):
    """Programs append `choices[0].message` and `response.output` to their histories, not dicts."""
    message = ChatCompletionMessage.model_validate(chat_call("a"))
    chat = repair([ASK, message, GO_ON])
    assert chat.history[1] is message
    sender.send("chat", chat.history)

    call = ResponseFunctionToolCall.model_validate(call_item("a", "fc_1"))
    thought = ResponseReasoningItem.model_validate(reasoning("rs_1"))
    responses = repair([ASK, thought, call, GO_ON])
    assert responses.history[1:3] == [thought, call]
    sender.send("responses", [item if isinstance(item, dict) else item.to_dict() for item in responses.history])


def test_a_result_whose_call_is_stored_at_the_provider_is_kept():
    """An item reference stands for an item that only the provider knows."""
    history = [{"type": "item_reference", "id": "fc_1"}, output("a"), GO_ON]
    assert check(history) == ()


def test_G2_langchain_histories_are_repaired_and_accepted():
    """An orphan, a result too late and a stray one, sent by the real ChatAnthropic."""
    call = {"name": "pay", "args": {"usd": 5}, "id": "a", "type": "tool_call"}
    history = [
        SystemMessage("Be brief"),
        HumanMessage("Pay"),
        AIMessage("", tool_calls=[call, {**call, "id": "b"}]),
        HumanMessage("Go on"),
        ToolMessage("paid", tool_call_id="b"),
        ToolMessage("?", tool_call_id="z"),
    ]
    repaired = repair(history)
    assert whats(repaired.changes) == ["result-added", "result-moved", "result-dropped"]
    assert [type(message) for message in repaired.history] == [
        SystemMessage, HumanMessage, AIMessage, ToolMessage, ToolMessage, HumanMessage
    ]  # fmt: skip
    made, moved = repaired.history[3:5]
    assert (made.tool_call_id, made.status, made.name) == ("a", "error", "pay")
    assert moved is history[4]
    assert check(repaired.history) == ()
    with serve_in_thread() as provider:
        model = ChatAnthropic(model="claude-haiku-4-5", base_url=provider.url, api_key="k", max_retries=0)
        with pytest.raises(Exception, match="tool_use"):
            model.invoke(history)
        assert model.invoke(repaired.history).content


def test_langchain_calls_are_renamed_in_the_blocks_too():
    """An answer of Anthropic repeats its calls as blocks of the content."""
    call = {"name": "pay", "args": {}, "id": "a", "type": "tool_call"}
    block = {"type": "tool_use", "id": "a", "name": "pay", "input": {}}
    answer = AIMessage([{"type": "text", "text": "I pay"}, block], tool_calls=[call])
    history = [
        HumanMessage("Pay"),
        answer,
        ToolMessage("1", tool_call_id="a"),
        answer,
        ToolMessage("2", tool_call_id="a"),
    ]
    repaired = repair(history)
    assert whats(repaired.changes) == ["id-changed"]
    again, second = repaired.history[3:]
    assert again.tool_calls[0]["id"] == again.content[1]["id"] == second.tool_call_id == "a-2"
    assert answer.tool_calls[0]["id"] == "a"


def pydantic_agent():
    provider = FaultProvider()
    http = httpx2.AsyncClient(transport=provider.transport())
    client = AsyncAnthropic(api_key="k", base_url="http://provider", max_retries=0, http_client=http)
    return Agent(AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(anthropic_client=client)))


def test_G2_pydantic_ai_histories_are_repaired_and_accepted():
    """pydantic-ai itself refuses a new prompt while calls are open. After the repair it goes on."""
    call = ToolCallPart("pay", {"usd": 5}, tool_call_id="a")
    history = [
        ModelRequest([UserPromptPart("Pay"), ToolReturnPart("pay", "?", tool_call_id="z")]),
        ModelResponse([TextPart("I pay"), call]),
    ]
    repaired = repair(history)
    assert whats(repaired.changes) == ["result-dropped", "result-added"]
    (made,) = repaired.history[2].parts
    assert (made.tool_name, made.tool_call_id, made.outcome) == ("pay", "a", "interrupted")
    assert repaired.history[1] is history[1]
    assert len(history[0].parts) == 2
    with pytest.raises(UserError, match="unprocessed tool calls"):
        asyncio.run(pydantic_agent().run("Go on", message_history=history))
    answer = asyncio.run(pydantic_agent().run("Go on", message_history=repaired.history))
    assert answer.output == "You said: Go on"


@pytest.mark.parametrize(
    "before", [[], [ModelRequest([SystemPromptPart("Be brief")])]], ids=["nothing", "instructions"]
)
def test_XA13_a_pydantic_ai_history_that_begins_with_a_response_is_accepted_after_the_repair(before):
    history = [*before, ModelResponse([TextPart("Hello, what can I do?")])]
    with pytest.raises(ModelHTTPError, match="first message must use the"):
        asyncio.run(pydantic_agent().run("Pay", message_history=history))
    repaired = repair(history)
    assert whats(repaired.changes) == ["message-added"]
    assert [each for each in repaired.history if any(each is one for one in history)] == history
    assert asyncio.run(pydantic_agent().run("Pay", message_history=repaired.history)).output == "You said: Pay"
    assert check(repaired.history) == ()


def test_pydantic_ai_results_anywhere_in_the_next_requests_are_valid():
    call = ToolCallPart("pay", {}, tool_call_id="a")
    history = [
        ModelRequest([UserPromptPart("Pay")]),
        ModelResponse([call]),
        ModelRequest([UserPromptPart("and?")]),
        ModelRequest([ToolReturnPart("pay", "paid", tool_call_id="a")]),
    ]
    assert check(history) == ()


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ("hello", "a list of messages"),
        ([ASK, use("a"), chat_result("a")], r"anthropic \(message 1\) and chat \(message 2\)"),
        ([ASK, 7], r"history\[1\]"),
        ([ASK, HumanMessage("x"), call_item("a")], "langchain"),
    ],
)
def test_what_is_no_history_is_refused_with_the_place(history, words):
    with pytest.raises(InvalidError, match=words):
        repair(history)


def test_a_wrong_option_is_refused():
    with pytest.raises(InvalidError, match="anthropic, chat, langchain, pydantic-ai, responses"):
        repair([ASK], "claude")
    with pytest.raises(InvalidError, match=r"history\[0\]"):
        repair([HumanMessage("x")], "chat")
    with pytest.raises(InvalidError, match="outcome"):
        repair([ASK], outcome="lost")
    with pytest.raises(InvalidError, match="outcome of the call a"):
        repair([ASK, use("a")], outcome=lambda call: "lost")


def test_an_empty_history_is_valid():
    assert repair([]) == ([], ())


def test_pi_4189_a_history_with_a_thousand_orphans_is_repaired_in_a_moment():
    history = [each for number in range(1_000) for each in (ASK, use(f"a{number}"))]
    repaired = repair(history)
    assert len(repaired.changes) == 1_000
    assert check(repaired.history) == ()
