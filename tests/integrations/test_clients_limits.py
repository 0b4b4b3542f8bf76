"""How long an answer may take: limits that a user gives hold exactly, and those that nobody gave end no answer."""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx2
import pytest
from clients_forms import WHOLE, recovering, text_of
from clients_kit import BLOCK, REQUEST, START, STOP, Wire, async_anthropic_on, in_time, text, world

import holdfast.anthropic
from holdfast import BATCH, PATIENT, Budget, DeadlineError, Policy, recover
from holdfast.events import AttemptStarted
from holdfast.testing import FaultProvider

EACH = pytest.mark.parametrize("form", WHOLE.values(), ids=WHOLE)
HOURS = 10_000.0


class Slow(httpx2.AsyncBaseTransport, httpx2.BaseTransport):
    """A service that answers after some seconds of virtual time, and a client that obeys its read timeout, as httpx does."""

    def __init__(self, runtime, seconds):
        self.clock = runtime.clock
        self.seconds = seconds
        self.provider = FaultProvider(clock=runtime.clock)
        self.limits = []

    def _wait(self, request):
        limit = request.extensions["timeout"]["read"]
        self.limits.append(limit)
        return (
            (self.seconds, None)
            if limit is None or limit > self.seconds
            else (limit, httpx2.ReadTimeout("read timed out"))
        )

    def handle_request(self, request):
        seconds, error = self._wait(request)
        self.clock.sleep(seconds)
        if error:
            raise error
        return self.provider.transport().handle_request(request)

    async def handle_async_request(self, request):
        seconds, error = self._wait(request)
        await asyncio.sleep(seconds)
        if error:
            raise error
        return await self.provider.transport().handle_async_request(request)


def ask(form, seconds, *, is_async, timeout=None, call_timeout=None, policy=None):
    """Make one call; return the answer's text or the error, the seconds it took, and the requests."""
    runtime, heard = world()
    slow = Slow(runtime, seconds)
    sdk = form.sdk
    kind = (sdk.AsyncAnthropic if is_async else sdk.Anthropic) if sdk is anthropic else (sdk.AsyncOpenAI if is_async else sdk.OpenAI)  # fmt: skip
    http = (httpx2.AsyncClient if is_async else httpx2.Client)(transport=slow)
    given = {} if timeout is None else {"timeout": timeout}
    client = recovering(form, kind(api_key="test", http_client=http, **given), runtime=runtime, policy=policy)
    if call_timeout is not None:
        client = client.with_options(timeout=call_timeout)

    async def asking():
        return text_of(await form.begin(client))

    try:
        got = in_time(runtime, asking()) if is_async else text_of(form.begin(client))
    except Exception as error:
        got = error
    return got, runtime.clock.monotonic(), len(heard.of(AttemptStarted))


BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@BOTH
@EACH
@pytest.mark.parametrize("given", ["nothing", "client", "call"])
def test_FI2_an_answer_may_take_minutes(form, is_async, given):
    limits = {"nothing": {}, "client": {"timeout": 600}, "call": {"call_timeout": 600}}[given]
    got, seconds, attempts = ask(form, 300, is_async=is_async, **limits)
    assert (got, seconds, attempts) == ("You said: What is a holdfast?", 300, 1)


@BOTH
@EACH
@pytest.mark.parametrize("policy", [None, PATIENT, BATCH], ids=["default", "patient", "batch"])
def test_XR1_an_answer_of_15_minutes_is_paid_for_once_where_the_client_allows_it(form, is_async, policy):
    got, seconds, attempts = ask(form, 900, is_async=is_async, timeout=1_200, policy=policy)
    assert (got, seconds, attempts) == ("You said: What is a holdfast?", 900, 1)


@pytest.mark.parametrize("policy", [None, PATIENT, BATCH], ids=["default", "patient", "batch"])
def test_XR1_a_bare_client_inside_a_function_answers_as_it_does_alone(policy):
    runtime, heard = world()
    http = httpx2.AsyncClient(transport=Slow(runtime, 590))
    client = anthropic.AsyncAnthropic(api_key="test", http_client=http, max_retries=0)

    @recover("claude", policy, runtime=runtime)
    async def answer():
        return (await client.messages.create(**REQUEST)).content[0].text

    assert in_time(runtime, answer()).startswith("You said")
    assert (runtime.clock.monotonic(), len(heard.of(AttemptStarted))) == (590, 1)


