"""Models by name: which provider, which key, which client, and when the client is made and closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import sys
import warnings
from pathlib import Path

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import HoldfastError, InvalidError, Policy, Runtime, fault_of
from holdfast.agents.models import _ALIASES, NamedModel, model_of, opened
from holdfast.events import Fallback
from holdfast.extras import MissingExtraError
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.providers import ModelChain, Offers, Reply, Request, User
from holdfast.testing import Capture
from holdfast.testing.provider import serve_in_thread

ROOT = Path(__file__).parents[2]
QUESTION = Request(messages=(User(text="hello"),))
NAMES = {
    "claude-sonnet-4-5": "anthropic/claude-sonnet-4-5",
    "anthropic/claude-opus-5": "anthropic/claude-opus-5",
    "openai/gpt-5": "openai/gpt-5",
    "gpt-5": "openai/gpt-5",
    "o3": "openai/o3",
    "chatgpt-4o-latest": "openai/chatgpt-4o-latest",
    "xai/grok-4": "xai/grok-4",
    "grok-4": "xai/grok-4",
    "claude-sonnet": "anthropic/claude-sonnet-5-5",
    "anthropic/claude-sonnet": "anthropic/claude-sonnet-5-5",
    " gpt-5-mini ": "openai/gpt-5-mini",
    "claude-nova-7": "anthropic/claude-nova-7",
    "anthropic/claude-mythos-preview": "anthropic/claude-mythos-preview",
    "openai/some/model-of-my-server": "openai/some/model-of-my-server",
}


class Own:
    name = "acme/one"
    offers = Offers()

    async def exchange(self, request):
        return Reply(text="from acme", model="one")

    def stream(self, request, *, after_first="raise"):
        raise NotImplementedError


@pytest.fixture
def provider(monkeypatch):
    """A provider on a socket, found through the environment as the SDKs read it."""
    with serve_in_thread() as provider:
        for name, value in provider.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XAI_API_KEY", "xai-key")
        monkeypatch.setenv("XAI_BASE_URL", provider.openai_url)
        yield provider


@pytest.fixture
def no_keys(monkeypatch, tmp_path):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "XAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    # The SDK also looks for profiles in the home folder of whoever runs the tests.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize(("name", "full"), NAMES.items())
def test_a_name_or_its_beginning_decides_the_provider(name, full):
    model = model_of(name)
    assert isinstance(model, NamedModel)
    assert model.name == full


@pytest.mark.parametrize("name", LIST_PRICES.table)
def test_every_model_that_has_a_price_can_be_had_by_its_name(name):
    assert model_of(name).name.endswith(f"/{name}")


def test_an_alias_is_a_model_with_a_date_of_its_own_and_its_capabilities_are_known():
    for model in _ALIASES.values():
        assert model_of(model).offers.tool_calling


@pytest.mark.parametrize("name", _ALIASES)
def test_every_alias_has_a_price(name):
    """A budget of money would not let an agent call it."""
    assert LIST_PRICES.knows(_ALIASES[name])


def test_every_model_that_the_page_names_has_a_price():
    page = (ROOT / "docs/how-to/choose-models.md").read_text()
    named = set(re.findall(r"[\"`](?:(?:anthropic|openai|xai)/)?((?:claude|gpt|grok|o\d)(?:-[\w.-]+)?)[\"`]", page))
    # The page also shows a name that is rejected.
    models = {_ALIASES.get(name, name) for name in named - {"claude-sonet-4-5"}}
    assert len(models) > 5
    assert [name for name in sorted(models) if not LIST_PRICES.knows(name)] == []


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("claude-sonet", "did you mean claude-sonnet"),
        ("claude-sonet-4-5", "claude-sonnet-4-5"),
        ("cluade-sonnet-4-5", "did you mean claude-sonnet-4-5"),
        ("anthropic:claude-opus-5", "did you mean claude-opus-5"),
        ("claude-sonnet-latest", "as in anthropic/claude-sonnet-latest"),
        ("gtp-5", "did you mean gpt-5"),
        ("llama", "such as claude-haiku"),
        ("", "such as claude-haiku"),
        ("openrouter/gpt-5", "anthropic/…, openai/…, xai/…"),
        ("anthropic/", "anthropic/…, openai/…, xai/…"),
    ],
)
def test_a_name_that_is_not_known_is_rejected_with_similar_ones(name, near):
    with pytest.raises(InvalidError) as raised:
        model_of(name)
    assert near in raised.value.fault.message


@pytest.mark.parametrize("wrong", [None, 5, [], (), {}, object(), [None], ["gpt-5", 7]])
def test_what_is_no_name_and_no_model_is_rejected(wrong):
    with pytest.raises(InvalidError, match="model: expected"):
        model_of(wrong)


@given(st.text(max_size=30))
def test_any_text_is_a_model_or_an_invalid_error(name):
    with contextlib.suppress(InvalidError):
        assert model_of(name).name


def test_a_model_is_taken_as_it_is_and_several_are_a_chain():
    own = Own()
    assert model_of(own) is own
    assert model_of([own]) is own
    assert model_of(["gpt-5"]).name == "openai/gpt-5"
    chain = model_of(["claude-haiku-4-5", own, "gpt-5"])
    assert isinstance(chain, ModelChain)
    assert chain.name == "anthropic/claude-haiku-4-5 > acme/one > openai/gpt-5"
    assert chain.models[1] is own


@pytest.mark.parametrize("name", ["claude-haiku-4-5", "gpt-5-mini", "xai/grok-4"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_the_client_is_made_from_the_environment(provider, name, streamed):
    model = model_of(name, runtime=Runtime())

    async def ask():
        if not streamed:
            return await model.exchange(QUESTION)
        async with model.stream(QUESTION) as parts:
            return [part async for part in parts][-1]

    assert asyncio.run(ask()).text == "You said: hello"
    (request,) = provider.requests
    assert request.model == name.rpartition("/")[2]


def test_xai_never_gets_the_key_of_openai(no_keys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    with pytest.raises(HoldfastError, match="set the environment variable XAI_API_KEY"):
        asyncio.run(model_of("xai/grok-4").exchange(QUESTION))


@pytest.mark.parametrize(
    ("name", "variable"),
    [("claude-haiku-4-5", "ANTHROPIC_API_KEY"), ("gpt-5", "OPENAI_API_KEY"), ("grok-4", "XAI_API_KEY")],
)
def test_without_a_key_the_error_names_the_variable_and_only_when_it_is_used(no_keys, name, variable):
    model = model_of(name)
    with pytest.raises(HoldfastError, match=f"needs a key: set the environment variable {variable}") as raised:
        asyncio.run(model.exchange(QUESTION))
    assert raised.value.fault.code == "AUTH_FAILED"
    assert raised.value.fault.context["variable"] == variable


@pytest.mark.parametrize(("name", "package"), [("claude-haiku-4-5", "anthropic"), ("gpt-5", "openai")])
def test_without_the_package_the_error_says_what_to_install(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"needs the {package} package: pip install '\.\[{package}\]'"):
        asyncio.run(model_of(name).exchange(QUESTION))


def test_a_model_without_a_key_is_replaced_by_the_next_one(provider, monkeypatch, tmp_path):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    runtime, heard = Runtime(), Capture()
    runtime.on(heard)
    chain = model_of(["claude-haiku-4-5", "gpt-5"], runtime=runtime)

    async def ask():
        async with opened(chain):
            return await chain.exchange(QUESTION)

    assert asyncio.run(ask()).model == "gpt-5"
    (fell,) = [event for event in heard.events if isinstance(event, Fallback)]
    assert (fell.to, fell.fault.code) == ("openai/gpt-5", "AUTH_FAILED")


def test_inside_opened_one_client_serves_all_requests_and_then_it_is_closed(provider):
    model = model_of("claude-haiku-4-5", runtime=Runtime())

    async def ask():
        async with opened(model), opened(model_of([model])):
            await asyncio.gather(*(model.exchange(QUESTION) for _ in range(3)))
            (client,) = model._open.values()
            sdk = client.sdk
            await model.exchange(QUESTION)
            assert not sdk.is_closed()
            assert [one.sdk for one in model._open.values()] == [sdk]
        assert sdk.is_closed()
        assert not model._open

    asyncio.run(ask())
    assert len(provider.requests) == 4


def test_a_client_is_closed_after_a_failure_and_after_a_cancellation(provider):
    model = model_of("claude-haiku-4-5", runtime=Runtime())

    async def ask():
        async with opened(model):
            await model.exchange(QUESTION)
            raise KeyError("a defect of the caller")

    for end in (ask, lambda: asyncio.wait_for(_forever(model), 0.2)):
        with pytest.raises((KeyError, TimeoutError)):
            asyncio.run(_await(end))
        assert not dict(model._open)


def test_one_model_works_in_several_event_loops_one_after_the_other(provider):
    model = model_of("gpt-5", runtime=Runtime())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert asyncio.run(model.exchange(QUESTION)).text == "You said: hello"
        gc.collect()


def test_two_keys_have_two_circuits(provider, monkeypatch):
    runtime = Runtime()
    model = model_of("claude-haiku-4-5", runtime=runtime)
    for key in ("first-key", "second-key"):
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
        asyncio.run(model.exchange(QUESTION))
    assert len([line.name for line in runtime.registry if line.name.startswith("key:")]) == 2


def test_the_policy_is_kept_and_the_sdks_own_error_comes_through(provider, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    model = model_of("claude-haiku-4-5", policy=Policy(attempts=1), runtime=Runtime())
    with pytest.raises(anthropic.APIConnectionError) as raised:
        asyncio.run(model.exchange(QUESTION))
    assert len(fault_of(raised.value).attempts) == 1


async def _await(make):
    return await make()


async def _forever(model):
    async with opened(model):
        await model.exchange(QUESTION)
        await asyncio.Event().wait()
