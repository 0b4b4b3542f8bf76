"""The opening of an SDK's stream reaches its reader when it would without Holdfast, and once, whatever breaks before the first content."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from clients_kit import (
    BLOCK,
    CUT,
    OVERLOADED_EVENT,
    REQUEST,
    START,
    STOP,
    TOOL,
    TURN,
    WHOLE,
    Streaming,
    Wire,
    _sse,
    anthropic_on,
    async_anthropic_on,
    async_openai_on,
    chunk,
    in_time,
    openai_on,
    text,
    world,
)

from holdfast import Budget, Policy, StreamCutError, recover
from holdfast.anthropic import recovering
from holdfast.events import Cancelled, Failed, StreamResumed
from holdfast.openai import recovering as recovering_openai

CHAT: Any = {"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}]}
BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def response(kind: str, number: int, status: str = "in_progress", **more: Any) -> dict[str, Any]:
    body = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-test", "status": status, "error": None,
        "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], **more,
    }  # fmt: skip
    return {"type": kind, "sequence_number": number, "response": body}


CREATED = response("response.created", 0)
WORKING = response("response.in_progress", 1)
WORDS = {
    "type": "response.output_text.delta", "sequence_number": 2, "item_id": "i", "output_index": 0,
    "content_index": 0, "delta": "Hello", "logprobs": [],
}  # fmt: skip
COMPLETED = response("response.completed", 3, "completed")
ERROR = {
    "type": "error",
    "sequence_number": 2,
    "code": "server_error",
    "message": "The model had an error",
    "param": None,
}
ROLE = chunk("", role="assistant")
CALL = chunk(
    tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": {"name": "deploy", "arguments": ""}}]
)
THINKING = {
    "type": "content_block_start",
    "index": 0,
    "content_block": {"type": "thinking", "thinking": "", "signature": ""},
}


# --- when it comes ---


class Paced(httpx2.AsyncByteStream):
    """Sends an event every 40 s."""

    def __init__(self, events: tuple[dict[str, Any], ...]) -> None:
        self.events = events

    async def __aiter__(self) -> Any:
        for event in self.events:
            await asyncio.sleep(40)
            yield _sse(event)


def paced(*events: dict[str, Any]) -> Any:
    return lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Paced(events))


TIMED: dict[str, Any] = {
    "messages": (async_anthropic_on, recovering, WHOLE, lambda c: c.messages.create(**REQUEST, stream=True)),
    "chat": (
        async_openai_on,
        recovering_openai,
        (ROLE, CALL, chunk("Hi"), chunk(finish="stop")),
        lambda c: c.chat.completions.create(**CHAT, stream=True),
    ),
    "responses": (
        async_openai_on,
        recovering_openai,
        (CREATED, WORKING, WORDS, COMPLETED),
        lambda c: c.responses.create(model="gpt-test", input="hi", stream=True),
    ),
}


@pytest.mark.parametrize(("client", "recovers", "events", "begin"), TIMED.values(), ids=TIMED)
def test_every_event_comes_when_it_would_without_holdfast(client, recovers, events, begin):
    def times(wrap):
        runtime, _ = world()
        ours = client(Wire(paced(*events)))
        ours = ours if wrap is None else wrap(ours, runtime=runtime)

        async def read():
            stream = await begin(ours)
            returned = runtime.clock.monotonic()
            return returned, [(type(event).__name__, runtime.clock.monotonic()) async for event in stream]

        return in_time(runtime, read())

    assert times(recovers) == times(None)


def test_a_blocking_create_returns_before_the_body_is_read():
    body = Streaming(*WHOLE)
    claude = recovering(anthropic_on(Wire(body)), runtime=world()[0])
    body.pieces = Pieces(body.pieces)
    stream = claude.messages.create(**REQUEST, stream=True)
    assert body.pieces.read == 0
    assert next(stream).type == "message_start"
    assert body.pieces.read == 1
    stream.close()


class Pieces(list[bytes]):
    read = 0

    def __iter__(self):
        for piece in list.__iter__(self):
            self.read += 1
            yield piece


def test_the_id_of_a_response_in_the_background_is_known_at_once():
    runtime, _ = world()

    async def think():
        await asyncio.sleep(400)

    wire = Wire(Streaming(CREATED, WORKING, silence=think))
    gpt = recovering_openai(async_openai_on(wire), runtime=runtime)

    async def read():
        async with asyncio.timeout(30):
            stream = await gpt.responses.create(model="gpt-test", input="hi", stream=True, background=True)
            return (await anext(stream)).response.id

    assert in_time(runtime, read()) == "resp_1"
    assert len(wire.requests) == 1


# --- a break before the first content ---


def other(event: dict[str, Any]) -> dict[str, Any]:
    """The opening of another answer."""
    return {**event, "message": {**event["message"], "id": "msg_2", "usage": {"input_tokens": 7, "output_tokens": 1}}}


def read_all(form: str, early: Streaming, later: Streaming, *, is_async: bool, **options: Any) -> Any:
    """Read a stream that breaks once; return its events or its error, the requests and what was heard."""
    wire, (runtime, heard) = Wire(early, later), world()
    if form == "messages":
        client: Any = recovering((async_anthropic_on if is_async else anthropic_on)(wire), runtime=runtime, **options)
        begin = client.messages.create
        request = {**REQUEST, "stream": True}
    else:
        client = recovering_openai((async_openai_on if is_async else openai_on)(wire), runtime=runtime, **options)
        begin = client.chat.completions.create if form == "chat" else client.responses.create
        request = {**CHAT, "stream": True} if form == "chat" else {"model": "m", "input": "hi", "stream": True}
    events: list[Any] = []

    async def read():
        try:
            if is_async:
                async for event in await begin(**request):
                    events.append(event)  # noqa: PERF401 - the events before a failure matter
            else:
                for event in begin(**request):
                    events.append(event)  # noqa: PERF402 - as above
        except Exception as error:
            return error

    error = in_time(runtime, read())
    return events, error, len(wire.requests), heard, runtime


@BOTH
def test_the_reader_gets_one_opening_the_first(is_async):
    later = Streaming(other(START), *WHOLE[1:])
    events, error, requests, _, runtime = read_all(
        "messages", Streaming(START, BLOCK, error=CUT), later, is_async=is_async
    )
    assert (error, requests) == (None, 2)
    assert [event.type for event in events] == [event["type"] for event in WHOLE]
    assert events[0].message.id == "msg_1"
    breaker = runtime.registry.get("provider:anthropic")._breaker
    assert (breaker.successes, breaker.failures) == (1, 1)


@BOTH
def test_what_the_answer_used_is_that_of_the_answer(is_async):
    with Budget(tokens=100) as budget:
        read_all("messages", Streaming(START, OVERLOADED_EVENT), Streaming(other(START), *WHOLE[1:]), is_async=is_async)
    assert budget.left().tokens <= 100 - 9


@BOTH
def test_a_longer_opening_goes_on_where_the_first_ended(is_async):
    events, error, requests, *_ = read_all(
        "messages", Streaming(START, error=CUT), Streaming(*WHOLE), is_async=is_async
    )
    assert (error, requests, [event.type for event in events]) == (None, 2, [event["type"] for event in WHOLE])


@BOTH
def test_a_tool_call_that_was_only_named_is_made_again_once(is_async):
    rest = (chunk(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]), chunk(finish="tool_calls"))
    events, error, requests, *_ = read_all(
        "chat", Streaming(ROLE, CALL, error=CUT), Streaming(ROLE, CALL, *rest), is_async=is_async
    )
    assert (error, requests, len(events)) == (None, 2, 4)
    names = [call.function.name for event in events for call in event.choices[0].delta.tool_calls or ()]
    assert names == ["deploy", None]


OTHERWISE = {
    "another block": ("messages", (START, THINKING), (*WHOLE,)),
    "another tool": (
        "messages",
        (START, TOOL),
        (START, {**TOOL, "content_block": {**TOOL["content_block"], "name": "undo"}}),
    ),
    "no tool call": ("chat", (ROLE, CALL), (ROLE, chunk("Hi"), chunk(finish="stop"))),
    "nothing": ("messages", (START, BLOCK), (START, TURN, STOP)),
}


@BOTH
@pytest.mark.parametrize(("form", "early", "later"), OTHERWISE.values(), ids=OTHERWISE)
def test_an_answer_that_begins_otherwise_is_not_joined_to_the_first(form, early, later, is_async):
    events, error, requests, heard, _ = read_all(
        form, Streaming(*early, error=CUT), Streaming(*later), is_async=is_async
    )
    sdk = anthropic if form == "messages" else openai
    assert isinstance(error, StreamCutError)
    assert isinstance(error, sdk.APIConnectionError)
    assert error.partial.payload == events
    assert (len(events), requests) == (len(early), 2)
    # An answer that is complete counts as good, although its reader cannot use it.
    assert len(heard.of(Failed)) == (later[-1] != STOP or len(later) == len(WHOLE))


@BOTH
def test_where_streams_may_restart_it_begins_again(is_async):
    later = Streaming(*WHOLE)
    events, error, requests, heard, _ = read_all(
        "messages", Streaming(START, THINKING, error=CUT), later, is_async=is_async, after_first="restart"
    )
    assert (error, requests) == (None, 3)
    assert [event.type for event in events] == ["message_start", "content_block_start", *[e["type"] for e in WHOLE]]
    assert len(heard.of(StreamResumed)) == 1


# --- Responses: a stream has one identity ---


@BOTH
def test_a_response_that_was_announced_is_not_replaced_by_another(is_async):
    """The SDK's own helper raises if the id of a response changes, and a caller may have stored it."""
    events, error, requests, *_ = read_all(
        "responses", Streaming(CREATED, WORKING, error=CUT), Streaming(CREATED, WORDS, COMPLETED), is_async=is_async
    )
    assert isinstance(error, StreamCutError)
    assert isinstance(error, openai.APIConnectionError)
    assert (requests, [event.type for event in events]) == (1, ["response.created", "response.in_progress"])


