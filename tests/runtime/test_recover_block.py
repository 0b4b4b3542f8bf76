"""A block as a loop of attempts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, assert_places_free, probes_out, reset, settled

from holdfast import Circuit, CircuitOpenError, DeadlineError, InvalidError, Policy, fault_of, recover
from holdfast.events import AttemptStarted, CircuitState, Failed, Recovered, Retry
from holdfast.runtime.ambient import AMBIENT


def attempts_of(world: World, form: str, body: Any, policy: Policy | None = None, target: str = "a") -> list[int]:
    """Run `body` in a loop of attempts; return the numbers of the attempts that were entered."""
    numbers: list[int] = []
    recovery = world.recover(target, policy)

    def sync() -> None:
        for attempt in recovery:
            with attempt:
                numbers.append(attempt.number)
                body()

    async def later() -> None:
        async for attempt in recovery:
            async with attempt:
                numbers.append(attempt.number)
                await asyncio.sleep(0)
                body()

    try:
        sync() if form == "sync" else world.run(later())
    finally:
        assert AMBIENT.get() is None
    return numbers


FORMS = pytest.mark.parametrize("form", ["sync", "async"])


@FORMS
def test_R1_a_block_is_repeated_until_it_succeeds(form: str) -> None:
    world = World()
    assert attempts_of(world, form, Flaky(reset(), reset())) == [1, 2, 3]
    assert world.waits() == [1, 2]
    assert [event.attempts for event in world.of(Recovered)] == [3]


@FORMS
def test_R1_the_last_exception_itself_leaves_the_loop(form: str) -> None:
    world = World()
    body = Always(reset)
    with pytest.raises(ConnectionResetError) as failed:
        attempts_of(world, form, body)
    assert failed.value is body.raised[-1]
    assert body.calls == 3
    assert len(fault_of(failed.value).attempts) == 3
    assert len(world.of(Failed)) == 1


@FORMS
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_R18_an_interrupt_leaves_the_loop(form: str, stop: type[BaseException]) -> None:
    world = World()
    with pytest.raises(stop):
        attempts_of(world, form, Flaky(stop()))
    assert world.state("provider:a")._breaker.cancelled == 1


@FORMS
def test_R57_while_the_circuit_is_open_entering_raises(form: str) -> None:
    world = World()
    policy = Policy(attempts=1, circuit=Circuit(failures=1))
    with pytest.raises(ConnectionResetError):
        attempts_of(world, form, Always(reset), policy)
    body = Flaky()
    with pytest.raises(CircuitOpenError):
        attempts_of(world, form, body, policy)
    assert body.calls == 0


@FORMS
def test_R34_with_wait_for_circuit_entering_a_block_waits(form: str) -> None:
    world = World()
    policy = Policy(circuit=Circuit(failures=1), wait_for_circuit=True, patience=None)
    assert attempts_of(world, form, Flaky(reset()), policy) == [1, 2]
    assert world.now == 30


def test_S1_32_a_late_block_is_cancelled_and_retried() -> None:
    world = World()
    tries = 0

    async def main() -> None:
        nonlocal tries
        async for attempt in world.recover("a", Policy(timeout=5, circuit=LOOSE)):
            async with attempt:
                tries += 1
                await asyncio.sleep(60 if tries < 3 else 1)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    world.run(main())
    assert tries == 3
    assert world.now == 5 + 1 + 5 + 2 + 1


def test_S1_32_a_block_that_is_late_in_every_attempt_raises_a_deadline_error() -> None:
    world = World()

    async def main() -> None:
        async for attempt in world.recover("a", Policy(timeout=5, attempts=1)):
            async with attempt:
                await asyncio.sleep(60)

    with pytest.raises(DeadlineError) as failed:
        world.run(main())
    assert isinstance(failed.value.__cause__, asyncio.CancelledError)


@FORMS
def test_R69_a_block_takes_a_place_and_a_start_like_any_call(form: str) -> None:
    world = World()
    policy = Policy(circuit=LOOSE, concurrency=1, per_second=0.5, patience=None)
    assert attempts_of(world, form, Flaky(reset()), policy) == [1, 2]
    assert world.now == 2
    assert_places_free(world.state("provider:a"))


def test_R69_concurrent_blocks_share_the_places() -> None:
    world = World()
    running = most = 0

    async def one() -> None:
        nonlocal running, most
        async for attempt in world.recover("a", Policy(concurrency=2, patience=None)):
            async with attempt:
                running += 1
                most = max(most, running)
                await asyncio.sleep(1)
                running -= 1

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(6)))

    world.run(main())
    assert (most, world.now) == (2, 3)


@FORMS
def test_break_inside_the_block_counts_as_success(form: str) -> None:
    world = World()

    def sync() -> None:
        for attempt in world.recover("a"):
            with attempt:
                break

    async def later() -> None:
        async for attempt in world.recover("a"):
            async with attempt:
                break

    sync() if form == "sync" else world.run(later())
    assert world.state("provider:a")._breaker.successes == 1


@FORMS
def test_R45_an_attempt_that_is_never_entered_holds_nothing(form: str) -> None:
    world = World()
    policy = Policy(attempts=1, circuit=Circuit(failures=1))
    with pytest.raises(ConnectionResetError):
        attempts_of(world, form, Always(reset), policy)
    world.clock.advance(30)

    def sync() -> None:
        for _ in world.recover("a", policy):
            break

    async def later() -> None:
        async for _ in world.recover("a", policy):
            break

    sync() if form == "sync" else world.run(later())
    assert probes_out(world.state("provider:a")) == 0
    assert attempts_of(world, form, Flaky(), policy) == [1]
    assert world.circuit_state("provider:a") is CircuitState.CLOSED


@FORMS
def test_S1_1_catching_the_last_failure_ends_the_loop_instead_of_beginning_it_again(form: str) -> None:
    world = World()
    body = Always(reset)
    caught: list[Exception] = []

    def sync() -> None:
        for attempt in world.recover("a"):
            try:
                with attempt:
                    body()
            except ConnectionResetError as error:
                caught.append(error)

    async def later() -> None:
        async for attempt in world.recover("a"):
            try:
                async with attempt:
                    body()
            except ConnectionResetError as error:
                caught.append(error)

    sync() if form == "sync" else world.run(later())
    assert body.calls == 3
    assert caught == [body.raised[-1]]


@FORMS
def test_misuse_raises_and_leaves_nothing_behind(form: str) -> None:
    world = World()

    def no_with() -> None:
        for _ in world.recover("a"):
            pass

    def twice() -> None:
        for attempt in world.recover("a"):
            with attempt:
                pass
            with attempt:
                pass

    async def no_with_later() -> None:
        async for _ in world.recover("a"):
            pass

    async def twice_later() -> None:
        async for attempt in world.recover("a"):
            async with attempt:
                pass
            async with attempt:
                pass

    for misuse in (no_with, twice) if form == "sync" else (no_with_later, twice_later):
        with pytest.raises(InvalidError, match="attempt"):
            misuse() if form == "sync" else world.run(misuse())
    assert settled(world.state("provider:a")) == len(world.of(AttemptStarted)) == 1


def test_FR10_a_plain_with_inside_async_for_is_an_error_that_names_async_with() -> None:
    world = World()
    entered: list[int] = []

    async def tenacitys_spelling() -> None:
        async for attempt in world.recover("a", Policy(timeout=5, concurrency=1)):
            with attempt:
                entered.append(attempt.number)

    with pytest.raises(InvalidError, match="expected `async with attempt:` inside `async for`"):
        world.run(tenacitys_spelling())
    assert entered == []
    assert world.of(AttemptStarted) == []
    assert settled(world.state("provider:a")) == 0


def test_one_recovery_serves_many_loops_at_once() -> None:
    world = World()
    recovery = world.recover("a", Policy(circuit=LOOSE))
    bodies = [Flaky(reset(), takes=number) for number in range(10)]

    async def one(body: Flaky) -> None:
        async for attempt in recovery:
            async with attempt:
                await body.acall()

    async def main() -> None:
        await asyncio.gather(*(one(body) for body in bodies))

    world.run(main())
    assert [body.calls for body in bodies] == [2] * 10
    assert len(world.of(Retry)) == 10


def test_accept_is_an_error_for_a_block() -> None:
    with pytest.raises(InvalidError, match="a block, which has no answer"):
        iter(recover("claude", accept=bool))
    with pytest.raises(InvalidError, match="a block, which has no answer"):
        aiter(recover("claude", accept=bool))
