"""A secret of the program inside an answer, a tool call or a result: it is masked before it is stored, and nothing is paid twice."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents_kit import Scripted, World

from holdfast import Agent, Session, tool
from holdfast.agents import CommandAgent, FunctionAgent, Hooks, Retrying, Text, ToolCalled, ToolReturned
from holdfast.faults import Fault, HoldfastError, Redactor
from holdfast.providers import Reply, ToolCall
from holdfast.runtime.secrets import process_redactor
from holdfast.stores.chain import session_chain
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall as Call

CANARY = 'canary-7f"3b91'
"""With a quote in it: JSON writes it in another way than it is."""


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(redactor=Redactor.knowing([CANARY]))


class Stop(BaseException):
    """The process ends here."""


def start(world: World, store: Any, agent: Any, prompt: str = "look", **more: Any) -> Any:
    async def main() -> Any:
        async with world.session(store, **more) as session:
            return await agent.run(prompt, session=session)

    return world.run(main())


def stored(world: World, store: Any) -> str:
    """Everything that the store has of the session."""

    async def main() -> str:
        entries = await store.read("s", after=0)
        checkpoint = await store.checkpoint("s")
        bodies = [bytes(entry.body) for entry in entries]
        return b"\n".join([*bodies, b"" if checkpoint is None else bytes(checkpoint.snapshot)]).decode()

    return str(world.run(main()))


def test_B105_a_secret_in_an_answer_is_masked_and_the_answer_is_paid_once(store: MemoryStore):
    world = World(f"The key is {CANARY}.")
    agent = world.agent()
    assert start(world, store, agent).text == "The key is [redacted]."
    assert start(world, store, agent).text == "The key is [redacted]."
    assert world.received == 1
    assert "canary" not in stored(world, store)


def test_B105_a_secret_of_the_environment_in_an_answer_is_masked_too(monkeypatch, tmp_path):
    monkeypatch.setenv("DEPLOY_TOKEN", "canary-of-the-environment")
    process_redactor.cache_clear()
    try:
        world = World("It is canary-of-the-environment.")
        path = tmp_path / "s.db"
        agent = world.agent()
        assert start(world, f"sqlite:{path}", agent).text == "It is [redacted]."
        assert start(world, f"sqlite:{path}", agent).text == "It is [redacted]."
        assert world.received == 1
        assert b"canary" not in path.read_bytes()
    finally:
        monkeypatch.undo()
        process_redactor.cache_clear()


def test_B105_a_call_with_a_secret_is_not_run_and_the_model_is_told_why(store: MemoryStore):
    sent: list[dict[str, str]] = []

    @tool(effect="unsafe")
    async def send(to: str, token: str = "") -> str:
        """Send."""
        sent.append({"to": to, "token": token})
        return "sent"

    calls = (
        Call("send", {"to": "ann", "token": f"Bearer {CANARY}"}),
        Call("send", {"to": "bob"}),
    )
    world = World(Turn(calls=calls), "Done.")
    agent = world.agent(send)
    assert start(world, store, agent).text == "Done."
    # Not with a mask in its place: that would be another call than the model made.
    assert sent == [{"to": "bob", "token": ""}]
    first, second = world.sent[1]["messages"][-1]["content"]
    assert first["is_error"] is True
    assert "secret" in first["content"]
    assert "TOOL_INPUT_INVALID" in first["content"]
    assert second["content"] == "sent"
    assert "canary" not in str(world.sent[1])
    assert "canary" not in stored(world, store)


def test_B105_a_call_with_a_secret_is_not_run_after_a_restart_either(store: MemoryStore):
    ran: list[str] = []
    dies = [True]

    @tool(effect="unsafe")
    async def send(token: str) -> str:
        """Send."""
        ran.append(token)
        return "sent"

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        if dies:
            raise Stop
        return "seen"

    calls = (Call("send", {"token": CANARY}), Call("look", {}))
    world = World(Turn(calls=calls), "Done.")
    agent = world.agent(send, look)
    with pytest.raises(Stop):
        start(world, store, agent)
    dies.clear()
    assert start(world, store, agent).text == "Done."
    assert ran == []
    assert world.received == 2


@pytest.mark.parametrize("effect", ["read", "unsafe"])
def test_B105_a_secret_in_a_tools_result_is_masked_for_the_model_and_the_store(store: MemoryStore, effect: Any):
    runs: list[int] = []

    @tool(effect=effect)
    async def env() -> str:
        """Print the environment."""
        runs.append(1)
        return f"API_KEY={CANARY}"

    world = World(Turn(tool="env", arguments={}), "Done.")
    agent = world.agent(env)
    assert start(world, store, agent).text == "Done."
    assert world.sent[1]["messages"][-1]["content"][0]["content"] == "API_KEY=[redacted]"
    assert start(world, store, agent).text == "Done."
    assert (runs, world.received) == ([1], 2)


def test_B105_a_secret_in_the_prompt_reaches_the_model_and_is_not_remembered(store: MemoryStore):
    world = World("Yes.", "Also yes.")
    agent = world.agent()

    async def main() -> None:
        for prompt in (f"Is {CANARY} my key?", "And now?"):
            async with world.session(store) as session:
                await agent.run(prompt, session=session)

    world.run(main())
    assert CANARY in world.sent[0]["messages"][0]["content"][0]["text"]
    assert world.sent[1]["messages"][0]["content"][0]["text"] == "Is [redacted] my key?"
    assert "canary" not in stored(world, store)


def test_B105_thinking_that_holds_a_secret_is_left_out_because_its_signature_would_not_fit(store: MemoryStore):
    blocks = (
        {"type": "thinking", "thinking": f"It is {CANARY}", "signature": "s"},
        {"type": "thinking", "thinking": "Look", "signature": "t"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
    )
    called = Reply(calls=(ToolCall(id="c1", name="look", arguments={}),), stop="tools", blocks=blocks)
    model = Scripted(called, "Done.")

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    world = World()
    start(world, store, Agent("coder", model, [look], runtime=world.runtime))
    assert model.requests[1].messages[1].blocks == blocks[1:]


def test_B105_the_answers_of_functions_and_programs_are_masked_too(store: MemoryStore, tmp_path):
    calls: list[str] = []

    async def answer(prompt: str) -> str:
        calls.append(prompt)
        return f"It is {CANARY}"

    program = CommandAgent(
        [sys.executable, "-c", "import sys; sys.stdin.read(); print('It is canary-7f' + chr(34) + '3b91')"],
        name="program",
        form="plain",
    )

    async def main() -> None:
        for _ in range(2):
            async with Session.open("s", store=store, mode="yolo") as session:
                assert (await FunctionAgent("by-hand", answer).run("look", session=session)).text == "It is [redacted]"
                assert (await program.run("look", session=session)).text == "It is [redacted]"

    asyncio.run(main())
    assert calls == ["look"]


def test_B105_a_shortened_conversation_with_a_secret_is_stored_masked(store: MemoryStore):
    overflow = HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
    model = Scripted("Yes.", overflow, "Shorter.")
    world = World()
    agent = Agent("coder", model, compact=lambda messages: messages[-1:], runtime=world.runtime)

    async def main() -> None:
        async with world.session(store) as session:
            await agent.run("x" * 500, session=session)
            reply = await agent.run(f"Is it {CANARY}?", session=session)
            assert reply.text == "Shorter."

    world.run(main())
    assert "canary" not in stored(world, store)


def test_B105_without_a_session_nothing_is_stored_and_nothing_is_changed():
    world = World(f"The key is {CANARY}.")
    assert world.run(world.agent().run("look")).text == f"The key is {CANARY}."


class Pieces(Scripted):
    """Streams its answers in pieces of three characters."""

    @asynccontextmanager
    async def stream(self, request: Any, *, after_first: str = "raise") -> AsyncIterator[AsyncIterator[Any]]:
        async def parts() -> AsyncIterator[Any]:
            reply = await self.exchange(request)
            for at in range(0, len(reply.text), 3):
                yield reply.text[at : at + 3]
            yield reply

        yield parts()


def streamed(world: World, store: Any, agent: Any, **more: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with world.session(store, **more) as session, agent.stream("look", session=session) as parts:
            return [part async for part in parts]

    return list(world.run(main()))


def test_B105_a_secret_that_a_model_streams_in_pieces_is_never_shown(store: MemoryStore):
    world, seen = World(), []
    model = Pieces(f"The key is {CANARY}, I can tell.")
    agent = Agent("coder", model, hooks=Hooks(observer=seen.append), runtime=world.runtime)
    parts = streamed(world, store, agent)
    texts = [part.text for part in parts if isinstance(part, Text)]
    assert "".join(texts) == "The key is [redacted], I can tell." == parts[-1].reply.text
    assert len(texts) > 5, "other text comes as it came"
    assert [part for part in seen if isinstance(part, Text)] == [part for part in parts if isinstance(part, Text)]
    # The second run reads what is stored, and shows the same.
    again = streamed(world, store, agent)
    assert "".join(part.text for part in again if isinstance(part, Text)) == "".join(texts)


def test_B105_text_that_was_held_back_comes_before_the_tool_call_after_it(store: MemoryStore):
    world = World()

    @tool(effect="read")
    def look() -> str:
        return CANARY

    call = Reply(text="I look: can", calls=(ToolCall(id="1", name="look", arguments={}),), stop="tools")
    agent = Agent("coder", Pieces(call, "Done."), [look], runtime=world.runtime)
    kinds = [(type(part).__name__, getattr(part, "text", "")) for part in streamed(world, store, agent)]
    before = [text for kind, text in kinds[: [kind for kind, _ in kinds].index("ToolCalled")] if kind == "Text"]
    assert "".join(before) == "I look: can"


def test_B105_a_streamed_answer_that_is_cut_in_a_secret_begins_anew_without_its_rest():
    """The provider cuts the stream after `canary of`. That was held back, and is not put before the second attempt's text."""
    store = MemoryStore(redactor=Redactor.knowing(["canary of four words"]))
    world = World("The key is canary of four words.", faults="cut;after=5")
    parts = streamed(world, store, world.agent())
    (cut,) = [at for at, part in enumerate(parts) if isinstance(part, Retrying) and part.restarts_text]
    first, second = (
        "".join(part.text for part in some if isinstance(part, Text)) for some in (parts[:cut], parts[cut:])
    )
    assert (first, second) == ("The key is ", "The key is [redacted].")


