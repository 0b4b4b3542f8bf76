"""Many calls and many streams: the memory that remains, the size of each stream, the lag of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import tracemalloc
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.table import quantile
from holdfast import INTERACTIVE, Circuit, Runtime, recover

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

ROUND = 1_000
TRACED = 20_000
"""Calls that are watched object by object; under tracing they take five times as long."""


class Bench:
    def __init__(self, name: str) -> None:
        pass

    def call(self, *, calls: int) -> dict[str, float]:
        """Return what `calls` calls leave behind: good async and sync ones, one in a hundred failing once, one for good."""
        rounds = _rounds()
        rounds(max(TRACED, calls // 10))  # caches fill and the allocator takes what it needs
        gc.collect()
        objects, before = len(gc.get_objects()), _resident_kb()
        begun = perf_counter()
        rounds(calls)
        took = perf_counter() - begun
        gc.collect()
        figures = {"resident_kb": _resident_kb() - before, "objects": len(gc.get_objects()) - objects}
        return {**figures, "cycles": _cycles(rounds), "traced_bytes": _grown(rounds), "seconds": took}

    def streams(self, *, streams: int, seconds: float) -> dict[str, Any]:
        """Return the weight of a stream in flight and the loop's lag, recovered ones beside the same ones bare."""
        return {kind: asyncio.run(_flight(kind, streams, seconds)) for kind in ("bare", "recovered")}


def _rounds() -> Callable[[int], None]:
    runtime = Runtime(waits=False)
    policy = INTERACTIVE.replace(attempts=2, circuit=Circuit(failures=10**9, rate=None))
    guard = recover("claude", policy, runtime=runtime)
    answer, answer_async = guard(_nothing), guard(_nothing_async)
    once, never = guard(_failing(2)), guard(_failing(1))

    async def one_round() -> None:
        for _ in range(ROUND // 100):
            for _ in range(49):
                await answer_async()
                answer()
            await once()
            with contextlib.suppress(ConnectionRefusedError):
                await never()

    def rounds(calls: int) -> None:
        async def main() -> None:
            for _ in range(calls // ROUND):
                await one_round()

        asyncio.run(main())

    return rounds


def _failing(cycle: int) -> Callable[[], Awaitable[None]]:
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        if calls % cycle == cycle - 1:
            raise ConnectionRefusedError(111, "Connection refused")

    return call


def _cycles(rounds: Callable[[int], None]) -> int:
    """Return the objects that calls leave for the collector; ending an event loop leaves some of its own."""

    def left_by(calls: int) -> int:
        rounds(calls)
        return gc.collect()

    gc.collect()
    gc.disable()
    try:
        return left_by(11 * ROUND) - left_by(ROUND)
    finally:
        gc.enable()


def _grown(rounds: Callable[[int], None]) -> int:
    tracemalloc.start()
    rounds(TRACED)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    rounds(TRACED)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


async def _flight(kind: str, streams: int, seconds: float) -> dict[str, float]:
    weight = await _weigh(kind, streams)
    gc.collect()
    begun = asyncio.Barrier(streams + 1)
    opening = perf_counter()
    async with asyncio.TaskGroup() as group:
        consumers = [group.create_task(_consume(kind, seconds, i / streams, begun)) for i in range(streams)]
        await begun.wait()
        opened = perf_counter()
        lags = await _lags(seconds)
    late = {f"lag_{name}_ms": quantile(lags, share) * 1e3 for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {
        "bytes": weight,
        "open_us": (opened - opening) / streams * 1e6,
        **late,
        "lag_max_ms": max(lags) * 1e3,
        "items": sum(consumer.result() for consumer in consumers),
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def _weigh(kind: str, streams: int) -> float:
    """Return the bytes of a stream that waits for its second item, its task included."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    consumers = [asyncio.create_task(_consume(kind, 3600, 0)) for _ in range(streams)]
    await asyncio.sleep(0.5)
    gc.collect()
    weight = (tracemalloc.get_traced_memory()[0] - before) / streams
    tracemalloc.stop()
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    return weight


async def _consume(kind: str, seconds: float, offset: float, begun: asyncio.Barrier | None = None) -> int:
    if kind == "bare":
        return await _count(_items(seconds, offset), begun)
    async with _recovered(seconds, offset) as stream:
        return await _count(stream, begun)


async def _count(items: AsyncIterator[str], begun: asyncio.Barrier | None) -> int:
    count = 0
    async for _ in items:
        count += 1
        if count == 1 and begun is not None:
            await begun.wait()
    return count


async def _items(seconds: float, offset: float) -> AsyncIterator[str]:
    """Give an item at once, then one a second, at a moment of its own within the second."""
    yield "first"
    await asyncio.sleep(offset)
    for _ in range(max(1, int(seconds))):
        await asyncio.sleep(1)
        yield "next"


_recovered = recover("claude", runtime=Runtime()).stream(_items, first=20, idle=15)


async def _lags(seconds: float, every: float = 0.01) -> list[float]:
    """Return how late each of many short sleeps ended."""
    loop = asyncio.get_running_loop()
    lags = []
    ends = loop.time() + seconds
    while (now := loop.time()) < ends:
        await asyncio.sleep(every)
        lags.append(loop.time() - now - every)
    return lags


def _resident_kb() -> int:
    """Return the memory that is resident now, not the most there ever was."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: the peak must do
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS"))


def _nothing() -> None:
    pass


async def _nothing_async() -> None:
    pass
