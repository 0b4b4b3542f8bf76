"""Limits that somebody named hold exactly, also in nested recoveries and streams; where nobody named one, no answer is cut."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from recover_kit import World, reset

from holdfast import (
    BATCH,
    INTERACTIVE,
    PATIENT,
    Budget,
    CircuitOpenError,
    DeadlineError,
    HoldfastError,
    Policy,
    StreamCutError,
)
from holdfast.events import AttemptEnded
from holdfast.policies.circuit import Circuit
from holdfast.runtime.recover import Recovery

HOURS = 10_000.0
LONG_S = 900.0
"""A long answer of a model that thinks: healthy, and longer than any limit that a library could guess."""


def outcome(world: World, doing: Callable[[], Any]) -> Any:
    try:
        return world.run(doing())
    except Exception as error:
        return error


# --- XR1: what nobody limits is answered, however long it takes ---


class Service:
    """Answers after some seconds, and counts the calls that somebody pays for."""

    failures = 0
    """Calls that fail before the first one that is answered."""
    name = ""

    def __init__(self, world: World, seconds: float) -> None:
        self.world, self.seconds, self.calls = world, seconds, 0

    async def answer(self) -> str:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise reset()
        await asyncio.sleep(self.seconds)
        return "ok"

    def blocking(self) -> str:
        self.calls += 1
        self.world.clock.sleep(self.seconds)
        return "ok"

    async def items(self) -> AsyncIterator[str]:
        yield await self.answer()
        await asyncio.sleep(self.seconds)
        yield "!"


async def as_function(service: Service, recovery: Recovery) -> str:
    @recovery
    async def ask() -> str:
        return await service.answer()

    return str(await ask())


async def as_method(service: Service, recovery: Recovery) -> str:
    class Agent:
        @recovery
        async def ask(self) -> str:
            return await service.answer()

    return str(await Agent().ask())


async def as_call(service: Service, recovery: Recovery) -> str:
    return str(await recovery.call(service.answer))


async def as_outcome(service: Service, recovery: Recovery) -> str:
    return str((await recovery.outcome(service.answer)).unwrap())


async def as_block(service: Service, recovery: Recovery) -> str:
    got = ""
    async for attempt in recovery:
        async with attempt:
            got = await service.answer()
    return got


async def as_stream(service: Service, recovery: Recovery) -> str:
    async with recovery.stream(service.items)() as stream:
        return "".join([item async for item in stream]).removesuffix("!")


async def as_plain_function(service: Service, recovery: Recovery) -> str:
    return str(recovery(service.blocking)())


async def as_fallback(service: Service, recovery: Recovery) -> str:
    async def down() -> str:
        raise reset()

    answer = recovery(down)
    answer.fallback(service.answer)
    return str(await answer())


FORMS = (as_function, as_method, as_call, as_outcome, as_block, as_stream, as_plain_function, as_fallback)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", [None, Policy(attempts=3), INTERACTIVE, PATIENT, BATCH])
@pytest.mark.parametrize("target", ["claude", None, "tool:search", "agent:builder"])
def test_XR1_a_healthy_answer_of_15_minutes_is_answered_with_one_call(
    form: Callable[[Service, Recovery], Awaitable[str]], policy: Policy | None, target: str | None
) -> None:
    world = World(defaults=True)
    service = Service(world, LONG_S)
    assert world.run(form(service, world.recover(target, policy))) == "ok"
    assert service.calls == 1


@pytest.mark.parametrize("form", [form for form in FORMS if form is not as_plain_function])
@pytest.mark.parametrize("policy", [INTERACTIVE, PATIENT, BATCH])
def test_XR1_a_named_limit_ends_an_attempt_exactly(
    form: Callable[[Service, Recovery], Awaitable[str]], policy: Policy
) -> None:
    world = World(defaults=True)
    service = Service(world, LONG_S)
    error = outcome(world, lambda: form(service, world.recover("claude", policy.replace(timeout=60.0, attempts=1))))
    # After a fallback that was late, the primary's error surfaces.
    assert isinstance(error, ConnectionResetError if form is as_fallback else DeadlineError)
    assert (world.now, service.calls) == (60.0, 1)


def test_XR1_a_named_limit_holds_after_each_failed_attempt_anew() -> None:
    world = World(defaults=True)
    service = Service(world, LONG_S)
    error = outcome(world, lambda: world.recover("claude", Policy(timeout=30.0, attempts=3)).call(service.answer))
    assert isinstance(error, DeadlineError)
    assert service.calls == 3
    assert [event.took for event in world.of(AttemptEnded)] == pytest.approx([30.0] * 3)


# --- XR8: a recovery around another one ---


async def in_call(world: World, seconds: float) -> str:
    """A recovering client answers after so many seconds."""

    async def client() -> str:
        await asyncio.sleep(seconds)
        return "ok"

    return await world.recover("inner").call(client)


async def in_stream(world: World, seconds: float) -> str:
    async def client() -> AsyncIterator[str]:
        yield "o"
        await asyncio.sleep(seconds)
        yield "k"

    async with world.recover("inner").stream(client)() as stream:
        return "".join([item async for item in stream])


async def in_block(world: World, seconds: float) -> str:
    async for attempt in world.recover("inner"):
        async with attempt:
            await asyncio.sleep(seconds)
    return "ok"


async def in_wait(world: World, seconds: float) -> str:
    """The client's first request fails, and the second is made as the service requested."""
    failed: list[bool] = []

    async def client() -> str:
        if not failed:
            failed.append(True)
            error = reset()
            error.retry_after = min(seconds, 110.0)  # type: ignore[attr-defined]
            raise error
        await asyncio.sleep(seconds)
        return "ok"

    return await world.recover("inner").call(client)


