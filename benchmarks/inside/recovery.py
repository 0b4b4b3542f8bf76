"""One contender through one trace, in virtual time: the outcome of each call, and each request that arrived."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import traceback
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

from benchmarks.inside.clients import CLIENTS, MODEL, Question, usage_of_answer
from benchmarks.inside.traces import CHARGED, GOOD, Met, draw
from benchmarks.inside.virtual import VirtualTime
from holdfast import Runtime
from holdfast.runtime.runtime import use_runtime
from holdfast.testing import FaultProvider, VirtualClock, run, seeded
from holdfast.testing.provider import Rule, Script
from holdfast.testing.provider.http import Pause, ReplyEnd
from holdfast.testing.provider.script import Playback, ScriptStep

if TYPE_CHECKING:
    from benchmarks.inside.clients import Client
    from benchmarks.inside.traces import Asked, Trace
    from holdfast.testing.provider.http import Plan

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
        self.has_long_answers = bool(trace.asked)
        self.models = tuple(dict.fromkeys(asked.model or MODEL for asked in trace.asked)) or (MODEL,)
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
        met = self._trace.meets(self._now(), self._asked(request))
        return _looped(met.step).next(request, 0.0) if met.cut_after is None else _cut_later(met)

    def _asked(self, request: Any) -> Asked:
        # The question begins with the number of its call.
        number = request.document["messages"][0]["content"].partition(":")[0] if self._trace.asked else "0"
        return self._trace.call(int(number))


def _cut_later(met: Met) -> ScriptStep:
    """Return a good answer whose connection is closed before it comes."""

    def plan(_: Any) -> Plan:
        yield Pause(met.cut_after)
        yield ReplyEnd.CLOSE

    return ScriptStep("cut", plan)


def _question(trace: Trace, place: int) -> Question:
    if not trace.asked:
        return Question(QUESTION)
    asked = trace.asked[place]
    return Question(f"{place}: {QUESTION}", asked.model or MODEL, None if asked.limit_s == inf else asked.limit_s)


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
    ended = await asyncio.gather(*[_call(ask, due, _question(trace, place), provider) for place, due in enumerate(trace.due)])  # fmt: skip
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


async def _call(ask: Client, due: float, question: Question, provider: Watched) -> tuple[float, float, bool]:
    await asyncio.sleep(due - provider.now())
    answer = None
    with contextlib.suppress(Exception):
        answer = await ask(question)
    return due, provider.now(), answer == f"You said: {question.text}"
