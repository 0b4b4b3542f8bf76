"""What a request can ask for: images and documents, thinking, temperature, the choice of a tool, the provider's own tools, its cache."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import anthropic
import httpx2
import pytest
from agents_kit import Scripted, World

from holdfast import Budget, InvalidError, Runtime, tool
from holdfast.agents import Agent
from holdfast.providers import File, Offers, Reply, Request, User
from holdfast.providers.anthropic import anthropic_model
from holdfast.stores import MemoryStore
from holdfast.testing import VirtualClock, run
from holdfast.testing.provider import Turn

MODELS = pytest.mark.parametrize("model", ["claude-haiku-4-5", "gpt-5", "grok-4"])
CAT = b64decode("iVBORw0KGgo=")
SEES = Offers(multimodal=True)


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def files(tmp_path):
    (tmp_path / "cat.png").write_bytes(CAT)
    (tmp_path / "plan.pdf").write_bytes(b"%PDF-1.4")
    return tmp_path


PNG, PDF = "data:image/png;base64,iVBORw0KGgo=", "data:application/pdf;base64,JVBERi0xLjQ="
SHOWN = {
    "claude-haiku-4-5": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        {"type": "document", "title": "plan.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQ="}},
        {"type": "text", "text": "What is this?"},
    ],
    "gpt-5": [
        {"type": "input_image", "detail": "auto", "image_url": PNG},
        {"type": "input_file", "filename": "plan.pdf", "file_data": PDF},
        {"type": "input_text", "text": "What is this?"},
    ],
    "grok-4": [
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "file", "file": {"filename": "plan.pdf", "file_data": PDF}},
        {"type": "text", "text": "What is this?"},
    ],
}  # fmt: skip


@MODELS
@pytest.mark.parametrize("in_session", [False, True])
def test_XA12_images_and_documents_go_with_the_prompt_and_stay_in_the_conversation(model, in_session, files):
    world = World("A cat.", "It was a cat.")
    agent = world.agent(model=world.model(model, offers=SEES))
    prompt = [File.read(files / "cat.png"), "What is this?", File.read(files / "plan.pdf")]

    async def main() -> str:
        if not in_session:
            return (await agent.run(prompt)).text
        store = MemoryStore(clock=world.runtime.clock)
        for _ in range(2):
            async with world.session(store) as session:
                assert (await agent.run(prompt, session=session)).text == "A cat."
        async with world.session(store) as session:
            # With another picture it is another prompt.
            other = [File(url="https://x.test/dog.png", media_type="image/png"), "What is this?"]
            return (await agent.run(other, session=session)).text

    text = world.run(main())
    assert text == ("It was a cat." if in_session else "A cat.")
    assert world.received == (2 if in_session else 1)
    for sent in world.sent:
        messages = sent.get("messages") or sent.get("input")
        assert messages[0]["content"] == SHOWN[model]


@pytest.mark.parametrize("kind", ["image/png", "application/pdf"])
def test_a_budget_does_not_take_a_file_for_text(kind):
    world, file = World("Done."), File(media_type=kind, data="A" * 400_000)

    async def main() -> Any:
        with Budget(usd=0.2, runtime=world.runtime):
            return await world.agent(model=world.model(offers=SEES)).run(["What is this?", file])

    assert world.run(main()).text == "Done."


def test_an_address_is_read_by_the_provider():
    world = World("A cat.")
    picture = File(url="https://x.test/cat.png", media_type="image/png")
    for model in SHOWN:
        world.run(world.agent(model=world.model(model, offers=SEES)).run(["What?", picture]))
    assert all("https://x.test/cat.png" in json.dumps(sent) for sent in world.sent)


def test_a_model_that_is_known_to_see_nothing_is_sent_nothing(files):
    world = World("A cat.")
    agent = world.agent(model=world.model("claude-haiku-4-5", offers=Offers(multimodal=False)))
    ended = world.run(agent.outcome([File.read(files / "cat.png"), "What is this?"]))
    assert (ended.fault.code, world.received) == ("PROVIDER_CAPABILITY_MISSING", 0)


@pytest.mark.parametrize("make", [
    lambda: File(media_type="image/tiff", data="x"),
    lambda: File(media_type="image/png"),
    lambda: File(media_type="image/png", data="x", url="y"),
    lambda: Request(messages=(User(text="x"),), temperature=-1),
    lambda: Request(messages=(User(text="x"),), thinking="hard"),  # type: ignore[arg-type] # it is what is tested
    lambda: Request(messages=(User(text="x"),), tool_choice="nothing"),
    lambda: Agent("a", Scripted("ok"), tool_choice="add"),
    lambda: Agent("a", Scripted("ok"), thinking=0),
    lambda: Agent("a", Scripted("ok"), thinking=5000, max_output=4096),
    lambda: Agent("a", Scripted("ok"), server_tools=["web_search"]),  # type: ignore[list-item] # it is what is tested
    lambda: Agent("a", Scripted("ok"), caching="no"),  # type: ignore[arg-type] # it is what is tested
])  # fmt: skip
def test_wrong_options_say_what_is_expected(make):
    with pytest.raises(InvalidError, match="expected"):
        make()


@pytest.mark.parametrize("prompt", ["", [], [""], ["x", 3], 3, [File(url="u", media_type="image/png")]])
def test_a_prompt_needs_a_text(prompt: Any):
    world = World("ok")
    with pytest.raises(InvalidError, match=r"agent\.prompt"):
        world.run(world.agent().run(prompt))


@MODELS
def test_XA12_temperature_is_sent_as_the_provider_has_it(model):
    world = World("Done.")
    world.run(world.agent(model=world.model(model), temperature=0.2).run("go"))
    assert world.sent[0]["temperature"] == 0.2


@pytest.mark.parametrize(
    ("model", "thinking", "sent"),
    [
        ("claude-haiku-4-5", 2000, {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2100}),
        ("claude-haiku-4-5", "high", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        ("gpt-5", "low", {"reasoning": {"effort": "low"}}),
        ("gpt-5", 20_000, {"reasoning": {"effort": "high"}}),
        ("grok-4", 5000, {"reasoning_effort": "medium"}),
    ],
)
def test_XA12_thinking_is_sent_as_the_provider_has_it(model, thinking, sent):
    world = World("Done.")
    most = 2100 if thinking == 2000 else None
    world.run(world.agent(model=world.model(model), thinking=thinking, max_output=most).run("go"))
    assert {name: world.sent[0][name] for name in sent} == sent


@pytest.mark.parametrize(
    ("model", "choice", "sent"),
    [
        ("claude-haiku-4-5", "required", {"type": "any"}),
        ("claude-haiku-4-5", "none", {"type": "none"}),
        ("claude-haiku-4-5", "add", {"type": "tool", "name": "add"}),
        ("gpt-5", "required", "required"),
        ("gpt-5", "add", {"type": "function", "name": "add"}),
        ("grok-4", "none", "none"),
        ("grok-4", "add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_XA12_the_choice_of_a_tool_holds_until_it_was_called(model, choice, sent):
    world = World(Turn(tool="add", arguments={"a": 1, "b": 2}), "Done.")
    if choice == "none":
        world = World("Done.")
    assert world.run(world.agent(add, model=world.model(model), tool_choice=choice).run("go")).text == "Done."
    first, *later = world.sent
    assert first["tool_choice"] == sent
    assert all("tool_choice" not in one for one in later)


@pytest.mark.parametrize("caching", [False, True])
def test_XA12_the_prompt_cache_is_asked_for_and_found_again(caching):
    world = World(Turn(tool="add", arguments={"a": 1, "b": 2}), "Done.")
    for model in ("claude-haiku-4-5", "gpt-5"):
        world.run(world.agent(add, model=world.model(model), caching=caching).run("go"))
    claude, gpt = world.sent[:2], world.sent[2:]
    assert all(("cache_control" in sent) == caching for sent in claude)
    assert len({sent.get("prompt_cache_key") for sent in gpt}) == 1
    assert ("prompt_cache_key" in gpt[0]) == caching


# --- tools of the provider ---

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "kelp"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


class Pausing:
    """Anthropic, as the real SDK reads it: it pauses, and goes on when it gets its answer back."""

    def __init__(self, *answers: tuple[str, list[dict[str, Any]]]) -> None:
        self.answers, self.sent = answers, list[dict[str, Any]]()

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(json.loads(request.content))
        stop, content = self.answers[len(self.sent) - 1]
        usage = {"input_tokens": 1, "output_tokens": 1}
        answer = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "claude-haiku-4-5",
            "stop_sequence": None,
            "usage": usage,
        }
        if not self.sent[-1].get("stream"):
            return httpx2.Response(200, json={**answer, "content": content, "stop_reason": stop})
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
        ]
        for index, block in enumerate(content):
            if block["type"] == "text":
                start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
            elif "input" in block:
                start, delta = (
                    {**block, "input": {}},
                    {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
                )
            else:
                start, delta = block, None
            events.append({"type": "content_block_start", "index": index, "content_block": start})
            events += [{"type": "content_block_delta", "index": index, "delta": delta}] if delta else []
            events.append({"type": "content_block_stop", "index": index})
        events.append({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage})
        events.append({"type": "message_stop"})
        content_ = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return httpx2.Response(200, content=content_.encode(), headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize("streamed", [False, True])
def test_XA12_an_answer_that_the_provider_paused_is_gone_on_with(streamed):
    text = {"type": "text", "text": "I look. "}
    wire = Pausing(("pause_turn", [text, USE]), ("end_turn", [FOUND, {"type": "text", "text": "Kelp grows."}]))
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    client = anthropic.AsyncAnthropic(api_key="k", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(wire)))
    agent = Agent(
        "a", anthropic_model("claude-haiku-4-5", client, runtime=runtime), [add], server_tools=[SEARCH], runtime=runtime
    )

    async def main() -> Any:
        if not streamed:
            return await agent.run("Kelp?")
        async with agent.stream("Kelp?") as parts:
            return [part async for part in parts][-1].reply  # type: ignore[union-attr] # the last part is Done

    reply = run(main(), clock=clock)
    assert (reply.text, reply.turns, reply.tool_calls) == ("I look. Kelp grows.", 2, 0)
    assert [one["name"] for one in wire.sent[0]["tools"]] == ["add", "web_search"]
    assert wire.sent[1]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Kelp?"}]},
        {"role": "assistant", "content": [text, USE]},
    ]


def test_a_provider_that_only_pauses_is_bounded():
    world, model = World(), Scripted(Reply(text="…", stop="paused"))
    ended = world.run(world.agent(model=model, max_turns=4).outcome("go"))
    assert (ended.fault.code, len(model.requests)) == ("TASK_LOOP_BOUND", 4)