@BOTH
def test_an_error_event_after_the_announcement_is_handed_on_as_the_sdk_does(is_async):
    events, error, requests, heard, _ = read_all(
        "responses", Streaming(CREATED, ERROR), Streaming(CREATED, WORDS, COMPLETED), is_async=is_async
    )
    assert (error, requests, [event.type for event in events]) == (None, 1, ["response.created", "error"])
    assert len(heard.of(Failed)) == 1


@BOTH
def test_before_the_announcement_a_response_is_made_again_unseen(is_async):
    events, error, requests, *_ = read_all(
        "responses", Streaming(error=CUT), Streaming(CREATED, WORDS, COMPLETED), is_async=is_async
    )
    assert (error, requests, len(events)) == (None, 2, 3)


# --- leaving it ---


@pytest.mark.parametrize("helper", ["messages", "chat"])
def test_closing_a_helper_after_a_break_closes_the_answer_that_is_read_now(helper):
    rest = (
        Streaming(*WHOLE) if helper == "messages" else Streaming(ROLE, chunk("Hel"), chunk("lo"), chunk(finish="stop"))
    )
    early = Streaming(START, error=CUT) if helper == "messages" else Streaming(ROLE, error=CUT)
    wire, (runtime, heard) = Wire(early, rest), world()
    if helper == "messages":
        manager: Any = recovering(anthropic_on(wire), runtime=runtime).messages.stream(**REQUEST)
    else:
        manager = recovering_openai(openai_on(wire), runtime=runtime).chat.completions.stream(**CHAT)
    with manager as stream:
        for event in stream:
            if event.type in ("text", "content.delta") and (getattr(event, "text", "") or event.delta):
                break
    assert ([body.closed for body in rest.bodies], len(heard.of(Cancelled))) == ([True], 1)
    assert len(wire.requests) == 2


