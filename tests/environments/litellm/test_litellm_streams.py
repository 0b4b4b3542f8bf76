"""LiteLLM's streams: cut before the first content unseen, after it with what arrived, and no end that nobody gave."""

from __future__ import annotations

import asyncio
import gc
import inspect

import litellm
import pytest

from holdfast import Budget, Policy, StreamCutError
from holdfast.events import AttemptStarted, Cancelled, Failed
from holdfast.litellm import recovering

pytest_plugins = ["litellm_kit"]


def read(call, into=None, **arguments):
    """Read a stream whole, sync or async; return its chunks."""
    chunks = [] if into is None else into
    if not inspect.iscoroutinefunction(call):
        chunks.extend(call(**arguments, stream=True))
        return chunks

    async def reading():
        async for chunk in await call(**arguments, stream=True):
            chunks.append(chunk)

    asyncio.run(reading())
    return chunks


def text(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def ends(chunks):
    return [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]


each_function = pytest.mark.parametrize("fn", [litellm.completion, litellm.acompletion], ids=["sync", "async"])


@each_function
@pytest.mark.parametrize("early", ["529", "cut;after=0", "truncate;after=0", "sse-error;after=0", "disconnect"])
def test_a_failure_before_the_first_content_stays_unseen(fn, early, asking, stage, heard):
    provider = stage(f"{early}, ok")
    chunks = read(recovering(fn), **asking(provider))
    assert text(chunks) == "You said: hello"
    assert ends(chunks) == ["stop"]
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 2


@each_function
@pytest.mark.parametrize("late", ["cut;after=2", "truncate;after=2", "sse-error;after=2"])
def test_a_failure_after_it_is_a_cut_with_what_arrived(fn, late, asking, stage, heard, runtime):
    """LiteLLM ends a truncated stream with a last chunk of its own making."""
    provider, chunks = stage(late), []
    with pytest.raises(StreamCutError) as caught:
        read(recovering(fn), chunks, **asking(provider))
    assert text(chunks) == "You said:"
    assert ends(chunks) == []
    assert caught.value.partial.complete == len(chunks)
    assert provider.counters.received == 1
    assert sum(line._breaker.failures for line in runtime.registry) == len(heard.of(Failed)) == 1


TOOL = {
    "type": "function",
    "function": {
        "name": "deploy",
        "parameters": {
            "type": "object",
            "properties": {"environment": {"type": "string"}},
            "required": ["environment"],
        },
    },
}


@each_function
def test_a_tool_call_that_broke_off_never_looks_finished(fn, asking, stage):
    provider, chunks = stage("cut-tool"), []
    with pytest.raises(StreamCutError):
        read(recovering(fn), chunks, **asking(provider, tools=[TOOL]))
    assert ends(chunks) == []
    assert provider.counters.received == 1


def test_silence_in_the_middle_is_cut_by_the_limit_of_an_attempt(asking, stage):
    provider = stage("silence;after=2")
    with pytest.raises(StreamCutError) as caught:
        read(recovering(litellm.acompletion, policy=Policy(timeout=0.2)), **asking(provider))
    assert caught.value.fault.code == "PROVIDER_STREAM_STALLED"


@each_function
def test_a_stream_stays_litellms_own(fn, asking, stage, runtime):
    provider = stage("ok, ok")
    call = recovering(fn, name="it")

    async def leaving():
        stream = await call(**asking(provider), stream=True)
        assert isinstance(stream, litellm.CustomStreamWrapper)
        await anext(stream)
        await stream.aclose()

    if inspect.iscoroutinefunction(call):
        asyncio.run(leaving())
    else:
        stream = call(**asking(provider), stream=True)
        assert isinstance(stream, litellm.CustomStreamWrapper)
        next(stream)
        stream.close()
    breaker = runtime.registry.get("provider:it")._breaker
    assert (breaker.successes, breaker.failures, breaker.ignored) == (0, 0, 1)


def test_a_dropped_stream_is_left_at_once_without_the_garbage_collector(asking, stage, heard):
    """Only where LiteLLM itself drops it: its sync streams are in a reference cycle of LiteLLM's own."""

    async def drop():
        stream = await recovering(litellm.acompletion)(**asking(stage("ok")), stream=True)
        await anext(stream)
        del stream
        assert len(heard.of(Cancelled)) == 1

    gc.collect()
    gc.disable()
    try:
        asyncio.run(drop())
    finally:
        gc.enable()


@each_function
def test_a_consumer_that_stops_at_the_last_chunk_leaves_nothing_to_the_garbage_collector(fn, asking, stage, runtime):
    """Many loops end at `finish_reason`, and LiteLLM keeps its sync streams alive."""
    call = recovering(fn, name="it")

    def last(chunk):
        return bool(chunk.choices) and chunk.choices[0].finish_reason is not None

    async def stop():
        async for chunk in await call(**asking(stage("ok")), stream=True):
            if last(chunk):
                return

    gc.collect()
    gc.disable()
    try:
        if inspect.iscoroutinefunction(call):
            asyncio.run(stop())
        else:
            stream = call(**asking(stage("ok")), stream=True)
            next(chunk for chunk in stream if last(chunk))
        breaker = runtime.registry.get("provider:it")._breaker
        assert (breaker.successes, breaker.failures, breaker.ignored) == (1, 0, 0)
    finally:
        gc.enable()


OTHERS = [
    pytest.param(litellm.responses, {"input": "hello"}, id="responses"),
    pytest.param(litellm.aresponses, {"input": "hello"}, id="aresponses"),
    pytest.param(litellm.text_completion, {"prompt": "hello"}, id="text_completion"),
    pytest.param(litellm.atext_completion, {"prompt": "hello"}, id="atext_completion"),
]


def of_others(chunks):
    """The text of a response's events or of a text completion's chunks."""
    return "".join(
        str(getattr(chunk, "delta", None) or "") if hasattr(chunk, "type") else chunk.choices[0].text or ""
        for chunk in chunks
    )


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # LiteLLM's own model of a response
@pytest.mark.parametrize(("fn", "asked"), OTHERS)
@pytest.mark.parametrize("early", ["529", "cut;after=0", "truncate;after=0"])
def test_FI11_streams_of_its_other_functions_recover_before_their_first_content(fn, asked, early, stage):
    provider = stage(f"{early}, ok")
    where = {"model": "openai/gpt-5", "api_base": provider.openai_url, "api_key": "test"}
    assert of_others(read(recovering(fn), **where, **asked)) == "You said: hello"
    assert provider.counters.received == 2


@pytest.mark.parametrize(("fn", "asked"), OTHERS)
@pytest.mark.parametrize("late", ["cut;after=2", "truncate;after=2"])
def test_FI11_streams_of_its_other_functions_that_break_off_are_cut(fn, asked, late, stage):
    provider, chunks = stage(late), []
    where = {"model": "openai/gpt-5", "api_base": provider.openai_url, "api_key": "test"}
    with pytest.raises(StreamCutError):
        read(recovering(fn), chunks, **where, **asked)
    assert of_others(chunks) == "You said:"
    assert provider.counters.received == 1


@each_function
def test_what_a_stream_used_is_charged_to_the_budget(fn, asking, stage):
    with Budget(tokens=10_000) as budget:
        read(recovering(fn), **asking(stage("ok"), stream_options={"include_usage": True}))
    assert budget.left().tokens < 10_000


def test_a_stream_of_another_model_when_the_first_is_down(stage):
    down, up = stage("529, loop"), stage("ok")
    spare = {"model": "anthropic/claude-haiku-4-5", "api_base": up.url, "api_key": "other"}
    call = recovering(litellm.completion, policy=Policy(attempts=2), fallbacks=[spare])
    messages = [{"role": "user", "content": "hello"}]
    chunks = read(call, model="openai/gpt-5", api_base=down.openai_url, api_key="test", messages=messages)
    assert text(chunks) == "You said: hello"
    assert (down.counters.received, up.counters.received) == (2, 1)


@each_function
def test_an_answer_that_litellm_makes_up_for_tests_is_whole(fn):
    messages = [{"role": "user", "content": "hello"}]
    chunks = read(recovering(fn), model="openai/gpt-5", messages=messages, mock_response="It works.")
    assert text(chunks) == "It works."
