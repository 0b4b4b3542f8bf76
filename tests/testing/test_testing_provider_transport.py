"""The fault provider in memory: the real SDKs in virtual time, and the same failures as over a socket."""

from __future__ import annotations

import anthropic
import httpx
import httpx2
import openai
import pytest
from provider_calls import CLAUDE, GPT, MESSAGES, limit_for

from holdfast import Policy, Runtime, fault_of, recover
from holdfast.faults import InvalidError
from holdfast.testing import Capture, FaultProvider, VirtualClock, run, serve_in_thread, use_runtime
from holdfast.testing.provider.faults import FAULTS

BASE = "http://provider.test"
REQUEST = {"model": CLAUDE, "max_tokens": 9, "messages": MESSAGES}
HEADERS = {"x-api-key": "k"}


def claude(provider, **more):
    http = httpx2.AsyncClient(transport=provider.transport())
    return anthropic.AsyncAnthropic(base_url=BASE, api_key="k", max_retries=0, http_client=http, **more)


def asked_in(clock, ask):
    """Call inside the virtual run: the SDKs' methods begin when they are called, not when they are awaited."""

    async def main():
        return await ask(**REQUEST)

    return run(main(), clock=clock)


def test_a_recovery_waits_for_retry_after_in_no_real_time():
    clock, provider = VirtualClock(), FaultProvider("429;retry-after=110, 529, ok")
    ask = recover("claude")(claude(provider).messages.create)
    answer = asked_in(clock, ask)
    assert answer.content[0].text == "You said: What is a holdfast?"
    assert 110 < clock.monotonic() < 115
    assert provider.counters.received == 3
    assert provider.counters.injected == {"429": 1, "529": 1}


def test_a_retry_after_date_is_in_virtual_time():
    clock, provider = VirtualClock(), FaultProvider("429;retry-after=date+60, ok")
    asked_in(clock, recover("claude")(claude(provider).messages.create))
    assert clock.monotonic() == pytest.approx(60, abs=1)


def test_the_attempt_timeout_ends_a_hang():
    clock, provider = VirtualClock(), FaultProvider("hang, ok")
    ask = recover("claude", policy=Policy(timeout=20))(claude(provider, timeout=None).messages.create)
    asked_in(clock, ask)
    assert 20 <= clock.monotonic() < 25
    assert (provider.counters.received, provider.counters.abandoned) == (2, 1)


def test_the_clients_own_limit_is_kept_in_virtual_time():
    clock, provider = VirtualClock(), FaultProvider("slow;seconds=31, slow;seconds=29")
    client = claude(provider, timeout=30)

    async def main():
        with pytest.raises(anthropic.APITimeoutError):
            await client.messages.create(**REQUEST)
        await client.messages.create(**REQUEST)

    run(main(), clock=clock)
    assert clock.monotonic() == 59


def test_a_stream_that_is_cut_before_its_first_item_starts_again():
    capture, provider = Capture(), FaultProvider("cut;after=0, ok")
    client = claude(provider)

    async def texts():
        async with client.messages.stream(**REQUEST) as stream:
            async for text in stream.text_stream:
                yield text

    async def main():
        async with recover("claude").stream(texts)() as stream:
            return [text async for text in stream]

    with use_runtime(Runtime(clock=VirtualClock())) as runtime:
        runtime.on(capture)
        assert "".join(run(main())) == "You said: What is a holdfast?"
    capture.assert_recovered(attempts=2)
    assert provider.counters.received == 2


def test_an_outage_in_virtual_time():
    clock = VirtualClock()
    provider = FaultProvider('[[rules]]\nsteps = "503"\nloop = true\nfrom = 5\nto = 60\n', clock=clock)
    with httpx2.Client(transport=provider.transport(), base_url=BASE, headers=HEADERS) as client:
        seen = []
        for _ in range(14):
            seen.append(client.post("/v1/messages", json=REQUEST).status_code)
            clock.advance(5)
    assert seen == [200, *[503] * 11, 200, 200]


def test_blocking_code_waits_in_virtual_time_too():
    clock = VirtualClock()
    with use_runtime(Runtime(clock=clock)):
        provider = FaultProvider("429;retry-after=50, drip;every=2, ok")
        http = httpx2.Client(transport=provider.transport())
        with openai.OpenAI(base_url=f"{BASE}/v1", api_key="k", max_retries=0, http_client=http) as client:
            answer = recover("gpt").call(client.chat.completions.create, model=GPT, messages=MESSAGES)
    assert answer.choices[0].message.content == "You said: What is a holdfast?"
    assert clock.monotonic() >= 70


def test_a_blocking_client_without_a_limit_is_not_left_hanging():
    provider = FaultProvider("hang")
    with (
        httpx2.Client(transport=provider.transport(), base_url=BASE, headers=HEADERS, timeout=None) as client,
        pytest.raises(InvalidError, match="expected a read timeout"),
    ):
        client.post("/v1/messages", json=REQUEST)


def seen_by(client, stream, limit):
    """Return what a client sees: its library's exception, or the answer."""
    try:
        answer = client.post("/v1/messages", json={**REQUEST, "stream": stream}, timeout=limit)
    except Exception as error:
        return type(error).__name__, fault_of(error).code
    return answer.status_code, answer.headers["content-type"], answer.content


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_memory_and_socket_look_the_same(library, stream):
    """Every fault, and a good answer."""
    options = {"slow": ";seconds=0.5", "drip": ";every=0.001", "oversize": ";bytes=1000"}
    with (
        serve_in_thread() as provider,
        library.Client(base_url=provider.url, headers=HEADERS) as over_socket,
    ):
        memory = FaultProvider(clock=VirtualClock())
        transport = memory.transport(library)
        with library.Client(transport=transport, base_url=BASE, headers=HEADERS) as in_memory:
            for name in ["ok", "503", "reset;after=2", *FAULTS]:
                script = name + options.get(name, "")
                provider.set_script(script)
                memory.set_script(script)
                limit = limit_for(memory.script)
                assert seen_by(in_memory, stream, limit) == seen_by(over_socket, stream, limit), name
                assert memory.counters.injected == provider.counters.injected


def test_an_answer_that_is_left_half_read_is_counted_as_abandoned():
    provider = FaultProvider()
    with httpx2.Client(transport=provider.transport(), base_url=BASE, headers=HEADERS) as client:
        with client.stream("POST", "/v1/messages", json={**REQUEST, "stream": True}):
            pass
        assert provider.counters.abandoned == 1
        client.post("/v1/messages", json=REQUEST)
    assert provider.counters.abandoned == 1
