"""The tool calls of one reply: side by side, in order, asked about one at a time, and never the end of a turn."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest

from holdfast import Agent, Budget, Runtime, Session, fault_of, tool
from holdfast.agents.approval import Approval
from holdfast.agents.conversation import is_valid
from holdfast.agents.once import InSession
from holdfast.agents.tool_calls import ToolCalls
from holdfast.faults import HoldfastError, InvalidError
from holdfast.providers import ToolCall, ToolResult
from holdfast.providers.anthropic import anthropic_model
from holdfast.providers.messages import Message
from holdfast.sessions import Answer, answer
from holdfast.stores import MemoryStore
from holdfast.testing import FaultProvider, run
from holdfast.testing.provider import Script, Turn
from holdfast.testing.provider import ToolCall as Call
from holdfast.tools import Toolbox
from holdfast.tools.toolbox import shown_result


class World:
    """Tools, and what they have done."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.running = self.most = 0
        self.hold = asyncio.Event()

    def toolbox(self) -> Toolbox:
        world = self

        @tool(effect="read")
        async def look(at: str, seconds: float = 0.0) -> str:
            """Look at something."""
            world.running += 1
            world.most = max(world.most, world.running)
            try:
                await asyncio.sleep(seconds)
            finally:
                world.running -= 1
            world.done.append(("look", at))
            return f"seen {at}"

        @tool(effect="unsafe")
        async def pay(to: str, amount: int = 1) -> str:
            """Pay somebody."""
            world.done.append(("pay", to, amount))
            return f"paid {amount} to {to}"

        @tool(effect="unsafe")
        async def wait(name: str) -> str:
            """Wait until the test goes on."""
            world.done.append(("wait", name))
            await world.hold.wait()
            return name

        @tool(effect="read")
        async def fail(why: str = "no luck") -> str:
            """Fail."""
            raise ValueError(why)

        @tool(effect="read")
        async def slow() -> str:
            """Take too long."""
            await asyncio.sleep(10_000)
            return "never"

        @tool(effect="read")
        async def gives_up() -> str:
            """Cancel itself."""
            raise asyncio.CancelledError

        return Toolbox([look, pay, wait, fail, slow, gives_up])

    def calls(self, **options: Any) -> ToolCalls:
        return ToolCalls(self.toolbox(), **options)


def call(name: str, id: str = "", /, **arguments: Any) -> ToolCall:  # noqa: A002 - the field's own name
    return ToolCall(id=id or f"id-{name}", name=name, arguments=arguments)


def shape(result: Any) -> Any:
    return msgspec.json.decode(result.content)


class Clerk:
    """Answers questions as its function says, and keeps what was shown."""

    name = "clerk"

    def __init__(self, decide: Any = lambda question: Answer(True)) -> None:
        self.decide = decide
        self.shown: list[Any] = []

    async def ask(self, question: Any) -> Answer:
        self.shown.append(question)
        given = self.decide(question)
        return await given if asyncio.iscoroutine(given) else given


async def trail(store: MemoryStore) -> list[dict[str, Any]]:
    records = [record for record in await store.audit("session:s", limit=1000) if record.kind == "Approval"]
    return [msgspec.json.decode(bytes(record.payload)) for record in records]


# Order and limits


def test_N2_9_results_are_in_the_order_of_the_calls_whoever_is_ready_first():
    async def main():
        ready: list[str] = []
        given = [call("look", str(at), at=f"{at}", seconds=10.0 - at) for at in range(8)]
        results = await World().calls().run(given, returned=lambda result: ready.append(result.id))
        assert [result.content for result in results] == [f"seen {at}" for at in range(8)]
        assert [(result.id, result.name) for result in results] == [(str(at), "look") for at in range(8)]
        assert ready == [str(at) for at in reversed(range(8))]

    run(main())


def test_G25_of_1000_calls_in_one_turn_only_so_many_run_at_once_and_order_holds():
    async def main():
        world = World()
        given = [call("look", str(at), at=str(at), seconds=(at * 7) % 13) for at in range(1000)]
        tracemalloc.start()
        results = await world.calls(concurrency=16).run(given)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert [result.id for result in results] == [str(at) for at in range(1000)]
        assert [result.content for result in results] == [f"seen {at}" for at in range(1000)]
        assert world.most == 16
        assert peak < 32_000_000

    run(main())


