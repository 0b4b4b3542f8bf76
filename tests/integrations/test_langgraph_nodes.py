"""Nodes of real LangGraph graphs: recovered by us, or by LangGraph on our word; interrupts and commands pass."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import openai
import pytest
from clients_kit import world
from lang_kit import gpt
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt, ParentCommand
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime as GraphRuntime
from langgraph.types import Command, RetryPolicy, interrupt

from holdfast import Backoff, InvalidError, OutcomeUnknownError, Policy, tool
from holdfast.events import AttemptEnded, AttemptStarted, Cancelled, Failed, Recovered, Retry
from holdfast.langchain import RecoveryWarning, recovering, recovering_node, retry_policy
from holdfast.testing import FaultProvider, run

THREAD: Any = {"configurable": {"thread_id": "1"}}
NO_WAIT = Policy(attempts=3, backoff=Backoff(initial=0, jitter="none"))


class State(TypedDict, total=False):
    answer: str


def graph_of(node: Any, **options: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("ask", node, **options)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    return graph.compile(checkpointer=InMemorySaver())


def asking(provider: FaultProvider) -> Any:
    model = gpt(provider, max_retries=0)

    async def ask(state: State) -> State:
        return {"answer": (await model.ainvoke("hello")).text}

    return ask


def asking_sync(provider: FaultProvider) -> Any:
    model = gpt(provider, max_retries=0)

    def ask(state: State) -> State:
        return {"answer": model.invoke("hello").text}

    return ask


# --- our loop ---


def test_a_node_recovers_and_waits_as_long_as_the_provider_requests():
    provider, (runtime, heard) = FaultProvider("429;retry-after=70, 529, ok"), world()
    graph = graph_of(recovering_node(effect="read", runtime=runtime)(asking(provider)))
    assert run(graph.ainvoke({}, THREAD), clock=runtime.clock) == {"answer": "You said: hello"}
    assert [event.delay for event in heard.of(Retry)][:1] == [70.0]
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 3
    assert {event.operation for event in heard.of(AttemptStarted)} == {"agent:ask"}


def test_a_sync_node_recovers_likewise():
    provider, (runtime, heard) = FaultProvider("529, ok"), world()
    graph = graph_of(recovering_node(effect="read", runtime=runtime)(asking_sync(provider)))
    assert graph.invoke({}, THREAD) == {"answer": "You said: hello"}
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 2


def test_a_node_that_fails_raises_what_it_raised():
    provider, (runtime, heard) = FaultProvider("401"), world()
    graph = graph_of(recovering_node(runtime=runtime)(asking(provider)))
    with pytest.raises(openai.AuthenticationError):
        run(graph.ainvoke({}, THREAD), clock=runtime.clock)
    assert (provider.counters.received, len(heard.of(Failed))) == (1, 1)


def test_a_node_may_ask_for_what_langgraph_gives_to_nodes():
    @recovering_node
    def node(state: State, runtime: GraphRuntime[Any]) -> State:
        return {"answer": str(runtime.execution_info.node_attempt)}  # type: ignore[union-attr]

    assert graph_of(node).invoke({}, THREAD) == {"answer": "1"}


def test_an_unsafe_node_that_may_have_happened_is_not_run_again():
    ran = []

    @recovering_node
    @tool(effect="unsafe")
    def pay(state: State) -> State:
        ran.append(1)
        raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(OutcomeUnknownError):
        graph_of(pay).invoke({}, THREAD)
    assert ran == [1]


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError(104, "Connection reset by peer"), TimeoutError(), RuntimeError("x"), ConnectionError("x")],
    ids=repr,
)
def test_XA2_a_node_that_declares_nothing_is_not_run_again_if_it_may_have_happened(error):
    paid = []

    @recovering_node
    def pay(state: State) -> State:
        paid.append(1)
        raise error

    with pytest.raises(type(error)):
        graph_of(pay).invoke({}, THREAD)
    assert paid == [1]


def test_XA2_a_node_that_declares_nothing_is_run_again_if_nothing_happened():
    runtime, _ = world()
    errors: list[Exception] = [ConnectionRefusedError(111, "refused"), ConnectionRefusedError(111, "refused")]

    @recovering_node(runtime=runtime)
    async def pay(state: State) -> State:
        if errors:
            raise errors.pop()
        return {"answer": "paid"}

    assert run(graph_of(pay).ainvoke({}, THREAD), clock=runtime.clock) == {"answer": "paid"}


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), ConnectionRefusedError(111, "refused")], ids=repr
)
def test_XA2_a_graph_does_not_run_a_finished_node_again(error, checkpoints):
    paid, errors = [], [error]

    def pay(state: State) -> State:
        paid.append(1)
        return {"answer": "paid"}

    def tell(state: State) -> State:
        if errors:
            raise errors.pop()
        return {"answer": state["answer"] + " and told"}

    graph = StateGraph(State)
    graph.add_node("pay", pay)
    graph.add_node("tell", tell)
    graph.add_edge(START, "pay")
    graph.add_edge("pay", "tell")
    graph.add_edge("tell", END)
    runtime, _ = world()
    whole = recovering(graph.compile(checkpointer=InMemorySaver() if checkpoints else None), runtime=runtime)
    if checkpoints and isinstance(error, ConnectionRefusedError):
        # It goes on at the node that failed.
        assert run(whole.ainvoke({}, THREAD), clock=runtime.clock) == {"answer": "paid and told"}
    else:
        with pytest.raises(type(error)):
            run(whole.ainvoke({}, THREAD), clock=runtime.clock)
    assert paid == [1]


def test_a_generator_is_no_node_of_ours():
    with pytest.raises(InvalidError, match="generator"):

        @recovering_node
        def node(state: State):
            yield {"answer": "hi"}


@pytest.mark.parametrize("later", [False, True])
def test_an_interrupt_is_no_failure_and_is_not_retried(later):
    ran: list[str] = []
    runtime, heard = world()

    def answer(state: State) -> State:
        ran.append("ran")
        return {"answer": interrupt("May I?")}

    async def answer_later(state: State) -> State:
        return answer(state)

    graph = graph_of(recovering_node(runtime=runtime, name="asker")(answer_later if later else answer))

    def go(state: Any) -> Any:
        return run(graph.ainvoke(state, THREAD), clock=runtime.clock) if later else graph.invoke(state, THREAD)

    assert [one.value for one in go({})["__interrupt__"]] == ["May I?"]
    assert ran == ["ran"]
    assert heard.of(Failed) == heard.of(Cancelled) == heard.of(Retry) == []
    assert [event.fault for event in heard.of(AttemptEnded)] == [None]
    line = runtime.registry.get("provider:asker")
    assert (line._breaker.successes, line._breaker.failures) == (0, 0)
    assert go(Command(resume="yes")) == {"answer": "yes"}


def test_a_command_to_the_parent_is_no_failure():
    runtime, heard = world()

    @recovering_node(runtime=runtime)
    def hand_over(state: State) -> Command[Any]:
        return Command(graph=Command.PARENT, goto="other", update={"answer": "handed over"})

    child = StateGraph(State)
    child.add_node("hand_over", hand_over)
    child.add_edge(START, "hand_over")
    parent = StateGraph(State)
    parent.add_node("child", recovering_node(runtime=runtime)(_runs(child.compile())))
    parent.add_node("other", lambda state: {"answer": state["answer"] + ", taken over"})
    parent.add_edge(START, "child")
    assert parent.compile().invoke({}) == {"answer": "handed over, taken over"}
    assert heard.of(Failed) == heard.of(Retry) == []


def _runs(graph: Any) -> Any:
    def child(state: State) -> Any:
        return graph.invoke(state)

    return child


def test_a_graph_as_a_whole_lets_its_signals_pass():
    runtime, heard = world()

    def inside(state: State) -> State:
        raise ParentCommand(Command(graph=Command.PARENT, goto="x"))

    graph = StateGraph(State)
    graph.add_node("inside", inside)
    graph.add_edge(START, "inside")
    whole = recovering(graph.compile(), runtime=runtime, name="agent:whole")
    with pytest.raises(ParentCommand):
        whole.invoke({})
    with pytest.raises(ParentCommand):
        list(whole.stream({}))
    with pytest.raises(ParentCommand):
        run(whole.ainvoke({}), clock=runtime.clock)

    async def read() -> None:
        async for _ in whole.astream({}):
            pass

    with pytest.raises(ParentCommand):
        run(read(), clock=runtime.clock)
    assert heard.of(Failed) == heard.of(Cancelled) == heard.of(Retry) == []


def test_a_signal_after_a_failure_ends_the_recovery():
    runtime, heard = world()
    errors: list[Exception] = [ConnectionResetError("reset"), GraphInterrupt()]

    def node(state: State) -> State:
        raise errors.pop(0)

    with pytest.raises(GraphInterrupt):
        recovering_node(effect="read", runtime=runtime)(node)({})
    assert len(heard.of(Recovered)) == 1


# --- LangGraph's loop ---


@pytest.mark.parametrize(
    ("script", "requests", "raises"),
    [("529*2, ok", 3, None), ("401", 1, openai.AuthenticationError), ("quota", 1, openai.RateLimitError)],
)
def test_langgraph_retries_what_our_classifier_says_passes(script, requests, raises):
    """LangGraph's own default would retry all three."""
    provider = FaultProvider(script)
    graph = graph_of(asking(provider), retry_policy=retry_policy(NO_WAIT))
    if raises is None:
        assert asyncio.run(graph.ainvoke({}, THREAD)) == {"answer": "You said: hello"}
    else:
        with pytest.raises(raises):
            asyncio.run(graph.ainvoke({}, THREAD))
    assert provider.counters.received == requests


