"""A request that creates something is repeated no more often than by the plain client, after it may have been carried out.

Each call is made twice, by the plain client and by a recovering one, on services that fail in the same way.
"""

from __future__ import annotations

import itertools

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

import holdfast.anthropic
import holdfast.openai
from holdfast import Policy, RecoveryWarning, Runtime, StreamCutError
from holdfast.testing import Midpoint, VirtualClock, run

QUESTION = {"model": "claude-test", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
SERVERS = [{"type": "url", "url": "https://mail.test", "name": "mail"}]
MCP = [{"type": "mcp", "server_label": "mail", "server_url": "https://mail.test", "require_approval": "never"}]

CREATES = {
    "openai batch": lambda c: c.batches.create(completion_window="24h", endpoint="/v1/responses", input_file_id="f"),
    "openai job": lambda c: c.fine_tuning.jobs.create(model="gpt-4o", training_file="f"),
    "openai image": lambda c: c.images.generate(prompt="x", model="gpt-image-1"),
    "openai file": lambda c: c.files.create(file=("a.jsonl", b"{}"), purpose="batch"),
    "openai upload": lambda c: c.uploads.create(bytes=1, filename="a", mime_type="text/plain", purpose="batch"),
    "openai background": lambda c: c.responses.create(model="gpt-5", input="x", background=True),
    "openai mcp": lambda c: c.responses.create(model="gpt-5", input="x", tools=MCP),
    "anthropic batch": lambda c: c.messages.batches.create(requests=[{"custom_id": "a", "params": QUESTION}]),
    "anthropic mcp": lambda c: c.beta.messages.create(**QUESTION, mcp_servers=SERVERS),
}
ASKS = {
    "openai chat": lambda c: c.chat.completions.create(model="gpt-5", messages=[]),
    "openai response": lambda c: c.responses.create(model="gpt-5", input="x"),
    "openai embedding": lambda c: c.embeddings.create(model="e", input="x"),
    "openai moderation": lambda c: c.moderations.create(input="x"),
    "openai read": lambda c: c.batches.retrieve("b_1"),
    "anthropic message": lambda c: c.messages.create(**QUESTION),
    "anthropic count": lambda c: c.messages.count_tokens(model="claude-test", messages=QUESTION["messages"]),
    "anthropic models": lambda c: c.models.list(),
}
DOUBT = (500, 502, 503, 504, 520, 408, 409, "lost", "late", "half", "page")
REJECTED = (429, 529, "503 in 1", "refused")


class Service:
    """Fails in these ways, the last one for all further requests, and counts."""

    def __init__(self, *failures):
        self.failures, self.requests = list(failures), 0

    def __call__(self, request):
        self.requests += 1
        how = self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]
        match how:
            case "lost":
                raise httpx2.ReadError("connection reset", request=request)
            case "late":
                raise httpx2.ReadTimeout("late", request=request)
            case "refused":
                raise httpx2.ConnectError("connection refused", request=request)
            case "half":
                return httpx2.Response(200, headers={"content-type": "application/json"}, stream=Half())
            case "page":
                return httpx2.Response(200, headers={"content-type": "text/html"}, text="<html>")
            case "503 in 1":
                return httpx2.Response(503, headers={"retry-after": "1"}, json={})
        return httpx2.Response(how, json={"type": "error", "error": {"type": "api_error", "message": "no"}})

    async def later(self, request):
        return self(request)


