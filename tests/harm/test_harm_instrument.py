"""The instrument finds planted harm, draws every kind of world, shrinks, and gives the same result for the same seed."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from functools import partial

import pytest
from benchmarks.harm.oracle import compare, harms
from benchmarks.harm.plays import Plain, play
from benchmarks.harm.shrink import shrink
from benchmarks.harm.world import DOORS, EXTRAS, FRAMEWORKS, Call, Caller, Extra, Trouble, World, draw

STEADY = World(callers=(Caller(name="c0", calls=tuple(Call(at=float(n)) for n in range(50))),))
SEEDS = range(1, 501)
RARE = 3
"""Every feature occurs in so many of the worlds at least."""

FEATURES = {
    *(f"door:{door}" for door in DOORS),
    *(f"extra:{kind}" for kind in (*EXTRAS, "pool")),
    *(f"trouble:{kind}" for kind in ("status", "limit", "dead", "hang", "reset", "cut", "slow")),
    *(f"status:{status}" for status in (403, 404, 429, 500, 502, 503, 529)),
    *(f"retry-after:{how}" for how in ("true", "late", "early", "0", "0.001", "2", "20")),
    *(f"announces:{how}" for how in ("true", "lie")),
    *(f"provider:{name}" for name in ("anthropic", "openai")),
    *("health:well", "health:slow", "health:limited", "health:lying", "health:flaky", "health:sick"),
    *("health:dead", "health:hang", "health:cut", "health:poison", "health:impatient"),
    *("sync", "clock jump", "no trouble", "several troubles", "several models", "several keys", "several regions"),
    *("shared target", "timeout of the client", "timeout of the call", "cancel", "poison", "tools", "gaps", "long gap"),
    *("answer over 60 s", "answer over 10 min", "an hour", "first attempts", "late failure", "places"),
    *("trouble that ends", "healthy beside ill", "shared limit", "overload", "comeback", "health:after"),
    *("fallback with a deadline", "fallback with no deadline"),
}


class DropsSome(Plain):
    """Fails one call of fifty."""

    def asker(self, caller: Caller):
        return partial(self._drop, super().asker(caller))

    async def _drop(self, ask, name: str, call: Call) -> str:
        if name.endswith(".49"):
            raise TimeoutError
        return await ask(name, call)


class SendsTwice(Plain):
    """Sends every fiftieth request a second time."""

    def asker(self, caller: Caller):
        return partial(self._twice, super().asker(caller))

    async def _twice(self, ask, name: str, call: Call) -> str:
        text = await ask(name, call)
        return await ask(name, call) if name.endswith(".49") else text


class AddsDelay(Plain):
    """Adds half a second to each call."""

    def asker(self, caller: Caller):
        return partial(self._delay, super().asker(caller))

    async def _delay(self, ask, name: str, call: Call) -> str:
        await asyncio.sleep(0.5)
        return await ask(name, call)


class IgnoresDeadlines(Plain):
    def limited(self, caller: Caller, ask):
        return ask


class IgnoresCancels(Plain):
    def asker(self, caller: Caller):
        return partial(self._stay, super().asker(caller))

    async def _stay(self, ask, name: str, call: Call) -> str:
        return await asyncio.shield(ask(name, call)) if call.cancel is None else await self._ignore(ask(name, call))

    async def _ignore(self, answer) -> str:
        task = asyncio.ensure_future(answer)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue
        return task.result()


class LooksAllTheTime(Plain):
    """Waits for each answer by looking every millisecond."""

    def asker(self, caller: Caller):
        return partial(self._look, super().asker(caller))

    async def _look(self, ask, name: str, call: Call) -> str:
        task = asyncio.ensure_future(ask(name, call))
        while not task.done():  # noqa: ASYNC110 - the bug
            await asyncio.sleep(0.001)
        return task.result()


class MixesAnswers(Plain):
    def asker(self, caller: Caller):
        return lambda name, call: super(MixesAnswers, self).asker(caller)("c0.0", call)


def bounds(world: World, side: type[Plain]) -> set[str]:
    return {one.bound for one in harms(world, side)}


def test_the_twin_does_itself_no_harm():
    found = [one for seed in range(1, 40) for one in harms(draw(seed), Plain)]
    assert [one for one in found if one.bound not in ("budget", "priority", "error")] == []  # it promises none of these


def test_one_dropped_call_of_fifty_is_found():
    assert "answered" in bounds(STEADY, DropsSome)


def test_one_request_too_many_is_found():
    assert {"requests", "tokens"} <= bounds(STEADY, SendsTwice)


def test_half_a_second_more_is_found():
    assert bounds(STEADY, AddsDelay) == {"p50", "p95"}


def test_a_deadline_that_is_not_kept_is_found():
    late = World(callers=(Caller(name="c0", calls=(Call(takes=30.0),), extra=Extra(kind="deadline", value=15.0)),))
    assert "deadline" in bounds(late, IgnoresDeadlines)


def test_a_late_cancellation_is_found():
    world = World(callers=(Caller(name="c0", calls=(Call(takes=30.0, cancel=2.0),)),))
    assert bounds(world, Plain) == set()
    assert "cancel" in bounds(world, IgnoresCancels)


def test_a_call_that_looks_all_the_time_is_found():
    assert bounds(STEADY, LooksAllTheTime) == {"busy"}


def test_an_answer_to_another_question_is_found():
    assert "text" in bounds(World(callers=(Caller(name="c0", calls=(Call(), Call())),)), MixesAnswers)


def test_a_post_that_happens_twice_is_found():
    world = World(callers=(Caller(name="c0", door="post", calls=tuple(Call(at=float(n)) for n in range(50))),))
    assert "effects" in bounds(world, SendsTwice)


def test_a_budget_that_does_not_hold_is_found():
    calls = tuple(Call(tokens=900) for _ in range(50))
    world = World(callers=(Caller(name="c0", calls=calls, extra=Extra(kind="usd", value=0.3)),))
    assert "budget" in bounds(world, Plain)  # the plain twin has no budget


def test_the_generator_draws_every_feature():
    seen = Counter(feature for seed in SEEDS for feature in draw(seed).features)
    assert {name: seen[name] for name in FEATURES if seen[name] < RARE} == {}


def test_worlds_are_small_enough():
    worlds = [draw(seed) for seed in SEEDS]
    assert max(world.calls for world in worlds) <= 60
    assert min(world.calls for world in worlds) >= 1


def test_the_same_seed_gives_the_same_world_and_the_same_result():
    for seed in (3, 9, 17):
        assert draw(seed) == draw(seed) != draw(seed + 1)
        assert compare(draw(seed)) == compare(draw(seed))


def test_a_world_prints_as_the_expression_that_makes_it():
    names = {"World": World, "Caller": Caller, "Call": Call, "Trouble": Trouble, "Extra": Extra, "math": math}
    for seed in range(1, 30):
        assert eval(repr(draw(seed)), names) == draw(seed)


def test_both_sides_meet_the_same_service():
    """A twin that plays a world twice sends the same requests at the same times and meets the same."""
    world = draw(12)
    first, second = play(world), play(world)
    assert first.service.sent == second.service.sent


def test_the_shrinker_leaves_what_shows_the_harm():
    busy = Caller(name="c1", calls=tuple(Call(at=float(n), takes=3.0, tools=True) for n in range(10)), key="key-b")
    sick = Trouble(kind="status", provider="openai", status=503)
    world = World(callers=(*STEADY.callers, busy), troubles=(sick,), jumps=((5.0, 60.0),))
    small = shrink(world, "p50", AddsDelay)
    assert (len(small.callers), small.calls, small.troubles, small.jumps) == (1, 1, (), ())
    assert "p50" in bounds(small, AddsDelay)


PLACES = [
    (door, sync, provider)
    for door in DOORS
    for sync in (False, True)
    for provider in ("anthropic", "openai")
    if door not in FRAMEWORKS or (not sync and provider == "openai")
]


@pytest.mark.parametrize(("door", "sync", "provider"), PLACES)
def test_every_door_answers_on_a_healthy_service(door: str, sync: bool, provider: str):
    model = {"anthropic": "claude-haiku-4-5", "openai": "gpt-5-mini"}[provider]
    calls = (Call(), Call(at=2.0, tools=True))
    world = World(callers=(Caller(name="c0", calls=calls, door=door, provider=provider, model=model),), sync=sync)
    assert harms(world) == []
    assert [ended.how for ended in play(world).calls.values()] == ["answered"] * 2
