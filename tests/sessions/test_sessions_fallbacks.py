"""A fallback around a step does nothing in the place of what was done, or may have been."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sessions_kit import FailingStore, code_of, next_run

from holdfast import Backoff, Policy, recover, tool
from holdfast.faults import HoldfastError
from holdfast.sessions import Session
from holdfast.stores import MemoryStore
from holdfast.testing import run

DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@tool(effect="unsafe")
async def pay(token: str) -> str:
    DONE.append(token)
    return token


def with_fallback(session: Session, token: str) -> Any:
    @recover("bank", Policy(attempts=2, backoff=Backoff(initial=0.001)))
    async def order() -> str:
        return await session.step(pay, token)

    @order.fallback
    async def elsewhere() -> str:
        DONE.append("elsewhere")
        return "elsewhere"

    return order


def test_no_fallback_acts_where_an_earlier_run_has_done_it() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await with_fallback(session, "token 1")()
        next_run()
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError) as raised:
                await with_fallback(session, "token 2")()
            assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == ["token 1"]


def test_no_fallback_acts_where_another_process_took_over() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store), Session.open("t", store=store) as session:
            order = with_fallback(session, "token 1")
            kept = session._keeper.forget("t")
            assert kept is not None
            await store.acquire("t", kept.lease.owner, 0.0)
            await store.acquire("t", "another process", 30.0)
            with pytest.raises(HoldfastError) as raised:
                await order()
            assert code_of(raised.value) == "SESS_LEASE_LOST"

    run(main())
    assert DONE == []


@pytest.mark.parametrize(("unstored", "done"), [("step_started", "elsewhere"), ("step_ended", "token 1")])
def test_no_fallback_acts_where_a_step_has_happened_that_could_not_be_stored(unstored: str, done: str) -> None:
    async def main() -> None:
        store = FailingStore()
        async with Session.open("s", store=store) as session:
            store.failing = lambda commit: any(unstored in bytes(entry.body).decode() for entry in commit.entries)
            with suppress(HoldfastError):
                await with_fallback(session, "token 1")()

    run(main())
    assert [done] == DONE


def test_what_a_step_has_returned_is_in_the_error_if_it_could_not_be_stored() -> None:
    @tool(effect="unsafe")
    async def pay(token: str) -> dict[str, str]:
        return {"receipt": f"R-{token}", "password": "hunter2"}

    async def main() -> None:
        store = FailingStore()
        async with Session.open("s", store=store) as session:
            store.failing = lambda commit: any("step_ended" in bytes(entry.body).decode() for entry in commit.entries)
            with pytest.raises(HoldfastError) as raised:
                await session.step(pay, "17")
            store.failing = lambda _: False
        (note,) = (note for note in raised.value.__notes__ if "has returned" in note)
        assert '"receipt":"R-17"' in note
        assert "hunter2" not in note
        async with Session.open("s", store=store) as session:
            (doubt,) = session.unknown
            assert f"session.resolve({doubt!r}, happened=True" in note

    run(main())


def test_no_second_fallback_acts_where_the_first_one_may_have_paid() -> None:
    @tool(effect="unsafe")
    async def pay_elsewhere(token: str) -> str:
        DONE.append(token)
        raise ConnectionResetError(104, "Connection reset by peer")

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:

            @recover("bank", Policy(attempts=1))
            async def order() -> str:
                raise ConnectionRefusedError(111, "Connection refused")

            @order.fallback
            async def second() -> str:
                return await session.step(pay_elsewhere, "second bank")

            @order.fallback
            async def third() -> str:
                DONE.append("third bank")
                return "third bank"

            with pytest.raises(ConnectionResetError):
                await order()

    run(main())
    assert DONE == ["second bank"]
