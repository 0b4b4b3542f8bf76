"""LangChain's real chat models in front of the fault provider: one attempt is one request, whatever is built on the model."""

from __future__ import annotations

import asyncio
import functools
from functools import partial
from typing import Any

import anthropic
import openai
import pytest
from clients_kit import world
from lang_kit import ANSWER, claude, gpt, in_memory, with_tools
from langchain_anthropic import ChatAnthropic
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from holdfast import Budget, BudgetError, CircuitOpenError, InvalidError, Policy, Runtime, StreamCutError, fault_of
from holdfast.events import AttemptEnded, AttemptStarted, Cancelled, Failed, Recovered, Retry, StreamResumed
from holdfast.langchain import RecoveryWarning, recovering
from holdfast.testing import FaultProvider, Midpoint, ScriptedHTTPError, VirtualClock, no_waiting, run, serve_in_thread

each_model = pytest.mark.parametrize("model_of", [claude, gpt], ids=["claude", "gpt"])
STORM = "429;retry-after=7, 529, ok"


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


class City(BaseModel):
    """A city."""

    city: str


def on(provider: FaultProvider, model_of: Any, **options: Any) -> tuple[Any, Any, Any]:
    runtime, heard = world()
    return recovering(model_of(provider), runtime=runtime, **options), runtime, heard


# --- calls ---


@each_model
def test_a_storm_passes_unseen_and_one_attempt_is_one_request(model_of):
    with in_memory(STORM) as provider:
        model, runtime, heard = on(provider, model_of)
        assert model.invoke("hello").text == ANSWER
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 3
    assert next(event.delay for event in heard.of(Retry)) == 7.0
    assert runtime.clock.monotonic() >= 7.0
    assert len(heard.of(Recovered)) == 1


NO_ANSWERS = ["error-200", "html;status=200", "empty", "malformed-json;after=0"]
each_non_answer = pytest.mark.parametrize("step", NO_ANSWERS)


@each_model
@each_non_answer
def test_a_response_that_is_a_failure_is_retried(model_of, step):
    with in_memory(f"{step}, ok") as provider:
        model, _, _ = on(provider, model_of)
        assert model.invoke("hello").text == ANSWER
    assert provider.counters.received == 2


@each_model
@each_non_answer
def test_a_response_that_is_a_failure_is_retried_in_a_task(model_of, step):
    with in_memory(f"{step}, ok") as provider:
        model, runtime, _ = on(provider, model_of)
        assert run(model.ainvoke("hello"), clock=runtime.clock).text == ANSWER
    assert provider.counters.received == 2


@each_model
@each_non_answer
def test_a_stream_without_an_answer_is_retried(model_of, step):
    with in_memory(f"{step}, ok") as provider:
        model, _, _ = on(provider, model_of)
        assert "".join(chunk.text for chunk in model.stream("hello")) == ANSWER
    assert provider.counters.received == 2


def test_a_response_that_failed_is_retried():
    with in_memory("error-200, ok") as provider:
        model, _, _ = on(provider, functools.partial(gpt, use_responses_api=True))
        assert model.invoke("hello").text == ANSWER
    assert provider.counters.received == 2


@each_model
def test_a_storm_passes_unseen_in_a_task(model_of):
    with in_memory("429;retry-after=110, ok") as provider:
        model, runtime, heard = on(provider, model_of)
    assert run(model.ainvoke("hello"), clock=runtime.clock).text == ANSWER
    assert runtime.clock.monotonic() == 110.0
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 2


def test_on_a_socket_with_the_models_own_http_client():
    """The SDK's two retries would make six requests of these."""
    with serve_in_thread("529*2, ok") as provider, no_waiting():
        model = recovering(ChatAnthropic(model_name="claude-haiku-4-5", api_key="test", base_url=provider.url))  # type: ignore[call-arg, arg-type]
        assert model.invoke("hello").text == ANSWER
        model._client.close()
    assert provider.counters.received == 3


@pytest.mark.parametrize(
    ("model_of", "denied"), [(claude, anthropic.AuthenticationError), (gpt, openai.AuthenticationError)]
)
def test_the_exception_is_the_one_langchain_raises(model_of, denied):
    with in_memory("401, loop") as provider:
        model, _, heard = on(provider, model_of)
        with pytest.raises(denied) as plain:
            model_of(provider, max_retries=0).invoke("hello")
        with pytest.raises(denied) as recovered:
            model.invoke("hello")
        assert provider.counters.received == 2
    assert type(recovered.value) is type(plain.value)
    assert [attempt.code for attempt in fault_of(recovered.value).attempts] == ["AUTH_FAILED"]
    assert len(heard.of(Failed)) == 1


