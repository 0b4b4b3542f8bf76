"""Runs of pydantic-ai that survive their process: as steps of a session, and as a conversation in a store.

Real agents and models in front of the fault provider, and a real process that is killed between two tool calls.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import httpx2
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired, ModelHTTPError
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast import Happened, InvalidError, Runtime, Session, call_key, tool
from holdfast.pydantic_ai import SessionDurability, StoreHistory, durable
from holdfast.stores import MemoryStore, open_store
from holdfast.testing import FaultProvider, VirtualClock
from holdfast.testing import run as run_virtual
from holdfast.testing.provider import Script, serve_in_thread
from holdfast.testing.provider.replies import ToolCall, Turn
from holdfast.testing.provider.script import read_script
from holdfast.transcript import check

SETTLE = (
    Turn(tool="charge", arguments={"order": "42"}),
    Turn(tool="send_receipt", arguments={"order": "42"}),
    "Order 42 is paid.",
)


class Bill(BaseModel):
    cents: int


def claude(provider):
    http = httpx2.AsyncClient(transport=provider.transport())
    made = AnthropicProvider(api_key="k", base_url="http://provider.test", http_client=http)
    return AnthropicModel("claude-haiku-4-5", provider=made)


def gpt(provider):
    http = httpx2.AsyncClient(transport=provider.transport())
    return OpenAIChatModel(
        "gpt-5", provider=OpenAIProvider(api_key="k", base_url="http://provider.test/v1", http_client=http)
    )


def settling(model, *tools, **options):
    return Agent(model, name="payer", tools=list(tools), capabilities=[SessionDurability(**options)])


def contents(messages):
    """What the tools returned, as the model reads it."""
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


# --- live ---


@pytest.mark.parametrize("model", [claude, gpt])
def test_XA5_the_words_of_a_durable_run_arrive_while_the_model_speaks(model):
    clock = VirtualClock()
    provider = FaultProvider(read_script("drip;every=0.2, ok"), clock=clock)
    heard: list[float] = []

    async def listen(_, events):
        words = (event async for event in events if isinstance(event, PartStartEvent | PartDeltaEvent))
        heard.extend([clock.monotonic() async for _ in words])

    agent = Agent(model(provider), name="speaker", capabilities=[SessionDurability(event_stream_handler=listen)])
    store = MemoryStore(clock=clock)

    async def main():
        async with Session.open("s", store=store, runtime=Runtime(clock=clock)) as session:
            with durable(session):
                return (await agent.run("one two three four five six")).output

    assert run_virtual(main(), clock=clock) == "You said: one two three four five six"
    assert heard[0] < clock.monotonic() / 2
    assert len(set(heard)) > 2, "each word comes at its own time"
    heard.clear()
    assert run_virtual(main(), clock=clock) == "You said: one two three four five six"
    assert (heard, provider.counters.received) == ([], 1)


# --- runs as steps ---

PROGRAM = """
import asyncio, os, sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from holdfast import Session
from holdfast.pydantic_ai import SessionDurability, StoreHistory, durable
from holdfast.stores import MemoryStore, open_store

what, url, address, log, kill = *sys.argv[1:4], Path(sys.argv[4]), sys.argv[5]
model = AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="k", base_url=url))
agent = Agent(model, name="payer", capabilities=[SessionDurability()])

def note(word):
    with log.open("a") as file:
        file.write(word + "\\n")
    if kill == word:
        os._exit(9)

@agent.tool_plain
def charge(order: str) -> str:
    note("charge")
    return "paid"

@agent.tool_plain
def send_receipt(order: str) -> str:
    note("send_receipt")
    return "sent"

async def steps():
    async with Session.open("order-42", store=address) as session:
        with durable(session):
            return await agent.run("Settle order 42")

async def conversation():
    async with open_store(address) as store:
        return await agent.run("Settle order 42", capabilities=[StoreHistory("customer-7", store)])

