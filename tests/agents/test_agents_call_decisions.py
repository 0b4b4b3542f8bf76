"""Approvals of an agent's tool calls, end to end: the real SDK, a session, crashes between decision and call, changed modes."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import msgspec
import pytest
from agents_kit import World

from holdfast import Agent, HoldfastError, tool
from holdfast.agents import Asking, ToolReturned
from holdfast.sessions import Answer, answer, pending
from holdfast.stores import MemoryStore
from holdfast.testing.provider import ToolCall, Turn
from holdfast.tools import Toolbox

MEGABYTE = 1_048_576


class Stop(BaseException):
    """The process ends here."""


class Clerk:
    """Answers questions as its function says, and keeps what was shown."""

    name = "clerk"

    def __init__(self, decide: Any = lambda question: Answer(True)) -> None:
        self.decide = decide
        self.shown: list[str] = []

    async def ask(self, question: Any) -> Answer:
        self.shown.append(question.details.get("arguments", question.prompt))
        return self.decide(question)


class Shop:
    """Tools, and what they have done."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.dies_after = ""
        self.running = self.most = 0

    @property
    def tools(self) -> list[Any]:
        @tool(effect="unsafe")
        async def pay(to: str) -> str:
            """Pay somebody."""
            self.done.append(f"pay {to}")
            if self.dies_after == to:
                raise Stop
            return f"paid {to}"

        @tool(effect="read")
        async def look(at: str) -> str:
            """Look at something."""
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(1)
            self.running -= 1
            self.done.append(f"look {at}")
            if self.dies_after == at:
                raise Stop
            return f"seen {at}"

        @tool(effect="read")
        async def large(kind: str) -> Any:
            """Return 100 MB."""
            return "x" * 100 * MEGABYTE if kind == "text" else b"\0\xff" * 50 * MEGABYTE

        @tool(effect="read")
        async def gives_up() -> str:
            """Cancel itself."""
            raise asyncio.CancelledError

        @tool(effect="read")
        async def fail() -> str:
            """Fail."""
            raise ValueError("no such city")

        return [pay, look, large, gives_up, fail]


def results(sent: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in sent["messages"][-1]["content"] if block["type"] == "tool_result"]