@pytest.mark.parametrize("helper", ["messages", "chat"])
def test_closing_an_async_helper_after_a_break_closes_the_answer_that_is_read_now(helper):
    rest = (
        Streaming(*WHOLE) if helper == "messages" else Streaming(ROLE, chunk("Hel"), chunk("lo"), chunk(finish="stop"))
    )
    early = Streaming(START, error=CUT) if helper == "messages" else Streaming(ROLE, error=CUT)
    wire, (runtime, heard) = Wire(early, rest), world()
    if helper == "messages":
        manager: Any = recovering(async_anthropic_on(wire), runtime=runtime).messages.stream(**REQUEST)
    else:
        manager = recovering_openai(async_openai_on(wire), runtime=runtime).chat.completions.stream(**CHAT)

    async def read():
        async with manager as stream:
            async for event in stream:
                if event.type in ("text", "content.delta") and (getattr(event, "text", "") or event.delta):
                    break

    in_time(runtime, read())
    assert ([body.closed for body in rest.bodies], len(heard.of(Cancelled))) == ([True], 1)
    assert len(wire.requests) == 2


def test_a_stream_that_is_closed_while_its_reader_waits_sends_nothing_more():
    runtime, heard = world()
    closed = asyncio.Event()

    async def until_closed():
        await closed.wait()
        raise httpx2.ReadError("the connection was closed")

    wire = Wire(Streaming(START, silence=until_closed))
    claude = recovering(async_anthropic_on(wire), runtime=runtime)

    async def leave():
        stream = await claude.messages.create(**REQUEST, stream=True)
        await anext(stream)
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(1)
        await stream.close()
        closed.set()
        with pytest.raises(anthropic.APIConnectionError):
            await reading
        await asyncio.sleep(300)

    in_time(runtime, leave())
    assert (len(wire.requests), len(heard.of(Cancelled))) == (1, 1)


