"""Which step a call is (DESIGN section 6): once per session outside of turns, once per turn inside, in whatever order."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from sessions_kit import Crash, code_of, dies, killed, next_run

from holdfast import OutcomeUnknownError, Policy, recover, tool
from holdfast.faults import HoldfastError, InvalidError
from holdfast.runtime.tool import call_key
from holdfast.sessions import Answer, Question, Session
from holdfast.sessions.admin import resolve_step
from holdfast.stores import MemoryStore
from holdfast.testing import run
from holdfast.tools import ToolError

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


def note(what: str) -> str:
    DONE.append(what)
    return what.upper()


@tool(effect="unsafe")
async def deploy(plan: str, at: int = 0) -> int:
    DONE.append((plan, at))
    return len(DONE)


@tool(effect="unsafe")
async def hangs(plan: str) -> int:
    DONE.append(plan)
    await asyncio.sleep(100)
    return 7


@tool(effect="unsafe")
async def cut(plan: str) -> int:
    DONE.append(plan)
    raise Crash


@tool(effect="unsafe")
async def cut_once(plan: str) -> int:
    DONE.append(plan)
    if len(DONE) == 1:
        raise Crash
    return 3


@tool(effect="unsafe")
async def lost(plan: str) -> int:
    """The connection is reset after the call was sent."""
    DONE.append(plan)
    raise ConnectionResetError(104, "Connection reset by peer")


async def drift_of(work: Any) -> HoldfastError:
    with pytest.raises(HoldfastError) as raised:
        await work
    assert code_of(raised.value) == "SESS_STEP_DRIFT"
    return raised.value


# --- once per session, once per turn ---


@pytest.mark.parametrize("end", ["good", "error", "kill"])
def test_FD1_outside_of_a_turn_a_step_is_done_once_however_the_program_ended(end: str) -> None:
    async def main() -> None:
        store = MemoryStore()
        results = []
        for _ in range(3):
            session = Session.open("s", store=store)
            await session.__aenter__()
            results.append((await session.step(note, "plan"), await session.step(deploy, "p")))
            if end == "kill":
                await dies(session)
            else:
                await session.__aexit__(*((ValueError, ValueError(), None) if end == "error" else (None, None, None)))
        assert results == [("PLAN", 2)] * 3

    run(main())
    assert DONE == ["plan", ("p", 0)]


def test_FD1_inside_a_turn_a_step_is_done_once_per_turn() -> None:
    async def main() -> None:
        store = MemoryStore()
        for _ in range(2):
            async with Session.open("s", store=store) as session, session.turn("again"):
                await session.step(note, "x")

    run(main())
    assert DONE == ["x", "x"]


def test_FD1_steps_around_a_turn_are_the_sessions_and_a_cut_turn_does_not_block_them() -> None:
    async def program(session: Session, *, die: bool) -> None:
        await session.step(note, "before")
        async with session.turn("t"):
            await session.step(note, "inside")
            if die:
                raise Crash
        await session.step(note, "after")

    async def main() -> None:
        store = MemoryStore()
        for _ in range(2):
            await killed(store, lambda session: program(session, die=True))
        async with Session.open("s", store=store) as session:
            await program(session, die=False)

    run(main())
    assert DONE == ["before", "inside", "after"]


def test_FD1_the_second_use_with_the_same_arguments_is_another_step() -> None:
    async def main() -> None:
        store = MemoryStore()
        for n in (1, 2, 3):
            async with Session.open("s", store=store) as session:
                for _ in range(n):
                    await session.step(deploy, "same")

    run(main())
    assert len(DONE) == 3


def test_FD1_a_question_outside_of_turns_is_asked_once_per_session() -> None:
    asked = []

    class Ann:
        async def ask(self, question: Question) -> Answer:
            asked.append(question.prompt)
            return Answer(value=True)

    async def main() -> None:
        store = MemoryStore()
        for _ in range(2):
            async with Session.open("s", store=store, interactors=[Ann()]) as session:
                assert await session.approve("Deploy?")
                assert await session.approve("Really?")

    run(main())
    assert asked == ["Deploy?", "Really?"]


# --- order does not matter ---


def test_FD3_parallel_work_of_two_stages_resumes_whatever_ended_first() -> None:
    async def fetch(n: int, seconds: float) -> str:
        DONE.append(("fetch", n))
        await asyncio.sleep(seconds)
        return f"page {n}"

    async def summarise(page: str) -> str:
        DONE.append(("sum", page))
        await asyncio.sleep(1)
        return page.upper()

    async def work(session: Session, delays: list[float]) -> list[str]:
        async def one(n: int) -> str:
            await asyncio.sleep(delays[n])
            return await session.step(summarise, await session.step(fetch, n, 1.0))

        return await asyncio.gather(*(one(n) for n in range(4)))

    async def main() -> None:
        store = MemoryStore()

        async def until(session: Session) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5.5):
                    await work(session, [4.0, 3.0, 2.0, 1.0])
            raise Crash

        await killed(store, until)
        before = len(DONE)
        async with Session.open("s", store=store) as session:
            assert await work(session, [0, 0, 0, 0]) == [f"PAGE {n}" for n in range(4)]
        assert before == 8  # page 0 was being summarised
        assert len(DONE) == len(set(DONE)) + 1  # only the summary that was cut off was done again

    run(main())


def test_FD3_an_unsafe_second_stage_waits_for_the_others_to_be_replayed() -> None:
    async def fetch(n: int) -> str:
        return f"v{n}"

    async def work(session: Session, order: list[int], *, die: bool = False) -> None:
        room = asyncio.Semaphore(2)

        async def one(n: int) -> None:
            plan = await session.step(fetch, n)
            async with room:
                if die and n == 0:
                    raise Crash
                await session.step(deploy, plan)

        async with asyncio.TaskGroup() as group:
            for n in order:
                group.create_task(one(n))

    async def main() -> None:
        store = MemoryStore()
        session = Session.open("s", store=store)
        await session.__aenter__()
        with pytest.raises(BaseExceptionGroup):
            await work(session, [1, 2, 0], die=True)
        await dies(session)
        async with Session.open("s", store=store) as session:
            await work(session, [0, 2, 1])

    run(main())
    assert sorted(DONE) == [("v0", 0), ("v1", 0), ("v2", 0)]


def test_FD3_a_batch_resumes_with_its_items_in_another_order_and_new_ones() -> None:
    async def main() -> None:
        store = MemoryStore()
        for items in (["a", "b", "c", "c"], ["c", "x", "b", "c", "a"]):
            async with Session.open("s", store=store) as session:
                assert [o.value async for o in session.map(note, items, concurrency=2)] == [i.upper() for i in items]

    run(main())
    assert sorted(DONE) == ["a", "b", "c", "c", "x"]


def test_FD3_tasks_with_equal_arguments_are_refused_and_with_keys_each_is_begun_once() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(InvalidError, match="in another task at the same time"):
                await asyncio.gather(*(session.step(deploy, "q") for _ in range(2)))
        DONE.clear()
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                steps = [session.keyed(f"deploy {number}").step(deploy, "p") for number in range(3)]
                assert sorted(await asyncio.gather(*steps)) == [1, 2, 3]

    run(main())
    assert len(DONE) == 3


# --- drift ---


def test_FD3_an_unsafe_step_with_other_arguments_is_drift_that_shows_both() -> None:
    clock = itertools.count(1)

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(deploy, "version 2", at=next(clock))
        for _ in range(2):
            next_run()
            async with Session.open("s", store=store) as session:
                error = await drift_of(session.step(deploy, "version 2", at=next(clock)))
                assert 'Before: deploy("version 2", at=1). Now: deploy("version 2", at=' in error.fault.message

    run(main())
    assert DONE == [("version 2", 1)]


def test_FD3_the_arguments_that_drift_shows_are_masked_and_cut_around_the_first_difference() -> None:
    @tool(effect="unsafe")
    def send(text: str, api_key: str) -> None:
        DONE.append(text)

    key = "sk-ant-api03-" + "x" * 60

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(send, "a" * 500 + "left" + "b" * 900, api_key=key)
        next_run()
        async with Session.open("s", store=store) as session:
            error = await drift_of(session.step(send, "a" * 500 + "right" + "b" * 900, api_key=key))
            message = error.fault.message
            assert "left" in message
            assert "right" in message
            assert len(message) < 1400
            assert key not in message
        entries = [bytes(entry.body) for entry in await store.read("s")]
        assert not any(key.encode() in body for body in entries)

    run(main())


def test_FD3_other_arguments_of_a_step_that_may_be_repeated_are_a_new_step() -> None:
    async def main() -> None:
        store = MemoryStore()
        for what in ("one", "two"):
            async with Session.open("s", store=store) as session:
                await session.step(note, what)

    run(main())
    assert DONE == ["one", "two"]


def test_FD3_an_unsafe_function_may_be_called_with_other_arguments_once_the_known_ones_were_replayed() -> None:
    async def main() -> None:
        store = MemoryStore()
        for plans in (["a"], ["a", "b"], ["b", "a", "c"]):
            async with Session.open("s", store=store) as session:
                if plans[0] == "b":
                    # `b` comes first, and is known. `c` comes last.
                    assert await session.step(deploy, "b") == 2
                else:
                    assert await session.step(deploy, "a") == 1
                for plan in plans[1:]:
                    await session.step(deploy, plan)

    run(main())
    assert [plan for plan, _ in DONE] == ["a", "b", "c"]


def test_FD3_a_failed_unsafe_step_that_did_not_happen_is_no_drift() -> None:
    @tool(effect="unsafe")
    def refused(n: int) -> int:
        DONE.append(n)
        if n == 1:
            raise ToolError("wrong input")
        return n

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(ToolError, match="wrong"):
                await session.step(refused, 1)
        async with Session.open("s", store=store) as session:
            assert await session.step(refused, 2) == 2

    run(main())


# --- explicit keys ---


def test_FD3_a_key_takes_the_place_of_the_arguments() -> None:
    async def main() -> None:
        store = MemoryStore()
        for at in (1, 2, 3):
            async with Session.open("s", store=store) as session:
                assert await session.keyed("release").step(deploy, "p", at=at) == 1
                assert await session.keyed("release").step(deploy, "p", at=at + 1) == 1
                assert await session.keyed("rollback").step(deploy, "q", at=at) == 2

    run(main())
    assert DONE == [("p", 1), ("q", 1)]


def test_FD3_two_tasks_with_one_key_do_it_once() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            steps = (session.keyed("k").step(deploy, "p", at=n) for n in range(5))
            assert await asyncio.gather(*steps) == [1] * 5

    run(main())
    assert DONE == [("p", 0)]


def test_FD3_a_key_is_of_one_function_and_not_empty() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.keyed("k").step(deploy, "p")
            with pytest.raises(InvalidError, match="the function of this key, deploy, got note"):
                await session.keyed("k").step(note, "p")
            with pytest.raises(InvalidError, match="not empty"):
                session.keyed("")

    run(main())


def test_FD3_a_step_with_a_key_that_was_cut_is_unknown_and_can_be_resolved() -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.keyed("my key").step(cut, "p"))
        async with Session.open("s", store=store) as session:
            assert session.unknown == ("s/key:my key",)
            with pytest.raises(OutcomeUnknownError, match=r"resolve s 'key:my key' --happened"):
                await session.keyed("my key").step(cut, "other")
            await session.resolve("s/key:my key", happened=True, result=5)
            assert await session.keyed("my key").step(cut, "other") == 5

    run(main())
    assert DONE == ["p"]


# --- the same process ---


def test_FD2_a_timeout_around_an_unsafe_step_leaves_a_doubt_that_is_raised_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await session.step(hangs, "p")
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError):
                    await session.step(hangs, "p")
        async with Session.open("s", store=store) as session:
            with pytest.raises(OutcomeUnknownError) as raised:
                await session.step(hangs, "p")
            assert session.unknown == (raised.value.key,)
            await session.resolve(raised.value.key, happened=True, result=9)
            assert await session.step(hangs, "p") == 9
            assert session.unknown == ()

    run(main())
    assert DONE == ["p"]


def test_FD2_a_step_that_runs_is_not_called_unknown() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            running = asyncio.ensure_future(session.step(hangs, "p"))
            await asyncio.sleep(1)
            assert session.unknown == ()
            running.cancel()
            await asyncio.wait((running,))
            assert len(session.unknown) == 1

    run(main())


@pytest.mark.parametrize("inside", ["outside", "turn"])
def test_FD2_recover_around_a_function_that_steps_does_not_repeat_what_was_done(inside: str) -> None:
    attempts = []

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:

            @recover("work", Policy(attempts=3))
            async def work() -> int:
                attempts.append(1)
                done = await session.step(deploy, "p")
                second = await session.step(deploy, "p")
                if len(attempts) < 3:
                    raise ConnectionError("down")
                return done + second

            if inside == "turn":
                async with session.turn("x"):
                    assert await work() == 3
            else:
                assert await work() == 3
                # A call outside of the recovery is a further use.
                assert await session.step(deploy, "p") == 3

    run(main())
    assert len(attempts) == 3
    assert len(DONE) == (2 if inside == "turn" else 3)


def test_FD2_recover_around_an_unsafe_step_that_may_have_happened_does_not_repeat_it() -> None:
    async def main() -> None:
        clock = itertools.count()
        async with Session.open("s", store=MemoryStore()) as session:

            @recover("work", Policy(attempts=3))
            async def work() -> int:
                return await session.step(lost, "p")

            with pytest.raises(OutcomeUnknownError):
                await work()

            @recover("other", Policy(attempts=3))
            async def with_the_time() -> int:
                return await session.step(deploy_or_lose, "p", next(clock))

            @tool(effect="unsafe")
            async def deploy_or_lose(plan: str, at: int) -> int:
                DONE.append(at)
                raise ConnectionResetError(104, "Connection reset by peer")

            assert code_of(await drift_of(with_the_time())) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == ["p", 0]


def test_FD2_a_step_that_was_cancelled_before_its_function_was_called_has_not_happened() -> None:
    class SlowStore(MemoryStore):
        slow = False

        async def commit(self, commit: Any) -> Any:
            receipt = await super().commit(commit)
            if self.slow:
                await asyncio.sleep(1)
            return receipt

    async def main() -> None:
        store = SlowStore()
        async with Session.open("s", store=store) as session:
            await session.step(note, "first")
            store.slow = True
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await session.step(deploy, "p")
            await asyncio.sleep(5)
            assert session.unknown == ()
            assert await session.step(deploy, "p") == 2

    run(main())
    assert DONE == ["first", ("p", 0)]


def test_FD2_a_step_that_failed_and_is_called_again_has_the_same_key() -> None:
    keys = []

    @tool(effect="keyed")
    def pay(amount: int) -> str:
        keys.append(call_key())
        if len(keys) == 1:
            raise ConnectionError("down")
        return call_key()

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(ConnectionError):
                await session.step(pay, 5)
            await session.step(pay, 5)
            await session.step(pay, 5)

    run(main())
    assert keys[0] == keys[1] != keys[2]
    assert keys[2] == f"{keys[0]}#2"


# --- doubts stay open ---


def test_FD2_a_doubt_stays_open_over_turns_good_ends_and_restarts() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(TimeoutError):
                async with session.turn("a"), asyncio.timeout(1):
                    await session.step(hangs, "p")
            (key,) = session.unknown
            assert key.startswith("s/1/hangs@")
            async with session.turn("b"):
                with pytest.raises(OutcomeUnknownError) as raised:
                    await session.step(hangs, "p")
                assert raised.value.key == key
        async with Session.open("s", store=store) as session:
            assert session.unknown == (key,)
            async with session.turn("c"):
                with pytest.raises(OutcomeUnknownError):
                    await session.step(hangs, "p")
                await session.resolve(key, happened=True, result=9)
                assert await session.step(hangs, "p") == 9
        async with Session.open("s", store=store) as session:
            assert session.unknown == ()

    run(main())
    assert DONE == ["p"]


def test_FD2_a_doubt_of_an_earlier_turn_that_did_not_happen_runs() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(ConnectionError):
                async with session.turn("a"):
                    await session.step(lost, "p")
            (key,) = session.unknown
            await session.resolve(key, happened=False)
            async with session.turn("b"):
                with pytest.raises(ConnectionError):
                    await session.step(lost, "p")
            assert session.unknown == (key.replace("/1/", "/2/"),)

    run(main())
    assert DONE == ["p", "p"]


def test_FU8_the_error_says_what_to_do_and_another_process_may_do_it() -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(cut, "version 2"))
        async with Session.open("s", store=store) as session:
            with pytest.raises(OutcomeUnknownError) as raised:
                await session.step(cut, "version 2")
            message = raised.value.fault.message
            assert 'cut("version 2") was started and its end is not known' in message
            assert f"await session.resolve('{raised.value.key}', happened=True, result=…)" in message
            name = raised.value.key.removeprefix("s/")
            assert f"holdfast sessions resolve s {name} --happened" in message
            assert f"holdfast sessions resolve s {name} --not-happened" in message
            # One line a way: a person reads it in a terminal.
            assert max(len(line) for line in message.splitlines()) < 130
            # Another process resolves it while this one has the session open.
            assert await resolve_step(store, "s", "cut", happened=True, result=3) == raised.value.key
            assert await session.step(cut, "version 2") == 3
            with pytest.raises(
                HoldfastError, match=r'cut\("version 2"\) was already resolved as happened, with the result 3, at'
            ):
                await resolve_step(store, "s", name, happened=False)

    run(main())
    assert DONE == ["version 2"]


@pytest.mark.parametrize("happened", [True, False])
def test_FD2_the_call_after_a_resolution_does_not_repeat_the_step_in_a_later_run(happened: bool) -> None:
    async def program(session: Session) -> Any:
        try:
            await session.step(cut_once, "version 2")
        except OutcomeUnknownError as doubt:
            await session.resolve(doubt.key, happened=happened, result=3)
        return await session.step(cut_once, "version 2")

    async def main() -> None:
        store = MemoryStore()
        await killed(store, program)
        async with Session.open("s", store=store) as session:
            assert await program(session) == 3
        done = len(DONE)
        # In this run the first call returns the stored result, so the call after it would be another deployment.
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError, match="move it into the `except OutcomeUnknownError` block") as again:
                await program(session)
            assert code_of(again.value) == "SESS_STEP_DRIFT"
            assert len(DONE) == done
            await session.keyed("another").step(cut_once, "version 2")
            assert len(DONE) == done + 1

    run(main())


def test_FU8_a_beginning_that_fits_two_steps_is_not_enough_to_resolve_one() -> None:
    async def main() -> None:
        store = MemoryStore()
        for plan in ("a", "b"):
            await killed(store, lambda session, plan=plan: session.keyed(f"k-{plan}").step(cut, plan))
        with pytest.raises(InvalidError, match="s/key:k-a, s/key:k-b"):
            await resolve_step(store, "s", "key:k", happened=True)
        assert await resolve_step(store, "s", "s/key:k-a", happened=True) == "s/key:k-a"

    run(main())


@pytest.mark.parametrize("given", ["same", None])
def test_FD2_recover_around_a_turn_goes_on_with_the_turn(given: str | None) -> None:
    attempts = []

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:

            @recover("work", Policy(attempts=3))
            async def work() -> int:
                async with session.turn(given) as turn:
                    await session.step(deploy, "p")
                    attempts.append(turn.number)
                    if len(attempts) < 3:
                        raise ConnectionError("down")
                    return turn.number

            assert await work() == 1
            # Another call of the function is another turn.
            assert await work() == 2

    run(main())
    assert attempts == [1, 1, 1, 2]
    assert len(DONE) == 2


def test_steps_of_a_part_with_its_own_key_are_counted_apart() -> None:
    """A part whose result is stored is left out when the program is run again; its steps are not those of another part."""
    made: list[str] = []

    @tool(effect="unsafe")
    async def charge(what: str) -> str:
        made.append(what)
        return f"{what} {len(made)}"

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with session.part("a"):
                assert await session.step(charge, "rent") == "rent 1"
        async with Session.open("s", store=store) as session:
            # The part "a" is left out.
            with session.part("b"):
                assert await session.step(charge, "rent") == "rent 2"
            assert await session.step(charge, "water") == "water 3"
            async with Session.open("other", store=store) as other:
                with session.part("b"):
                    assert await other.step(charge, "gas") == "gas 4"
                assert await other.step(charge, "gas") == "gas 5", "a second use"
        async with Session.open("s", store=store) as session:
            with session.part("a"):
                assert await session.step(charge, "rent") == "rent 1"
        async with Session.open("other", store=store) as other:
            assert [await other.step(charge, "gas") for _ in range(2)] == ["gas 4", "gas 5"], (
                "the part is of another session"
            )

    run(main())
