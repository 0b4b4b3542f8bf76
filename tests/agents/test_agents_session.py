"""An agent in a session: killed or cancelled anywhere it goes on, pays for nothing twice, and repeats no unsafe call."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from agents_kit import Scripted, World

from holdfast import CANNOT_TELL, NOT_HAPPENED, Agent, Happened, HoldfastError, InvalidError, Session, tool
from holdfast.agents import Asking, Done, Text, ToolReturned
from holdfast.events import SuppressedError
from holdfast.once.doubt import IT_DID_NOT_HAPPEN, IT_HAPPENED
from holdfast.once.identity import KEPT
from holdfast.providers import Reply, ToolCall, User
from holdfast.sessions.admin import overview, resolve_step
from holdfast.sessions.history import history_of
from holdfast.sessions.questions.answers import pending as pending_of
from holdfast.sessions.questions.question import Answer
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall as Call


class Stop(BaseException):
    """The process ends here."""


def results(sent: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        block
        for message in sent["messages"]
        if message["role"] == "user"
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


def accepts(sent: dict[str, Any]) -> bool:
    """Whether the Messages API takes this conversation: each call has one result, in order, in the next message."""
    for message, following in zip(sent["messages"], [*sent["messages"][1:], None], strict=True):
        called = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        answered = [] if following is None else [
            block["tool_use_id"] for block in following["content"] if block["type"] == "tool_result"
        ]  # fmt: skip
        if called != answered:
            return False
    return True


class Machine:
    """A tool whose process can be ended in the middle of a call."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.dies = False

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.paid.append(amount)
        if self.dies:
            raise Stop
        return f"paid {amount}"

    def tool(self, **more: Any) -> Any:
        pay = self.pay

        @tool(effect="unsafe", name="pay", **more)
        async def pay_(amount: int) -> str:
            """Pay."""
            return await pay(amount)

        return pay_


def start(world: World, store: Any, agent: Any, prompt: str = "pay 5", **more: Any) -> Any:
    """Run the program once: open the session, and let the agent work."""

    async def main() -> Any:
        async with world.session(store, **more) as session:
            return await agent.run(prompt, session=session)

    return world.run(main())


def test_the_next_run_continues_the_conversation_also_in_another_process():
    world, store = World("Hello Ann.", "You are Ann."), MemoryStore()
    agent = world.agent()

    async def main() -> None:
        async with world.session(store) as session:
            await agent.run("I am Ann.", session=session)
        async with world.session(store) as session:
            reply = await agent.run("Who am I?", session=session)
            assert reply.text == "You are Ann."
            assert reply.session == "s"

    world.run(main())
    texts = [[block["text"] for block in message["content"]] for message in world.sent[1]["messages"]]
    assert texts == [["I am Ann."], ["Hello Ann."], ["Who am I?"]]


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_inside_of_a_step_that_has_ended_is_remembered_after_a_kill(killed: bool):
    world, store = World("I looked.", "As I said."), MemoryStore()

    async def program(*, is_killed: bool) -> None:
        async with world.session(store) as session:

            async def look() -> str:
                return (await world.agent().run("Look.", session=session)).text

            assert await session.step(look) == "I looked."
            if is_killed:
                raise Stop
            await world.agent().run("What did you see?", session=session)

    async def main() -> None:
        if killed:
            with pytest.raises(Stop):
                await program(is_killed=True)
        await program(is_killed=False)

    world.run(main())
    texts = [
        block["text"]
        for message in world.sent[-1]["messages"]
        for block in message["content"]
        if block["type"] == "text"
    ]
    assert texts == ["Look.", "I looked.", "What did you see?"]


def test_a_step_saves_only_what_its_agents_remember():
    world, store = World("I looked."), MemoryStore()

    async def program(*, is_killed: bool) -> int:
        async with world.session(store) as session:
            session.context["starts"] = session.context.get("starts", 0) + 1

            async def look() -> str:
                return (await world.agent().run("Look.", session=session)).text

            await session.step(look)
            if is_killed:
                raise Stop
            return session.context["starts"]

    async def main() -> int:
        with pytest.raises(Stop):
            await program(is_killed=True)
        return await program(is_killed=False)

    assert world.run(main()) == 1


def test_the_steps_of_an_agent_have_readable_names_in_the_history():
    world, store = World(Turn(tool="pay", arguments={"amount": 5}), "Done."), MemoryStore()
    start(world, store, world.agent(Machine().tool()))
    steps = asyncio.run(history_of(store, "s")).outside
    assert [step.call for step in steps] == ["agent: unseen", "request", "pay(amount=5)", "request"]


def test_what_an_agent_keeps_has_the_stored_name_that_older_sessions_know():
    assert KEPT == "_keep.<locals>.keep.<locals>.kept"


