"""Agents of the OpenAI Agents SDK, really run, on a provider that fails on script and counts what reaches it."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx2
import msgspec
import openai
import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    Model,
    ModelBehaviorError,
    ModelProvider,
    ModelResponse,
    ModelRetrySettings,
    ModelSettings,
    MultiProvider,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    ProgrammaticToolCallingTool,
    RunConfig,
    Runner,
    Usage,
    UserError,
    function_tool,
    input_guardrail,
    retry_policies,
)
from agents.models.interface import ModelTracing
from clients_kit import in_time, world
from openai import AsyncOpenAI
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from holdfast import (
    Budget,
    BudgetError,
    InvalidError,
    OutcomeUnknownError,
    Policy,
    Runtime,
    StreamCutError,
    fault_of,
    recover,
    tool,
)
from holdfast.events import Cancelled, Failed, Fallback, Recovered, StreamResumed
from holdfast.openai_agents import RecoveryWarning, recovering, tool_failure
from holdfast.testing import FaultProvider
from holdfast.testing.provider.script import read_script

QUIET = {"tracing_disabled": True}
MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}
each_model = pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """The SDK logs every failed request as an error, also one that is made again."""
    caplog.set_level(logging.CRITICAL, "openai.agents")


class Stage:
    """A provider in memory, a runtime in virtual time with its ears, and clients of the provider."""

    def __init__(self, script: str, replies: str = "echo") -> None:
        self.runtime, self.heard = world()
        scripted = msgspec.structs.replace(read_script(script), replies=replies)
        self.provider = FaultProvider(scripted, clock=self.runtime.clock)

    def client(self, **options) -> AsyncOpenAI:
        http = httpx2.AsyncClient(transport=self.provider.transport())
        return AsyncOpenAI(base_url="http://provider.test/v1", api_key="test", http_client=http, **options)

    def model(self, kind=OpenAIResponsesModel, name="gpt-5", **options):
        return recovering(kind(name, self.client()), runtime=self.runtime, **options)

    def run(self, model, *, config=None, **agent):
        helper = Agent(name="Helper", model=model, **agent)
        return in_time(self.runtime, Runner.run(helper, "hello", run_config=RunConfig(**QUIET, **(config or {}))))

    def stream(self, model, **agent):
        return in_time(self.runtime, self.streamed(model, **agent))

    async def streamed(self, model, **agent):
        helper = Agent(name="Helper", model=model, **agent)
        result = Runner.run_streamed(helper, "hello", run_config=RunConfig(**QUIET))
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        return events, result.final_output

    def breaker(self, name: str = "provider:openai@provider.test"):
        return self.runtime.registry.get(name)._breaker

    @property
    def received(self) -> int:
        return self.provider.counters.received


def direct(model, method="get_response", **changes):
    """A call as the runner makes it."""
    call = {
        "system_instructions": None, "input": "hello", "model_settings": ModelSettings(), "tools": [], "output_schema": None,
        "handoffs": [], "tracing": ModelTracing.DISABLED, "previous_response_id": None, "conversation_id": None, "prompt": None,
    }  # fmt: skip
    return getattr(model, method)(**{**call, **changes})


# Calls


@each_model
def test_failures_pass_unseen_and_one_attempt_is_one_request(kind):
    stage = Stage("429;retry-after=7, 503, cut, ok")
    model = stage.model(kind, policy=Policy(attempts=6, timeout=None, patience=None))
    assert type(model) is kind
    assert stage.run(model).final_output == "You said: hello"
    assert stage.received == 4
    assert stage.provider.counters.injected == {"429": 1, "503": 1, "cut": 1}
    assert stage.runtime.clock.monotonic() > 7.0
    assert len(stage.heard.of(Recovered)) == 1


NO_ANSWERS = ["error-200", "html;status=200", "empty", "malformed-json;after=0"]


@each_model
@pytest.mark.parametrize("step", NO_ANSWERS)
def test_a_response_that_is_a_failure_is_retried(kind, step):
    stage = Stage(f"{step}, ok")
    assert stage.run(stage.model(kind)).final_output == "You said: hello"
    assert stage.received == 2


@each_model
@pytest.mark.parametrize("step", NO_ANSWERS)
def test_a_stream_without_an_answer_is_retried(kind, step):
    stage = Stage(f"{step}, ok")
    assert stage.stream(stage.model(kind))[1] == "You said: hello"
    assert stage.received == 2


@each_model
def test_the_sdks_own_exception_surfaces_and_no_layer_asks_again(kind):
    stage = Stage("401, loop")
    with pytest.raises(openai.AuthenticationError) as caught:
        stage.run(stage.model(kind))
    assert stage.received == 1
    assert fault_of(caught.value).code == "AUTH_FAILED"


def test_the_retries_of_client_and_runner_are_off():
    """Without Holdfast the client sends three, and the runner's policy repeats that."""
    stage = Stage("503, loop")
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=5, policy=retry_policies.http_status([503])))
    model = stage.model(policy=Policy(attempts=2))
    with pytest.raises(openai.InternalServerError), pytest.warns(RecoveryWarning, match="max_retries=5 has no effect"):
        stage.run(model, model_settings=settings)
    assert stage.received == 2


