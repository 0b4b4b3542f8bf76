"""Roles in sessions: who took over is stored, nobody is asked twice, failures of the session are nobody's failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents_roles_kit import Person, Scripted, World, refused

from holdfast import Tries, tool
from holdfast.agents import AgentReply, FunctionAgent, Role
from holdfast.events import AgentFallback, UserNotified
from holdfast.faults import Fault, HoldfastError
from holdfast.sessions import Session, answer, pending
from holdfast.stores import MemoryStore

ONCE = Tries(attempts=1)


class Killed(BaseException):
    """The process dies here."""


async def in_session(world: World, store: Any, work: Any, *people: Any, **options: Any) -> Any:
    async with Session.open("s", store=store, runtime=world.runtime, interactors=people, **options) as session:
        return await work(session)


def test_an_understudy_that_answered_answers_again_without_anybody_being_called_or_asked(tmp_path):
    person = Person(True)
    for started in (1, 2):
        world = World()
        builder, simple = Scripted("builder", refused()), Scripted("simple", "ok")
        role = world.role(builder, simple, retry=ONCE, consent="ask")

        async def work(session: Session, role: Role = role) -> AgentReply:
            return await role.run("a house", session=session)

        reply = world.run(in_session(world, f"sqlite:{tmp_path / 'work.db'}", work, person))
        assert (reply.text, reply.agent) == ("simple: ok", "simple")
        assert (builder.calls, simple.calls) == ((1, 1) if started == 1 else (0, 0))
    assert len(person.asked) == 1


def test_killed_while_an_understudy_works_it_stays_in_charge():
    store = MemoryStore()
    world = World()
    builder, simple, manual = (
        Scripted("builder", refused()),
        Scripted("simple", refused()),
        Scripted("manual", Killed()),
    )
    role = world.role(builder, simple, manual, retry=ONCE)
    with pytest.raises(Killed):
        world.run(in_session(world, store, lambda s: role.run("a house", session=s)))
    assert (builder.calls, simple.calls, manual.calls) == (1, 1, 1)

    world = World()
    # The agent itself is well again, but the understudy may have done a half of the work.
    builder, simple, manual = Scripted("builder", "back"), Scripted("simple", "back"), Scripted("manual", "done")
    role = world.role(builder, simple, manual, retry=ONCE)
    assert world.run(in_session(world, store, lambda s: role.run("a house", session=s))).agent == "manual"
    assert (builder.calls, simple.calls) == (0, 0)


def test_after_all_have_failed_a_program_that_is_run_again_tries_all_again():
    store = MemoryStore()
    for started in (1, 2, 3):
        world, person = World(), Person()
        error = refused(f"run {started}")
        role = world.role(Scripted("builder", error), Scripted("simple", refused()), retry=ONCE)
        with pytest.raises(ConnectionResetError) as caught:
            world.run(in_session(world, store, lambda s, role=role: role.run("a house", session=s), person))
        assert caught.value is error
        assert [event.people for event in world.events.of(UserNotified)] == [1]
        assert len(person.notices) == 1
    world = World()
    role = world.role(Scripted("builder", "back"), Scripted("simple", "ok"), retry=ONCE)
    assert world.run(in_session(world, store, lambda s: role.run("a house", session=s))).agent == "builder"


def test_two_runs_with_the_same_prompt_are_two_runs_and_are_replayed_in_order():
    store = MemoryStore()
    for started in (1, 2):
        world = World()
        builder, simple = Scripted("builder", refused(), "first", "never"), Scripted("simple", "ok")
        role = world.role(builder, simple, retry=ONCE)

        async def work(session: Session, role: Role = role) -> list[str]:
            return [(await role.run("a house", session=session)).agent for _ in range(2)]

        assert world.run(in_session(world, store, work)) == ["simple", "builder"]
        if started == 2:
            assert simple.calls == 0


def test_in_turns_each_turn_begins_with_the_agent_itself():
    store = MemoryStore()
    world = World()
    builder, simple = Scripted("builder", refused(), "back"), Scripted("simple", "ok")
    role = world.role(builder, simple, retry=ONCE)

    async def work(session: Session) -> list[str]:
        agents = []
        for n in range(2):
            async with session.turn(n):
                agents.append((await role.run("a house", session=session)).agent)
        return agents

    assert world.run(in_session(world, store, work)) == ["simple", "builder"]


def test_consent_that_is_given_later_from_elsewhere():
    store = MemoryStore()
    world = World()
    builder, simple = Scripted("builder", refused()), Scripted("simple", "ok")
    role = world.role(builder, simple, retry=ONCE, consent="ask")
    with pytest.raises(HoldfastError) as caught:
        world.run(in_session(world, store, lambda s: role.run("a house", session=s)))
    assert caught.value.fault.code == "SESS_NO_INTERACTOR"
    # Nobody said no, so nothing has failed for good.
    assert world.events.of(UserNotified) == []
    assert simple.calls == 0

    async def agree() -> None:
        (question,) = await pending(store, "s")
        await answer(store, "s", question.id, approved=True)

    world.run(agree())
    assert world.run(in_session(world, store, lambda s: role.run("a house", session=s))).agent == "simple"


@pytest.mark.parametrize("code", ["SESS_STORE_UNAVAILABLE", "SESS_LEASE_LOST", "SESS_NO_INTERACTOR"])
@pytest.mark.parametrize("place", ["agent", "understudy", "nested"])
def test_a_failure_of_the_session_is_raised_as_it_is_and_nobody_counts_it(code, place):
    world = World()
    error = HoldfastError(Fault.of(code))
    broken, after = Scripted("broken", error), Scripted("after", "ok")
    if place == "agent":
        role = world.role(broken, after)
    elif place == "understudy":
        role = world.role(Scripted("builder", refused()), broken, after, retry=ONCE)
    else:
        inner = world.role(Scripted("inner", refused()), broken, retry=ONCE)
        role = Role(
            "outer",
            Scripted("x", refused()).agent,
            understudies=[inner, after.agent],
            retry=ONCE,
            runtime=world.runtime,
        )
    with pytest.raises(HoldfastError) as caught:
        world.run(role.run("a house"))
    assert caught.value is error
    assert (broken.calls, after.calls, world.counted("broken", "after")) == (1, 0, [0, 0])
    assert world.events.of(UserNotified) == []


def test_switched_off_a_failure_of_the_session_is_raised_as_it_is():
    world = World()
    world.runtime.enabled = False
    error = HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE"))
    with pytest.raises(HoldfastError) as caught:
        world.run(world.role(Scripted("builder", error)).run("a house"))
    assert caught.value is error
    assert caught.value.__context__ is None


def test_a_session_lost_while_an_understudy_takes_over_surfaces_as_such():
    world = World()

    class Full(MemoryStore):
        async def commit(self, commit: Any) -> Any:
            if any(b"simple" in bytes(entry.body) for entry in commit.entries):
                raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE"))
            return await super().commit(commit)

    simple = Scripted("simple", "ok")
    role = world.role(Scripted("builder", refused()), simple, retry=ONCE)
    with pytest.raises(HoldfastError) as caught:
        world.run(in_session(world, Full(), lambda s: role.run("a house", session=s)))
    assert caught.value.fault.code == "SESS_STORE_UNAVAILABLE"
    assert simple.calls == 0


def test_an_unsafe_function_that_was_cut_off_is_not_repeated_by_its_understudy():
    store = MemoryStore()
    paid: list[str] = []

    @tool(effect="unsafe")
    async def pay(prompt: str) -> str:
        paid.append(prompt)
        raise Killed

    for started in (1, 2):
        world = World()
        simple = Scripted("simple", "ok")
        role = Role("payer", FunctionAgent("payer", pay), understudies=[simple.agent], runtime=world.runtime)
        with pytest.raises(Killed if started == 1 else HoldfastError) as caught:
            world.run(in_session(world, store, lambda s, role=role: role.run("5 EUR", session=s)))
        if isinstance(caught.value, HoldfastError):
            assert caught.value.fault.code == "TOOL_OUTCOME_UNKNOWN"
        assert simple.calls == 0
    assert paid == ["5 EUR"]


def test_roles_in_parallel_on_one_session(tmp_path):
    async def both(session: Session, *roles: Role) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(role.run("a house", session=session)) for role in roles]
        return [task.result().agent for task in tasks]

    for started in (1, 2):
        world = World()
        agents = [(Scripted(f"a{n}", refused()), Scripted(f"b{n}", "ok")) for n in range(5)]
        roles = [world.role(*pair, retry=ONCE) for pair in agents]
        store = f"sqlite:{tmp_path / 'work.db'}"
        assert world.run(in_session(world, store, lambda s, roles=roles: both(s, *roles))) == [
            f"b{n}" for n in range(5)
        ]
        assert sum(first.calls + second.calls for first, second in agents) == (10 if started == 1 else 0)
        assert len(world.events.of(AgentFallback)) == 5


def test_a_stream_in_a_session_is_replayed_too():
    store = MemoryStore()
    texts = []
    for _ in range(2):
        world = World()
        role = world.role(Scripted("builder", refused()), Scripted("simple", "ok"), retry=ONCE)

        async def work(session: Session, role: Role = role) -> list[str]:
            async with role.stream("a house", session=session) as parts:
                return [type(part).__name__ async for part in parts]

        texts.append(world.run(in_session(world, store, work)))
    assert texts == [["FellBack", "Text", "Done"]] * 2


def test_an_interactor_that_cannot_show_a_notice_or_fails_is_left_out():
    world = World()

    class Mute:
        async def ask(self, question: Any) -> Any:
            raise NotImplementedError

    class Broken(Mute):
        async def notify(self, notice: Any) -> None:
            raise OSError("window closed")

    class Hanging(Mute):
        async def notify(self, notice: Any) -> None:
            await asyncio.sleep(10_000)

    person = Person()
    people = (Mute(), Broken(), Hanging(), person)
    shown = world.run(in_session(world, MemoryStore(), lambda s: s.notify("The build is red."), *people))
    assert shown == 1
    assert [notice.text for notice in person.notices] == ["The build is red."]
    assert world.clock.monotonic() <= 10


def test_a_stream_says_that_a_person_is_asked_whether_an_understudy_may_take_over():
    person, world = Person(True), World()
    role = world.role(Scripted("builder", refused()), Scripted("simple", "ok"), retry=ONCE, consent="ask")

    async def work(session: Session) -> list[Any]:
        async with role.stream("a house", session=session) as parts:
            return [part async for part in parts]

    parts = world.run(in_session(world, MemoryStore(), work, person))
    assert [type(part).__name__ for part in parts] == ["Asking", "FellBack", "Text", "Done"]
    assert (parts[0].kind, parts[0].prompt) == ("Approve", person.asked[0])
