"""Answers: `accept` rejects some, and an answer that is thrown away is closed."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from recover_kit import Flaky, World, reset

from holdfast import (
    Fault,
    HoldfastError,
    InvalidError,
    Partial,
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


def _raises(answer: Any) -> Any:
    raise LookupError("a defect of accept")


async def _verdict() -> bool:
    return True


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize(
    ("accept", "defect"),
    [
        (_raises, "raised LookupError"),
        (lambda _: "NO_SUCH_CODE", "returned a value of type str"),
        (lambda _: ["a list"], "returned a value of type list"),
        (lambda _: 1, "returned a value of type int"),
        (lambda _: _verdict(), "returned a value of type coroutine"),
    ],
)
def test_FR8_an_accept_that_raises_or_returns_nonsense_rejects_and_is_reported_once(
    form: str, accept: Any, defect: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(log=True)
    work = Flaky(value="answer")
    recovery = world.recover("a", accept=accept)
    for _ in range(2):
        with pytest.raises(HoldfastError, match=f"`accept` {defect}") as failed:
            recovery.call(work) if form == "sync" else world.run(recovery.call(work.acall))
        assert failed.value.fault.code == "PROVIDER_OUTPUT_INVALID"
        assert failed.value.fault.partial == Partial(payload="answer")
    assert work.calls == 4
    assert [event.reason for event in world.of(SuppressedError)] == [f"`accept` {defect}, so the answer is rejected"]
    assert caplog.text.count(f"`accept` {defect}, so the answer is rejected") == 1
    # The service answered: a defect of `accept` opens no circuit.
    assert world.state("provider:a")._breaker.failures == 0


def test_FR8_an_accept_that_raises_about_one_answer_asks_again() -> None:
    answers = iter([{}, {"ok": True}])
    assert World().recover("a", accept=lambda answer: answer["ok"]).call(lambda: next(answers)) == {"ok": True}


@pytest.mark.parametrize("accept", [_verdict, functools.partial(_verdict)])
def test_FR8_an_async_accept_is_an_error_when_the_recovery_is_made(accept: Any) -> None:
    with pytest.raises(InvalidError, match=r"recover\.accept: expected a plain function"):
        World().recover("a", accept=accept)
