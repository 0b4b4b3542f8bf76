"""pydantic-ai's real models and agents in front of the fault provider: one attempt is one request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from clients_kit import Streaming, Wire, chunk, in_time, world
from lang_kit import ANSWER, with_tools
from pydantic_ai import Agent, RunContext
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import (
    ApprovalRequired,
    ContentFilterError,
    FallbackExceptionGroup,
    ModelAuthenticationError,
    ModelHTTPError,
    ModelOverloadedError,
    ModelRetry,
    ToolFailed,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)
from pydantic_ai.messages import ModelRequest, ModelResponse, PartStartEvent, ToolReturnPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import DeferredToolRequests

from holdfast import Budget, CircuitOpenError, InvalidError, Policy, Runtime, StreamCutError, fault_of, tool
from holdfast.events import AttemptStarted, Cancelled, Failed, Recovered, Retry, StreamResumed
from holdfast.pydantic_ai import FALLBACK_ON, RecoveringModel, RecoveryWarning, for_the_model, recovering_tool
from holdfast.testing import FaultProvider, Midpoint, VirtualClock

TestModel.__test__ = False  # type: ignore[attr-defined] # it is theirs, and no test


def http(provider: FaultProvider) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=provider.transport())


def claude(provider: FaultProvider) -> Model:
    made = AnthropicProvider(api_key="test", base_url="http://provider.test", http_client=http(provider))
    return AnthropicModel("claude-haiku-4-5", provider=made)


def _openai(provider: FaultProvider) -> OpenAIProvider:
    return OpenAIProvider(api_key="test", base_url="http://provider.test/v1", http_client=http(provider))


def gpt(provider: FaultProvider) -> Model:
    return OpenAIChatModel("gpt-5", provider=_openai(provider))


def responses(provider: FaultProvider) -> Model:
    return OpenAIResponsesModel("gpt-5", provider=_openai(provider))


each_model = pytest.mark.parametrize("model_of", [claude, gpt, responses], ids=["claude", "chat", "responses"])


def on(script: str, model_of: Any, **options: Any) -> tuple[FaultProvider, RecoveringModel, Any, Any]:
    runtime, heard = world()
    provider = FaultProvider(script)
    return provider, RecoveringModel(model_of(provider), runtime=runtime, **options), runtime, heard


# --- requests ---


@each_model
def test_a_storm_passes_unseen_and_one_attempt_is_one_request(model_of):
    provider, model, runtime, heard = on("429;retry-after=70, 529, ok", model_of)
    assert in_time(runtime, Agent(model).run("hello")).output == ANSWER
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 3
    assert next(event.delay for event in heard.of(Retry)) == 70.0
    assert len(heard.of(Recovered)) == 1


@each_model
@pytest.mark.parametrize(
    "step", ["error-200", "html;status=200", "empty", "malformed-json", "malformed-json;after=0", "truncate", "cut"]
)
def test_an_answer_that_is_not_whole_is_retried(model_of, step):
    provider, model, runtime, _ = on(f"{step}, ok", model_of)
    assert in_time(runtime, Agent(model).run("hello")).output == ANSWER
    assert provider.counters.received == 2


@each_model
def test_the_exception_is_pydantic_ais_own(model_of):
    provider, model, runtime, heard = on("401", model_of)
    with pytest.raises(ModelAuthenticationError) as raised:
        in_time(runtime, Agent(model).run("hello"))
    assert isinstance(raised.value, ModelHTTPError)
    assert [attempt.code for attempt in fault_of(raised.value).attempts] == ["AUTH_FAILED"]
    assert (provider.counters.received, len(heard.of(Failed))) == (1, 1)


@each_model
def test_each_key_has_a_circuit_of_its_own(model_of):
    _, model, runtime, _ = on("401, ok", model_of)
    with pytest.raises(ModelHTTPError):
        in_time(runtime, Agent(model).run("hello"))
    keys = [line for line in runtime.registry if line.name.startswith("key:")]
    assert [line._breaker.failures for line in keys] == [1], [line.name for line in runtime.registry]


def test_it_is_a_model_like_the_one_inside():
    provider, model, _, _ = on("", claude)
    assert isinstance(model, WrapperModel)
    assert (model.model_id, model.profile) == (claude(provider).model_id, claude(provider).profile)


def test_a_hang_has_the_policys_limit_and_a_cancelled_request_counts_for_nothing():
    provider, model, runtime, heard = on("hang, ok, hang", claude, policy=Policy(timeout=10))
    assert in_time(runtime, Agent(model).run("hello")).output == ANSWER

    async def leave() -> None:
        task = asyncio.ensure_future(Agent(model).run("hello"))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = runtime.registry.get("provider:anthropic@provider.test")._breaker.failures
    in_time(runtime, leave())
    assert runtime.registry.get("provider:anthropic@provider.test")._breaker.failures == before
    assert len(heard.of(Cancelled)) == 1
    assert provider.counters.received == 3


def test_budgets_are_charged_what_the_answers_say():
    _, model, runtime, _ = on("", claude)

    async def ask() -> int:
        with Budget(tokens=1_000_000) as budget:
            whole = (await Agent(model).run("hello")).usage
            async with Agent(model).run_stream("hello") as streamed:
                await streamed.get_output()
            used = whole.total_tokens + streamed.usage.total_tokens
            assert 1_000_000 - budget.left().tokens == used
        return used

    assert in_time(runtime, ask()) > 0


# --- streams ---


async def words(model: Model, seen: list[str]) -> str:
    async with Agent(model).run_stream("hello") as result:
        async for text in result.stream_text(delta=True, debounce_by=None):
            seen.append(text)  # noqa: PERF401 - a comprehension that is cut short gives nothing
    return "".join(seen)


@each_model
@pytest.mark.parametrize("early", ["529", "disconnect", "sse-error;after=0", "cut;after=0", "truncate;after=0"])
def test_a_failure_before_the_first_content_stays_unseen(model_of, early):
    provider, model, runtime, heard = on(f"{early}, ok", model_of)
    assert in_time(runtime, words(model, [])) == ANSWER
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 2
    assert len(heard.of(Recovered)) == 1
    assert runtime.registry.get(f"provider:{model.system}@provider.test")._breaker.successes == 1


@each_model
@pytest.mark.parametrize("late", ["cut;after=2", "truncate;after=2", "sse-error;after=2"])
def test_a_failure_after_it_is_a_cut_with_what_arrived(model_of, late):
    provider, model, runtime, heard = on(f"{late}, ok", model_of)
    seen: list[str] = []
    with pytest.raises(StreamCutError) as cut:
        in_time(runtime, words(model, seen))
    assert seen
    assert cut.value.partial is not None
    assert cut.value.partial.complete
    assert provider.counters.received == 1
    assert len(heard.of(Failed)) == 1


def test_silence_in_the_middle_is_a_cut():
    _, model, runtime, _ = on("silence;after=2", gpt, policy=Policy(timeout=20))
    with pytest.raises(StreamCutError) as cut:
        in_time(runtime, words(model, []))
    assert cut.value.fault.code == "PROVIDER_STREAM_STALLED"


@each_model
@pytest.mark.parametrize("early", ["cut-tool;after=0", "truncate;after=0"])
def test_before_its_arguments_a_tool_call_is_made_again_unseen(model_of, early):
    provider, model, runtime, _ = on(with_tools(f"{early}, ok"), model_of)
    agent = Agent(model)

    @agent.tool_plain
    def weather(city: str) -> str:
        return "rain"

    async def read() -> str:
        async with agent.run_stream("hello") as result:
            return await result.get_output()

    assert in_time(runtime, read()) == "The tool says: rain"
    assert provider.counters.received == 3


def test_a_streamed_refusal_of_the_model_is_an_answer_and_no_cut():
    runtime, _ = world()
    wire = Wire(Streaming(chunk(role="assistant"), chunk(refusal="I will not"), chunk(finish="stop")))
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(wire.asynchronously))
    inner = OpenAIChatModel("gpt-test", provider=OpenAIProvider(api_key="test", http_client=client))
    with pytest.raises(ContentFilterError, match="I will not"):
        in_time(runtime, words(RecoveringModel(inner, runtime=runtime), []))
    assert len(wire.requests) == 1
    assert runtime.registry.get("provider:openai@provider.test")._breaker.failures == 0


@each_model
def test_a_tool_call_is_never_put_together_from_two_answers(model_of):
    provider, model, runtime, _ = on(with_tools("cut-tool, ok"), model_of)
    called: list[str] = []
    agent = Agent(model)

    @agent.tool_plain
    def weather(city: str) -> str:
        called.append(city)
        return "rain"

    async def read() -> None:
        async with agent.run_stream("hello") as result:
            await result.get_output()

    with pytest.raises(StreamCutError):
        in_time(runtime, read())
    assert (called, provider.counters.received) == ([], 1)


def test_who_leaves_a_stream_early_says_nothing_about_the_provider():
    _, model, runtime, heard = on("", claude)

    async def leave() -> None:
        async with Agent(model).run_stream("hello") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                await result.cancel()
                break

    in_time(runtime, leave())
    assert heard.of(Failed) == []
    line = runtime.registry.get("provider:anthropic@provider.test")
    assert (line._breaker.successes, line._breaker.failures) == (0, 0)


@pytest.mark.parametrize("leave", ["read", "cancel", "break", "raise"])
def test_a_stream_holds_its_place_until_it_is_left_and_its_reader_may_ask_again(leave):
    _, model, runtime, _ = on("", claude, policy=Policy(concurrency=1))

    async def read() -> None:
        async with Agent(model).run_stream("hello") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                assert places() == 1
                assert (await Agent(model).run("hello")).output == ANSWER
                if leave == "raise":
                    raise LookupError
                if leave == "cancel":
                    await result.cancel()
                if leave != "read":
                    break

    def places() -> int:
        return runtime.registry.get("provider:anthropic@provider.test").limiter._places.running

    if leave == "raise":
        with pytest.raises(LookupError):
            in_time(runtime, read())
    else:
        in_time(runtime, read())
    assert places() == 0


def test_its_own_deadlines_still_hold():
    _, model, runtime, _ = on("slow;seconds=1, ok", claude)
    agent = Agent(model, model_settings={"request_timeout": 100, "first_event_timeout": 50})

    async def read() -> str:
        async with agent.run_stream("hello") as result:
            return await result.get_output()

    assert in_time(runtime, read()) == ANSWER


# --- fallbacks ---


def test_a_fallback_model_around_models_that_recover_knows_an_open_circuit():
    down, up, (runtime, _) = FaultProvider("529, loop"), FaultProvider(), world()
    first = RecoveringModel(claude(down), policy=Policy(attempts=2), runtime=runtime)
    model = FallbackModel(first, RecoveringModel(gpt(up), runtime=runtime), fallback_on=FALLBACK_ON)
    assert in_time(runtime, Agent(model).run("hello")).output == ANSWER
    assert (down.counters.received, up.counters.received) == (2, 1)
    runtime.registry.get("provider:anthropic@provider.test")._breaker.force_open(runtime.clock.monotonic())
    with pytest.raises(CircuitOpenError):
        in_time(runtime, Agent(first).run("hello"))
    assert in_time(runtime, Agent(model).run("hello")).output == ANSWER
    assert (down.counters.received, up.counters.received) == (2, 2)


def by_default() -> Runtime:
    return Runtime(clock=VirtualClock(), rng=Midpoint())


@pytest.mark.parametrize("wraps", [False, True], ids=["bare", "wrapped"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_model_before_another_of_a_fallback_model_makes_three_attempts(streams, wraps):
    down, up, runtime = FaultProvider("529, loop"), FaultProvider(), by_default()
    first: Model = RecoveringModel(claude(down), runtime=runtime)
    first = WrapperModel(first) if wraps else first
    model = FallbackModel(first, RecoveringModel(gpt(up), runtime=runtime), fallback_on=FALLBACK_ON)
    asked = words(model, []) if streams else answer_of(model)
    assert in_time(runtime, asked) == ANSWER
    assert (down.counters.received, up.counters.received) == (3, 1)
    assert runtime.clock.monotonic() < 10


def test_the_last_of_a_fallback_model_is_as_patient_as_one_alone():
    down, runtime = FaultProvider("529, loop"), by_default()
    last = FaultProvider("503*5, ok", clock=runtime.clock)
    first = RecoveringModel(claude(down), runtime=runtime)
    model = FallbackModel(first, RecoveringModel(gpt(last), runtime=runtime), fallback_on=FALLBACK_ON)
    assert in_time(runtime, answer_of(model)) == ANSWER
    assert (down.counters.received, last.counters.received) == (3, 6)


async def answer_of(model: Model) -> str:
    return (await Agent(model).run("hello")).output


def test_a_group_of_fallback_failures_is_one_record():
    down, limited, (runtime, heard) = FaultProvider("529"), FaultProvider("429;retry-after=9"), world()
    model = RecoveringModel(FallbackModel(claude(down), gpt(limited)), policy=Policy(attempts=1), runtime=runtime)
    with pytest.raises(FallbackExceptionGroup) as raised:
        in_time(runtime, Agent(model).run("hello"))
    fault = fault_of(raised.value)
    assert (fault.code, fault.retry_after) == ("PROVIDER_RATE_LIMITED", 9.0)
    assert fault.cause is not None
    assert [cause.type.rpartition(".")[2] for cause in fault.cause.chain] == [
        "ModelOverloadedError",
        "ModelRateLimitError",
    ]
    assert len(heard.of(Failed)) == 1


@pytest.mark.parametrize("early", ["529", "cut;after=0"])
def test_a_stream_through_a_fallback_model_inside_recovers(early):
    first, second, (runtime, _) = FaultProvider(f"{early}, ok"), FaultProvider("529"), world()
    model = RecoveringModel(FallbackModel(claude(first), gpt(second)), runtime=runtime)
    assert in_time(runtime, words(model, [])) == ANSWER
    assert (first.counters.received, second.counters.received) == (2, 1)


# --- control flow ---


@pytest.mark.parametrize("signal", [ModelRetry("again, please"), ToolFailed("no"), ApprovalRequired()])
def test_control_flow_is_never_retried_nor_counted(signal):
    runtime, heard = world()

    async def answer(messages: Any, info: Any) -> ModelResponse:
        raise signal

    model = RecoveringModel(FunctionModel(answer), name="local", runtime=runtime)

    async def ask() -> None:
        await model.request([], None, ModelRequestParameters())

    with pytest.raises(type(signal)) as raised:
        in_time(runtime, ask())
    assert raised.value is signal
    assert len(heard.of(AttemptStarted)) == 1
    assert heard.of(Failed) == heard.of(Cancelled) == heard.of(Retry) == []
    line = runtime.registry.get("provider:local")
    assert (line._breaker.successes, line._breaker.failures) == (0, 0)


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (ToolFailed("the file is gone"), "TOOL_EXECUTION_FAILED", False),
        (UsageLimitExceeded("Exceeded the request_limit of 5"), "SYS_BUDGET_EXHAUSTED", False),
        (ModelRetry("give a city"), "PROVIDER_OUTPUT_INVALID", True),
        (UnexpectedModelBehavior("Invalid response"), "PROVIDER_OUTPUT_INVALID", True),
        (
            ModelHTTPError.for_category(ModelOverloadedError, status_code=529, model_name="m"),
            "PROVIDER_OVERLOADED",
            True,
        ),
    ],
)
def test_what_pydantic_ai_raises_is_recognised(error, code, retryable):
    fault = fault_of(error)
    assert (fault.code, fault.retryable) == (code, retryable)


# --- tools ---

RESET = ConnectionResetError(104, "Connection reset by peer")


def agent_with(fn: Any, **options: Any) -> tuple[Agent[None, Any], FaultProvider]:
    provider = FaultProvider(with_tools("ok"))
    agent: Agent[None, Any] = Agent(claude(provider), **options)
    agent.tool_plain(fn)
    return agent, provider


def tool_returns(result: Any) -> list[ToolReturnPart]:
    return [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]


@pytest.mark.parametrize("later", [False, True])
def test_a_tool_that_only_reads_is_called_again(later):
    runtime, heard = world()
    errors = [RESET]

    def weather(city: str) -> str:
        if errors:
            raise errors.pop()
        return f"rain in {city}"

    async def weather_later(city: str) -> str:
        return weather(city)

    decorate = recovering_tool(effect="read", name="weather", runtime=runtime)
    agent, _ = agent_with(decorate(weather_later if later else weather))
    result = in_time(runtime, agent.run("hello")) if later else agent.run_sync("hello")
    assert "rain in" in result.output
    assert [event.operation for event in heard.of(Recovered)] == ["tool:weather"]


def test_a_tool_with_the_runs_context_and_its_own_declaration():
    runtime, heard = world()
    errors = [RESET]
    agent: Agent[str, str] = Agent(claude(FaultProvider(with_tools("ok"))), deps_type=str)

    @agent.tool
    @recovering_tool(runtime=runtime)
    @tool(effect="read")
    async def weather(context: RunContext[str], city: str) -> str:
        """The weather in a city."""
        if errors:
            raise errors.pop()
        return f"{context.deps} in {city}"

    assert "rain in" in in_time(runtime, agent.run("hello", deps="rain")).output
    assert len(heard.of(Recovered)) == 1


def test_a_tool_without_an_effect_is_called_once_and_the_model_is_informed():
    called = []

    @recovering_tool
    def weather(city: str) -> str:
        called.append(city)
        raise RESET

    agent, _ = agent_with(weather)
    result = agent.run_sync("hello")
    assert len(called) == 1
    assert [part.outcome for part in tool_returns(result)] == ["failed"]
    assert json.loads(str(tool_returns(result)[0].content)) == fault_of(RESET).for_model()


def test_it_may_end_the_run_instead():
    @recovering_tool(failures="raise")
    def weather(city: str) -> str:
        raise RESET

    agent, _ = agent_with(weather)
    with pytest.raises(ConnectionResetError):
        agent.run_sync("hello")
    with pytest.raises(InvalidError, match="failures"):
        recovering_tool(failures="ignore")(weather)  # type: ignore[call-overload]


def test_what_a_tool_says_to_the_model_itself_passes():
    runtime, heard = world()

    @recovering_tool(effect="read", runtime=runtime)
    def weather(city: str) -> str:
        raise ToolFailed("there is no weather there")

    agent, _ = agent_with(weather)
    assert [part.content for part in tool_returns(agent.run_sync("hello"))] == ["there is no weather there"]
    assert heard.of(Failed) == heard.of(Retry) == []


def test_a_tool_that_waits_for_approval_passes():
    @recovering_tool(effect="read")
    def weather(city: str) -> str:
        raise ApprovalRequired

    agent, _ = agent_with(weather, output_type=[str, DeferredToolRequests])
    assert len(agent.run_sync("hello").output.approvals) == 1


def test_a_fault_for_the_model_asks_it_to_try_again_and_others_tell_it():
    again = for_the_model(UnexpectedModelBehavior("Invalid response"))
    assert isinstance(again, ModelRetry)
    assert json.loads(again.message) == fault_of(UnexpectedModelBehavior("Invalid response")).for_model()
    assert isinstance(for_the_model(RESET), ToolFailed)


# --- retries beside ours ---


def test_retries_of_others_cause_a_warning():
    provider = FaultProvider()
    stubborn = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(retries=2))
    model = AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="test", http_client=stubborn))
    with pytest.warns(RecoveryWarning, match="connects again by itself") as caught:
        RecoveringModel(model)
    assert [warning.filename for warning in caught] == [__file__]
    runtime, _ = world()
    agent = Agent(RecoveringModel(claude(provider), runtime=runtime), model_settings={"max_retries": 5})
    with pytest.warns(RecoveryWarning, match="max_retries stays 0"):
        in_time(runtime, agent.run("hello"))
    with pytest.raises(InvalidError, match="does not recover yet"):
        RecoveringModel(RecoveringModel(claude(provider)))


def test_a_model_without_a_client_recovers_as_well():
    runtime, heard = world()
    model = RecoveringModel(TestModel(custom_output_text="hi"), runtime=runtime)
    assert in_time(runtime, Agent(model).run("hello")).output == "hi"
    assert in_time(runtime, words(model, [])) == "hi"
    assert len(heard.of(AttemptStarted)) == 2


# --- streams that begin again ---

TOOL_TURNS = 'replies = "tools"\n[[rules]]\nsteps = "{}"'


def _agent_with_a_tool(model: Model, ran: list[str]) -> Agent[None, str]:
    agent = Agent(model)

    @agent.tool_plain
    def weather(city: str, days: int) -> str:
        ran.append(f"{city} {days}")
        return "rain"

    return agent


async def _run_streamed(agent: Agent[None, str], seen: list[Any], prompt: str = "hello") -> str:
    async def handler(_: Any, events: Any) -> None:
        async for event in events:
            seen.append(event)  # noqa: PERF401 - what came before a failure counts

    return (await agent.run(prompt, event_stream_handler=handler)).output


@each_model
@pytest.mark.parametrize("late", ["cut;after=2", "truncate;after=2", "sse-error;after=2"])
def test_FI10_a_stream_that_breaks_off_begins_again(model_of, late):
    provider, model, runtime, heard = on(f"{late}, ok", model_of, after_first="restart")
    seen: list[Any] = []
    assert in_time(runtime, _run_streamed(Agent(model), seen)) == ANSWER
    assert provider.counters.received == 2
    (resumed,) = heard.of(StreamResumed)
    assert resumed.how == "restart"
    starts = [event for event in seen if isinstance(event, PartStartEvent)]
    assert [event.index for event in starts] == [0, 0]  # the second replaces the first, as pydantic-ai documents it
    assert len(heard.of(Recovered)) == 1


@each_model
def test_FI10_a_cut_in_a_later_turn_does_not_lose_the_run(model_of):
    provider, model, runtime, heard = on(TOOL_TURNS.format("ok, cut;after=2, ok"), model_of, after_first="restart")
    ran: list[str] = []
    output = in_time(runtime, _run_streamed(_agent_with_a_tool(model, ran), []))
    assert len(ran) == 1
    assert provider.counters.received == 3
    assert len(heard.of(StreamResumed)) == 1
    assert output


@each_model
def test_FI10_half_a_tool_call_is_never_run(model_of):
    provider, model, runtime, _ = on(TOOL_TURNS.format("cut-tool;after=2, ok, ok"), model_of, after_first="restart")
    ran: list[str] = []
    assert in_time(runtime, _run_streamed(_agent_with_a_tool(model, ran), []))
    assert ran == ["example 1"]
    assert provider.counters.received == 3


@each_model
def test_FI10_the_usage_and_the_parts_are_those_of_the_last_answer(model_of):
    _, model, runtime, _ = on("cut;after=2, ok", model_of, after_first="restart")

    async def read() -> Any:
        async with Agent(model).run_stream("hello") as result:
            output = await result.get_output()
            return output, result.response

    output, response = in_time(runtime, read())
    assert output == ANSWER
    assert len(response.parts) == 1
    assert response.usage.output_tokens > 0
    assert response.finish_reason == "stop"


def test_FI10_a_reader_who_leaves_after_a_restart_closes_the_answer():
    _, model, runtime, heard = on("cut;after=2, ok", claude, after_first="restart")

    async def leave() -> int:
        starts = 0
        async with model_request_stream(model, [ModelRequest.user_text_prompt("hello")]) as stream:
            async for event in stream:
                starts += isinstance(event, PartStartEvent)
                if starts == 2:
                    break
        return starts

    assert in_time(runtime, leave()) == 2
    assert len(heard.of(Cancelled)) == 1


def test_FI10_a_deadline_of_pydantic_ai_holds_for_a_stream_that_may_restart():
    _, model, runtime, _ = on("cut;after=2, ok", claude, after_first="restart")

    async def read() -> str:
        messages = [ModelRequest.user_text_prompt("hello")]
        async with model_request_stream(model, messages, model_settings={"request_timeout": 60}) as stream:
            async for _ in stream:
                pass
            return "".join(part.content for part in stream.get().parts)

    assert in_time(runtime, read()) == ANSWER


def test_FI10_restarts_end_with_the_attempts():
    provider, model, runtime, _ = on("cut;after=2, loop", claude, after_first="restart")
    with pytest.raises(StreamCutError):
        in_time(runtime, _run_streamed(Agent(model), []))
    assert provider.counters.received == 3


def test_FI10_another_word_is_rejected():
    with pytest.raises(InvalidError, match="after_first"):
        RecoveringModel(TestModel(), after_first="continue")  # type: ignore[arg-type] # that is the point
