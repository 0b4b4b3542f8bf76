"""Functions that ignore their cancellation: an answer that comes too late is not used, and the caller is released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from recover_kit import LOOSE, World, assert_places_free, settled

from holdfast import DeadlineError, Err, Hedge, HoldfastError, OutcomeUnknownError, Policy, StreamCutError
from holdfast.compat.tenacity import AsyncRetrying, stop_after_attempt
from holdfast.events import Cancelled, Failed, Fallback, SuppressedError

ONCE = Policy(timeout=5, deadline=60, attempts=1, circuit=LOOSE)
GRACE = 2.0
"""Seconds after its limit at which a call that ignores both its cancellations is closed."""


class Stubborn:
    """Swallows its cancellations, `times` of them, and goes on with its work of `takes` seconds each time."""

    def __init__(self, times: int = 1_000_000, takes: float = 100.0) -> None:
        self.times, self.takes = times, takes
        self.swallowed = self.closed = self.calls = 0
        self.answer = Answer()

    async def call(self, *_: Any) -> Any:
        self.calls += 1
        try:
            while True:
                try:
                    await asyncio.sleep(self.takes)
                except asyncio.CancelledError:
                    self.swallowed += 1
                    if self.swallowed > self.times:
                        raise
                else:
                    return self.answer
        finally:
            self.closed += 1

    async def items(self, *_: Any) -> AsyncIterator[Any]:
        yield "first"
        yield await self.call()


class Answer:
    closed = False

    def close(self) -> None:
        self.closed = True


def leaks(world: World) -> list[str]:
    return [event.cause for event in world.of(SuppressedError) if event.reason == "leaked"]


async def raised(call: Any) -> Any:
    """Return what the call raises. No cancellation of ours may stay pending, and no timer may cancel the task later."""
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(Exception) as failed:
        await call
    assert task.cancelling() == 0
    return failed.value


# --- swallowed once ---


def test_FR16_an_answer_after_the_limit_is_not_returned_but_closed() -> None:
    world, work = World(), Stubborn(times=1, takes=5.5)

    async def late() -> Any:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return work.answer

    async def main() -> None:
        error = await raised(world.recover("a", ONCE).call(late))
        assert isinstance(error, DeadlineError)
        assert world.now == 5
        outcome = await world.recover("a", ONCE).outcome(late)
        assert isinstance(outcome, Err)
        await asyncio.sleep(100)

    world.run(main())
    assert work.answer.closed
    assert leaks(world) == []
    assert world.state("provider:a")._breaker.failures == 2


def test_FR16_one_that_loses_only_its_first_cancellation_ends_with_the_second() -> None:
    world, work = World(), Stubborn(times=1)

    async def main() -> None:
        assert isinstance(await raised(world.recover("a", ONCE).call(work.call)), DeadlineError)
        assert world.now == 6
        await asyncio.sleep(100)

    world.run(main())
    assert (work.swallowed, work.closed) == (2, 1)
    assert leaks(world) == []


def test_FR16_a_late_attempt_is_retried_like_any_other() -> None:
    world, answers = World(), ["late", "in time"]

    async def fetch() -> str:
        answer = answers.pop(0)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(100 if answer == "late" else 1)
        return answer

    assert world.run(world.recover("a", Policy(timeout=5)).call(fetch)) == "in time"


def test_FR16_a_late_answer_of_an_unsafe_call_leaves_its_outcome_unknown() -> None:
    world = World()

    async def pay() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        return "paid"

    with pytest.raises(OutcomeUnknownError):
        world.run(world.recover("tool:pay", ONCE, effect="unsafe").call(pay))


# --- swallowed for ever ---


@pytest.mark.parametrize("form", ["call", "decorated", "outcome", "limiter", "deadline"])
def test_FR16_a_loop_that_swallows_every_cancellation_is_closed_and_its_caller_released(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    world, work = World(), Stubborn()
    policy = ONCE.replace(concurrency=1) if form == "limiter" else ONCE
    if form == "deadline":
        policy = ONCE.replace(timeout=None, deadline=5)
    recovery = world.recover("a", policy)

    async def main() -> None:
        if form == "outcome":
            error = (await recovery.outcome(work.call)).error
        else:
            error = await raised(recovery(work.call)() if form == "decorated" else recovery.call(work.call))
        assert isinstance(error, DeadlineError)
        assert error.fault.code == ("SYS_DEADLINE_EXCEEDED" if form == "deadline" else "PROVIDER_TIMEOUT")
        assert world.now == 5 + GRACE
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(1_000)

    with caplog.at_level(logging.WARNING, "holdfast"):
        world.run(main())
    assert work.closed == 1
    assert leaks(world) == ["a ignored its cancellation and was closed"]
    assert "leaked: a ignored its cancellation and was closed" in caplog.text
    assert len(world.of(Failed)) == 1
    state = world.state("provider:a")
    assert settled(state) == 1
    assert_places_free(state)


def test_FR16_the_next_attempt_and_the_fallbacks_come_after_a_closed_call() -> None:
    world, work = World(), Stubborn()
    stubborn = world.recover("a", Policy(timeout=5, deadline=100, attempts=2))(work.call)

    @stubborn.fallback
    async def other(*_: Any) -> str:
        return "other"

    assert world.run(stubborn()) == "other"
    assert (work.calls, work.closed) == (2, 2)
    assert len(world.of(Fallback)) == 1
    assert len(leaks(world)) == 2


def test_FR16_a_fallback_that_swallows_every_cancellation_is_closed_too() -> None:
    world, work = World(), Stubborn()

    async def fails() -> None:
        raise ConnectionResetError(104, "reset")

    primary = world.recover("a", ONCE)(fails)
    primary.fallback(work.call)
    with pytest.raises(ConnectionResetError):
        world.run(primary())
    assert world.now == 5 + GRACE
    assert work.closed == 1


def test_FR16_a_loop_inside_a_nested_recovery_is_closed_by_the_outer_limit() -> None:
    world, work = World(), Stubborn()
    inner = world.recover("inner", ONCE.replace(timeout=50))(work.call)

    async def outer() -> Any:
        return await inner()

    async def main() -> None:
        assert isinstance(await raised(world.recover("outer", ONCE).call(outer)), DeadlineError)
        assert world.now == 5 + GRACE
        await asyncio.sleep(1_000)

    world.run(main())
    assert work.closed == 1
    assert settled(world.state("provider:inner")) == settled(world.state("provider:outer")) == 1


def test_FR16_a_cancellation_from_outside_surfaces_although_the_call_had_to_be_closed() -> None:
    world, work = World(), Stubborn()

    async def main() -> None:
        task = asyncio.create_task(world.recover("a", ONCE).call(work.call))
        await asyncio.sleep(5.5)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert world.now == 5 + GRACE

    world.run(main())
    assert len(world.of(Cancelled)) == 1
    assert settled(world.state("provider:a")) == 1


@pytest.mark.parametrize("takes", [3.0, 20.0])
def test_FR16_one_that_cleans_up_after_its_cancellation_is_not_disturbed(takes: float) -> None:
    world, done = World(), []

    async def transaction() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await roll_back()

    async def roll_back() -> None:
        await asyncio.sleep(takes)
        done.append("rolled back")

    async def main() -> None:
        assert isinstance(await raised(world.recover("a", ONCE).call(transaction)), DeadlineError)

    world.run(main())
    assert done == ["rolled back"]
    assert world.now == 5 + takes
    assert leaks(world) == []


def test_FR16_a_clean_up_that_never_ends_is_ended() -> None:
    world = World()

    async def hangs() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(10_000)

    with pytest.raises(DeadlineError):
        world.run(world.recover("a", ONCE).call(hangs))
    assert 30 < world.now < 40


def test_FR16_a_call_that_gathers_stubborn_tasks_is_closed_and_its_caller_released() -> None:
    world, work = World(), Stubborn(times=5, takes=30)

    async def both() -> Any:
        return await asyncio.gather(work.call(), work.call(), return_exceptions=True)

    async def main() -> None:
        assert isinstance(await raised(world.recover("a", ONCE).call(both)), DeadlineError)
        assert world.now == 5 + GRACE
        await asyncio.sleep(1_000)

    world.run(main())
    assert leaks(world) == ["a ignored its cancellation and was closed"]


def test_FR16_a_stubborn_task_that_a_call_waits_for_is_reported_while_its_caller_waits() -> None:
    world, work = World(), Stubborn(takes=50)

    async def waits() -> Any:
        return await asyncio.create_task(work.call())

    async def main() -> None:
        assert isinstance(await raised(world.recover("a", ONCE).call(waits)), DeadlineError)
        await asyncio.sleep(1_000)

    world.run(main())
    assert leaks(world) == [
        "a ignored its cancellation and was closed",
        "a was closed, but a task that it waits for ignores its cancellation",
    ]


def test_FR16_one_that_ignores_everything_is_reported_while_its_caller_waits() -> None:
    world = World()

    async def immortal() -> str:
        ends = world.now + 50
        while world.now < ends:
            with suppress(BaseException):
                await asyncio.sleep(ends - world.now)
        return "late"

    with pytest.raises(DeadlineError):
        world.run(world.recover("a", ONCE).call(immortal))
    assert world.now >= 50
    assert leaks(world) == ["a ignored its cancellation and goes on after its time limit; nothing can stop it"]


# --- streams and blocks ---


@pytest.mark.parametrize("times", [1, 1_000_000])
def test_FR16_a_source_of_a_stream_is_closed_like_a_call(times: int) -> None:
    world, work = World(), Stubborn(times=times)
    got = []

    async def read() -> None:
        async with world.recover("a", ONCE).stream(work.items, idle=5)() as stream:
            async for item in stream:
                got.append(item)  # noqa: PERF401 - what came before the failure matters

    async def main() -> None:
        error = await raised(read())
        assert isinstance(error, StreamCutError)
        assert error.fault.code == "PROVIDER_STREAM_STALLED"
        assert world.now == (6 if times == 1 else 5 + GRACE)
        await asyncio.sleep(1_000)

    world.run(main())
    assert got == ["first"]
    assert work.closed == 1
    assert len(leaks(world)) == (0 if times == 1 else 1)
    assert [event.reason for event in world.of(SuppressedError) if event.reason != "leaked"] == []


def test_FR16_opening_a_stream_is_closed_like_a_call() -> None:
    world, work = World(), Stubborn()

    async def read() -> None:
        async with world.recover("a", ONCE).stream(work.call, first=5)() as stream:  # type: ignore[arg-type]
            async for _ in stream:
                pass

    with pytest.raises(DeadlineError):
        world.run(read())
    assert world.now == 5 + GRACE
    assert work.closed == 1


@pytest.mark.parametrize("ends", ["an item", "the end"])
def test_FR16_what_a_stream_gives_after_its_limit_is_not_delivered(ends: str) -> None:
    world = World()

    async def items() -> AsyncIterator[str]:
        yield "first"
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            if ends == "the end":
                return
        yield "late"

    got = []

    async def read() -> None:
        async with world.recover("a", ONCE).stream(items, idle=5)() as stream:
            async for item in stream:
                got.append(item)  # noqa: PERF401 - what came before the failure matters

    with pytest.raises(StreamCutError) as cut:
        world.run(read())
    assert cut.value.fault.code == "PROVIDER_STREAM_STALLED"
    assert got == ["first"]


@pytest.mark.parametrize("times", [1, 3])
def test_FR16_a_block_that_ends_after_its_limit_has_failed(times: int) -> None:
    world, work = World(), Stubborn(times=times, takes=20)
    policy = Policy(timeout=5, patience=None, attempts=2, circuit=LOOSE)

    async def main() -> None:
        async for attempt in world.recover("a", policy):
            async with attempt:
                await work.call()

    with pytest.raises(DeadlineError):
        world.run(main())
    assert work.calls == 2
    assert world.state("provider:a")._breaker.failures == 2
    assert len(leaks(world)) == (0 if times == 1 else 1)


def test_FR16_a_block_that_swallows_its_cancellation_is_late() -> None:
    world = World()

    async def main() -> None:
        async for attempt in world.recover("a", ONCE):
            async with attempt:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(100)

    async def checked() -> None:
        assert isinstance(await raised(main()), DeadlineError)

    world.run(checked())
    assert world.now == 5


def test_FR16_a_block_of_tenacity_that_swallows_an_outer_deadline_is_late() -> None:
    world = World()

    async def inner() -> str:
        async for attempt in AsyncRetrying(stop=stop_after_attempt(1), reraise=True):
            with attempt, suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
        return "done"

    with pytest.raises(HoldfastError):
        world.run(world.recover("a", ONCE).call(inner))


def test_FR16_a_hedged_call_that_ignores_its_cancellation_is_left_behind() -> None:
    world, work = World(), Stubborn(takes=1_000)
    policy = ONCE.replace(hedge=Hedge(after=2))

    async def main() -> None:
        error = await raised(world.recover("a", policy, effect="read").call(work.call))
        assert isinstance(error, DeadlineError)
        assert world.now == 6

    world.run(main())
    assert len(leaks(world)) == 2
