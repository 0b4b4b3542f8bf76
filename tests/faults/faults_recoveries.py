"""Failures that recovering itself reports: what protects, refuses and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast import Circuit, Fault, HoldfastError, Policy, Quota, Runtime, fault_of, recover
from holdfast.events import RetryDenied
from holdfast.testing import VirtualClock, run, script

CALM = Circuit(failures=100, rate=None)


def raised(call: Callable[[], Any]) -> Fault:
    try:
        call()
    except Exception as error:
        return fault_of(error)
    raise AssertionError("this was supposed to fail")


def _runtime() -> Runtime:
    return Runtime(clock=VirtualClock())


def circuit_is_open() -> Fault:
    recovery = recover(
        "claude", Policy(attempts=1, circuit=Circuit(failures=1), wait_for_circuit=False), runtime=_runtime()
    )
    raised(lambda: recovery.call(script("503")))
    return raised(lambda: recovery.call(script("ok")))


def deadline_passes() -> Fault:
    async def hang() -> None:
        await asyncio.sleep(100)

    return raised(lambda: run(recover("claude", Policy(timeout=10, deadline=10)).call(hang)))


def stream_falls_silent() -> Fault:
    async def tokens() -> AsyncIterator[str]:
        yield "one"
        await asyncio.sleep(100)

    async def read() -> None:
        async with recover("claude").stream(tokens, idle=5)() as stream:
            async for _ in stream:
                pass

    return raised(lambda: run(read()))


def unsafe_call_may_have_happened() -> Fault:
    return raised(lambda: recover("tool:deploy", effect="unsafe", runtime=_runtime()).call(script("reset")))


def places_are_taken() -> Fault:
    async def crowd() -> None:
        recovery = recover("claude", Policy(attempts=1, concurrency=1, waiting=0, circuit=CALM))
        first = asyncio.ensure_future(recovery.call(asyncio.sleep, 5))
        await asyncio.sleep(0)
        try:
            await recovery.call(asyncio.sleep, 5)
        finally:
            await first

    return raised(lambda: run(crowd()))


def pace_is_reached() -> Fault:
    recovery = recover("claude", Policy(attempts=1, per_second=0.1, timeout=5, deadline=5), runtime=_runtime())
    recovery.call(script("ok"))
    return raised(lambda: recovery.call(script("ok")))


def retries_have_used_their_share() -> Fault:
    """The caller sees the provider's error; an event names the rule that allowed no other attempt (R35)."""
    denied: list[RetryDenied] = []
    runtime = _runtime()
    runtime.on(denied.append, RetryDenied)
    policy = Policy(retry_quota=Quota(share=0, floor=0), circuit=CALM)
    raised(lambda: recover("claude", policy, runtime=runtime).call(script("503")))
    return Fault.of(denied[0].because)


def every_way_fails() -> Fault:
    """The primary's error is raised; the notification reports that no fallback is left (S1-24)."""
    notified: list[Fault] = []

    @recover("claude", Policy(attempts=1), runtime=_runtime())
    def answer() -> str:
        raise ConnectionRefusedError(111, "Connection refused")

    @answer.fallback
    def by_another() -> str:
        raise HoldfastError(Fault.of("PROVIDER_UNAVAILABLE"))

    answer.notify(notified.append)
    raised(answer)
    return notified[0]
