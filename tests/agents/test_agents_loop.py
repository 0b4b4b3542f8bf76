"""The loop of an agent without a session: answers, tools, bounds and the faults that end it."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import msgspec
import pytest
from agents_kit import Scripted, World

from holdfast import Agent, Budget, BudgetError, Err, HoldfastError, InvalidError, tool
from holdfast.agents import Done, Hooks, Retrying, Text, ToolCalled, ToolReturned
from holdfast.providers import Reply
from holdfast.stores import MemoryStore
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="read")
async def broken(path: str) -> str:
    """Read a file."""
    raise ValueError(f"there is no {path}")


def test_an_agent_calls_tools_and_answers_with_what_it_took():
    world = World(Turn(tool="add", arguments={"a": 2, "b": 3}), "It is 5.")
    reply = world.run(world.agent(add, instructions="Be exact.").run("2 + 3?"))
    assert (reply.text, reply.turns, reply.tool_calls, reply.agent) == ("It is 5.", 2, 1, "coder")
    assert reply.usage.total > 0
    assert reply.usd > 0
    first, second = world.sent
    assert first["system"] == "Be exact."
    assert second["messages"][-1]["content"][0]["content"] == "5"


def test_calls_of_one_reply_run_at_the_same_time_and_results_are_in_input_order():
    running: list[int] = []
    most = 0

    @tool(effect="read")
    async def slow(n: int) -> int:
        nonlocal most
        running.append(n)
        most = max(most, len(running))
        await asyncio.sleep(10 - n)
        running.remove(n)
        return n

    calls = tuple(ToolCall("slow", {"n": n}) for n in range(5))
    world = World(Turn(calls=calls), "Done.")
    world.run(world.agent(slow, concurrency=3).run("go"))
    assert most == 3
    assert [block["content"] for block in world.sent[1]["messages"][-1]["content"]] == ["0", "1", "2", "3", "4"]


def test_a_tool_that_does_not_exist_or_wrong_arguments_are_results_that_the_model_acts_on():
    calls = (ToolCall("nothing", {}), ToolCall("add", {"a": "two"}))
    world = World(Turn(calls=calls), "I cannot.")
    reply = world.run(world.agent(add).run("go"))
    results = world.sent[1]["messages"][-1]["content"]
    assert [result["is_error"] for result in results] == [True, True]
    assert "TOOL_NOT_FOUND" in results[0]["content"]
    assert "TOOL_INPUT_INVALID" in results[1]["content"]
    assert reply.text == "I cannot."


def test_G6_at_max_turns_the_run_ends_with_the_partial_answer_and_its_spend_and_not_one_call_more():
    ran: list[int] = []

    @tool(effect="unsafe")
    async def count(n: int) -> int:
        ran.append(n)
        return n

    world = World(*(Turn(text=f"step {n}", calls=(ToolCall("count", {"n": n}),)) for n in range(9)))
    ended = world.run(world.agent(count, max_turns=3).outcome("go"))
    assert isinstance(ended, Err)
    assert ended.fault.code == "TASK_LOOP_BOUND"
    assert world.received == 3
    assert ran == [0, 1]
    partial = ended.fault.partial.payload
    assert (partial["text"], partial["turns"], partial["tool_calls"]) == ("step 2", 3, 2)
    assert partial["usd"] > 0
    # What is kept can be sent: the last call has a result, too.
    assert partial["messages"][-1] == {
        "role": "tool", "id": partial["messages"][-2]["calls"][0]["id"], "failed": True,
        "text": "The call was not run: the run ended before it.",
    }  # fmt: skip


def test_G6_max_tool_calls_is_kept():
    world = World(Turn(calls=tuple(ToolCall("add", {"a": n, "b": n}) for n in range(3))), "Done.")
    ended = world.run(world.agent(add, max_tool_calls=2).outcome("go"))
    assert ended.fault.code == "TASK_LOOP_BOUND"
    assert ended.fault.partial.payload["tool_calls"] == 0


def test_G5_the_same_call_that_failed_three_times_is_not_run_again_and_ends_the_run_if_the_model_insists():
    ran = 0

    @tool(effect="read")
    async def failing(path: str) -> str:
        nonlocal ran
        ran += 1
        raise ValueError(f"there is no {path}")

    world = World(*(Turn(tool="failing", arguments={"path": "x"}) for _ in range(9)))
    ended = world.run(world.agent(failing).outcome("read x"))
    assert ended.fault.code == "TASK_HALTED"
    assert ran == 3
    # Three failures, the fourth call that is not run, and the fifth that ends the run.
    assert world.received == 5
    told = world.sent[4]["messages"][-1]["content"][0]
    assert told["is_error"]
    assert "not run" in told["content"]
    assert len(ended.fault.context["errors"]) == 3
    assert ended.fault.partial.payload["turns"] == 5


def test_a_call_that_succeeds_or_fails_in_another_way_between_is_run_again():
    outcomes = iter([ValueError("a"), ValueError("a"), None, ValueError("a"), ValueError("a"), None])

    @tool(effect="read")
    async def flaky() -> str:
        error = next(outcomes)
        if error is not None:
            raise error
        return "fine"

    world = World(*(Turn(tool="flaky") for _ in range(6)), "Done.")
    assert world.run(world.agent(flaky, no_progress=None).run("go")).text == "Done."


def test_turns_that_bring_nothing_new_end_the_run():
    world = World(*(Turn(text=f"again {n}", calls=(ToolCall("add", {"a": 1, "b": 1}),)) for n in range(20)))
    ended = world.run(world.agent(add, no_progress=4).outcome("go"))
    assert ended.fault.code == "TASK_HALTED"
    # The first result is new, then four turns repeat it.
    assert world.received == 5


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(), "PROVIDER_EMPTY_RESPONSE"),
        (Reply(text="  "), "PROVIDER_EMPTY_RESPONSE"),
        (Reply(text="I may not.", stop="refused"), "PROVIDER_CONTENT_POLICY"),
        (Reply(text="Half of", stop="length"), "TASK_OUTPUT_EXHAUSTED"),
        (Reply(text="Half of", stop="other"), "PROVIDER_MALFORMED_RESPONSE"),
    ],
)
def test_G9_an_empty_or_refused_answer_is_a_fault_and_never_a_success(reply: Reply, code: str):
    world = World()
    with pytest.raises(HoldfastError) as caught:
        world.run(world.agent(model=Scripted(reply)).run("go"))
    assert caught.value.fault.code == code
    assert caught.value.fault.partial.payload["messages"][0] == {"role": "user", "text": "go"}
    assert caught.value.fault.partial.payload["text"] == reply.text
    assert caught.value.fault.for_user()


class Sum(msgspec.Struct):
    value: int


def test_an_answer_of_the_wrong_form_is_asked_for_again_with_the_violation():
    world = World('{"value": "five"}', '{"value": 5}')
    reply = world.run(world.agent(output=Sum).run("2 + 3?"))
    assert reply.data == Sum(5)
    assert "Expected `int`" in world.sent[1]["messages"][-1]["content"][0]["text"]


def test_an_answer_that_stays_wrong_is_a_fault_after_the_bounded_number_of_requests():
    world = World('{"value": "five"}')
    ended = world.run(world.agent(output=Sum, reasks=2).outcome("2 + 3?"))
    assert ended.fault.code == "PROVIDER_OUTPUT_INVALID"
    assert world.received == 3
    assert ended.fault.partial.payload["text"] == '{"value": "five"}'


def test_G18_a_spent_budget_starts_no_further_request():
    world = World(*(Turn(tool="add", arguments={"a": n, "b": n}) for n in range(9)))

    async def main() -> Any:
        with Budget(turns=3, runtime=world.runtime) as budget:
            return await world.agent(add).outcome("go"), budget.spend()

    ended, spend = world.run(main())
    assert isinstance(ended.error, BudgetError)
    assert world.received == 3
    assert spend.turns == 3
    assert ended.fault.partial.payload["turns"] == 3


def test_the_parts_of_a_run_arrive_in_order_and_end_with_done():
    world = World(Turn(text="I add.", calls=(ToolCall("add", {"a": 2, "b": 3}),)), "It is 5.")

    async def main() -> list[Any]:
        async with world.agent(add).stream("2 + 3?") as parts:
            return [part async for part in parts]

    parts = world.run(main())
    assert "".join(part.text for part in parts if isinstance(part, Text)) == "I add.It is 5."
    kinds = [type(part) for part in parts if not isinstance(part, Text)]
    assert kinds == [ToolCalled, ToolReturned, Done]
    assert parts[-1].reply.text == "It is 5."


def test_N2_4_hooks_change_requests_observe_the_run_and_deny_calls():
    seen: list[Any] = []

    def shout(request: Any) -> Any:
        return msgspec.structs.replace(request, system="LOUD")

    def deny(call: Any) -> str | None:
        return "adding is not allowed here" if call.name == "add" else None

    world = World(Turn(tool="add", arguments={"a": 1, "b": 1}), "No sum.")
    hooks = Hooks(transform=shout, observer=seen.append, guard=deny)
    reply = world.run(world.agent(add, hooks=hooks).run("go"))
    assert reply.text == "No sum."
    assert all(sent["system"] == "LOUD" for sent in world.sent)
    assert [type(part) for part in seen] == [ToolCalled, ToolReturned, Text, Done]
    assert "adding is not allowed here" in world.sent[1]["messages"][-1]["content"][0]["content"]


@pytest.mark.parametrize("faults", ["529, ok", "cut;after=3, ok"])
def test_an_observer_sees_the_parts_of_a_stream_with_its_retries(faults: str):
    seen: list[Any] = []
    world = World("Hello over there", faults=faults)

    async def read() -> list[Any]:
        async with world.agent(hooks=Hooks(observer=seen.append)).stream("go") as parts:
            return [part async for part in parts]

    shown = world.run(read())
    assert [type(part) for part in seen] == [type(part) for part in shown]
    (retry,) = [part for part in seen if isinstance(part, Retrying)]
    assert retry == next(part for part in shown if isinstance(part, Retrying))
    assert retry.restarts_text == faults.startswith("cut")


def test_an_observer_of_a_run_sees_its_retries_also_if_the_run_fails():
    seen: list[Any] = []
    world = World("Hello", faults="529, ok")
    world.run(world.agent(hooks=Hooks(observer=seen.append)).run("go"))
    assert [type(part) for part in seen] == [Retrying, Text, Done]
    seen.clear()
    world = World("Hello", faults="529*99")
    with pytest.raises(anthropic.APIStatusError):
        world.run(world.agent(hooks=Hooks(observer=seen.append)).run("go"))
    assert [type(part) for part in seen] == [Retrying, Retrying]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"max_turns": 0},
        {"compact": "zip"},
        {"output": object},
        {"hooks": [print]},
        {"concurrency": 0},
    ],
)
def test_wrong_options_say_what_is_expected(wrong: dict[str, Any]):
    world = World("fine")
    with pytest.raises(InvalidError):
        Agent(**{"name": "a", "model": world.model(), **wrong})


def test_an_empty_prompt_is_rejected():
    world = World("fine")
    with pytest.raises(InvalidError):
        world.run(world.agent().run("  "))
    assert world.received == 0


def test_a_tool_whose_schema_cannot_be_shown_is_rejected_when_the_agent_is_made():
    def anything(*values: int) -> int:
        return len(values)

    with pytest.raises(InvalidError, match="anything"):
        Agent("a", World("fine").model(), [anything])


def test_two_tools_of_one_name_and_a_tool_with_an_agents_name_are_rejected():
    world = World("fine")
    with pytest.raises(InvalidError, match="two tools named 'add'"):
        world.agent(add, world.agent(name="add"))


@pytest.mark.parametrize("name", ["my agent", "a" * 65, ""])
def test_a_name_that_providers_reject_is_named_when_the_agent_is_made(name):
    with pytest.raises(InvalidError) as caught:
        Agent(name, Scripted("ok"))
    assert "agent.name: expected 1 to 64 ASCII letters, digits, `_` or `-`" in str(caught.value)


def test_one_function_is_not_a_list_of_tools():
    def delete(path: str) -> None: ...

    with pytest.raises(InvalidError) as caught:
        Agent("cleaner", Scripted("ok"), delete)
    assert "agent.tools: expected a list of tools" in str(caught.value)


def _ends_the_program() -> None:
    raise SystemExit(3)


def _fails_oddly() -> None:
    raise ValueError("lone \ud800")


def _endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize("model", ["claude-haiku-4-5", "gpt-5-mini"])
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(
    "make",
    [lambda: "lone \ud800", lambda: {"k\udfff": ["\ud800"]}, _endless, _ends_the_program, _fails_oddly],
    ids=["text", "names", "cycle", "exit", "error"],
)
def test_a_run_goes_on_whatever_an_unsafe_tool_returned_or_raised(make, is_kept, model):
    done = []

    @tool(effect="unsafe", name="pay")
    async def pay() -> Any:
        done.append("paid")
        return make()

    world = World(Turn(tool="pay"), "Done.", "Still here.")
    agent = world.agent(pay, model=world.model(model))

    async def main() -> list[str]:
        if not is_kept:
            return [(await agent.run("Pay.")).text]
        store = MemoryStore(clock=world.runtime.clock)
        texts = []
        for prompt in ("Pay.", "And now?"):
            async with world.session(store) as session:
                texts.append((await agent.run(prompt, session=session)).text)
        return texts

    assert world.run(main()) == (["Done.", "Still here."] if is_kept else ["Done."])
    assert done == ["paid"]
