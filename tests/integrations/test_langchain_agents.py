"""LangChain's real agents with `RecoveryMiddleware`, in front of the fault provider."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from clients_kit import world
from lang_kit import ANSWER, claude, gpt, in_memory, with_tools
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.messages import SystemMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from holdfast import InvalidError, OutcomeUnknownError, Policy, Target, fault_of, tool
from holdfast.events import AttemptStarted, Cancelled, Failed, Fallback, Recovered
from holdfast.langchain import RecoveryMiddleware, RecoveryWarning, recovering
from holdfast.testing import FaultProvider, run

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}


def last(state: Any) -> str:
    return str(state["messages"][-1].text)


def tool_message(state: Any) -> ToolMessage:
    return next(message for message in state["messages"] if isinstance(message, ToolMessage))


# --- model calls ---


def test_a_storm_passes_unseen_and_the_models_own_retries_are_off():
    runtime, heard = world()
    with in_memory("429;retry-after=7, 529, ok") as provider:
        agent = create_agent(claude(provider), [], middleware=[RecoveryMiddleware(runtime=runtime)])
        assert last(agent.invoke(HELLO)) == ANSWER
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 3
    assert runtime.clock.monotonic() >= 7.0


def test_a_storm_passes_unseen_in_a_task():
    runtime, heard = world()
    provider = FaultProvider("429;retry-after=7, 529, ok")
    agent = create_agent(gpt(provider), [], middleware=[RecoveryMiddleware(runtime=runtime)])
    assert last(run(agent.ainvoke(HELLO), clock=runtime.clock)) == ANSWER
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 3


@pytest.mark.parametrize("later", [False, True])
def test_another_model_answers_when_the_first_has_failed_for_good(later):
    runtime, heard = world()
    with in_memory("529, loop") as down, in_memory("503, ok") as up:
        middleware = RecoveryMiddleware(gpt(up), policy=Policy(attempts=2), runtime=runtime)
        agent = create_agent(claude(down), [], middleware=[middleware])
        state = run(agent.ainvoke(HELLO), clock=runtime.clock) if later else agent.invoke(HELLO)
        assert last(state) == ANSWER
        assert (down.counters.received, up.counters.received) == (2, 2)
    assert [event.to for event in heard.of(Fallback)] == ["openai@provider.test/gpt-5"]


def test_when_no_model_answers_the_first_ones_exception_is_raised():
    runtime, heard = world()
    with in_memory("529, loop") as down, in_memory("401, loop") as refusing:
        middleware = RecoveryMiddleware(gpt(refusing), policy=Policy(attempts=1), runtime=runtime)
        with pytest.raises(anthropic.APIStatusError) as raised:
            create_agent(claude(down), [], middleware=[middleware]).invoke(HELLO)
    assert raised.value.status_code == 529
    assert (down.counters.received, refusing.counters.received) == (1, 1)
    assert len([event for event in heard.of(Failed) if event.operation.startswith("anthropic")]) == 1


def test_a_request_is_fitted_to_the_model_that_gets_it():
    """Markers for one provider's cache are an error to another."""
    runtime, _ = world()
    with in_memory("529") as down, in_memory() as up:
        middleware = RecoveryMiddleware(gpt(up), policy=Policy(attempts=1), runtime=runtime)
        agent = create_agent(claude(down), [], middleware=[middleware], system_prompt=_marked())
        assert last(agent.invoke(HELLO)) == ANSWER
        assert "cache_control" in str(down.requests[0].body)
        assert "cache_control" not in str(up.requests[0].body)


def _marked() -> Any:
    return SystemMessage([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])


def test_a_model_that_recovers_itself_is_not_retried_again_around_it():
    runtime, _ = world()
    with in_memory("529, loop") as provider:
        alone = recovering(claude(provider), policy=Policy(attempts=2), runtime=world()[0])
        agent = create_agent(alone, [], middleware=[RecoveryMiddleware(policy=Policy(attempts=3), runtime=runtime)])
        with pytest.raises(anthropic.APIStatusError):
            agent.invoke(HELLO)
    assert provider.counters.received == 2


# --- tool calls ---


def agent_with(provider: FaultProvider, fn: Any, *more: Any, **options: Any) -> Any:
    runtime, heard = world()
    middleware = [*more, RecoveryMiddleware(runtime=runtime, **options)]
    agent = create_agent(
        claude(provider, max_retries=0), [langchain_tool(fn)], middleware=middleware, checkpointer=InMemorySaver()
    )
    return agent, heard, runtime


THREAD: Any = {"configurable": {"thread_id": "1"}}


