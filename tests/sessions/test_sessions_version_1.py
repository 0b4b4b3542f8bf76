"""Sessions that version 1 wrote (fixtures/write_version_1.py): nothing that happened then happens again."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sessions_kit import code_of

from holdfast import OutcomeUnknownError, tool
from holdfast.faults import HoldfastError
from holdfast.runtime.tool import call_key
from holdfast.sessions import Answer, Session
from holdfast.sessions.transfer import import_lines
from holdfast.stores import MemoryStore, SqliteStore, Store
from holdfast.testing import run

FIXTURES = Path(__file__).parent / "fixtures"
DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@pytest.fixture(params=["store", "export"])
def opened(request: Any, tmp_path: Path) -> Callable[[str], Any]:
    """Opens a store that has the session: the file that version 1 wrote, or an import of its export."""

    @asynccontextmanager
    async def open_it(session: str) -> AsyncIterator[Store]:
        if request.param == "store":
            shutil.copy(FIXTURES / "version_1.db", tmp_path / "work.db")
            async with SqliteStore(tmp_path / "work.db") as store:
                yield store
        else:
            store = MemoryStore()
            await import_lines(store, (FIXTURES / f"version_1_{session}.jsonl").read_bytes().splitlines())
            yield store

    return open_it


def make_plan(goal: str) -> str:
    DONE.append(goal)
    return f"plan for {goal}"


@tool(effect="unsafe")
def deploy(plan: str) -> int:
    DONE.append(plan)
    return 8


@tool(effect="unsafe")
async def pay(amount: int) -> str:
    DONE.append(amount)
    return f"receipt {amount}"


@tool(effect="unsafe")
async def lose(amount: int) -> str:
    DONE.append(amount)
    return "paid"


@tool(effect="keyed")
async def keyed(n: int) -> str:
    DONE.append(n)
    return call_key()


@tool(effect="idempotent")
def square(n: int) -> int:
    DONE.append(n)
    return n * n


class Nobody:
    async def ask(self, question: Any) -> Answer:
        raise AssertionError(question)


def test_what_an_own_turn_did_is_done_after_good_ends_too(opened: Any) -> None:
    async def main() -> None:
        async with opened("finished") as store:
            for _ in range(2):
                async with Session.open("finished", store=store, interactors=[Nobody()]) as session:
                    assert session.context == {"runs": 2}
                    plan = await session.step(make_plan, "release 42")
                    assert await session.approve("Deploy?")
                    assert await session.step(deploy, plan) == 7
                    assert [o.value async for o in session.map(square, [3, 2, 1])] == [9, 4, 1]
                    assert session.unknown == ()

    run(main())
    assert DONE == []


def test_an_unsafe_step_with_other_arguments_than_version_1_had_is_drift(opened: Any) -> None:
    async def main() -> None:
        async with opened("finished") as store, Session.open("finished", store=store) as session:
            with pytest.raises(HoldfastError) as raised:
                await session.step(deploy, "another plan")
            assert code_of(raised.value) == "SESS_STEP_DRIFT"
            key = raised.value.fault.context["key"]
            assert key == "finished/2/deploy#1"
            await session.accept(key)
            assert await session.step(deploy, "another plan") == 7

    run(main())
    assert DONE == []


def test_a_doubt_that_version_1_forgot_is_raised_again(opened: Any) -> None:
    async def main() -> None:
        async with opened("in-doubt") as store:
            async with Session.open("in-doubt", store=store) as session:
                assert session.unknown == ("in-doubt/1/lose#1",)
                with pytest.raises(OutcomeUnknownError) as raised:
                    await session.step(lose, 5)
                await session.resolve(raised.value.key, happened=True, result="paid before")
            async with Session.open("in-doubt", store=store) as session:
                assert await session.step(lose, 5) == "paid before"
                assert session.unknown == ()

    run(main())
    assert DONE == []


def test_a_turn_that_was_cut_off_goes_on_and_its_steps_keep_their_names(opened: Any) -> None:
    async def main() -> None:
        async with (
            opened("turns") as store,
            Session.open("turns", store=store, interactors=[Nobody()]) as session,
        ):
            assert session.in_flight == 2
            async with session.turn("two") as turn:
                assert (turn.number, turn.input) == (2, "two")
                assert await session.approve("Pay twice?")
                # In another order: equal arguments are the first and the second use.
                assert await session.step(pay, 2) == "receipt 2"
                assert [await session.step(pay, 1) for _ in range(2)] == ["receipt 1"] * 2
                with pytest.raises(OutcomeUnknownError) as raised:
                    await session.step(pay, 13)
                assert raised.value.key == "turns/2/pay#4"
                await session.resolve(raised.value.key, happened=False)
                assert await session.step(pay, 13) == "receipt 13"
            # A step outside of turns is not one of a turn that ended.
            assert await session.step(pay, 1) == "receipt 1"

    run(main())
    assert DONE == [13, 1]


def test_steps_outside_of_turns_that_were_killed_go_on_with_their_keys(opened: Any) -> None:
    async def main() -> None:
        async with opened("killed") as store:
            for _ in range(2):
                async with Session.open("killed", store=store) as session:
                    assert session.in_flight is None
                    await session.step(make_plan, "a fix")
                    assert await session.step(keyed, 1) == "killed/1/keyed#1"
                    assert await session.step(pay, 1) == "receipt 1"
                    # It began under version 1, and the other side may know its key.
                    assert await session.step(keyed, 2) == "killed/1/keyed#2"
                    async with session.turn("new") as turn:
                        assert turn.number in (2, 3)

    run(main())
    assert DONE == [2]
