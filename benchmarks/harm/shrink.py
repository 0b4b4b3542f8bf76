"""The smallest world that still shows a harm: callers, troubles, calls and options are dropped while the same bound is broken."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from benchmarks.harm.oracle import harms
from benchmarks.harm.plays import Plain, Recovering
from benchmarks.harm.world import Call, Caller, Trouble, World

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TRIES = 250


def shrink(
    world: World, bound: str, side: type[Plain] = Recovering, tries: int = MOST_TRIES, health: str = ""
) -> World:
    """Return a smaller world that breaks the same bound, of the same health if one is named, after at most so many tries."""
    left = tries
    changed = True
    while changed and left > 0:
        changed = False
        for smaller in _smaller(world):
            if left <= 0:
                break
            left -= 1
            if any(one.bound == bound and health in ("", one.health) for one in harms(smaller, side)):
                world, changed = smaller, True
                break
    return world


def _smaller(world: World) -> Iterator[World]:
    """Yield worlds that are a little smaller, the boldest first."""
    for number in range(len(world.callers)):
        if len(world.callers) > 1:
            yield replace(world, callers=_without(world.callers, number))
    for number in range(len(world.troubles)):
        yield replace(world, troubles=_without(world.troubles, number))
    yield from (
        replace(world, **{name: plain}) for name, plain in (("jumps", ()), ("sync", False)) if getattr(world, name)
    )
    for simplify in (_fewer_calls, _plainer_caller):
        for number, caller in enumerate(world.callers):
            yield from (replace(world, callers=_with(world.callers, number, made)) for made in simplify(caller))
    for number, trouble in enumerate(world.troubles):
        for simpler in _simpler_trouble(trouble):
            yield replace(world, troubles=_with(world.troubles, number, simpler))


def _fewer_calls(caller: Caller) -> Iterator[Caller]:
    calls = caller.calls
    if len(calls) > 1:
        half = len(calls) // 2
        yield replace(caller, calls=calls[half:])
        yield replace(caller, calls=calls[:half])
        if len(calls) > 4:
            quarter = len(calls) // 4
            for begin in range(0, len(calls), quarter):
                yield replace(caller, calls=calls[:begin] + calls[begin + quarter :])
        else:
            for number in range(len(calls)):
                yield replace(caller, calls=_without(calls, number))


def _plainer_caller(caller: Caller) -> Iterator[Caller]:
    for name in ("extra", "timeout", "target", "region", "key", "retries", "workers"):
        default = Caller.__dataclass_fields__[name].default
        if getattr(caller, name) != default:
            yield replace(caller, **{name: default})
    if caller.door != "sdk":
        yield replace(caller, door="sdk")
    for name in ("cancel", "timeout", "gaps", "pieces", "tools", "tokens", "most", "prompt"):
        default = Call.__dataclass_fields__[name].default
        if any(getattr(call, name) != default for call in caller.calls):
            yield replace(caller, calls=tuple(replace(call, **{name: default}) for call in caller.calls))
    usual = tuple(replace(call, takes=1.0) for call in caller.calls)
    if usual != caller.calls:
        yield replace(caller, calls=usual)
    rounded = tuple(
        replace(call, at=float(round(call.at)), takes=float(round(call.takes) or 1)) for call in caller.calls
    )
    if rounded != caller.calls:
        yield replace(caller, calls=rounded)


def _simpler_trouble(trouble: Trouble) -> Iterator[Trouble]:
    for one in fields(Trouble):
        if one.name in ("kind", "provider", "region", "model", "key", "door", "per_minute", "places"):
            continue
        if getattr(trouble, one.name) != one.default:
            yield replace(trouble, **{one.name: one.default})
    if trouble.end < math.inf and trouble.start:
        yield replace(trouble, start=0.0, end=trouble.end - trouble.start)


def _without(items: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return items[:number] + items[number + 1 :]


def _with(items: tuple[Any, ...], number: int, item: Any) -> tuple[Any, ...]:
    return (*items[:number], item, *items[number + 1 :])
