"""A step that is cancelled anywhere and called again: one effect, one result, in this run and in the next."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import tool
from holdfast.sessions import Session
from holdfast.stores import SqliteStore, Store
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.postgres import PrivateServer

STEPS = 300


class World:
    """Counts what was done."""

    def __init__(self) -> None:
        self.paid: dict[int, int] = {}
        self.drawn = 0

    def functions(self) -> tuple[Any, Any]:
        async def draw(number: int) -> list[int]:
            self.drawn += 1
            return [number, self.drawn]

        @tool(effect="unsafe")
        async def pay(number: int) -> list[int]:
            self.paid[number] = self.paid.get(number, 0) + 1
            return [number, self.paid[number]]

        return draw, pay


async def called(session: Session, step: Any, number: int, chance: random.Random) -> Any:
    """Call a step, cancel it at some point, call it again at another, as often as chance will have it."""
    while True:
        task = asyncio.create_task(session.step(step, number))
        for _ in range(chance.choice([0, 1, 2, 3, 5, 8])):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.002)
        if chance.random() < 0.3:
            return await task
        task.cancel()
        with suppress(asyncio.CancelledError):
            return await task
        if chance.random() < 0.3:
            await asyncio.sleep(0)


async def check(store: Store, seed: int) -> None:
    chance, world = random.Random(seed), World()
    functions = world.functions()
    steps = [chance.choice(functions) for _ in range(STEPS)]
    async with Session.open("s", store=store) as session:
        first = [await called(session, step, number, chance) for number, step in enumerate(steps)]
    drawn = world.drawn
    async with Session.open("s", store=store) as session:
        assert session.unknown == ()
        assert [await session.step(step, number) for number, step in enumerate(steps)] == first
    assert world.drawn == drawn
    assert set(world.paid.values()) == {1}


@pytest.mark.parametrize("seed", range(3))
def test_XD2_a_step_cancelled_at_random_and_called_again_has_one_result(seed: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteStore(tmp_path / "work.db") as store:
            await check(store, seed)

    asyncio.run(main())


@pytest.fixture(scope="module")
def postgres() -> Iterator[PrivateServer]:
    with PrivateServer() as server:
        yield server


@pytest.mark.parametrize("seed", range(2))
def test_XD2_a_step_cancelled_at_random_on_postgresql_has_one_result(seed: int, postgres: PrivateServer) -> None:
    async def main() -> None:
        async with PostgresStore(postgres.url, schema=f"cancelled{seed}") as store:
            await check(store, seed)

    asyncio.run(main())
