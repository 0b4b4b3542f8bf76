"""SIGKILL at every named point of every way of writing, and at any time, with several writers and processes at one file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_check import check
from crash_server import Server, serving
from crash_work import WAYS, Journal, Note, Plan, read_journal

from holdfast.testing import run

OPENING = ("opening", "connected", "migrating", "migrated", "opened")
BATCH = ("taken", "begun", "written", "committed", "settling", "settled")
MOVING = ("moving", "moved", "emptied")
CLOSING = ("closing", "ended", "closed")
STATEMENTS = {
    "create": ("INSERT INTO session", "INSERT INTO checkpoint"),
    "append": ("INSERT INTO entry", "UPDATE session SET"),
    "claim": ("INSERT INTO inbox",),
    "checkpoint": ("INSERT INTO checkpoint",),
    "state": ("UPDATE session SET",),
    "lease": ("UPDATE session SET",),
    "compact": ("DELETE FROM entry",),
    "remove": ("DELETE FROM entry", "DELETE FROM checkpoint", "DELETE FROM session"),
    "audit": ("INSERT INTO chain", "INSERT INTO audit", "UPDATE chain SET"),
}
ALL = [
    *((way, point) for way in WAYS for point in (*BATCH, *STATEMENTS[way], *MOVING, *CLOSING)),
    *(("append", point) for point in OPENING),
]
EARLY = frozenset({*OPENING, *MOVING, *CLOSING, "INSERT INTO chain", "DELETE FROM entry"})
"""Failpoints that a short run does not reach often."""
SAMPLE = random.Random(5).sample(ALL, 24)
SOAK_SEEDS = range(4)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def nth_of(point: str, chance: random.Random) -> int:
    if point == "migrating":
        return chance.randint(1, 8)
    return 1 if point in EARLY or point.startswith("DELETE") else chance.randint(1, 6)


def sound(store: Path, *journals: Path) -> list[Note]:
    notes = [note for journal in journals for note in read_journal(journal)]
    wrong = run(check(store, notes))
    assert not wrong, "\n".join(wrong)
    return notes


def killed_at(server: Server, folder: Path, way: str, point: str, seed: int, **options: Any) -> list[Note]:
    """Kill a process at a point and look at what it leaves."""
    nth = nth_of(point, random.Random(f"{seed}/{way}/{point}"))
    plan = Plan(
        store=str(folder / "store.db"),
        journal=str(folder / "journal"),
        name="a",
        seed=seed,
        way=way,
        point=point,
        nth=nth,
        **options,
    )
    assert server.run("crash_work:perform", plan) == ["killed"], f"{point} was not reached {nth} times"
    return sound(folder / "store.db", folder / "journal")


def killed_beside_another(server: Server, folder: Path, way: str, point: str, seed: int) -> list[Note]:
    """Kill one of two processes at one file; the other goes on to its end."""
    store = str(folder / "store.db")
    common = {"store": store, "seed": seed, "way": way}
    chance = random.Random(f"{seed}/{way}/{point}")
    dies = Plan(journal=str(folder / "a"), name="a", point=point, nth=nth_of(point, chance), **common)
    lives = Plan(journal=str(folder / "b"), name="b", **common)
    dead, alive = server.run("crash_work:perform", dies, lives)
    # What only the last or the first process does, the other may have done.
    assert dead == "killed" or point in EARLY, f"{point}: {dead}"
    assert alive == "done"
    return sound(folder / "store.db", folder / "a", folder / "b")


def killed_at_any_time(server: Server, folder: Path, seed: int) -> list[Note]:
    chance = random.Random(seed)
    names = ("a", "b")[: chance.randint(1, 2)]
    plans = [
        Plan(
            store=str(folder / "store.db"),
            journal=str(folder / name),
            name=name,
            seed=seed,
            way=chance.choice(WAYS),
            ops=1000,
            after=chance.uniform(0.0, 0.15),
        )
        for name in names
    ]
    assert set(server.run("crash_work:perform", *plans)) == {"killed"}
    return sound(folder / "store.db", *(folder / name for name in names))


@pytest.mark.parametrize(("way", "point"), SAMPLE)
def test_B97_what_was_acknowledged_is_there_once_after_a_kill_at_a_point(
    server: Server, tmp_path: Path, way: str, point: str
) -> None:
    killed_at(server, tmp_path, way, point, seed=0)


@pytest.mark.parametrize(("way", "point"), SAMPLE[:6])
def test_another_process_at_the_same_file_goes_on(server: Server, tmp_path: Path, way: str, point: str) -> None:
    notes = killed_beside_another(server, tmp_path, way, point, seed=1)
    assert any(note.op.startswith("b.") and note.answer == "ack" for note in notes)


@pytest.mark.parametrize("seed", range(8))
def test_B97_a_kill_at_any_time(server: Server, tmp_path: Path, seed: int) -> None:
    killed_at_any_time(server, tmp_path, seed)


def test_FD13_a_line_that_the_kill_cut_is_no_note(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(str(path))
    for op in ("a.1", "a.2"):
        journal.note("ack", op, "append")
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        assert [note.op for note in read_journal(path)] == ["a.1", "a.2"][: whole[:size].count(b"\n")]


def test_one_file_killed_again_and_again(server: Server, tmp_path: Path) -> None:
    """A store grows old over many crashes."""
    journals = [tmp_path / f"journal{n}" for n in range(8)]
    for n, journal in enumerate(journals):
        name, way = f"p{n}", WAYS[n % len(WAYS)]
        point = random.Random(n).choice(BATCH)
        plan = Plan(
            store=str(tmp_path / "store.db"), journal=str(journal), name=name, seed=n, way=way, point=point, nth=4
        )
        assert server.run("crash_work:perform", plan) == ["killed"]
    notes = sound(tmp_path / "store.db", *journals)
    assert len({note.op.partition(".")[0] for note in notes}) == len(journals)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
@pytest.mark.parametrize(("way", "point"), ALL)
def test_B97_every_point_of_every_way(server: Server, tmp_path: Path, way: str, point: str, seed: int) -> None:
    if seed % 2:
        killed_beside_another(server, tmp_path, way, point, seed)
    else:
        killed_at(server, tmp_path, way, point, seed, durability=("full", "fast")[seed // 2 % 2])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_a_hundred_kills_at_any_time(server: Server, tmp_path: Path, seed: int) -> None:
    killed_at_any_time(server, tmp_path, seed)
