"""The smallest world that still does the same harm: acts, jobs, neighbours and rounds are dropped while it does."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.neighbours.oracle import harms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.neighbours.storm_world import World


def shrink(world: World, bound: str, *, seconds: float = 120.0, patch: Callable[..., None] | None = None) -> World:
    """Return a smaller world that breaks the same bound."""
    until, changed = time.monotonic() + seconds, True
    while changed:
        changed = False
        for smaller in _smaller(world):
            if time.monotonic() > until:
                return world
            if any(each.bound == bound for each in harms(smaller, patch)):
                world, changed = smaller, True
                break
    return world


def _smaller(world: World) -> Iterator[World]:
    """Yield worlds that are a little smaller, the boldest first."""
    for number in range(len(world.acts)):
        if len(world.acts) > 1:
            yield replace(world, acts=world.acts[:number] + world.acts[number + 1 :])
    for number in range(len(world.jobs)):
        if len(world.jobs) > 1:
            yield replace(world, jobs=world.jobs[:number] + world.jobs[number + 1 :])
    if world.rounds > 1:
        yield replace(world, rounds=1)
    if world.neighbours > 2:
        yield replace(world, neighbours=world.neighbours // 5 or 2)
    for number, act in enumerate(world.acts):
        if act.strength > 1:
            yield replace(world, acts=(*world.acts[:number], replace(act, strength=1), *world.acts[number + 1 :]))