def test_no_calls_have_no_results():
    assert run(World().calls().run([])) == []


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"expires": -1}])
def test_wrong_options_are_rejected(wrong):
    with pytest.raises(InvalidError, match="tool_calls"):
        World().calls(**wrong)


# Each failure is data


def test_N2_9_each_kind_of_failure_is_a_typed_result_and_the_other_calls_are_made():
    async def main():
        world = World()
        calls = world.calls(guards=[lambda asked: "not today" if asked.arguments.get("to") == "eve" else None])
        given = [
            call("lok", at="x"),
            call("look", wrong=1),
            ToolCall(id="5", name="look", arguments='{"at": '),  # type: ignore[arg-type] # what a model may write
            call("fail", why="unknown city; known are Oslo and Bergen"),
            call("slow"),
            call("gives_up"),
            call("pay", to="eve"),
            call("look", at="x"),
        ]
        results = await calls.run(given)
        codes = [None if result.fault is None else result.fault.code for result in results]
        assert codes == [
            "TOOL_NOT_FOUND",
            "TOOL_INPUT_INVALID",
            "TOOL_INPUT_INVALID",
            "TOOL_EXECUTION_FAILED",
            "TOOL_TIMEOUT",
            "TOOL_CANCELLED",
            "TOOL_APPROVAL_DENIED",
            None,
        ]
        assert "did you mean `look`" in shape(results[0])["context"]["message"]
        assert "Oslo and Bergen" in shape(results[3])["context"]["message"]
        assert "not today" in shape(results[6])["context"]["message"]
        assert [result.is_error for result in results] == [True] * 7 + [False]
        assert world.done == [("look", "x")]

    run(main())


def test_G3_three_calls_one_fails_one_is_denied_one_is_cancelled():
    """The turn goes on with three results in the order of the calls."""

    async def main():
        world = World()
        clerk = Clerk(lambda question: Answer.no("too much") if "pay" in question.prompt else Answer(True))
        store = MemoryStore()
        async with Session.open("s", store=store, interactors=[clerk]) as session, session.turn("hi"):
            calls = world.calls()
            given = [call("fail"), call("pay", to="ann"), call("wait", "7", name="w")]
            running = asyncio.ensure_future(calls.run(given, session=session))
            await asyncio.sleep(10)
            assert calls.cancel("7")
            failed, denied, cancelled = await running
            assert not calls.cancel("7")
        codes = [result.fault and result.fault.code for result in (failed, denied, cancelled)]
        assert codes == ["TOOL_EXECUTION_FAILED", "TOOL_APPROVAL_DENIED", "TOOL_CANCELLED"]
        assert "the user said: too much" in denied.content
        # It had begun and is unsafe, so nobody knows what it has done.
        assert cancelled.fault is not None
        assert cancelled.fault.maybe_executed
        assert "The effect may have happened" in cancelled.content
        assert world.done == [("wait", "w")]
        assert {"event": "cancelled", "tool": "wait", "call": "7", "began": True}.items() <= (await trail(store))[
            -1
        ].items()

    run(main())


def test_a_guard_that_raises_ends_the_run_after_the_other_calls():
    async def main():
        world = World()

        async def guard(asked):
            await asyncio.sleep(1)
            if asked.name == "pay":
                raise RuntimeError("the policy server is down")

        with pytest.raises(RuntimeError, match="policy server"):
            await world.calls(guards=[guard]).run([call("pay", to="ann"), call("look", at="x", seconds=5)])
        assert world.done == [("look", "x")]

    run(main())


def test_guards_run_after_the_approval_and_in_their_order():
    async def main():
        seen: list[str] = []

        def guard(name):
            return lambda asked: seen.append(f"{name} {asked.name}")

        clerk = Clerk(lambda question: seen.append("clerk") or Answer("ann" in question.prompt))
        async with Session.open("s", store=MemoryStore(), interactors=[clerk]) as session:
            calls = World().calls(guards=[guard("first"), guard("second")], concurrency=1)
            await calls.run([call("pay", to="ann"), call("pay", to="bob")], session=session)
        assert seen == ["clerk", "first pay", "second pay", "clerk"]

    run(main())