def test_the_runners_retries_of_a_stream_are_off_too():
    stage = Stage("503, loop")
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=5, policy=retry_policies.http_status([503])))
    with pytest.raises(openai.InternalServerError), pytest.warns(RecoveryWarning):
        stage.stream(stage.model(policy=Policy(attempts=2)), model_settings=settings)
    assert stage.received == 2


def test_nothing_changes_on_the_model_and_the_client_that_are_given():
    stage = Stage("503, 503, 503, loop")
    client = stage.client()
    given = OpenAIResponsesModel("gpt-5", client)
    before = dict(vars(given))
    recovering(given, runtime=stage.runtime)
    assert vars(given) == before
    assert client.max_retries == 2
    assert "request" not in vars(client)


def test_a_whole_provider_recovers_with_its_class_kept():
    stage = Stage("503, ok, 529, ok")
    provider = recovering(OpenAIProvider(openai_client=stage.client()), runtime=stage.runtime)
    assert type(provider) is OpenAIProvider
    assert stage.run("gpt-5", config={"model_provider": provider}).final_output == "You said: hello"
    assert stage.run("gpt-5-mini", config={"model_provider": provider}).final_output == "You said: hello"
    assert stage.received == 4
    assert {line.name for line in stage.runtime.registry} >= {
        "model:openai@provider.test/gpt-5",
        "model:openai@provider.test/gpt-5-mini",
    }


def test_the_sdks_default_provider_recovers_too():
    stage = Stage("503, ok")
    provider = recovering(MultiProvider(openai_client=stage.client()), runtime=stage.runtime)
    assert stage.run("openai/gpt-5", config={"model_provider": provider}).final_output == "You said: hello"
    assert stage.received == 2
    in_time(stage.runtime, provider.aclose())


def test_circuits_know_provider_model_and_key_by_a_name_that_is_not_the_key():
    stage = Stage("ok")
    stage.run(stage.model(name="gpt-5"))
    names = sorted(line.name for line in stage.runtime.registry)
    assert [name.rpartition("key-")[0] or name for name in names] == [
        "key:openai@provider.test/", "model:openai@provider.test/gpt-5", "provider:openai@provider.test",
    ]  # fmt: skip


def test_an_agent_with_tools_survives_a_failure_in_each_turn():
    calls = []

    @function_tool
    def weather(city: str) -> str:
        calls.append(city)
        return "rain"

    stage = Stage("529, ok, 500, ok", replies="tools")
    result = stage.run(stage.model(), tools=[weather])
    assert "rain" in result.final_output
    assert (len(calls), stage.received) == (1, 4)


def test_another_model_answers_when_the_first_is_down():
    down, up = Stage("529, loop"), Stage("ok")
    spare = OpenAIChatCompletionsModel("grok-4", up.client())
    model = down.model(policy=Policy(attempts=2), fallbacks=[spare])
    assert down.run(model).final_output == "You said: hello"
    assert (down.received, up.received) == (2, 1)
    events, final = down.stream(model)
    assert (final, events[-1].type) == ("You said: hello", "response.completed")
    assert (down.received, up.received) == (4, 2)
    assert {event.to for event in down.heard.of(Fallback)} == {"openai@provider.test/grok-4"}