@each_model
def test_it_is_the_same_class_and_the_one_given_is_not_changed(model_of):
    with in_memory() as provider:
        given = model_of(provider)
        before = dumps(given)
        model = recovering(given)
        assert isinstance(model, type(given))
        assert (type(model).__name__, type(model).__module__) == (type(given).__name__, type(given).__module__)
        assert dumps(given) == before
        assert given.max_retries in (2, None)
        assert (model.max_retries, model_of(provider, max_retries=0)._get_llm_string()) == (0, model._get_llm_string())


@each_model
def test_copies_recover_as_well(model_of):
    with in_memory("529, ok") as provider:
        model, _, heard = on(provider, model_of)
        assert model.model_copy(update={"temperature": 0.5}).invoke("hello").text == ANSWER
    assert len(heard.of(AttemptStarted)) == 2


def test_a_model_chosen_by_the_call_has_a_circuit_of_its_own():
    with in_memory("529, ok, ok") as provider:
        model, runtime, _ = on(provider, gpt, name="router")
        model.bind(model="gpt-5-mini").invoke("hello")
        model.invoke("hello")
    assert runtime.registry.known("model:router/gpt-5-mini")._breaker.failures == 1
    assert runtime.registry.known("model:router/gpt-5")._breaker.failures == 0


@each_model
def test_each_key_has_a_circuit_of_its_own(model_of):
    with in_memory("401, ok") as provider:
        model, runtime, _ = on(provider, model_of)
        with pytest.raises(Exception, match="401"):
            model.invoke("hello")
        model.invoke("hello")
    keys = [line for line in runtime.registry if line.name.startswith("key:")]
    assert [line._breaker.failures for line in keys] == [1], [line.name for line in runtime.registry]
    assert "test" not in keys[0].name.rpartition("/")[2]


def test_a_tracer_sees_one_run_that_went_well():
    runs = []

    class Tracer(BaseCallbackHandler):
        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            runs.append("start")

        def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
            runs.append("end")

        def on_llm_error(self, *args: Any, **kwargs: Any) -> None:
            runs.append("error")

    with in_memory(STORM) as provider:
        model, _, _ = on(provider, claude)
        model.invoke("hello", {"callbacks": [Tracer()]})
    assert runs == ["start", "end"]


def test_budgets_are_charged_what_the_answers_say():
    with in_memory("ok, ok") as provider:
        model, _, _ = on(provider, claude)
        with Budget(tokens=1_000_000) as budget:
            whole = model.invoke("hello").usage_metadata
            first, *rest = model.stream("hello")
    streamed = sum(rest, first).usage_metadata
    assert 1_000_000 - budget.left().tokens == whole["total_tokens"] + streamed["total_tokens"]


@pytest.mark.parametrize("make", [claude, gpt])
def test_XA4_a_budget_of_money_knows_the_model_from_the_request(make):
    with in_memory("ok, loop") as provider:
        model, _, _ = on(provider, partial(make, max_tokens=100))
        with Budget(usd=1) as budget:
            for _ in range(3):
                model.invoke("hello")
            assert budget.spend().usd > 0
            assert budget.spend().unknown == 0


def test_XA4_streams_of_another_server_are_charged_by_the_name_of_the_model():
    """Behind an address of its own, the model asks for no usage."""
    with in_memory("ok, loop") as provider:
        model, _, _ = on(provider, partial(gpt, max_tokens=100, stream_usage=False))

        def read() -> None:
            for _ in range(50):
                list(model.stream("hello"))

        with Budget(usd=0.002) as budget, pytest.raises(BudgetError, match="gpt-5 may use up to"):
            read()
        assert 0 < budget.spend().usd <= 0.002
        assert 1 <= budget.spend().unknown < 50


def test_XA4_a_model_without_a_price_at_such_a_server_is_called_once():
    with in_memory("ok, loop") as provider:
        model, _, _ = on(provider, partial(gpt, model="our-own", max_tokens=100, stream_usage=False))
        with Budget(usd=1e-9), pytest.raises(BudgetError, match="price of our-own"):
            for _ in range(2):
                list(model.stream("hello"))
        assert provider.counters.received == 1


