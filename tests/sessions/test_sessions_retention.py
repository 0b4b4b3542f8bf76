"""What a store need not keep: decided from a session's record, then dropped and recorded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from sessions_kit import code_of, square

from holdfast import tool
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Session, answer, pending
from holdfast.sessions.retention import CHAIN, Retention, decide, plan, prune
from holdfast.stores import MemoryStore, SessionRecord, SessionState
from holdfast.testing import run

DAY = 86_400.0


def record(**more: Any) -> SessionRecord:
    kept: dict[str, Any] = {
        "id": "s",
        "epoch": "e",
        "state": SessionState.PAUSED,
        "oldest": 1,
        "top": 100,
        "created_at": 0.0,
        "last_at": 0.0,
        "manifest": msgspec.Raw(b"{}"),
        "checkpoint": 90,
    }
    return SessionRecord(**kept | more)


@pytest.mark.parametrize(
    ("what", "rules", "days", "expected"),
    [
        (record(state=SessionState.CLOSED), {}, 31, ("remove", 0, 100)),
        (record(state=SessionState.CLOSED), {"idle": None, "entries": None}, 30, None),
        (record(state=SessionState.CLOSED), {"closed": None, "idle": None}, 3000, None),
        (record(state=SessionState.ERROR), {"failed": DAY}, 2, ("remove", 0, 100)),
        (record(state=SessionState.ERROR), {"idle": None}, 3000, None),
        (record(), {"closed": 0.0, "idle": None}, 3000, None),
        (record(), {}, 8, ("compact", 91, 90)),
        (record(oldest=91), {}, 8, None),
        (record(checkpoint=None), {}, 8, None),
        (record(checkpoint=0), {}, 8, None),
        (record(), {}, 7, None),
        (record(), {"entries": 50}, 0, ("compact", 41, 40)),
        (record(), {"entries": 90}, 0, None),
        (record(), {"entries": None}, 0, None),
        (record(oldest=40), {"entries": 50}, 0, ("compact", 41, 1)),
        (record(state=SessionState.ACTIVE), {"entries": 0}, 0, ("compact", 91, 90)),
    ],
)
def test_what_goes_is_decided_by_state_age_and_size(
    what: SessionRecord, rules: dict[str, Any], days: float, expected: Any
) -> None:
    action = decide(what, Retention(**rules), days * DAY)
    assert (action and (action.what, action.before, action.entries)) == expected


@pytest.mark.parametrize("wrong", [{"closed": -1}, {"entries": -1}, {"claims": None}, {"idle": "7d"}])
def test_rules_that_make_no_sense_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=r"retention\."):
        Retention(**wrong)


def test_pruning_drops_what_the_plan_says_and_what_is_needed_stays() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("done", store=store) as session:
            await session.close()
        with pytest.raises(HoldfastError):
            async with Session.open("waits", store=store) as session:
                await session.step(square, 3)
                await session.approve("Deploy?")
        await asyncio.sleep(40 * DAY)
        now = (await store.session("waits")).last_at + 40 * DAY
        planned = [action async for action in plan(store, Retention(), now)]
        assert [(action.session, action.what) for action in planned] == [("done", "remove"), ("waits", "compact")]
        assert await prune(store, Retention(), now) == planned
        with pytest.raises(HoldfastError) as raised:
            await store.session("done")
        assert code_of(raised.value) == "SESS_NOT_FOUND"
        assert len(await store.audit(CHAIN)) == 2
        assert await prune(store, Retention(), now) == []
        (question,) = await pending(store, "waits")
        await answer(store, "waits", question.id, approved=True)
        async with Session.open("waits", store=store) as session:
            assert await session.step(square, 3) == 9
            assert await session.approve("Deploy?") is True

    run(main())


def test_ids_of_messages_are_forgotten_but_for_the_last_thousand() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            for n in range(1_100):
                await session.message("hello", id=f"m-{n}")
            last = (await store.session("s")).last_at
            await prune(store, Retention(), last + 2 * DAY)
            top = (await store.session("s")).top
            await session.message("hello", id="m-1099")
            assert (await store.session("s")).top == top
            await session.message("hello", id="m-0")
            assert (await store.session("s")).top == top + 1

    run(main())


def test_what_another_removes_meanwhile_is_no_error() -> None:
    class Racing(MemoryStore):
        """Somebody else prunes too, and is always first."""

        async def remove(self, session: str) -> None:
            await super().remove(session)
            await super().remove(session)

    async def main() -> None:
        store = Racing()
        for session in ("a", "b"):
            async with Session.open(session, store=store) as opened:
                await opened.close()
        assert await prune(store, Retention(closed=0), time.time() + 10) == []
        assert await store.sessions() == []

    run(main())


@pytest.mark.parametrize("rules", [Retention(entries=0), Retention(entries=3), Retention(idle=0.0)], ids=repr)
@pytest.mark.parametrize("unsafe_in", [1, 2, 4])
def test_an_unsafe_step_of_a_turn_without_a_key_does_not_happen_again_after_pruning(
    rules: Retention, unsafe_in: int
) -> None:
    paid: list[int] = []

    @tool(effect="unsafe")
    async def pay(number: int) -> int:
        paid.append(number)
        return number

    async def program(store: MemoryStore) -> None:
        async with Session.open("s", store=store) as session:
            for number in range(1, 5):
                async with session.turn(f"message {number}"):
                    await session.step(square, number)
                    if number == unsafe_in:
                        await session.step(pay, number)

    async def main() -> None:
        async with MemoryStore() as store:
            await program(store)
            await prune(store, rules, time.time() + 1)
            with pytest.raises(HoldfastError) as error:
                await program(store)
            assert code_of(error.value) == "SESS_STEP_DRIFT"
            oldest = (await store.session("s")).oldest
            assert (oldest > 2) == (unsafe_in > 1), "what nobody needs is dropped"

    run(main())
    assert paid == [unsafe_in]


def test_a_turn_with_a_key_whose_log_was_dropped_does_nothing_and_says_why() -> None:
    paid: list[int] = []

    @tool(effect="unsafe")
    async def pay(number: int) -> int:
        paid.append(number)
        return number

    async def turn(store: MemoryStore, number: int) -> int:
        async with Session.open("s", store=store) as session, session.turn("pay", key=f"message {number}"):
            return int(await session.step(pay, number))

    async def main() -> None:
        async with MemoryStore() as store:
            for number in (1, 2):
                await turn(store, number)
            await prune(store, Retention(entries=0), time.time())
            with pytest.raises(HoldfastError, match="was dropped by `holdfast sessions prune`") as error:
                await turn(store, 1)
            assert code_of(error.value) == "SESS_STEP_DRIFT"
            assert await turn(store, 3) == 3

    run(main())
    assert paid == [1, 2, 3]


def test_a_program_of_several_turns_that_was_cut_goes_on_after_pruning() -> None:
    ran: list[int] = []

    async def work(number: int) -> int:
        ran.append(number)
        if ran == [1, 2, 3]:
            raise KeyError(number)
        return number

    async def program(store: MemoryStore) -> None:
        async with Session.open("s", store=store) as session:
            for number in (1, 2, 3):
                async with session.turn(f"message {number}"):
                    await session.step(work, number)
                    await session.checkpoint()

    async def main() -> None:
        async with MemoryStore() as store:
            with pytest.raises(KeyError):
                await program(store)
            await prune(store, Retention(idle=0.0), time.time() + 1)
            await program(store)

    run(main())
    assert ran == [1, 2, 3, 3]
