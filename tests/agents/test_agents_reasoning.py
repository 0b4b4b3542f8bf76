"""Reasoning of OpenAI's models goes back to them with the results of the calls that it led to."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from holdfast import Agent, Runtime, Session, tool
from holdfast.providers import Assistant, Offers, Request, ToolCall, ToolResult, User
from holdfast.providers.anthropic import anthropic_model
from holdfast.providers.openai import openai_model
from holdfast.providers.xai import xai_model
from holdfast.stores import MemoryStore
from holdfast.testing import VirtualClock, run


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def thought(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"secret {number}", **more}


def called(number: int) -> dict[str, Any]:
    arguments = json.dumps({"a": number, "b": 1})
    facts = {"call_id": "call_1", "name": "add", "arguments": arguments, "status": "completed"}
    return {"type": "function_call", "id": f"fc_{number}", **facts}


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


class Wire:
    """OpenAI's Responses: gives these lists of items in turn, as the real SDK reads them."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.sent: list[dict[str, Any]] = []
        self.clock = VirtualClock()
        self.runtime = Runtime(clock=self.clock)

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(json.loads(request.content))
        shell = {
            "id": "r",
            "object": "response",
            "created_at": 1,
            "model": "gpt-5",
            "error": None,
            "incomplete_details": None,
        }
        answer = {**shell, "status": "completed", "output": self.answers[len(self.sent) - 1]}
        if not self.sent[-1].get("stream"):
            return httpx2.Response(200, json=answer)
        event = {"type": "response.completed", "sequence_number": 0, "response": answer}
        content = f"event: response.completed\ndata: {json.dumps(event)}\n\n"
        return httpx2.Response(200, content=content.encode(), headers={"content-type": "text/event-stream"})

    def model(self, name: str = "gpt-5", **more: Any) -> Any:
        client = openai.AsyncOpenAI(api_key="k", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(self)))
        return openai_model(name, client, runtime=self.runtime, **more)

    def agent(self, name: str = "gpt-5", **more: Any) -> Agent:
        return Agent("thinker", self.model(name, **more), [add], runtime=self.runtime)


async def work(wire: Wire, agent: Agent, how: str, store: Any = None) -> str:
    if how == "in a session":
        async with Session.open("s", store=store or MemoryStore(clock=wire.clock), runtime=wire.runtime) as session:
            return (await agent.run("Add.", session=session)).text
    if how == "streamed":
        async with agent.stream("Add.") as parts:
            return [part async for part in parts][-1].reply.text  # type: ignore[union-attr] # the last part is Done
    return (await agent.run("Add.")).text


@pytest.mark.parametrize("how", ["whole", "streamed", "in a session"])
def test_XA9_encrypted_reasoning_is_requested_and_sent_back(how: str):
    wire = Wire([thought(1), called(1)], [thought(2), {**called(2), "call_id": "call_2"}], [said("Done.")])
    assert run(work(wire, wire.agent(), how), clock=wire.clock) == "Done."
    assert all(sent["include"] == ["reasoning.encrypted_content"] and sent["store"] is False for sent in wire.sent)
    assert [item for item in wire.sent[-1]["input"] if item.get("type") == "reasoning"] == [thought(1), thought(2)]
    kinds = [item.get("type", item.get("role")) for item in wire.sent[-1]["input"]]
    assert kinds == ["user", *["reasoning", "function_call", "function_call_output"] * 2]


def test_a_call_that_gets_another_id_keeps_its_result_and_its_reasoning():
    wire = Wire([thought(1), called(1)], [thought(2), called(2)], [said("Done.")])
    run(work(wire, wire.agent(), "whole"), clock=wire.clock)
    items = wire.sent[-1]["input"]
    assert [item["call_id"] for item in items if "call_id" in item] == ["call_1", "call_1", "call_1_2", "call_1_2"]
    assert [item["id"] for item in items if item.get("type") == "function_call"] == ["fc_1", "fc_2"]


def test_reasoning_that_is_not_encrypted_is_stored_nowhere_and_left_out():
    plain = {name: value for name, value in thought(1).items() if name != "encrypted_content"}
    wire = Wire([plain, called(1)], [said("Done.")])
    run(work(wire, wire.agent(), "whole"), clock=wire.clock)
    assert [item.get("type") for item in wire.sent[-1]["input"]] == [None, "function_call", "function_call_output"]
    assert "id" not in wire.sent[-1]["input"][1]


@pytest.mark.parametrize(("name", "more"), [("gpt-4o", {}), ("gpt-5", {"offers": Offers(reasoning=False)})])
def test_a_model_that_does_not_reason_is_not_asked_for_it(name: str, more: dict[str, Any]):
    wire = Wire([said("Done.")])
    run(work(wire, wire.agent(name, **more), "whole"), clock=wire.clock)
    assert "include" not in wire.sent[0]


def test_a_conversation_with_reasoning_goes_on_with_another_provider():
    call = ToolCall(id="call_1", name="add", arguments={"a": 1, "b": 1})
    answer = Assistant(calls=(call,), blocks=(thought(1), called(1)))
    request = Request(messages=(User(text="Add."), answer, ToolResult(id="call_1", text="2")))
    seen: list[dict[str, Any]] = []

    async def note(sent: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(sent.content))
        return httpx2.Response(400, json={"error": {"message": "enough"}})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(note))
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    claude = anthropic_model(
        "claude-haiku-4-5", anthropic.AsyncAnthropic(api_key="k", http_client=http), runtime=runtime
    )
    grok = xai_model("grok-4", openai.AsyncOpenAI(api_key="k", http_client=http), runtime=runtime)
    for model in (claude, grok):
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)):
            run(model.exchange(request), clock=clock)
    assert seen[0]["messages"][1]["content"] == [
        {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1, "b": 1}}
    ]
    assert "reasoning" not in json.dumps(seen)