async def in_fallback(world: World, seconds: float) -> str:
    async def client() -> str:
        raise reset()

    async def other() -> str:
        return await in_call(world, seconds)

    first = world.recover("inner", Policy(attempts=1))(client)
    first.fallback(other)
    return str(await first())


INNER = pytest.mark.parametrize("inner", [in_call, in_stream, in_block, in_wait, in_fallback])
Inner = Callable[[World, float], Awaitable[str]]


@INNER
@pytest.mark.parametrize("seconds", [61.0, LONG_S])
@pytest.mark.parametrize("outer", ["call", "block", "stream", "twice"])
def test_XR8_a_recovery_around_another_one_does_not_cut_it(inner: Inner, seconds: float, outer: str) -> None:
    world = World(defaults=True)

    async def work() -> str:
        got = await inner(world, seconds)
        await asyncio.sleep(10)  # the function's own work after the answer
        return got

    async def items() -> AsyncIterator[str]:
        yield await work()

    async def doing() -> str:
        if outer == "block":
            got = ""
            async for attempt in world.recover("outer"):
                async with attempt:
                    got = await work()
            return got
        if outer == "stream":
            async with world.recover("outer").stream(items)() as stream:
                return "".join([item async for item in stream])
        if outer == "twice":
            return str(await world.recover("outermost").call(lambda: world.recover("outer").call(work)))
        return str(await world.recover("outer").call(work))

    assert world.run(doing()) == "ok"


@INNER
@pytest.mark.parametrize(("policy", "at"), [(Policy(timeout=65.0, attempts=1), 65.0), (Policy(deadline=90.0), 90.0)])
def test_XR8_a_named_limit_is_kept_exactly(inner: Inner, policy: Policy, at: float) -> None:
    world = World(defaults=True)
    error = outcome(world, lambda: world.recover("outer", policy).call(lambda: inner(world, 1_000.0)))
    assert isinstance(error, DeadlineError)
    assert world.now == pytest.approx(at, abs=0.1)


def test_XR8_a_window_nobody_named_leaves_the_later_calls_theirs() -> None:
    """The third call of one function begins after 120 s, and has its first attempt and its retries."""
    world = World(defaults=True)
    failures: list[int] = []

    async def flaky() -> str:
        await asyncio.sleep(1)
        if len(failures) < 2:
            failures.append(1)
            raise reset()
        return "ok"

    async def work() -> str:
        for _ in range(3):
            await in_call(world, 50.0)
        return str(await world.recover("inner").call(flaky))

    assert world.run(world.recover("outer").call(work)) == "ok"


def test_XR8_a_window_that_somebody_named_narrows_those_inside() -> None:
    world = World(defaults=True)

    async def work() -> str:
        await in_call(world, 50.0)
        return await in_call(world, 1.0)

    error = outcome(world, lambda: world.recover("outer", Policy(patience=30.0)).call(work))
    assert isinstance(error, DeadlineError)


# --- XR6: the wait for a place or a start that the user's own limit gives ---

OWN_LIMITS = pytest.mark.parametrize("limit", [{"concurrency": 2}, {"per_second": 1 / 600}], ids=["places", "starts"])
IN_TASKS = pytest.mark.parametrize("form", [as_function, as_call, as_block, as_stream])


