"""What a budget is charged for attempts that failed: nothing where the service rejected them, an estimate where it may have worked."""

from __future__ import annotations

import httpx2
import pytest
from anthropic import Anthropic, APIStatusError
from recover_kit import World

from holdfast import Budget, Policy, Runtime, StreamCutError
from holdfast.anthropic import recovering
from holdfast.events import Failed
from holdfast.events.lines import LogLines
from holdfast.testing import Capture, FaultProvider, Midpoint, ScriptedHTTPError, VirtualClock, script

ASK = {"model": "claude-haiku-4-5", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}


def spent(steps: str, usd: float = 1.0):
    """What a budget shows after one call of a recovering client to a provider that plays these steps."""
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    provider = FaultProvider(steps, clock=runtime.clock)
    client = Anthropic(api_key="a", http_client=httpx2.Client(transport=provider.transport()))
    claude = recovering(client, runtime=runtime)
    with Budget(usd=usd, runtime=runtime) as budget:
        claude.messages.create(**ASK)
    return budget.spend(), provider


@pytest.mark.parametrize("status", [429, 503, 529])
def test_an_attempt_that_was_rejected_costs_nothing_but_an_attempt(status: int) -> None:
    plain, _ = spent("ok")
    after, provider = spent(f"{status}*6, ok")
    assert provider.counters.received == 7
    assert (after.usd, after.tokens, after.unknown) == (plain.usd, plain.tokens, 0)
    assert (after.attempts, after.recovery_attempts) == (7, 6)


def test_an_overload_does_not_use_up_a_budget_of_money() -> None:
    spend, provider = spent("529*6, ok", usd=0.0003)
    assert spend.usd < 0.0001
    assert provider.counters.received == 7


@pytest.mark.parametrize("step", ["500", "reset", "cut;after=0"])
def test_an_attempt_that_may_have_been_worked_on_is_estimated(step: str) -> None:
    plain, _ = spent("ok")
    after, _ = spent(f"{step}, ok")
    assert after.unknown == 1
    # Nothing of its answer was seen, so its input counts.
    assert plain.usd < after.usd < 2 * plain.usd


def test_a_call_that_never_reached_the_service_costs_nothing() -> None:
    world = World()
    with Budget(tokens=1000, estimate_tokens=10, runtime=world.runtime) as budget:
        assert world.recover("a").call(script("refused, ok:hi")) == "hi"
    assert (budget.spend().tokens, budget.spend().unknown) == (10, 1), "only the answer, which reports no usage"


def test_an_error_of_your_own_after_the_answer_is_estimated() -> None:
    world = World()

    def parse() -> None:
        raise ValueError("not JSON")

    with Budget(tokens=1000, estimate_tokens=10, runtime=world.runtime) as budget, pytest.raises(ValueError):
        world.recover("a").call(parse)
    assert budget.spend().tokens == 10


def test_the_line_of_a_call_that_the_budget_ended_says_so() -> None:
    world = World(defaults=True)
    lines, shown = LogLines(), Capture()
    world.runtime.on(shown)
    with Budget(attempts=4, runtime=world.runtime), pytest.raises(ScriptedHTTPError):
        world.recover("claude", Policy(circuit=None)).call(script("429*9"))
    written = [lines.of(event)[1] for event in shown]
    assert written[-1].startswith("claude failed after 4 attempts in ")
    assert "(PROVIDER_RATE_LIMITED, 429): the budget is spent; next to act: " in written[-1]
    (failed,) = shown.of(Failed)
    assert failed.reason == "budget"


def test_a_key_that_is_rejected_costs_nothing() -> None:
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    provider = FaultProvider("401", clock=runtime.clock)
    client = Anthropic(api_key="a", http_client=httpx2.Client(transport=provider.transport()))
    with Budget(usd=1, estimate_usd=0.1, runtime=runtime) as budget, pytest.raises(APIStatusError):
        recovering(client, runtime=runtime).messages.create(**ASK)
    assert (budget.spend().usd, budget.spend().attempts) == (0, 1)


def test_an_error_in_a_stream_that_had_begun_is_estimated() -> None:
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    provider = FaultProvider("sse-error;error=overloaded, ok", clock=runtime.clock)
    client = Anthropic(api_key="a", http_client=httpx2.Client(transport=provider.transport()))
    claude = recovering(client, runtime=runtime)
    budget = Budget(usd=1, estimate_usd=0.1, runtime=runtime)
    with budget, pytest.raises(StreamCutError), claude.messages.stream(**ASK) as stream:
        stream.until_done()
    assert (budget.spend().attempts, budget.spend().unknown) == (1, 1)
