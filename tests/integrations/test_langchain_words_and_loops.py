"""Agents and models in LangChain: a tool's own words, calls of tools in the Responses API, and LangChain's loops around ours."""

from __future__ import annotations

import asyncio
import json
import warnings

import pytest
from lang_kit import claude, gpt, in_memory, with_tools
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import ToolException, tool

from holdfast import Policy, Runtime
from holdfast.langchain import RecoveryMiddleware, RecoveryWarning, recovering
from holdfast.testing import Midpoint, no_waiting, use_runtime

TWICE = Policy(attempts=2)


@pytest.fixture(autouse=True)
def runtime():
    with use_runtime(Runtime(rng=Midpoint())) as fresh, no_waiting():
        yield fresh


@tool
def deploy(environment: str) -> str:
    """Deploy."""
    return environment


# --- tool calls in the Responses API ---


def read(model, *, is_async):
    async def reading():
        return [chunk async for chunk in model.astream("hello")]

    return asyncio.run(reading()) if is_async else list(model.stream("hello"))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("version", [None, "v1"])
@pytest.mark.parametrize("step", ["cut;after=0", "cut-tool;after=0"])
def test_FI7_a_failure_after_the_head_of_a_tool_call_stays_unseen(step, version, is_async):
    with in_memory(with_tools(f"{step}, ok")) as provider:
        more = {} if version is None else {"output_version": version}
        model = recovering(gpt(provider, use_responses_api=True, **more)).bind_tools([deploy])
        whole, *rest = read(model, is_async=is_async)
        for chunk in rest:
            whole += chunk
    assert [call["name"] for call in whole.tool_calls] == ["deploy"]
    assert provider.counters.received == 2


# --- what the model learns of a failed tool ---


def told(failure, **options):
    """Let an agent call a tool that fails; return what the model gets to see."""

    @tool
    def forecast(city: str) -> str:
        """Forecast the weather."""
        raise failure

    with in_memory(with_tools("ok")) as provider:
        recovery = RecoveryMiddleware(tool_failures="tell", **options)
        agent = create_agent(claude(provider), [forecast], middleware=[recovery])
        messages = agent.invoke({"messages": [("user", "hello")]}, {"recursion_limit": 6})["messages"]
    (message, *_) = [each for each in messages if isinstance(each, ToolMessage)]
    assert message.status == "error"
    return json.loads(message.content)["context"]


WORDS = "unknown city; known are Oslo and Bergen"


class NoSuchCityError(Exception):
    pass


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, LookupError, ToolException, NoSuchCityError])
@pytest.mark.parametrize("effects", [{}, {"forecast": "read"}], ids=["undeclared", "read"])
def test_FI7_the_tools_own_words_reach_the_model(kind, effects):
    shown = told(kind(WORDS), effects=effects)
    assert WORDS in shown["message"]
    assert shown["fault"] == "TOOL_EXECUTION_FAILED"


def test_FI7_a_tool_exception_speaks_to_the_model_whatever_it_says():
    assert "rate limit" in told(ToolException("rate limit exceeded; ask for fewer cities"))["message"]


def test_FI7_secrets_in_them_are_masked():
    shown = told(ValueError("no city for key sk-ant-api03-" + "a" * 95))
    assert "sk-ant-api03" not in json.dumps(shown)
    assert "no city for key" in shown["message"]


@pytest.mark.parametrize("path", ["/srv/app/cities.db", "app/cities.py", "~/cities", "C:\\data\\cities.csv"])
def test_FI7_paths_of_files_in_them_are_masked_and_other_words_are_not(path):
    shown = told(ValueError(f"{path}: 3.5/4.5 km/h and/or none, see https://example.com/cities.html"))
    assert path not in json.dumps(shown)
    assert "[path]: 3.5/4.5 km/h and/or none, see https://example.com/cities.html" in shown["message"]


def test_FI7_a_defect_and_the_host_of_a_connection_are_not_shown():
    assert "internal_thing" not in json.dumps(told(AttributeError("'NoneType' has no attribute internal_thing")))
    assert "db.internal" not in json.dumps(told(ConnectionRefusedError(111, "db.internal refused")))


# --- LangChain's loops around ours ---


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Exception):
            call()
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught if warning.category is RecoveryWarning]


each_kind = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@each_kind
def test_FI9_with_retry_around_a_recovering_model_warns_once(is_async):
    with in_memory("529, loop") as provider:
        model = recovering(claude(provider), policy=TWICE)
        around = model.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)

        def ask():
            return asyncio.run(around.ainvoke("hello")) if is_async else around.invoke("hello")

        (message,) = warned(ask)
        assert ".with_retry() around a recovery" in message
        assert warned(ask) == []


@each_kind
def test_FI9_also_around_a_chain_with_the_model_inside(is_async):
    with in_memory("529, loop") as provider:
        model = recovering(claude(provider), policy=TWICE)
        chain = (ChatPromptTemplate.from_messages([("user", "{text}")]) | model).with_retry(
            stop_after_attempt=2, wait_exponential_jitter=False
        )
        asked = {"text": "hello"}
        (message,) = warned(lambda: asyncio.run(chain.ainvoke(asked)) if is_async else chain.invoke(asked))
        assert ".with_retry()" in message


@each_kind
def test_FI9_model_retry_middleware_around_a_recovering_model_warns_once(is_async):
    with in_memory("529, loop") as provider:
        model = recovering(claude(provider), policy=TWICE)
        retrying = ModelRetryMiddleware(max_retries=1, initial_delay=0, on_failure="error")
        agent = create_agent(model, [], middleware=[retrying])
        asked = {"messages": [("user", "hello")]}
        (message,) = warned(lambda: asyncio.run(agent.ainvoke(asked)) if is_async else agent.invoke(asked))
        assert "ModelRetryMiddleware around a recovery" in message


def test_FI9_without_a_loop_around_it_nothing_is_reported():
    with in_memory("529, loop") as provider:
        assert warned(lambda: recovering(claude(provider), policy=TWICE).invoke("hello")) == []
