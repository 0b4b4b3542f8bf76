"""Several keys, models or deployments that share one rate limit say so, and start at one pace."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest
from recover_kit import World

import holdfast.openai
from holdfast import Circuit, InvalidError, Policy, Runtime, Target
from holdfast.events import CircuitState
from holdfast.faults import Fault, HoldfastError
from holdfast.testing import FaultProvider, Midpoint, VirtualClock, run

GROUP = Policy(quota_group="org-1")
BODY: Any = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "hi"}]}


def limited(seconds: float) -> HoldfastError:
    return HoldfastError(Fault.of("PROVIDER_RATE_LIMITED", retry_after=seconds))


@pytest.mark.parametrize("policy", [GROUP, GROUP.replace(circuit=None), GROUP.replace(circuit=Circuit())])
@pytest.mark.parametrize("shared", [True, False])
def test_a_limit_that_one_of_them_meets_slows_the_others(shared: bool, policy: Policy) -> None:
    world = World(defaults=True)
    policy = policy if shared else policy.replace(quota_group=None)

    async def rejected() -> None:
        raise limited(8.0)

    async def answered() -> float:
        return world.now

    async def both() -> float:
        with pytest.raises(HoldfastError):
            await world.recover("azure-east", policy.replace(attempts=1)).call(rejected)
        return float(await world.recover("azure-west", policy).call(answered))

    assert world.run(both()) == (pytest.approx(8.0) if shared else 0.0)


def test_other_failures_of_one_of_them_do_not_concern_the_others() -> None:
    world = World(defaults=True)

    async def denied() -> None:
        raise HoldfastError(Fault.of("AUTH_INVALID_TOKEN"))

    async def calls() -> None:
        for _ in range(20):
            with pytest.raises(HoldfastError):
                await world.recover(Target(provider="gpt", credential="revoked"), GROUP).call(denied)
            await asyncio.sleep(2)

    world.run(calls())
    assert world.circuit_state("key:gpt/revoked") is CircuitState.OPEN
    assert world.circuit_state("quota:org-1") is CircuitState.CLOSED


def clients(runtime: Runtime, provider: FaultProvider, policy: Policy | None, *, pool: bool = False) -> list[Any]:
    made = [
        openai.AsyncOpenAI(
            api_key=f"key-{name}",
            base_url="http://provider.test/v1",
            http_client=httpx2.AsyncClient(transport=provider.transport()),
        )
        for name in "abc"
    ]
    if pool:
        return [holdfast.openai.recovering(*made, policy=policy, runtime=runtime)] * 3
    return [
        holdfast.openai.recovering(one, name=f"deployment-{place}", policy=policy, runtime=runtime)
        for place, one in enumerate(made)
    ]


def play(limit: str, policy: Policy | None, *, pool: bool = False) -> tuple[int, int, float]:
    """Make twenty calls with each of three clients; return the requests, those that were limited, and the seconds."""
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    provider = FaultProvider(clock=runtime.clock, limits=[limit])

    async def several(client: Any) -> None:
        for _ in range(20):
            await client.chat.completions.create(**BODY)

    async def all_of_them() -> None:
        await asyncio.gather(*map(several, clients(runtime, provider, policy, pool=pool)))

    run(all_of_them(), clock=runtime.clock)
    return provider.counters.received, sum(provider.counters.limited.values()), runtime.clock.monotonic()


@pytest.mark.parametrize("pool", [False, True], ids=["clients", "pool"])
def test_clients_of_one_group_share_what_is_announced(pool: bool) -> None:
    limit = "requests=60;burst=10;shared"
    together = play(limit, GROUP, pool=pool)
    assert together[0] <= 63
    assert together[1] <= 3, "a few before the announcements count down"
    assert together[2] <= 56
    if not pool:
        assert play(limit, None)[1] > 0, "without the option each believes what its own answers announce"


def test_clients_of_one_group_share_what_nobody_announces() -> None:
    limit = "requests=60;burst=10;shared;headers=no;retry_after=no"
    together, apart = play(limit, GROUP), play(limit, None)
    assert together[1] < apart[1]


def test_in_a_pool_of_one_group_a_limited_call_does_not_move_to_another_key() -> None:
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    provider = FaultProvider("429;retry-after=3, ok", clock=runtime.clock)
    client, *_ = clients(runtime, provider, GROUP, pool=True)
    run(client.chat.completions.create(**BODY), clock=runtime.clock)
    assert runtime.clock.monotonic() == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["", " ", 3])
def test_a_group_has_a_name(name: Any) -> None:
    with pytest.raises(InvalidError, match=r"policy\.quota_group"):
        Policy(quota_group=name)