# Modes


def test_G14_allowlist_denies_without_asking_ask_asks_yolo_runs_and_is_audited():
    async def main():
        answers = {}
        for mode, given in {"allowlist": {"allowed_tools": ["look"]}, "ask": {}, "yolo": {}}.items():
            world, clerk, store = World(), Clerk(), MemoryStore()
            async with Session.open("s", store=store, mode=mode, interactors=[clerk], **given) as session:
                results = await world.calls().run([call("pay", to="ann"), call("look", at="x")], session=session)
            answers[mode] = ([result.is_error for result in results], len(clerk.shown), world.done, await trail(store))
        assert answers["allowlist"][:3] == ([True, False], 0, [("look", "x")])
        assert answers["ask"][:3] == ([False, False], 1, [("look", "x"), ("pay", "ann", 1)])
        assert answers["yolo"][:3] == ([False, False], 0, [("pay", "ann", 1), ("look", "x")])
        denied, allowed = answers["allowlist"][3]
        assert (denied["verdict"], denied["by"], allowed["verdict"]) == ("deny", "mode", "run")
        assert [record["event"] for record in answers["ask"][3]] == ["raised", "answered"]
        assert [(each["tool"], each["verdict"], each["mode"]) for each in answers["yolo"][3]] == [
            ("pay", "run", "yolo"),
            ("look", "run", "yolo"),
        ]

    run(main())


def test_without_a_session_every_call_runs_unless_the_program_wants_somebody_to_be_asked():
    async def main():
        world = World()
        (paid,) = await world.calls().run([call("pay", to="ann")])
        (denied,) = await world.calls(approval=Approval()).run([call("pay", to="bob")])
        assert not paid.is_error
        assert denied.is_error
        assert "without a session" in denied.content
        assert world.done == [("pay", "ann", 1)]

    run(main())


def test_N2_19_a_grant_lets_a_call_run_that_would_be_asked_about_and_is_not_looked_for_outside_of_the_envelope():
    async def main():
        looked: list[str] = []

        async def grant(asked):
            looked.append(asked.name)
            return "approve" if asked.arguments == {"to": "ann"} else None

        world, clerk = World(), Clerk(lambda _: Answer(False))
        async with Session.open("s", store=MemoryStore(), interactors=[clerk]) as session:
            calls = world.calls(approval=Approval.of(session, envelope=["pay"]), grant=grant)
            given = [call("pay", to="ann"), call("pay", to="bob"), call("look", at="x")]
            granted, asked, outside = await calls.run(given, session=session)
        assert [granted.is_error, asked.is_error, outside.is_error] == [False, True, True]
        assert looked == ["pay", "pay"]
        assert len(clerk.shown) == 1
        assert "stage does not allow" in outside.content
        assert world.done == [("pay", "ann", 1)]

    run(main())


# Questions


def test_N2_9_people_are_asked_one_at_a_time_in_order_while_approved_calls_run():
    async def main():
        world = World()
        at_once = 0
        seen: list[Any] = []

        async def decide(question):
            nonlocal at_once
            at_once += 1
            assert at_once == 1
            await asyncio.sleep(10)
            at_once -= 1
            seen.append((question.details["arguments"], list(world.done)))
            return Answer(True)

        given = [call("pay", str(at), to=f"p{at}") for at in range(4)] + [call("look", at="x")]
        async with Session.open("s", store=MemoryStore(), interactors=[Clerk(decide)]) as session:
            results = await world.calls(concurrency=2).run(given, session=session)
        assert [arguments for arguments, _ in seen] == [f'{{"to":"p{at}"}}' for at in range(4)]
        # The call that needs no question ran first, and each approved call ran while the next question was shown.
        assert [len(done) for _, done in seen] == [1, 2, 3, 4]
        assert [result.is_error for result in results] == [False] * 5

    run(main())