def test_an_open_circuit_sends_nothing():
    with in_memory("529, loop") as provider:
        model, runtime, _ = on(provider, claude, policy=Policy(attempts=1))
        runtime.registry.get("provider:anthropic@provider.test")._breaker.force_open(0.0)
        with pytest.raises(CircuitOpenError):
            model.invoke("hello")
    assert provider.counters.received == 0


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "stream"])
@pytest.mark.parametrize("of", ["model", "runnable"])
def test_what_stands_before_langchains_own_fallbacks_makes_three_attempts(form, of):
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    calls = []

    def down(_: Any) -> Any:
        calls.append(1)
        raise ScriptedHTTPError(529)

    class Down(FakeListChatModel):
        def _generate(self, *_: Any, **__: Any) -> Any:
            return down(None)

        def _stream(self, *_: Any, **__: Any) -> Any:
            yield down(None)

    inside: Any = Down(responses=[]) if of == "model" else RunnableLambda(down)
    first = recovering(inside, name="down", runtime=runtime)
    chain = first.with_fallbacks([FakeListChatModel(responses=["spare"])])
    if form == "invoke":
        got = chain.invoke("hello").text
    elif form == "ainvoke":
        got = run(chain.ainvoke("hello"), clock=runtime.clock).text
    else:
        got = "".join(chunk.text for chunk in chain.stream("hello"))
    assert got == "spare"
    assert len(calls) == 3
    assert runtime.clock.monotonic() < 10


def test_a_call_that_is_cancelled_says_nothing_about_the_provider():
    provider = FaultProvider("hang")
    model, runtime, heard = on(provider, gpt, policy=Policy(timeout=None, patience=None))

    async def leave() -> None:
        task = asyncio.ensure_future(model.ainvoke("hello"))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(leave(), clock=runtime.clock)
    assert len(heard.of(Cancelled)) == 1
    assert runtime.registry.get("provider:openai@provider.test")._breaker.failures == 0


def test_a_hang_has_the_policys_limit():
    provider = FaultProvider("hang, ok")
    model, runtime, heard = on(provider, gpt, policy=Policy(timeout=10))
    assert run(model.ainvoke("hello"), clock=runtime.clock).text == ANSWER
    assert heard.of(AttemptEnded)[0].fault.code == "PROVIDER_TIMEOUT"


# --- what is built on a model ---


@each_model
def test_tools_bound_to_it(model_of):
    with in_memory(with_tools("529, ok")) as provider:
        model, _, heard = on(provider, model_of)
        answer = model.bind_tools([weather]).invoke("hello")
    assert [call["name"] for call in answer.tool_calls] == ["weather"]
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 2


@each_model
def test_a_model_that_has_tools_already(model_of):
    with in_memory(with_tools("529, ok")) as provider:
        runtime, heard = world()
        answer = recovering(model_of(provider).bind_tools([weather]), runtime=runtime).invoke("hello")
    assert [call["name"] for call in answer.tool_calls] == ["weather"]
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 2


@each_model
def test_structured_output(model_of):
    with in_memory(with_tools("529, ok")) as provider:
        model, _, _ = on(provider, model_of)
        answer = model.with_structured_output(City, method="function_calling").invoke("hello")
    assert isinstance(answer, City)
    assert provider.counters.received == 2


def test_pipes_and_batches():
    with in_memory("529, ok, 529, ok") as provider:
        model, _, heard = on(provider, claude)
        chain = ChatPromptTemplate.from_messages([("user", "{word}")]) | model | StrOutputParser()
        with no_waiting():
            answers = chain.batch([{"word": "hello"}, {"word": "hello"}], {"max_concurrency": 1})
    assert answers == [ANSWER, ANSWER]
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 4


# --- streams ---


