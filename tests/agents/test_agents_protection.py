"""How the loop protects itself: streams that break, conversations that are too long, subagents, budgets, people who help."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import msgspec
import pytest
from agents_kit import Scripted, World

from holdfast import Budget, BudgetError, Err, Fault, HoldfastError, InvalidError, Policy, tool
from holdfast.agents import Compacted, Done, FellBack, Retrying, Text, ToolCalled
from holdfast.agents.conversation import is_valid
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.usage import Usage
from holdfast.providers import Assistant, Offers, Reply, ToolCall, ToolResult, User
from holdfast.sessions.questions.question import Answer
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall as Call


@tool(effect="read")
async def echo(text: str) -> str:
    """Repeat a text."""
    return text


def parts_of(world: World, agent: Any, prompt: str = "go") -> list[Any]:
    async def read() -> list[Any]:
        async with agent.stream(prompt) as parts:
            return [part async for part in parts]

    return world.run(read())


# --- streams ---


def test_G15_a_stream_cut_after_its_first_words_is_asked_again_whole_and_says_so():
    world = World("one two three four", faults="cut;after=2, ok")
    parts = parts_of(world, world.agent())
    again = next(n for n, part in enumerate(parts) if isinstance(part, Retrying))
    assert parts[again].restarts_text
    assert any(isinstance(part, Text) for part in parts[:again])
    assert "".join(part.text for part in parts[again:] if isinstance(part, Text)) == "one two three four"
    assert isinstance(parts[-1], Done)
    assert parts[-1].reply.text == "one two three four"
    assert world.received == 2


def test_G15_a_tool_call_that_stalls_between_two_deltas_is_asked_for_again_whole_and_the_tool_runs_once():
    ran: list[str] = []

    @tool(effect="unsafe")
    async def write(text: str) -> str:
        """Write a text."""
        ran.append(text)
        return "written"

    call = Turn(text="I write.", calls=(Call("write", {"text": "a long text in many deltas"}),))
    world = World(call, "Done.", faults="silence;after=4, ok")
    model = world.model(policy=Policy(profile="stud", timeout=5, deadline=None))
    parts = parts_of(world, world.agent(write, model=model))
    assert ran == ["a long text in many deltas"]
    assert len([part for part in parts if isinstance(part, ToolCalled)]) == 1
    assert any(isinstance(part, Retrying) for part in parts)
    assert world.received == 3


def test_parts_tell_of_another_model_that_takes_over():
    world = World("fine", faults="529*9")
    broken, spare = world.model("claude-haiku-4-5"), Scripted("spare answer")
    parts = parts_of(world, world.agent(model=[broken, spare]))
    assert [part.to for part in parts if isinstance(part, FellBack)] == ["own/scripted"]
    assert parts[-1].reply.text == "spare answer"


def test_a_reader_who_leaves_early_ends_the_run_with_its_tools():
    ended = False

    @tool(effect="read")
    async def slow() -> str:
        """Wait."""
        nonlocal ended
        try:
            await asyncio.sleep(1000)
        finally:
            ended = True
        return "late"

    world = World(Turn(tool="slow"), "Done.")

    async def main() -> None:
        async with world.agent(slow).stream("go") as parts:
            async for part in parts:
                if isinstance(part, ToolCalled):
                    await asyncio.sleep(1)
                    break
        assert ended

    world.run(main())


def test_a_failed_run_raises_in_the_reader_after_its_parts():
    world = World(Turn(text="I look.", calls=(Call("echo", {"text": "x"}),)))

    async def main() -> list[Any]:
        seen: list[Any] = []
        with pytest.raises(HoldfastError) as caught:
            async with world.agent(echo, max_turns=1).stream("go") as parts:
                async for part in parts:
                    seen.append(part)  # noqa: PERF401 - what came before the error is kept
        assert caught.value.fault.code == "TASK_LOOP_BOUND"
        return seen

    assert "".join(part.text for part in world.run(main())) == "I look."


# --- conversations that are too long ---

OVERFLOW = HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))


def call(n: int, text: str) -> Reply:
    return Reply(text=f"look {n}", calls=(ToolCall(id=f"c{n}", name="echo", arguments={"text": text}),), stop="tools")


@pytest.mark.parametrize("compact", ["drop", "summarise"])
def test_G11_an_overflow_compacts_once_and_keeps_the_request_and_the_open_calls(compact: Any):
    replies: list[Any] = [call(n, f"{n}" * 1000) for n in range(5)]
    summary = ["They looked at 0, 1 and 2."] if compact == "summarise" else []
    model = Scripted(*replies, OVERFLOW, *summary, "Done.")
    world = World()
    agent = world.agent(echo, model=model, compact=compact, instructions="Be brief.")
    parts = world.run(_stream(agent))
    (compacted,) = [part for part in parts if isinstance(part, Compacted)]
    assert compacted.before == 11
    assert compacted.after < 11
    failed, last = model.requests[5], model.requests[-1]
    assert last != failed
    assert last.system == "Be brief."
    assert last.messages[0] == User(text="go")
    assert last.messages[-1] == failed.messages[-1]
    assert is_valid(last.messages)
    assert (compact == "summarise") is any("They looked at" in str(message) for message in last.messages)


async def _stream(agent: Any) -> list[Any]:
    async with agent.stream("go") as parts:
        return [part async for part in parts]


def test_G11_a_conversation_that_is_still_too_long_is_a_typed_fault_and_not_a_loop():
    model = Scripted(*(call(n, f"{n}" * 1000) for n in range(4)), OVERFLOW)
    world = World()
    ended = world.run(world.agent(echo, model=model).outcome("go"))
    assert ended.fault.code == "PROVIDER_CONTEXT_OVERFLOW"
    assert len(model.requests) == 6
    assert ended.fault.partial.payload["text"] == "look 3"


def test_G11_without_compaction_or_with_nothing_to_leave_out_the_overflow_is_raised_at_once():
    for compact, replies in ((None, [call(0, "x" * 9000), OVERFLOW]), ("drop", [OVERFLOW])):
        world, model = World(), Scripted(*replies)
        ended = world.run(world.agent(echo, model=model, compact=compact).outcome("go"))
        assert ended.fault.code == "PROVIDER_CONTEXT_OVERFLOW"
        assert len(model.requests) == len(replies)


def test_G11_one_result_that_is_too_long_is_cut():
    world, model = World(), Scripted(call(0, "x" * 60_000), OVERFLOW, "Done.")
    assert world.run(world.agent(echo, model=model).run("go")).text == "Done."
    assert len(model.requests[-1].messages[-1].text) < 3_000


def test_a_function_of_the_application_compacts_and_what_it_returns_is_checked():
    def first_and_last(messages: Any) -> Any:
        return [messages[0], messages[-2], messages[-1]]

    world, model = World(), Scripted(call(0, "a"), call(1, "b"), OVERFLOW, "Done.")
    assert world.run(world.agent(echo, model=model, compact=first_and_last).run("go")).text == "Done."
    assert [type(message) for message in model.requests[-1].messages] == [User, Assistant, ToolResult]

    world, model = World(), Scripted(call(0, "a"), OVERFLOW, "Done.")
    with pytest.raises(InvalidError, match="each tool call has its result"):
        world.run(world.agent(echo, model=model, compact=lambda messages: messages[:-1]).run("go"))


def test_a_compacted_conversation_stays_compacted_in_the_next_turn_and_after_a_crash():
    replies: list[Any] = [call(n, f"{n}" * 1000) for n in range(5)]
    model = Scripted(*replies, OVERFLOW, RuntimeError("broken"), "Done.", "Next.")
    world, store = World(), MemoryStore()
    agent = world.agent(echo, model=model)

    async def main(prompt: str) -> Any:
        async with world.session(store) as session:
            return await agent.run(prompt, session=session)

    with pytest.raises(RuntimeError):
        world.run(main("go"))
    assert world.run(main("go")).text == "Done."
    after = model.requests[-1].messages
    # The request that did not fit is not sent again after the crash.
    assert len(model.requests) == 8
    world.run(main("more"))
    assert model.requests[-1].messages[: len(after)] == after
    assert len(model.requests[-1].messages) == len(after) + 2


# --- agents as tools ---


def test_G10_a_subagent_that_failed_is_a_failed_call_with_its_reason_and_partial_and_may_be_asked_again():
    half = Reply(text="I found half.", calls=(ToolCall(id="1", name="echo", arguments={"text": "x"}),), stop="tools")
    child = Scripted(half, "All of it.")
    parent = World(
        Turn(tool="finder", arguments={"prompt": "find everything"}),
        Turn(tool="finder", arguments={"prompt": "find a little"}),
        "Done.",
    )
    finder = parent.agent(echo, name="finder", model=child, max_turns=1)
    reply = parent.run(parent.agent(finder).run("go"))
    first, second = (sent["messages"][-1]["content"][0] for sent in parent.sent[1:])
    assert first["is_error"] is True
    failed = json.loads(first["content"])
    assert failed["context"]["fault"] == "TASK_SUBTASK_FAILED"
    assert failed["context"]["message"].startswith("The agent finder failed: TASK_LOOP_BOUND: ")
    # What there was reaches the model, and nothing of the other agent's own messages.
    assert "I found half." in first["content"]
    assert "find everything" not in first["content"]
    # The changed request is a run of its own: it succeeds, and does not see the one that failed.
    assert (second["content"], second.get("is_error", False)) == ("All of it.", False)
    asked = [[message.text for message in request.messages] for request in child.requests]
    assert asked == [["find everything"], ["find a little"]]
    assert (reply.text, reply.tool_calls, reply.turns) == ("Done.", 2, 3)


def test_a_subagent_works_for_its_parent_and_its_spend_counts():
    def costing(n: int, **more: Any) -> Reply:
        return Reply(usage=Usage(input=1000 * n, output=n), model="claude-haiku-4-5", **more)

    calls = (ToolCall(id="1", name="thinker", arguments={"prompt": "the answer?"}),)
    child, parent = Scripted(costing(100, text="It is 42.")), Scripted(costing(1, calls=calls), costing(10, text="42."))
    world = World()
    thinker = world.agent(name="thinker", description="Thinks hard.", model=child)
    reply = world.run(world.agent(thinker, model=parent).run("go"))
    (shown,) = parent.requests[0].tools
    assert (shown.name, shown.description) == ("thinker", "Thinks hard.")
    assert parent.requests[1].messages[-1].text == "It is 42."
    assert reply.usage == Usage(input=111_000, output=111)
    assert reply.usd == pytest.approx(LIST_PRICES.cost("claude-haiku-4-5", reply.usage))


def test_a_subagent_that_ended_by_its_own_decision_is_asked_anew_in_the_same_words():
    child = Scripted("no", "no", "no", '{"n": 3}')
    again = [Reply(calls=(ToolCall(id=f"{n}", name="counter", arguments={"prompt": "count"}),)) for n in (1, 2)]
    world, parent = World(), Scripted(*again, "Three.")
    boss = world.agent(world.agent(name="counter", model=child, output=Count), name="boss", model=parent)
    assert in_session(world, boss).value.text == "Three."
    assert parent.requests[-1].messages[-1].text == '{"n":3}'
    assert len(child.requests) == 4


class Count(msgspec.Struct):
    n: int


@pytest.mark.parametrize("ends", ["invalid", "unchanged"])
def test_a_run_that_its_loop_ended_is_another_run_when_it_is_called_again(ends: str):
    model = Scripted(*(["no"] * 3 if ends == "invalid" else [OVERFLOW]), '{"n": 3}')
    world = World()
    agent = world.agent(model=model, output=Count, compact=lambda messages: messages)

    async def main() -> Any:
        async with world.session(MemoryStore()) as session:
            first = await agent.outcome("go", session=session)
            return first, await agent.run("go", session=session)

    first, second = world.run(main())
    assert first.fault.code == ("PROVIDER_OUTPUT_INVALID" if ends == "invalid" else "PROVIDER_CONTEXT_OVERFLOW")
    assert second.data == Count(3)


def test_a_subagent_in_a_session_goes_on_where_it_was_and_pays_for_nothing_twice():
    dies = True

    @tool(effect="unsafe")
    async def order(item: str) -> str:
        """Order."""
        return f"ordered {item}"

    @tool(effect="read")
    async def check() -> str:
        """Check."""
        if dies:
            raise KeyboardInterrupt
        return "fine"

    child = Scripted(
        Reply(calls=(ToolCall(id="1", name="order", arguments={"item": "tea"}),), stop="tools"),
        Reply(calls=(ToolCall(id="2", name="check", arguments={}),), stop="tools"),
        "Tea is ordered.",
    )
    parent = Scripted(
        Reply(calls=(ToolCall(id="3", name="buyer", arguments={"prompt": "tea"}),), stop="tools"), "Done."
    )
    world, store = World(), MemoryStore()
    buyer = world.agent(order, check, name="buyer", model=child)
    boss = world.agent(buyer, name="boss", model=parent)

    async def main() -> Any:
        async with world.session(store) as session:
            return await boss.run("buy tea", session=session)

    with pytest.raises(KeyboardInterrupt):
        world.run(main())
    dies = False
    assert world.run(main()).text == "Done."
    assert (len(child.requests), len(parent.requests)) == (3, 2)
    assert parent.requests[1].messages[-1].text == "Tea is ordered."


# --- budgets ---


class Billed(Scripted):
    """A model that notes what each of its answers cost."""

    def __init__(self, model: Any, bill: list[float]) -> None:
        super().__init__()
        self.name, self.offers, self._model, self._bill = model.name, model.offers, model, bill

    async def exchange(self, request: Any) -> Reply:
        reply: Reply = await self._model.exchange(request)
        self._bill.append(LIST_PRICES.cost(reply.model, reply.usage) or 0)
        return reply


def test_G18_XR2_a_budget_of_money_holds_for_agents_side_by_side():
    """Four subagents work at the same time inside one budget."""
    bill: list[float] = []
    child = World(*(Turn(tool="echo", arguments={"text": f"{n}"}) for n in range(30)))
    parent = World(Turn(calls=tuple(Call("worker", {"prompt": f"part {n}"}) for n in range(4))), "Done.")
    billed = Billed(child.model(), bill)
    worker = child.agent(echo, name="worker", max_turns=30, no_progress=None, max_output=50, model=billed)

    async def main() -> Any:
        with Budget(usd=0.005, runtime=parent.runtime) as budget:
            ended = await parent.agent(worker, max_output=50, model=Billed(parent.model(), bill)).outcome("go")
            return ended, budget.spend()

    ended, spend = parent.run(main())
    assert isinstance(ended, Err)
    assert isinstance(ended.error, BudgetError)
    assert spend.usd == pytest.approx(sum(bill))
    assert len(bill) == child.received + parent.received
    assert 0.003 < spend.usd <= 0.005
    assert ended.fault.partial.payload["messages"]


@pytest.mark.parametrize("limits", [{"tokens": 150_000}, {"usd": 0.15}])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_G18_a_budget_holds_for_a_model_of_the_application_s_own(limits: Any, is_streamed: bool):
    usage = Usage(input=100_000, output=100)
    calls = [(ToolCall(id=f"{n}", name="echo", arguments={"text": f"{n}"}),) for n in range(9)]
    model = Scripted(*(Reply(calls=one, usage=usage, model="claude-haiku-4-5") for one in calls))
    model.name = "own/claude-haiku-4-5"
    world = World()

    async def main() -> Any:
        with Budget(**limits, runtime=world.runtime) as budget:
            agent = world.agent(echo, model=model)
            with pytest.raises(BudgetError):
                await (_stream(agent) if is_streamed else agent.run("go"))
            return budget.spend()

    spend = world.run(main())
    assert len(model.requests) == 2
    assert (spend.tokens, spend.turns) == (200_200, 2)
    assert spend.usd == pytest.approx(2 * LIST_PRICES.cost("claude-haiku-4-5", usage))


# --- people who help ---


class Person:
    """Answers each question from a list, and remembers the questions."""

    name = "ann"

    def __init__(self, *answers: Any) -> None:
        self.questions: list[Any] = []
        self._answers = list(answers)

    async def ask(self, question: Any) -> Answer:
        self.questions.append(question)
        return Answer(self._answers.pop(0))


def in_session(world: World, agent: Any, person: Any = None) -> Any:
    async def main() -> Any:
        people = [] if person is None else [person]
        async with world.session(MemoryStore(), interactors=people) as session:
            return await agent.outcome("go", session=session)

    return world.run(main())


def test_expired_credentials_ask_a_person_once_and_go_on():
    world, ann = World("fine", faults="expired, ok"), Person(True)
    assert in_session(world, world.agent(), ann).value.text == "fine"
    assert [question.kind for question in ann.questions] == ["Auth.DeviceCode"]

    world, ann = World("fine", faults="expired*9"), Person(True, True, True)
    ended = in_session(world, world.agent(), ann)
    assert ended.fault.code.startswith("AUTH_")
    assert len(ann.questions) == 1


def test_credentials_are_not_asked_for_if_nobody_is_there():
    world = World("fine", faults="expired*9")
    ended = in_session(world, world.agent())
    assert isinstance(ended.error, anthropic.AuthenticationError)
    assert world.received == 1


def test_a_missing_capability_lets_a_person_choose_another_model():
    world, ann = World("never"), Person("own/scripted")
    weak = world.model(offers=Offers(tool_calling=False))
    strong, weak_too = (
        Scripted("strong answer", offers=Offers(tool_calling=True)),
        Scripted("no", offers=Offers(tool_calling=False)),
    )
    weak_too.name = "own/weak"
    agent = world.agent(echo, model=weak, alternatives=[weak_too, strong])
    assert in_session(world, agent, ann).value.text == "strong answer"
    (question,) = ann.questions
    assert question.kind == "Select"
    assert list(question.choices) == ["own/scripted"]
    assert world.received == 0
    assert in_session(world, agent).fault.code == "PROVIDER_MISSING_TOOL_CALLING"


def test_a_provider_that_fails_for_good_raises_its_own_error_with_what_there_is_so_far():
    world = World(Turn(text="I look.", calls=(Call("echo", {"text": "x"}),)), "Done.", faults="ok, 400")
    with pytest.raises(anthropic.BadRequestError) as caught:
        world.run(world.agent(echo).run("go"))
    fault = world.runtime.fault_of(caught.value)
    assert fault.partial.payload["text"] == "I look."
    assert fault.partial.payload["turns"] == 1
    assert is_valid_stored(fault.partial.payload["messages"])


def is_valid_stored(messages: list[dict[str, Any]]) -> bool:
    called = [one["id"] for message in messages for one in message.get("calls", ())]
    return called == [message["id"] for message in messages if message["role"] == "tool"]
