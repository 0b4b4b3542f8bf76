"""One contender classifying failures."""

from __future__ import annotations

import gc
from itertools import cycle, islice
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from benchmarks.cases import failures, timed
from benchmarks.inside.contenders import CONTENDERS
from benchmarks.table import quantile

if TYPE_CHECKING:
    from benchmarks.inside.contenders import Call


class Bench:
    def __init__(self, name: str) -> None:
        self.contender = CONTENDERS[name]()
        self.pools: dict[str, list[Call]] = {}

    def warm_up(self, *, seconds: float) -> dict[str, int]:
        """Return how many calls fill `seconds`, for each case this contender can take."""
        for name, pool in timed().items():
            self.pools[name] = [call for failure in pool if (call := self.contender.call(failure))]
        gc.collect()
        gc.freeze()
        return {name: _fitting(pool, seconds) for name, pool in self.pools.items() if pool}

    def round(self, *, case: str, calls: int) -> dict[str, float]:
        """Time `calls` calls one by one; figures in µs."""
        times = _times(self.pools[case], calls)
        return {"median": quantile(times, 0.5) / 1e3, "p95": quantile(times, 0.95) / 1e3}

    def clock(self) -> float:
        """Return what the clock itself costs, in µs: the time of a call that does nothing."""
        return quantile(_times([(_nothing, ())], 20_000), 0.5) / 1e3

    def judge(self, *, lines: list[Any]) -> list[dict[str, Any] | None]:
        """Return this contender's answer to every line, in order; None where it cannot take it."""
        calls = [self.contender.call(failure) for failure in failures(lines)]
        return [call and self.contender.read(call[0](*call[1])) for call in calls]


def _fitting(pool: list[Call], seconds: float) -> int:
    _times(pool, 200)
    each = quantile(_times(pool, 200), 0.5) / 1e9
    return max(100, min(20_000, int(seconds / each)))


def _times(pool: list[Call], calls: int) -> list[int]:
    times = [0] * calls
    for i, (function, arguments) in enumerate(islice(cycle(pool), calls)):
        start = perf_counter_ns()
        function(*arguments)
        times[i] = perf_counter_ns() - start
    return times


def _nothing() -> None:
    pass
