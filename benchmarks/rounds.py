"""Contenders that take turns in rounds, in one process."""

from __future__ import annotations

import resource
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["beside", "processor"]


async def beside(
    work: dict[str, Callable[[], Awaitable[Any]]], rounds: int, times: int, *, per_call: int = 1
) -> dict[str, Any]:
    """Return seconds of time and of our own processor time, and the ratio to the first contender, taken round by round.

    A call of a contender counts as `per_call` units of work.
    """
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for one in work.values():
        await one()
    for _ in range(rounds):
        # They take turns, so that a slow minute of the machine hits all of them.
        for name, one in work.items():
            wall, cpu = perf_counter(), processor()
            for _ in range(times):
                await one()
            units = times * per_call
            took[name].append(((perf_counter() - wall) / units, (processor() - cpu) / units))
    first = next(iter(took.values()))
    return {
        name: {
            "wall": median(wall for wall, _ in each),
            "cpu": median(cpu for _, cpu in each),
            # Of processor time: the time of a process depends on what else the machine does.
            "ratio": median(cpu / base for (_, cpu), (_, base) in zip(each, first, strict=True)),
        }
        for name, each in took.items()
    }


def processor() -> float:
    """Return the seconds of processor time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
