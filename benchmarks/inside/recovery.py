"""One contender through one trace, in virtual time: the outcome of each call, and each request that arrived."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import traceback
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.inside.clients import CLIENTS, usage_of_answer
from benchmarks.inside.traces import CHARGED, GOOD, draw
from benchmarks.inside.virtual import VirtualTime
from holdfast import Runtime
from holdfast.runtime.runtime import use_runtime
from holdfast.testing import FaultProvider, VirtualClock, run, seeded
from holdfast.testing.provider import Rule, Script
from holdfast.testing.provider.script import Playback

if TYPE_CHECKING:
    from benchmarks.inside.clients import Client
    from benchmarks.inside.traces import Trace

QUESTION = "What holds an anchor fast when the wind turns and the tide runs out? " * 10


class Bench:
    def __init__(self, name: str) -> None:
        # The log lines of a contender are not part of the measurement. The Router formats two tracebacks for the log of each
        # failure, and searches them for secrets: about two fifths of its time, and nothing that it does next depends on the text.
        logging.disable()
        traceback.format_exc = _no_text
        traceback.format_tb = _no_lines
        self.name = name
        self.clock = VirtualClock()
        self.time = VirtualTime(self.clock)
        self.time.take_over()

    def play(self, *, kind: str, seed: int) -> dict[str, Any]:
        played = play(self.name, draw(kind, seed), seed, self.clock)
        if self.time.blocked:
            raise RuntimeError(f"it slept {self.time.blocked} times on the thread of the loop")
        return played


def _no_text(*_: Any, **__: Any) -> str:
    return ""


def _no_lines(*_: Any, **__: Any) -> list[str]:
    return []


class Watched(FaultProvider):
    """A provider that plays a trace and keeps when requests came."""

    def __init__(self, trace: Trace, clock: VirtualClock) -> None:
        super().__init__(Script(limits=trace.limits), clock=clock)
        self.began = clock.monotonic()
        self.arrivals: list[float] = []
        self._playback: Any = Windows(self._playback.script, trace, self.now)

    def now(self) -> float:
        return self.clock.monotonic() - self.began

    def plan(self, request: Any) -> Any:
        self.arrivals.append(self.now())
        return super().plan(request)


class Windows:
    """A playback of a trace. A script with a rule for each bad second would be searched through for each request."""

    def __init__(self, script: Script, trace: Trace, now: Any) -> None:
        self.script = script
        self._trace = trace
        self._now = now

    def next(self, request: Any, _: float) -> Any:
        window = self._trace.window_at(self._now())
        return _looped(GOOD if window is None else window.step).next(request, 0.0)


@cache
def _looped(step: str) -> Playback:
    return Playback(Script(rules=(Rule(steps=step, loop=True),)))


def play(name: str, trace: Trace, seed: int, clock: VirtualClock) -> dict[str, Any]:
    """Return the calls as (due, end, answered), when requests came, and what the provider counted and charged."""
    random.seed(f"{trace.name}, {seed}")  # the jitter of the peers; a runtime has its own
    provider = Watched(trace, clock)
    with use_runtime(Runtime(clock=clock, rng=seeded(seed))):
        return run(_play(name, trace, provider), clock=clock)


async def _play(name: str, trace: Trace, provider: Watched) -> dict[str, Any]:
    ask = CLIENTS[name](provider)
    ended = await asyncio.gather(*[_call(ask, due, provider) for due in trace.due])
    counted, arrivals = provider.counters, provider.arrivals
    limited = sum(counted.limited.values())
    if counted.received != len(arrivals) or counted.refused or counted.answered:
        raise RuntimeError(f"the provider counted {counted}, and {len(arrivals)} requests came")
    good = counted.received - limited - sum(counted.injected[fault] for fault in counted.injected if fault != _GOOD)
    return {
        "calls": ended,
        "arrivals": arrivals,
        "limited": limited + counted.injected["429"],
        "charged": good + sum(counted.injected[fault] for fault in CHARGED),
        "usage": await usage_of_answer(FaultProvider(clock=provider.clock), QUESTION),
    }


_GOOD = GOOD.partition(";")[0]


async def _call(ask: Client, due: float, provider: Watched) -> tuple[float, float, bool]:
    await asyncio.sleep(due - provider.now())
    answer = None
    with contextlib.suppress(Exception):
        answer = await ask(QUESTION)
    return due, provider.now(), answer == f"You said: {QUESTION}"
