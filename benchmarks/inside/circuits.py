"""Many circuits in one runtime: what each weighs, what finding one costs, what dropping the idle ones costs."""

from __future__ import annotations

import gc
import random
import tracemalloc
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

from holdfast import INTERACTIVE, Runtime, recover
from holdfast.policies.circuit import Permit, Verdict

if TYPE_CHECKING:
    from holdfast.runtime.targets.registry import TargetState

PARTS_S = 3.0
"""A part of the default circuit's window: calls so far apart are kept apart."""

IN_USE = 500


class Bench:
    def __init__(self, name: str) -> None:
        pass

    def weigh(self, *, circuits: int) -> dict[str, float]:
        """Return the bytes of each circuit: when it is new, and after good and bad calls in several parts of its window."""
        runtime = Runtime(most_circuits=circuits + 1)
        gc.collect()
        tracemalloc.start()
        before = _traced()
        lines = _lines(runtime, circuits)
        idle = _traced()
        for line in lines:
            _use(line)
        used = _traced()
        tracemalloc.stop()
        own = 8 * circuits  # the list that holds them here
        return {"idle_bytes": (idle - before - own) / circuits, "used_bytes": (used - before - own) / circuits}

    def find(self, *, circuits: int, lookups: int) -> dict[str, float]:
        """Return the µs of processor time to find a circuit by name, and for a whole call to a name out of so many.

        The names are always so many that are in use: what is measured is the search, not how cold the memory is.
        """
        runtime = Runtime(most_circuits=circuits + 1)
        lines = _lines(runtime, circuits)
        chance = random.Random(1)
        in_use = [line.name for line in chance.sample(lines, IN_USE)]
        names = [chance.choice(in_use) for _ in range(lookups)]
        get = runtime.registry.get
        begun = thread_time()
        for name in names:
            get(name)
        found = thread_time()
        for name in names:
            recover(name, runtime=runtime).call(_nothing)
        called = thread_time()
        return {"find_us": (found - begun) / lookups * 1e6, "recover_us": (called - found) / lookups * 1e6}

    def evict(self, *, circuits: int) -> dict[str, float]:
        """Return how long the one call waits that finds the registry full, and what that is per circuit it drops."""
        runtime = Runtime(most_circuits=circuits)
        _lines(runtime, circuits)
        begun, cpu = perf_counter(), thread_time()
        runtime.registry.get("tool:one too many")
        wall, cpu = perf_counter() - begun, thread_time() - cpu
        dropped = circuits + 1 - len(runtime.registry)
        return {"wall_ms": wall * 1e3, "cpu_ms": cpu * 1e3, "dropped": dropped, "each_us": cpu / dropped * 1e6}


def _lines(runtime: Runtime, circuits: int) -> list[TargetState]:
    lines = [runtime.registry.get(f"tool:{i}") for i in range(circuits)]
    for line in lines:
        line.serve(INTERACTIVE, 0.0)
    return lines


def _use(line: TargetState) -> None:
    for i in range(6):
        now = 1000.0 + i * PARTS_S
        permit = line.admit(now)
        assert isinstance(permit, Permit)
        verdict, code = (Verdict.FAILURE, "PROVIDER_OVERLOADED") if i % 3 == 0 else (Verdict.SUCCESS, None)
        line.settle(permit, verdict, now + 0.5, code)


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _nothing() -> None:
    pass
