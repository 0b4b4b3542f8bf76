"""What a step leaves in the log is what comes back, in its own turn and in no other; a value that cannot is rejected at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from sessions_kit import code_of

from holdfast import OutcomeUnknownError, tool
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Session
from holdfast.stores import MemoryStore
from holdfast.testing import run

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


async def slow(n: int) -> int:
    await asyncio.sleep(1)
    DONE.append(n)
    return n


def counted(n: int) -> int:
    DONE.append(n)
    return n


@tool(effect="unsafe")
def deploy(plan: str) -> object:
    DONE.append(plan)
    return object()


def not_a_number() -> float:
    return math.nan


def infinite_somewhere():  # type: ignore[no-untyped-def]
    return {"a": [1.0, None, math.inf]}


def later(n: int) -> Awaitable[int]:
    return slow(n)


def test_a_step_that_outlasts_its_turn_is_no_step_of_the_next() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            async with session.turn("a"):
                beside = asyncio.ensure_future(session.step(slow, 1))
                await asyncio.sleep(0.5)
            await beside
            async with session.turn("b"):
                await session.step(slow, 1)
        assert DONE == [1, 1]

    run(main())


def test_a_turn_that_is_over_takes_no_step() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            async with session.turn("a") as turn:
                pass
            with pytest.raises(HoldfastError, match="turn 1 is over") as raised:
                await turn.steps.step(counted, (1,), {})
            assert code_of(raised.value) == "SESS_TURN_CONCURRENT"
        assert DONE == []

    run(main())


def test_B102_an_unsafe_step_whose_result_cannot_be_stored_is_not_repeated() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(
            InvalidError, match="deploy: expected a value that is the same when the session is resumed, got object"
        ):
            async with Session.open("s", store=store) as session:
                await session.step(deploy, "x")
        with pytest.raises(OutcomeUnknownError):
            async with Session.open("s", store=store) as session:
                assert len(session.unknown) == 1
                await session.step(deploy, "x")
        assert DONE == ["x"]

    run(main())


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (not_a_number, "got nan: a finite number"),
        (infinite_somewhere, "got inf in result"),
    ],
)
def test_a_value_that_would_come_back_changed_is_rejected_when_it_is_stored(
    fn: Callable[[], Any], message: str
) -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(InvalidError, match=message):
                await session.step(fn)

    run(main())


def test_a_function_may_return_what_is_awaited() -> None:
    async def main() -> None:
        store = MemoryStore()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                async with Session.open("s", store=store) as session:
                    assert await session.step(later, 1) == 1
                    raise ZeroDivisionError
        assert DONE == [1]

    run(main())


def test_what_a_partial_holds_are_arguments_too() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(ZeroDivisionError):
            async with Session.open("s", store=store) as session:
                assert await session.step(partial(counted, 1)) == 1
                raise ZeroDivisionError
        async with Session.open("s", store=store) as session:
            assert await session.step(partial(counted, n=2)) == 2
            assert await session.step(partial(counted, 1)) == 1
        assert DONE == [1, 2]
        async with Session.open("t", store=store) as session:
            assert await session.step(partial(partial(counted), n=3)) == 3

    run(main())
