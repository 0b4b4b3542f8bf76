"""Turns that failed or were cut off: gone on with, begun anew or given up; and the context, which belongs to its turn (FD7)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed, next_run, square

from holdfast import OutcomeUnknownError, Policy, recover, tool
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Answer, Session
from holdfast.sessions.admin import fork_session
from holdfast.sessions.log import Message, TurnEnded, new_entry, read_entry
from holdfast.sessions.transfer import export_lines, import_lines
from holdfast.stores import Commit, MemoryStore, Receipt
from holdfast.testing import run

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


def note(what: str) -> str:
    DONE.append(what)
    return what


@tool(effect="unsafe")
def deploy(plan: str) -> int:
    DONE.append(("deploy", plan))
    return len(DONE)


@tool(effect="unsafe")
def lose(plan: str) -> int:
    DONE.append(("lose", plan))
    raise ConnectionResetError(104, "Connection reset by peer")


async def outcomes(store: MemoryStore) -> list[str]:
    bodies = [read_entry("s", entry) for entry in await store.read("s")]
    return [one.outcome for one in bodies if isinstance(one, TurnEnded)]


class Boom(Exception):
    """The turn fails."""


async def fails(session: Session, given: Any = "a", **options: Any) -> None:
    async with session.turn(given, **options):
        await session.step(note, "first")
        await session.step(deploy, "p")
        session.context["broken"] = True
        raise Boom


async def ends(session: Session, given: Any = "a", **options: Any) -> Any:
    async with session.turn(given, **options) as turn:
        await session.step(note, "first")
        await session.step(deploy, "p")
        session.context["done"] = True
        return turn.number, turn.input


async def failed_in_another_process(store: MemoryStore, *, kill: bool) -> None:
    if kill:

        async def work(session: Session) -> None:
            with pytest.raises(Boom):
                await fails(session)
            raise Crash

        await killed(store, work)
    else:
        with pytest.raises(Boom):
            async with Session.open("s", store=store) as session:
                await fails(session)


@pytest.mark.parametrize("where", ["here", "left", "killed"])
@pytest.mark.parametrize(
    ("unfinished", "given", "number", "firsts", "deploys", "ended"),
    [
        ("continue", "a", 1, 1, 1, ["ok"]),
        ("continue", None, 1, 1, 1, ["ok"]),
        ("retry", "a", 1, 2, 1, ["ok"]),
        ("retry", None, 1, 2, 1, ["ok"]),
        ("abandon", "a", 2, 2, 2, ["abandoned", "ok"]),
        ("abandon", "b", 2, 2, 2, ["abandoned", "ok"]),
    ],
)
def test_FD7_a_failed_turn_is_gone_on_with_begun_anew_or_given_up(
    where: str, unfinished: Any, given: Any, number: int, firsts: int, deploys: int, ended: list[str]
) -> None:
    async def main() -> None:
        store = MemoryStore()
        if where != "here":
            await failed_in_another_process(store, kill=where == "killed")
        async with Session.open("s", store=store) as session:
            if where == "here":
                with pytest.raises(Boom):
                    await fails(session)
            assert session.context == {}
            assert await ends(session, given, unfinished=unfinished) == (number, given or "a")
            assert session.context == {"done": True}
        assert await outcomes(store) == ended
        async with Session.open("s", store=store) as session:
            assert session.context == {"done": True}

    run(main())
    assert DONE.count("first") == firsts
    assert DONE.count(("deploy", "p")) == deploys


@pytest.mark.parametrize("unfinished", [None, "continue", "retry"])
def test_FD7_a_turn_with_another_input_says_how_to_go_on(unfinished: Any) -> None:
    async def main() -> None:
        store = MemoryStore()
        await failed_in_another_process(store, kill=False)
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError) as raised:
                await ends(session, "b", unfinished=unfinished)
            assert code_of(raised.value) == "SESS_TURN_CONCURRENT"
            for way in ("`session.turn()`", 'unfinished="retry"', 'unfinished="abandon"', "sessions abandon s"):
                assert way in raised.value.fault.message
            async with session.turn("b", unfinished="abandon"):
                pass
        assert await outcomes(store) == ["abandoned", "ok"]

    run(main())


def test_FD7_a_turn_that_failed_here_and_is_followed_by_another_has_failed() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(Boom):
                await fails(session)
            assert (await ends(session, "b"))[0] == 2
            assert session.context == {"done": True}
        assert await outcomes(store) == ["failed", "ok"]

    run(main())


class _Interrupted(MemoryStore):
    """Somebody else writes to the session at the last moment before a turn ends."""

    async def commit(self, commit: Commit) -> Receipt:
        if any(entry.type == "turn_ended" for entry in commit.entries):
            message = new_entry(Message(content="one more thing"), "m-1")
            await super().commit(Commit(session=commit.session, entries=(message,)))
        return await super().commit(commit)


def test_the_next_turn_begins_although_a_message_came_at_the_end_of_the_last() -> None:
    async def work() -> list[int]:
        async with _Interrupted() as store, Session.open("s", store=store) as session:
            numbers = []
            for given in ("a", "b"):
                async with session.turn(given) as turn:
                    numbers.append(turn.number)
            return numbers

    assert run(work()) == [1, 2]


def test_FD7_a_turn_begun_anew_keeps_its_doubts() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(ConnectionResetError):
                async with session.turn("a"):
                    await session.step(note, "x")
                    await session.step(lose, "p")
            with pytest.raises(OutcomeUnknownError):
                async with session.turn("a", unfinished="retry"):
                    await session.step(note, "x")
                    await session.step(lose, "p")

    run(main())
    assert DONE == ["x", ("lose", "p"), "x"]


def test_FD7_a_wrong_word_is_refused() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(InvalidError, match=r"turn\.unfinished"):
                async with session.turn("a", unfinished="resume"):  # type: ignore[arg-type]
                    pass

    run(main())


# --- the context ---


@pytest.mark.parametrize("what", ["message", "context", "both"])
def test_FD7_what_was_set_without_any_step_survives_reopening(what: str) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            if what != "context":
                await session.message("hello")
            if what != "message":
                session.context["chapter"] = 4
        async with Session.open("s", store=store, strict=True) as session:
            assert session.context == ({} if what == "message" else {"chapter": 4})
            assert session._journal.memory.message_count == (0 if what == "context" else 1)

    run(main())


def test_FD7_context_of_a_failed_turn_is_not_saved_but_that_from_before_it_is() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(Boom):
            async with Session.open("s", store=store) as session:
                session.context["before"] = [1]
                async with session.turn("a"):
                    session.context["before"].append(2)
                    session.context["inside"] = True
                    raise Boom
        async with Session.open("s", store=store) as session:
            assert session.context == {"before": [1]}

    run(main())


def test_FD7_a_context_that_a_turn_saved_itself_survives_a_crash_but_not_its_failure() -> None:
    async def work(session: Session) -> None:
        async with session.turn("a"):
            session.context["page"] = 3
            await session.checkpoint()
            session.context["page"] = 4
            raise Crash

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            session.context["page"] = 1
        await killed(store, work)
        async with Session.open("s", store=store) as session:
            assert session.context == {"page": 3}
            await session.abandon()
            assert session.context == {"page": 1}
            with pytest.raises(Boom):
                async with session.turn("b"):
                    session.context["page"] = 5
                    await session.checkpoint()
                    raise Boom
            async with session.turn("b", unfinished="retry"):
                assert session.context == {"page": 1}
        async with Session.open("s", store=store) as session:
            assert session.context == {"page": 1}

    run(main())


def test_FD7_the_context_stays_the_same_object() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            held = session.context
            held["a"] = 1
            with pytest.raises(Boom):
                async with session.turn("a"):
                    held["a"] = 2
                    raise Boom
            assert held == {"a": 1}
            assert session.context is held

    run(main())


# --- ways out of drift ---


async def drifted(session: Session, plan: str) -> str:
    with pytest.raises(HoldfastError) as raised:
        await session.step(deploy, plan)
    assert code_of(raised.value) == "SESS_STEP_DRIFT"
    key = str(raised.value.fault.context["key"])
    assert f"await session.accept({key!r})" in raised.value.fault.message
    return key


@pytest.mark.parametrize("in_turn", [False, True])
def test_drift_can_be_accepted(in_turn: bool) -> None:
    async def main() -> None:
        store = MemoryStore()

        async def first(session: Session) -> None:
            if in_turn:
                async with session.turn("t"):
                    await session.step(deploy, "at 10:31")
                    raise Crash
            await session.step(deploy, "at 10:31")
            raise Crash

        async def accepted(session: Session) -> None:
            await session.accept(await drifted(session, "at 10:32"))
            assert await session.step(deploy, "at 10:32") == 1
            # Only once: a second call with other arguments is another deployment.
            assert await session.step(deploy, "at 10:33") == 2

        await killed(store, first)
        async with Session.open("s", store=store) as session:
            if in_turn:
                async with session.turn("t"):
                    await accepted(session)
            else:
                await accepted(session)

    run(main())
    assert DONE == [("deploy", "at 10:31"), ("deploy", "at 10:33")]


def test_drift_of_a_step_of_unknown_outcome_that_is_accepted_stays_unknown() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(ConnectionResetError):
                await session.step(lose, "a")
        next_run()
        async with Session.open("s", store=store) as session:
            (key,) = session.unknown
            await session.accept(key)
            with pytest.raises(OutcomeUnknownError):
                await session.step(lose, "b")

    run(main())
    assert DONE == [("lose", "a")]


def test_steps_run_again_from_one_on_but_never_an_unsafe_one_that_happened() -> None:
    async def program(session: Session) -> list[Any]:
        return [
            await session.step(note, "one"),
            await session.step(note, "two"),
            await session.step(deploy, "p"),
            await session.step(note, "three"),
        ]

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            results = await program(session)
        async with Session.open("s", store=store) as session:
            names = list(session._journal.memory.session_steps)
            (kept,) = await session.rerun(f"s/{names[1]}")
            assert kept.startswith("s/deploy@")
            assert await program(session) == results
        async with Session.open("s", store=store) as session:
            assert await program(session) == results
            with pytest.raises(InvalidError, match="the key of a stored step"):
                await session.rerun("s/nothing")

    run(main())
    assert DONE == ["one", "two", ("deploy", "p"), "three", "two", "three"]


def test_steps_of_a_turn_run_again_inside_of_it() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            async with session.turn("t"):
                await session.step(note, "a")
                key = f"s/1/{next(iter(session._journal.memory.steps))}"
                assert await session.rerun(key) == ()
                await session.step(note, "a")
            assert DONE == ["a", "a"]
            with pytest.raises(Boom):
                async with session.turn("u"):
                    await session.step(note, "a")
                    raise Boom
            with pytest.raises(HoldfastError, match='unfinished="retry"'):
                await session.rerun(key.replace("/1/", "/2/"))

    run(main())


def test_FU8_a_program_forks_its_session() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            for n in (1, 2):
                async with session.turn(n):
                    assert await session.step(square, n) == n * n
            await session.fork("all")
            await session.fork("one", turn=2)
            with pytest.raises(InvalidError, match="either at or turn"):
                await session.fork("none", at=1, turn=1)
            with pytest.raises(HoldfastError) as raised:
                await session.fork("all")
            assert code_of(raised.value) == "SESS_ILLEGAL_TRANSITION"
        for name, turns in (("all", 2), ("one", 1)):
            async with Session.open(name, store=store) as session, session.turn("next") as turn:
                assert turn.number == turns + 1

    run(main())


# --- a program of several turns that is run from its start again ---


@tool(effect="unsafe")
async def charge(what: str) -> str:
    DONE.append(what)
    return f"charged {what}"


async def fixed_program(session: Session, *names: str | None, die_in: int = 0, **options: Any) -> list[tuple[int, str]]:
    """Make one turn for each name. Die in one of them, after its first step."""
    got = []
    for place, name in enumerate(names, 1):
        async with session.turn(name, **options) as turn:
            got.append((turn.number, await session.step(charge, f"{place}a")))
            session.context["last"] = place
            if place == die_in:
                raise Crash
            got.append((turn.number, await session.step(charge, f"{place}b")))
    return got


def test_a_program_of_fixed_turns_goes_on_where_it_was_cut() -> None:
    names = ("plan", "build", "ship")

    async def main() -> None:
        store = MemoryStore()
        # Killed in the second turn, then in the third, then it ends.
        for die_in in (2, 3):
            await killed(store, lambda session, die_in=die_in: fixed_program(session, *names, die_in=die_in))
        async with Session.open("s", store=store) as session:
            got = await fixed_program(session, *names)
            assert session.context == {"last": 3}
        assert got == [(n, f"charged {n}{part}") for n in (1, 2, 3) for part in "ab"]
        assert DONE == ["1a", "1b", "2a", "2b", "3a", "3b"]
        assert await outcomes(store) == ["ok", "ok", "ok"]
        # It has ended: if the next run means its turns anew, a cut in it repeats those and not the first ones.
        DONE.clear()
        await killed(store, lambda session: fixed_program(session, *names, die_in=2, again=True))
        async with Session.open("s", store=store) as session:
            assert [number for number, _ in await fixed_program(session, *names, again=True)] == [4, 4, 5, 5, 6, 6]
        assert DONE == ["1a", "1b", "2a", "2b", "3a", "3b"]

    run(main())


@pytest.mark.parametrize("given", [None, "tick"])
def test_a_loop_that_keeps_its_place_in_the_context_continues_the_cut_turn(given: str | None) -> None:
    async def loop(session: Session, die_in: int = 0) -> list[int]:
        numbers = []
        while (place := session.context.get("place", 0)) < 3:
            async with session.turn(given) as turn:
                numbers.append(turn.number)
                await session.step(charge, str(place))
                if place == die_in - 1:
                    raise Crash
                session.context["place"] = place + 1
        return numbers

    async def main() -> None:
        store = MemoryStore()
        for die_in in (2, 3):
            await killed(store, lambda session, die_in=die_in: loop(session, die_in))
        async with Session.open("s", store=store) as session:
            assert await loop(session) == [3]

    run(main())
    assert DONE == ["0", "1", "2"]


@pytest.mark.parametrize("name", [None, "same"])
def test_FD1_no_unsafe_step_happens_twice_if_turns_of_a_program_have_equal_inputs(name: str | None) -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: fixed_program(session, name, name, die_in=2))
        assert DONE == ["1a", "1b", "2a"]
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store) as session:
                await fixed_program(session, name, name)
        assert code_of(raised.value) == "SESS_STEP_DRIFT"
        assert "turn 1 of session 's' has done it" in str(raised.value)
        assert DONE == ["1a", "1b", "2a"]
        # The turn is still there: a program that means it goes on in it.
        async with Session.open("s", store=store) as session, session.turn(name) as turn:
            assert turn.number == 2
            assert await session.step(charge, "2a") == "charged 2a"
            assert await session.step(charge, "2b") == "charged 2b"
        assert await outcomes(store) == ["ok", "ok"]

    run(main())
    assert DONE == ["1a", "1b", "2a", "2b"]


@pytest.mark.parametrize("unfinished", [None, "continue"])
def test_a_loop_of_equal_turns_that_does_the_same_each_time_says_that_it_continues(unfinished: Any) -> None:
    async def tick(session: Session, times: int, die: bool = False) -> None:
        for place in range(times):
            async with session.turn(unfinished=unfinished):
                if die and place == times - 1:
                    raise Crash
                await session.step(charge, "rent")

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: tick(session, 2, die=True))
        async with Session.open("s", store=store) as session:
            if unfinished is None:
                with pytest.raises(HoldfastError, match="does not run"):
                    await tick(session, 1)
            else:
                await tick(session, 1)

    run(main())
    assert len(DONE) == (1 if unfinished is None else 2)


def test_a_turn_that_is_repeated_says_so_and_changes_nothing() -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: fixed_program(session, "plan", "build", die_in=2))
        async with Session.open("s", store=store) as session:
            top = (await store.session("s")).top
            async with session.turn("plan") as turn:
                assert (turn.number, turn.input, turn.replayed) == (1, "plan", True)
                session.context["last"] = "changed"
            assert session.context == {"last": 1}
            assert (await store.session("s")).top == top
            async with session.turn("build") as turn:
                assert (turn.number, turn.replayed) == (2, False)

    run(main())
    assert DONE == ["1a", "1b", "2a"]


def test_a_turn_that_is_repeated_runs_no_step_that_it_did_not_have() -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: fixed_program(session, "plan", "build", die_in=2))
        async with Session.open("s", store=store) as session:
            for fn in (charge, square):
                with pytest.raises(HoldfastError, match=r"turn 1 .* has ended.*unfinished=") as raised:
                    async with session.turn("plan"):
                        await session.step(fn, 9)  # type: ignore[arg-type]
                assert code_of(raised.value) == "SESS_STEP_DRIFT"
            # What failed was the repetition. It can be made again, and the cut turn is as it was.
            assert [number for number, _ in await fixed_program(session, "plan", "build")] == [1, 1, 2, 2]

    run(main())
    assert DONE == ["1a", "1b", "2a", "2b"]


def test_a_turn_that_failed_in_the_last_run_is_not_repeated() -> None:
    async def program(session: Session, *, fail: bool) -> list[int]:
        numbers = []
        for attempt in (1, 2):
            try:
                async with session.turn("plan") as turn:
                    numbers.append(turn.number)
                    if fail and attempt == 1:
                        raise Boom
                    await session.step(charge, "plan")
                    break
            except Boom:
                continue
        async with session.turn("build") as turn:
            numbers.append(turn.number)
            await session.step(charge, "build")
            if fail:
                raise Crash
        return numbers

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: program(session, fail=True))
        async with Session.open("s", store=store) as session:
            assert await program(session, fail=False) == [2, 3]

    run(main())
    assert DONE == ["plan", "build"]


def test_questions_and_failed_steps_of_a_repeated_turn_have_the_same_outcome() -> None:
    calls: list[str] = []

    @tool(effect="read")
    async def flaky() -> int:
        calls.append("flaky")
        raise Boom

    async def program(session: Session, *, die: bool) -> str:
        async with session.turn("plan"):
            where = await session.ask("Where?")
            with pytest.raises(Boom):
                await session.step(flaky)
        async with session.turn("build"):
            await session.step(charge, where)
            if die:
                raise Crash
        return where

    class Person:
        name = "ann"

        async def ask(self, question: Any) -> Answer:
            calls.append(question.prompt)
            return Answer("there")

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: program(session, die=True), interactors=[Person()])
        async with Session.open("s", store=store, interactors=[Person()]) as session:
            assert await program(session, die=False) == "there"

    run(main())
    assert DONE == ["there"]
    # A failed step runs again: it has no result that it could return.
    assert calls == ["Where?", "flaky", "flaky"]


def test_recover_around_a_repeated_turn_repeats_it_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: fixed_program(session, "plan", "build", die_in=2))
        attempts = []

        @recover("plan", Policy(attempts=3))
        async def plan(session: Session) -> int:
            async with session.turn("plan") as turn:
                attempts.append(turn.number)
                if len(attempts) < 3:
                    raise ConnectionError("reset")
                await session.step(charge, "1a")
                return turn.number

        async with Session.open("s", store=store) as session:
            assert await plan(session) == 1
        assert attempts == [1, 1, 1]

    run(main())
    assert DONE == ["1a", "1b", "2a"]


def test_another_input_than_that_of_the_next_turn_continues_the_cut_one_or_raises() -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: fixed_program(session, "plan", "test", "build", die_in=3))
        async with Session.open("s", store=store) as session:
            # "test" was the second turn. The program does not begin from its start, so it is not repeated.
            with pytest.raises(HoldfastError) as raised:
                async with session.turn("test"):
                    pass
            assert code_of(raised.value) == "SESS_TURN_CONCURRENT"
            async with session.turn() as turn:
                assert (turn.number, turn.input, turn.replayed) == (3, "build", False)
        assert await outcomes(store) == ["ok", "ok", "ok"]

    run(main())


@pytest.mark.parametrize("way", ["on_crash", "unfinished"])
def test_a_run_that_was_given_up_is_not_repeated_later(way: str) -> None:
    async def main() -> None:
        store = MemoryStore()

        async def again(session: Session) -> object:
            # The turn that was finished before is meant anew.
            return await fixed_program(session, "plan", "build", die_in=2, again=True)

        await killed(store, lambda session: fixed_program(session, "plan", "build", die_in=2))
        if way == "on_crash":
            await killed(store, again, on_crash="abandon")
        else:
            async with Session.open("s", store=store) as session:
                await session.abandon()
            await killed(store, again)
        async with Session.open("s", store=store) as session:
            # Turns 1 and 2 belong to the run that was given up.
            assert [number for number, _ in await fixed_program(session, "plan", "build", again=True)] == [3, 3, 4, 4]

    run(main())
    assert DONE == ["1a", "1b", "2a", "1a", "1b", "2a", "2b"]


@pytest.mark.parametrize("copy", ["fork", "import", "checkpoint"])
def test_a_copy_of_a_cut_session_repeats_its_turns_too(copy: str) -> None:
    async def main() -> None:
        store, name = MemoryStore(), "s"
        work = partial(fixed_program, die_in=2) if copy != "checkpoint" else saving_program
        await killed(store, lambda session: work(session, "plan", "build"))
        if copy == "fork":
            name = "other"
            await fork_session(store, "s", name)
        elif copy == "import":
            lines = [line async for line in export_lines(store, "s", exact=True)]
            store = MemoryStore()
            await import_lines(store, lines)
        async with Session.open(name, store=store) as session:
            assert [number for number, _ in await fixed_program(session, "plan", "build")] == [1, 1, 2, 2]

    run(main())
    assert DONE == ["1a", "1b", "2a", "2b"]


async def saving_program(session: Session, *names: str) -> None:
    """As `fixed_program`, and a checkpoint holds the cut turn."""
    try:
        await fixed_program(session, *names, die_in=2)
    except Crash:
        session.context["saved"] = True
        await session.checkpoint()
        assert await session._store.checkpoint("s") is not None
        raise


def test_turns_that_were_dropped_from_the_log_are_not_repeated() -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: saving_program(session, "plan", "build"))
        checkpoint = await store.checkpoint("s")
        assert checkpoint is not None
        await store.compact("s", checkpoint.offset)
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError) as raised:
                await fixed_program(session, "plan", "build")
            assert code_of(raised.value) == "SESS_TURN_CONCURRENT"
            async with session.turn("build") as turn:
                assert (turn.number, await session.step(charge, "2a")) == (2, "charged 2a")

    run(main())
    assert DONE == ["1a", "1b", "2a"]