def test_G1_a_call_cut_midway_has_the_typed_result_unknown_and_is_not_repeated():
    machine, store = Machine(), MemoryStore()
    world = World(Turn(tool="pay", arguments={"amount": 5}), "Please check whether it was paid.")
    agent = world.agent(machine.tool())
    machine.dies = True
    with pytest.raises(Stop):
        start(world, store, agent)
    machine.dies = False
    reply = start(world, store, agent)
    assert reply.text == "Please check whether it was paid."
    assert machine.paid == [5]
    # The first answer is stored, so it is not paid for again.
    assert world.received == 2
    (result,) = results(world.sent[1])
    assert result["is_error"]
    assert "TOOL_OUTCOME_UNKNOWN" in result["content"]
    assert all(accepts(sent) for sent in world.sent)


def test_G1_what_the_model_was_told_about_an_unknown_outcome_stays_so():
    """A later start must not verify again and run the tool behind the model's back."""
    machine, store = Machine(), MemoryStore()
    found: list[Any] = []

    async def verify(key: str, amount: int) -> Any:
        return found[-1] if found else ValueError

    broken = Reply(calls=(ToolCall(id="1", name="pay", arguments={"amount": 5}),), stop="tools")
    model = Scripted(broken, Stop_as_error(), "Done.")
    world = World()
    agent = world.agent(machine.tool(verify=verify), model=model)
    machine.dies = True
    with pytest.raises(Stop):
        start(world, store, agent)
    machine.dies = False
    with pytest.raises(RuntimeError):
        start(world, store, agent)
    found.append(NOT_HAPPENED)
    assert start(world, store, agent).text == "Done."
    assert machine.paid == [5]


def Stop_as_error() -> Exception:
    return RuntimeError("the provider broke")


@pytest.mark.parametrize(("verdict", "paid"), [(Happened("receipt 7"), [5]), (NOT_HAPPENED, [5, 5])])
def test_G1_verify_settles_a_call_that_was_cut(verdict: Any, paid: list[int]):
    machine, store = Machine(), MemoryStore()
    keys: list[str] = []

    async def verify(key: str, amount: int) -> Any:
        keys.append(key)
        assert amount == 5
        return verdict

    world = World(Turn(tool="pay", arguments={"amount": 5}), "Done.")
    agent = world.agent(machine.tool(verify=verify))
    machine.dies = True
    with pytest.raises(Stop):
        start(world, store, agent)
    machine.dies = False
    assert start(world, store, agent).text == "Done."
    assert machine.paid == paid
    (result,) = results(world.sent[1])
    assert result["content"] == ("receipt 7" if len(paid) == 1 else "paid 5")
    assert not result.get("is_error")
    assert keys


def test_G1_a_person_who_is_attached_says_whether_a_cut_call_happened():
    machine, store = Machine(), MemoryStore()
    seen: list[str] = []

    class Ann:
        name = "ann"

        async def ask(self, question: Any) -> Answer:
            seen.append(question.prompt)
            return Answer("It happened" if question.kind == "Select" else "receipt 9")

    world = World(Turn(tool="pay", arguments={"amount": 5}), "Done.")
    agent = world.agent(machine.tool())
    machine.dies = True
    with pytest.raises(Stop):
        start(world, store, agent)
    machine.dies = False
    assert start(world, store, agent, interactors=[Ann()]).text == "Done."
    assert machine.paid == [5]
    assert results(world.sent[1])[0]["content"] == "receipt 9"
    assert "Did it happen?" in seen[0]


def cut_call(*more: Any) -> tuple[World, Machine, MemoryStore, Any]:
    """Return an agent whose process ended in the middle of a payment."""
    machine, store = Machine(), MemoryStore()
    world = World(Turn(tool="pay", arguments={"amount": 5}), "Please check.", *more)
    agent = world.agent(machine.tool())
    machine.dies = True
    with pytest.raises(Stop):
        start(world, store, agent)
    machine.dies = False
    return world, machine, store, agent


def test_the_questions_about_a_cut_call_say_which_tool_and_which_arguments():
    """An interactor reads `details`, as for approvals."""
    seen: list[Any] = []

    class Ann:
        async def ask(self, question: Any) -> Answer:
            seen.append((question.kind, question.details["tool"], question.details["arguments"]))
            return Answer("It happened" if question.kind == "Select" else "receipt 9")

    world, _, store, agent = cut_call()
    start(world, store, agent, interactors=[Ann()])
    assert seen == [("Select", "pay", '{"amount":5}'), ("Ask", "pay", '{"amount":5}')]


class Broken:
    name = "broken"

    async def ask(self, question: Any) -> Answer:
        raise KeyError("tool")


class NoAnswer:
    name = "broken"

    async def ask(self, question: Any) -> Any:
        return True


