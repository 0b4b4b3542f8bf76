"""Streams of the real SDKs: before the first content a failure stays unseen, after it the stream is cut and says so."""

from __future__ import annotations

import asyncio
import gc

import anthropic
import httpx2
import openai
import pytest
from clients_kit import (
    BLOCK,
    CUT,
    OVERLOADED,
    OVERLOADED_EVENT,
    REQUEST,
    START,
    STOP,
    TOOL,
    WHOLE,
    Streaming,
    Wire,
    anthropic_on,
    arguments,
    async_anthropic_on,
    async_openai_on,
    chunk,
    in_time,
    openai_on,
    text,
    world,
)
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Budget, HoldfastError, Policy, StreamCutError, recover
from holdfast.anthropic import recovering
from holdfast.events import AttemptEnded, AttemptStarted, Cancelled, Failed, Recovered
from holdfast.integrations.clients import checked_client
from holdfast.integrations.clients.openai import OPENAI
from holdfast.openai import recovering as recovering_openai
from holdfast.sinks import trace_recoveries

CHAT = {"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}], "stream": True}
HELLO = ["Hel", "lo"]

EARLY = {
    "overloaded before the stream": OVERLOADED,
    "connection lost before the first event": Streaming(error=CUT),
    "connection lost after the opening": Streaming(START, BLOCK, error=CUT),
    "an error event after the opening": Streaming(START, OVERLOADED_EVENT),
    "an end after the opening": Streaming(START, BLOCK),
}
each_early_failure = pytest.mark.parametrize("early", EARLY.values(), ids=EARLY)


def texts_in(events) -> list[str]:
    return [event.delta.text for event in events if event.type == "content_block_delta"]


@each_early_failure
def test_a_failure_before_the_first_content_stays_unseen(early):
    wire, (runtime, heard) = Wire(early, Streaming(*WHOLE)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    stream = claude.messages.create(**REQUEST, stream=True)
    assert isinstance(stream, anthropic.Stream)
    events = list(stream)
    assert [event.type for event in events] == [event["type"] for event in WHOLE]
    assert texts_in(events) == HELLO
    assert len(wire.requests) == len(heard.of(AttemptStarted)) == 2
    assert len(heard.of(Recovered)) == 1
    line = runtime.registry.get("provider:anthropic")
    assert (line._breaker.successes, line._breaker.failures) == (1, 1)


@each_early_failure
def test_a_failure_before_the_first_content_stays_unseen_in_a_task(early):
    wire, (runtime, heard) = Wire(early, Streaming(*WHOLE)), world()
    claude = recovering(async_anthropic_on(wire), runtime=runtime)

    async def read():
        return [event async for event in await claude.messages.create(**REQUEST, stream=True)]

    assert texts_in(in_time(runtime, read())) == HELLO
    assert len(wire.requests) == len(heard.of(AttemptEnded)) == 2


@each_early_failure
def test_the_helper_of_the_sdk_recovers_likewise(early):
    wire, (runtime, _) = Wire(early, Streaming(*WHOLE)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    with claude.messages.stream(**REQUEST) as stream:
        assert list(stream.text_stream) == HELLO
        assert stream.get_final_message().content[0].text == "Hello"
    assert len(wire.requests) == 2


def test_the_async_helper_of_the_sdk_recovers_likewise():
    wire, (runtime, _) = Wire(Streaming(START, OVERLOADED_EVENT), Streaming(*WHOLE)), world()
    claude = recovering(async_anthropic_on(wire), runtime=runtime)

    async def read():
        async with claude.messages.stream(**REQUEST) as stream:
            return [part async for part in stream.text_stream]

    assert in_time(runtime, read()) == HELLO


def test_the_body_of_a_failed_attempt_is_closed_before_the_next():
    early = Streaming(START, error=CUT)
    wire, (runtime, _) = Wire(early, Streaming(*WHOLE)), world()
    list(recovering(anthropic_on(wire), runtime=runtime).messages.create(**REQUEST, stream=True))
    assert [body.closed for body in early.bodies] == [True]


def test_events_are_not_held_back_after_the_first_content():
    """A stream that hangs after its first words has handed them out by then."""
    runtime, _ = world()

    async def forever():
        await asyncio.sleep(10_000)

    wire = Wire(Streaming(START, BLOCK, text("Hel"), silence=forever))
    claude = recovering(async_anthropic_on(wire), runtime=runtime, policy=Policy(timeout=None, patience=None))

    async def read():
        stream = await claude.messages.create(**REQUEST, stream=True)
        first = [(await anext(stream)).type for _ in range(3)]
        await stream.close()
        return first, runtime.clock.monotonic()

    assert in_time(runtime, read()) == (["message_start", "content_block_start", "content_block_delta"], 0.0)


LATE = {
    "connection lost": Streaming(START, BLOCK, text("Hel"), error=CUT),
    "an error event": Streaming(START, BLOCK, text("Hel"), OVERLOADED_EVENT),
    "an end without the last event": Streaming(START, BLOCK, text("Hel")),
}
each_late_failure = pytest.mark.parametrize("late", LATE.values(), ids=LATE)


@each_late_failure
def test_a_failure_after_the_first_content_is_a_cut_with_what_arrived(late):
    wire, (runtime, heard) = Wire(late), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    got = []
    with pytest.raises(StreamCutError) as caught:
        got.extend(claude.messages.create(**REQUEST, stream=True))
    assert texts_in(got) == ["Hel"]
    assert caught.value.partial.payload == got
    assert len(wire.requests) == 1
    assert runtime.registry.get("provider:anthropic")._breaker.failures == 1
    assert len(heard.of(Failed)) == 1


@each_late_failure
def test_a_failure_after_the_first_content_is_a_cut_in_a_task_and_in_the_helper(late):
    wire, (runtime, heard) = Wire(late), world()
    claude = recovering(async_anthropic_on(wire), runtime=runtime)

    async def read():
        got = []
        with pytest.raises(StreamCutError):
            async with claude.messages.stream(**REQUEST) as stream:
                async for part in stream.text_stream:
                    got += [part]
        return got

    assert in_time(runtime, read()) == ["Hel"]
    assert (len(wire.requests), len(heard.of(Failed))) == (1, 1)


def test_the_fragments_of_a_tool_call_are_never_put_together_from_two_answers():
    cut = Streaming(START, TOOL, arguments('{"env": "pr'), error=CUT)
    wire, (runtime, _) = Wire(cut, Streaming(START, TOOL, arguments('{"env": "test"}'), STOP)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    got = []
    with pytest.raises(StreamCutError):
        got.extend(claude.messages.create(**REQUEST, stream=True))
    assert [e.delta.partial_json for e in got if e.type == "content_block_delta"] == ['{"env": "pr']
    assert len(wire.requests) == 1


def test_silence_in_the_middle_is_cut_by_the_limit_of_an_attempt():
    runtime, _ = world()

    async def forever():
        await asyncio.sleep(10_000)

    wire = Wire(Streaming(START, BLOCK, text("Hel"), silence=forever))
    claude = recovering(async_anthropic_on(wire), runtime=runtime, policy=Policy(timeout=15))

    async def read():
        async for _ in await claude.messages.create(**REQUEST, stream=True):
            pass

    with pytest.raises(StreamCutError) as caught:
        in_time(runtime, read())
    assert caught.value.fault.code == "PROVIDER_STREAM_STALLED"
    assert runtime.clock.monotonic() == 15.0


def test_a_stream_that_is_left_early_says_nothing_about_the_provider():
    wire, (runtime, heard) = Wire(Streaming(*WHOLE)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    with claude.messages.create(**REQUEST, stream=True) as stream:
        next(stream)
    del stream
    gc.collect()
    breaker = runtime.registry.get("provider:anthropic")._breaker
    assert (breaker.successes, breaker.failures, breaker.ignored) == (0, 0, 1)
    assert len(heard.of(Cancelled)) == 1


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_dropped_stream_is_left_at_once_without_the_garbage_collector():
    (runtime, heard), wire = world(), Wire(Streaming(*WHOLE))
    claude = recovering(anthropic_on(wire), runtime=runtime)
    stream = claude.messages.create(**REQUEST, stream=True)
    next(stream)
    del stream
    assert len(heard.of(Cancelled)) == 1
    gpt = recovering_openai(openai_on(Wire(Streaming(chunk("Hel"), chunk("lo")))), runtime=runtime)
    stream = gpt.chat.completions.create(**CHAT)
    next(stream)
    del stream
    assert len(heard.of(Cancelled)) == 2


@pytest.mark.usefixtures("no_collection")
def test_a_dropped_async_stream_is_left_at_once_without_the_garbage_collector():
    runtime, heard = world()
    claude = recovering(async_anthropic_on(Wire(Streaming(*WHOLE))), runtime=runtime)
    gpt = recovering_openai(async_openai_on(Wire(Streaming(chunk("Hel"), chunk("lo")))), runtime=runtime)

    async def drop():
        stream = await claude.messages.create(**REQUEST, stream=True)
        await anext(stream)
        del stream
        assert len(heard.of(Cancelled)) == 1
        stream = await gpt.chat.completions.create(**CHAT)
        await anext(stream)
        del stream
        assert len(heard.of(Cancelled)) == 2

    in_time(runtime, drop())


def test_a_stream_that_is_closed_early_and_still_held_is_left():
    wire, (runtime, heard) = Wire(Streaming(*WHOLE)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    with claude.messages.create(**REQUEST, stream=True) as stream:
        next(stream)
    assert len(heard.of(Cancelled)) == 1
    assert stream.response.is_closed
    assert runtime.registry.get("provider:anthropic")._breaker.ignored == 1


def test_a_helper_that_is_closed_early_and_still_held_is_left():
    chunks = (chunk("Hel", role="assistant"), chunk("lo"), chunk(finish="stop"))
    wire, (runtime, heard) = Wire(Streaming(*chunks)), world()
    gpt = recovering_openai(openai_on(wire), runtime=runtime)
    with gpt.chat.completions.stream(model="gpt-test", messages=[{"role": "user", "content": "hi"}]) as stream:
        next(stream)
    assert (len(heard.of(Cancelled)), stream is not None) == (1, True)


def test_an_async_stream_that_is_closed_early_and_still_held_is_left():
    wire, (runtime, heard) = Wire(Streaming(*WHOLE)), world()
    claude = recovering(async_anthropic_on(wire), runtime=runtime)

    async def leave():
        async with await claude.messages.create(**REQUEST, stream=True) as stream:
            await anext(stream)
        return len(heard.of(Cancelled)), stream.response.is_closed

    assert in_time(runtime, leave()) == (1, True)


def places_of(runtime, name="provider:anthropic") -> int:
    return runtime.registry.get(name).limiter._places.running


def test_no_more_streams_run_at_once_than_the_policy_allows():
    runtime, _ = world()
    claude = recovering(async_anthropic_on(Wire(Streaming(*WHOLE))), runtime=runtime, policy=Policy(concurrency=2))
    open_now, most = 0, 0

    async def read():
        nonlocal open_now, most
        stream = await claude.messages.create(**REQUEST, stream=True)
        open_now += 1
        most = max(most, open_now)
        texts = []
        async for event in stream:
            if event.type == "message_delta":
                # It has the stop reason: the answer is complete, and many consumers stop here or one event later.
                open_now -= 1
            await asyncio.sleep(1)
            texts += texts_in([event])
        return texts

    async def main():
        return await asyncio.gather(*(read() for _ in range(6)))

    assert in_time(runtime, main()) == [HELLO] * 6
    assert most == 2
    assert places_of(runtime) == 0


@pytest.mark.parametrize("leave", ["close", "drop", "read"])
def test_a_thread_may_ask_again_while_it_reads_its_own_stream(leave):
    runtime, _ = world()
    wire = Wire(Streaming(*WHOLE))
    claude = recovering(anthropic_on(wire), runtime=runtime, policy=Policy(concurrency=1))
    stream = claude.messages.create(**REQUEST, stream=True)
    next(stream)
    assert places_of(runtime) == 1
    assert texts_in(claude.messages.create(**REQUEST, stream=True)) == HELLO
    assert places_of(runtime) == 1
    if leave == "close":
        stream.close()
    elif leave == "read":
        list(stream)
    else:
        del stream
    assert places_of(runtime) == 0


def test_a_stream_that_is_closed_after_its_end_ended_well():
    wire, (runtime, heard) = Wire(Streaming(*WHOLE)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    with claude.messages.create(**REQUEST, stream=True) as stream:
        for _ in stream:
            pass
    assert (heard.of(Cancelled), runtime.registry.get("provider:anthropic")._breaker.successes) == ([], 1)


def test_cancelling_the_reader_is_no_failure():
    runtime, heard = world()

    async def forever():
        await asyncio.sleep(10_000)

    wire = Wire(Streaming(START, BLOCK, text("Hel"), silence=forever))
    claude = recovering(async_anthropic_on(wire), runtime=runtime)

    async def read():
        async for _ in await claude.messages.create(**REQUEST, stream=True):
            pass

    async def cancelled():
        task = asyncio.create_task(read())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_time(runtime, cancelled())
    breaker = runtime.registry.get("provider:anthropic")._breaker
    assert (breaker.failures, breaker.cancelled, len(heard.of(Cancelled))) == (0, 1, 1)


def test_the_span_of_an_attempt_is_current_in_the_attempt_only():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    wire, (runtime, _) = Wire(OVERLOADED, Streaming(*WHOLE)), world()
    current, inside = (lambda: trace.get_current_span().get_span_context().is_valid), []
    client = anthropic_on(wire)
    client._client.event_hooks["response"].append(lambda _: inside.append(current()))
    with trace_recoveries(provider, runtime):
        outside = [current() for _ in recovering(client, runtime=runtime).messages.create(**REQUEST, stream=True)]
    assert inside == [True, True]
    assert not any(outside)
    assert not current()
    attempts = [span for span in exporter.get_finished_spans() if span.parent is not None]
    assert len(attempts) == 2


def test_what_a_stream_used_is_charged_to_the_budget():
    wire, (runtime, _) = Wire(Streaming(*WHOLE)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    with Budget(tokens=100) as budget:
        list(claude.messages.create(**REQUEST, stream=True))
    assert budget.left().tokens == 97  # one read, two written


def test_a_recovery_around_one_does_not_multiply_its_attempts():
    wire, (runtime, _) = Wire(OVERLOADED), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    with pytest.raises(anthropic.APIStatusError):
        recover("agent:asker", runtime=runtime).call(claude.messages.create, **REQUEST)
    alone = len(wire.requests)
    with pytest.raises(anthropic.APIStatusError):
        recovering(anthropic_on(wire), runtime=world()[0]).messages.create(**REQUEST)
    assert len(wire.requests) == 2 * alone


# --- OpenAI's two protocols ---

CHUNKS = (chunk("", role="assistant"), chunk("Hel"), chunk("lo"), chunk(finish="stop"))


@pytest.mark.parametrize(
    "early",
    [
        Streaming(chunk("", role="assistant"), error=CUT),
        Streaming(chunk("", role="assistant")),
        Streaming(chunk("", role="assistant"), {"error": {"message": "The server had an error", "type": "server_error"}}),
    ],
    ids=["connection lost", "ended", "error"],
)  # fmt: skip
def test_chat_completions_recover_before_the_first_content(early):
    wire, (runtime, _) = Wire(early, Streaming(*CHUNKS)), world()
    gpt = recovering_openai(openai_on(wire), runtime=runtime)
    chunks = list(gpt.chat.completions.create(**CHAT))
    assert [c.choices[0].delta.content for c in chunks] == ["", "Hel", "lo", None]
    assert len(wire.requests) == 2


def test_chat_completions_that_end_in_the_middle_are_cut():
    wire, (runtime, _) = Wire(Streaming(chunk("", role="assistant"), chunk("Hel"))), world()
    gpt = recovering_openai(async_openai_on(wire), runtime=runtime)

    async def read():
        async for _ in await gpt.chat.completions.create(**CHAT):
            pass

    with pytest.raises(StreamCutError):
        in_time(runtime, read())


COMPLETE = {
    "no finish_reason": Streaming(chunk("", role="assistant"), chunk("Hel"), chunk("lo"), done=True),
    "only the opening": Streaming(chunk("", role="assistant"), done=True),
    "nothing at all": Streaming(done=True),
}


@pytest.mark.parametrize("whole", COMPLETE.values(), ids=COMPLETE)
def test_the_end_marker_ends_a_complete_stream(whole):
    """Many servers that speak OpenAI's protocol send `[DONE]` and no `finish_reason`. The SDK takes the stream as it is."""
    wire, (runtime, heard) = Wire(whole), world()
    plain = list(openai_on(Wire(whole)).chat.completions.create(**CHAT))
    assert list(recovering_openai(openai_on(wire), runtime=runtime).chat.completions.create(**CHAT)) == plain
    assert len(wire.requests) == len(heard.of(AttemptStarted)) == 1
    assert runtime.registry.get("provider:openai")._breaker.successes == 1


@pytest.mark.parametrize("whole", COMPLETE.values(), ids=COMPLETE)
def test_the_end_marker_ends_a_complete_stream_in_a_task(whole):
    wire, (runtime, _) = Wire(whole), world()

    async def read(client):
        return [event async for event in await client.chat.completions.create(**CHAT)]

    plain = in_time(runtime, read(async_openai_on(Wire(whole))))
    assert in_time(runtime, read(recovering_openai(async_openai_on(wire), runtime=runtime))) == plain
    assert len(wire.requests) == 1


def test_a_message_with_its_stop_reason_is_complete_without_the_event_after_it():
    wire, (runtime, _) = Wire(Streaming(*WHOLE[:-1])), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    assert texts_in(claude.messages.create(**REQUEST, stream=True)) == HELLO
    with claude.messages.stream(**REQUEST) as stream:
        assert stream.get_final_message().stop_reason == "end_turn"
    assert len(wire.requests) == 2
    assert runtime.registry.get("provider:anthropic")._breaker.successes == 2


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_framework_s_client_takes_the_end_marker_too(is_async):
    client = (async_openai_on if is_async else openai_on)(Wire(COMPLETE["no finish_reason"]))
    checked = checked_client(client, OPENAI)

    async def read():
        stream = checked.chat.completions.create(**CHAT)
        return [event async for event in await stream] if is_async else list(stream)

    assert len(in_time(world()[0], read())) == 3
    cut = checked_client(openai_on(Wire(Streaming(chunk("Hel")))), OPENAI)
    with pytest.raises(HoldfastError, match="before its last event"):
        list(cut.chat.completions.create(**CHAT))


def _response(status, error=None):
    return {
        "id": "r", "object": "response", "created_at": 1, "model": "gpt-test", "status": status, "error": error,
        "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


CREATED = {"type": "response.created", "sequence_number": 0, "response": _response("in_progress")}
TEXT_DELTA = {
    "type": "response.output_text.delta", "sequence_number": 1, "item_id": "i", "output_index": 0,
    "content_index": 0, "delta": "Hello", "logprobs": [],
}  # fmt: skip
COMPLETED = {"type": "response.completed", "sequence_number": 2, "response": _response("completed")}
FAILED = {
    "type": "response.failed",
    "sequence_number": 1,
    "response": _response("failed", {"code": "server_error", "message": "The model had an error"}),
}
ERROR = {"type": "error", "sequence_number": 1, "code": "rate_limit_exceeded", "message": "Slow down", "param": None}


@pytest.mark.parametrize("failure", [FAILED, ERROR], ids=["response.failed", "error"])
def test_responses_recover_from_a_failure_that_the_first_event_reports(failure):
    wire, (runtime, _) = Wire(Streaming(failure), Streaming(CREATED, TEXT_DELTA, COMPLETED)), world()
    gpt = recovering_openai(openai_on(wire), runtime=runtime)
    events = list(gpt.responses.create(model="gpt-test", input="hi", stream=True))
    assert [event.type for event in events] == ["response.created", "response.output_text.delta", "response.completed"]
    assert len(wire.requests) == 2


@pytest.mark.parametrize("code", ["server_error", "invalid_prompt"])
def test_a_whole_response_that_failed_is_a_failure_as_in_a_stream(code):
    failed = httpx2.Response(200, json=_response("failed", {"code": code, "message": "The model had an error"}))
    wire, (runtime, heard) = Wire(failed, httpx2.Response(200, json=_response("completed"))), world()
    gpt = recovering_openai(openai_on(wire), runtime=runtime)
    if code == "server_error":
        assert gpt.responses.create(model="gpt-test", input="hi").status == "completed"
        assert len(wire.requests) == 2
    else:
        with pytest.raises(openai.APIError, match="The model had an error"):
            gpt.responses.create(model="gpt-test", input="hi")
        assert (len(wire.requests), len(heard.of(Failed))) == (1, 1)


def test_a_response_that_failed_earlier_can_be_looked_at():
    failed = httpx2.Response(
        200, json=_response("failed", {"code": "server_error", "message": "The model had an error"})
    )
    wire, (runtime, _) = Wire(failed), world()
    gpt = recovering_openai(openai_on(wire), runtime=runtime)
    assert gpt.responses.retrieve("resp_1").status == "failed"
    assert len(wire.requests) == 1


def test_a_failed_event_after_the_first_content_is_handed_on_as_the_sdk_does():
    wire, (runtime, heard) = Wire(Streaming(CREATED, TEXT_DELTA, FAILED)), world()
    gpt = recovering_openai(openai_on(wire), runtime=runtime)
    events = list(gpt.responses.create(model="gpt-test", input="hi", stream=True))
    assert events[-1].type == "response.failed"
    assert (len(wire.requests), len(heard.of(Failed))) == (1, 1)
    assert runtime.registry.get("provider:openai")._breaker.failures == 1
