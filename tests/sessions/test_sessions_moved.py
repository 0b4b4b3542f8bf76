"""What is around an unsafe call was changed between two runs of a program: the call inside does not happen a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed, next_run

from holdfast import Err, Workflow, tool
from holdfast.faults import HoldfastError
from holdfast.sessions import Session
from holdfast.stores import MemoryStore
from holdfast.tasks import workflow
from holdfast.testing import run

DONE: list[Any] = []
NAMES = ["ada", "bob"]
CUT: list[Any] = []
"""After how many payments the program is cut, and what says so."""


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()
    CUT.clear()


@tool(effect="unsafe")
async def pay(who: str) -> str:
    DONE.append(who)
    if CUT and len(DONE) == CUT[0]:
        CUT[1].set()
    return who


async def order(who: str) -> str:
    return await _session().step(pay, who)


async def order_renamed(who: str) -> str:
    return await _session().step(pay, who)


async def order_quietly(who: str, notify: bool = False) -> str:
    return await _session().step(pay, who)


async def all_orders() -> None:
    await in_turn(order)()


@workflow
async def settle(session: Session, names: list[str]) -> None:
    for name in names:
        await session.step(pay, name)


@workflow
async def settle_quietly(session: Session, names: list[str], notify: bool = False) -> None:
    for name in names:
        await session.step(pay, name)


OPEN: list[Session] = []


def _session() -> Session:
    return OPEN[-1]


Program = Callable[[], Awaitable[object]]


def in_turn(fn: Callable[[str], Awaitable[str]], *, names: list[str] = NAMES) -> Program:
    async def program() -> None:
        for name in names:
            await _session().step(fn, name)

    return program


def mapped(fn: Callable[[str], Awaitable[str]], *, names: list[str] = NAMES) -> Program:
    async def program() -> None:
        for each in await _session().map(fn, names, collect=True):
            if isinstance(each, Err):
                raise each.error or AssertionError

    return program


async def inlined() -> None:
    for name in NAMES:
        await _session().step(pay, name)


async def wrapped() -> None:
    await _session().step(all_orders)


async def interpreted() -> None:
    await Workflow('(pay "ada") (pay "bob")', name="settle", tasks=[pay]).run(_session())


async def interpreted_with_input() -> None:
    await Workflow('(pay "ada") (pay "bob")', name="settle", tasks=[pay]).run(_session(), inputs={"day": 1})


def settled(of: Any, names: list[str] = NAMES) -> Program:
    async def program() -> None:
        await of.run(_session(), names)

    return program


async def ended(store: MemoryStore, program: Program) -> None:
    next_run()
    async with Session.open("s", store=store) as session:
        OPEN[:] = [session]
        await program()


CHANGES = {
    "renamed": (in_turn(order), in_turn(order_renamed)),
    "a default more": (in_turn(order), in_turn(order_quietly)),
    "inlined": (in_turn(order), inlined),
    "wrapped": (inlined, in_turn(order)),
    "wrapped once more": (in_turn(order), wrapped),
    "unwrapped": (wrapped, in_turn(order)),
    "an item's function": (mapped(order), mapped(order_quietly)),
    "a workflow": (settled(settle), settled(settle_quietly)),
    "an input more": (settled(settle), settled(settle, [*NAMES, "cy"])),
    "into a workflow": (inlined, settled(settle)),
    "out of a workflow": (settled(settle), inlined),
    "an input of a program": (interpreted, interpreted_with_input),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_an_unsafe_call_whose_surroundings_were_changed_is_drift(before: Program, after: Program) -> None:
    async def main() -> None:
        store = MemoryStore()
        await ended(store, before)
        for _ in range(2):
            with pytest.raises(HoldfastError) as raised:
                await ended(store, after)
            assert code_of(raised.value) == "SESS_STEP_DRIFT"
        await ended(store, before)

    run(main())
    assert DONE == NAMES


def test_a_call_in_doubt_whose_surroundings_were_changed_does_not_happen_again() -> None:
    @tool(effect="unsafe")
    async def cut(who: str) -> str:
        DONE.append(who)
        if len(DONE) == 1:
            raise Crash
        return who

    async def first(who: str) -> str:
        return await _session().step(cut, who)

    async def second(who: str, notify: bool = False) -> str:
        return await _session().step(cut, who)

    async def main() -> None:
        store = MemoryStore()

        async def program(session: Session) -> None:
            OPEN[:] = [session]
            await session.step(first, "ada")

        await killed(store, program)
        with pytest.raises(HoldfastError, match="Nobody knows yet whether the stored call happened") as raised:
            await ended(store, in_turn(second))
        assert code_of(raised.value) == "SESS_STEP_DRIFT"
        async with Session.open("s", store=store) as session:
            await session.resolve(session.unknown[0], happened=False)
        await ended(store, in_turn(second))

    run(main())
    assert DONE == ["ada", "ada", "bob"]


def test_a_call_that_moved_returns_the_stored_result_if_somebody_says_so() -> None:
    async def main() -> None:
        store = MemoryStore()
        await ended(store, in_turn(order, names=["ada"]))
        with pytest.raises(HoldfastError) as raised:
            await ended(store, in_turn(order_quietly, names=["ada"]))
        async with Session.open("s", store=store) as session:
            await session.accept(raised.value.fault.context["key"])
        await ended(store, in_turn(order_quietly, names=["ada"]))

    run(main())
    assert DONE == ["ada"]


# --- programs that nobody changed: equal calls in other places are other calls ---


async def gift(who: str) -> str:
    await asyncio.sleep({"slow": 8, "ada": 1}.get(who, 0))
    return await _session().step(pay, "a book")


async def gifts_apart() -> None:
    async def customer(name: str) -> None:
        if len(DONE) > 0:
            await asyncio.sleep(8 if name == "slow" else 0)
        await _session().step(gift_now, name)

    await asyncio.gather(customer("slow"), customer("bob"))


async def gift_now(who: str) -> str:
    return await _session().step(pay, "a book")


async def in_parts() -> None:
    names = ["ada", "bob", "cy"]
    for name in names if not DONE else names[::-1]:
        with _session().part(name):
            await _session().step(pay, "a book")


async def settled_each() -> None:
    for day in ("monday", "tuesday", "wednesday"):
        await monthly.run(_session(), day)


@workflow
async def monthly(session: Session, day: str) -> str:
    return await session.step(pay, "a book")


UNCHANGED: dict[str, Program] = {
    "steps": in_turn(gift_now, names=["ada", "bob", "cy"]),
    "items": mapped(gift, names=["ada", "bob", "cy"]),
    "workflows": settled_each,
    "tasks": gifts_apart,
    "parts": in_parts,
}


@pytest.mark.parametrize("program", UNCHANGED.values(), ids=UNCHANGED)
@pytest.mark.parametrize("at", [1, 2])
def test_equal_calls_in_other_places_are_no_drift_wherever_the_program_is_cut(program: Program, at: int) -> None:
    async def main() -> None:
        store = MemoryStore()

        reached = asyncio.Event()
        CUT[:] = [at, reached]

        async def cut(session: Session) -> None:
            OPEN[:] = [session]
            task = asyncio.ensure_future(program())
            await reached.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise Crash

        await killed(store, cut)
        async with Session.open("s", store=store) as session:
            for key in session.unknown:
                await session.resolve(key, happened=True, result="a book")
        await ended(store, program)
        made = len(DONE)
        await ended(store, program)
        assert len(DONE) == made
        assert made == (2 if program is gifts_apart else 3)

    run(main())


def test_what_was_left_out_in_one_opening_is_no_drift_in_the_next_one() -> None:
    async def main() -> None:
        store = MemoryStore()
        await ended(store, in_turn(gift_now))
        next_run()
        for name in ("ada", "bob", "cy"):
            async with Session.open("s", store=store) as session:
                OPEN[:] = [session]
                await session.step(gift_now, name)

    run(main())
    assert len(DONE) == 3


def test_an_item_that_comes_later_makes_its_own_call() -> None:
    async def main() -> None:
        store = MemoryStore()
        await ended(store, mapped(gift_now, names=["bob"]))
        next_run()
        async with Session.open("s", store=store) as session:
            OPEN[:] = [session]
            async for each in session.map(gift_now, ["ada", "bob"], concurrency=1):
                assert not isinstance(each, Err)

    run(main())
    assert len(DONE) == 2
