"""Each endpoint has circuits of its own: its host, its port, its protocol and, behind a gateway, its path."""

from __future__ import annotations

import anthropic
import httpx
import httpx2
import openai
import pytest
from clients_kit import in_time, world

import holdfast.anthropic
import holdfast.openai
from holdfast import CircuitOpenError, Policy, recover
from holdfast.events import Retry
from holdfast.httpx import RecoveringTransport
from holdfast.policies.target import endpoint_name, provider_name
from holdfast.testing import FaultProvider

KNOWN = {"api.openai.com": "openai", "api.x.ai": "xai"}
CLAUDE_DOWN = '[[rules]]\nsteps = "529"\nloop = true\nmodels = ["claude-*"]'
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1/", "openai"),
        ("https://api.openai.com:8443/v1", "openai"),
        ("https://api.x.ai/v1", "xai"),
        ("https://api.anthropic.com/v1/", "openai@api.anthropic.com"),
        ("http://127.0.0.1:8000/v1/", "openai@127.0.0.1:8000"),
        ("http://127.0.0.1:9000", "openai@127.0.0.1:9000"),
        ("http://[::1]:9000/v1", "openai@[::1]:9000"),
        ("https://gw.test/team-a/v1", "openai@gw.test/team-a"),
        ("https://gw.test:443/team-b/v1beta/", "openai@gw.test/team-b"),
        ("https://user:secret@gw.test/", "openai@gw.test"),
        ("http://gw.test:port/", "openai"),
        ("", "openai"),
    ],
)
def test_FR24_an_endpoint_is_named_by_protocol_host_port_and_path(url, name):
    assert endpoint_name("openai", url, KNOWN) == name


def test_FR24_a_framework_names_its_providers_the_same_way():
    assert provider_name("openai", "https://api.openai.com/v1") == "openai"
    assert provider_name("openai", "") == "openai"
    assert provider_name("openai", "http://127.0.0.1:8000/v1") == "openai@127.0.0.1:8000"
    assert provider_name("openai", "https://api.anthropic.com/v1") == "openai@api.anthropic.com"
    assert provider_name("groq", "https://api.groq.com") == "groq"


def local(runtime, provider, *, is_async=False, policy=None, base="http://127.0.0.1:4000"):
    """Both SDKs on one local server, as in front of a gateway or a fault provider."""
    http = (httpx2.AsyncClient if is_async else httpx2.Client)(transport=provider.transport())
    a = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
    o = openai.AsyncOpenAI if is_async else openai.OpenAI
    claude = holdfast.anthropic.recovering(
        a(api_key="a", base_url=base, http_client=http), runtime=runtime, policy=policy
    )
    gpt = holdfast.openai.recovering(
        o(api_key="b", base_url=f"{base}/v1", http_client=http), runtime=runtime, policy=policy
    )
    return claude, gpt


def test_FR24_a_fallback_through_one_local_server_takes_no_time():
    runtime, heard = world()
    provider = FaultProvider(CLAUDE_DOWN, clock=runtime.clock)
    claude, gpt = local(runtime, provider, is_async=True)

    @recover("assistant", Policy(circuit=None), runtime=runtime)
    async def answer(text):
        got = await claude.messages.create(model="claude-haiku-4-5", max_tokens=9, messages=MESSAGES)
        return got.content[0].text

    @answer.fallback
    async def by_gpt(text):
        return (await gpt.responses.create(model="gpt-5-mini", input=text)).output_text

    for _ in range(5):
        assert in_time(runtime, answer("hello")) == "You said: hello"
    began = runtime.clock.monotonic()
    assert in_time(runtime, answer("hello")) == "You said: hello"
    assert runtime.clock.monotonic() - began < 0.01
    assert not any(event.operation.startswith("openai") for event in heard.of(Retry))
    assert runtime.registry.get("provider:openai@127.0.0.1:4000")._breaker.failures == 0


def test_FR24_an_open_circuit_names_its_own_endpoint():
    runtime, _ = world()
    provider = FaultProvider(CLAUDE_DOWN, clock=runtime.clock)
    claude, gpt = local(runtime, provider, policy=Policy(wait_for_circuit=False))
    found = None
    for _ in range(20):
        with pytest.raises(anthropic.APIError) as caught:
            claude.messages.create(model="claude-haiku-4-5", max_tokens=9, messages=MESSAGES)
        if isinstance(found := caught.value, CircuitOpenError):
            break
    assert found.circuit.partition(":")[2].startswith("anthropic@127.0.0.1:4000")
    assert gpt.responses.create(model="gpt-5-mini", input="hello").output_text == "You said: hello"


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_FR24_two_ports_of_one_host_are_two_services(library):
    runtime, _ = world()

    def answer(request):
        return library.Response(503 if request.url.port == 8001 else 200)

    transport = RecoveringTransport(
        library.MockTransport(answer), runtime=runtime, policy=Policy(attempts=1, wait_for_circuit=False)
    )
    with library.Client(transport=transport) as client:
        with pytest.raises(CircuitOpenError) as caught:
            for _ in range(20):
                client.get("http://localhost:8001/")
        assert caught.value.circuit == "provider:localhost:8001"
        assert client.get("http://localhost:8002/").status_code == 200
        assert client.get("http://localhost/").status_code == 200