def test_a_stream_that_is_closed_during_the_wait_for_an_attempt_sends_nothing_more():
    wire, (runtime, _) = Wire(Streaming(START, OVERLOADED_EVENT)), world()
    claude = recovering(async_anthropic_on(wire), runtime=runtime)

    async def leave():
        stream = await claude.messages.create(**REQUEST, stream=True)
        await anext(stream)
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.01)
        before = len(wire.requests)
        await stream.close()
        with pytest.raises((anthropic.APIError, StopAsyncIteration)):
            await reading
        return before

    assert in_time(runtime, leave()) == len(wire.requests)


# --- a recovery around it ---


def test_under_a_fallback_create_waits_for_the_first_content():
    """Only so a failure before it can still be answered by the fallback."""
    wire, (runtime, _) = Wire(Streaming(START, OVERLOADED_EVENT)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)

    @recover("assistant", Policy(circuit=None), runtime=runtime)
    def answer():
        return claude.messages.create(**REQUEST, stream=True)

    answer.fallback(lambda: "another")
    assert answer() == "another"


def test_a_stream_with_a_fallback_uses_it_before_the_first_content():
    wire, (runtime, _) = Wire(Streaming(START, OVERLOADED_EVENT)), world()
    claude = recovering(anthropic_on(wire), runtime=runtime)
    live = recover("assistant", Policy(circuit=None), runtime=runtime)
    with live.stream(lambda: claude.messages.create(**REQUEST, stream=True)).fallback(
        lambda: iter(["another"])
    )() as stream:
        assert list(stream) == ["another"]


# --- what is kept of it ---

MANY = 3_000


@pytest.mark.parametrize("form", ["messages", "chat", "responses"])
@BOTH
def test_a_cut_carries_the_events_as_they_were(form, is_async):
    """They are kept as the texts that they were read from."""
    events = {
        "messages": (START, BLOCK, *(text(f"é{number}") for number in range(200))),
        "chat": (ROLE, *(chunk(f"\u2028{number}", obfuscation="x" * number) for number in range(200))),
        "responses": (CREATED, *({**WORDS, "delta": str(number), "sequence_number": number} for number in range(200))),
    }[form]
    seen, error, *_ = read_all(form, Streaming(*events, error=CUT), Streaming(), is_async=is_async)
    assert isinstance(error, StreamCutError)
    assert len(seen) == len(events)
    assert error.partial.payload == seen
    assert [type(event) for event in error.partial.payload] == [type(event) for event in seen]
    assert (error.partial.complete, error.partial.truncated) == (len(events), False)


def test_what_is_kept_of_a_stream_is_small():
    """The SDK's events of this stream take more than a thousand bytes each, and its user has dropped them."""
    stream = Streaming(START, BLOCK, *[text("word ")] * MANY, error=CUT)

    def left_by(wrap):
        read = wrap(anthropic_on(Wire(stream))).messages.create(**REQUEST, stream=True)
        for _ in range(20):
            next(read)
        gc.collect()
        tracemalloc.start()
        for _ in range(MANY - 100):
            next(read)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        read.close()
        return kept

    bare = left_by(lambda client: client)
    ours = left_by(lambda client: recovering(client, runtime=world()[0]))
    assert (ours - bare) / MANY < 64