@OWN_LIMITS
@IN_TASKS
@pytest.mark.parametrize("policy", [INTERACTIVE, PATIENT, BATCH, pickle.loads(pickle.dumps(BATCH))])
def test_XR6_the_patience_of_a_shipped_policy_ends_no_wait_for_ones_own_limit(
    form: Callable[[Service, Recovery], Awaitable[str]], policy: Policy, limit: Any
) -> None:
    world = World(defaults=True)
    service = Service(world, LONG_S)
    recovery = world.recover("claude", policy.replace(**limit))

    async def many() -> list[str]:
        return await asyncio.gather(*(form(service, recovery) for _ in range(12)))

    assert world.run(many()) == ["ok"] * 12
    assert service.calls == 12
    assert world.now > 3600


@OWN_LIMITS
@IN_TASKS
@pytest.mark.parametrize(
    "policy", [BATCH.replace(patience=3000.0), PATIENT.replace(patience=3000.0), Policy(deadline=3000.0)]
)
def test_XR6_seconds_that_the_user_writes_do_end_it(
    form: Callable[[Service, Recovery], Awaitable[str]], policy: Policy, limit: Any
) -> None:
    world = World(defaults=True)
    service = Service(world, LONG_S)
    recovery = world.recover("claude", policy.replace(**limit))

    async def many() -> list[Any]:
        return await asyncio.gather(*(form(service, recovery) for _ in range(12)), return_exceptions=True)

    answers = world.run(many())
    assert service.calls == answers.count("ok") + sum(isinstance(answer, DeadlineError) for answer in answers) < 12
    rejected = {error.fault.code for error in answers if isinstance(error, HoldfastError)}
    assert rejected & {"SYS_BULKHEAD_FULL", "SYS_RATE_LIMITED"}


@OWN_LIMITS
@IN_TASKS
@pytest.mark.parametrize("policy", [INTERACTIVE, BATCH])
def test_XR6_a_retry_waits_for_its_place_too_and_keeps_its_time(
    form: Callable[[Service, Recovery], Awaitable[str]], policy: Policy, limit: Any
) -> None:
    """The first attempt of each call fails, so each of them comes to the end of the line once more."""
    world = World(defaults=True)
    service = Service(world, LONG_S)
    service.failures = 12
    recovery = world.recover("claude", policy.replace(circuit=None, **limit))

    async def many() -> list[str]:
        return await asyncio.gather(*(form(service, recovery) for _ in range(12)))

    assert world.run(many()) == ["ok"] * 12
    assert service.calls == 24


@IN_TASKS
def test_XR6_a_shipped_policy_around_ends_no_wait_inside(
    form: Callable[[Service, Recovery], Awaitable[str]],
) -> None:
    world = World(defaults=True)
    service = Service(world, LONG_S)
    recovery = world.recover("claude", Policy(concurrency=2))
    outer = world.recover("agent:a", BATCH)

    async def many() -> list[str]:
        return await asyncio.gather(*(outer.call(form, service, recovery) for _ in range(12)))

    assert world.run(many()) == ["ok"] * 12


@pytest.mark.parametrize("form", [as_call, as_block, as_stream])
def test_XR12_every_form_waits_with_the_priority_of_its_policy(
    form: Callable[[Service, Recovery], Awaitable[str]],
) -> None:
    world = World(defaults=True)
    order: list[str] = []

    class Named(Service):
        async def answer(self) -> str:
            order.append(self.name)
            return await super().answer()

    def begin(name: str, policy: Policy) -> Any:
        service = Named(world, 1.0)
        service.name = name
        return asyncio.create_task(form(service, world.recover("claude", policy.replace(concurrency=1))))  # type: ignore[arg-type]

    async def many() -> None:
        tasks = [begin("batch", BATCH) for _ in range(6)]
        await asyncio.sleep(0.5)
        tasks.append(begin("person", INTERACTIVE))
        await asyncio.gather(*tasks)

    world.run(many())
    assert order.index("person") <= 2


# --- XR4: streams ---


@pytest.mark.parametrize("named", ["deadline", "budget", "total", "outer"])
@pytest.mark.parametrize("gaps", [[1.0] * 100, [1.0, HOURS], [HOURS]], ids=["items", "silence", "nothing"])
def test_XR4_a_named_limit_ends_a_stream(named: str, gaps: list[float]) -> None:
    world = World(defaults=True)

    async def tokens() -> AsyncIterator[str]:
        for gap in gaps:
            await asyncio.sleep(gap)
            yield "x"

    policy = Policy(deadline=30.0) if named == "deadline" else Policy()
    live = world.recover("claude", policy).stream(tokens, total=30.0 if named == "total" else None)

    async def read() -> None:
        async with live() as stream:
            async for _ in stream:
                pass

    async def reading() -> None:
        if named == "budget":
            with Budget(seconds=30, runtime=world.runtime):
                await read()
        elif named == "outer":
            await world.recover("outer", Policy(deadline=30.0)).call(read)
        else:
            await read()

    error = outcome(world, reading)
    assert isinstance(error, DeadlineError)
    assert error.fault.code == "SYS_DEADLINE_EXCEEDED"
    assert world.now == pytest.approx(30.0, abs=0.1)
    if gaps[0] < HOURS and named != "outer":
        assert isinstance(error, StreamCutError)
        assert error.partial is not None
        assert error.partial.payload == "x" * (29 if len(gaps) > 2 else 1)


