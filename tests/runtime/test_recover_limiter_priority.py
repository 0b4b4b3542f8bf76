"""`Policy.priority` at the limits that a policy names: urgent calls go first, no call waits for ever, and a reload holds at once."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from holdfast import HoldfastError, Policy, Runtime, recover
from holdfast.policies.rate_limit import StartQueue
from holdfast.testing import Midpoint, VirtualClock, run

LIMITS = [{"concurrency": 2}, {"per_second": 2.0}]


def world(limit):
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    log = []

    def of(priority):
        @recover("shop", Policy(priority=priority, circuit=None, patience=None, **limit), runtime=runtime)
        async def call(name):
            log.append((name, runtime.clock.monotonic() - began))
            await asyncio.sleep(1.0)

        return call

    began = runtime.clock.monotonic()
    return runtime, of, log


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_XR6_a_high_call_goes_before_the_low_ones_that_wait(limit):
    runtime, of, log = world(limit)
    low, high = of("low"), of("high")

    async def main():
        waiting = [asyncio.create_task(low(number)) for number in range(100)]
        await asyncio.sleep(3.2)
        await high("high")
        await asyncio.gather(*waiting)

    run(main(), clock=runtime.clock)
    assert dict(log)["high"] < 5.0, "and not after the 50 s of the low ones"
    lows = [name for name, _ in log if name != "high"]
    assert lows == sorted(lows), "the others keep their order"
    assert max(when for _, when in log) <= 51.0, "nobody else lost a start"


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_XR6_a_low_call_is_not_starved(limit):
    runtime, of, log = world(limit)
    low, high = of("low"), of("high")

    async def main():
        highs = [asyncio.create_task(high(number)) for number in range(8)]
        one = asyncio.create_task(low("low"))
        for number in range(600):
            highs.append(asyncio.create_task(high(number)))
            await asyncio.sleep(0.5)
        await asyncio.gather(one, *highs)

    run(main(), clock=runtime.clock)
    assert dict(log)["low"] <= 130.0, "a call that came two minutes earlier goes before a high one"


def test_XR6_starts_keep_their_distance_whatever_the_priorities():
    runtime, of, log = world({"per_second": 2.0})
    calls = [of(priority) for priority in ("low", "normal", "high")]

    async def main():
        tasks = []
        for number in range(60):
            tasks.append(asyncio.create_task(calls[number % 3](number)))
            if number % 7 == 3:
                tasks[number // 2].cancel()
            await asyncio.sleep(0.13)
        await asyncio.gather(*tasks, return_exceptions=True)

    run(main(), clock=runtime.clock)
    starts = [when for _, when in log]
    assert all(later - earlier > 0.499 for earlier, later in itertools.pairwise(starts))


def test_XR6_a_thread_waits_by_priority_too():
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    began = runtime.clock.monotonic()
    starts = []
    calls = {}
    for priority in ("low", "high"):

        @recover("shop", Policy(priority=priority, circuit=None, per_second=1.0), runtime=runtime)
        def call():
            starts.append(runtime.clock.monotonic() - began)

        calls[priority] = call
    for priority in ("low", "low", "high"):
        calls[priority]()
    assert starts == [0.0, 1.0, 2.0]


def test_XR6_a_start_only_moves_to_a_later_time():
    queue = StartQueue()
    low, other, high = queue.turn("low"), queue.turn("low"), queue.turn("high")
    assert (queue.join(low, 10.0), queue.join(other, 3.0)) == (10.0, 3.0), "the second got a start that was given back"
    assert queue.join(high, 11.0) == 3.0
    assert (queue.start_of(high), queue.start_of(low), queue.start_of(other)) == (3.0, 10.0, 11.0)


def test_XR6_a_call_that_is_delayed_beyond_its_deadline_is_rejected():
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    limits = {"per_second": 1.0, "circuit": None, "attempts": 1}

    @recover("shop", Policy(priority="low", deadline=2.5, timeout=1.0, **limits), runtime=runtime)
    async def low():
        return "low"

    @recover("shop", Policy(priority="high", **limits), runtime=runtime)
    async def high():
        return "high"

    async def main():
        await low()
        one = asyncio.create_task(low())
        await asyncio.sleep(0.1)
        await asyncio.gather(high(), high(), high())
        with pytest.raises(HoldfastError) as rejected:
            await one
        assert rejected.value.fault.code in ("SYS_RATE_LIMITED", "SYS_DEADLINE_EXCEEDED")

    run(main(), clock=runtime.clock)


@pytest.mark.parametrize("after", [1, 3])
def test_XR10_a_lower_concurrency_counts_the_calls_that_run(after):
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    runtime.configure(Policy(concurrency=6, circuit=None), {})
    running, most = [], []

    @recover("shop", runtime=runtime)
    async def call():
        running.append(1)
        most.append((runtime.clock.monotonic(), len(running)))
        await asyncio.sleep(5.0)
        running.pop()

    async def main():
        tasks = [asyncio.create_task(call()) for _ in range(9)]
        await asyncio.sleep(1.0)
        assert len(running) == 6
        runtime.configure(Policy(concurrency=after, circuit=None), {})
        tasks += [asyncio.create_task(call()) for _ in range(6)]
        reloaded = runtime.clock.monotonic()
        await asyncio.sleep(0.5)
        assert len(running) == 6, "none starts while more run than may"
        await asyncio.gather(*tasks)
        assert max(count for when, count in most if when > reloaded) == after

    run(main(), clock=runtime.clock)
    assert len(most) == 15


def test_XR10_a_higher_concurrency_wakes_those_that_wait():
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    runtime.configure(Policy(concurrency=1, circuit=None), {})
    running = []

    @recover("shop", runtime=runtime)
    async def call():
        running.append(1)
        await asyncio.sleep(5.0)

    async def main():
        tasks = [asyncio.create_task(call()) for _ in range(4)]
        await asyncio.sleep(1.0)
        runtime.configure(Policy(concurrency=3, circuit=None), {})
        tasks.append(asyncio.create_task(call()))
        await asyncio.sleep(0.5)
        assert len(running) == 3
        await asyncio.gather(*tasks)

    run(main(), clock=runtime.clock)