class Weather:
    """A tool that fails as often as its script has failures."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.called = 0

    def read(self) -> Any:
        @tool(effect="read")
        def weather(city: str) -> str:
            """The weather in a city."""
            return self(city)

        return weather

    def unsafe(self) -> Any:
        @tool(effect="unsafe")
        def weather(city: str) -> str:
            """The weather in a city."""
            return self(city)

        return weather

    def undeclared(self) -> Any:
        def weather(city: str) -> str:
            """The weather in a city."""
            return self(city)

        return weather

    def later(self) -> Any:
        @tool(effect="read")
        async def weather(city: str) -> str:
            """The weather in a city."""
            return self(city)

        return weather

    def __call__(self, city: str) -> str:
        self.called += 1
        if self.errors:
            raise self.errors.pop(0)
        return f"rain in {city}"


RESET = ConnectionResetError(104, "Connection reset by peer")


def test_a_tool_that_only_reads_is_called_again():
    weather = Weather(RESET)
    with in_memory(with_tools("ok")) as provider:
        agent, heard, _runtime = agent_with(provider, weather.read())
        assert "rain in" in last(agent.invoke(HELLO, THREAD))
    assert weather.called == 2
    assert [str(event.operation) for event in heard.of(Recovered)] == ["tool:weather"]


def test_an_async_tool_that_only_reads_is_called_again():
    weather = Weather(RESET)
    with in_memory(with_tools("ok")) as provider:
        agent, _, runtime = agent_with(provider, weather.later())
        assert "rain in" in last(run(agent.ainvoke(HELLO, THREAD), clock=runtime.clock))
    assert weather.called == 2


def test_an_effect_can_be_declared_by_the_tools_name():
    weather = Weather(RESET)
    with in_memory(with_tools("ok")) as provider:
        agent, _, _runtime = agent_with(provider, weather.undeclared(), effects={"weather": "idempotent"})
        assert "rain in" in last(agent.invoke(HELLO, THREAD))
    assert weather.called == 2


def test_a_tool_without_an_effect_is_called_once():
    weather = Weather(RESET)
    with in_memory(with_tools("ok")) as provider:
        agent, _, _runtime = agent_with(provider, weather.undeclared())
        with pytest.raises(ConnectionResetError):
            agent.invoke(HELLO, THREAD)
    assert weather.called == 1


def test_an_unsafe_tool_that_may_have_happened_is_not_called_again():
    weather = Weather(RESET)
    with in_memory(with_tools("ok")) as provider:
        agent, _, _runtime = agent_with(provider, weather.unsafe())
        with pytest.raises(OutcomeUnknownError):
            agent.invoke(HELLO, THREAD)
    assert weather.called == 1


@pytest.mark.parametrize("later", [False, True])
def test_a_failure_can_be_reported_to_the_model(later):
    denied = PermissionError(13, "Permission denied")
    weather = Weather(denied)
    with in_memory(with_tools("ok")) as provider:
        agent, _, runtime = agent_with(provider, weather.undeclared(), tool_failures="tell")
        state = run(agent.ainvoke(HELLO, THREAD), clock=runtime.clock) if later else agent.invoke(HELLO, THREAD)
    message = tool_message(state)
    assert message.status == "error"
    assert json.loads(str(message.content)) == fault_of(denied).for_model()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("tool_failures", ["raise", "tell"])
def test_an_interrupt_in_a_tool_waits_for_its_answer_and_is_no_failure(later, tool_failures):
    calls = []

    @tool(effect="read")
    def weather(city: str) -> str:
        """The weather in a city."""
        calls.append(city)
        return f"{interrupt('May I?')} in {city}"

    with in_memory(with_tools("ok")) as provider:
        agent, heard, runtime = agent_with(provider, weather, tool_failures=tool_failures)

        def go(state: Any) -> Any:
            return run(agent.ainvoke(state, THREAD), clock=runtime.clock) if later else agent.invoke(state, THREAD)

        paused = go(HELLO)
        assert [one.value for one in paused["__interrupt__"]] == ["May I?"]
        assert len(calls) == 1
        assert heard.of(Failed) == heard.of(Cancelled) == []
        assert "sunny in" in last(go(Command(resume="sunny")))
    assert len(calls) == 2


# --- retries beside ours ---


@pytest.mark.parametrize("other", [ModelRetryMiddleware, ToolRetryMiddleware])
@pytest.mark.parametrize("ours_first", [False, True])
def test_langchains_own_retries_in_the_same_agent_cause_one_warning(other, ours_first):
    middleware: list[Any] = [RecoveryMiddleware(), other()]
    with in_memory() as provider:
        with pytest.warns(RecoveryWarning, match=f"{other.__name__} beside RecoveryMiddleware") as caught:
            create_agent(claude(provider), [], middleware=middleware if ours_first else middleware[::-1])
        assert [warning.filename for warning in caught] == [__file__]
        create_agent(claude(provider), [], middleware=middleware[:1])


def test_options_that_make_no_sense_are_invalid():
    with pytest.raises(InvalidError, match="tool_failures"):
        RecoveryMiddleware(tool_failures="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r"effects\.weather"):
        RecoveryMiddleware(effects={"weather": "harmless"})  # type: ignore[dict-item]
    with pytest.raises(InvalidError, match="fallbacks"):
        RecoveryMiddleware(Target(provider="gpt"))  # type: ignore[arg-type]