def test_a_question_does_not_take_the_place_of_a_call_that_runs():
    async def main():
        world = World()
        clerk = Clerk(lambda _: asyncio.sleep(100, Answer(True)))
        given = [call("pay", "0", to="ann"), *(call("look", f"l{at}", at=str(at), seconds=5) for at in range(4))]
        async with Session.open("s", store=MemoryStore(), interactors=[clerk]) as session:
            await world.calls(concurrency=1).run(given, session=session)
        assert world.done[-1] == ("pay", "ann", 1)

    run(main())


def test_G13_arguments_that_change_while_a_person_looks_are_asked_about_again():
    async def main():
        world = World()
        asked = call("pay", to="ann", amount=5)

        def change(question):
            if len(clerk.shown) == 1:
                asked.arguments["amount"] = 5000
            return Answer("5000" not in question.prompt)

        clerk, store = Clerk(change), MemoryStore()
        async with Session.open("s", store=store, interactors=[clerk]) as session:
            (result,) = await world.calls().run([asked], session=session)
        assert [question.details["arguments"] for question in clerk.shown] == [
            '{"amount":5,"to":"ann"}',
            '{"amount":5000,"to":"ann"}',
        ]
        assert result.is_error
        assert world.done == []
        assert "void" in [record["event"] for record in await trail(store)]

    run(main())


def test_G13_arguments_that_change_each_time_are_denied_in_the_end():
    async def main():
        world = World()
        asked = call("pay", to="ann", amount=5)

        def change(_):
            asked.arguments["amount"] += 1
            return Answer(True)

        clerk = Clerk(change)
        async with Session.open("s", store=MemoryStore(), interactors=[clerk]) as session:
            (result,) = await world.calls().run([asked], session=session)
        assert result.is_error
        assert (len(clerk.shown), world.done) == (3, [])

    run(main())


def test_G13_what_runs_is_what_was_shown_also_if_it_changes_after_the_answer():
    async def main():
        world = World()
        asked = call("pay", to="ann", amount=5)

        async def guard(_):
            asked.arguments["amount"] = 5000

        async with Session.open("s", store=MemoryStore(), interactors=[Clerk()]) as session:
            await world.calls(guards=[guard]).run([asked], session=session)
        assert world.done == [("pay", "ann", 5)]

    run(main())


def test_with_a_session_and_a_key_no_call_is_made_twice_however_often_the_program_is_cut():
    """First in a call, then after the calls."""
    given = [call("pay", to="ann"), call("wait", name="w"), call("look", at="x")]

    async def main():
        world, store = World(), MemoryStore()

        async def program() -> list[Any]:
            async with (
                Session.open("s", store=store, mode="yolo") as session,
                session.turn("pay", unfinished="continue"),
            ):
                return await world.calls().run(given, key="reply 1", session=session)

        async def cut_after_the_calls() -> None:
            async with (
                Session.open("s", store=store, mode="yolo") as session,
                session.turn("pay", unfinished="continue"),
            ):
                await world.calls().run(given, key="reply 1", session=session)
                raise KeyError

        cut = asyncio.ensure_future(program())
        await asyncio.sleep(1)
        assert len(world.done) == 3
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        with pytest.raises(KeyError):
            await cut_after_the_calls()
        paid, waited, looked = await program()
        assert [done for done in world.done if done[0] != "look"] == [("pay", "ann", 1), ("wait", "w")]
        assert (paid.content, looked.content) == ("paid 1 to ann", "seen x")
        assert waited.fault.code == "TOOL_OUTCOME_UNKNOWN"

    run(main())


def test_two_equal_calls_are_two_questions():
    async def main():
        world, clerk = World(), Clerk()
        async with Session.open("s", store=MemoryStore(), interactors=[clerk]) as session:
            await world.calls().run([call("pay", to="ann"), call("pay", to="ann")], key="1", session=session)
        assert len({question.id for question in clerk.shown}) == 2
        assert [question.details["call"] for question in clerk.shown] == ["1.0", "1.1"]

    run(main())