def test_XR4_the_next_read_raises_while_the_reader_is_slow() -> None:
    for is_async in (True, False):
        world = World(defaults=True)

        async def tokens() -> AsyncIterator[str]:
            for _ in range(100):
                yield "x"

        def plain() -> Iterator[str]:
            yield from "x" * 100

        async def reading(world: World = world, tokens: Any = tokens) -> None:
            async with world.recover("claude", Policy(deadline=30.0)).stream(tokens)() as stream:
                async for _ in stream:
                    await asyncio.sleep(12)

        def blocking(world: World = world, plain: Any = plain) -> None:
            with world.recover("claude", Policy(deadline=30.0)).stream(plain)() as stream:
                for _ in stream:
                    world.clock.sleep(12)

        with pytest.raises(DeadlineError) as failed:
            world.run(reading()) if is_async else blocking()
        assert isinstance(failed.value, StreamCutError)
        assert failed.value.fault.partial is not None
        assert failed.value.fault.partial.payload == "xxx"
        assert world.now == 36.0


def test_XR4_an_item_that_a_thread_reads_too_late_is_not_handed_on() -> None:
    world = World(defaults=True)

    def tokens() -> Iterator[str]:
        yield "a"
        world.clock.sleep(100)
        yield "b"

    got = []
    with pytest.raises(DeadlineError), world.recover("claude", Policy(deadline=30.0)).stream(tokens)() as stream:
        for item in stream:
            got.append(item)  # noqa: PERF402 - what came before the failure counts
    assert got == ["a"]


# --- XR11: a deadline that passes in a fallback ---


@pytest.mark.parametrize("named", ["deadline", "budget"])
@pytest.mark.parametrize("has_own_recovery", [False, True])
def test_XR11_a_deadline_that_passes_in_the_fallback_is_a_deadline_error(named: str, *, has_own_recovery: bool) -> None:
    world = World(defaults=True)
    policy = Policy(circuit=Circuit(failures=1, open_for=600.0), deadline=30.0 if named == "deadline" else None)

    async def primary() -> str:
        raise reset()

    async def other() -> str:
        await asyncio.sleep(HOURS)
        return "late"

    answer = world.recover("claude", policy.replace(attempts=1))(primary)
    answer.fallback(world.recover("other")(other) if has_own_recovery else other)

    async def asking() -> str:
        if named == "deadline":
            return str(await answer())
        with Budget(seconds=30, runtime=world.runtime):
            return str(await answer())

    outcome(world, asking)  # opens the circuit
    error = outcome(world, asking)
    assert isinstance(error, DeadlineError)
    assert error.fault.code == "SYS_DEADLINE_EXCEEDED"
    assert error.fault.context["primary"] == "CIRCUIT_OPEN"
    assert isinstance(error.__cause__, CircuitOpenError)
    assert [step["step"] for step in error.fault.context["fallbacks"]] == ["other"]


def test_XR11_a_fallback_that_fails_in_time_leaves_the_primarys_error() -> None:
    world = World(defaults=True)

    async def primary() -> str:
        raise reset()

    async def other() -> str:
        raise TimeoutError("its own")

    answer = world.recover("claude", Policy(attempts=1, deadline=30.0))(primary)
    answer.fallback(other)
    assert isinstance(outcome(world, answer), ConnectionResetError)


def test_XR11_a_deadline_that_passes_in_the_fallback_of_a_stream() -> None:
    world = World(defaults=True)

    async def primary() -> AsyncIterator[str]:
        raise reset()
        yield ""

    async def other() -> AsyncIterator[str]:
        await asyncio.sleep(HOURS)
        yield ""

    live = world.recover("claude", Policy(attempts=1)).stream(primary).fallback(other)

    async def reading() -> None:
        with Budget(seconds=30, runtime=world.runtime):
            async with live() as stream:
                async for _ in stream:
                    pass

    error = outcome(world, reading)
    assert isinstance(error, DeadlineError)
    assert isinstance(error.__cause__, ConnectionResetError)
    assert world.now == pytest.approx(30.0)
