"""The generator draws every act, job and shape; each has a function; the oracle sees each kind of harm."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from dataclasses import replace

import pytest
from tests.neighbours.kit import Done, Played, WrongError, one
from tests.neighbours.oracle import compare
from tests.neighbours.rooms import bridge_room as bridge
from tests.neighbours.rooms import intruder
from tests.neighbours.storm_world import ACTS, JOBS, NEIGHBOURS, SHAPES, Act, World, draw

DRAWN = [draw(seed) for seed in range(1, 2001)]
RARE = 3


def test_every_act_job_and_shape_is_drawn():
    seen = Counter[tuple[str, str]]()
    for world in DRAWN:
        seen.update((world.room, each.kind) for each in world.acts)
        seen.update((world.room, each) for each in (*world.jobs, world.shape))
    words = [(room, each) for of in (ACTS, JOBS, SHAPES) for room, kinds in of.items() for each in kinds]
    assert {word: seen[word] for word in words if seen[word] < RARE} == {}


def test_the_same_seed_draws_the_same_world():
    assert [draw(seed) for seed in range(1, 2001)] == DRAWN


def test_a_world_can_be_written_down():
    assert eval(repr(DRAWN[0])) == DRAWN[0]


def test_there_is_one_member_among_fifty():
    assert {world.neighbours for world in DRAWN} == {NEIGHBOURS} == {50}


def test_every_act_of_the_bridge_is_one_of_its_intruder_or_of_its_agent():
    names = {each.replace("_", "-") for each in vars(intruder.Intruder)} | set(bridge.UNLUCKY)
    assert set(ACTS["bridge"]) - names == set()


@pytest.mark.parametrize("room", ["tools", "sessions"])
def test_every_act_has_a_function(room: str):
    of = importlib.import_module(f"tests.neighbours.rooms.{room}_room")._Room
    assert [each for each in ACTS[room] if not hasattr(of, "act_" + each.replace("-", "_"))] == []


def played(how: str = "well", took: float = 0.1, count: int = 150, **more: object) -> Played:
    return replace_all(Played(done=[Done(who, "ask", how, took) for who in range(count)]), **more)


def replace_all(played: Played, **more: object) -> Played:
    for name, value in more.items():
        setattr(played, name, value)
    return played


WORLD = World(1, "tools", "own", (Act("hangs"),), ("read",))


def two_of(how: str, took: float = 0.1) -> Played:
    found = played()
    found.done[:2] = [Done(0, "ask", how, took), Done(1, "ask", how, took)]
    return found


@pytest.mark.parametrize(
    ("storm", "bounds"),
    [
        (played(), set()),
        (two_of("failed"), {"kept"}),
        (two_of("well", 11.0), {"locked-out"}),
        (two_of("wrong"), {"kept", "wrong"}),
        (played(peak_mb=900.0), {"memory"}),
        (played(left=["sleep"]), {"left"}),
        (Played(ended="it hung"), {"ended"}),
    ],
)
def test_the_oracle_sees_each_harm(storm: Played, bounds: set[str]):
    assert {each.bound for each in compare(WORLD, played(), storm)} == bounds


def test_one_job_of_150_may_fail():
    storm = played()
    storm.done[0] = Done(0, "ask", "failed", 0.1)
    assert compare(WORLD, played(), storm) == []


def test_more_connections_may_take_more_memory():
    storm, twin = played(peak_mb=300.0), played()
    world = replace(WORLD, room="bridge")
    assert [each.bound for each in compare(world, twin, storm)] == ["memory"]
    assert compare(replace(world, acts=(Act("connections"),)), twin, storm) == []


@pytest.mark.parametrize(
    ("raised", "how"),
    [(None, "well"), (WrongError("x"), "wrong"), (ValueError("x"), "failed"), (SystemExit(3), "failed")],
)
def test_a_job_ends_well_wrong_or_not_at_all(raised: BaseException | None, how: str):
    async def work() -> None:
        if raised is not None:
            raise raised

    times = iter([0.0, 1.0])
    assert asyncio.run(one(1, "ask", work(), lambda: next(times))) == Done(
        1, "ask", how, 1.0, "" if raised is None else asyncio.run(one(1, "ask", work(), lambda: 0.0)).why
    )


def test_a_job_that_takes_too_long_is_late():
    async def work() -> None:
        return None

    times = iter([0.0, 10.5])
    assert asyncio.run(one(1, "ask", work(), lambda: next(times))).how == "late"
