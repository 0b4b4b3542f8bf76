"""A program that enters `Session.open` of one session several times, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from sessions_kit import Crash, code_of, dies, next_run

from holdfast import Backoff, Policy, recover, tool
from holdfast.events import StepNotReplayed
from holdfast.faults import HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import Session
from holdfast.stores import MemoryStore
from holdfast.testing import Capture, run

DONE: list[str] = []
PEOPLE = ("ada", "bob", "cy")


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@tool(effect="unsafe")
async def pay(who: str) -> str:
    DONE.append(who)
    return f"{who} has {DONE.count(who)}"


async def pay_each(store: MemoryStore, turns: str, *, die_at: str = "") -> list[str]:
    """Pay each person in an opening of its own. The process may die before or after one of the payments."""
    found = []

    async def paid(session: Session, who: str) -> None:
        found.append(await session.step(pay, who))
        if die_at == f"after {who}":
            raise Crash

    for who in PEOPLE:
        session = Session.open("s", store=store)
        await session.__aenter__()
        try:
            if die_at == f"before {who}":
                raise Crash
            if turns == "none":
                await paid(session, who)
            else:
                async with session.turn(who, key=who if turns == "keyed" else None):
                    await paid(session, who)
        except Crash:
            await dies(session)
            next_run()
            raise
        except HoldfastError as error:
            await session.__aexit__(type(error), error, None)
            raise
        await session.__aexit__(None, None, None)
    return found


@pytest.mark.parametrize("turns", ["none", "plain", "keyed"])
def test_XD19_a_program_may_open_its_session_several_times(turns: str) -> None:
    async def main() -> None:
        assert await pay_each(MemoryStore(), turns) == [f"{who} has 1" for who in PEOPLE]

    run(main())
    assert list(PEOPLE) == DONE


@pytest.mark.parametrize("turns", ["none", "plain", "keyed"])
@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize("when", ["before", "after"])
def test_XD19_such_a_program_that_is_killed_pays_once_and_ends(when: str, who: str, turns: str) -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(Crash):
            await pay_each(store, turns, die_at=f"{when} {who}")
        if turns == "plain" and when == "before" and who != PEOPLE[0]:
            # No turn was cut off, and one without a key is a new one.
            with pytest.raises(HoldfastError, match="again=True"):
                await pay_each(store, turns)
        else:
            assert await pay_each(store, turns) == [f"{each} has 1" for each in PEOPLE]
        assert len(set(DONE)) == len(DONE)

    run(main())


def test_XD19_an_equal_call_of_another_opening_is_the_same_call() -> None:
    async def main() -> list[str]:
        found, store = [], MemoryStore()
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                found.append(await session.step(pay, "ada"))
        return found

    assert run(main()) == ["ada has 1", "ada has 1"]


async def pay_with_a_number(store: MemoryStore, who: str) -> str:
    async with Session.open("s", store=store) as session:
        return await session.step(pay, who)


def test_after_an_opening_that_failed_the_program_may_have_begun_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        await pay_with_a_number(store, "ada")
        with pytest.raises(KeyError):
            async with Session.open("s", store=store):
                raise KeyError("id")
        with pytest.raises(HoldfastError) as raised:
            await pay_with_a_number(store, "bob")
        assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == ["ada"]


def test_the_next_attempt_of_a_recovery_begins_again() -> None:
    tokens = iter(("token 1", "token 2", "token 3"))

    async def program(store: MemoryStore) -> None:
        await pay_with_a_number(store, next(tokens))
        raise ConnectionResetError("after the block")

    async def main() -> None:
        policy = Policy(attempts=3, backoff=Backoff(initial=0.001))
        with pytest.raises(HoldfastError) as raised:
            await recover("orders", policy, effect="idempotent").call(program, MemoryStore())
        assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == ["token 1"]


def test_what_an_earlier_opening_called_is_not_reported_as_not_called() -> None:
    async def main() -> list[Any]:
        store, capture = MemoryStore(), Capture()
        with default_runtime().on(capture):
            for who in PEOPLE:
                await pay_with_a_number(store, who)
        return capture.of(StepNotReplayed)

    assert run(main()) == []
