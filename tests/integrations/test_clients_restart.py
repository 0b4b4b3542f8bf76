"""`recovering(client, after_first="restart")`: a stream that breaks off begins again, and says so."""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx2
import pytest
from clients_forms import (
    ANSWER,
    FORMS,
    GPT,
    MESSAGES,
    STREAMED,
    arguments_in,
    client_for,
    collect,
    collect_async,
    is_whole,
    recovering,
    text_in,
)
from clients_kit import (  # fmt: skip
    BLOCK,
    CUT,
    REQUEST,
    START,
    WHOLE,
    Streaming,
    Wire,
    anthropic_on,
    async_anthropic_on,
    in_time,
    text,
    world,
)

import holdfast.anthropic
from holdfast import InvalidError, Policy, StreamCutError
from holdfast.events import Recovered, StreamResumed
from holdfast.testing import FaultProvider, run

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
EACH = pytest.mark.parametrize("form", STREAMED.values(), ids=STREAMED)
TOOLS = 'replies = "tools"\n[[rules]]\nsteps = "{}"'


def play(script, form, *, is_async, **options):
    runtime, heard = world()
    provider = FaultProvider(script, clock=runtime.clock)
    client = recovering(
        form,
        client_for(form, provider.transport(), is_async=is_async),
        runtime=runtime,
        after_first="restart",
        **options,
    )
    events = []
    error = None
    try:
        if is_async:
            run(collect_async(form, client, events), clock=runtime.clock)
        else:
            collect(form, client, events)
    except Exception as raised:
        error = raised
    return events, error, heard, provider


def begins(form, event, first):
    """Whether an event is one with which an answer begins."""
    if form.protocol == "chat":
        return event.id != first.id
    return event.type == ("message_start" if form.protocol == "messages" else "response.created") and event is not first


@BOTH
@EACH
@pytest.mark.parametrize("step", ["cut;after=3", "sse-error;after=3;error=overloaded", "reset;after=3"])
def test_FI10_a_stream_that_breaks_off_begins_again_and_says_so(step, form, is_async):
    events, error, heard, provider = play(step, form, is_async=is_async)
    if form.protocol == "responses" and step.startswith("sse-error"):
        # This SDK hands the failure on as an event, and the stream ends there.
        return
    assert error is None
    again = next(index for index, event in enumerate(events) if begins(form, event, events[0]))
    assert "".join(map(text_in, events[:again])) == "You said: What"
    assert "".join(map(text_in, events[again:])) == ANSWER
    (resumed,) = heard.of(StreamResumed)
    assert (resumed.how, resumed.items) == ("restart", again)
    assert len(heard.of(Recovered)) == 1
    assert provider.counters.received == 2


@BOTH
@EACH
def test_FI10_a_tool_call_after_a_restart_comes_from_one_answer(form, is_async):
    events, error, _, _ = play(TOOLS.format("cut-tool;after=2"), form, is_async=is_async)
    assert error is None
    again = next(index for index, event in enumerate(events) if begins(form, event, events[0]))
    assert json.loads("".join(map(arguments_in, events[again:]))) == {"city": "example", "days": 1}
    assert not any(is_whole(form, event) for event in events[:again])


@BOTH
@EACH
def test_FI10_restarts_are_attempts_and_end_with_them(form, is_async):
    events, error, heard, provider = play("cut;after=3, loop", form, is_async=is_async)
    assert isinstance(error, StreamCutError)
    assert isinstance(error, form.sdk.APIConnectionError)
    assert provider.counters.received == 3
    assert len(heard.of(StreamResumed)) == 2
    assert error.partial.payload == events[-error.partial.complete :]
    assert "".join(map(text_in, error.partial.payload)) == "You said: What"


def test_FI10_the_default_still_raises_with_the_partial():
    wire, (runtime, heard) = Wire(Streaming(START, BLOCK, text("Hel"), error=CUT), Streaming(*WHOLE)), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    with pytest.raises(StreamCutError):
        list(claude.messages.create(**REQUEST, stream=True))
    assert (len(wire.requests), heard.of(StreamResumed)) == (1, [])


def test_FI10_a_helper_that_assembles_the_answer_raises_instead_of_joining_two():
    cut = Streaming(START, BLOCK, text("Hel"), error=CUT)
    wire, (runtime, _) = Wire(cut, Streaming(*WHOLE)), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime, after_first="restart")
    with pytest.raises(anthropic.APIConnectionError), claude.messages.stream(**REQUEST) as stream:
        stream.get_final_message()
    assert len(wire.requests) == 1
    form = FORMS["chat, streamed"]
    provider = FaultProvider("cut;after=3", clock=runtime.clock)
    gpt = recovering(
        form, client_for(form, provider.transport(), is_async=False), runtime=runtime, after_first="restart"
    )
    with pytest.raises(StreamCutError), gpt.chat.completions.stream(model=GPT, messages=MESSAGES) as stream:
        stream.until_done()
    assert provider.counters.received == 1


def test_FI10_a_long_stream_restarts_as_well():
    """The default deadline is no limit for an answer, so a cut after it is not too late."""
    runtime, _ = world()

    class Slow(httpx2.AsyncByteStream):
        async def __aiter__(self):
            for piece in Streaming(START, BLOCK, text("Hel")).pieces:
                await asyncio.sleep(100)
                yield piece
            raise CUT

    def slow():
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Slow())

    wire = Wire(slow, Streaming(*WHOLE))
    claude = holdfast.anthropic.recovering(async_anthropic_on(wire), runtime=runtime, after_first="restart")

    async def read():
        return [event.type async for event in await claude.messages.create(**REQUEST, stream=True)]

    assert in_time(runtime, read())[-1] == "message_stop"
    assert runtime.clock.monotonic() > 300


@BOTH
def test_FI10_closing_a_restarted_stream_closes_the_answer_that_is_read_now(is_async):
    cut, whole = Streaming(START, BLOCK, text("Hel"), error=CUT), Streaming(*WHOLE)
    wire, (runtime, _) = Wire(cut, whole), world()
    make = async_anthropic_on if is_async else anthropic_on
    claude = holdfast.anthropic.recovering(make(wire), runtime=runtime, after_first="restart")

    async def leave_early():
        async with await claude.messages.create(**REQUEST, stream=True) as stream:
            return [(await anext(stream)).type for _ in range(5)]

    if is_async:
        kinds = in_time(runtime, leave_early())
    else:
        with claude.messages.create(**REQUEST, stream=True) as stream:
            kinds = [next(stream).type for _ in range(5)]
    assert kinds[3:] == ["message_start", "content_block_start"]
    assert [body.closed for body in (*cut.bodies, *whole.bodies)] == [True, True]


def test_FI10_copies_of_the_client_restart_too():
    wire, (runtime, _) = Wire(Streaming(START, BLOCK, text("Hel"), error=CUT), Streaming(*WHOLE)), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime, after_first="restart")
    other = claude.with_options(api_key="another", timeout=9)
    assert [event.type for event in other.messages.create(**REQUEST, stream=True)][-1] == "message_stop"


def test_FI10_another_word_is_rejected():
    with pytest.raises(InvalidError, match="after_first"):
        holdfast.anthropic.recovering(anthropic_on(Wire()), after_first="continue")


def test_FI10_a_policy_with_one_attempt_does_not_restart():
    form = FORMS["messages, streamed"]
    _, error, _, provider = play("cut;after=3", form, is_async=False, policy=Policy(attempts=1))
    assert isinstance(error, StreamCutError)
    assert provider.counters.received == 1