def test_what_a_call_used_is_charged_to_the_budget():
    stage = Stage("ok, ok")
    model = stage.model()
    with Budget(tokens=1_000_000) as budget:
        stage.run(model)
        after_call = budget.left().tokens
        stage.stream(model)
        assert 1_000_000 > after_call > budget.left().tokens


def test_any_model_of_your_own_recovers():
    class Own(Model):
        calls = closed = 0

        async def get_response(self, *args, **kwargs):
            self.calls += 1
            if self.calls == 1:
                raise ConnectionResetError(104, "Connection reset by peer")
            text = ResponseOutputText(text="mine", type="output_text", annotations=[])
            message = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
            return ModelResponse(output=[message], usage=Usage(), response_id=None)

        def stream_response(self, *args, **kwargs):
            raise NotImplementedError

        async def close(self):
            self.closed += 1

    class Owner(ModelProvider):
        model = Own()

        def get_model(self, model_name):
            return self.model

    stage = Stage("ok")
    provider = recovering(Owner(), runtime=stage.runtime, name="mine")
    assert stage.run("any", config={"model_provider": provider}).final_output == "mine"
    assert Owner.model.calls == 2
    in_time(stage.runtime, provider.get_model("any").close())
    assert Owner.model.closed == 1


def test_a_call_that_is_cancelled_says_nothing_about_the_provider():
    stage = Stage("hang, loop")
    model = stage.model(policy=Policy(timeout=None, patience=None))

    async def cancelled():
        task = asyncio.create_task(direct(model))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_time(stage.runtime, cancelled())
    assert (stage.received, stage.breaker().failures, stage.breaker().cancelled) == (1, 0, 1)
    assert len(stage.heard.of(Cancelled)) == 1


def test_the_sdks_limit_of_a_call_is_one_for_all_attempts():
    stage = Stage("529, loop")
    model = stage.model(policy=Policy(attempts=9, patience=None))
    with pytest.raises(Exception, match="timed out after 3 seconds") as caught:
        stage.run(model, model_settings=ModelSettings(timeout=3))
    assert type(caught.value).__name__ == "ModelTimeoutError"
    assert stage.runtime.clock.monotonic() == pytest.approx(3.0)


# Streams


@each_model
@pytest.mark.parametrize("early", ["529", "cut;after=0", "truncate;after=0", "sse-error;after=0", "disconnect"])
def test_a_stream_that_fails_before_its_first_content_begins_again_unseen(kind, early):
    stage = Stage(f"{early}, ok")
    events, final = stage.stream(stage.model(kind))
    assert final == "You said: hello"
    assert [event.type for event in events].count("response.created") == 1
    assert stage.received == 2
    assert len(stage.heard.of(Recovered)) == 1


@each_model
@pytest.mark.parametrize("late", ["cut;after=1", "truncate;after=1", "sse-error;after=1"])
def test_a_stream_that_fails_after_it_is_a_cut_with_what_arrived(kind, late):
    stage = Stage(late)
    with pytest.raises(StreamCutError) as caught:
        stage.stream(stage.model(kind))
    assert caught.value.partial.complete > 0
    assert stage.received == 1
    assert sum(line._breaker.failures for line in stage.runtime.registry) == len(stage.heard.of(Failed)) == 1


@each_model
@pytest.mark.parametrize("step", ["ok", "truncate;after=0", "truncate;after=1", "error-200"])
def test_while_recovery_is_off_a_stream_is_the_sdks_own(kind, step):
    stage = Stage(f"{step}, loop")
    own = kind("gpt-5", stage.client(max_retries=0))
    disabled = recovering(own, runtime=Runtime(clock=stage.runtime.clock, enabled=False))

    async def read(model):
        events = []
        try:
            async for event in direct(model, "stream_response"):
                events.append(event.type)  # noqa: PERF401 - events before a failure count too
        except Exception as error:
            events.append((type(error), str(error)))
        return events

    assert in_time(stage.runtime, read(disabled)) == in_time(stage.runtime, read(own))


@each_model
@pytest.mark.parametrize("late", ["cut;after=1", "truncate;after=1", "sse-error;after=1"])
def test_with_restart_it_begins_again_and_the_answer_is_one_piece(kind, late):
    stage = Stage(f"{late}, ok")
    events, final = stage.stream(stage.model(kind, after_first="restart"))
    assert final == "You said: hello"
    assert [event.type for event in events].count("response.created") == 2
    assert stage.received == 2
    assert len(stage.heard.of(StreamResumed)) == 1


