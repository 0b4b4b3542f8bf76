"""Sessions whose process is killed: each item of a batch, and each step of a life, is done once (DESIGN section 6, C23)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_server import Server, serving
from crash_sessions import AFTER_EFFECT, BEFORE_EFFECT, Plan, world_at

from holdfast.stores import SessionState, SqliteStore
from holdfast.stores.chain import session_chain, verify
from holdfast.testing import run

FAILPOINTS = ("taken", "begun", "INSERT INTO entry", "written", "committed", "settling", "settled")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


async def ended(store: Path, session: str) -> list[str]:
    """Check that a session was closed and its audit trail holds; return what is in its log. An encrypted one needs no key for it."""
    async with SqliteStore(store) as opened:
        record = await opened.session(session)
        assert record.state is SessionState.CLOSED
        _, _, broken = verify(await opened.audit(session_chain(session), limit=1_000_000))
        assert broken is None
        types: list[str] = []
        while page := await opened.read(session, after=len(types)):
            types += [entry.type for entry in page]
    return types


def killed_batch(
    server: Server, folder: Path, *, items: int, kills: int, concurrency: int, encrypted: bool = False
) -> None:
    chance = random.Random(items)
    places: Any = {"store": str(folder / "store.db"), "world": str(folder / "world.db"), "encrypted": encrypted}
    # A batch of writes holds about as many items as are under way, and each item writes once. All kills together take half of that.
    step = items // concurrency // kills // 2
    for _ in range(kills):
        point = chance.choice((*FAILPOINTS, BEFORE_EFFECT, AFTER_EFFECT))
        # The store writes what waits with one statement, so only the effects are counted by item.
        each = concurrency if point in (BEFORE_EFFECT, AFTER_EFFECT) else 1
        nth = chance.randint(max(1, step // 2), max(2, step)) * each
        plan = Plan(items=items, concurrency=concurrency, point=point, nth=nth, **places)
        assert server.run("crash_sessions:batch", plan) == ["killed"], (point, nth)
    with world_at(folder / "world.db") as world:
        assert 0 < len(world.items()) < items, "the kills did not come in the middle"
    assert server.run("crash_sessions:batch", Plan(items=items, concurrency=concurrency, **places)) == ["done"]
    with world_at(folder / "world.db") as world:
        assert world.items() == list(range(items))
        # Only what was under way at a kill is repeated, with the same key.
        assert world.repeated() <= kills * concurrency
    types = run(ended(folder / "store.db", "batch"))
    assert types.count("step_ended") == items


def test_a_batch_killed_five_times_does_each_item_once(server: Server, tmp_path: Path) -> None:
    killed_batch(server, tmp_path, items=500, kills=5, concurrency=10)


def test_an_encrypted_batch_killed_three_times_does_each_item_once(server: Server, tmp_path: Path) -> None:
    killed_batch(server, tmp_path, items=300, kills=3, concurrency=10, encrypted=True)


@pytest.mark.soak
def test_a_batch_of_ten_thousand_killed_ten_times_does_each_item_once(server: Server, tmp_path: Path) -> None:
    killed_batch(server, tmp_path, items=10_000, kills=10, concurrency=50)


def killed_life(server: Server, folder: Path, point: str, *, encrypted: bool = False) -> int:
    """Kill a session at the point of its first write, then at that of the second …; return how often it was killed."""
    places: Any = {"store": str(folder / "store.db"), "world": str(folder / "world.db"), "encrypted": encrypted}
    nth, died = 1, 0
    while (how := server.run("crash_sessions:life", Plan(point=point, nth=nth, **places))) == ["killed"]:
        died += 1
        # Resuming takes some writes of its own: get further than the last time.
        nth = 5 + died % 6
        assert died < 60, "it does not get on"
    assert how == ["done"]
    with world_at(folder / "world.db") as world:
        assert world.items() == list(range(9))
    types = run(ended(folder / "store.db", "life"))
    assert types.count("turn_started") == types.count("turn_ended") == 3
    assert types.count("step_ended") == 9
    return died


@pytest.mark.parametrize("point", ["written", "committed"])
def test_a_session_killed_all_its_life_does_each_step_once(server: Server, tmp_path: Path, point: str) -> None:
    assert killed_life(server, tmp_path, point) >= 3


def test_an_encrypted_session_killed_all_its_life_does_each_step_once(server: Server, tmp_path: Path) -> None:
    assert killed_life(server, tmp_path, "committed", encrypted=True) >= 3
    assert b"turns" not in (tmp_path / "store.db").read_bytes()


def test_a_session_killed_once_at_each_of_its_writes(server: Server, tmp_path: Path) -> None:
    """Opening, first turn, each step, turn's end with its checkpoint, pause, close: one kill in each, then it goes on."""
    nth = 0
    while True:
        nth += 1
        folder = tmp_path / str(nth)
        folder.mkdir()
        places = {"store": str(folder / "store.db"), "world": str(folder / "world.db")}
        if server.run("crash_sessions:life", Plan(point="committed", nth=nth, **places)) == ["done"]:
            break
        assert server.run("crash_sessions:life", Plan(**places)) == ["done"], nth
        with world_at(folder / "world.db") as world:
            assert world.items() == list(range(9))
        types = run(ended(folder / "store.db", "life"))
        assert types.count("turn_ended") == 3, (nth, types)
    assert nth > 20


@pytest.mark.soak
@pytest.mark.parametrize("point", FAILPOINTS)
def test_a_session_killed_all_its_life_at_every_point(server: Server, tmp_path: Path, point: str) -> None:
    assert killed_life(server, tmp_path, point) >= 3