def shown(result: dict[str, Any]) -> str:
    content = result["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def codes(sent: dict[str, Any]) -> list[str | None]:
    return [
        msgspec.json.decode(shown(result))["context"]["fault"] if result.get("is_error") else None
        for result in results(sent)
    ]


def start(world: World, shop: Shop, store: Any, **options: Any) -> Any:
    """Run the program once."""

    async def main() -> Any:
        async with world.session(store, **{"mode": "ask", **options}) as session:
            return await world.agent(*shop.tools).run("go", session=session)

    return world.run(main())


def test_G3_one_fails_one_is_denied_one_is_cancelled_and_the_model_is_asked_once():
    world, shop = World(Turn(calls=(ToolCall("fail"), ToolCall("pay", {"to": "ann"}), ToolCall("gives_up"))), "I see."), Shop()  # fmt: skip
    reply = start(world, shop, MemoryStore(), interactors=[Clerk(lambda _: Answer.no("too risky"))])
    assert reply.text == "I see."
    assert world.received == 2
    first, second = world.sent
    called = [block["id"] for block in second["messages"][-2]["content"] if block["type"] == "tool_use"]
    assert [result["tool_use_id"] for result in results(second)] == called
    assert codes(second) == ["TOOL_EXECUTION_FAILED", "TOOL_APPROVAL_DENIED", "TOOL_CANCELLED"]
    assert "too risky" in shown(results(second)[1])
    assert len(first["messages"]) == 1
    assert shop.done == []


@pytest.mark.parametrize(
    ("options", "given", "asked"),
    [
        ({"mode": "allowlist", "allowed_tools": ["look"]}, ["TOOL_APPROVAL_DENIED", None], 0),
        ({"mode": "ask"}, [None, None], 1),
        ({"mode": "yolo"}, [None, None], 0),
    ],
)
def test_G14_the_mode_of_the_session_decides_about_an_agents_calls(options, given, asked):
    world, shop, clerk = World(Turn(calls=(ToolCall("pay", {"to": "ann"}), ToolCall("look", {"at": "x"}))), "Done."), Shop(), Clerk()  # fmt: skip
    start(world, shop, MemoryStore(), interactors=[clerk], **options)
    assert codes(world.sent[1]) == given
    assert len(clerk.shown) == asked


def test_a_run_that_waits_for_approval_is_gone_on_with_after_the_answer_and_nothing_is_repeated():
    world, shop, store = World(Turn(calls=(ToolCall("look", {"at": "x"}), ToolCall("pay", {"to": "ann"}))), "Done."), Shop(), MemoryStore()  # fmt: skip
    for _ in range(2):
        with pytest.raises(HoldfastError) as halted:
            start(world, shop, store)
        assert halted.value.fault.code == "SESS_NO_INTERACTOR"
    (question,) = world.run(pending(store, "s"))
    assert question.prompt == 'Run pay({"to":"ann"})?'
    world.run(answer(store, "s", question.id, approved=True))
    assert start(world, shop, store).text == "Done."
    assert (shop.done, world.received) == (["look x", "pay ann"], 2)


def test_a_denial_stays_after_a_crash_and_is_not_asked_again():
    world, shop, store = World(Turn(calls=(ToolCall("pay", {"to": "ann"}), ToolCall("look", {"at": "x"}))), "Done."), Shop(), MemoryStore()  # fmt: skip
    shop.dies_after = "x"
    clerk = Clerk(lambda _: Answer.no())
    with pytest.raises(Stop):
        start(world, shop, store, interactors=[clerk])
    shop.dies_after = ""
    other = Clerk()
    start(world, shop, store, interactors=[other])
    assert (clerk.shown, other.shown) == (['{"to":"ann"}'], [])
    assert codes(world.sent[-1]) == ["TOOL_APPROVAL_DENIED", None]


@pytest.mark.parametrize("mode", ["ask", "allowlist"])
def test_what_has_run_or_may_have_is_decided_and_a_stricter_mode_changes_nothing_about_it(mode):
    """In mode yolo one call was done and one was cut. In the next mode neither is asked about, denied or repeated."""
    world, shop, store = World(Turn(calls=(ToolCall("pay", {"to": "ann"}), ToolCall("pay", {"to": "bob"}))), "Done."), Shop(), MemoryStore()  # fmt: skip
    shop.dies_after = "bob"
    with pytest.raises(Stop):
        start(world, shop, store, mode="yolo")
    assert shop.done == ["pay ann", "pay bob"]
    shop.dies_after = ""
    options = {"allowed_tools": []} if mode == "allowlist" else {}
    with pytest.warns(UserWarning, match="mode was yolo"):
        start(world, shop, store, mode=mode, **options)
    assert shop.done == ["pay ann", "pay bob"]
    paid, doubtful = results(world.sent[-1])
    assert shown(paid) == "paid ann"
    assert codes(world.sent[-1]) == [None, "TOOL_OUTCOME_UNKNOWN"]
    assert doubtful["is_error"] is True


def test_equal_calls_of_two_turns_are_two_questions_also_after_a_crash():
    """The answer for the first call must not approve the second one, which is equal."""
    pay = Turn(tool="pay", arguments={"to": "ann"})
    world, shop, store = World(pay, Turn(tool="look", arguments={"at": "x"}), pay, "Done."), Shop(), MemoryStore()
    clerk = Clerk()
    shop.dies_after = "x"
    with pytest.raises(Stop):
        start(world, shop, store, interactors=[clerk])
    shop.dies_after = ""
    other = Clerk(lambda _: Answer.no())
    start(world, shop, store, interactors=[other])
    assert (len(clerk.shown), len(other.shown)) == (1, 1)
    assert shop.done.count("pay ann") == 1


def test_a_stream_has_a_part_for_each_question_and_each_result():
    world, shop = World(Turn(calls=(ToolCall("pay", {"to": "ann"}), ToolCall("look", {"at": "x"}))), "Done."), Shop()

    async def main() -> list[Any]:
        async with (
            world.session(MemoryStore(), mode="ask", interactors=[Clerk()]) as session,
            world.agent(*shop.tools).stream("go", session=session) as parts,
        ):
            return [part async for part in parts]

    parts = world.run(main())
    (question,) = [part for part in parts if isinstance(part, Asking)]
    assert (question.kind, question.prompt) == ("Approve", 'Run pay({"to":"ann"})?')
    assert sorted(part.content for part in parts if isinstance(part, ToolReturned)) == ["paid ann", "seen x"]


def test_G25_a_thousand_calls_in_one_answer_of_the_provider():
    calls = tuple(ToolCall("look", {"at": str(at)}) for at in range(1000))
    world, shop = World(Turn(calls=calls), "Done."), Shop()
    reply = start(world, shop, MemoryStore())
    assert (reply.text, reply.tool_calls, shop.most) == ("Done.", 1000, 8)
    assert [shown(result) for result in results(world.sent[1])] == [f"seen {at}" for at in range(1000)]


@pytest.mark.parametrize(("kind", "mark"), [("text", "bytes cut"), ("binary", "bytes of binary data")])
def test_G23_100_megabytes_of_a_tool_reach_neither_the_model_nor_the_store(kind, mark):
    world, shop, store = World(Turn(tool="large", arguments={"kind": kind}), "Done."), Shop(), MemoryStore()
    tracemalloc.start()
    start(world, shop, store)
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert mark in shown(results(world.sent[1])[0])
    assert len(world.provider.requests[-1].body) < 200_000
    # The result itself, and little besides. Nothing of it stays.
    assert peak < 130 * MEGABYTE
    assert now < 20 * MEGABYTE


def test_G23_an_agent_with_a_toolbox_of_its_own_keeps_the_whole_of_a_large_result(tmp_path):
    world, shop = World(Turn(tool="large", arguments={"kind": "binary"}), "Done."), Shop()
    toolbox = Toolbox(shop.tools, keep=tmp_path, runtime=world.runtime)
    agent = Agent("coder", world.model(), toolbox, runtime=world.runtime)
    assert world.run(agent.run("go")).text == "Done."
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_size == 100 * MEGABYTE
    assert str(kept) in shown(results(world.sent[1])[0])
