"""Every record says where it belongs: the request, the operations around, what an attempt used, and what each wait was for."""

from __future__ import annotations

import asyncio

import pytest
from recover_kit import Flaky, World

import holdfast
from holdfast import Budget, Policy
from holdfast.events import AttemptEnded, AttemptStarted, Failed, Recovered, Retry, WaitBegan
from holdfast.faults import InvalidError

ANSWER = {
    "model": "claude-opus-4-1",
    "usage": {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 50},
}


def overloaded():
    return ConnectionResetError("gone")


def test_an_operation_inside_others_names_the_one_around_and_the_outermost():
    world = World()
    work = Flaky(overloaded())
    innermost = world.recover("c")(work.acall)
    middle = world.recover("b")(innermost)
    world.run(world.recover("a").call(middle))
    runs = {event.operation: event.run for event in world.of(AttemptStarted)}
    about = {event.operation: (event.within, event.root) for event in world.events}
    assert about == {"a": ("", ""), "b": (runs["a"], runs["a"]), "c": (runs["b"], runs["a"])}


def test_a_budget_around_an_operation_is_no_operation():
    world = World()
    with Budget(attempts=5):
        world.run(world.recover("a").call(Flaky().acall))
    assert {(event.within, event.root) for event in world.events} == {("", "")}


def test_a_task_that_outlives_its_operation_is_no_longer_part_of_it():
    world = World()
    left = []

    async def starts_another():
        async def later():
            await asyncio.sleep(5)
            await world.recover("b").call(Flaky().acall)

        left.append(asyncio.create_task(later()))

    async def main():
        await world.recover("a").call(starts_another)
        await left[0]

    world.run(main())
    assert [event.within for event in world.events if event.operation == "b"] == ["", ""]


def test_every_event_of_a_request_carries_its_id_and_others_do_not():
    world = World()
    with holdfast.request("req-30017"):
        world.run(world.recover("a").call(Flaky(overloaded()).acall))
        with holdfast.request("inner"):
            world.run(world.recover("b").call(Flaky().acall))
    world.run(world.recover("c").call(Flaky().acall))
    named = {}
    for event in world.events:
        named.setdefault(event.operation, set()).add(event.request)
    assert named == {"a": {"req-30017"}, "b": {"inner"}, "c": {""}}


@pytest.mark.parametrize("wrong", ["", "x" * 201, "two\nlines", "\x1b[2J", None, 7])
def test_an_id_that_would_harm_a_log_is_rejected(wrong):
    with pytest.raises(InvalidError, match=r"request\.id"), holdfast.request(wrong):
        pass


def test_an_operation_says_when_it_began():
    world = World()
    began = world.clock.wall()
    world.run(world.recover("a").call(Flaky(overloaded(), overloaded()).acall))
    assert [event.began for event in world.of(Recovered)] == [began]
    assert world.of(Recovered)[0].at > began


def test_an_attempt_names_who_answered_and_what_it_used_and_cost():
    world = World()
    world.run(world.recover("claude").call(Flaky(overloaded(), value=ANSWER).acall))
    failed, answered = world.of(AttemptEnded)
    assert (failed.tokens_in, failed.usd, failed.maybe_billed, failed.target) == (None, None, True, "provider:claude")
    assert (answered.target, answered.model) == ("provider:claude", "claude-opus-4-1")
    assert (answered.tokens_in, answered.tokens_out, answered.tokens_cached) == (100, 20, 50)
    # 100 input at $15, 20 output at $75, 50 from the cache at $1.50, each for a million tokens.
    assert answered.usd == pytest.approx(100 * 15e-6 + 20 * 75e-6 + 50 * 1.5e-6)
    assert not answered.maybe_billed


def test_the_answer_of_an_operation_inside_is_counted_once():
    world = World()
    inner = world.recover("claude")(Flaky(value=ANSWER).acall)
    world.run(world.recover("outer").call(inner))
    assert {event.operation: event.tokens_out for event in world.of(AttemptEnded)} == {"claude": 20, "outer": None}


def test_the_answer_of_a_fallback_names_the_fallback():
    world = World()

    @world.recover("claude", Policy(attempts=1))
    async def answer():
        raise ConnectionResetError

    @answer.fallback
    async def by_other():
        return ANSWER

    world.run(answer())
    assert [(event.target, event.usd is not None) for event in world.of(AttemptEnded)] == [
        ("provider:claude", False),
        ("by_other", True),
    ]


def test_a_call_that_waits_for_a_place_says_so():
    world = World()
    limited = world.recover("a", Policy(concurrency=1))(Flaky(takes=3.0).acall)

    async def both():
        await asyncio.gather(limited(), limited())

    world.run(both())
    (wait,) = world.of(WaitBegan)
    assert (wait.reason, wait.target, wait.until) == ("place", "provider:a", None)
    started = [event for event in world.of(AttemptEnded) if event.run == wait.run]
    # From the wait to the end of the attempt: three seconds for the place, three for the call.
    assert started[0].at - wait.at == 6.0


def test_a_call_that_waits_for_a_start_says_until_when():
    world = World()
    limited = world.recover("a", Policy(per_second=0.5, burst=1))(Flaky().acall)

    async def both():
        await limited()
        await limited()

    world.run(both())
    (wait,) = world.of(WaitBegan)
    assert (wait.reason, wait.until - wait.at) == ("pace", 2.0)


def test_a_sync_call_reports_its_wait_too():
    world = World()
    limited = world.recover("a", Policy(per_second=0.5, burst=1))(Flaky())
    limited()
    limited()
    assert [wait.reason for wait in world.of(WaitBegan)] == ["pace"]


def test_each_wait_for_an_open_circuit_names_the_circuit():
    world = World(defaults=True)
    recovery = world.recover("a", Policy(deadline=300))
    world.run(recovery.call(Flaky().acall))

    async def main():
        world.state("provider:a").force_open(world.now)
        call = asyncio.create_task(recovery.call(Flaky().acall))
        await asyncio.sleep(10)
        world.state("provider:a").reset(world.now)
        await call

    world.run(main())
    waits = world.of(WaitBegan)
    assert {(wait.reason, wait.target) for wait in waits} == {("circuit", "provider:a")}
    # The log shows the first of them only.
    assert len(world.of(Retry)) == 1 < len(waits)


def test_a_failure_inside_another_operation_is_known_by_it_as_before():
    world = World()
    inner = world.recover("b", Policy(attempts=1))(Flaky(overloaded()).acall)
    with pytest.raises(ConnectionResetError):
        world.run(world.recover("a").call(inner))
    assert [(failed.operation, failed.within == failed.root != "") for failed in world.of(Failed)] == [
        ("b", True),
        ("a", False),
    ]