@BOTH
@EACH
def test_FI2_the_clients_own_limit_ends_an_attempt_and_the_error_is_its_own(form, is_async):
    got, seconds, attempts = ask(form, HOURS, is_async=is_async, timeout=100)
    assert isinstance(got, form.sdk.APITimeoutError)
    assert not isinstance(got, DeadlineError)
    assert attempts == 3  # as many as the SDK makes, although the third begins after the default's window of 120 s
    assert 300 < seconds < 310


@BOTH
@EACH
def test_FI2_a_limit_of_the_policy_holds_exactly(form, is_async):
    got, seconds, _ = ask(form, HOURS, is_async=is_async, timeout=600, policy=Policy(timeout=60.0, deadline=60.0))
    assert isinstance(got, form.sdk.APITimeoutError)
    assert seconds == pytest.approx(60)
    got, seconds, _ = ask(form, HOURS, is_async=is_async, policy=Policy(deadline=90.0, attempts=1))
    assert isinstance(got, form.sdk.APITimeoutError)
    assert seconds == pytest.approx(90)
    got, seconds, _ = ask(form, HOURS, is_async=is_async, policy=BATCH.replace(timeout=300, attempts=1))
    assert isinstance(got, form.sdk.APITimeoutError)
    assert seconds == pytest.approx(300)


@BOTH
def test_FI2_a_budget_of_seconds_around_the_call_holds(is_async):
    runtime, _ = world()
    slow = Slow(runtime, HOURS)
    http = (httpx2.AsyncClient if is_async else httpx2.Client)(transport=slow)
    kind = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
    client = holdfast.anthropic.recovering(kind(api_key="test", http_client=http), runtime=runtime)

    async def asking():
        return await client.messages.create(**REQUEST)

    with Budget(seconds=30, runtime=runtime), pytest.raises(anthropic.APITimeoutError):
        in_time(runtime, asking()) if is_async else client.messages.create(**REQUEST)
    assert runtime.clock.monotonic() == pytest.approx(30)


# --- streams ---


class Dripping(httpx2.AsyncByteStream):
    """The events of a stream, one every `gap` seconds."""

    def __init__(self, events, gap):
        self.events = events
        self.gap = gap

    async def __aiter__(self):
        for event in self.events:
            await asyncio.sleep(self.gap)
            yield event


def sse(event):
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def dripping(runtime, *events, gap=25.0, **options):
    def answer():
        body = Dripping([sse(event) for event in events], gap)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body)

    return holdfast.anthropic.recovering(async_anthropic_on(Wire(answer)), runtime=runtime, **options)


async def read(client):
    return [event.type async for event in await client.messages.create(**REQUEST, stream=True)]


OPENING = (START, {"type": "ping"}, {"type": "ping"}, BLOCK, BLOCK, BLOCK)
CONTENT = (*[text("word ")] * 10, STOP)


@pytest.mark.parametrize("policy", [None, Policy(timeout=30)], ids=["default", "timeout=30"])
def test_FI2_any_event_of_a_stream_is_a_sign_of_life(policy):
    runtime, heard = world()
    # The SDK swallows pings, so with a limit of 30 s the test has none.
    opening = OPENING if policy is None else (START, BLOCK, BLOCK, BLOCK, BLOCK, BLOCK)
    kinds = in_time(runtime, read(dripping(runtime, *opening, *CONTENT, policy=policy)))
    assert kinds[-1] == "message_stop"
    assert runtime.clock.monotonic() == pytest.approx(25 * (len(opening) + len(CONTENT)))
    assert len(heard.of(AttemptStarted)) == 1


def test_FI2_silence_ends_a_stream_where_the_policy_has_a_limit():
    runtime, _ = world()
    with pytest.raises(anthropic.APITimeoutError):
        in_time(runtime, read(dripping(runtime, START, *CONTENT, gap=25, policy=Policy(timeout=20, attempts=1))))
    assert runtime.clock.monotonic() == pytest.approx(20)


def test_FI2_a_deadline_of_the_policy_ends_a_stream_before_its_first_content():
    runtime, _ = world()
    with pytest.raises(anthropic.APITimeoutError):
        in_time(runtime, read(dripping(runtime, *[START] * 10, *CONTENT, policy=Policy(deadline=100))))
    assert runtime.clock.monotonic() == pytest.approx(100)
