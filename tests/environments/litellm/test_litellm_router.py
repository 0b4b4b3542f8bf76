"""A `Router` that recovers: its own retries and fallbacks are off, its groups are called as before."""

from __future__ import annotations

import asyncio
import inspect

import litellm
import pytest
from litellm_kit import ASKED

from holdfast import Policy, StreamCutError, fault_of
from holdfast.events import Fallback
from holdfast.litellm import RecoveryWarning, recovering

pytest_plugins = ["litellm_kit"]


def group(name, provider, **more):
    params = {"model": "openai/gpt-5", "api_base": provider.openai_url, "api_key": "test", **more}
    return {"model_name": name, "litellm_params": params}


def awaited(answer):
    async def waiting():
        return await answer

    return asyncio.run(waiting()) if inspect.isawaitable(answer) else answer


each_method = pytest.mark.parametrize("method", ["completion", "acompletion"])


@each_method
def test_one_attempt_is_one_request(method, stage):
    provider = stage("503, 529, ok")
    router = recovering(litellm.Router(model_list=[group("chat", provider)]), policy=Policy(attempts=4))
    assert type(router) is litellm.Router
    answer = awaited(getattr(router, method)(model="chat", **ASKED))
    assert answer.choices[0].message.content == "You said: hello"
    assert provider.counters.received == 3


@pytest.mark.parametrize("method", ["responses", "aresponses", "atext_completion"])
def test_FI11_its_other_calls_recover_too(method, stage):
    provider = stage("503, 529, ok")
    router = recovering(litellm.Router(model_list=[group("chat", provider)], num_retries=3), policy=Policy(attempts=4))
    asked = {"prompt": "hello"} if method == "atext_completion" else {"input": "hello"}
    awaited(getattr(router, method)(model="chat", **asked))
    assert provider.counters.received == 3


@each_method
@pytest.mark.parametrize(
    "own",
    [{}, {"num_retries": 3}, {"retry_policy": {"InternalServerErrorRetries": 3}}],
    ids=["default", "number", "policy"],
)
@pytest.mark.parametrize("deployment", [{}, {"num_retries": 2}, {"max_retries": 2}], ids=["", "num", "max"])
def test_retries_of_router_deployment_and_client_are_off(method, own, deployment, stage):
    provider = stage("500, loop")
    router = recovering(
        litellm.Router(model_list=[group("chat", provider, **deployment)], **own), policy=Policy(attempts=2)
    )
    with pytest.raises(litellm.InternalServerError) as caught:
        awaited(getattr(router, method)(model="chat", **ASKED))
    assert fault_of(caught.value).code == "PROVIDER_INTERNAL_ERROR"
    assert provider.counters.received == 2


@each_method
def test_our_chain_answers_where_its_fallbacks_would(method, stage, heard):
    down, up = stage("529, loop"), stage("ok")
    groups = [group("chat", down), group("spare", up)]
    with pytest.warns(RecoveryWarning, match="the Router's fallbacks are off"):
        router = recovering(
            litellm.Router(model_list=groups, fallbacks=[{"chat": ["spare"]}]),
            policy=Policy(attempts=2),
            fallbacks=["spare"],
        )
    answer = awaited(getattr(router, method)(model="chat", **ASKED))
    assert answer.choices[0].message.content == "You said: hello"
    assert (down.counters.received, up.counters.received) == (2, 1)
    assert [event.to for event in heard.of(Fallback)] == ["spare"]


def test_its_streams_recover_before_the_first_content_and_are_cut_after_it(stage):
    provider = stage("cut;after=0, ok, cut;after=2")
    router = recovering(litellm.Router(model_list=[group("chat", provider)]))
    words = [chunk.choices[0].delta.content or "" for chunk in router.completion(model="chat", stream=True, **ASKED)]
    assert "".join(words) == "You said: hello"
    assert provider.counters.received == 2

    async def reading():
        async for _ in await router.acompletion(model="chat", stream=True, **ASKED):
            pass

    with pytest.raises(StreamCutError):
        asyncio.run(reading())
    assert provider.counters.received == 3


def test_each_group_has_its_circuit(stage, runtime):
    provider = stage("ok, loop")
    router = recovering(litellm.Router(model_list=[group("chat", provider), group("spare", provider)]), name="team")
    router.completion(model="chat", **ASKED)
    router.completion(model="spare", **ASKED)
    assert {line.name for line in runtime.registry} == {"provider:team/chat", "provider:team/spare"}


def test_the_router_that_was_given_is_as_it_was(stage):
    given = litellm.Router(model_list=[group("chat", stage("ok"))])
    recovering(given)
    assert "completion" not in vars(given)
    assert given.num_retries == 2