def test_with_nobody_attached_all_questions_are_kept_and_what_may_run_has_run():
    async def main():
        world, store = World(), MemoryStore()
        given = [call("pay", to="ann"), call("look", at="x", seconds=3), call("pay", to="bob")]
        with pytest.raises(HoldfastError) as halted:
            async with Session.open("s", store=store) as session, session.turn("hi"):
                await world.calls().run(given, session=session)
        assert halted.value.fault.code == "SESS_NO_INTERACTOR"
        assert world.done == [("look", "x")]
        kept = session.pending
        # The error names the commands for both.
        assert halted.value.fault.context["open"] == [question.id for question in kept]
        for question in kept:
            assert f"holdfast sessions answer s {question.id} --yes" in str(halted.value)
        assert ["ann" in kept[0].prompt, "bob" in kept[1].prompt, len(kept)] == [True, True, 2]
        for question, approved in zip(kept, (True, False), strict=True):
            await answer(store, "s", question.id, approved=approved)
        async with Session.open("s", store=store) as session, session.turn("hi"):
            results = await world.calls().run(given, session=session)
        assert [result.is_error for result in results] == [False, False, True]
        assert ("pay", "ann", 1) in world.done

    run(main())


def test_a_question_that_nobody_answers_in_time_denies_the_call():
    async def main():
        world = World()
        async with Session.open("s", store=MemoryStore()) as session:
            (result,) = await world.calls(expires=60).run([call("pay", to="ann")], session=session)
        assert "nobody answered in time" in result.content
        assert world.done == []

    run(main())


def test_a_dismissed_question_cancels_the_turn_and_no_later_call_runs():
    async def main():
        world = World()
        clerk = Clerk(lambda _: Answer.dismissed())
        with pytest.raises(HoldfastError) as ended:
            async with Session.open("s", store=MemoryStore(), interactors=[clerk]) as session, session.turn("hi"):
                await world.calls().run([call("pay", to="ann"), call("pay", to="bob")], session=session)
        assert ended.value.fault.code == "SESS_TURN_CANCELLED"
        assert world.done == []

    run(main())


# Cancellation


@pytest.mark.parametrize("durable", [False, True])
def test_a_tool_that_cancels_or_closes_what_it_runs_in_ends_its_own_call_and_nothing_else(durable):
    async def cancels() -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(10_000)
        return "never"

    async def cancels_and_returns() -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return "done"

    async def closes() -> str:
        raise GeneratorExit

    hostile = [tool(effect="read")(fn) for fn in (cancels, cancels_and_returns, closes)]

    async def main() -> None:
        world = World()
        calls = ToolCalls(Toolbox([*hostile, *world.toolbox()]))
        given = [call(one.__name__, str(at)) for at, one in enumerate(hostile)]
        given.append(call("look", "l", at="x", seconds=5))
        caller = asyncio.current_task()
        assert caller is not None
        if durable:
            async with Session.open("s", store=MemoryStore(), mode="yolo") as session:
                results = await calls.run(
                    given, key="1", session=session, steps=InSession(session, "run", shown_result, Runtime())
                )
        else:
            results = await calls.run(given)
        codes = [None if each.fault is None else each.fault.code for each in results]
        assert codes[0] == "TOOL_CANCELLED"
        assert codes[1:] == [None, "TOOL_EXECUTION_FAILED", None]
        assert (results[-1].content, caller.cancelling()) == ("seen x", 0)
        await asyncio.sleep(1)

    run(main())


def test_a_call_that_is_closed_from_outside_is_closed():
    @tool(effect="read")
    async def waits() -> str:
        await asyncio.sleep(10_000)
        return "never"

    async def main() -> None:
        called = Toolbox([waits]).answer("waits", {})
        called.send(None)
        called.close()

    run(main())


def test_a_cancellation_of_the_turn_ends_every_call_and_its_decisions_are_audited():
    async def main():
        world, store = World(), MemoryStore()
        async with Session.open("s", store=store, interactors=[Clerk(lambda _: asyncio.sleep(10_000))]) as session:
            given = [call("look", "1", at="x", seconds=10_000), call("pay", "2", to="ann"), call("look", "3", at="y")]
            running = asyncio.ensure_future(world.calls().run(given, session=session))
            await asyncio.sleep(100)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (world.running, world.done) == (0, [("look", "y")])
        ended = [(record["tool"], record["event"]) for record in await trail(store) if "tool" in record]
        assert ended == [("look", "cancelled"), ("pay", "cancelled")]

    run(main())


