"""Under Trio an async recovery raises an error that says what is supported."""

from __future__ import annotations

import pytest
import trio

from holdfast import Backoff, Budget, Hedge, InvalidError, Policy, Runtime, recover


@pytest.mark.parametrize(
    "policy",
    [Policy(), Policy(timeout=None, patience=None), Policy(timeout=None, patience=None, concurrency=1)],
    ids=["a time limit", "a wait before a retry", "a place"],
)
def test_XR10_a_coroutine_that_trio_runs_gets_a_typed_error(policy):
    runtime = Runtime()
    taken = []

    @recover("claude", policy, runtime=runtime)
    async def call():
        if len(taken) == 1 and policy.concurrency:
            return await call()
        taken.append(1)
        if policy.concurrency:
            return await call()
        raise ConnectionResetError(104, "reset")

    with pytest.raises(InvalidError, match=r"an asyncio event loop .* got a coroutine outside of asyncio"):
        trio.run(call)


def twice_a_second():
    @recover("claude", Policy(timeout=None, patience=None, per_second=1), runtime=Runtime())
    async def call():
        return "ok"

    async def both():
        await call()
        await call()

    return both


def hedged():
    @recover("claude", Policy(timeout=None, patience=None, hedge=Hedge(after=0.1)), effect="read", runtime=Runtime())
    async def call():
        return "ok"

    return call


def without_delay():
    policy = Policy(timeout=None, patience=None, attempts=3, backoff=Backoff(initial=0, cap=0))

    @recover("claude", policy, runtime=Runtime())
    async def call():
        raise ConnectionResetError(104, "reset")

    return call


def under_a_money_budget():
    @recover("claude-haiku-4-5", Policy(timeout=None, patience=None), runtime=Runtime())
    async def call(**request):
        return "ok"

    async def main():
        with Budget(usd=1.0):
            await call(model="claude-haiku-4-5", max_tokens=10, messages=[{"role": "user", "content": "hi"}])

    return main


@pytest.mark.parametrize("make", [twice_a_second, hedged, without_delay, under_a_money_budget])
def test_XR10_every_wait_of_a_recovery_says_so_under_trio(make):
    with pytest.raises(InvalidError, match="a coroutine outside of asyncio"):
        trio.run(make())


def test_XR10_a_sync_function_recovers_in_a_thread_of_trio():
    calls = []

    @recover("claude", Policy(), runtime=Runtime())
    def call():
        calls.append(1)
        return "ok"

    async def main():
        return await trio.to_thread.run_sync(call)

    assert trio.run(main) == "ok"