print(asyncio.run({"steps": steps, "conversation": conversation}[what]()).output)
"""


def program(what, provider, folder, kill):
    """Run the program in a process of its own, which ends itself hard in the tool `kill`; return what it printed."""
    address, log = f"sqlite:{folder / 'work.db'}", str(folder / "log")
    command = [sys.executable, "-c", PROGRAM, what, provider.url, address, log, kill]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == (9 if kill else 0), ended.stderr
    return ended.stdout.strip()


def test_G9_a_process_that_is_killed_in_its_second_tool_repeats_neither_tool(tmp_path):
    """The first call returns its stored result. Nobody knows whether the second one happened, so it does not run, and the model reads so.

    The second process sends only the request that the first one has not sent.
    """
    with serve_in_thread(Script(replies=SETTLE)) as provider:
        program("steps", provider, tmp_path, "send_receipt")
        assert provider.counters.received == 2
        assert program("steps", provider, tmp_path, "") == "Order 42 is paid."
        assert provider.counters.received == 3
    assert (tmp_path / "log").read_text().split() == ["charge", "send_receipt"]
    paid, receipt = (
        block["content"]
        for message in json.loads(provider.requests[-1].body)["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    )
    assert "paid" in str(paid)
    assert "TOOL_OUTCOME_UNKNOWN" in str(receipt)


def in_memory(work, *, times=2):
    """Do some work several times in one store; return what each time returned or raised."""

    async def main():
        seen = []
        async with open_store("memory:") as store:
            for _ in range(times):
                try:
                    async with Session.open("order-42", store=store) as session:
                        seen.append(await work(session))
                except Exception as error:
                    seen.append(error)
        return seen

    return asyncio.run(main())


@pytest.mark.parametrize("model_of", [claude, gpt], ids=["claude", "chat"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_finished_run_is_returned_without_a_request(model_of, streams):
    """The second run has other times and run ids in its messages, and yet is the same run."""
    provider, did = FaultProvider(Script(replies=SETTLE)), []

    def charge(order: str) -> str:
        did.append("charge")
        return "paid"

    def send_receipt(order: str) -> str:
        did.append("receipt")
        return "sent"

    async def work(session):
        agent = settling(model_of(provider), charge, send_receipt)
        with durable(session):
            if not streams:
                return (await agent.run("Settle order 42")).output
            async with agent.run_stream("Settle order 42") as result:
                return await result.get_output()

    assert in_memory(work) == ["Order 42 is paid."] * 2
    assert (provider.counters.received, did) == (3, ["charge", "receipt"])


def test_another_question_in_the_same_session_is_another_run():
    provider, asked = FaultProvider(), iter(["one", "two"])

    async def work(session):
        with durable(session):
            return (await Agent(claude(provider), name="a", capabilities=[SessionDurability()]).run(next(asked))).output

    assert in_memory(work) == ["You said: one", "You said: two"]


def test_results_of_every_kind_are_the_same_when_they_are_stored():
    """Structures, results for people and messages for the model reach the model alike in the second run."""
    did = []

    def bill() -> Bill:
        did.append("bill")
        return Bill(cents=1999)

    def both() -> ToolReturn:
        did.append("both")
        return ToolReturn("short", metadata={"row": 7})

    def picky(day: str) -> str:
        did.append("picky")
        raise ModelRetry("use a weekday")

    calls = Turn(calls=(ToolCall("bill"), ToolCall("both"), ToolCall("picky", {"day": "x"})))
    provider = FaultProvider(Script(replies=(calls, "Done.")))

    async def work(session):
        with durable(session):
            result = await settling(claude(provider), bill, both, picky).run("go")
        return [(part.part_kind, part.model_response_str(), part.metadata) for part in result.all_messages()[2].parts]

    first, second = in_memory(work)
    assert sorted(did) == ["bill", "both", "picky"]
    assert first == second
    assert first[:2] == [("tool-return", '{"cents":1999}', None), ("tool-return", "short", {"row": 7})]
    assert "use a weekday" in first[2][1]


def test_a_tool_that_sends_a_key_is_repeated_with_the_same_key():
    provider, keys = FaultProvider(Script(replies=(SETTLE[0], "Done."))), []

    @tool(effect="keyed")
    async def charge(order: str) -> str:
        keys.append(call_key())
        if len(keys) == 1:
            raise RuntimeError("the process ends here")
        return "paid"

    async def work(session):
        with durable(session):
            return (await settling(claude(provider), charge).run("go")).output

    first, second = in_memory(work)
    assert isinstance(first, RuntimeError)
    assert second == "Done."
    assert keys[0]
    assert keys[0] == keys[1]
    assert provider.counters.received == 2


def test_what_verify_finds_out_reaches_the_model_as_the_result():
    """The call was cut, and the tool's own `verify` knows that it happened, with which result."""
    provider = FaultProvider(Script(replies=(SETTLE[0], "Done.")))
    did = []

    @tool(effect="unsafe", verify=lambda key, order: Happened(f"paid before: {order}"))
    async def charge(order: str) -> str:
        did.append(order)
        raise ConnectionResetError(104, "Connection reset by peer")

    async def work(session):
        with durable(session):
            return contents((await settling(claude(provider), charge).run("go")).all_messages())

    assert in_memory(work) == [["paid before: 42"]] * 2
    assert did == ["42"]


