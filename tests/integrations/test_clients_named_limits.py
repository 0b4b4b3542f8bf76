"""Time limits of SDK clients hold exactly where somebody named them, and end nothing where nobody did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest
from clients_forms import FORMS, Form, recovering
from clients_kit import REQUEST, message

from holdfast import BATCH, PATIENT, Budget, DeadlineError, Policy, Runtime, StreamCutError
from holdfast.events import AttemptStarted
from holdfast.testing import Capture, Midpoint, VirtualClock, run

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
STREAMS = {"anthropic": FORMS["messages, streamed"], "openai": FORMS["chat, streamed"]}
EACH = pytest.mark.parametrize("form", STREAMS.values(), ids=STREAMS)
HOURS = 10_000.0
WORD = "word "


def event(form: Form, kind: str) -> bytes:
    """One event of a stream: its start, a word, or its end."""
    if form.protocol == "messages":
        events: dict[str, list[dict[str, Any]]] = {
            "start": [
                {
                    "type": "message_start",
                    "message": {
                        "id": "m",
                        "type": "message",
                        "role": "assistant",
                        "model": "claude-test",
                        "content": [],
                        "stop_reason": None,
                        "stop_sequence": None,
                        "usage": {"input_tokens": 1, "output_tokens": 1},
                    },
                },
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            ],
            "word": [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": WORD}}],
            "end": [{"type": "content_block_stop", "index": 0}, {"type": "message_stop"}],
        }
        return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events[kind])

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test", "choices": [choice]}
        return f"data: {json.dumps(body)}\n\n".encode()

    return {
        "start": chunk({"role": "assistant"}),
        "word": chunk({"content": WORD}),
        "end": chunk({}, "stop") + b"data: [DONE]\n\n",
    }[kind]


class Connection:
    """What an HTTP library shows as `network_stream`. Each wait of a blocking client is one of its reads."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.pause = 0.0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        limit = HOURS if timeout is None else timeout
        self.clock.sleep(min(self.pause, limit))
        if self.pause > limit:
            raise httpx2.ReadTimeout("The read operation timed out")
        return b""


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """Pieces with the seconds before each; an exception breaks it off. It obeys the read timeout of its client."""

    def __init__(self, pieces: list[tuple[float, Any]], limit: float | None, clock: VirtualClock, closing: Any) -> None:
        self.pieces, self.limit, self.closing = pieces, limit, closing
        self.connection = Connection(clock)

    def __iter__(self) -> Iterator[bytes]:
        for pause, piece in self.pieces:
            self.connection.pause = pause
            self.connection.read(1, timeout=self.limit)
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> Any:
        for pause, piece in self.pieces:
            limit = HOURS if self.limit is None else self.limit
            await asyncio.sleep(min(pause, limit))
            if pause > limit:
                raise httpx2.ReadTimeout("The read operation timed out")
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def close(self) -> None:
        if self.closing is not None:
            raise self.closing

    async def aclose(self) -> None:
        self.close()