def test_B105_what_a_program_prints_in_a_session_is_masked_in_its_parts(store: MemoryStore):
    lines = [
        {"type": "text", "text": "It is canary-7f"},
        {"type": "text", "text": '"3b91, I can'},
        {"type": "tool-call", "id": "1", "name": "pay", "arguments": {"key": CANARY}},
        {"type": "tool-result", "id": "1", "name": "pay", "content": f"paid with {CANARY}"},
        {"type": "result", "text": "Done."},
    ]
    source = f"import json, sys; sys.stdin.read(); [print(json.dumps(line)) for line in {lines!r}]"
    program = CommandAgent([sys.executable, "-c", source], name="program", form="plain")

    async def main() -> list[Any]:
        async with Session.open("s", store=store) as session, program.stream("look", session=session) as parts:
            return [part async for part in parts]

    *parts, done = asyncio.run(main())
    assert parts == [
        Text(text="It is "),
        Text(text="[redacted], I "),
        Text(text="can"),
        ToolCalled(id="1", name="pay", arguments={"key": "[redacted]"}),
        ToolReturned(id="1", name="pay", content="paid with [redacted]"),
    ]
    assert done.reply.text == "Done."


def test_B105_the_audit_trail_says_that_something_was_masked_and_not_what(store: MemoryStore):
    world = World(f"The key is {CANARY}.")
    start(world, store, world.agent())

    async def trail() -> bytes:
        return b"\n".join(bytes(record.payload) for record in await store.audit(session_chain("s")))

    payloads = world.run(trail())
    assert b"secret-masked" in payloads
    assert b"canary" not in payloads
