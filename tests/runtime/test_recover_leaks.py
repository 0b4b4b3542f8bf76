"""Nothing stays behind after a call: no memory, no exception, no scope."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import tracemalloc
import weakref
from contextlib import suppress
from typing import Any

import pytest
from recover_kit import Always, Flaky, World, reset

from holdfast import (
    Circuit,
    DeadlineError,
    Policy,
    Runtime,
    recover,
)
from holdfast.runtime.ambient import AMBIENT

OFTEN = Circuit(failures=1_000_000, rate=None)


def test_S1_1_a_hundred_thousand_calls_leave_no_memory_behind() -> None:
    runtime = Runtime(waits=False)
    good = recover("good", runtime=runtime)(lambda: "ok")
    flaky = recover("flaky", Policy(circuit=OFTEN), runtime=runtime)

    def some(times: int) -> None:
        for number in range(times):
            good()
            if number % 100 == 0:
                flaky.call(Flaky(reset()))

    some(2_000)
    gc.collect()
    blocks = sys.getallocatedblocks()
    some(100_000)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 500
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        some(5_000)
        gc.collect()
        grown = sum(stat.size_diff for stat in tracemalloc.take_snapshot().compare_to(before, "filename"))
    finally:
        tracemalloc.stop()
    assert grown < 50_000


@pytest.mark.parametrize("limits", ["the same", "another for each call"])
def test_FR7_recoveries_made_for_one_call_leave_neither_timers_nor_memory_behind(limits: str) -> None:
    runtime = Runtime(waits=False)

    async def work() -> None:
        await asyncio.sleep(0)

    async def some(times: int, since: int = 0) -> None:
        for number in range(since, since + times):
            policy = None if limits == "the same" else Policy(timeout=20 + number / 1_000)
            await recover("a", policy, runtime=runtime).call(work)

    async def main() -> tuple[int, int]:
        await some(1_000)
        gc.collect()
        blocks = sys.getallocatedblocks()
        await some(3_000, since=1_000)
        gc.collect()
        return len(asyncio.get_running_loop()._scheduled), sys.getallocatedblocks() - blocks  # type: ignore[attr-defined] # asyncio's own loop

    timers, grown = asyncio.run(main())
    assert timers <= (1 if limits == "the same" else 600)
    # A leaked call keeps dozens of blocks; the interpreter itself may keep one or two for each.
    assert grown < 9_000


def test_FR7_a_shared_timer_still_stops_every_call() -> None:
    world = World()
    late = [Flaky(takes=9) for _ in range(3)]

    async def main() -> list[Any]:
        calls = [world.recover("a", Policy(timeout=5, attempts=1)).call(work.acall) for work in late]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in world.run(main())] == [DeadlineError] * 3
    assert world.now == 5


def _ends() -> dict[str, Any]:
    class Marked(ConnectionResetError):
        """An exception that can be watched."""

    def fails(*_: Any) -> Any:
        raise Marked(104, "reset")

    async def fails_later(*_: Any) -> Any:
        raise Marked(104, "reset")

    async def given_up(world: World) -> None:
        await world.recover("a").call(fails_later)

    async def sync(world: World) -> None:
        world.recover("a").call(fails)

    async def fallen_back(world: World) -> None:
        decorated = world.recover("a")(fails_later)
        decorated.fallback(fails_later)
        decorated.degraded(fails)
        decorated.notify(lambda _: None)
        await decorated()

    async def fallen_back_sync(world: World) -> None:
        decorated = world.recover("a")(fails)
        decorated.fallback(fails)
        decorated()

    async def cut(world: World) -> None:
        async def numbers() -> Any:
            yield 1
            fails()

        async with world.recover("a").stream(numbers)() as stream:
            async for _ in stream:
                pass

    async def never_began(world: World) -> None:
        async def numbers() -> Any:
            fails()
            yield 1

        async with world.recover("a").stream(numbers)() as stream:
            async for _ in stream:
                pass

    async def block(world: World) -> None:
        async for attempt in world.recover("a"):
            async with attempt:
                fails()

    async def late_block(world: World) -> None:
        async for attempt in world.recover("a", Policy(timeout=1)):
            async with attempt:
                await asyncio.sleep(5)

    async def late(world: World) -> None:
        await world.recover("a", Policy(timeout=1)).call(Flaky(takes=5).acall)

    async def not_accepted(world: World) -> None:
        await world.recover("a", accept=lambda _: False).call(Flaky().acall)

    async def unsafe(world: World) -> None:
        await world.recover("a", effect="unsafe").call(fails_later)

    async def rejected(world: World) -> None:
        await world.recover("a", Policy(circuit=Circuit(mode="forced-open"))).call(Flaky().acall)

    async def threaded(world: World) -> None:
        world.recover("a", threads=True).call(fails)

    async def outcome(world: World) -> None:
        raise (await world.recover("a").outcome(fails_later)).error

    return {
        name: ends for name, ends in locals().items() if inspect.iscoroutinefunction(ends) and name != "fails_later"
    }


ENDS = _ends()


@pytest.mark.parametrize("name", ENDS)
def test_R43_no_exception_is_kept_alive_by_a_cycle_of_ours(name: str) -> None:
    """Each is freed with its last reference, without the garbage collector."""
    world = World()
    kept: list[weakref.ref[BaseException]] = []
    world.runtime.bus._handlers.clear()  # events carry faults, not exceptions; still, only what recover itself keeps

    async def main() -> None:
        try:
            await ENDS[name](world)
        except Exception as error:
            kept.append(weakref.ref(error))

    gc.collect()
    gc.disable()
    try:
        world.run(main())
        assert [ref() for ref in kept] == [None]
    finally:
        gc.enable()


def test_S1_1_the_scope_around_is_restored_however_a_call_ends() -> None:
    world = World()
    for work in (Flaky(), Flaky(reset()), Always(reset), Flaky(KeyboardInterrupt())):
        with suppress(ConnectionResetError, KeyboardInterrupt):
            world.recover("a", Policy(circuit=OFTEN)).call(work)
        assert AMBIENT.get() is None