def test_a_call_that_waits_for_its_approval_is_cancelled_alone_and_has_done_nothing():
    async def main():
        world = World()
        async with Session.open(
            "s", store=MemoryStore(), interactors=[Clerk(lambda _: asyncio.sleep(10_000))]
        ) as session:
            calls = world.calls()
            running = asyncio.ensure_future(
                calls.run([call("pay", "1", to="ann"), call("look", at="x")], session=session)
            )
            await asyncio.sleep(10)
            assert calls.cancel("1")
            cancelled, seen = await running
        assert cancelled.fault is not None
        assert (cancelled.fault.code, cancelled.fault.maybe_executed) == ("TOOL_CANCELLED", False)
        assert seen.content == "seen x"

    run(main())


def test_calls_keep_the_deadline_of_the_budget_around_them():
    async def main():
        world = World()
        started = asyncio.get_running_loop().time()
        with Budget(seconds=30):
            slow, quick = await world.calls().run([call("slow"), call("look", at="x")])
        assert slow.is_error
        assert slow.fault is not None
        assert quick.content == "seen x"
        assert asyncio.get_running_loop().time() - started <= 31

    run(main())


class LibraryError(BaseException):
    """What a library raises to end the program, as pytest's `fail` does."""


@tool(effect="unsafe")
async def ends(why: str) -> str:
    """Raise what is no `Exception`."""
    raise LibraryError(why)


def test_the_results_beside_a_call_that_ends_the_program_are_on_the_error() -> None:
    """A library's own exception is not answered, and takes no neighbour's result with it."""
    world = World()
    tools = Toolbox([*world.toolbox(), ends])
    calls = [
        ToolCall(id="1", name="pay", arguments={"to": "ann"}),
        ToolCall(id="2", name="ends", arguments={"why": "over"}),
        ToolCall(id="3", name="look", arguments={"at": "kelp", "seconds": 5}),
    ]
    with pytest.raises(LibraryError, match="over") as raised:
        run(ToolCalls(tools, approval=Approval(mode="yolo")).run(calls))
    paid, ended, seen = partial_of(raised.value)["results"]
    assert (paid["id"], paid["content"], paid.get("is_error")) == ("1", "paid 1 to ann", None)
    assert (ended["id"], ended["name"], ended["is_error"]) == ("2", "ends", True)
    assert (seen["id"], seen["content"]) == ("3", "seen kelp")


def partial_of(error: BaseException) -> dict[str, Any]:
    partial = fault_of(error).partial
    assert partial is not None
    return dict(partial.payload)


@pytest.mark.parametrize("ending", [LibraryError, None])
def test_a_run_that_a_call_ends_holds_a_conversation_that_can_be_sent(ending: type[BaseException] | None) -> None:
    """The calls beside it were made. What there is so far has their results, whether or not the program is to end."""
    world, last = World(), ("pay", {"to": "eve"}) if ending is None else ("ends", {"why": "over"})
    reply = Turn(calls=(Call("look", {"at": "kelp"}), Call(*last)))
    model = FaultProvider(Script(replies=(reply, "Done.")))
    client = anthropic.AsyncAnthropic(api_key="none", http_client=httpx2.AsyncClient(transport=model.transport()))
    agent = Agent("clerk", anthropic_model("claude-haiku-4-5", client), [*world.toolbox(), ends])

    async def work() -> None:
        async with Session.open("s", store=MemoryStore(), mode="ask" if ending is None else "yolo") as session:
            await agent.run("go", session=session)

    with pytest.raises(ending or HoldfastError) as raised:
        run(work())
    messages = msgspec.convert(partial_of(raised.value)["messages"], list[Message])
    assert is_valid(messages)
    assert next((each.text, each.failed) for each in messages if isinstance(each, ToolResult)) == ("seen kelp", False)
