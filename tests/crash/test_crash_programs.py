"""Random programs, killed at random points and resumed until they are done, against a run that nobody interrupts.

The same result; every step whose result the program had is not done again; every unsafe step is done once. A step of unknown outcome
waits until the test resolves it from the record of what really happened.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from crash_programs import POINTS, SESSION, Node, Plan, World, answer_to, execute, program_of, read_world, value_of
from crash_server import Server, serving

from holdfast.faults import HoldfastError
from holdfast.runtime.runtime import Runtime, use_runtime
from holdfast.sessions import answer, pending
from holdfast.sessions.admin import overview, resolve_step
from holdfast.stores import MemoryStore, open_store
from holdfast.stores.verification import verify_store
from holdfast.testing.postgres import PrivateServer

STORE_POINTS = ("taken", "begun", "INSERT INTO entry", "written", "committed", "settled", "opened", "closing")
MOST_RUNS = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patched:
        # The process that runs the programs reads the key of an encrypted store from its environment.
        patched.setenv("PROGRAMS_KEY", "5a" * 32)
        with serving() as started:
            yield started


@pytest.fixture(scope="module")
def postgres() -> Iterator[PrivateServer]:
    with PrivateServer() as started:
        yield started


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for part in node.inside:
        yield from nodes(part)


async def settle(store: Any, session: str, happened: list[tuple[str, str, str]]) -> int:
    """Do what a person does: resolve steps from the record of what happened, and answer questions. Return how many."""
    done = {key: label for what, label, key in happened if what == "did"}
    if session not in [record.id for record in await store.sessions(after=session[:-1])]:
        # It was killed before the session was made.
        return 0
    seen = await overview(store, session)
    given = _given(program_of(_seed_of(session)))
    for key in seen.unknown:
        label = done.get(key)
        result = None if label is None else value_of(label, given[label])
        await resolve_step(store, session, key, happened=label is not None, result=result)
    questions = await pending(store, session)
    for question in questions:
        label = question.prompt.removeprefix("May ").removesuffix("?")
        await answer(store, session, question.id, answer_to(label))
    return len(seen.unknown) + len(questions)


def _seed_of(session: str) -> int:
    return int(session.rpartition("-")[2])


def _given(node: Node, given: int = 0) -> dict[str, int]:
    """Return what each step of a program is given. It is as the machine counts it."""
    found = {node.label: given}
    for number, part in enumerate(node.inside):
        found |= _given(part, given + number)
    return found


async def undisturbed(seed: int, path: Path) -> Any:
    """Run the program once in memory, with a person who answers; return its result."""
    session, store, world = f"{SESSION}-{seed}", MemoryStore(), World(str(path))
    with use_runtime(Runtime(waits=False)):
        for _ in range(MOST_RUNS):
            try:
                return await execute(store, session, seed, world)
            except HoldfastError:
                assert await settle(store, session, read_world(str(path))), "it waits for nothing"
    raise AssertionError("it does not end")


def killed_and_resumed(server: Server, folder: Path, url: str, seed: int, kills: int) -> int:
    """Kill a program up to `kills` times, then let it end. Check what happened; return how many kills came in time."""
    chance = random.Random(seed * 7 + 1)
    session, world = f"{SESSION}-{seed}", str(folder / f"world-{seed}")
    points = POINTS if url.startswith("postgresql") else (*POINTS, *STORE_POINTS)
    killed = 0
    for number in range(MOST_RUNS):
        plan = Plan(seed=seed, store=url, world=world, session=session)
        if killed < kills:
            if chance.random() < 0.2:
                plan = msgspec.structs.replace(plan, after=chance.uniform(0.001, 0.05))
            else:
                plan = msgspec.structs.replace(plan, point=chance.choice(points), nth=chance.randint(1, 6))
        (how,) = server.run("crash_programs:perform", plan)
        assert how in ("done", "killed"), (seed, number, plan, how)
        killed += how == "killed"
        happened = read_world(world)
        if happened and happened[-1][0] == "result":
            break
        asyncio.run(_settled(url, session, happened))
    else:
        raise AssertionError(f"program {seed} does not end")
    check(seed, happened, folder)
    return killed


async def _settled(url: str, session: str, happened: list[tuple[str, str, str]]) -> None:
    async with open_store(url) as store:
        await settle(store, session, happened)


def check(seed: int, happened: list[tuple[str, str, str]], folder: Path) -> None:
    result = json.loads(happened[-1][1])
    assert result == asyncio.run(undisturbed(seed, folder / f"undisturbed-{seed}")), seed
    effects = {node.label: node.effect for node in nodes(program_of(seed)) if node.kind in ("step", "again", "cancel")}
    acknowledged: set[str] = set()
    did: Counter[str] = Counter()
    for what, label, _ in happened:
        if what == "ack":
            acknowledged.add(label)
        elif what == "begin":
            assert label not in acknowledged, f"program {seed}: {label} begins again after the program had its result"
        elif what == "did":
            did[label] += 1
    for label, effect in effects.items():
        assert did[label] >= 1, f"program {seed}: {label} was never done"
        if effect == "unsafe":
            assert did[label] == 1, f"program {seed}: {label}, unsafe, was done {did[label]} times"


async def _sound(url: str) -> None:
    async with open_store(url) as store:
        (await verify_store(store)).check()


def run_programs(server: Server, folder: Path, url: str, seeds: range, kills: int) -> int:
    killed = sum(killed_and_resumed(server, folder, url, seed, kills) for seed in seeds)
    asyncio.run(_sound(url))
    return killed


def test_random_programs_killed_on_sqlite_end_as_if_nothing_had_happened(server: Server, tmp_path: Path) -> None:
    assert run_programs(server, tmp_path, f"sqlite:{tmp_path / 's.db'}", range(6), kills=4) > 12


def test_random_programs_killed_on_an_encrypted_store_end_as_if_nothing_had_happened(
    server: Server, tmp_path: Path
) -> None:
    place = tmp_path / "encrypted.db"
    assert run_programs(server, tmp_path, f"sqlite:{place}?key_env=PROGRAMS_KEY", range(200, 203), kills=4) > 6
    written = place.read_bytes()
    assert b"step_ended" in written, "types are plain"
    assert b'"said"' not in written, "bodies are not"


def test_random_programs_killed_on_postgresql_end_as_if_nothing_had_happened(
    server: Server, postgres: PrivateServer, tmp_path: Path
) -> None:
    assert run_programs(server, tmp_path, postgres.url, range(100, 102), kills=4) > 4


def test_random_programs_killed_on_encrypted_postgresql_end_as_if_nothing_had_happened(
    server: Server, postgres: PrivateServer, tmp_path: Path
) -> None:
    url = f"{postgres.url}&schema=sealed&key_env=PROGRAMS_KEY"
    assert run_programs(server, tmp_path, url, range(300, 302), kills=4) > 4
    with psycopg.connect(postgres.url) as connection:
        rows = connection.execute("SELECT type, body FROM sealed.entry").fetchall()
    assert "step_ended" in {type_ for type_, _ in rows}, "types are plain"
    assert not [body for _, body in rows if b'"said"' in bytes(body)], "bodies are not"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000, 1_800, 50))
def test_800_random_programs_on_sqlite(server: Server, tmp_path: Path, first: int) -> None:
    assert run_programs(server, tmp_path, f"sqlite:{tmp_path / 's.db'}", range(first, first + 50), kills=9) >= 250


@pytest.mark.soak
def test_50_random_programs_on_encrypted_postgresql(server: Server, postgres: PrivateServer, tmp_path: Path) -> None:
    url = f"{postgres.url}&schema=sealed50&key_env=PROGRAMS_KEY"
    assert run_programs(server, tmp_path, url, range(3_000, 3_050), kills=9) >= 250


@pytest.mark.soak
@pytest.mark.parametrize("first", range(2_000, 2_200, 50))
def test_200_random_programs_on_postgresql(server: Server, postgres: PrivateServer, tmp_path: Path, first: int) -> None:
    assert run_programs(server, tmp_path, postgres.url, range(first, first + 50), kills=9) >= 250
