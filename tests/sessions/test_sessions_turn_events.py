"""The events of a session's turns: they name the session and the turn."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

import holdfast
from holdfast import Runtime, Session
from holdfast.events import (
    Cancelled,
    SessionActive,
    SessionClosed,
    SessionPersisted,
    SessionResumed,
    SessionTurnEnd,
    SessionTurnStart,
)
from holdfast.faults import AbortedError
from holdfast.stores import MemoryStore
from holdfast.tasks.stages import Stage, StageMachine
from holdfast.testing import run


def test_N2_5_a_turn_tells_when_it_begins_and_how_it_ends():
    seen = []
    runtime = Runtime()
    runtime.on(seen.append, SessionTurnStart, SessionTurnEnd)

    async def main():
        async with Session.open("s", store=MemoryStore(), runtime=runtime) as session:
            async with session.turn("a"):
                pass
            with pytest.raises(ValueError, match="no"):
                async with session.turn("b"):
                    raise ValueError("no")

    run(main())
    assert [(type(e).__name__, e.session, e.turn, e.number, getattr(e, "outcome", "")) for e in seen] == [
        ("SessionTurnStart", "s", 1, 1, ""),
        ("SessionTurnEnd", "s", 1, 1, "ok"),
        ("SessionTurnStart", "s", 2, 2, ""),
        ("SessionTurnEnd", "s", 2, 2, "failed"),
    ]


def lives(store, runtime, *blocks):
    """The events of a session's states over several runs of a program."""
    seen = []
    with runtime.on(seen.append, SessionActive, SessionPersisted, SessionResumed, SessionClosed):

        async def main():
            for block in blocks:
                async with Session.open("s", store=store, runtime=runtime) as session:
                    await block(session)

        run(main())
    return [(type(event).__name__, event.before, event.edge, event.session) for event in seen]


async def one_turn(session):
    async with session.turn("a"):
        pass


async def close(session):
    await session.close()


def test_N2_11_each_edge_of_a_sessions_life_is_an_event():
    assert lives(MemoryStore(), Runtime(), one_turn, one_turn, close) == [
        ("SessionActive", "Idle", "FirstTurn", "s"),
        ("SessionPersisted", "Active", "Snapshot", "s"),
        ("SessionResumed", "Closed", "Resume", "s"),
        ("SessionActive", "Resumed", "FirstTurn", "s"),
        ("SessionPersisted", "Active", "Snapshot", "s"),
        ("SessionResumed", "Closed", "Resume", "s"),
        ("SessionClosed", "Resumed", "", "s"),
    ]


def test_N2_11_a_session_that_the_store_did_not_acknowledge_is_not_persisted():
    class Full(MemoryStore):
        is_full = False

        async def commit(self, commit):
            if self.is_full:
                raise OSError("the disk is full")
            return await super().commit(commit)

    store, seen = Full(), []
    runtime = Runtime(waits=False)
    runtime.on(seen.append, SessionPersisted)

    async def main():
        async with Session.open("s", store=store, runtime=runtime) as session:
            async with session.turn("a"):
                pass
            store.is_full = True

    with pytest.raises(OSError, match="the disk is full"):
        run(main())
    assert seen == []


@pytest.mark.parametrize(
    ("what", "inside"),
    [
        *itertools.product(["turn", "session", "task"], ["a turn", "a step", "a session inside"]),
        ("session", "nothing"),
        ("task", "nothing"),
    ],
)
def test_S2_1_a_cancellation_is_audited_once_with_who_did_it(what, inside):
    store = MemoryStore()

    async def hang():
        await asyncio.sleep(1000)

    async def other():
        async with Session.open("inner", store=store) as session, session.turn("b"):
            await hang()

    async def work():
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        async with Session.open("s", store=store) as session:
            loop.call_later(1, {"session": session.cancel, "task": task.cancel}.get(what, lambda: None))
            if inside == "nothing":
                await hang()
            async with session.turn("a") as turn:
                if what == "turn":
                    loop.call_later(1, turn.cancel)
                await {"a step": lambda: session.step(hang), "a session inside": other}.get(inside, hang)()

    async def main():
        await asyncio.wait((asyncio.ensure_future(work()),))
        return [
            (body["session"], body["operation"], body["reason"])
            for chain in ("session:s", "session:inner")
            for record in await store.audit(chain)
            if record.kind == "Cancellation"
            for body in (json.loads(bytes(record.payload)),)
        ]

    place = {"turn": "turn", "session": "session", "task": "session" if inside == "nothing" else "turn"}[what]
    by = "the task was cancelled" if what == "task" else "user"
    # The session inside is one of its own: nobody cancelled it, but its task.
    its_own = [("inner", "turn", "the task was cancelled")] if inside == "a session inside" else []
    assert run(main()) == [("s", place, by), *its_own]


def test_S2_1_a_stage_that_is_cancelled_is_audited_once():
    runtime, seen = Runtime(), []
    runtime.on(seen.append, Cancelled)
    machine = StageMachine([Stage("a", lambda work: asyncio.sleep(1000))], runtime=runtime)

    async def main():
        asyncio.get_running_loop().call_later(1, machine.cancel, "a")
        async with Session.open("s", store=MemoryStore(), runtime=runtime) as session, session.turn("go"):
            await machine.run(session)

    with pytest.raises(AbortedError):
        run(main())
    assert [(event.operation, event.reason) for event in seen] == [("stage a", "user")]


def test_S2_1_a_turn_whose_task_is_cancelled_is_audited_as_cancelled():
    store, seen = MemoryStore(), []
    runtime = Runtime()
    runtime.on(seen.append, SessionTurnEnd)

    async def main():
        began = asyncio.Event()

        async def work():
            async with Session.open("s", store=store, runtime=runtime) as session, session.turn("a"):
                began.set()
                await asyncio.sleep(1000)

        task = asyncio.ensure_future(work())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await store.audit("session:s")

    trail = run(main())
    assert [event.outcome for event in seen] == ["cancelled"]
    cancelled = [record for record in trail if record.kind == "Cancellation"]
    assert [b"the task was cancelled" in bytes(record.payload) for record in cancelled] == [True]


def test_a_process_that_resumes_a_turn_works_on_the_same_request():
    seen = []
    runtime = Runtime()
    runtime.on(lambda event: seen.append((type(event).__name__, event.request)))
    store = MemoryStore()

    async def answers(ends: bool) -> None:
        async with Session.open("s", store=store, runtime=runtime) as session, session.turn("a", key="m-1"):
            if not ends:
                raise asyncio.CancelledError

    async def main():
        with holdfast.request("req-1"), pytest.raises(asyncio.CancelledError):
            await answers(ends=False)
        seen.clear()
        await answers(ends=True)

    run(main())
    assert dict(seen)["SessionTurnEnd"] == "req-1"
    # What happens outside of the turn is not part of the request.
    assert dict(seen)["SessionPersisted"] == ""
