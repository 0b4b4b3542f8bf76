"""A chain of models weighs the first one's prompt cache before another model answers (G17)."""

from __future__ import annotations

import asyncio

import anthropic
import msgspec
import pytest
from providers_kit import TOOL, World

from holdfast import Budget, Circuit, InvalidError, Policy
from holdfast.events import Fallback, Retry
from holdfast.events.lines import LogLines
from holdfast.policies.models.capabilities import Needs
from holdfast.policies.models.prices import LIST_PRICES, Prices
from holdfast.providers import Assistant, ModelChain, Request, User

LONG = "word " * 80_000
"""About 100,000 tokens."""
CACHED = Needs(levels={"promptCaching": "preferred"})
FIRM = Policy(profile="stud", attempts=1, circuit=None)


def first_request(text=LONG, needs=CACHED):
    # The provider repeats the last message, which is short.
    return Request(messages=(User(text=text), Assistant(text="Yes."), User(text="now")), needs=needs)


def then(request, reply, text="go on"):
    messages = (*request.messages, Assistant(text=reply.text), User(text=text))
    return Request(messages=messages, needs=request.needs, tools=request.tools, system=request.system)


class Pair:
    """Two providers and a chain over them: the first fails by the script, the second always answers."""

    def __init__(self, script, *, policy=FIRM, second="openai", name="gpt-5", **options):
        self.world, self.other = World(script), World()
        first = self.world.model("anthropic", name="claude-opus-5", policy=policy)
        self.chain = ModelChain(
            [first, self.other.model(second, name=name if second == "openai" else None)],
            runtime=self.world.runtime,
            **options,
        )

    def ask(self, request, *, streamed=False):
        return self.world.stream(self.chain, request)[-1] if streamed else self.world.exchange(self.chain, request)

    def two_turns(self, *, streamed=False, pause=0.0, request=None):
        request = request or first_request()
        reply = self.ask(request, streamed=streamed)

        async def wait():
            await asyncio.sleep(pause)

        self.world.run(wait())
        return self.ask(then(request, reply), streamed=streamed)

    @property
    def now(self):
        return self.world.runtime.clock.monotonic()


each_form = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@each_form
def test_G17_a_few_seconds_are_cheaper_than_a_cold_prompt_so_it_waits(streamed):
    pair = Pair("ok, 429;retry-after=4, ok")
    assert pair.two_turns(streamed=streamed).model == "claude-opus-5"
    assert (pair.world.received, pair.other.received) == (3, 0)
    assert pair.now == pytest.approx(4)
    (retry,) = pair.world.of(Retry)
    assert (retry.operation, retry.delay, retry.requested) == (pair.chain.name, 4, True)
    assert retry.why.startswith("a cold prompt costs 0.0")
    assert retry.why.endswith("and a wait of 4.0 s is worth 0.0400 USD")
    assert not pair.world.of(Fallback)


@each_form
def test_G17_a_minute_is_worth_more_than_a_cold_prompt_so_it_falls_back_and_says_what_it_costs(streamed):
    pair = Pair("ok, 429;retry-after=60, ok")
    assert pair.two_turns(streamed=streamed).model == "gpt-5"
    assert (pair.world.received, pair.other.received) == (2, 1)
    assert pair.now == 0
    (fell,) = pair.world.of(Fallback)
    # 100,000 tokens at 1.25 there, and at 0.50 from the cache here.
    assert fell.usd == pytest.approx(0.075, rel=0.05)
    assert fell.why.endswith("and a wait of 60.0 s is worth 0.6000 USD")


@pytest.mark.parametrize(("worth", "model"), [(0.001, "claude-opus-5"), (0.1, "gpt-5")])
def test_G17_what_a_second_is_worth_decides(worth, model):
    pair = Pair("ok, 429;retry-after=20, ok", usd_per_second=worth)
    assert pair.two_turns().model == model


def test_G17_None_never_waits_and_reports_no_cost():
    pair = Pair("ok, 429;retry-after=1, ok", usd_per_second=None)
    assert pair.two_turns().model == "gpt-5"
    (fell,) = pair.world.of(Fallback)
    assert (fell.usd, fell.why) == (None, "")


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("no price of the second model", {"second": "xai"}),
        ("no prices at all", {"prices": Prices()}),
    ],
)
def test_G17_without_prices_it_behaves_as_before(case, options):
    pair = Pair("ok, 429;retry-after=1, ok", **options)
    assert pair.two_turns().model in ("grok-4", "gpt-5")
    assert [event.usd for event in pair.world.of(Fallback)] == [None]


@pytest.mark.parametrize(
    ("case", "request_"),
    [
        ("a short prompt is not in the cache", first_request("hello")),
        ("no cache was wanted", first_request(needs=Needs())),
    ],
)
def test_G17_without_a_warm_cache_it_behaves_as_before(case, request_):
    pair = Pair("ok, 429;retry-after=1, ok")
    assert pair.two_turns(request=request_).model == "gpt-5"
    assert [event.usd for event in pair.world.of(Fallback)] == [None]


