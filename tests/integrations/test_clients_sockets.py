"""What only a socket can do (resets, half bodies, bytes that are no HTTP, failed handshakes), through recovering clients."""

from __future__ import annotations

import asyncio
import threading

import anthropic
import httpx2
import openai
import pytest
from clients_forms import ANNOUNCED, ANSWER, FORMS, STREAMED, collect, collect_async, recovering, text_in, text_of
from httpcore2._backends import sync as sync_backend

from holdfast import Budget, Policy, Runtime, StreamCutError, fault_of
from holdfast.events import AttemptStarted
from holdfast.testing import Capture, FaultProvider, no_waiting, serve_in_thread

LIMIT, PATIENCE = 0.2, 5.0
BROKEN = ["cut", "disconnect", "empty", "malformed-http", "malformed-json", "reset", "truncate"]
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@pytest.fixture(scope="module")
def shared():
    with serve_in_thread() as provider:
        yield provider


@pytest.fixture
def provider(shared):
    shared.set_script("")
    return shared


@pytest.fixture
def world():
    runtime, heard = Runtime(), Capture()
    runtime.on(heard)
    with no_waiting(runtime):
        yield runtime, heard


def client_on(provider, form, runtime, kind="sync", *, timeout=PATIENCE, url=None):
    kinds = {
        ("anthropic", "sync"): anthropic.Anthropic,
        ("anthropic", "async"): anthropic.AsyncAnthropic,
        ("openai", "sync"): openai.OpenAI,
        ("openai", "async"): openai.AsyncOpenAI,
    }
    sdk = "anthropic" if form.host == "anthropic" else "openai"
    base = url or (provider.url if sdk == "anthropic" else provider.openai_url)
    http = httpx2.Client if kind == "sync" else httpx2.AsyncClient
    # Without certificates to check: reading those of the machine takes longer than the test.
    client = kinds[sdk, kind](base_url=base, api_key="test", timeout=timeout, http_client=http(verify=False))
    return recovering(form, client, runtime=runtime, policy=Policy(timeout=timeout, patience=None))


def answer_text(form, answer, events):
    return "".join(map(text_in, events)) if form.stream else text_of(answer)


@EACH
@pytest.mark.parametrize("name", BROKEN)
def test_a_connection_that_breaks_is_seen_only_where_content_was(provider, world, name, form):
    (runtime, heard), events = world, []
    # A stream gives nothing before it breaks; a body that is none breaks in its middle.
    provider.set_script(f"{name};after=0" if form.stream and name in ("cut", "truncate", "malformed-json") else name)
    with client_on(provider, form, runtime) as client:
        if form in ANNOUNCED.values() and name in ("cut", "truncate", "malformed-json"):
            with pytest.raises(StreamCutError):
                collect(form, client, events)
            return
        answer = collect(form, client, events)
    assert answer_text(form, answer, events) == ANSWER
    assert len(heard.of(AttemptStarted)) == provider.counters.received == 2
    assert provider.counters.injected == {name: 1}


@EACH
@pytest.mark.parametrize("name", ["cut", "hang", "reset"])
def test_the_same_in_a_task(world, name, form):
    (runtime, heard), events = world, []
    limit = LIMIT if name == "hang" else PATIENCE

    async def main():
        is_replaceable = form.stream and form not in ANNOUNCED.values()
        script = (
            "cut;after=0" if name == "cut" and is_replaceable else "reset" if name == "cut" and form.stream else name
        )
        async with (
            FaultProvider(script) as provider,
            client_on(provider, form, runtime, "async", timeout=limit) as client,
        ):
            return await collect_async(form, client, events), provider.counters

    answer, counters = asyncio.run(main())
    assert answer_text(form, answer, events) == ANSWER
    assert len(heard.of(AttemptStarted)) == counters.received == 2
    assert sum(counters.injected.values()) == 1


@EACH
def test_a_provider_that_hangs_is_left_after_the_limit(provider, world, form):
    (runtime, heard), events = world, []
    provider.set_script("hang")
    with client_on(provider, form, runtime, timeout=LIMIT) as client:
        answer = collect(form, client, events)
    assert answer_text(form, answer, events) == ANSWER
    assert len(heard.of(AttemptStarted)) == provider.counters.received == 2


@pytest.mark.parametrize("form", STREAMED.values(), ids=STREAMED)
@pytest.mark.parametrize(
    ("step", "code"), [("reset;after=2", "CONN_RESET"), ("silence;after=2", "PROVIDER_STREAM_STALLED")]
)
def test_after_content_the_cut_carries_what_arrived_and_nothing_is_sent_again(provider, world, form, step, code):
    (runtime, heard), events = world, []
    provider.set_script(step)
    limit = LIMIT if "silence" in step else PATIENCE
    with client_on(provider, form, runtime, timeout=limit) as client, pytest.raises(StreamCutError) as cut:
        collect(form, client, events)
    assert cut.value.fault.code == code
    # A reset may overtake what was sent before it; what did arrive is on the error, no more and no less.
    assert cut.value.partial.complete == len(events)
    assert ANSWER.startswith("".join(map(text_in, events)))
    assert len(heard.of(AttemptStarted)) == provider.counters.received == 1


@pytest.mark.parametrize("form", [FORMS["messages"], FORMS["chat"]], ids=["messages", "chat"])
def test_a_failed_handshake_is_the_sdks_own_error_and_no_request(provider, world, form):
    runtime, heard = world
    with (
        client_on(provider, form, runtime, url=provider.tls_url) as client,
        pytest.raises((anthropic.APIConnectionError, openai.APIConnectionError)) as failed,
    ):
        form.begin(client)
    assert fault_of(failed.value).code == "CONN_TLS_HANDSHAKE_FAILED"
    assert provider.counters.tls == len(heard.of(AttemptStarted))
    assert provider.counters.received == 0


def test_fifty_calls_at_once_in_a_storm_are_counted_to_the_last_request(provider, world):
    (runtime, heard), form = world, FORMS["messages"]
    provider.set_script("529%30*10000")
    given = anthropic.Anthropic(base_url=provider.url, api_key="test")
    policy = Policy(attempts=20, circuit=None, patience=None)
    answers = []
    with recovering(form, given, runtime=runtime, policy=policy) as client:
        threads = [threading.Thread(target=lambda: answers.append(form.begin(client))) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counters = provider.counters
    assert (len(answers), counters.answered) == (50, 50)
    assert counters.injected["529"] > 0
    assert len(heard.of(AttemptStarted)) == counters.received == 50 + counters.injected["529"]


def test_XR4_each_read_of_a_blocking_stream_has_the_time_that_is_left_and_the_connection_is_free_afterwards(
    provider, world, monkeypatch
):
    """The HTTP library takes its read timeout once for a whole body, so a read late in the stream would last too long."""
    (runtime, _), form = world, STREAMED["messages, streamed"]
    allowed = []
    original = sync_backend.SyncStream.read

    def read(self, max_bytes, timeout=None):
        allowed.append(timeout)
        return original(self, max_bytes, timeout=timeout)

    monkeypatch.setattr(sync_backend.SyncStream, "read", read)
    provider.set_script("drip;every=0.001, ok")
    with client_on(provider, form, runtime) as client:
        with Budget(seconds=4, runtime=runtime):
            assert "".join(map(text_in, list(form.begin(client)))) == ANSWER
        assert allowed == sorted(allowed, reverse=True)
        assert allowed[-1] < allowed[0] <= 4
        allowed.clear()
        assert "".join(map(text_in, list(form.begin(client)))) == ANSWER
        assert set(allowed) == {PATIENCE}
