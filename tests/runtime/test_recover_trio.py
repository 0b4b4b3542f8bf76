"""Under Trio an async recovery raises an error that says what is supported."""

from __future__ import annotations

import pytest
import trio

from holdfast import InvalidError, Policy, Runtime, recover


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


def test_XR10_a_sync_function_recovers_in_a_thread_of_trio():
    calls = []

    @recover("claude", Policy(), runtime=Runtime())
    def call():
        calls.append(1)
        return "ok"

    async def main():
        return await trio.to_thread.run_sync(call)

    assert trio.run(main) == "ok"