def test_G17_a_cache_that_has_expired_is_not_waited_for():
    pair = Pair("ok, 429;retry-after=1, ok")
    assert pair.two_turns(pause=301).model == "gpt-5"


def test_G17_a_cache_that_would_expire_during_the_wait_is_not_waited_for():
    pair = Pair("ok, 429;retry-after=10, ok", usd_per_second=0.0)
    assert pair.two_turns(pause=295).model == "gpt-5"


def test_G17_a_model_that_is_cheaper_even_when_it_is_cold_is_not_waited_for():
    pair = Pair("ok, 429;retry-after=1, ok", name="gpt-5-nano")
    assert pair.two_turns().model == "gpt-5-nano"
    (fell,) = pair.world.of(Fallback)
    assert fell.usd < 0
    assert "USD less than the warm cache" in fell.why


def test_G17_another_conversation_and_one_that_was_shortened_are_cold():
    pair = Pair("ok, 429;retry-after=1*3, ok")
    request = first_request()
    reply = pair.ask(request)
    assert pair.ask(first_request("other " + LONG)).model == "gpt-5"
    shortened = Request(messages=(request.messages[0], Assistant(text="So far:"), User(text="a summary")), needs=CACHED)
    assert pair.ask(shortened).model == "gpt-5"
    with_tools = msgspec.structs.replace(then(request, reply), tools=(TOOL,))
    assert pair.ask(with_tools).model == "gpt-5"
    assert pair.ask(then(request, reply)).model == "claude-opus-5"


def test_G17_waits_end_when_together_they_cost_more_than_a_cold_prompt():
    pair = Pair("ok, 429;retry-after=2*50")
    request = first_request()
    reply = pair.ask(request)
    assert pair.ask(then(request, reply)).model == "gpt-5"
    delays = [event.delay for event in pair.world.of(Retry)]
    (fell,) = pair.world.of(Fallback)
    assert delays == [2.0] * len(delays)
    assert sum(delays) * 0.01 <= fell.usd < (sum(delays) + 2) * 0.01
    assert pair.world.received == 1 + len(delays) + 1


def test_G17_an_open_circuit_that_says_when_it_reopens_is_waited_for():
    circuit = Circuit(failures=1, rate=None, open_for=3)
    pair = Pair("ok, 500, ok", policy=Policy(profile="stud", attempts=1, circuit=circuit))
    request = first_request()
    reply = pair.ask(request)
    with pytest.raises(anthropic.InternalServerError):
        # Not through the chain, in which the second model would answer from now on: a 500 does not say how long it lasts.
        pair.world.exchange(pair.chain.models[0], request)
    assert pair.ask(then(request, reply)).model == "claude-opus-5"
    assert pair.now == pytest.approx(3, abs=1)


def test_G17_the_budget_and_its_deadline_are_kept():
    pair = Pair("ok, 429;retry-after=5, ok")
    request = first_request()
    reply = pair.ask(request)

    async def ask():
        with Budget(seconds=3, runtime=pair.world.runtime):
            return await pair.chain.exchange(then(request, reply))

    assert pair.world.run(ask()).model == "gpt-5"
    assert pair.now == 0


def test_G17_a_cancelled_wait_asks_nobody():
    pair = Pair("ok, 429;retry-after=4, ok")
    request = first_request()
    reply = pair.ask(request)

    async def ask():
        async with asyncio.timeout(2):
            await pair.chain.exchange(then(request, reply))

    with pytest.raises(TimeoutError):
        pair.world.run(ask())
    assert (pair.world.received, pair.other.received) == (2, 0)


def test_G17_the_log_says_what_was_chosen():
    pair = Pair("ok, 429;retry-after=4, ok, ok, 429;retry-after=60")
    pair.two_turns()
    pair.two_turns()
    lines = [LogLines().of(event)[1] for event in (*pair.world.of(Retry), *pair.world.of(Fallback))]
    assert "; a cold prompt costs 0.0" in lines[0]
    assert "falls back from primary to openai/gpt-5" in lines[1]
    assert "a wait of 60.0 s is worth 0.6000 USD" in lines[1]


def test_G17_the_provider_of_the_tests_reads_and_stores_prompts_as_anthropic_does():
    world = World()
    model = world.model("anthropic")
    request = first_request()
    first = world.exchange(model, request)
    second = world.exchange(model, then(request, first))
    assert first.usage.cached == 0
    assert first.usage.written > 99_000
    assert second.usage.cached == first.usage.written
    assert 0 < second.usage.written < 100, "the last messages"
    streamed = world.stream(model, then(request, first))[-1]
    assert streamed.usage.cached == second.usage.cached + second.usage.written


def test_options_are_checked():
    model = World().model("openai")
    with pytest.raises(InvalidError, match=r"chain.usd_per_second"):
        ModelChain([model], usd_per_second=-1)
    assert LIST_PRICES.knows("gpt-5")
