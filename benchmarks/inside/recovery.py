"""One contender through one trace, in virtual time: the outcome of each call, and each request that arrived."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any

from benchmarks.inside.clients import CLIENTS, usage_of_answer
from benchmarks.inside.traces import CHARGED, GOOD, traces
from benchmarks.inside.virtual import VirtualTime
from holdfast.testing import FaultProvider, VirtualClock, run

if TYPE_CHECKING:
    from benchmarks.inside.clients import Client
    from benchmarks.inside.traces import Trace

CALLERS = 20
EVERY_S = 30.0
"""Rarely enough that all of it takes few minutes of a processor."""
QUESTION = "What holds an anchor fast when the wind turns and the tide runs out? " * 10


class Bench:
    def __init__(self, name: str) -> None:
        logging.disable()  # the log lines of a contender are not part of the measurement
        self.name = name
        self.clock = VirtualClock()
        self.time = VirtualTime(self.clock)
        self.time.take_over()

    def play(self, *, trace: str, seed: int) -> dict[str, Any]:
        played = play(self.name, traces(seed)[trace], seed, self.clock)
        if self.time.blocked:
            raise RuntimeError(f"it slept {self.time.blocked} times on the thread of the loop")
        return played


class Watched(FaultProvider):
    """A provider that also keeps when requests came."""

    def __init__(self, trace: Trace, clock: VirtualClock) -> None:
        super().__init__(trace.script(), clock=clock)
        self.began = clock.monotonic()
        self.arrivals: list[float] = []

    def now(self) -> float:
        return self.clock.monotonic() - self.began

    def plan(self, request: Any) -> Any:
        self.arrivals.append(self.now())
        return super().plan(request)


def due_times(seconds: float, seed: int) -> list[float]:
    """Return when calls are due: each caller's about every so many seconds, whatever became of those before."""
    rng = random.Random(seed)
    due = [0.0]  # the provider's time begins with the first request: for everybody at the same moment
    for _ in range(CALLERS):
        at = rng.uniform(0, EVERY_S)
        while at < seconds:
            due.append(at)
            at += rng.uniform(0.5, 1.5) * EVERY_S
    return sorted(due)


def play(name: str, trace: Trace, seed: int, clock: VirtualClock) -> dict[str, Any]:
    """Return the calls as (due, end, succeeded), when requests came, and what the provider counted and charged."""
    random.seed(seed)  # the contenders' jitter
    provider = Watched(trace, clock)
    return run(_play(name, trace, seed, provider), clock=clock)


async def _play(name: str, trace: Trace, seed: int, provider: Watched) -> dict[str, Any]:
    ask = CLIENTS[name](provider, trace)
    calls = [_call(ask, due, provider) for due in due_times(trace.seconds, seed)]
    ended = await asyncio.gather(*calls)
    counted = provider.counters
    good = counted.injected[GOOD.partition(";")[0]]
    if counted.received != len(provider.arrivals) or counted.refused or counted.answered:
        raise RuntimeError(f"the provider counted {counted}, and {len(provider.arrivals)} requests came")
    return {
        "calls": ended,
        "arrivals": provider.arrivals[: counted.received],
        "good": good,
        "charged": good + sum(counted.injected[fault] for fault in CHARGED),
        "usage": await usage_of_answer(provider, QUESTION),
    }


async def _call(ask: Client, due: float, provider: Watched) -> tuple[float, float, bool]:
    await asyncio.sleep(due - provider.now())
    answer = None
    with contextlib.suppress(Exception):
        answer = await ask(QUESTION)
    return due, provider.now(), answer == f"You said: {QUESTION}"
