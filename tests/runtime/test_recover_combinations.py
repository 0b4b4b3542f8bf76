"""Every pair of policy parts together: permits come back, places are free and the count of calls is right."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from recover_kit import LOOSE, World, assert_places_free, probes_out, reset, settled

from holdfast import Backoff, Budget, Circuit, Hedge, HoldfastError, Policy, Quota
from holdfast.events import AttemptEnded, AttemptStarted
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.runtime import use_runtime

PARTS: dict[str, dict[str, Any]] = {
    "retry": {"attempts": 4, "backoff": Backoff(initial=1, curve="fixed", jitter=0)},
    "timeout": {"timeout": 3},
    "deadline": {"deadline": 9},
    "circuit": {"circuit": Circuit(failures=3, rate=None, open_for=5)},
    "concurrency": {"concurrency": 2},
    "per_second": {"per_second": 2},
    "quota": {"retry_quota": Quota(share=0.1, floor=2, window=100)},
    "hedge": {"hedge": Hedge(after=1)},
    "fallback": {},
    "budget": {},
}
PAIRS = list(itertools.combinations(PARTS, 2))
CALLERS = 6
PLAIN = {"timeout": None, "deadline": None, "circuit": LOOSE, "attempts": 2}


def policy_of(pair: tuple[str, str]) -> Policy:
    options = dict(PLAIN)
    for part in pair:
        options |= PARTS[part]
    return Policy(**options)


class Callee:
    """Fails, hangs and answers in turn, and counts what really happened to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun = self.ended = self.running = self.most = 0

    def _turn(self) -> tuple[float, bool]:
        number = self.begun
        self.begun += 1
        return (0.0, 0.25, 5.0, 0.5)[number % 4], number % 3 == 0

    def __call__(self) -> str:
        takes, fails = self._turn()
        self.world.clock.advance(takes)
        self.ended += 1
        if fails:
            raise reset()
        return "ok"

    async def acall(self) -> str:
        takes, fails = self._turn()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(takes)
        finally:
            self.running -= 1
            self.ended += 1
        if fails:
            raise reset()
        return "ok"


def decorated(world: World, pair: tuple[str, str], callee: Any) -> Any:
    fn = world.recover("a", policy_of(pair), effect="idempotent")(callee)
    if "fallback" in pair:
        fn.fallback(name="other")(lambda: "other")
    return fn


def check(world: World, pair: tuple[str, str], callee: Callee, ends: list[Any], budget: Budget | None) -> None:
    """Check what must be true after any mixture of calls."""
    state = world.state("provider:a")
    started = [event for event in world.of(AttemptStarted) if event.via == "primary"]
    assert settled(state) == len(started), "every permit came back, once"
    assert probes_out(state) == 0
    assert_places_free(state)
    assert AMBIENT.get() is None
    assert callee.begun == callee.ended, "no call is left running"
    assert len(ends) == CALLERS
    for end in ends:
        assert end in ("ok", "other") or isinstance(end, ConnectionResetError | HoldfastError), end
    if "fallback" in pair:
        failed = [end for end in ends if isinstance(end, BaseException)]
        assert not failed or pair == ("fallback", "budget") or "deadline" in pair
    ended = [event for event in world.of(AttemptEnded) if event.via == "primary"]
    assert len(ended) == len(started)
    if budget is not None:
        spend = budget.spend()
        assert spend.attempts >= len(started)
        assert spend.attempts <= 8 + CALLERS  # calls at once may each have begun before the last one was charged
    if "hedge" not in pair:
        assert callee.begun <= len(started)
    per_caller = 4 if "retry" in pair else 2
    assert len(started) <= CALLERS * per_caller
    if "quota" in pair:
        assert len(started) <= CALLERS + 2 + CALLERS
    if "concurrency" in pair and "hedge" not in pair:
        assert callee.most <= 2


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_every_pair_holds_in_async_code(pair: tuple[str, str]) -> None:
    world = World()
    callee = Callee(world)

    async def main() -> tuple[list[Any], Budget | None]:
        fn = decorated(world, pair, callee.acall)
        if "budget" not in pair:
            return await asyncio.gather(*(fn() for _ in range(CALLERS)), return_exceptions=True), None
        with Budget(attempts=8) as budget:
            return await asyncio.gather(*(fn() for _ in range(CALLERS)), return_exceptions=True), budget

    with use_runtime(world.runtime):
        ends, budget = world.run(main())
        check(world, pair, callee, ends, budget)


@pytest.mark.filterwarnings("ignore:.*`timeout` has no effect on a plain function")
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "hedge" not in pair], ids="+".join)
def test_every_pair_holds_in_sync_code(pair: tuple[str, str]) -> None:
    world = World()
    callee = Callee(world)

    def calls() -> list[Any]:
        fn = decorated(world, pair, callee)
        ends: list[Any] = []
        for _ in range(CALLERS):
            try:
                ends.append(fn())
            except Exception as error:
                ends.append(error)
        return ends

    with use_runtime(world.runtime):
        if "budget" in pair:
            with Budget(attempts=8) as budget:
                ends = calls()
            check(world, pair, callee, ends, budget)
        else:
            check(world, pair, callee, calls(), None)


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_every_pair_holds_when_half_of_the_callers_are_cancelled(pair: tuple[str, str]) -> None:
    world = World()
    callee = Callee(world)

    async def main() -> None:
        fn = decorated(world, pair, callee.acall)
        tasks = [asyncio.create_task(fn()) for _ in range(CALLERS)]
        await asyncio.sleep(0.3)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            task.cancelled() or task.exception()
        state = world.state("provider:a")
        started = [event for event in world.of(AttemptStarted) if event.via == "primary"]
        assert settled(state) == len(started)
        assert_places_free(state)
        assert callee.begun == callee.ended
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with use_runtime(world.runtime):
        world.run(main())