class WrongKind:
    name = "broken"

    async def ask(self, question: Any) -> Answer:
        return Answer(value=True)


@pytest.mark.parametrize("interactor", [Broken(), NoAnswer(), WrongKind()])
def test_G1_an_interactor_that_fails_leaves_the_outcome_of_a_cut_call_unknown(interactor: Any):
    """The error of the interactor is not the failure of the tool, and somebody can see it."""
    world, machine, store, agent = cut_call()
    assert start(world, store, agent, interactors=[interactor]).text == "Please check."
    assert machine.paid == [5]
    (result,) = results(world.sent[1])
    assert result["is_error"]
    assert "TOOL_OUTCOME_UNKNOWN" in result["content"]
    assert '"tool":"pay"' in result["content"]
    (event,) = [event for event in world.of(SuppressedError) if "broken" in event.reason]
    assert "pay" in event.reason
    assert "question q-" in event.reason


def test_G1_a_person_who_does_not_want_to_say_leaves_the_outcome_unknown():
    class Ann:
        async def ask(self, question: Any) -> Answer:
            return Answer.no()

    world, machine, store, agent = cut_call()
    assert start(world, store, agent, interactors=[Ann()]).text == "Please check."
    assert "TOOL_OUTCOME_UNKNOWN" in results(world.sent[1])[0]["content"]
    assert machine.paid == [5]


def test_XD16_an_answer_settles_one_start_of_a_call_and_not_the_next():
    deaths = ["before", "after"]
    paid: list[int] = []

    @tool(effect="unsafe", name="pay")
    async def pay(amount: int) -> str:
        """Pay."""
        dies = deaths.pop(0) if deaths else ""
        if dies == "before":
            raise Stop
        paid.append(amount)
        if dies == "after":
            raise Stop
        return "receipt"

    class Ann:
        def __init__(self, *answers: str) -> None:
            self.answers = list(answers)
            self.asked: list[str] = []

        async def ask(self, question: Any) -> Answer:
            self.asked.append(question.prompt)
            return Answer(self.answers.pop(0))

    world, store = World(Turn(tool="pay", arguments={"amount": 5}), "Done."), MemoryStore()
    agent = world.agent(pay)
    with pytest.raises(Stop):
        start(world, store, agent)
    truthful = Ann(IT_DID_NOT_HAPPEN)
    with pytest.raises(Stop):
        start(world, store, agent, interactors=[truthful])
    again = Ann(IT_HAPPENED, "receipt")
    assert start(world, store, agent, interactors=[again]).text == "Done."
    assert paid == [5]
    assert (len(truthful.asked), len(again.asked)) == (1, 2)
    # Both questions name the call.
    assert all('pay({"amount":5})' in prompt for prompt in again.asked)


def test_XA8_the_model_learns_that_verify_found_that_a_call_did_not_happen():
    calls: list[int] = []

    @tool(effect="unsafe", name="pay", verify=lambda key, amount: NOT_HAPPENED)
    async def pay(amount: int) -> str:
        """Pay."""
        calls.append(amount)
        raise KeyError("id")

    world, store = World(Turn(tool="pay", arguments={"amount": 5}), "Not paid."), MemoryStore()
    agent = world.agent(pay)
    for _ in range(2):
        assert start(world, store, agent).text == "Not paid."
    (result,) = results(world.sent[1])
    assert "It did not happen" in result["content"]
    assert "TOOL_OUTCOME_UNKNOWN" not in result["content"]
    assert calls == [5]
    assert world.run(overview(store, "s")).unknown == ()


def test_XA8_also_if_verify_finds_it_after_a_kill_of_the_step_alone():
    # After the first look, each key that the call may have had is looked for.
    looks = itertools.chain([CANNOT_TELL], itertools.repeat(NOT_HAPPENED))
    calls: list[int] = []

    @tool(effect="unsafe", name="pay", verify=lambda key, amount: next(looks))
    async def pay(amount: int) -> str:
        """Pay."""
        calls.append(amount)
        raise ConnectionResetError(104, "reset")

    world, store = World(Turn(tool="pay", arguments={"amount": 5}), "Not paid."), MemoryStore()
    assert start(world, store, world.agent(pay)).text == "Not paid."
    (result,) = results(world.sent[1])
    assert "It did not happen" in result["content"]
    assert calls == [5]


def pending(world: World, store: Any) -> list[str]:
    return [question.prompt for question in world.run(pending_of(store, "s"))]