class Service(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers each request as the script says: the seconds before the headers, then a status or the pieces of a stream."""

    def __init__(self, clock: VirtualClock, *script: tuple[float, Any], closing: Any = None) -> None:
        self.clock, self.script, self.closing = clock, list(script), closing
        self.requests = 0

    def _next(self, request: httpx2.Request) -> tuple[float, float | None, Any]:
        self.requests += 1
        seconds, what = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return seconds, request.extensions["timeout"]["read"], what

    def _answer(self, what: Any, limit: float | None) -> httpx2.Response:
        if isinstance(what, int):
            return httpx2.Response(what, json={"type": "error", "error": {"type": "api_error", "message": "no"}})
        if not isinstance(what, list):
            return what()
        body = Body(what, limit, self.clock, self.closing)
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=body, extensions={"network_stream": body.connection})

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        seconds, limit, what = self._next(request)
        if limit is not None and seconds > limit:
            self.clock.sleep(limit)
            raise httpx2.ReadTimeout("The read operation timed out")
        self.clock.sleep(seconds)
        return self._answer(what, limit)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        seconds, limit, what = self._next(request)
        if limit is not None and seconds > limit:
            await asyncio.sleep(limit)
            raise httpx2.ReadTimeout("The read operation timed out")
        await asyncio.sleep(seconds)
        return self._answer(what, limit)


class World:
    """One runtime with Holdfast's own defaults, and a recovering client on a scripted service."""

    def __init__(
        self, form: Form, *script: tuple[float, Any], is_async: bool, closing: Any = None, **options: Any
    ) -> None:
        self.clock, self.form, self.is_async = VirtualClock(), form, is_async
        self.runtime, self.heard = Runtime(clock=self.clock, rng=Midpoint()), Capture()
        self.runtime.on(self.heard)
        self.service = Service(self.clock, *script, closing=closing)
        recovery = {name: options.pop(name) for name in ("policy", "after_first") if name in options}
        self.client = recovering(form, self.bare(**options), runtime=self.runtime, **recovery)

    def bare(self, **options: Any) -> Any:
        sdk: Any = self.form.sdk
        http: Any = (httpx2.AsyncClient if self.is_async else httpx2.Client)(transport=self.service)
        names = ("AsyncAnthropic", "Anthropic") if sdk is anthropic else ("AsyncOpenAI", "OpenAI")
        return getattr(sdk, names[0 if self.is_async else 1])(api_key="test", http_client=http, **options)

    def play(self, doing: Any) -> Any:
        """Do it; return its result or its error."""
        try:
            return run(doing(), clock=self.clock) if self.is_async else doing()
        except Exception as error:
            return error

    def read(self, *, reader: float = 0.0, budget: float | None = None, helper: bool = False) -> Any:
        """Read a stream to its end, `reader` seconds for each event; return the number of events, or the error."""
        form = self.form

        def opened() -> Any:
            return self.client.messages.stream(**REQUEST) if helper else form.begin(self.client)

        async def reading() -> int:
            count = 0
            source = opened()
            async with source if helper else await source as stream:
                async for _ in stream:
                    count += 1
                    await asyncio.sleep(reader)
            return count

        async def reading_in_budget() -> int:
            if budget is None:
                return await reading()
            with Budget(seconds=budget, runtime=self.runtime):
                return await reading()

        def blocking() -> int:
            count = 0
            with opened() as stream:
                for _ in stream:
                    count += 1
                    self.clock.sleep(reader)
            return count

        def blocking_in_budget() -> int:
            if budget is None:
                return blocking()
            with Budget(seconds=budget, runtime=self.runtime):
                return blocking()

        return self.play(reading_in_budget if self.is_async else blocking_in_budget)

    @property
    def attempts(self) -> int:
        return len(self.heard.of(AttemptStarted))


def words(form: Form, number: int, gap: float, *, silence: float = 0.0) -> list[tuple[float, Any]]:
    """A stream of so many words, one every `gap` seconds, then a silence, then its end."""
    return [(0.5, event(form, "start")), *[(gap, event(form, "word"))] * number, (silence, event(form, "end"))]


# --- XR1: nothing is learned that ends an answer ---


@BOTH
@EACH
@pytest.mark.parametrize("usual", [60, 300])
def test_XR1_a_long_silence_after_many_short_ones_ends_no_stream(form, is_async, usual):
    script = [(0.2, words(form, 3, 0.1))] * usual + [(90.0, words(form, 3, 80.0, silence=200.0))]
    world = World(form, *script, is_async=is_async)
    for _ in range(usual + 1):
        assert isinstance(world.read(), int)
    assert world.service.requests == usual + 1


@BOTH
def test_XR1_long_answers_after_many_short_ones_are_all_answered_with_one_request_each(is_async):
    form = FORMS["messages"]
    script = [(1.0, message())] * 60 + [(20.0, message()), (60.0, message()), (500.0, message())]
    world = World(form, *script, is_async=is_async)
    answers = [world.play(lambda: form.begin(world.client)) for _ in range(63)]
    assert not [one for one in answers if isinstance(one, Exception)]
    assert world.service.requests == 63


# --- XR4: a deadline ends a stream, also after its first content ---

NAMED = pytest.mark.parametrize("named", ["deadline", "budget"])


def limited(form: Form, *script: tuple[float, Any], named: str, **options: Any) -> tuple[World, dict[str, Any]]:
    given = {"policy": Policy(deadline=60.0)} if named == "deadline" else {}
    return World(form, *script, **given, **options), ({} if named == "deadline" else {"budget": 60.0})


def assert_cut_at_60(world: World, error: Any, *, after_first: bool = True) -> None:
    assert world.clock.monotonic() == pytest.approx(60.0, abs=0.1)
    assert isinstance(error, DeadlineError)
    assert isinstance(error, world.form.sdk.APITimeoutError)
    assert error.fault.code == "SYS_DEADLINE_EXCEEDED"
    if after_first:
        assert isinstance(error, StreamCutError)
        assert error.partial is not None
        assert error.partial.complete


@BOTH
@EACH
@NAMED
def test_XR4_a_deadline_ends_a_stream_between_its_items(form, is_async, named):
    world, how = limited(form, (1.0, words(form, 1_000, 7.0)), named=named, is_async=is_async)
    assert_cut_at_60(world, world.read(**how))


@BOTH
@EACH
@NAMED
def test_XR4_a_deadline_ends_the_silence_after_the_first_content(form, is_async, named):
    world, how = limited(form, (50.0, words(form, 2, 1.0, silence=HOURS)), named=named, is_async=is_async)
    assert_cut_at_60(world, world.read(**how))


@BOTH
@EACH
@NAMED
def test_XR4_a_deadline_ends_a_stream_before_its_first_content(form, is_async, named):
    world, how = limited(form, (20.0, [(HOURS, event(form, "start"))]), named=named, is_async=is_async)
    assert_cut_at_60(world, world.read(**how), after_first=False)


@BOTH
@EACH
@NAMED
def test_XR4_the_next_read_of_a_slow_reader_raises(form, is_async, named):
    world, how = limited(form, (0.0, words(form, 1_000, 0.0)), named=named, is_async=is_async)
    error = world.read(reader=25.0, **how)
    assert isinstance(error, DeadlineError)
    assert isinstance(error, form.sdk.APITimeoutError)
    assert world.clock.monotonic() == pytest.approx(
        75.5, abs=0.1
    )  # three reads, of 25 s each; the fourth raises at once


@BOTH
@NAMED
def test_XR4_the_helper_of_the_sdk_keeps_it_too(is_async, named):
    form = STREAMS["anthropic"]
    world, how = limited(form, (1.0, words(form, 1_000, 7.0)), named=named, is_async=is_async)
    assert_cut_at_60(world, world.read(helper=True, **how))


@BOTH
@EACH
def test_XR4_a_stream_that_is_read_after_its_budget_ended_goes_on(form, is_async):
    world = World(form, (1.0, words(form, 10, 10.0)), is_async=is_async)

    async def reading() -> int:
        with Budget(seconds=60, runtime=world.runtime):
            stream = await form.begin(world.client)
        return len([one async for one in stream])

    def blocking() -> int:
        with Budget(seconds=60, runtime=world.runtime):
            stream = form.begin(world.client)
        return len(list(stream))

    assert world.play(reading if is_async else blocking) > 10
    assert world.clock.monotonic() > 100


@BOTH
@EACH
def test_XR4_a_complete_answer_is_handed_on_also_after_the_deadline(form, is_async):
    world = World(form, (0.0, words(form, 3, 0.0)), is_async=is_async, policy=Policy(deadline=60.0))
    assert isinstance(world.read(reader=8.0), int)


@BOTH
@EACH
@pytest.mark.parametrize("after_first", ["raise", "restart"])
def test_XR4_nothing_is_begun_again_after_the_deadline(form, is_async, after_first):
    world = World(
        form, (1.0, words(form, 50, 7.0)), is_async=is_async, after_first=after_first, policy=Policy(deadline=60.0)
    )
    assert_cut_at_60(world, world.read())
    assert world.service.requests == 1


# --- XR17: as many attempts as the bare client makes ---


@BOTH
@pytest.mark.parametrize(
    "first", [(HOURS, 200), (130.0, 503), (599.0, 500)], ids=["hang", "503 after 130 s", "500 late"]
)
@pytest.mark.parametrize("good", [2, 3])
def test_XR17_the_window_nobody_named_leaves_room_for_the_attempts_of_the_bare_client(is_async, first, good):
    form = FORMS["messages"]
    world = World(form, *[first] * (good - 1), (1.0, message()), is_async=is_async)
    answer = world.play(lambda: form.begin(world.client))
    assert not isinstance(answer, Exception)
    assert world.attempts == good


@BOTH
@pytest.mark.parametrize("retries", [0, 2, 4])
def test_XR17_as_many_as_the_client_was_made_for(is_async, retries):
    form = FORMS["messages"]
    world = World(form, (130.0, 503), is_async=is_async, max_retries=retries)
    error = world.play(lambda: form.begin(world.client))
    assert isinstance(error, anthropic.InternalServerError)
    assert world.attempts == retries + 1


@BOTH
@pytest.mark.parametrize("policy", [Policy(patience=100.0), Policy(deadline=120.0)], ids=["patience", "deadline"])
def test_XR17_a_window_that_somebody_named_is_kept(is_async, policy):
    form = FORMS["messages"]
    world = World(form, (110.0, 503), (1.0, message()), is_async=is_async, policy=policy)
    answer = world.play(lambda: form.begin(world.client))
    assert isinstance(answer, Exception) == (policy.deadline is None)


@BOTH
@EACH
def test_XR17_a_stream_that_does_not_begin_has_as_many_attempts(form, is_async):
    world = World(form, (HOURS, 200), (HOURS, 200), (1.0, words(form, 3, 1.0)), is_async=is_async)
    assert isinstance(world.read(), int)
    assert world.service.requests == 3


# --- XR20: the SDK's own errors, and as many requests as it makes ---

TIMEOUTS = {
    "before the headers": (HOURS, 200),
    "before the first event": (0.5, "silent"),
    "after the first event": (0.5, "start"),
}


@BOTH
@EACH
@pytest.mark.parametrize("when", TIMEOUTS)
def test_XR20_the_clients_own_timeout_is_repeated_as_often_as_the_sdk_does(form, is_async, when):
    seconds, what = TIMEOUTS[when]
    pieces = {"silent": [(HOURS, b"")], "start": [(0.1, event(form, "start")), (HOURS, b"")]}.get(what, what)
    world = World(form, (seconds, pieces), is_async=is_async, timeout=30.0)
    error = world.read()
    assert isinstance(error, form.sdk.APITimeoutError)
    assert not isinstance(error, httpx2.HTTPError)
    # Once an answer has begun, the SDK makes no second request: it would be paid for again.
    assert world.service.requests == (3 if when == "before the headers" else 1)


@BOTH
def test_XR20_a_call_that_times_out_is_made_three_times(is_async):
    form = FORMS["messages"]
    world = World(form, (HOURS, 200), is_async=is_async, timeout=30.0)
    assert isinstance(world.play(lambda: form.begin(world.client)), anthropic.APITimeoutError)
    assert world.service.requests == 3


@BOTH
@pytest.mark.parametrize(
    ("policy", "requests"), [(Policy(attempts=5), 4), (Policy(patience=300.0), 3), (PATIENT, 3), (BATCH, 3)]
)
def test_XR20_a_policy_that_names_attempts_decides_itself_and_a_patience_is_no_reason_to_pay_again(
    is_async, policy, requests
):
    form = FORMS["messages"]
    world = World(form, (HOURS, 200), is_async=is_async, timeout=30.0, policy=policy)
    assert isinstance(world.play(lambda: form.begin(world.client)), anthropic.APITimeoutError)
    assert world.service.requests == requests


ERRORS = {
    "ReadTimeout": "APITimeoutError",
    "ReadError": "APIConnectionError",
    "RemoteProtocolError": "APIConnectionError",
    "WriteTimeout": "APITimeoutError",
    "DecodingError": "APIConnectionError",
}


@BOTH
@EACH
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("when", ["first", "opened", "between"])
def test_XR20_no_raw_error_of_the_http_library_leaves_a_stream(form, is_async, kind, when):
    before: list[tuple[float, Any]] = {
        "first": [],
        "opened": [(0.1, event(form, "start"))],
        "between": [(0.1, event(form, "start")), (0.1, event(form, "word"))],
    }[when]
    broken = getattr(httpx2, kind)("broken")
    world = World(form, (0.1, [*before, (1.0, broken)]), is_async=is_async, policy=Policy(attempts=1))
    error = world.read()
    assert isinstance(error, getattr(form.sdk, ERRORS[kind])), type(error).__mro__
    assert not isinstance(error, httpx2.HTTPError)


@BOTH
@EACH
def test_XR20_no_raw_error_while_closing(form, is_async):
    world = World(form, (0.1, words(form, 3, 0.1)), is_async=is_async, closing=httpx2.ReadError("broken"))

    async def leaving() -> None:
        async with await form.begin(world.client) as stream:
            async for _ in stream:
                break

    def leave() -> None:
        with form.begin(world.client) as stream:
            for _ in stream:
                break

    error = world.play(leaving if is_async else leave)
    assert error is None or isinstance(error, form.sdk.APIConnectionError)
    assert not isinstance(error, httpx2.HTTPError)
