"""Where a step is called: what is called inside of another step is counted apart, and nothing waits for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed, next_run

from holdfast import tool
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Answer, Question, Session
from holdfast.stores import MemoryStore
from holdfast.testing import run

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@tool(effect="unsafe")
async def pay(who: str) -> int:
    DONE.append(who)
    return len(DONE)


async def note(what: str) -> str:
    DONE.append(what)
    return what.upper()


@pytest.mark.parametrize("outer_effect", [None, "unsafe"])
def test_XD6_an_unsafe_step_inside_a_stored_step_does_not_block_another_call_of_its_function(outer_effect: Any) -> None:
    async def outer(session: Session) -> int:
        return await session.step(pay, "inner")

    async def program(session: Session, *, die: bool) -> list[int]:
        async def called() -> int:
            return await outer(session)

        if outer_effect:
            tool(effect=outer_effect)(called)
        first = await session.step(called)
        if die:
            raise Crash
        return [first, await session.step(pay, "after")]

    async def main() -> None:
        store = MemoryStore()
        for _ in range(2):
            await killed(store, lambda session: program(session, die=True))
        async with Session.open("s", store=store) as session:
            assert await program(session, die=False) == [1, 2]

    run(main())
    assert DONE == ["inner", "after"]


def test_XD6_a_call_inside_a_step_and_an_equal_one_outside_are_two() -> None:
    async def program(session: Session, *, die: bool) -> list[int]:
        async def outer() -> int:
            return await session.step(pay, "ada")

        found = [await session.step(outer)]
        if die:
            raise Crash
        return [*found, await session.step(pay, "ada"), await session.step(outer)]

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: program(session, die=True))
        async with Session.open("s", store=store) as session:
            assert await program(session, die=False) == [1, 2, 3]
        async with Session.open("s", store=store) as session:
            assert await program(session, die=False) == [1, 2, 3]

    run(main())
    assert DONE == ["ada"] * 3


def test_XD6_inside_a_step_that_did_not_end_other_arguments_are_drift() -> None:
    async def program(session: Session, who: str) -> None:
        async def outer() -> None:
            await session.step(pay, who)
            raise Crash

        await session.step(outer)

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: program(session, "ada"))
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store) as session:
                await program(session, "bob")
        assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == ["ada"]


def test_XD6_a_step_that_failed_and_is_called_again_finds_what_was_done_inside() -> None:
    failures = [ValueError("no"), None]

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:

            async def outer() -> int:
                found = await session.step(pay, "ada")
                if (failure := failures.pop(0)) is not None:
                    raise failure
                return found

            with pytest.raises(ValueError, match="no"):
                await session.step(outer)
            assert await session.step(outer) == 1

    run(main())
    assert DONE == ["ada"]


def test_XD8_an_unsafe_call_that_was_moved_into_a_step_is_drift() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(pay, "ada")
        next_run()
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store) as session:

                async def outer() -> int:
                    return await session.step(pay, "ada")

                await session.step(outer)
        assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == ["ada"]


# --- nothing waits for itself ---


def test_XD9_a_key_inside_itself_is_an_error_at_once() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:

            async def outer() -> str:
                return await session.keyed("a").step(note, "inner")

            with pytest.raises(InvalidError, match="waits for its own end"):
                await asyncio.wait_for(session.keyed("a").step(outer), 5)

    run(main())
    assert DONE == []


def test_XD9_a_circle_of_keys_is_an_error_at_once() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:

            async def through(key: str) -> str:
                await asyncio.sleep(1)
                return await session.keyed(key).step(note, key)

            both = asyncio.gather(
                session.keyed("a").step(through, "b"), session.keyed("b").step(through, "a"), return_exceptions=True
            )
            found = await asyncio.wait_for(both, 5)
            assert [type(one) for one in found].count(InvalidError) >= 1

    run(main())


def test_XD9_two_calls_of_a_key_that_do_not_need_each_other_wait() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:

            async def slow() -> str:
                await asyncio.sleep(1)
                return await session.keyed("inner").step(note, "x")

            calls = [session.keyed("a").step(slow) for _ in range(3)]
            assert await asyncio.gather(*calls, session.keyed("inner").step(note, "x")) == ["X"] * 4

    run(main())
    assert DONE == ["x"]


# --- a way on after a doubt about one of several equal calls ---


@pytest.mark.parametrize("again", [False, True])
def test_XD18_after_one_truthful_answer_equal_unsafe_calls_can_end(again: bool) -> None:
    @tool(effect="unsafe")
    async def cut_once(who: str) -> int:
        DONE.append(who)
        if len(DONE) == 1:
            raise Crash
        return len(DONE)

    async def program(session: Session) -> list[int]:
        return [await session.step(cut_once, "ada") for _ in range(3)]

    async def main() -> None:
        store = MemoryStore()
        await killed(store, program)
        async with Session.open("s", store=store) as session:
            (key,) = session.unknown
            await session.resolve(key, happened=True, result=1)
            with pytest.raises(HoldfastError, match="again=True") as raised:
                await program(session)
            assert code_of(raised.value) == "SESS_STEP_DRIFT"
            await session.accept(key, again=again)
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                assert await program(session) == ([1, 2, 3] if again else [1, 1, 1])

    run(main())
    assert ["ada"] * (3 if again else 1) == DONE


def test_equal_runs_inside_of_different_steps_keep_their_own_results() -> None:
    """The run of a workflow, a stage machine or an agent inside of a step belongs to that step, also if its inputs are equal."""

    async def program(session: Session, *, die: bool) -> list[int]:
        async def work(key: str) -> int:
            del key
            return await session.step(pay, "fee")

        async def order(who: str) -> int:
            del who
            return await session.numbered("release", "same", work)

        first = await session.step(order, "ada")
        if die:
            raise Crash
        return [first, await session.step(order, "bob"), await session.numbered("release", "same", work)]

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: program(session, die=True))
        for _ in range(2):
            next_run()
            async with Session.open("s", store=store) as session:
                assert await program(session, die=False) == [1, 2, 3]

    run(main())
    assert DONE == ["fee"] * 3


def test_an_answer_inside_of_one_step_is_not_taken_for_the_question_of_another() -> None:
    asked: list[str] = []

    class Ben:
        async def ask(self, question: Question) -> Answer:
            asked.append(question.prompt)
            return Answer(len(asked) == 1)

    async def program(session: Session, *, die: bool) -> list[bool]:
        async def order(who: str) -> bool:
            del who
            return await session.approve("Pay?")

        first = await session.step(order, "ada")
        if die:
            raise Crash
        return [first, await session.step(order, "bob")]

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: program(session, die=True), interactors=[Ben()])
        async with Session.open("s", store=store, interactors=[Ben()]) as session:
            assert await program(session, die=False) == [True, False]

    run(main())