def test_its_numbers_are_those_of_the_policy():
    made = retry_policy(Policy(attempts=5, backoff=Backoff(initial=2, factor=3, cap=40, jitter="none")))
    assert made[:5] == (2, 3, 40, 5, False)
    assert retry_policy().max_attempts == 3


def test_it_asks_for_no_retry_of_a_signal():
    retry_on: Any = retry_policy().retry_on
    assert not retry_on(GraphInterrupt())


# --- LangGraph's loop around ours ---


def recovering_in(provider: FaultProvider, runtime: Any) -> Any:
    model = recovering(gpt(provider), policy=Policy(attempts=2), runtime=runtime)

    async def ask(state: State) -> State:
        return {"answer": (await model.ainvoke("hello")).text}

    return ask


def test_a_node_that_is_run_again_after_we_gave_up_causes_a_warning():
    provider, (runtime, _) = FaultProvider("529, loop"), world()
    plain = RetryPolicy(max_attempts=2, initial_interval=0, jitter=False)
    graph = graph_of(recovering_in(provider, runtime), retry_policy=plain)
    with pytest.warns(RecoveryWarning, match="runs it again"), pytest.raises(openai.APIStatusError):
        run(graph.ainvoke({}, THREAD), clock=runtime.clock)
    assert provider.counters.received == 4


def test_with_our_policy_it_is_not_run_again():
    provider, (runtime, _) = FaultProvider("529, loop"), world()
    graph = graph_of(recovering_in(provider, runtime), retry_policy=retry_policy(NO_WAIT))
    with pytest.raises(openai.APIStatusError):
        run(graph.ainvoke({}, THREAD), clock=runtime.clock)
    assert provider.counters.received == 2
