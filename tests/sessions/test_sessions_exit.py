"""Cancelled, left, entered again: whatever becomes of those who use a session, what it says of itself stays true (N2-10, S2-17)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed, square

from holdfast import Runtime, tool
from holdfast.events import SuppressedError
from holdfast.faults import AbortedError, HoldfastError, InvalidError
from holdfast.sessions import Session
from holdfast.sessions.log import TurnEnded, read_entry
from holdfast.stores import Commit, Lease, MemoryStore, Receipt, SessionState
from holdfast.stores.errors import unavailable
from holdfast.testing import Capture, VirtualClock, run

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@tool(effect="unsafe")
def deploy(plan: str) -> int:
    DONE.append(plan)
    return 7


@tool(effect="unsafe")
def cut(plan: str) -> int:
    DONE.append(plan)
    raise Crash


class SlowStore(MemoryStore):
    """Does everything at once, and returns a second later."""

    async def commit(self, commit: Commit) -> Receipt:
        receipt = await super().commit(commit)
        await asyncio.sleep(1)
        return receipt

    async def acquire(self, session: str, owner: str, ttl: float) -> Lease:
        # As a writer of its own does: it goes on when the caller is cancelled.
        return await asyncio.shield(asyncio.ensure_future(self._acquire(session, owner, ttl)))

    async def _acquire(self, session: str, owner: str, ttl: float) -> Lease:
        await asyncio.sleep(1)
        return await super().acquire(session, owner, ttl)


async def outcomes(store: MemoryStore) -> list[str]:
    bodies = [read_entry("s", entry) for entry in await store.read("s")]
    return [one.outcome for one in bodies if isinstance(one, TurnEnded)]


async def cancelled_after(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await work()


def test_a_cancelled_opening_gives_the_session_back() -> None:
    async def main() -> None:
        store = SlowStore()
        async with Session.open("s", store=store) as session:
            await session.step(square, 3)
        for tenths in range(1, 20, 2):
            await cancelled_after(tenths / 10, Session.open("s", store=store).__aenter__)
            await asyncio.sleep(3)
            assert (await store.session("s")).owner is None

    run(main())


def test_a_first_step_that_is_cancelled_anywhere_leaves_a_session_that_works() -> None:
    async def main() -> None:
        for tenths in range(1, 30, 3):
            store = SlowStore()
            async with Session.open("s", store=store) as session:
                await cancelled_after(tenths / 10, lambda session=session: session.step(deploy_slowly, "x"))
                assert await session.step(square, 3) == 9
            assert (await store.session("s")).state is SessionState.PAUSED

    async def deploy_slowly(plan: str) -> int:
        await asyncio.sleep(1)
        return 1

    run(main())


def test_N210_a_turn_that_was_cut_off_here_does_not_block_the_next_and_is_not_called_good() -> None:
    async def main() -> None:
        for tenths in range(1, 60, 3):
            store = SlowStore()
            async with Session.open("s", store=store) as session:

                async def worked(session: Session = session) -> None:
                    async with session.turn("a"):
                        await session.step(square, 3)
                        await asyncio.sleep(100)

                await cancelled_after(tenths / 10, worked)
                async with session.turn("b"):
                    assert await session.step(square, 4) == 16
            assert await outcomes(store) == ["failed", "ok"]

    run(main())


def test_a_turn_that_was_cut_off_and_followed_by_none_has_failed() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1), session.turn("a"):
                    await asyncio.sleep(100)
        assert await outcomes(store) == ["failed"]

    run(main())


@pytest.mark.parametrize("inside", [False, True])
def test_B102_to_resolve_a_step_and_leave_does_not_end_the_turn(inside: bool) -> None:
    async def program(session: Session) -> None:
        assert await session.step(deploy, "first") == await session.step(cut, "second") == 7

    async def work(session: Session) -> None:
        if not inside:
            return await program(session)
        async with session.turn("q"):
            return await program(session)

    async def main() -> None:
        store = MemoryStore()
        await killed(store, work)
        async with Session.open("s", store=store) as session:
            await session.resolve(session.unknown[0], happened=True, result=7)
        async with Session.open("s", store=store) as session:
            assert session.in_flight == (1 if inside else None)
            await work(session)
        assert DONE == ["first", "second"]

    run(main())


@pytest.mark.parametrize("end", ["abandon", "close"])
def test_a_turn_may_be_ended_from_inside(end: str) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session, session.turn("a"):
            await getattr(session, end)()
        assert await outcomes(store) == ["abandoned"]

    run(main())


def test_cancelling_oneself_right_before_leaving_is_raised_as_such() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(AbortedError) as raised:
            async with Session.open("s", store=store) as session:
                await session.step(square, 3)
                session.cancel()
        assert code_of(raised.value) == "SESS_CANCELLED"
        record = await store.session("s")
        assert (record.state, record.owner) == (SessionState.PAUSED, None)

    run(main())


def test_leaving_that_is_cancelled_is_finished_first() -> None:
    async def main() -> None:
        store = SlowStore()
        session = Session.open("s", store=store)
        await session.__aenter__()
        await session.step(square, 3)
        await cancelled_after(0.5, lambda: session.__aexit__(None, None, None))
        record = await store.session("s")
        assert (record.state, record.owner) == (SessionState.PAUSED, None)

    run(main())


def test_a_session_that_was_left_takes_nothing_more() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(square, 3)
        top = (await store.session("s")).top
        for work in (lambda: session.step(deploy, "x"), lambda: session.message("hi"), session.close):
            with pytest.raises(HoldfastError, match="was left"):
                await work()
        assert ((await store.session("s")).top, DONE) == (top, [])
        with pytest.raises(InvalidError, match="which was entered before"):
            await session.__aenter__()

    run(main())


@pytest.mark.parametrize("odd", [object(), math.nan, {1: [math.inf]}])
def test_a_context_that_cannot_be_stored_raises_where_it_is(odd: Any) -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(InvalidError, match=r"session\.context: expected"):
            async with Session.open("s", store=store) as session:
                await session.step(square, 3)
                session.context["odd"] = odd
        assert (await store.session("s")).owner is None
        with pytest.raises(ZeroDivisionError) as raised:
            async with Session.open("s", store=store) as session:
                session.context["odd"] = odd
                raise ZeroDivisionError
        # After an exception the context is not saved.
        assert not hasattr(raised.value, "__notes__")

    run(main())


def test_who_is_late_does_not_give_back_what_another_of_the_process_took() -> None:
    async def main() -> None:
        store = MemoryStore()
        first = Session.open("s", store=store)
        await first.__aenter__()
        await store.acquire("s", first._keeper.lease("s").owner, 0.0)  # its time is over
        async with Session.open("s", store=store) as second:
            with pytest.raises(HoldfastError) as raised:
                await first.__aexit__(None, None, None)
            assert code_of(raised.value) == "SESS_LEASE_LOST"
            assert await second.step(square, 3) == 9
            assert (await store.session("s")).owner is not None

    run(main())


def test_B93_once_closed_every_operation_says_so_also_inside_of_its_turn_and_after_leaving() -> None:
    async def main() -> None:
        store = MemoryStore()
        session = Session.open("s", store=store)

        async def rejected() -> None:
            for work in (
                lambda: session.step(deploy, "x"),
                lambda: session.message("hi"),
                session.close,
                session.checkpoint,
            ):
                with pytest.raises(HoldfastError) as raised:
                    await work()
                assert code_of(raised.value) == "SESS_CLOSED"

        async with session:
            async with session.turn("a"):
                await session.close()
                await rejected()
            await rejected()
        await rejected()
        assert DONE == []

    run(main())


def test_a_store_that_raises_anything_does_not_end_the_renewing() -> None:
    class Odd(MemoryStore):
        renewed = 0

        async def renew(self, lease: Lease, ttl: float) -> Lease:
            self.renewed += 1
            if self.renewed == 1:
                raise RuntimeError("a bug of the store")
            return await super().renew(lease, ttl)

    async def main() -> None:
        store = Odd()
        async with Session.open("s", store=store, lease=30):
            await asyncio.sleep(100)
        assert store.renewed > 5

    run(main())


@pytest.mark.parametrize("when", ["left", "cancelled"])
def test_FR29_C21_a_lease_that_cannot_be_given_back_is_reported(when: str) -> None:
    class Stuck(SlowStore):
        async def release(self, lease: Lease) -> None:
            raise unavailable("the disk is full")

    async def main() -> None:
        store = Stuck()
        opening = asyncio.ensure_future(Session.open("s", store=store, runtime=runtime, lease=30).__aenter__())
        if when == "cancelled":
            await asyncio.sleep(1.5)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        else:
            await (await opening).__aexit__(None, None, None)

    clock, heard = VirtualClock(), Capture()
    runtime = Runtime(clock=clock)
    runtime.on(heard)
    run(main(), clock=clock)
    (event,) = heard.of(SuppressedError)
    assert (event.reason, event.code) == ("a lease that is not given back ends by itself", "SESS_STORE_UNAVAILABLE")


def test_FR29_C21_a_lease_that_cannot_be_renewed_yet_is_reported() -> None:
    class Odd(MemoryStore):
        renewed = 0

        async def renew(self, lease: Lease, ttl: float) -> Lease:
            self.renewed += 1
            if self.renewed == 1:
                raise unavailable("the disk is full")
            return await super().renew(lease, ttl)

    async def main() -> None:
        async with Session.open("s", store=Odd(), runtime=runtime, lease=30):
            await asyncio.sleep(25)

    clock, heard = VirtualClock(), Capture()
    runtime = Runtime(clock=clock)
    runtime.on(heard)
    run(main(), clock=clock)
    assert [event.code for event in heard.of(SuppressedError)] == ["SESS_STORE_UNAVAILABLE"]