@each_model
@pytest.mark.parametrize("mode", ["raise", "restart"])
def test_a_tool_is_never_called_with_arguments_of_a_broken_answer(kind, mode):
    calls = []

    @function_tool
    def deploy(environment: str) -> str:
        calls.append(environment)
        return "done"

    stage = Stage("cut-tool, ok, ok", replies="tools")
    model = stage.model(kind, after_first=mode)
    if mode == "raise":
        with pytest.raises(StreamCutError):
            stage.stream(model, tools=[deploy])
        assert (calls, stage.received) == ([], 1)
    else:
        stage.stream(model, tools=[deploy])
        assert (len(calls), stage.received) == (1, 3)


def test_silence_in_the_middle_is_cut_by_the_limit_of_an_attempt():
    stage = Stage("silence;after=1")
    with pytest.raises(StreamCutError) as caught:
        stage.stream(stage.model(policy=Policy(timeout=15)))
    assert caught.value.fault.code == "PROVIDER_STREAM_STALLED"
    assert stage.runtime.clock.monotonic() == 15.0


def test_a_reader_who_leaves_says_nothing_about_the_provider():
    stage = Stage("ok")
    model = stage.model()

    async def leave():
        events = direct(model, "stream_response")
        await anext(events)
        await events.aclose()

    in_time(stage.runtime, leave())
    breaker = stage.breaker()
    assert (breaker.successes, breaker.failures, breaker.ignored) == (0, 0, 1)


# Control flow is not ours


@pytest.mark.parametrize("error", [UserError("no"), ModelBehaviorError("rate limit 429"), MaxTurnsExceeded("9")])
def test_the_sdks_own_exceptions_are_neither_retried_nor_counted_nor_answered_by_another(error):
    class Own(Model):
        calls = 0

        async def get_response(self, *args, **kwargs):
            self.calls += 1
            raise error

        async def stream_response(self, *args, **kwargs):
            self.calls += 1
            raise error
            yield

    stage, spare = Stage("ok"), Own()
    given = Own()
    model = recovering(given, runtime=stage.runtime, name="mine", fallbacks=[spare])
    with pytest.raises(type(error)) as caught:
        in_time(stage.runtime, direct(model))
    assert caught.value is error
    with pytest.raises(type(error)) as caught:
        in_time(stage.runtime, anext(direct(model, "stream_response")))
    assert caught.value is error
    assert (given.calls, spare.calls) == (2, 0)
    breaker = stage.breaker("provider:mine")
    assert (breaker.successes, breaker.failures) == (0, 0)


def test_an_answer_the_sdk_refuses_after_its_first_content_is_an_answer():
    class Own(Model):
        async def get_response(self, *args, **kwargs):
            raise NotImplementedError

        async def stream_response(self, *args, **kwargs):
            yield {"type": "anything"}
            raise ModelBehaviorError("incomplete")

    stage = Stage("ok")
    model = recovering(Own(), runtime=stage.runtime, name="mine")

    async def read():
        return [event async for event in direct(model, "stream_response")]

    with pytest.raises(ModelBehaviorError):
        in_time(stage.runtime, read())
    assert (stage.breaker("provider:mine").successes, stage.breaker("provider:mine").failures) == (1, 0)


def test_guardrails_and_the_limit_of_turns_end_a_run_as_they_do():
    @input_guardrail
    async def no(context, agent, given):
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    stage = Stage("ok, loop")
    with pytest.raises(InputGuardrailTripwireTriggered):
        stage.run(stage.model(), input_guardrails=[no])

    @function_tool
    def weather(city: str) -> str:
        return "rain"

    stage = Stage("ok, loop", replies="tools")
    agent = Agent(name="Helper", model=stage.model(), tools=[weather])
    with pytest.raises(MaxTurnsExceeded):
        in_time(stage.runtime, Runner.run(agent, "hello", max_turns=1, run_config=RunConfig(**QUIET)))
    assert stage.received == 1


# What may not be sent twice


@function_tool(allowed_callers=["programmatic"])
def weather_for_programs(city: str) -> str:
    return "rain"