def test_the_check_of_a_tool_sees_the_result_of_the_tool():
    provider, seen = FaultProvider(Script(replies=(SETTLE[0], "Done."))), []

    def is_paid(result: str, order: str) -> bool:
        seen.append((result, order))
        return result == "paid"

    @tool(effect="unsafe", check=is_paid)
    async def charge(order: str) -> str:
        return "paid"

    async def work(session):
        with durable(session):
            return contents((await settling(claude(provider), charge).run("go")).all_messages())

    assert in_memory(work) == [["paid"]] * 2
    assert seen == [("paid", "42")]


def test_a_tool_of_unknown_outcome_is_told_to_the_model_each_time():
    provider, did = FaultProvider(Script(replies=(SETTLE[0], "Done."))), []

    @tool(effect="unsafe")
    async def charge(order: str) -> str:
        did.append(order)
        raise TimeoutError

    async def work(session):
        with durable(session):
            return contents((await settling(claude(provider), charge).run("go")).all_messages())

    first, second = in_memory(work)
    assert isinstance(first, TimeoutError)
    assert [json.loads(each)["context"]["fault"] for each in second] == ["TOOL_OUTCOME_UNKNOWN"]
    assert did == ["42"]


@pytest.mark.parametrize("at_once", [True, False], ids=["parallel", "one by one"])
def test_several_calls_of_one_unsafe_tool_go_on_where_they_were_cut(at_once):
    """Three customers are charged, and the process ends at the second: the third is charged when the run is made again."""
    calls = tuple(ToolCall("charge", {"order": order}) for order in "abc")
    replies = (Turn(calls=calls), "Done.") if at_once else (*(Turn(calls=(each,)) for each in calls), "Done.")
    provider, did = FaultProvider(Script(replies=replies)), []

    async def charge(order: str) -> str:
        did.append(order)
        if did.count("b") == 1 and order == "b":
            raise ConnectionRefusedError(111, "Connection refused")
        return f"paid {order}"

    async def work(session):
        with durable(session):
            return contents((await settling(claude(provider), charge).run("go")).all_messages())

    first, second = in_memory(work)
    assert isinstance(first, ConnectionRefusedError)
    assert second == ["paid a", "paid b", "paid c"]
    assert did.count("a") == 1
    assert sorted(did) == ["a", "b", "b", "c"]


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_equal_calls_of_one_answer_are_told_apart(failed):
    """The model orders the same twice in one answer. Each call has its own step, and the run goes on where it was cut."""
    calls = (ToolCall("charge", {"order": "a"}), ToolCall("charge", {"order": "a"}))
    provider, did = FaultProvider(Script(replies=(Turn(calls=calls), "Done."))), []

    async def charge(order: str) -> str:
        did.append(call_key())
        if len(did) == failed:
            raise ConnectionRefusedError(111, "Connection refused")
        return f"paid {order} as {call_key()}"

    async def work(session):
        with durable(session):
            return contents((await settling(claude(provider), charge).run("go")).all_messages())

    first, second = in_memory(work)
    assert isinstance(first, ConnectionRefusedError) if failed else first == second
    assert len(set(second)) == 2
    assert len(did) == (3 if failed else 2)
    assert len(set(did)) == 2


def test_a_call_that_was_approved_runs_in_a_program_that_makes_only_the_second_run():
    provider, did, paused = FaultProvider(Script(replies=(SETTLE[0], "Done."))), [], []

    async def charge(ctx: RunContext, order: str) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        did.append(order)
        return "paid"

    async def work(session):
        agent = Agent(
            claude(provider),
            name="payer",
            tools=[charge],
            output_type=[str, DeferredToolRequests],
            capabilities=[SessionDurability()],
        )
        with durable(session):
            if not paused:
                paused.append(await agent.run("go"))
                return len(paused[0].output.approvals)
            (call,) = paused[0].output.approvals
            yes = DeferredToolResults(approvals={call.tool_call_id: True})
            return (await agent.run(message_history=paused[0].all_messages(), deferred_tool_results=yes)).output

    assert in_memory(work, times=3) == [1, "Done.", "Done."]
    assert did == ["42"]


