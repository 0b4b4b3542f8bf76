"""Turns that are done once per session, and turns that are meant anew."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from sessions_kit import Crash, code_of, dies, killed

from holdfast import OutcomeUnknownError, tool
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Session
from holdfast.stores import Commit, MemoryStore
from holdfast.testing import run

DONE: list[Any] = []
TURNS = ("one", "two", "three")


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@tool(effect="unsafe")
async def pay(who: str) -> str:
    DONE.append(who)
    return f"{who} has {DONE.count(who)}"


async def note(what: str) -> str:
    DONE.append(what)
    return what.upper()


class DyingStore(MemoryStore):
    """A store whose process dies after a number of commits."""

    left = 1_000

    async def commit(self, commit: Commit) -> Any:
        if self.left <= 0:
            raise Crash
        self.left -= 1
        return await super().commit(commit)


async def program(session: Session, *, keys: bool) -> list[str]:
    found = []
    for name in TURNS:
        async with session.turn(name, key=name if keys else None):
            found.append(await session.step(pay, name))
    return found


async def start(store: DyingStore, after: int, *, keys: bool) -> Any:
    """Run the program in a process that dies after so many commits; return its result, its failure, or None if it died."""
    store.left = 1_000
    session = Session.open("s", store=store)
    await session.__aenter__()
    store.left = after
    try:
        return await program(session, keys=keys)
    except Crash:
        return None
    except HoldfastError as error:
        return error
    finally:
        store.left = 1_000
        await dies(session)


@pytest.mark.parametrize("after", range(16))
def test_XD3_turns_with_keys_killed_anywhere_pay_once_and_end(after: int) -> None:
    async def main() -> None:
        store = DyingStore()
        found = [await start(store, after, keys=True)]
        while not isinstance(found[-1], list):
            if isinstance(found[-1], HoldfastError):
                # It was killed in the payment.
                assert code_of(found[-1]) == "TOOL_OUTCOME_UNKNOWN"
                async with Session.open("s", store=store) as session:
                    (key,) = session.unknown
                    who = next(name for name in TURNS if f"{TURNS.index(name) + 1}/pay" in key)
                    await session.resolve(key, happened=who in DONE, result=f"{who} has 1")
                await dies_after(session)
            found.append(await start(store, 1_000, keys=True))
            assert len(found) < 6
        assert found[-1] == [f"{name} has 1" for name in TURNS]
        assert sorted(DONE) == sorted(TURNS)
        # And once more from its start: everything is there already.
        assert await start(store, 1_000, keys=True) == found[-1]
        assert sorted(DONE) == sorted(TURNS)

    run(main())


async def dies_after(session: Session) -> None:
    """The session was left in good order; nothing of its process goes on."""
    del session
    await asyncio.sleep(0)


@pytest.mark.parametrize("after", range(16))
def test_XD3_turns_without_keys_killed_anywhere_never_pay_twice(after: int) -> None:
    async def main() -> None:
        store = DyingStore()
        found = [await start(store, after, keys=False), *[await start(store, 1_000, keys=False) for _ in range(3)]]
        assert len(set(DONE)) == len(DONE)
        failures = [one for one in found if isinstance(one, HoldfastError)]
        assert {code_of(one) for one in failures} <= {"SESS_STEP_DRIFT", "TOOL_OUTCOME_UNKNOWN"}
        # The last start cannot know whether the program means its turns anew.
        assert isinstance(found[-1], HoldfastError)

    run(main())


def test_XD3_the_drift_of_a_repeated_turn_names_the_ways_on_and_each_works() -> None:
    async def main() -> None:
        store = DyingStore()
        assert isinstance(await start(store, 1_000, keys=False), list)
        error = await start(store, 1_000, keys=False)
        assert code_of(error) == "SESS_STEP_DRIFT"
        assert "key=" in error.fault.message
        assert "again=True" in error.fault.message
        session = Session.open("s", store=store)
        async with session:
            await session.accept(error.fault.context["key"])
            async with session.turn("one", unfinished="continue"):
                assert await session.step(pay, "one") == "one has 1"
            async with session.turn("two", again=True):
                assert await session.step(pay, "two") == "two has 2"

    run(main())
    assert DONE == ["one", "two", "three", "two"]


def test_XD3_a_chat_that_begins_with_the_same_words_again_is_a_new_turn() -> None:
    async def main() -> None:
        store = MemoryStore()
        for number in (1, 2):

            async def chat(session: Session, number: int = number) -> None:
                async with session.turn("hi") as turn:
                    assert turn.number == number
                    assert not turn.replayed
                    await session.step(note, "hi")
                raise Crash

            await killed(store, chat)

    run(main())
    assert DONE == ["hi", "hi"]


def test_XD3_in_one_run_of_a_program_equal_turns_are_meant() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            for _ in range(2):
                async with session.turn("pay ada"):
                    await session.step(pay, "ada")

    run(main())
    assert DONE == ["ada", "ada"]


def test_XD3_two_keys_are_two_turns_although_their_inputs_are_equal() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def messages(session: Session) -> None:
            for number in range(2):
                if number:
                    raise Crash
                async with session.turn("pay ada", key=f"message {number}"):
                    await session.step(pay, "ada")

        await killed(store, messages)
        async with Session.open("s", store=store) as session:
            for number in range(2):
                async with session.turn("pay ada", key=f"message {number}"):
                    await session.step(pay, "ada")

    run(main())
    assert DONE == ["ada", "ada"]


def test_XD3_a_key_that_the_program_begins_to_give_pays_no_earlier_turn_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session, session.turn("pay ada"):
            await session.step(pay, "ada")
        async with Session.open("s", store=store) as session, session.turn("pay ada", key="message 0"):
            with pytest.raises(HoldfastError) as caught:
                await session.step(pay, "ada")
        assert code_of(caught.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == ["ada"]


def test_XD3_turns_with_keys_come_in_any_order_and_a_failed_one_goes_on() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def first(session: Session) -> None:
            with pytest.raises(ValueError, match="later"):
                async with session.turn("a", key="a"):
                    await session.step(pay, "a")
                    raise ValueError("later")
            async with session.turn("b", key="b"):
                await session.step(pay, "b")
            async with session.turn("c", key="c") as turn:
                assert turn.number == 3
                await session.step(pay, "c")
                raise Crash

        await killed(store, first)
        async with Session.open("s", store=store) as session:
            async with session.turn("b", key="b") as turn:
                assert turn.replayed
                assert await session.step(pay, "b") == "b has 1"
            async with session.turn("a", key="a") as turn:
                assert not turn.replayed
                assert turn.number == 1
                assert await session.step(pay, "a") == "a has 1"
            async with session.turn("d", key="d") as turn:
                assert turn.number == 4
            async with session.turn("c", key="c") as turn:
                assert turn.number == 3
                assert await session.step(pay, "c") == "c has 1"

    run(main())
    assert DONE == ["a", "b", "c"]


def test_XD3_a_finished_turn_of_a_key_takes_no_new_step_and_no_other_input() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session, session.turn("a", key="a"):
            await session.step(note, "x")
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError) as raised:
                async with session.turn("a", key="a"):
                    await session.step(note, "y")
            assert code_of(raised.value) == "SESS_STEP_DRIFT"
            with pytest.raises(InvalidError, match="another input"):
                async with session.turn("b", key="a"):
                    pass
            async with session.turn(key="a") as turn:
                assert turn.input == "a"
        with pytest.raises(InvalidError, match=r"turn\.key"):
            async with Session.open("s", store=store) as session, session.turn("a", key=""):
                pass

    run(main())
    assert DONE == ["x"]


def test_XD3_a_doubt_in_a_turn_with_a_key_that_was_resolved_meanwhile_is_settled_when_it_goes_on() -> None:
    @tool(effect="unsafe")
    async def cut(who: str) -> str:
        DONE.append(who)
        raise Crash

    async def main() -> None:
        store = MemoryStore()
        for key in ("a", "b"):

            async def begin(session: Session, key: str = key) -> None:
                async with session.turn(key, key=key):
                    await session.step(cut, key)

            await killed(store, begin)
        async with Session.open("s", store=store) as session:
            async with session.turn("c", key="c"):
                pass
            first, second = session.unknown
            await session.resolve(first, happened=True, result="found")
            async with session.turn("a", key="a"):
                assert await session.step(cut, "a") == "found"
            with pytest.raises(OutcomeUnknownError):
                async with session.turn("b", key="b"):
                    await session.step(cut, "b")
            assert session.unknown == (second,)

    run(main())
    assert DONE == ["a", "b"]


# --- turns that did not end well ---


async def pays_and_fails(session: Session, *, fail: bool = True, **options: Any) -> str:
    async with session.turn("ada", **options):
        receipt = await session.step(pay, "ada")
        if fail:
            raise ValueError
    return receipt


def test_a_turn_that_failed_after_its_payment_is_not_paid_again_by_the_next_run() -> None:
    async def program(session: Session) -> None:
        with suppress(ValueError):
            await pays_and_fails(session)
        async with session.turn("bob"):
            await session.step(note, "bob")

    async def main() -> None:
        async with MemoryStore() as store:
            async with Session.open("s", store=store) as session:
                await program(session)
            for _ in range(2):
                with pytest.raises(HoldfastError, match="turn 1 of session 's' has done it") as drift:
                    async with Session.open("s", store=store) as session:
                        await program(session)
                assert code_of(drift.value) == "SESS_STEP_DRIFT"
                async with Session.open("s", store=store) as session:
                    await session.abandon()
            async with Session.open("s", store=store) as session:
                await session.accept(drift.value.fault.context["key"])
                assert await pays_and_fails(session, fail=False) == "ada has 1"

    run(main())
    assert DONE == ["ada", "bob"]


def test_a_loop_around_a_failing_turn_pays_once() -> None:
    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            for failure in (ValueError, HoldfastError, HoldfastError):
                with pytest.raises(failure):
                    await pays_and_fails(session)
            assert await pays_and_fails(session, fail=False, again=True) == "ada has 2"

    run(main())
    assert DONE == ["ada", "ada"]


def test_a_loop_that_continues_its_failed_turn_pays_once_and_ends() -> None:
    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with suppress(ValueError):
                await pays_and_fails(session, unfinished="continue")
            assert await pays_and_fails(session, fail=False, unfinished="continue") == "ada has 1"

    run(main())
    assert DONE == ["ada"]


def test_a_turn_with_a_key_that_went_on_stands_in_the_way_of_no_later_one() -> None:
    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with suppress(ValueError):
                await pays_and_fails(session, key="first")
            assert await pays_and_fails(session, fail=False, key="first") == "ada has 1"
            # This run has made both, so it means another one.
            assert await pays_and_fails(session, fail=False) == "ada has 2"

    run(main())


def test_a_turn_that_a_crash_gave_up_does_not_pay_again() -> None:
    async def main() -> None:
        store = DyingStore()
        session = Session.open("s", store=store)
        await session.__aenter__()
        with suppress(ValueError):
            await pays_and_fails(session)
        await dies(session)
        with pytest.raises(HoldfastError, match="turn 1 of session 's' has done it"):
            async with Session.open("s", store=store, on_crash="abandon") as session:
                await pays_and_fails(session)

    run(main())
    assert DONE == ["ada"]


@pytest.mark.parametrize("key", [7, b"7", ""])
def test_a_key_of_a_turn_that_is_no_text_is_rejected(key: Any) -> None:
    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with pytest.raises(InvalidError, match=r"turn\.key: expected a name"):
                async with session.turn("one", key=key):
                    pass

    run(main())


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_repeated_turn_with_a_key_changes_nothing_in_the_context(restarted: bool, fails: bool) -> None:
    async def receive(session: Session, message: str, *, fails: bool = False) -> None:
        with suppress(KeyError):
            async with session.turn(message, key=message):
                session.context.setdefault("seen", []).append(message)
                session.context["in a turn"] = message
                if fails:
                    raise KeyError(message)

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await receive(session, "a")
            await receive(session, "b")
            if not restarted:
                await again(session)
        if restarted:
            async with Session.open("s", store=store) as session:
                await again(session)
        async with Session.open("s", store=store) as session:
            assert session.context == {"seen": ["a", "b", "between"], "in a turn": "b", "outside": 1}

    async def again(session: Session) -> None:
        session.context["outside"] = 1
        session.context["seen"].append("between")
        await receive(session, "a", fails=fails)  # a message that is delivered twice
        assert session.context == {"seen": ["a", "b", "between"], "in a turn": "b", "outside": 1}

    run(main())
