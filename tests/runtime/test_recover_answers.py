"""Answers: `accept` rejects some, and an answer that is thrown away is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from recover_kit import Flaky, World, reset, settled

from holdfast import (
    Fault,
    HoldfastError,
)
from holdfast.events import (
    Retry,
    SuppressedError,
)


def test_R9_a_rejected_answer_and_an_exception_share_one_policy() -> None:
    world = World()
    answers = iter(["bad", reset(), "good"])

    def work() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert world.recover("a", accept=lambda value: value == "good").call(work) == "good"
    assert [event.fault.code for event in world.of(Retry)] == ["PROVIDER_OUTPUT_INVALID", "CONN_RESET"]


def test_R10_when_every_answer_is_bad_a_typed_error_carries_the_last() -> None:
    world = World()
    answers = iter(["bad 1", "bad 2", "bad 3"])
    with pytest.raises(HoldfastError) as failed:
        world.recover("a", accept=lambda _: False).call(lambda: next(answers))
    fault = failed.value.fault
    assert fault.code == "PROVIDER_OUTPUT_INVALID"
    assert fault.partial is not None
    assert fault.partial.payload == "bad 2"  # the model gets one more chance to change it
    assert len(fault.attempts) == 2


@pytest.mark.parametrize("verdict", [True, None])
def test_R10_an_accepted_answer_is_returned_even_if_it_is_falsy(verdict: Any) -> None:
    assert World().recover("a", accept=lambda _: verdict).call(lambda: None) is None


def test_R10_accept_may_name_the_fault() -> None:
    world = World()
    own = Fault.of("PROVIDER_OVERLOADED", "too short", retryable=True)
    answers = iter([own, "PROVIDER_OVERLOADED", True])
    assert world.recover("a", accept=lambda _: next(answers)).call(lambda: "answer") == "answer"
    assert [event.fault.code for event in world.of(Retry)] == ["PROVIDER_OVERLOADED"] * 2


class Owned:
    """An answer that holds something open."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class OwnedAsync(Owned):
    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1

    def close(self) -> None:
        raise AssertionError("aclose is the way in async code")


@pytest.mark.parametrize("kind", [Owned, OwnedAsync])
def test_R27_a_thrown_away_answer_is_closed_and_the_accepted_one_is_not(kind: type[Owned]) -> None:
    world = World()
    given: list[Owned] = []

    async def work() -> Owned:
        given.append(kind())
        return given[-1]

    accepted = world.run(world.recover("a", accept=lambda _: len(given) == 2).call(work))
    assert [owned.closed for owned in given] == [1, 0]
    assert accepted is given[-1]


def test_R27_a_thrown_away_answer_is_closed_in_sync_code() -> None:
    given: list[Owned] = []
    World().recover("a", accept=lambda _: len(given) == 2).call(lambda: given.append(Owned()) or given[-1])
    assert [owned.closed for owned in given] == [1, 0]


def test_R25_R27_an_answer_that_will_not_close_changes_nothing() -> None:
    world = World()

    class Stuck:
        def close(self) -> None:
            raise OSError("cannot close")

    answers = iter([Stuck(), "good"])
    assert world.recover("a", accept=lambda value: value == "good").call(lambda: next(answers)) == "good"
    assert [event.cause for event in world.of(SuppressedError)] == ["cannot close"]


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("accept", ["raises", "nonsense"])
def test_R25_an_accept_that_raises_or_answers_nonsense_lets_the_answer_through(form: str, accept: str) -> None:
    world = World()
    work = Flaky(value="answer")

    def look(_: Any) -> Any:
        if accept == "raises":
            raise LookupError("a defect of the hook")
        return "NO_SUCH_CODE"

    recovery = world.recover("a", accept=look)
    got = recovery.call(work) if form == "sync" else world.run(recovery.call(work.acall))
    assert got == "answer"
    assert work.calls == 1
    assert len(world.of(SuppressedError)) == 1
    assert settled(world.state("provider:a")) == world.state("provider:a")._breaker.successes == 1
