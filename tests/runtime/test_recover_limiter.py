"""The limiter of a target: how many calls run at once and how fast they start."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from recover_kit import LOOSE, Flaky, World, assert_places_free, settled

from holdfast import (
    HoldfastError,
    InvalidError,
    Policy,
    Runtime,
    Tries,
    recover,
)


def test_never_more_calls_at_once_than_there_are_places() -> None:
    world = World()
    running = most = 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    async def main() -> None:
        recovery = world.recover("a", Policy(concurrency=5, patience=None))
        await asyncio.gather(*(recovery.call(work) for _ in range(50)))

    world.run(main())
    assert (most, world.now) == (5, 10)
    assert_places_free(world.state("provider:a"))


def test_R14_fifty_threads_share_five_places() -> None:
    runtime = Runtime(waits=False)
    recovery = recover("a", Policy(concurrency=5, circuit=LOOSE), runtime=runtime)
    lock = threading.Lock()
    running = most = done = 0

    def work() -> None:
        nonlocal running, most, done
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1
            done += 1

    threads = [threading.Thread(target=recovery.call, args=(work,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == 50
    assert most <= 5
    state = runtime.registry.known("provider:a")
    assert state is not None
    assert_places_free(state)
    assert state._breaker.successes == 50


def test_R69_a_cancelled_waiter_frees_its_place_and_the_next_runs() -> None:
    world = World()
    order: list[str] = []

    async def work(name: str) -> None:
        order.append(name)
        await asyncio.sleep(5)

    async def main() -> None:
        recovery = world.recover("a", Policy(concurrency=1, patience=None))
        tasks = {name: asyncio.create_task(recovery.call(work, name)) for name in ("first", "second", "third")}
        await asyncio.sleep(1)
        tasks["second"].cancel()
        await asyncio.wait(tasks.values())
        assert tasks["second"].cancelled()
        assert world.now == 10

    world.run(main())
    assert order == ["first", "third"]
    assert_places_free(world.state("provider:a"))
    assert settled(world.state("provider:a")) == 3


def test_R69_a_waiter_cancelled_as_it_is_woken_hands_the_place_on() -> None:
    world = World()
    order: list[str] = []

    async def work(name: str) -> None:
        order.append(name)
        await asyncio.sleep(5)

    async def main() -> None:
        recovery = world.recover("a", Policy(concurrency=1, patience=None))
        tasks = {name: asyncio.create_task(recovery.call(work, name)) for name in ("first", "second", "third")}
        await asyncio.sleep(0)
        # In the very turn in which the first ends and wakes the second.
        asyncio.get_running_loop().call_at(5, tasks["second"].cancel)
        await asyncio.wait(tasks.values())

    world.run(main())
    assert order == ["first", "third"]
    assert_places_free(world.state("provider:a"))


def test_a_full_queue_rejects_and_is_no_failure_of_the_callee() -> None:
    world = World()

    async def main() -> list[Any]:
        recovery = world.recover("a", Policy(concurrency=1, waiting=1, attempts=1))
        return await asyncio.gather(*(recovery.call(Flaky(takes=5).acall) for _ in range(3)), return_exceptions=True)

    first, second, third = world.run(main())
    assert (first, second) == ("ok", "ok")
    assert isinstance(third, HoldfastError)
    assert third.fault.code == "SYS_BULKHEAD_FULL"
    assert world.state("provider:a")._breaker.failures == 0
    assert_places_free(world.state("provider:a"))


def test_R71_waiting_0_lets_no_call_wait() -> None:
    world = World()

    async def main() -> list[Any]:
        recovery = world.recover("a", Policy(concurrency=1, waiting=0, attempts=1))
        return await asyncio.gather(*(recovery.call(Flaky(takes=5).acall) for _ in range(2)), return_exceptions=True)

    assert [type(end) for end in world.run(main())] == [str, HoldfastError]


@pytest.mark.parametrize("form", ["sync", "async"])
def test_waiting_for_a_place_ends_with_the_deadline(form: str) -> None:
    world = World()
    policy = Policy(concurrency=1, deadline=0.01, timeout=None)
    recovery = world.recover("a", policy)
    limiter = recovery._plan.limiter
    assert limiter is not None
    limiter._places.acquire()  # type: ignore[union-attr] # another call holds the only place
    with pytest.raises(HoldfastError) as failed:
        recovery.call(Flaky()) if form == "sync" else world.run(recovery.call(Flaky().acall))
    assert failed.value.fault.code == "SYS_BULKHEAD_FULL"
    limiter.release_added()
    assert_places_free(world.state("provider:a"))


def test_calls_start_at_the_pace_and_no_faster() -> None:
    world = World()
    starts: list[float] = []

    async def work() -> None:
        starts.append(world.now)

    async def main() -> None:
        recovery = world.recover("a", Policy(per_second=2, patience=None))
        await asyncio.gather(*(recovery.call(work) for _ in range(5)))

    world.run(main())
    assert starts == pytest.approx([0, 0.5, 1, 1.5, 2])


@pytest.mark.parametrize("form", ["async", "sync"])
def test_FR21_a_burst_starts_at_once_after_a_quiet_time(form: str) -> None:
    world = World()
    starts: list[float] = []
    recovery = world.recover("a", Policy(per_second=2, burst=3, deadline=None))

    async def work() -> None:
        starts.append(world.now)

    async def main() -> None:
        await asyncio.gather(*(recovery.call(work) for _ in range(5)))
        await asyncio.sleep(10)
        await asyncio.gather(*(recovery.call(work) for _ in range(4)))

    if form == "async":
        world.run(main())
        assert starts == pytest.approx([0, 0, 0, 0.5, 1, 11, 11, 11, 11.5])
    else:
        for _ in range(5):
            recovery.call(lambda: starts.append(world.now))
        assert starts == pytest.approx([0, 0, 0, 0.5, 1])


def test_FR21_of_two_bursts_for_one_target_the_smaller_holds() -> None:
    world = World()
    starts: list[float] = []
    policies = [Policy(per_second=2, burst=3, deadline=None), Policy(per_second=2, deadline=None)]
    recoveries = [world.recover("a", policy) for policy in policies]
    for recovery in recoveries:
        recovery.call(lambda: starts.append(world.now))
    assert starts == pytest.approx([0, 0.5])


def test_FR21_a_burst_needs_a_rate() -> None:
    with pytest.raises(InvalidError, match=r"policy\.burst: expected policy\.per_second beside it"):
        Policy(burst=3)
    with pytest.raises(InvalidError, match=r"policy\.burst"):
        Policy(per_second=2, burst=0)


def test_a_start_beyond_the_deadline_is_rejected_with_the_seconds_to_wait() -> None:
    world = World()
    recovery = world.recover("a", Policy(per_second=0.1, deadline=5, timeout=None, attempts=1))
    recovery.call(Flaky())
    with pytest.raises(HoldfastError) as failed:
        recovery.call(Flaky())
    assert failed.value.fault.code == "SYS_RATE_LIMITED"
    assert failed.value.fault.retry_after == 10
    assert world.state("provider:a")._breaker.failures == 0


def test_a_cancelled_start_is_given_to_the_next() -> None:
    world = World()
    starts: list[float] = []

    async def work() -> None:
        starts.append(world.now)

    async def main() -> None:
        recovery = world.recover("a", Policy(per_second=0.1, patience=None))
        await recovery.call(work)
        waiting = asyncio.create_task(recovery.call(work))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await recovery.call(work)

    world.run(main())
    assert starts == [0, 10]


def test_waiting_for_a_place_is_not_the_callees_time() -> None:
    world = World()

    async def main() -> list[Any]:
        recovery = world.recover("a", Policy(concurrency=1, timeout=5, patience=None))
        return await asyncio.gather(*(recovery.call(Flaky(takes=4).acall) for _ in range(3)))

    assert world.run(main()) == ["ok"] * 3
    assert world.now == 12


# --- a rejected call ---


@pytest.mark.parametrize("form", ["call", "block", "stream"])
def test_waiting_0_raises_at_once_and_is_not_retried(form: str) -> None:
    world = World(defaults=True)
    recovery = world.recover("a", Policy(concurrency=4, waiting=0))

    async def items() -> Any:
        await asyncio.sleep(30)
        yield "ok"

    async def one() -> tuple[str, float]:
        began = world.now
        try:
            if form == "call":
                await recovery.call(Flaky(takes=30).acall)
            elif form == "block":
                async for attempt in recovery:
                    async with attempt:
                        await asyncio.sleep(30)
            else:
                async with recovery.stream(items)() as stream:
                    async for _ in stream:
                        pass
        except HoldfastError as error:
            return error.fault.code, world.now - began
        return "ok", world.now - began

    async def main() -> list[tuple[str, float]]:
        return await asyncio.gather(*(one() for _ in range(20)))

    assert sorted(world.run(main())) == [("SYS_BULKHEAD_FULL", 0)] * 16 + [("ok", 30)] * 4
    assert_places_free(world.state("provider:a"))


def test_a_rejected_call_falls_back_at_once() -> None:
    world = World(defaults=True)

    async def other() -> str:
        return "other"

    ask = world.recover("a", Policy(concurrency=1, waiting=0))(Flaky(takes=30).acall)
    ask.fallback(other)

    async def main() -> Any:
        first = asyncio.create_task(ask())
        await asyncio.sleep(1)
        second = await ask()
        return second, world.now, await first

    assert world.run(main()) == ("other", 1, "ok")


def test_a_rejected_call_is_retried_where_the_user_says_so() -> None:
    world = World(defaults=True)
    policy = Policy(concurrency=1, waiting=0, per_code={"SYS_BULKHEAD_FULL": Tries(attempts=None)})

    async def main() -> list[Any]:
        recovery = world.recover("a", policy)
        return await asyncio.gather(*(recovery.call(Flaky(takes=5).acall) for _ in range(2)))

    assert world.run(main()) == ["ok", "ok"]


# --- a plain call in the thread of an event loop ---


@pytest.mark.parametrize("form", ["call", "function", "block", "stream"])
def test_a_plain_call_in_the_thread_of_a_loop_raises_instead_of_stopping_the_loop(form: str) -> None:
    world = World(defaults=True)
    recovery = world.recover("a", Policy(concurrency=1))

    def quick() -> None:
        if form == "call":
            recovery.call(lambda: "quick")
        elif form == "function":
            recovery(lambda: "quick")()
        elif form == "block":
            for attempt in recovery:
                with attempt:
                    pass
        else:
            with recovery.stream(lambda: iter("ab"))() as stream:
                list(stream)

    async def main() -> Any:
        slow = asyncio.create_task(recovery.call(Flaky(takes=5).acall))
        await asyncio.sleep(1)
        with pytest.raises(HoldfastError, match="stop the event loop") as failed:
            quick()
        assert failed.value.fault.code == "SYS_BULKHEAD_FULL"
        assert "asyncio.to_thread" in str(failed.value)
        got = await slow
        quick()
        return got

    assert world.run(main()) == "ok"
    assert_places_free(world.state("provider:a"))