@pytest.mark.parametrize(
    "call",
    [{"conversation_id": "conv_1"}, {"tools": [ProgrammaticToolCallingTool(), weather_for_programs]}],
    ids=["conversation", "programs"],
)
def test_what_the_provider_remembers_or_runs_is_not_repeated_where_it_may_have_happened(call):
    stage = Stage("cut, ok")
    with pytest.raises(OutcomeUnknownError):
        in_time(stage.runtime, direct(stage.model(), **call))
    assert stage.received == 1
    stage = Stage("429, ok")
    in_time(stage.runtime, direct(stage.model(), **call))
    assert stage.received == 2


# Tools


def failing_tool(error, effect):
    @function_tool(failure_error_function=tool_failure)
    @recover("tool:charge", Policy(attempts=3))
    @tool(effect=effect)
    async def charge(amount: int) -> str:
        """Charge the card.

        Args:
            amount: In cents.
        """
        calls.append(amount)
        raise error

    calls: list[int] = []
    return charge, calls


@pytest.mark.parametrize(
    ("effect", "times", "code"), [("unsafe", 1, "TOOL_OUTCOME_UNKNOWN"), ("idempotent", 3, "CONN_RESET")]
)
def test_a_tool_is_repeated_as_it_declares_and_the_model_learns_what_to_do(effect, times, code):
    charge, calls = failing_tool(ConnectionResetError(104, "Connection reset by peer"), effect)
    assert charge.params_json_schema["properties"]["amount"]["description"] == "In cents."
    stage = Stage("ok, ok", replies="tools")
    result = stage.run(stage.model(), tools=[charge])
    assert len(calls) == times
    (output,) = (json.loads(item.output) for item in result.new_items if item.type == "tool_call_output_item")
    assert output["context"]["fault"] == code
    assert output["context"]["retryable"] is False
    assert output["context"]["advice"]


def test_a_tools_failure_tells_the_model_no_stack_and_no_secret():
    text = tool_failure(None, RuntimeError("key sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789 at work/x.py"))
    assert "sk-ant" not in text
    assert "work/x.py" not in text


def test_arguments_that_are_no_json_are_the_models_to_mend():
    output = json.loads(tool_failure(None, ModelBehaviorError("Invalid JSON input for tool charge: {")))
    assert output["context"]["fault"] == "TOOL_INPUT_INVALID"
    assert "Invalid JSON" in output["context"]["message"]


# What makes no sense


def test_what_is_no_model_is_invalid():
    client = Stage("ok").client()
    with pytest.raises(InvalidError, match="a Model or a ModelProvider"):
        recovering(client)
    with pytest.raises(InvalidError, match="does not recover yet"):
        recovering(recovering(OpenAIResponsesModel("gpt-5", client)))
    with pytest.raises(InvalidError, match="uses HTTP"):
        recovering(OpenAIResponsesWSModel("gpt-5", client))
    with pytest.raises(InvalidError, match="after_first"):
        recovering(OpenAIResponsesModel("gpt-5", client), after_first="continue")
    with pytest.raises(InvalidError, match="fallbacks"):
        recovering(OpenAIResponsesModel("gpt-5", client), fallbacks=["gpt-4"])


def test_a_transport_that_retries_causes_a_warning():
    http = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(retries=2))
    client = AsyncOpenAI(api_key="test", http_client=http)
    with pytest.warns(RecoveryWarning, match="retries=2"):
        recovering(OpenAIResponsesModel("gpt-5", client))


@each_model
def test_XA4_a_budget_of_money_knows_the_model_from_the_request(kind):
    stage = Stage("ok, loop")
    model = stage.model(kind)
    with Budget(usd=10, runtime=stage.runtime) as budget:
        for _ in range(3):
            stage.run(model)
        after_calls = budget.spend().usd
        stage.stream(model)
        assert 0 < after_calls < budget.spend().usd
    with Budget(usd=0.5, runtime=stage.runtime), pytest.raises(BudgetError, match="max_tokens"):
        stage.run(model)
    with Budget(usd=0.5, runtime=stage.runtime) as budget:
        stage.run(model, model_settings=ModelSettings(max_tokens=100))
    assert (stage.received, budget.spend().unknown) == (5, 0)
