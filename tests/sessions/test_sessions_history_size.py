"""History grows linearly: a turn stores what it adds, never the whole again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions_kit import square

from holdfast import tool
from holdfast.faults import HoldfastError
from holdfast.sessions import Session
from holdfast.sessions.log import ContextSaved, difference, new_entry, patched
from holdfast.stores import Commit, MemoryStore, Receipt, SqliteStore
from holdfast.testing import run

json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=4),
    max_leaves=12,
)


@given(json, json)
def test_a_difference_makes_one_value_into_the_other(old: Any, new: Any) -> None:
    before = msgspec.json.encode(old)
    made = patched(old, msgspec.json.decode(msgspec.json.encode(difference(old, new))))
    # As JSON, because Python finds 1, 1.0 and True equal.
    assert msgspec.json.encode(made, order="sorted") == msgspec.json.encode(new, order="sorted")
    assert msgspec.json.encode(old) == before
    assert (difference(old, new) == []) is (
        msgspec.json.encode(old, order="sorted") == msgspec.json.encode(new, order="sorted")
    )


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, [[["a"], 2, 0, [3]]]),
        ({"text": "so far"}, {"text": "so far and on"}, [[["text"], 6, 0, " and on"]]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, [[["a", "c"]]]),
        ([{"n": 1, "t": "x"}, {"n": 2}], [{"n": 1, "t": "x"}, {"n": 3}], [[[1, "n"], 3]]),
        ([1, 2, 3, 4], [1, 4], [[[], 1, 2, []]]),
        ({"a": 1}, {"a": True}, [[["a"], True]]),
        ([1], {"a": 1}, [[[], {"a": 1}]]),
    ],
)
def test_a_difference_is_as_small_as_what_changed(old: Any, new: Any, changes: Any) -> None:
    assert difference(old, new) == changes
    assert patched(old, changes) == new


class Counted(MemoryStore):
    """Counts the bytes that are written."""

    written = 0
    checkpoints = 0

    async def commit(self, commit: Commit) -> Receipt:
        self.written += sum(len(entry.body) for entry in commit.entries) + sum(len(a.payload) for a in commit.audit)
        if commit.checkpoint is not None:
            self.written += len(commit.checkpoint.snapshot)
            self.checkpoints += 1
        return await super().commit(commit)


def said(turn: int) -> str:
    """About a thousand tokens."""
    return f"turn {turn}: " + "four letters make a token, " * 150


async def conversation(session: Session, turn: int) -> None:
    async with session.turn(f"question {turn}"):
        answer = await session.step(said, turn)
        session.context.setdefault("messages", []).append({"role": "assistant", "content": answer})
        await session.message(answer, role="assistant")


def test_a_long_conversation_is_written_once_not_with_each_turn() -> None:
    async def main() -> None:
        store = Counted()
        per_turn = []
        async with Session.open("s", store=store) as session:
            for turn in range(200):
                before = store.written
                await conversation(session, turn)
                per_turn.append(store.written - before)
        total = len(msgspec.json.encode(session.context))
        assert total > 800_000, "a conversation of 200,000 tokens"
        assert store.written < 15_000_000
        # Each turn's text is written as a step, a message and a change of the context. The rest are checkpoints: about as much again.
        assert store.written < 7 * total
        # All but the few turns that write a checkpoint write what they add.
        assert sorted(per_turn)[-25] < 5 * len(said(1))
        assert store.checkpoints < 25
        async with Session.open("s", store=store) as session:
            assert session.context["messages"][199]["content"] == said(199)
            assert len(session.context["messages"]) == 200

    run(main())


def test_many_steps_outside_of_turns_are_not_copied_into_every_checkpoint() -> None:
    async def main() -> None:
        store = Counted()
        async with Session.open("s", store=store) as session:
            for n in range(300):
                await session.step(said, n)
                session.context["n"] = n
                await session.checkpoint()
        assert store.written < 4 * 300 * len(said(1))
        async with Session.open("s", store=store) as session:
            assert session.context == {"n": 299}
            for n in range(300):
                assert await session.step(said, n) == said(n)
        assert store.written < 5 * 300 * len(said(1))

    run(main())


def test_a_long_conversation_in_sqlite_is_small_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteStore(tmp_path / "s.db") as store, Session.open("s", store=store) as session:
            for turn in range(200):
                await conversation(session, turn)

    asyncio.run(main())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 15_000_000


def test_the_log_alone_is_enough_to_find_the_context() -> None:
    async def main() -> None:
        store = MemoryStore()
        for n in range(5):
            async with Session.open("s", store=store) as session:
                session.context.setdefault("seen", []).append(n)
                session.context["last"] = {"n": n}
                await session.step(square, n)
        # A checkpoint that is gone, or of an earlier time, changes nothing.
        store._sessions["s"].checkpoint = None
        async with Session.open("s", store=store) as session:
            assert session.context == {"seen": [0, 1, 2, 3, 4], "last": {"n": 4}}

    run(main())


def test_a_change_that_does_not_fit_is_a_damaged_session() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            session.context["a"] = 1
        wrong = ContextSaved(number=9, changes=[[["b", "c"], 1]])
        await store.commit(Commit(session="s", entries=(new_entry(wrong, "x"),)))
        with pytest.raises(HoldfastError, match="does not fit those before it"):
            async with Session.open("s", store=store):
                raise AssertionError("it was opened")

    run(main())


# --- what a long run costs ---


@tool(effect="unsafe")
async def count(number: int) -> int:
    return number


async def in_steps(session: Session, size: int) -> None:
    for number in range(size):
        await session.step(count, number)


async def in_turns(session: Session, size: int) -> None:
    for number in range(size // 4):
        async with session.turn(str(number), key=str(number)):
            await session.step(count, number)


def calls_of(work: Callable[[Session, int], Awaitable[None]], size: int) -> tuple[int, int]:
    """Return how many calls of functions a program makes, and how many when it is run again."""
    made = []

    async def program(store: MemoryStore) -> None:
        calls = 0

        def profile(_frame: object, event: str, _given: object) -> None:
            nonlocal calls
            calls += event == "call"

        async with Session.open("s", store=store) as session:
            sys.setprofile(profile)
            try:
                await work(session, size)
            finally:
                sys.setprofile(None)
        made.append(calls)

    async def main() -> None:
        async with MemoryStore() as store:
            await program(store)
            await program(store)

    run(main())
    return made[0], made[1]


@pytest.mark.parametrize("work", [in_steps, in_turns])
def test_four_times_the_unsafe_steps_or_turns_cost_four_times_as_much(work: Any) -> None:
    short, long = calls_of(work, 100), calls_of(work, 400)
    assert [after < 6 * before for before, after in zip(short, long, strict=True)] == [True, True]