class Silent:
    """Never answers; the process ends while it is asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, question: Any) -> Answer:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def cut_at_the_question(world: World, store: Any, agent: Any) -> None:
    """Run the program until a person is asked whether the call happened, and end it there."""

    async def main() -> None:
        silent = Silent()
        async with world.session(store, interactors=[silent]) as session:
            running = asyncio.ensure_future(agent.run("pay 5", session=session))
            await silent.asked.wait()
            running.cancel()
            await asyncio.wait([running])

    world.run(main())


@pytest.mark.parametrize(("happened", "paid"), [(True, [5]), (False, [5, 5])])
def test_a_question_whether_a_call_happened_is_closed_when_somebody_resolves_it_elsewhere(
    happened: bool, paid: list[int]
):
    world, machine, store, agent = cut_call()
    cut_at_the_question(world, store, agent)
    assert len(pending(world, store)) == 1
    (key,) = world.run(overview(store, "s")).unknown
    world.run(resolve_step(store, "s", key, happened=happened, result="receipt 9" if happened else None, by="ann"))
    assert pending(world, store) == []
    start(world, store, agent)
    assert pending(world, store) == []
    assert machine.paid == paid
    assert results(world.sent[1])[0]["content"] == ("receipt 9" if happened else "paid 5")


def test_a_question_whether_a_call_happened_is_closed_when_verify_knows():
    world, machine, store, agent = cut_call()
    cut_at_the_question(world, store, agent)

    async def verify(key: str, amount: int) -> Any:
        return Happened("receipt 9")

    start(world, store, world.agent(machine.tool(verify=verify)))
    assert pending(world, store) == []
    assert machine.paid == [5]


def test_a_question_whether_a_call_happened_is_closed_when_the_model_knows_that_nobody_does():
    world, machine, store, agent = cut_call()
    cut_at_the_question(world, store, agent)
    assert start(world, store, agent).text == "Please check."
    assert pending(world, store) == []
    # The doubt itself stays until somebody resolves it.
    assert len(world.run(overview(store, "s")).unknown) == 1
    assert machine.paid == [5]


@pytest.mark.parametrize("happened", [True, False])
def test_somebody_who_is_asked_whether_a_call_happened_is_not_kept_after_it_was_resolved_elsewhere(happened: bool):
    world, _, store, agent = cut_call()
    silent = Silent()

    async def main() -> str:
        async with world.session(store, interactors=[silent]) as session:
            running = asyncio.ensure_future(agent.run("pay 5", session=session))
            await silent.asked.wait()
            (key,) = (await overview(store, "s")).unknown
            await resolve_step(store, "s", key, happened=happened, result=9 if happened else None, by="ann")
            return (await running).text

    assert world.run(main()) == "Please check."
    assert results(world.sent[1])[0]["content"] == ("9" if happened else "paid 5")
    assert pending(world, store) == []


def test_the_fault_of_a_cut_call_does_not_promise_that_it_runs_again():
    world, _, store, agent = cut_call()

    async def main() -> list[Any]:
        async with world.session(store) as session, agent.stream("pay 5", session=session) as parts:
            return [part async for part in parts if isinstance(part, ToolReturned)]

    (returned,) = world.run(main())
    assert "runs it again" not in returned.fault.message
    assert "holdfast sessions resolve s " in returned.fault.message
    assert "say so in a new prompt" in returned.fault.message


def test_an_interactor_that_fails_at_an_approval_ends_the_run_with_its_own_error():
    machine, store = Machine(), MemoryStore()
    world = World(Turn(tool="pay", arguments={"amount": 5}), "Done.")
    with pytest.raises(KeyError) as raised:
        start(world, store, world.agent(machine.tool()), mode="ask", interactors=[Broken()])
    assert any("interactor broken failed with KeyError at question q-" in note for note in raised.value.__notes__)
    assert machine.paid == []
    assert world.received == 1


def test_a_read_that_was_cut_runs_again_and_those_that_ended_do_not():
    ran: list[int] = []
    dies = True

    @tool(effect="read")
    async def look(n: int) -> int:
        """Look."""
        ran.append(n)
        if n == 2 and dies:
            await asyncio.sleep(1)
            raise Stop
        return n

    world, store = World(Turn(calls=tuple(Call("look", {"n": n}) for n in range(3))), "Done."), MemoryStore()
    agent = world.agent(look)
    with pytest.raises(Stop):
        start(world, store, agent)
    dies = False
    assert start(world, store, agent).text == "Done."
    assert sorted(ran) == [0, 1, 2, 2]
    assert [result["content"] for result in results(world.sent[1])] == ["0", "1", "2"]
    assert world.received == 2


def test_a_failed_result_that_the_model_knows_is_not_tried_again_after_a_crash():
    ran = 0

    @tool(effect="unsafe")
    async def deploy() -> str:
        """Deploy."""
        nonlocal ran
        ran += 1
        raise ValueError("the plan is not approved")

    call = Reply(calls=(ToolCall(id="1", name="deploy", arguments={}),), stop="tools")
    model = Scripted(call, RuntimeError("the provider broke"), "I cannot deploy.")
    world, store = World(), MemoryStore()
    agent = world.agent(deploy, model=model)
    with pytest.raises(RuntimeError):
        start(world, store, agent)
    assert start(world, store, agent).text == "I cannot deploy."
    assert ran == 1
    assert "the plan is not approved" in model.requests[-1].messages[-1].text


def test_G21_a_cancelled_run_is_paused_and_the_next_start_goes_on():
    started = 0

    @tool(effect="read")
    async def slow() -> str:
        """Wait."""
        nonlocal started
        started += 1
        if started == 1:
            await asyncio.sleep(60)
        return "fine"

    world, store = World(Turn(tool="slow"), "Done."), MemoryStore()
    agent = world.agent(slow)

    async def main() -> Any:
        async def work() -> None:
            async with world.session(store) as session:
                await agent.run("go", session=session)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The lease is free at once.
        async with world.session(store) as session:
            return await agent.run("go", session=session)

    assert world.run(main()).text == "Done."
    assert world.received == 2


@pytest.mark.parametrize("killed_after", [1, 2])
def test_a_program_killed_between_its_runs_or_after_them_pays_for_nothing_twice(killed_after: int):
    """Outside of turns a run is made once per session: the program is just started again from its beginning."""
    machine, store = Machine(), MemoryStore()
    model = Scripted(
        Reply(calls=(ToolCall(id="1", name="pay", arguments={"amount": 5}),), stop="tools"), "Paid.", "Announced."
    )
    agent = Agent("payer", model, [machine.tool()])
    world = World()

    async def program(killed: int = 0) -> list[str]:
        texts = []
        async with world.session(store, mode="yolo") as session:
            for number, prompt in enumerate(("pay 5", "announce it"), 1):
                texts.append((await agent.run(prompt, session=session)).text)
                if number == killed:
                    raise Stop
        return texts

    with pytest.raises(Stop):
        world.run(program(killed_after))
    assert world.run(program()) == ["Paid.", "Announced."]
    assert machine.paid == [5]
    assert len(model.requests) == 3
    # Once more after its end: everything is there, and the conversation is not remembered twice.
    assert world.run(program()) == ["Paid.", "Announced."]
    assert len(model.requests) == 3
    assert [message.text for message in model.requests[2].messages if isinstance(message, User)] == [
        "pay 5",
        "announce it",
    ]


def test_a_run_that_failed_goes_on_if_it_is_called_again_and_a_second_one_is_a_second_run():
    machine, store = Machine(), MemoryStore()
    pay = Reply(calls=(ToolCall(id="1", name="pay", arguments={"amount": 5}),), stop="tools")
    model = Scripted(pay, RuntimeError("the provider broke"), "Paid.", pay, "Paid again.")
    agent = Agent("payer", model, [machine.tool()])
    world = World()

    async def main() -> None:
        async with world.session(store, mode="yolo") as session:
            with pytest.raises(RuntimeError):
                await agent.run("pay 5", session=session)
            assert (await agent.run("pay 5", session=session)).text == "Paid."
            assert machine.paid == [5]
            assert (await agent.run("pay 5", session=session)).text == "Paid again."

    world.run(main())
    assert machine.paid == [5, 5]


def test_inside_a_turn_of_the_application_the_run_belongs_to_that_turn():
    world, store = World("One.", "Two."), MemoryStore()
    agent = world.agent()

    async def main() -> None:
        async with world.session(store) as session:
            async with session.turn("both"):
                first = await agent.run("first", session=session)
                second = await agent.run("second", session=session)
            assert (first.text, second.text) == ("One.", "Two.")
            assert session.in_flight is None

    world.run(main())
    assert len(world.sent[1]["messages"]) == 3


@pytest.mark.parametrize("killed_in", [2, 3])
def test_runs_of_one_turn_that_is_killed_between_or_inside_them_are_made_once(killed_in: int):
    """A program with several runs in one turn is started from its beginning again: nothing is paid for or done twice."""
    machine, store = Machine(), MemoryStore()
    pay = Reply(calls=(ToolCall(id="1", name="pay", arguments={"amount": 5}),), stop="tools")
    model = Scripted(pay, "Paid.", "Announced.")
    world = World()
    agent = world.agent(machine.tool(), model=model)
    starts = 0

    async def main() -> Any:
        nonlocal starts
        starts += 1
        async with world.session(store) as session, session.turn("release"):
            first = await agent.run("pay 5", session=session)
            if killed_in == 2 and starts == 1:
                raise Stop
            second = await agent.run("announce it", session=session)
            if killed_in == 3 and starts == 1:
                raise Stop
            return first.text, second.text

    with pytest.raises(Stop):
        world.run(main())
    assert world.run(main()) == ("Paid.", "Announced.")
    assert machine.paid == [5]
    assert len(model.requests) == 3
    assert [type(message).__name__ for message in model.requests[-1].messages] == [
        "User", "Assistant", "ToolResult", "Assistant", "User",
    ]  # fmt: skip


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_run_that_failed_is_continued_in_the_same_process_and_repeats_no_unsafe_call(in_turn: bool):
    machine, store = Machine(), MemoryStore()
    pay = Reply(calls=(ToolCall(id="1", name="pay", arguments={"amount": 5}),), stop="tools")
    model = Scripted(pay, RuntimeError("broken"), RuntimeError("still broken"), "Paid.", pay, "Paid again.")
    world = World()
    agent = world.agent(machine.tool(), model=model)

    async def main() -> None:
        async with world.session(store) as session, session.turn("x") if in_turn else nullcontext():
            for _ in range(2):
                with pytest.raises(RuntimeError):
                    await agent.run("pay 5", session=session)
            assert (await agent.run("pay 5", session=session)).text == "Paid."
            assert machine.paid == [5]
            # A run that ended well is over: the same words are a new request.
            assert (await agent.run("pay 5", session=session)).text == "Paid again."
            assert machine.paid == [5, 5]

    world.run(main())
    assert len(model.requests) == 6


def test_a_run_that_its_loop_has_ended_begins_anew():
    model = Scripted(Reply(calls=(ToolCall(id="1", name="nothing", arguments={}),), stop="tools"), "Fine.")
    world, store = World(), MemoryStore()
    agent = world.agent(model=model, max_turns=1)

    async def main() -> None:
        async with world.session(store) as session:
            assert (await agent.outcome("go", session=session)).fault.code == "TASK_LOOP_BOUND"
            assert (await agent.run("go", session=session)).text == "Fine."

    world.run(main())
    assert len(model.requests[-1].messages) == 1


def test_runs_of_one_agent_at_the_same_time_in_one_turn_are_told_apart_after_a_crash():
    store, dies = MemoryStore(), True

    class Echo(Scripted):
        async def exchange(self, request: Any) -> Reply:
            await super().exchange(request)
            return Reply(text=f"about {request.messages[-1].text}")

    model = Echo("never")
    world = World()
    agent = world.agent(model=model)

    async def main() -> list[str]:
        async with world.session(store) as session, session.turn("both"):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(agent.run(text, session=session)) for text in ("a", "b", "a")]
            if dies:
                raise Stop
            return [task.result().text for task in tasks]

    with pytest.raises(Stop):
        world.run(main())
    dies = False
    assert world.run(main()) == ["about a", "about b", "about a"]
    assert len(model.requests) == 3


def test_a_turn_that_failed_is_not_remembered():
    model = Scripted("Hello.", RuntimeError("broken"), "Fine.")
    world, store = World(), MemoryStore()
    agent = world.agent(model=model)

    async def main() -> None:
        async with world.session(store) as session:
            await agent.run("one", session=session)
            with pytest.raises(RuntimeError):
                await agent.run("two", session=session)
            await agent.run("three", session=session)

    world.run(main())
    assert [message.text for message in model.requests[-1].messages] == ["one", "Hello.", "three"]


def test_the_history_grows_by_what_a_turn_adds():
    """Each turn writes about as much as the one before: the conversation is not stored again with each turn."""
    world, store = World(), MemoryStore()
    agent = world.agent(model=Scripted("x" * 500))
    sizes: list[int] = []

    async def main() -> None:
        async with world.session(store) as session:
            for n in range(40):
                await agent.run(f"turn {n}", session=session)
                entries = await store.read("s", after=0, limit=100_000)
                sizes.append(sum(len(bytes(entry.body)) for entry in entries))

    world.run(main())
    added = [after - before for before, after in pairwise(sizes)]
    assert max(added[5:]) < 1.5 * min(added[5:])


def test_a_stream_that_is_continued_yields_what_is_stored_and_then_goes_on():
    machine, store = Machine(), MemoryStore()
    world = World(Turn(text="I pay.", calls=(Call("pay", {"amount": 5}),)), "Check it.")
    agent = world.agent(machine.tool())

    async def read() -> list[Any]:
        async with world.session(store) as session, agent.stream("pay 5", session=session) as parts:
            return [part async for part in parts]

    machine.dies = True
    with pytest.raises(Stop):
        world.run(read())
    machine.dies = False
    parts = world.run(read())
    assert "".join(part.text for part in parts if isinstance(part, Text)) == "I pay.Check it."
    assert [part.fault.code for part in parts if isinstance(part, ToolReturned)] == ["TOOL_OUTCOME_UNKNOWN"]
    assert isinstance(parts[-1], Done)
    assert machine.paid == [5]


def test_a_stream_says_that_a_person_is_asked_and_goes_on_with_the_answer():
    machine, store = Machine(), MemoryStore()
    world = World(Turn(tool="pay", arguments={"amount": 5}), "Done.")
    agent = world.agent(machine.tool())

    class Nobody:
        async def ask(self, question: Any) -> Any:
            await asyncio.Event().wait()

    async def main() -> list[Any]:
        seen: list[Any] = []
        async with (
            world.session(store, mode="ask", interactors=[Nobody()]) as session,
            agent.stream("pay 5", session=session) as parts,
        ):
            async for part in parts:
                seen.append(part)
                if isinstance(part, Asking):
                    assert machine.paid == []
                    await session.answer(part.id, approved=True)
        return seen

    parts = world.run(main())
    (asking,) = [part for part in parts if isinstance(part, Asking)]
    assert asking.kind == "Approve"
    assert "pay" in asking.prompt
    assert machine.paid == [5]
    assert isinstance(parts[-1], Done)


PROGRAM = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from holdfast import Agent, Session, tool
    from holdfast.providers import Offers, Reply, ToolCall

    class Model:
        name, offers = "own/model", Offers()

        async def exchange(self, request):
            return Reply(calls=(ToolCall(id="toolu_1", name="pay", arguments={"amount": 5}),), stop="tools")

        def stream(self, request, *, after_first="raise"):
            raise NotImplementedError

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        "Pay."
        with open(sys.argv[2], "a") as ledger:
            ledger.write(f"{amount}\\n")
        if sys.argv[3] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        print("waiting", flush=True)
        await asyncio.sleep(60)

    async def main():
        async with Session.open("s", store=f"sqlite:{sys.argv[1]}", mode="yolo") as session:
            await Agent("payer", Model(), [pay]).run("pay 5", session=session)

    asyncio.run(main())
    """
)