def texts(chunks: list[AIMessageChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


EARLY = [
    "529",
    "disconnect",
    "sse-error;after=0",
    "sse-error;after=0;error=rate-limit",
    "failed;after=0",
    "cut;after=0",
    "truncate;after=0",
]


@each_model
@pytest.mark.parametrize("early", EARLY)
def test_a_failure_before_the_first_content_stays_unseen(model_of, early):
    with in_memory(f"{early}, ok") as provider:
        model, _, heard = on(provider, model_of)
        assert texts(list(model.stream("hello"))) == ANSWER
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 2
    assert len(heard.of(Recovered)) == 1


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("model_of", [claude, gpt, functools.partial(gpt, use_responses_api=True)])
def test_a_failure_before_the_first_content_stays_unseen_in_a_task(early, model_of):
    provider = FaultProvider(f"{early}, ok")
    model, runtime, heard = on(provider, model_of)

    async def read():
        return [chunk async for chunk in model.astream("hello")]

    assert texts(run(read(), clock=runtime.clock)) == ANSWER
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 2


@each_model
@pytest.mark.parametrize("late", ["cut;after=4", "truncate;after=4"])
def test_a_failure_after_it_is_a_cut_with_what_arrived(model_of, late):
    with in_memory(f"{late}, ok") as provider:
        model, _, heard = on(provider, model_of)
        seen = []
        with pytest.raises(StreamCutError) as cut:
            seen.extend(chunk for chunk in model.stream("hello"))
    assert seen
    assert cut.value.partial is not None
    assert texts([chunk.message for chunk in cut.value.partial.payload]) == texts(seen)
    assert provider.counters.received == 1
    assert len(heard.of(Failed)) == 1


def test_a_failure_after_it_is_a_cut_in_a_task():
    provider = FaultProvider("cut;after=4, ok")
    model, runtime, _ = on(provider, gpt)
    seen = []

    async def read():
        async for chunk in model.astream("hello"):
            seen.append(chunk)  # noqa: PERF401 - a comprehension that is cut short gives nothing

    with pytest.raises(StreamCutError):
        run(read(), clock=runtime.clock)
    assert texts(seen)
    assert provider.counters.received == 1


def test_silence_in_the_middle_is_a_cut():
    provider = FaultProvider("silence;after=4")
    model, runtime, _ = on(provider, gpt, policy=Policy(timeout=20))

    async def read():
        async for _ in model.astream("hello"):
            pass

    with pytest.raises(StreamCutError) as cut:
        run(read(), clock=runtime.clock)
    assert cut.value.fault.code == "PROVIDER_STREAM_STALLED"


def go_on(so_far: AIMessageChunk, messages: list[Any]) -> list[Any]:
    return [*messages, AIMessage(so_far.text), HumanMessage("rest")]


@each_model
def test_it_continues_where_it_broke_off_with_resume(model_of):
    with in_memory("cut;after=4, ok") as provider:
        model, _, heard = on(provider, model_of, after_first="continue", resume=go_on)
        chunks = list(model.stream("hello"))
    assert texts(chunks).endswith("You said: rest")
    assert [event.how for event in heard.of(StreamResumed)] == ["continue"]
    assert provider.counters.received == 2
    assert "rest" in str(provider.requests[1].body)


def test_it_goes_on_in_a_task_as_well():
    provider = FaultProvider("cut;after=4, ok")
    model, runtime, heard = on(provider, gpt, after_first="continue", resume=go_on)

    async def read():
        return [chunk async for chunk in model.astream("hello")]

    assert texts(run(read(), clock=runtime.clock)).endswith("You said: rest")
    assert len(heard.of(StreamResumed)) == 1


@each_model
@pytest.mark.parametrize("early", ["cut-tool;after=0", "truncate;after=0"])
def test_before_its_arguments_a_tool_call_is_made_again_unseen(model_of, early):
    with in_memory(with_tools(f"{early}, ok")) as provider:
        model, _, _ = on(provider, model_of)
        whole = functools.reduce(lambda all_, part: all_ + part, model.bind_tools([weather]).stream("hello"))
    assert [call["name"] for call in whole.tool_calls] == ["weather"]
    assert provider.counters.received == 2


@each_model
def test_a_tool_call_is_never_put_together_from_two_answers(model_of):
    """Also where the caller wants to go on: half a call and the rest of another would be a call nobody made."""
    with in_memory(with_tools("cut-tool, ok")) as provider:
        model, _, _ = on(provider, model_of, after_first="continue", resume=go_on)
        with pytest.raises(StreamCutError):
            list(model.bind_tools([weather]).stream("hello"))
    assert provider.counters.received == 1


def test_a_tool_call_is_never_put_together_from_two_answers_in_a_task():
    provider = FaultProvider(with_tools("cut-tool, ok"))
    model, runtime, _ = on(provider, gpt, after_first="continue", resume=go_on)

    async def read():
        return [chunk async for chunk in model.bind_tools([weather]).astream("hello")]

    with pytest.raises(StreamCutError):
        run(read(), clock=runtime.clock)
    assert provider.counters.received == 1


def test_who_leaves_a_stream_early_says_nothing_about_the_provider():
    with in_memory() as provider:
        model, runtime, heard = on(provider, claude)
        stream = model.stream("hello")
        next(stream)
        stream.close()
    assert len(heard.of(Cancelled)) == 1
    line = runtime.registry.get("provider:anthropic@provider.test")
    assert (line._breaker.successes, line._breaker.failures) == (0, 0)


# --- other runnables ---


def test_any_runnable_recovers_as_a_whole():
    runtime, heard = world()
    failures = [ConnectionResetError("reset"), None]

    def fetch(city: str) -> str:
        if (error := failures.pop(0)) is not None:
            raise error
        return city.upper()

    chain = recovering(RunnableLambda(fetch), runtime=runtime, name="tool:atlas", effect="read") | StrOutputParser()
    assert chain.invoke("oslo") == "OSLO"
    assert {event.operation for event in heard.of(AttemptStarted)} == {"tool:atlas"}


class Words:
    """Gives words, and breaks off after some of them as often as its script has failures."""

    def __init__(self, *good: int) -> None:
        self.good = list(good)

    def plain(self, text: Any):
        for word in "".join(text).split():
            if self.good and not self.good[0]:
                self.good.pop(0)
                raise ConnectionResetError("cut")
            if self.good:
                self.good[0] -= 1
            yield word

    async def later(self, text: Any):
        async for part in text:
            for word in self.plain(part):
                yield word


def read_words(runnable: Any, runtime: Any, *, later: bool) -> list[str]:
    async def read():
        return [word async for word in runnable.astream("one two three")]

    return run(read(), clock=runtime.clock) if later else list(runnable.stream("one two three"))


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("good", "options", "seen"),
    [
        ((0, 0), {}, ["one", "two", "three"]),
        ((2,), {"after_first": "restart"}, ["one", "two", "one", "two", "three"]),
        (
            (2,),
            {"after_first": "continue", "resume": lambda so_far, text: text.split("two")[1]},
            ["one", "two", "three"],
        ),
    ],
)
def test_streams_of_any_runnable_follow_the_mode(later, good, options, seen):
    runtime, heard = world()
    words = Words(*good)
    inside = RunnableGenerator(words.plain, words.later)
    assert read_words(recovering(inside, runtime=runtime, **options), runtime, later=later) == seen
    assert len(heard.of(Recovered)) == 1
    assert len(heard.of(StreamResumed)) == (1 if options else 0)


@pytest.mark.parametrize("later", [False, True])
def test_a_stream_of_any_runnable_that_is_cut_says_what_arrived(later):
    runtime, _ = world()
    words = Words(2)
    with pytest.raises(StreamCutError) as cut:
        read_words(recovering(RunnableGenerator(words.plain, words.later), runtime=runtime), runtime, later=later)
    assert cut.value.partial is not None
    assert cut.value.partial.payload == "onetwo"


# --- what is invalid, and what causes a warning ---


def test_options_that_make_no_sense_are_invalid():
    with in_memory() as provider:
        with pytest.raises(InvalidError, match="a model that does not recover yet"):
            recovering(recovering(claude(provider)))
        with pytest.raises(InvalidError, match="restart"):
            recovering(claude(provider), after_first="restart")
        with pytest.raises(InvalidError, match="resume"):
            recovering(claude(provider), after_first="continue")
        with pytest.raises(InvalidError, match="resume"):
            recovering(claude(provider), resume=go_on)
        with pytest.raises(InvalidError, match="Runnable"):
            recovering("claude")  # type: ignore[call-overload]


def test_retries_inside_a_chain_cause_a_warning():
    with in_memory() as provider:
        prompt = ChatPromptTemplate.from_messages([("user", "{word}")])
        with pytest.warns(RecoveryWarning, match="InMemory inside retries"):
            recovering(prompt | claude(provider))
        with pytest.warns(RecoveryWarning, match="with_retry inside retries up to 3 times"):
            recovering(prompt | claude(provider, max_retries=0).with_retry())
        recovering(prompt | claude(provider, max_retries=0))
        recovering(prompt | recovering(claude(provider)))


def test_retries_of_an_unknown_model_cause_a_warning():
    class Local(FakeListChatModel):
        max_retries: int = 4

    with pytest.warns(RecoveryWarning, match="max_retries=4"):
        assert recovering(Local(responses=["hi"])).invoke("hello").text == "hi"


def test_a_model_that_only_knows_plain_calls_recovers():
    runtime, heard = world()
    model = recovering(FakeListChatModel(responses=["hi"]), runtime=runtime)
    assert run(model.ainvoke("hello"), clock=runtime.clock).text == "hi"
    assert len(heard.of(AttemptStarted)) == 1


def test_it_is_typed_as_what_it_is():
    with in_memory() as provider:
        assert isinstance(recovering(claude(provider)), ChatAnthropic)
        assert isinstance(recovering(gpt(provider)), ChatOpenAI)
