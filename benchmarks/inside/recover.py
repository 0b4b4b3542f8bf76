"""One stack around calls that work, that work the second time, that never work, or that an open circuit rejects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.inside import stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


WARM_UP = 60
"""Operations before anything is measured; enough to open every circuit that is to be open."""


class Callee:
    """What is called: it fails `failures` times out of `cycle`, beginning with a failure."""

    def __init__(self, failures: int, cycle: int) -> None:
        self.calls = 0
        self.failures = failures
        self.cycle = cycle

    def call(self) -> None:
        self.calls += 1
        if self.calls % self.cycle < self.failures:
            raise ConnectionRefusedError(111, "Connection refused")

    def function(self, *, is_async: bool) -> Callable[[], Any]:
        """Return it as a plain function: there are decorators that take nothing else."""

        def call() -> None:
            self.call()

        async def call_async() -> None:
            self.call()

        return call_async if is_async else call


class Case(NamedTuple):
    stacks: Mapping[str, stacks.Stack]
    kind: str
    """`async` or `sync`."""
    callee: tuple[int, int]
    """Failures out of how many calls."""
    calls: int
    """Calls that one operation must make: who makes more or fewer is not measured."""
    opens_after: int = 5

    @property
    def is_async(self) -> bool:
        return self.kind == "async"

    @property
    def works(self) -> bool:
        return self.callee[0] == 0


WORKS, ONCE, NEVER = (0, 1), (1, 2), (1, 1)
CASES = {
    "async, it works": Case(stacks.ASYNC, "async", WORKS, 1),
    "async, it works, every attempt heard": Case(stacks.HEARD, "async", WORKS, 1),
    "async, it works, OpenTelemetry on": Case(stacks.TRACED, "async", WORKS, 1),
    "async, it works the second time": Case(stacks.RETRYING_ASYNC, "async", ONCE, 2, stacks.NEVER),
    "async, given up after 3 attempts": Case(stacks.RETRYING_ASYNC, "async", NEVER, 3, stacks.NEVER),
    "async, rejected by an open circuit": Case(stacks.REJECTING_ASYNC, "async", NEVER, 0),
    "sync, it works": Case(stacks.SYNC, "sync", WORKS, 1),
    "sync, it works the second time": Case(stacks.RETRYING_SYNC, "sync", ONCE, 2, stacks.NEVER),
    "sync, given up after 3 attempts": Case(stacks.RETRYING_SYNC, "sync", NEVER, 3, stacks.NEVER),
    "sync, rejected by an open circuit": Case(stacks.REJECTING_SYNC, "sync", NEVER, 0),
}


class Bench:
    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: dict[str, Callable[[], Any]] = {}
        # One loop for all: what some stacks make when they decorate belongs to the loop that runs.
        self.loop = asyncio.new_event_loop()

    def warm_up(self, *, seconds: float) -> dict[str, int]:
        """Return how many operations fill `seconds`, for each case this stack has a part in."""
        mine = {name: case for name, case in CASES.items() if self.name in case.stacks}
        for name, case in mine.items():
            self.calls[name] = self._prepare(case)
        gc.collect()
        gc.freeze()
        return {name: self._fitting(name, seconds) for name in mine}

    def round(self, *, case: str, calls: int) -> tuple[float, float]:
        """Return the wall and processor time of one operation, in µs."""
        wall, cpu = self._timed(CASES[case], self.calls[case], calls)
        return wall / calls * 1e6, cpu / calls * 1e6

    def _prepare(self, case: Case) -> Callable[[], Any]:
        callee = Callee(*case.callee)
        call = self.loop.run_until_complete(self._guarded(case, callee))
        self._timed(case, call, WARM_UP)
        before = callee.calls
        self._timed(case, call, WARM_UP)
        made = (callee.calls - before) / WARM_UP
        if made != case.calls and not case.works:
            raise RuntimeError(f"{made:g} calls per operation, not {case.calls}")
        return call

    async def _guarded(self, case: Case, callee: Callee) -> Callable[[], Any]:
        # What works must weigh next to nothing.
        nothing = _nothing_async if case.is_async else _nothing
        fn = nothing if case.works else callee.function(is_async=case.is_async)
        return case.stacks[self.name](fn, case.opens_after)

    def _timed(self, case: Case, call: Callable[[], Any], calls: int) -> tuple[float, float]:
        if case.is_async:
            return self.loop.run_until_complete(_timed_async(call, calls, works=case.works))
        return _timed(call, calls, works=case.works)

    def _fitting(self, case: str, seconds: float) -> int:
        each, _ = self.round(case=case, calls=300)
        return max(100, min(50_000, int(seconds / (each / 1e6))))


def _timed(call: Callable[[], Any], calls: int, *, works: bool) -> tuple[float, float]:
    wall, cpu = perf_counter(), thread_time()
    if works:
        for _ in range(calls):
            call()
    else:
        for _ in range(calls):
            with contextlib.suppress(Exception):
                call()
    return perf_counter() - wall, thread_time() - cpu


async def _timed_async(call: Callable[[], Any], calls: int, *, works: bool) -> tuple[float, float]:
    wall, cpu = perf_counter(), thread_time()
    if works:
        for _ in range(calls):
            await call()
    else:
        for _ in range(calls):
            with contextlib.suppress(Exception):
                await call()
    return perf_counter() - wall, thread_time() - cpu


async def _nothing_async() -> None:
    pass


def _nothing() -> None:
    pass