def test_each_turn_of_a_session_has_a_run_of_its_own():
    """The second program makes only the second run, and charges another order. In the same turn that would be a drift."""
    orders, did = iter("ab"), []

    async def charge(order: str) -> str:
        did.append(order)
        return "paid"

    async def work(session):
        replies = (Turn(tool="charge", arguments={"order": next(orders)}), "Done.")
        agent = settling(claude(FaultProvider(Script(replies=replies))), charge)
        async with session.turn("Settle it"):
            with durable(session):
                return (await agent.run("Settle it")).output

    assert in_memory(work) == ["Done."] * 2
    assert did == ["a", "b"]


def test_effects_by_name_are_for_tools_without_a_function_of_yours():
    provider, did = FaultProvider(Script(replies=(SETTLE[0], "Done."))), []

    async def charge(order: str) -> str:
        did.append(order)
        if len(did) == 1:
            raise TimeoutError
        return "paid"

    async def work(session):
        with durable(session):
            return (await settling(claude(provider), charge, effects={"charge": "read"}).run("go")).output

    assert in_memory(work)[1] == "Done."
    assert did == ["42", "42"]


def test_outside_of_a_session_the_agent_runs_as_without_the_capability():
    provider = FaultProvider()
    agent = settling(claude(provider))
    assert [asyncio.run(agent.run("hello")).output for _ in range(2)] == ["You said: hello"] * 2
    assert provider.counters.received == 2


def test_wrong_options_are_rejected():
    with pytest.raises(InvalidError, match="session"), durable("order-42"):
        pass
    with pytest.raises(InvalidError, match="effect"):
        SessionDurability(effects={"pay": "safe"})


# --- conversations ---


def plain(model, *tools):
    return Agent(model, tools=list(tools))


def test_a_conversation_goes_on_in_another_process(tmp_path):
    """The second run has only the file: the provider gets the whole conversation."""
    provider = FaultProvider()

    async def turn(text):
        async with open_store(f"sqlite:{tmp_path / 'work.db'}") as store:
            history = StoreHistory("customer / 7", store)
            old = await history.messages()
            return (await plain(claude(provider)).run(text, message_history=old, capabilities=[history])).output

    assert asyncio.run(turn("hello")) == "You said: hello"
    assert asyncio.run(turn("and now?")) == "You said: and now?"
    sent = json.loads(provider.requests[-1].body)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]


def test_G1_a_conversation_that_was_killed_in_a_tool_goes_on(tmp_path):
    """The store has the call and the result of the first tool. The cut call gets a result when it is read, and the provider accepts it."""
    with serve_in_thread(Script(replies=SETTLE)) as served:
        program("conversation", served, tmp_path, "send_receipt")
    provider = FaultProvider()

    async def main():
        async with open_store(f"sqlite:{tmp_path / 'work.db'}") as store:
            history = StoreHistory("customer-7", store)
            old = await history.messages()
            said = await plain(claude(provider)).run("and?", message_history=old, capabilities=[history])
            return old, said.output, await history.messages(limit=2)

    old, said, last = asyncio.run(main())
    paid, cut = contents(old)
    assert (paid, json.loads(cut)["context"]["outcome"]) == ("paid", "interrupted")
    assert check(old) == ()
    assert said == "You said: and?"
    assert [message.kind for message in last] == ["request", "response"]
    assert provider.counters.received == 1


def test_a_run_that_fails_keeps_what_it_had():
    provider = FaultProvider("400, loop")

    async def main():
        async with open_store("memory:") as store:
            history = StoreHistory("c", store)
            with pytest.raises(ModelHTTPError):
                await plain(claude(provider)).run("hello", capabilities=[history])
            return await history.messages()

    assert [message.kind for message in asyncio.run(main())] == ["request"]


def test_messages_are_added_limited_and_cleared():
    async def main():
        async with open_store("memory:") as store:
            history = StoreHistory("c", store)
            assert await history.messages() == []
            await history.add([])
            assert await history.messages() == []
            done = await plain(claude(FaultProvider())).run("hello")
            await history.add(done.new_messages())
            assert await history.messages() == done.all_messages()
            assert [message.kind for message in await history.messages(limit=1)] == ["request", "response"]
            await history.clear()
            assert await history.messages() == []

    asyncio.run(main())
