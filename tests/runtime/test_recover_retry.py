"""Retrying through `recover`: how often, how long apart, and what the caller sees in the end."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import pickle
import sys
import threading
import tracemalloc
import weakref
from bisect import bisect_left
from contextlib import suppress
from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, reset, settled

from holdfast import (
    BATCH,
    PATIENT,
    Backoff,
    Circuit,
    CircuitOpenError,
    DeadlineError,
    Err,
    Fault,
    HoldfastError,
    InvalidError,
    Ok,
    Policy,
    Quota,
    Runtime,
    Tries,
    fault_of,
    recover,
    tool,
)
from holdfast.events import (
    AttemptEnded,
    AttemptStarted,
    Cancelled,
    CircuitState,
    Failed,
    Recovered,
    Retry,
    RetryDenied,
    SuppressedError,
)
from holdfast.policies.decide import LONGEST_CIRCUIT_WAIT_S, RETURN_SPREAD
from holdfast.runtime.ambient import AMBIENT
from holdfast.testing import ScriptedHTTPError, script, seeded

OFTEN = Circuit(failures=1_000_000, rate=None)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_R1_three_attempts_two_waits_and_the_last_exception_itself(form: str) -> None:
    world = World()
    work = Always(reset)
    with pytest.raises(ConnectionResetError) as failed:
        if form == "sync":
            world.recover("a").call(work)
        else:
            world.run(world.recover("a").call(work.acall))
    assert work.calls == 3
    assert failed.value is work.raised[-1]
    assert world.waits() == [1, 2]
    assert world.now == 3
    # The traceback still leads to the line that raised.
    assert inspect.getinnerframes(failed.value.__traceback__)[-1].function == "__call__"
    assert [type(event) for event in world.events if not isinstance(event, AttemptStarted | AttemptEnded)] == [
        Retry,
        Retry,
        Failed,
    ]


def test_R2_a_permanent_error_is_one_call_no_wait_and_not_exhausted() -> None:
    world = World()
    calls = script("401")
    with pytest.raises(ScriptedHTTPError):
        world.recover("a").call(calls)
    assert (calls.calls, world.now, world.waits()) == (1, 0, [])
    assert [event.exhausted for event in world.of(Failed)] == [False]


@pytest.mark.parametrize("policy", [Policy(attempts=1), Policy(profile="task")])
def test_R3_one_attempt_is_one_call_with_the_raw_exception(policy: Policy) -> None:
    world = World()
    error = reset()
    work = Flaky(error)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a", policy).call(work)
    assert failed.value is error
    assert work.calls == 1
    good = Flaky()
    assert world.recover("a", policy).call(good) == "ok"
    assert good.calls == 1


@pytest.mark.parametrize("name", ["HOLDFAST_ENABLED", "RESILIENCE_ENABLED"])
@pytest.mark.parametrize("word", ["false", "0", "no", "OFF"])
def test_R3_S1_25_a_disabled_recovery_is_a_plain_call(name: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, word)
    world = World()
    error = reset()
    work = Flaky(error)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a").call(work)
    assert failed.value is error
    assert not hasattr(error, "__notes__")
    assert (work.calls, len(world.events)) == (1, 0)


def test_S1_25_every_form_of_a_disabled_recovery_is_a_plain_call() -> None:
    world = World(enabled=False)
    policy = Policy(timeout=1, concurrency=1, circuit=Circuit(failures=1))
    recovery = world.recover("a", policy, accept=lambda _: False)

    async def main() -> None:
        decorated = recovery(Always(reset, takes=5).acall)
        decorated.fallback(Flaky(value="other").acall)
        with pytest.raises(ConnectionResetError):
            await decorated()
        outcome = await decorated.outcome()
        assert isinstance(outcome, Err)
        assert isinstance(await recovery(Flaky(takes=5).acall).outcome(), Ok)
        attempts = 0
        with pytest.raises(ConnectionResetError):
            async for attempt in recovery:
                async with attempt:
                    attempts += 1
                    await asyncio.sleep(5)
                    raise reset()
        assert attempts == 1

        async def numbers() -> Any:
            await asyncio.sleep(5)
            yield 1
            raise reset()

        got = []
        with pytest.raises(ConnectionResetError):
            async with recovery.stream(numbers, first=1, idle=1, total=1)() as stream:
                async for number in stream:
                    got.append(number)  # noqa: PERF401 - it must be there when the rest fails
        assert got == [1]

    world.run(main())
    with pytest.raises(ConnectionResetError):
        for attempt in recovery:
            with attempt:
                raise reset()
    assert recovery.outcome(Flaky(value=3)).unwrap() == 3
    assert len(world.events) == 0


def test_S1_25_a_recovery_that_is_enabled_again_recovers() -> None:
    world = World(enabled=False)
    decorated = world.recover("a")(Flaky(reset()))
    with pytest.raises(ConnectionResetError):
        decorated()
    world.runtime.enabled = True
    assert decorated() == "ok"


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


def test_R25_an_event_handler_that_raises_is_reported_once_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()

    def broken(_: Any) -> None:
        raise LookupError("a defect of the reader")

    world.runtime.on(broken)
    assert world.recover("a").call(Flaky(reset(), reset())) == "ok"
    assert world.recover("a").call(Flaky(reset())) == "ok"
    assert caplog.text.count("a defect of the reader") == 1
    assert len(world.of(SuppressedError)) == 1
    assert len(world.of(Recovered)) == 2


def test_R11_a_wait_that_would_pass_the_deadline_is_not_begun() -> None:
    world = World()
    work = Always(reset)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a", Policy(timeout=1, deadline=1, backoff=Backoff(initial=1, jitter=0))).call(work)
    assert (work.calls, world.now) == (1, 0)
    assert [event.because for event in world.of(RetryDenied)] == ["SYS_DEADLINE_EXCEEDED"]
    assert "deadline" in failed.value.__notes__[0]
    assert [event.exhausted for event in world.of(Failed)] == [False]


def test_R13_the_time_of_the_attempt_itself_counts() -> None:
    """Five seconds of work and a wait of one: in twelve seconds one retry is possible, a second is not."""
    world = World()
    work = Always(reset, takes=5)
    policy = Policy(timeout=None, deadline=12, backoff=Backoff(initial=1, curve="fixed", jitter=0), attempts=9)
    with pytest.raises(ConnectionResetError):
        world.run(world.recover("a", policy).call(work.acall))
    assert (work.calls, world.now) == (2, 11)


@pytest.mark.parametrize("n", [50])
def test_R14_fifty_tasks_share_a_policy_and_nothing_else(n: int) -> None:
    world = World()
    decorated = world.recover("a", Policy(circuit=OFTEN))
    works = [Always(reset, takes=number / 10) for number in range(n)]

    async def main() -> list[Any]:
        return await asyncio.gather(*(decorated.call(work.acall) for work in works), return_exceptions=True)

    errors = world.run(main())
    assert [work.calls for work in works] == [3] * n
    for error, work in zip(errors, works, strict=True):
        assert error is work.raised[-1]
        assert [attempt.number for attempt in fault_of(error).attempts] == [1, 2, 3]
    assert world.state("provider:a")._breaker.failures == 3 * n
    assert len({event.run for event in world.of(Failed)}) == n


def test_R14_fifty_threads_share_a_policy_and_nothing_else() -> None:
    runtime = Runtime(waits=False)
    decorated = recover("a", Policy(circuit=OFTEN), runtime=runtime)
    works = [Always(reset) for _ in range(50)]
    errors: list[Any] = [None] * 50
    ready = threading.Barrier(50)

    def one(number: int) -> None:
        ready.wait()
        try:
            decorated.call(works[number])
        except ConnectionResetError as error:
            errors[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [work.calls for work in works] == [3] * 50
    assert all(error is work.raised[-1] for error, work in zip(errors, works, strict=True))
    state = runtime.registry.known("provider:a")
    assert state is not None
    assert state._breaker.failures == settled(state) == 150


def test_R15_a_recovery_inside_itself_keeps_its_own_count() -> None:
    world = World()
    inner = Flaky(reset(), reset())
    outer_calls = 0

    @world.recover("a", Policy(circuit=OFTEN))
    def work(deep: int) -> str:
        nonlocal outer_calls
        if deep:
            outer_calls += 1
            if outer_calls == 1:
                raise reset()
            return work(deep - 1)
        return inner()

    assert work(1) == "ok"
    assert (outer_calls, inner.calls) == (2, 3)
    assert [event.attempts for event in world.of(Recovered)] == [3, 2]


def test_R15_the_outer_recovery_does_not_retry_after_the_inner_one_gave_up() -> None:
    world = World()
    work = Always(reset)
    inner = world.recover("inner", Policy(circuit=OFTEN))(work)
    with pytest.raises(ConnectionResetError):
        world.recover("outer", Policy(circuit=OFTEN)).call(inner)
    assert work.calls == 3


def test_R19_a_timeout_error_of_the_callee_is_retried() -> None:
    world = World()
    assert world.recover("a").call(Flaky(TimeoutError(), TimeoutError())) == "ok"
    assert len(world.of(Retry)) == 2


def test_R19_a_deadline_of_the_caller_is_not_retried() -> None:
    world = World()
    work = Flaky(takes=50)
    with pytest.raises(DeadlineError) as failed:
        world.run(world.recover("a", Policy(timeout=5, deadline=5)).call(work.acall))
    assert failed.value.fault.code == "SYS_DEADLINE_EXCEEDED"
    assert (work.calls, world.now) == (0, 5)


# --- R23: every kind of callable and result ---


class AsyncCallable:
    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, value: str, *, twice: bool = False) -> str:
        self.calls += 1
        await asyncio.sleep(0)
        if self.calls == 1:
            raise reset()
        return value * (1 + twice)

    async def method(self, value: str, *, twice: bool = False) -> str:
        return await self(value, twice=twice)

    def gives_coroutine(self, value: str, *, twice: bool = False) -> Any:
        return self(value, twice=twice)

    def gives_future(self, value: str, *, twice: bool = False) -> Any:
        return asyncio.ensure_future(self(value, twice=twice))

    def gives_awaitable(self, value: str, *, twice: bool = False) -> Any:
        return Awaitable(self, value, twice=twice)


class Awaitable:
    def __init__(self, fn: Any, *args: Any, **kwargs: Any) -> None:
        self._made = functools.partial(fn, *args, **kwargs)

    def __await__(self) -> Any:
        return self._made().__await__()


CALLABLES = {
    "partial of an async function": lambda thing: functools.partial(AsyncCallable.method, thing),
    "partial of an async callable": lambda thing: functools.partial(thing),  # noqa: PLW0108 - as all the others
    "callable object": lambda thing: thing,
    "bound async method": lambda thing: thing.method,
    "sync function that returns a coroutine": lambda thing: thing.gives_coroutine,
    "sync function that returns a future": lambda thing: thing.gives_future,
    "sync function that returns an awaitable": lambda thing: thing.gives_awaitable,
    "lambda": lambda thing: lambda value, twice=False: thing(value, twice=twice),
}


@pytest.mark.parametrize("kind", CALLABLES)
@pytest.mark.parametrize("form", ["call", "decorated", "outcome"])
def test_R23_every_kind_of_async_callable_is_awaited_and_leaks_no_coroutine(kind: str, form: str) -> None:
    world = World()
    thing = AsyncCallable()
    fn = CALLABLES[kind](thing)
    recovery = world.recover("a", Policy(circuit=LOOSE))

    async def main() -> Any:
        match form:
            case "call":
                return await recovery.call(fn, "hi", twice=True)
            case "decorated":
                return await recovery(fn)("hi", twice=True)
            case _:
                outcome = await recovery.outcome(fn, "hi", twice=True)
                assert [attempt.code for attempt in outcome.attempts] == ["CONN_RESET", None]
                return outcome.unwrap()

    assert world.run(main()) == "hihi"
    gc.collect()  # a coroutine that was never awaited would warn here, and warnings are errors
    assert thing.calls == 2
    assert world.waits() == [1]
    state = world.state("provider:a")
    assert (state._breaker.successes, state._breaker.failures) == (1, 1)


def test_R23_an_awaitable_result_has_the_time_limit_and_the_limiter_too() -> None:
    world = World()
    running = most = 0

    async def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(3)
        finally:
            running -= 1

    async def main() -> None:
        recovery = world.recover("a", Policy(timeout=5, concurrency=2))
        await asyncio.gather(*(recovery.call(lambda: slow()) for _ in range(6)))  # noqa: PLW0108 - it must look sync
        assert world.now == 9
        with pytest.raises(DeadlineError):
            await world.recover("b", Policy(timeout=1, attempts=1)).call(lambda: slow())  # noqa: PLW0108 - a lambda is a plain function that returns an awaitable, which is tested here

    world.run(main())
    assert most == 2


def test_R23_an_awaitable_result_falls_back() -> None:
    world = World()
    decorated = world.recover("a")(lambda: Always(reset).acall())
    decorated.fallback(lambda: "other")

    async def main() -> Any:
        return await decorated(), (await decorated.outcome()).via

    assert world.run(main()) == ("other", "<lambda>")


def test_R23_an_open_circuit_raises_before_there_is_an_awaitable() -> None:
    world = World()
    thing = AsyncCallable()
    recovery = world.recover("a", Policy(circuit=Circuit(mode="forced-open")))
    with pytest.raises(CircuitOpenError):
        recovery.call(thing.gives_coroutine, "hi")
    assert thing.calls == 0


@recover("pickled")
async def an_async_function(first: int, *, second: str = "x") -> str:
    """What it does."""
    return f"{first}{second}"


@recover("pickled")
def a_function(first: int, *, second: str = "x") -> str:
    """What it does."""
    return f"{first}{second}"


@recover
def bare(first: int) -> int:
    return first


@pytest.mark.parametrize("fn", [a_function, an_async_function, bare])
def test_API_decorated_functions_stay_real_functions(fn: Any) -> None:
    assert inspect.isfunction(fn)
    assert inspect.iscoroutinefunction(fn) == (fn is an_async_function)
    assert fn.__module__ == __name__
    assert pickle.loads(pickle.dumps(fn)) is fn
    assert next(iter(inspect.signature(fn).parameters)) == "first"
    if fn is not bare:
        assert fn.__doc__ == "What it does."
        assert str(inspect.signature(fn)) == "(first: 'int', *, second: 'str' = 'x') -> 'str'"


def test_API_methods_static_methods_and_class_methods_recover() -> None:
    world = World()
    failing = iter([True, False] * 3)

    def failures() -> None:
        if next(failing):
            raise reset()

    class Agent:
        kind = "agent"

        def __init__(self, name: str) -> None:
            self.name = name

        @world.recover("a")
        def plain(self) -> str:
            failures()
            return self.name

        @classmethod
        @world.recover("a")
        def of_class(cls) -> str:
            failures()
            return cls.kind

        @staticmethod
        @world.recover("a")
        def of_nobody(value: str) -> str:
            failures()
            return value

        @world.recover("a")
        @staticmethod
        def outermost(value: str) -> str:
            return value

        @world.recover("a")
        @classmethod
        def outermost_of_class(cls) -> str:
            raise reset()

        @outermost_of_class.fallback
        def other(cls) -> str:  # noqa: N805 - it gets what the class method gets
            return f"other {cls.kind}"

        @recover
        @classmethod
        def bare(cls) -> str:
            return cls.kind

    agent = Agent("me")
    assert (agent.outermost("z"), agent.bare(), agent.outermost_of_class()) == ("z", "agent", "other agent")
    assert (agent.plain(), Agent.of_class(), agent.of_nobody("x")) == ("me", "agent", "x")
    assert Agent.outermost("y") == "y"
    assert len(world.of(Recovered)) == 4


def test_API_decorating_a_generator_function_is_an_error() -> None:
    async def stream() -> Any:
        yield 1

    def plain() -> Any:
        yield 1

    for fn in (stream, plain, functools.partial(stream)):
        for use in (recover("a"), recover("a").call, recover("a").outcome):
            with pytest.raises(InvalidError, match="stream"):
                use(fn)  # type: ignore[operator] # three shapes of one thing


@pytest.mark.parametrize("form", ["call", "outcome"])
@pytest.mark.parametrize("contract", [None, tool(effect="read")])
def test_a_recovery_without_a_target_has_one_circuit_for_all_its_calls(form: str, contract: Any) -> None:
    recovery = World().recover(policy=Policy(attempts=1, circuit=Circuit(failures=2, rate=None)))

    def fails() -> None:
        raise reset()

    fn = fails if contract is None else contract(fails)
    errors: list[Any] = []
    for _ in range(3):
        if form == "outcome":
            errors.append(recovery.outcome(fn).error)  # type: ignore[union-attr] # it always fails
        else:
            with pytest.raises((ConnectionResetError, CircuitOpenError)) as failed:
                recovery.call(fn)
            errors.append(failed.value)
    assert [type(error) for error in errors] == [ConnectionResetError, ConnectionResetError, CircuitOpenError]


# --- the fault and the notes on the exception ---


def test_R26_the_exception_carries_every_attempt_and_its_cause_is_untouched() -> None:
    world = World()
    cause = OSError("the cause")

    def work() -> None:
        world.clock.advance(0.25)
        raise reset() from cause

    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a").call(work)
    assert failed.value.__cause__ is cause
    attempts = fault_of(failed.value).attempts
    assert [(attempt.number, attempt.code, attempt.took, attempt.waited) for attempt in attempts] == [
        (1, "CONN_RESET", 0.25, 0),
        (2, "CONN_RESET", 0.25, 1),
        (3, "CONN_RESET", 0.25, 2),
    ]
    assert [attempt.started - attempts[0].started for attempt in attempts] == [0, 1.25, 3.5]
    assert all(attempt.cause.type == "ConnectionResetError" for attempt in attempts if attempt.cause)
    assert len(failed.value.__notes__) == 1


def test_S2_14_a_failure_that_was_given_up_is_final_for_outer_recoveries() -> None:
    with pytest.raises(ConnectionResetError) as failed:
        World().recover("a").call(Always(reset))
    assert fault_of(failed.value).retryable is False


def test_R26_one_exception_object_raised_again_and_again_does_not_grow() -> None:
    world = World()
    error = reset()
    for _ in range(5):
        with pytest.raises(ConnectionResetError) as failed:
            world.recover("a", Policy(circuit=OFTEN)).call(Always(lambda: error))
        assert failed.value is error
        assert len(error.__notes__) == 1
        assert [attempt.number for attempt in fault_of(error).attempts] == [1, 2, 3]
    assert len(world.of(Retry)) == 10  # the verdict of the last operation did not stick


def test_R26_a_note_of_the_users_own_stays() -> None:
    error = reset()
    error.add_note("mine")
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            World().recover("a").call(Always(lambda: error))
    assert error.__notes__[0] == "mine"
    assert len(error.__notes__) == 2


def test_R1_exception_groups_pass_through_and_are_classified_by_their_members() -> None:
    world = World()

    def group(*errors: Exception) -> ExceptionGroup[Exception]:
        return ExceptionGroup("several", errors)

    good = Flaky(group(reset(), TimeoutError()))
    assert world.recover("a").call(good) == "ok"
    bad = Always(lambda: group(reset(), ValueError("a mistake")))
    with pytest.raises(ExceptionGroup):
        world.recover("a").call(bad)
    assert bad.calls == 1


def test_R21_a_transient_error_in_the_context_does_not_make_a_mistake_transient() -> None:
    def work() -> None:
        try:
            raise reset()
        except ConnectionResetError:
            raise KeyError("a defect while handling it")  # noqa: B904 - the context is the point

    world = World()
    with pytest.raises(KeyError):
        world.recover("a", effect="read").call(work)
    assert world.waits() == []


# --- delays ---


def test_R29_retry_after_is_slept_exactly_and_spread_only_adds() -> None:
    world = World()
    world.recover("a").call(script("429;retry-after=30, ok"))
    assert world.waits() == [30]
    for seed in range(50):
        other = World(rng=seeded(seed))
        other.recover("a", Policy(spread=0.2)).call(script("429;retry-after=30, ok"))
        assert 30 <= other.waits()[0] <= 36
        assert other.of(Retry)[0].asked


@pytest.mark.parametrize(
    ("policy", "seconds", "reason"),
    [(Policy(), 200, "deadline"), (Policy(deadline=None), 901, "longer wait"), (BATCH, 2000, "longer wait")],
)
def test_R31_a_retry_after_beyond_the_limit_is_not_slept(policy: Policy, seconds: int, reason: str) -> None:
    world = World()
    with pytest.raises(ScriptedHTTPError) as failed:
        world.recover("a", policy).call(script(f"429;retry-after={seconds}, ok"))
    assert world.now == 0
    fault = fault_of(failed.value)
    assert fault.retry_after == seconds
    assert reason in failed.value.__notes__[0]
    assert [event.because for event in world.of(RetryDenied)] == ["SYS_DEADLINE_EXCEEDED"]


def test_R34_an_open_inner_circuit_is_not_called_again() -> None:
    world = World()
    work = Always(reset)
    policy = Policy(circuit=Circuit(failures=1))
    with pytest.raises(ConnectionResetError):
        world.recover("inner", policy).call(work)
    with pytest.raises(CircuitOpenError):
        world.recover("outer").call(world.recover("inner", policy)(work))
    assert (work.calls, world.now) == (1, 0)


def test_R34_with_wait_for_circuit_a_call_waits_for_the_next_probe() -> None:
    world = World()
    policy = Policy(circuit=Circuit(failures=1, open_for=30), wait_for_circuit=True, deadline=None)
    work = Flaky(reset())
    assert world.recover("a", policy).call(work) == "ok"
    assert (work.calls, world.now) == (2, 30)
    assert [event.fault.code for event in world.of(Retry)] == ["CONN_RESET", "CIRCUIT_OPEN"]


@pytest.mark.parametrize("form", ["sync", "async"])
def test_R34_a_call_rejected_from_the_start_measures_each_wait_from_its_own_start(form: str) -> None:
    world = World()
    circuit = Circuit(failures=1, open_for=30)
    with pytest.raises(ConnectionResetError):
        world.recover("a", Policy(circuit=circuit)).call(Flaky(reset()))
    world.clock.advance(10)

    def probed_by_others(event: object) -> None:
        """While it waits, the circuit opens again for another 30 s."""
        if isinstance(event, Retry) and world.now < 60:
            world.state("provider:a")._breaker._stay_open_until(world.now + 30)

    world.runtime.on(probed_by_others)
    patient = world.recover("a", Policy(circuit=circuit, timeout=5, wait_for_circuit=True, deadline=None))
    work = Flaky(takes=2)
    assert (patient.call(work) if form == "sync" else world.run(patient.call(work.acall))) == "ok"
    assert world.waits()[-4:] == [20, 10, 20, 10]
    took = 0 if form == "sync" else 2
    assert (world.now, world.of(AttemptEnded)[-1].took) == (70 + took, took)


def test_S1_1_the_wait_for_a_circuit_has_an_end() -> None:
    world = World()
    policy = Policy(circuit=Circuit(mode="forced-open"), wait_for_circuit=True, deadline=None)
    with pytest.raises(CircuitOpenError):
        world.recover("a", policy).call(Flaky())
    assert LONGEST_CIRCUIT_WAIT_S / 2 < world.now <= LONGEST_CIRCUIT_WAIT_S * (1 + RETURN_SPREAD)


def test_R34_many_waiting_callers_outlast_an_outage_and_return_spread_out() -> None:
    world = World(rng=seeded(5))
    back, went = 610.0, []

    async def ask() -> str:
        await asyncio.sleep(0.1)
        if world.now < back:
            raise reset()
        went.append(world.now)
        return "ok"

    async def call(at: float) -> str:
        await asyncio.sleep(at)
        return await world.recover("a", PATIENT).call(ask)

    async def main() -> list[str]:
        return await asyncio.gather(*(call(second) for second in range(600)))

    assert world.run(main()) == ["ok"] * 600
    first = went[0] - back
    assert first <= 20.2, "a waiting caller makes the very next probe"
    busiest = max(bisect_left(went, at + 1) - place for place, at in enumerate(went))
    assert busiest <= 600 / 20, "they do not go out at once"
    assert went[-1] - back < 20 + 600 * RETURN_SPREAD + 30


def test_R34_the_first_caller_that_waits_for_a_circuit_probes_on_time() -> None:
    world = World()
    circuit = Circuit(failures=1, open_for=30)
    with pytest.raises(ConnectionResetError):
        world.recover("a", Policy(circuit=circuit)).call(Flaky(reset()))
    waiting = Policy(circuit=circuit, wait_for_circuit=True)
    too_late = waiting.replace(timeout=5, deadline=5)

    async def called(policy: Policy) -> float:
        with suppress(CircuitOpenError):
            await world.recover("a", policy).call(Flaky().acall)
        return world.now

    async def main() -> list[float]:
        return await asyncio.gather(*(called(policy) for policy in (too_late, waiting, waiting)))

    began = world.now
    gave_up, first, second = (ended - began for ended in world.run(main()))
    assert (gave_up, first) == (0, 30)
    assert 30 < second <= 30 * (1 + RETURN_SPREAD)


def test_R35_a_hundred_failing_callers_make_no_more_retries_than_the_quota() -> None:
    world = World()
    policy = Policy(retry_quota=Quota(share=0.1, floor=3, window=1000), circuit=OFTEN)
    works = [Always(reset, takes=1) for _ in range(100)]

    async def main() -> list[Any]:
        calls = (world.recover("a", policy).call(work.acall) for work in works)
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = world.run(main())
    attempts = sum(work.calls for work in works)
    assert 100 < attempts <= 113
    assert all(error is work.raised[-1] for error, work in zip(errors, works, strict=True))
    denied = world.of(RetryDenied)
    assert {event.because for event in denied} == {"SYS_RETRY_QUOTA_SPENT"}
    assert len(denied) == 100
    assert "share of the traffic" in errors[-1].__notes__[0]


def test_R38_the_floor_permits_a_retry_where_there_is_no_traffic() -> None:
    world = World()
    policy = Policy(retry_quota=Quota(share=0.1, floor=1, window=10), circuit=OFTEN)
    for _ in range(5):
        assert world.recover("a", policy).call(Flaky(reset())) == "ok"
        world.clock.advance(60)


def test_R39_a_retry_that_succeeded_goes_back_to_the_quota() -> None:
    world = World()
    policy = Policy(retry_quota=Quota(share=0, floor=1, window=1000), circuit=OFTEN)
    for _ in range(5):
        assert world.recover("a", policy).call(Flaky(reset())) == "ok"
    with pytest.raises(ConnectionResetError):
        world.recover("a", policy).call(Always(reset))
    work = Always(reset)
    with pytest.raises(ConnectionResetError):
        world.recover("a", policy).call(work)
    assert work.calls == 1


def test_R58_a_jump_of_the_wall_clock_changes_nothing() -> None:
    for jump in (3600, -3600):
        world = World()
        policy = Policy(circuit=Circuit(failures=1, open_for=30), attempts=1)
        with pytest.raises(ConnectionResetError):
            world.recover("a", policy).call(Always(reset))
        world.clock.jump(jump)
        with pytest.raises(CircuitOpenError) as rejected:
            world.recover("a", policy).call(Flaky())
        assert rejected.value.fault.retry_after == 30
        world.clock.advance(30)
        assert world.recover("a", policy).call(Flaky()) == "ok"


# --- Part 9: exact numbers ---


def failing(code: int | str) -> Any:
    return Always(lambda: ScriptedHTTPError(code) if isinstance(code, int) else HoldfastError(Fault.of(code)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fails", "policy", "waits"),
    [
        pytest.param(failing(503), Policy(), [1, 2], id="S2-15 provider 5xx"),
        pytest.param(failing(429), Policy(deadline=None), [5, 10, 20, 40, 80], id="S2-14 rate limit"),
        pytest.param(failing("SESS_STORE_UNAVAILABLE"), Policy(), [2, 4], id="S2-17 store"),
        pytest.param(failing(503), Policy(profile="spec016"), [1, 2], id="S1-8 spec016"),
        pytest.param(failing(429), Policy(profile="spec016"), [1, 2], id="S1-8 spec016 rate limit"),
        pytest.param(failing(503), Policy(profile="task"), [], id="C30 task"),
        pytest.param(failing(503), Policy(profile="actor"), [1, 2], id="S4-9 actor"),
        pytest.param(failing("TOOL_TIMEOUT"), Policy(), [], id="S2-16 a tool without contract"),
    ],
)
def test_part_9_waits_and_calls_of_each_schedule(fails: Always, policy: Policy, waits: list[float]) -> None:
    fails.raised.clear()
    world = World()
    with pytest.raises(Exception) as failed:
        world.recover("a", policy.replace(circuit=OFTEN)).call(fails)
    assert failed.value is fails.raised[-1]
    assert world.waits() == waits
    assert fails.calls == len(waits) + 1
    assert world.now == sum(waits)


def test_S2_16_a_tools_own_contract_sets_attempts_and_backoff() -> None:
    world = World()
    fails = failing("TOOL_TIMEOUT")

    @tool(effect="idempotent", retry=Tries(attempts=2, backoff=Backoff(initial=3, jitter=0)))
    def run_tests() -> None:
        fails()

    with pytest.raises(HoldfastError):
        world.recover("tool:tests").call(run_tests)
    assert world.waits() == [3]


def test_S1_26_a_past_date_is_no_hint() -> None:
    world = World()
    past = "Tue, 31 Dec 2024 23:59:00 GMT"
    calls = script([ScriptedHTTPError(429, {"retry-after": past}), "ok"])
    world.recover("a").call(calls)
    assert world.waits() == [5]
    future = script([ScriptedHTTPError(429, {"retry-after": "Wed, 01 Jan 2025 00:00:12 GMT"}), "ok"])
    world.recover("a").call(future)
    assert world.waits()[1] == pytest.approx(7)


def test_S1_28_success_after_retries_is_reported_once_with_its_duration() -> None:
    world = World()
    world.recover("a").call(script("503, 503, ok"))
    (recovered,) = world.of(Recovered)
    assert (recovered.after, recovered.attempts, recovered.via) == (3, 3, "primary")
    assert [event.attempt for event in world.of(Retry)] == [1, 2]


# --- nothing stays behind ---


def test_S1_1_a_hundred_thousand_calls_leave_no_memory_behind() -> None:
    runtime = Runtime(waits=False)
    good = recover("good", runtime=runtime)(lambda: "ok")
    flaky = recover("flaky", Policy(circuit=OFTEN), runtime=runtime)

    def some(times: int) -> None:
        for number in range(times):
            good()
            if number % 100 == 0:
                flaky.call(Flaky(reset()))

    some(2_000)
    gc.collect()
    blocks = sys.getallocatedblocks()
    some(100_000)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 500
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        some(5_000)
        gc.collect()
        grown = sum(stat.size_diff for stat in tracemalloc.take_snapshot().compare_to(before, "filename"))
    finally:
        tracemalloc.stop()
    assert grown < 50_000


def _ends() -> dict[str, Any]:
    class Marked(ConnectionResetError):
        """An exception that can be watched."""

    def fails(*_: Any) -> Any:
        raise Marked(104, "reset")

    async def fails_later(*_: Any) -> Any:
        raise Marked(104, "reset")

    async def given_up(world: World) -> None:
        await world.recover("a").call(fails_later)

    async def sync(world: World) -> None:
        world.recover("a").call(fails)

    async def fallen_back(world: World) -> None:
        decorated = world.recover("a")(fails_later)
        decorated.fallback(fails_later)
        decorated.degraded(fails)
        decorated.notify(lambda _: None)
        await decorated()

    async def fallen_back_sync(world: World) -> None:
        decorated = world.recover("a")(fails)
        decorated.fallback(fails)
        decorated()

    async def cut(world: World) -> None:
        async def numbers() -> Any:
            yield 1
            fails()

        async with world.recover("a").stream(numbers)() as stream:
            async for _ in stream:
                pass

    async def never_began(world: World) -> None:
        async def numbers() -> Any:
            fails()
            yield 1

        async with world.recover("a").stream(numbers)() as stream:
            async for _ in stream:
                pass

    async def block(world: World) -> None:
        async for attempt in world.recover("a"):
            async with attempt:
                fails()

    async def late_block(world: World) -> None:
        async for attempt in world.recover("a", Policy(timeout=1)):
            async with attempt:
                await asyncio.sleep(5)

    async def late(world: World) -> None:
        await world.recover("a", Policy(timeout=1)).call(Flaky(takes=5).acall)

    async def not_accepted(world: World) -> None:
        await world.recover("a", accept=lambda _: False).call(Flaky().acall)

    async def unsafe(world: World) -> None:
        await world.recover("a", effect="unsafe").call(fails_later)

    async def rejected(world: World) -> None:
        await world.recover("a", Policy(circuit=Circuit(mode="forced-open"))).call(Flaky().acall)

    async def threaded(world: World) -> None:
        world.recover("a", threads=True).call(fails)

    async def outcome(world: World) -> None:
        raise (await world.recover("a").outcome(fails_later)).error

    return {
        name: ends for name, ends in locals().items() if inspect.iscoroutinefunction(ends) and name != "fails_later"
    }


ENDS = _ends()


@pytest.mark.parametrize("name", ENDS)
def test_R43_no_exception_is_kept_alive_by_a_cycle_of_ours(name: str) -> None:
    """Each is freed with its last reference, without the garbage collector."""
    world = World()
    kept: list[weakref.ref[BaseException]] = []
    world.runtime.bus._handlers.clear()  # events carry faults, not exceptions; still, only what recover itself keeps

    async def main() -> None:
        try:
            await ENDS[name](world)
        except Exception as error:
            kept.append(weakref.ref(error))

    gc.collect()
    gc.disable()
    try:
        world.run(main())
        assert [ref() for ref in kept] == [None]
    finally:
        gc.enable()


def test_S1_1_the_scope_around_is_restored_however_a_call_ends() -> None:
    world = World()
    for work in (Flaky(), Flaky(reset()), Always(reset), Flaky(KeyboardInterrupt())):
        with suppress(ConnectionResetError, KeyboardInterrupt):
            world.recover("a", Policy(circuit=OFTEN)).call(work)
        assert AMBIENT.get() is None


def test_outcome_holds_the_whole_timeline_and_a_failure_is_reported_once() -> None:
    world = World()
    outcome = world.recover("a").outcome(Flaky(reset(), value=5))
    assert outcome == Ok(5, via="primary", attempts=outcome.attempts)
    assert [(attempt.number, attempt.code, attempt.waited) for attempt in outcome.attempts] == [
        (1, "CONN_RESET", 0.0),
        (2, None, 1.0),
    ]
    failed = world.recover("a").outcome(Always(reset))
    assert isinstance(failed, Err)
    assert len(failed.fault.attempts) == 3
    assert len(world.of(Failed)) == 1
    with pytest.raises(KeyboardInterrupt):
        world.recover("a").outcome(Flaky(KeyboardInterrupt()))
    assert len(world.of(Cancelled)) == 1
    assert world.circuit_state("provider:a") is CircuitState.CLOSED


# --- which failures are retried ---


@pytest.mark.parametrize(
    ("status", "body", "calls", "code"),
    [
        pytest.param(200, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 3, "PROVIDER_OVERLOADED", id="R81"),
        pytest.param(429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}, 1, "PROVIDER_BILLING", id="R82"),
        pytest.param(400, {"error": {"code": "context_length_exceeded", "message": "too long"}}, 1, "PROVIDER_CONTEXT_OVERFLOW", id="R83"),
    ],
)  # fmt: skip
def test_R81_R82_R83_the_same_request_is_sent_again_only_where_that_can_help(
    status: int, body: Any, calls: int, code: str
) -> None:
    world = World()
    work = Always(lambda: ScriptedHTTPError(status, {}, body))
    decorated = world.recover("a")(work)
    with pytest.raises(ScriptedHTTPError) as failed:
        decorated()
    assert fault_of(failed.value).code == code
    assert work.calls == calls
    decorated.fallback(lambda: "another way")
    assert decorated() == "another way"


def test_R33_the_wait_ends_with_the_latest_reset_among_exhausted_limits() -> None:
    world = World()
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "20s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "50s",
    }
    world.recover("a").call(script([ScriptedHTTPError(429, headers), "ok"]))
    assert world.waits() == [50]


def test_R26_an_error_of_ours_that_is_raised_again_is_judged_anew() -> None:
    """The verdict that one operation left on the error object does not bind the next operation."""
    world = World()
    error = HoldfastError(Fault.of("PROVIDER_OVERLOADED"))
    for _ in range(3):
        failing = Always(lambda: error)
        with pytest.raises(HoldfastError):
            world.recover("a", Policy(attempts=3, circuit=LOOSE)).call(failing)
        assert failing.calls == 3
        assert len(fault_of(error).attempts) == 3
        assert not error.fault.retryable