class Half(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that breaks off."""

    def __iter__(self):
        yield b'{"id": '
        raise httpx2.ReadError("connection reset")

    async def __aiter__(self):
        yield b'{"id": '
        raise httpx2.ReadError("connection reset")


def client_of(name, service, *, is_async=True, **options):
    kinds = {"openai": (OpenAI, AsyncOpenAI), "anthropic": (Anthropic, AsyncAnthropic)}
    sync, async_ = kinds[name.partition(" ")[0]]
    if is_async:
        return async_(
            api_key="k", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(service.later)), **options
        )
    return sync(api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(service)), **options)


def recovering(name, client, **options):
    module = holdfast.openai if name.startswith("openai") else holdfast.anthropic
    return module.recovering(client, **options)


def requests(name, call, *failures, plain=False, policy=None, copied=None, **options):
    """Make a call with an async client in virtual time; return how many requests it made."""
    service, clock = Service(*failures), VirtualClock()
    client = client_of(name, service, **options)
    if not plain:
        client = recovering(name, client, policy=policy, runtime=Runtime(clock=clock, rng=Midpoint()))
    if copied is not None:
        client = client.with_options(**copied)

    async def outcome():
        try:
            await call(client)
        except Exception as error:
            return error

    run(outcome(), clock=clock)
    return service.requests


CALLS = pytest.mark.parametrize(("name", "call"), CREATES.items(), ids=CREATES)


@pytest.mark.parametrize("retries", [0, 2, 4])
@pytest.mark.parametrize("how", DOUBT)
@CALLS
def test_it_is_repeated_as_often_as_by_the_plain_client(name, call, how, retries):
    plain = requests(name, call, how, plain=True, max_retries=retries)
    assert requests(name, call, how, max_retries=retries) == plain


@pytest.mark.parametrize("retries", [0, 1, 5])
@pytest.mark.parametrize("how", [500, 409, 429, "lost"])
@CALLS
@pytest.mark.filterwarnings("ignore::holdfast.RecoveryWarning")
def test_retries_that_a_copy_names_are_obeyed(name, call, how, retries):
    copied = {"max_retries": retries}
    plain = requests(name, call, how, plain=True, copied=copied)
    assert plain == retries + 1
    assert requests(name, call, how, copied=copied) == plain
    assert requests(name, call, how, copied=copied, policy=Policy(attempts=9)) == plain


@pytest.mark.parametrize("how", REJECTED)
@CALLS
def test_what_was_rejected_is_repeated_as_always(name, call, how):
    assert requests(name, call, how) > 5


@CALLS
def test_a_rejection_after_a_doubt_does_not_allow_more(name, call):
    assert requests(name, call, 500, 429) == requests(name, call, 500, 429, plain=True) == 3
    assert requests(name, call, 429, 429, 429, 500) == 4, "the first one that may have been carried out is the last"


@CALLS
def test_attempts_that_a_policy_names_are_made(name, call):
    assert requests(name, call, 500, policy=Policy(attempts=5)) == 5


def test_a_request_with_a_key_of_the_callers_own_is_repeated():
    def call(client):
        key = {"Idempotency-Key": "k"}
        return client.batches.create(
            completion_window="24h", endpoint="/v1/responses", input_file_id="f", extra_headers=key
        )

    assert requests("openai batch", call, 500) > 5


@pytest.mark.parametrize(("name", "call"), ASKS.items(), ids=ASKS)
def test_a_question_to_a_model_and_a_read_are_repeated_as_always(name, call):
    assert requests(name, call, 500) > 5


@pytest.mark.parametrize("how", [500, 429, 529, "lost", "refused"])
@pytest.mark.parametrize(("name", "call"), ASKS.items(), ids=ASKS)
def test_no_retries_means_one_attempt_unless_the_policy_names_attempts(name, call, how):
    assert requests(name, call, how, copied={"max_retries": 0}) == 1
    assert requests(name, call, how, copied={"max_retries": 0}, policy=Policy(attempts=4)) == 4
    assert requests(name, call, how, max_retries=0) > 5, "that is how the one owner of retries is chosen"


def test_retries_named_for_one_request_and_for_a_copy_of_a_copy_are_obeyed():
    def call(client):
        return client.post("/batches", cast_to=object, options={"max_retries": 1})

    assert requests("openai post", call, 500) == requests("openai post", call, 500, plain=True) == 2

    def again(client):
        return client.with_options(timeout=5).with_options(api_key="other").batches.retrieve("b")

    assert requests("openai copy", again, 500, copied={"max_retries": 0}) == 1


def test_a_sync_client_obeys_too():
    service, runtime = Service(500), Runtime(clock=VirtualClock(), rng=Midpoint())
    client = recovering("openai", client_of("openai", service, is_async=False), runtime=runtime)
    with pytest.raises(Exception, match="no"):
        CREATES["openai batch"](client)
    assert service.requests == 3
    with pytest.raises(Exception, match="no"):
        CREATES["openai batch"](client.with_options(max_retries=0))
    assert service.requests == 4
    with pytest.warns(RecoveryWarning, match="calls to models"):
        client.with_options(max_retries=2)


# --- streams ---

RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": "gpt-5", "output": [],
    "error": None, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
}  # fmt: skip
BEGUN = [{"type": f"response.{kind}", "response": RESPONSE} for kind in ("created", "in_progress")]
MCP_CALL = {"type": "mcp_call", "id": "m", "name": "send", "server_label": "mail", "arguments": ""}
SAID = [*BEGUN, {"type": "response.output_item.added", "output_index": 0, "item": MCP_CALL}]


def cut_stream(events):
    class Events(httpx2.AsyncByteStream):
        async def __aiter__(self):
            for number, event in enumerate(events):
                yield b"data: " + httpx2.Request("POST", "http://x", json={**event, "sequence_number": number}).content
                yield b"\n\n"
            raise httpx2.ReadError("connection reset")

    return lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Events())


@pytest.mark.parametrize("after_first", ["raise", "restart"])
@pytest.mark.parametrize(("events", "body"), [(BEGUN, {"background": True}), (BEGUN, {"tools": MCP}), (SAID, {})])
def test_a_stream_that_has_begun_to_act_hands_on_its_events(events, body, after_first):
    if after_first == "restart" and not body:
        pytest.skip("the caller chose it, and the request says nothing of servers")
    sent, clock, answer = itertools.count(1), VirtualClock(), cut_stream(events)
    made = []

    async def service(_request):
        made.append(next(sent))
        return answer()

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(service))
    client = holdfast.openai.recovering(
        AsyncOpenAI(api_key="k", http_client=http), after_first=after_first, runtime=Runtime(clock=clock)
    )
    seen = []

    async def read():
        async for event in await client.responses.create(model="gpt-5", input="x", stream=True, **body):
            seen.append(event)  # noqa: PERF401 - the events before the error count

    with pytest.raises(StreamCutError) as cut:
        run(read(), clock=clock)
    assert made == [1]
    assert [event.type for event in seen] == [event["type"] for event in events]
    assert seen[0].response.id == "resp_1"
    assert cut.value.partial.payload == seen