def program(folder: Path, how: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(folder / "s.db"), str(folder / "ledger"), how]


def resume(world: World, folder: Path) -> Any:
    """Start again, in this process and in real time, with the real SDK."""

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        """Pay."""
        raise AssertionError("it must not run twice")

    async def main() -> Any:
        async with Session.open("s", store=f"sqlite:{folder / 's.db'}", mode="yolo") as session:
            return await Agent("payer", world.model(), [pay]).run("pay 5", session=session)

    return asyncio.run(main())


def test_G1_a_process_killed_between_a_call_and_its_result_resumes_with_a_valid_request(tmp_path: Path):
    killed = subprocess.run(program(tmp_path, "die"), capture_output=True, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    # The provider plays its second turn, because the conversation has one answer.
    world = World("never", "I do not know whether it was paid.")
    assert resume(world, tmp_path).text == "I do not know whether it was paid."
    assert world.received == 1
    (sent,) = world.sent
    assert accepts(sent)
    assert "TOOL_OUTCOME_UNKNOWN" in results(sent)[0]["content"]
    assert (tmp_path / "ledger").read_text() == "5\n"


def test_G21_ctrl_c_releases_the_lease_and_the_next_start_goes_on(tmp_path: Path):
    with subprocess.Popen(program(tmp_path, "wait"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"waiting\n"
        # While it works, a second process is refused.
        world = World("never", "Unknown.")
        with pytest.raises(HoldfastError) as caught:
            resume(world, tmp_path)
        assert caught.value.fault.code == "SESS_LEASE_LOST"
        running.send_signal(signal.SIGINT)
        running.wait(30)
    assert resume(world, tmp_path).text == "Unknown."
    assert world.received == 1
    assert (tmp_path / "ledger").read_text() == "5\n"


STOPPED = textwrap.dedent(
    """
    import asyncio, sys
    from holdfast import Agent, Session, tool
    from holdfast.agents import stop_on_signals
    from holdfast.providers import Offers, Reply, ToolCall
    from holdfast.tools import bash

    class Model:
        name, offers = "own/model", Offers()

        async def exchange(self, request):
            if len(request.messages) > 1:
                return Reply(text="Done: " + request.messages[-1].text)
            command = f"echo $$ > {sys.argv[1]}/pid; sleep 600" if sys.argv[2] == "wait" else "echo fine"
            return Reply(calls=(ToolCall(id="1", name="bash", arguments={"command": command}),), stop="tools")

        def stream(self, request, *, after_first="raise"):
            raise NotImplementedError

    async def main():
        with stop_on_signals():
            async with Session.open("s", store=f"sqlite:{sys.argv[1]}/s.db", mode="yolo") as session:
                print((await Agent("a", Model(), [bash(sys.argv[1])]).run("go", session=session)).text)

    asyncio.run(main())
    """
)


def test_G21_sigterm_ends_the_programs_of_tools_and_the_next_start_goes_on(tmp_path: Path):
    command = [sys.executable, "-c", STOPPED, str(tmp_path)]
    os.mkfifo(tmp_path / "pid")
    with subprocess.Popen([*command, "wait"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        # Reading waits until the shell writes.
        pid = int((tmp_path / "pid").read_text())
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=30)
        assert running.returncode == 128 + signal.SIGTERM, errors.decode()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    again = subprocess.run([*command, "run"], capture_output=True, text=True, check=False, timeout=60)
    # The shell was cut midway, and nobody knows what it did. It is not run a second time.
    assert "TOOL_OUTCOME_UNKNOWN" in again.stdout, again.stderr


SHARED = textwrap.dedent(
    """
    import asyncio, logging, sys
    from holdfast import Agent, HoldfastError, Session
    from holdfast.providers import Offers, Reply

    folder, who, wait = sys.argv[1], sys.argv[2], float(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    class Model:
        name, offers = "own/model", Offers()

        async def exchange(self, request):
            with open(f"{folder}/requests", "a") as log:
                log.write(f"{who}\\n")
            print("asking", flush=True)
            # Until the test says what to answer.
            text = await asyncio.to_thread(sys.stdin.readline)
            return Reply(text=text.strip())

        def stream(self, request, *, after_first="raise"):
            raise NotImplementedError

    async def main():
        try:
            async with Session.open("s", store=f"sqlite:{folder}/s.db", wait=wait) as session:
                print((await Agent("a", Model()).run("go", session=session)).text, flush=True)
        except HoldfastError as error:
            print(error.fault.code, error.fault.context.get("owner", "").split("/")[1], flush=True)

    asyncio.run(main())
    """
)


class Started:
    """A real process that runs the agent on the session."""

    def __init__(self, folder: Path, who: str, wait: float) -> None:
        command = [sys.executable, "-c", SHARED, str(folder), who, str(wait)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def log_line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline().strip()

    def answer(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def requests_in(folder: Path) -> list[str]:
    return (folder / "requests").read_text().split()


def test_G22_of_two_processes_on_a_session_one_runs_and_the_other_is_refused(tmp_path: Path):
    with Started(tmp_path, "first", 0) as first:
        assert first.line() == "asking"
        with Started(tmp_path, "second", 0) as second:
            assert second.line() == f"SESS_LEASE_LOST {first.process.pid}"
        first.answer("Done.")
        assert first.line() == "Done."
    assert requests_in(tmp_path) == ["first"]


def test_G22_the_second_process_waits_by_choice_and_gets_the_answer_of_the_first(tmp_path: Path):
    with Started(tmp_path, "first", 0) as first:
        assert first.line() == "asking"
        with Started(tmp_path, "second", 60) as second:
            assert f"/{first.process.pid}/" in second.log_line()
            first.answer("Done.")
            assert [first.line(), second.line()] == ["Done.", "Done."]
    assert requests_in(tmp_path) == ["first"]


def test_G22_the_process_that_waits_goes_on_when_the_first_one_is_killed(tmp_path: Path):
    with Started(tmp_path, "first", 0) as first:
        assert first.line() == "asking"
        with Started(tmp_path, "second", 60) as second:
            assert second.log_line().startswith("session s is in use by ")
            first.process.kill()
            assert second.line() == "asking"
            second.answer("Done.")
            assert second.line() == "Done."
    # The answer to the first request is lost with its process, so it is asked again once.
    assert requests_in(tmp_path) == ["first", "second"]


def test_G22_nobody_waits_longer_than_asked():
    world, store = World("fine"), MemoryStore()

    async def main() -> float:
        async with world.session(store):
            begun = asyncio.get_running_loop().time()
            with pytest.raises(HoldfastError) as caught:
                async with world.session(store, wait=45):
                    raise AssertionError("both in one session")
            assert caught.value.fault.code == "SESS_LEASE_LOST"
            return asyncio.get_running_loop().time() - begun

    assert world.run(main()) == pytest.approx(45, abs=0.01)
    with pytest.raises(InvalidError, match=r"session\.wait"):
        world.session(store, wait=-1)


def test_a_name_on_the_list_of_a_session_that_no_tool_has_is_reported_once(caplog):
    world = World("Done.", "Done.")

    @tool(effect="read")
    def read_file(path: str) -> str:
        """Read a file."""
        return path

    @tool(effect="read")
    def weather(city: str) -> str:
        """Tell the weather."""
        return city

    guide = world.agent(weather, name="guide")
    agent = world.agent(read_file, guide, name="reader")
    allowed = ["read_flie", "guide", "weather"]

    async def work() -> None:
        async with Session.open(
            "s", store=MemoryStore(), mode="allowlist", allowed_tools=allowed, runtime=world.runtime
        ) as session:
            await agent.run("Read it.", session=session)
            await agent.run("And again.", session=session)

    world.run(work())
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "session.allowed_tools: no tool of agent reader is named `read_flie` (did you mean `read_file`?)"
    ]
