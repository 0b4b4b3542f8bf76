"""`Policy(hedge=…)` on recovering clients: a late answer gets a second request, the first answer wins."""

from __future__ import annotations

import asyncio

import pytest
from clients_forms import WHOLE, client_for, recovering, text_of
from clients_kit import completion, message
from httpx2 import Client, HTTPTransport, MockTransport

from holdfast import Hedge, Policy, RecoveryWarning, Runtime
from holdfast.httpx import RecoveringTransport
from holdfast.policies.models.endpoints import is_model_endpoint
from holdfast.testing import Midpoint, VirtualClock, run

HEDGED = Policy(hedge=Hedge(after=2.0))


class Slow:
    """The first request takes a minute, all others a second."""

    def __init__(self, answer):
        self.answer = answer
        self.began = 0
        self.cancelled = 0

    async def __call__(self, _request):
        self.began += 1
        try:
            await asyncio.sleep(60.0 if self.began == 1 else 1.0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.answer()


@pytest.mark.parametrize("form", [WHOLE["messages"], WHOLE["chat"]], ids=lambda form: form.host)
def test_XR9_a_late_answer_of_a_client_is_hedged(form):
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    slow = Slow(message() if form.host == "anthropic" else completion())
    client = recovering(form, client_for(form, MockTransport(slow), is_async=True), policy=HEDGED, runtime=runtime)

    async def call():
        return await form.begin(client)

    assert text_of(run(call(), clock=runtime.clock)) == "hi"
    assert (slow.began, slow.cancelled) == (2, 1)
    assert runtime.clock.monotonic() == pytest.approx(3.0), "2 s until the second request, 1 s for its answer"


def test_XR9_a_request_that_creates_something_is_not_hedged():
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    slow = Slow(message())
    form = WHOLE["messages"]
    client = recovering(form, client_for(form, MockTransport(slow), is_async=True), policy=HEDGED, runtime=runtime)

    async def call():
        return await client.messages.batches.create(requests=[])

    run(call(), clock=runtime.clock)
    assert slow.began == 1


@pytest.mark.parametrize("form", [WHOLE["messages"], WHOLE["chat"]], ids=lambda form: form.host)
def test_XR9_a_sync_client_warns_that_it_cannot_be_hedged(form):
    with pytest.warns(RecoveryWarning, match="`hedge` has no effect on .*only async calls"):
        recovering(form, client_for(form, MockTransport(lambda _: message()()), is_async=False), policy=HEDGED)


def test_XR9_a_sync_transport_warns_that_it_cannot_be_hedged():
    with pytest.warns(RecoveryWarning, match="`hedge` has no effect on RecoveringTransport"):
        Client(transport=RecoveringTransport(HTTPTransport(), policy=HEDGED))


@pytest.mark.parametrize(
    ("path", "host", "is_model"),
    [
        ("/v1/messages", None, True),
        ("/v1/messages", "api.anthropic.com", True),
        ("/v1/messages", "api.nexmo.com", False),
        ("/channels/1/messages", "discord.com", False),
        ("/v1/messages/batches", None, False),
        ("/v1/chat/completions", "gateway.internal", True),
        ("/openai/deployments/x/chat/completions?api-version=1", "a.openai.azure.com", True),
        ("/v1beta/models/gemini:generateContent", "generativelanguage.googleapis.com", True),
        ("/model/anthropic.claude/invoke", "bedrock-runtime.eu-west-1.amazonaws.com", True),
        ("/v1/files", None, False),
        ("/orders", "shop.test", False),
        ("/surveys/1/responses", "survey.test", False),
    ],
)
def test_XR9_addresses_of_models(path, host, is_model):
    assert is_model_endpoint(path, host) is is_model
