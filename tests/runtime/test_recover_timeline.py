"""`.outcome` holds the whole timeline: attempts, waits, reasons, cost."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from recover_kit import Always, Flaky, World, reset

from holdfast import Backoff, Changed, Err, Fault, HoldfastError, Ok, Policy, Runtime, recover
from holdfast.events import Cancelled, CircuitState, Failed
from holdfast.testing import Midpoint, VirtualClock, run, script

STEADY = Policy(attempts=3, backoff=Backoff(initial=2, jitter="none"))


@pytest.fixture
def runtime():
    return Runtime(clock=VirtualClock(), rng=Midpoint())


def test_a_recovered_call_shows_each_attempt_with_its_wait_and_decision(runtime):
    match recover("claude", STEADY, runtime=runtime).outcome(script("503, 503, ok:hello")):
        case Ok(value="hello", via="primary", attempts=attempts):
            timeline = [(one.number, one.code, one.waited, one.then) for one in attempts]
        case other:
            pytest.fail(repr(other))
    assert timeline == [
        (1, "PROVIDER_UNAVAILABLE", 0.0, "retry"),
        (2, "PROVIDER_UNAVAILABLE", 2.0, "retry"),
        (3, None, 4.0, ""),
    ]
    assert attempts[2].started - attempts[0].started == pytest.approx(6)


def test_what_was_decided_prints_as_a_word(runtime):
    match recover("claude", STEADY, runtime=runtime).outcome(script("503, 401")):
        case Err(fault=fault):
            assert repr([one.then for one in fault.attempts]) == "['retry', 'permanent']"
        case other:
            pytest.fail(repr(other))


def test_the_wait_of_an_attempt_is_the_delay_and_the_wait_for_its_turn(runtime):
    """After a rate limit, an attempt beyond those of the plain client waits for its backoff and then for its turn."""
    outcome = run(
        recover("claude", runtime=runtime).outcome(script("429, 429, 429, 429;retry-after=7, ok").acall),
        clock=runtime.clock,
    )
    assert outcome.ok
    starts = [attempt.started for attempt in outcome.attempts]
    waited = [attempt.waited for attempt in outcome.attempts]
    assert waited[1:] == [pytest.approx(later - sooner, abs=0.01) for sooner, later in pairwise(starts)]


def test_an_attempt_after_a_repair_has_not_waited(runtime):
    failures = [reset(), HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))]

    @recover("gpt", STEADY, runtime=runtime)
    def ask(messages):
        if failures:
            raise failures.pop(0)
        return len(messages)

    @ask.repair("compact")
    def halve(_, messages):
        return Changed(messages[len(messages) // 2 :])

    outcome = ask.outcome(["one", "two"])
    assert outcome == Ok(1, via="primary", attempts=outcome.attempts)
    assert [attempt.waited for attempt in outcome.attempts] == [0, 2, 0]


@pytest.mark.parametrize(
    ("policy", "plays", "reasons"),
    [
        (STEADY, "503*3", ["retry", "retry", "attempts"]),
        (STEADY, "401", ["permanent"]),
        (STEADY.replace(timeout=3, deadline=3), "503*3", ["retry", "deadline"]),
        (STEADY, "429;retry-after=1000", ["retry-after"]),
        (STEADY.replace(max_retry_after=5), "429;retry-after=10", ["retry-after"]),
    ],
)
def test_a_failed_call_says_why_each_attempt_was_or_was_not_followed_by_another(runtime, policy, plays, reasons):
    match recover("claude", policy, runtime=runtime).outcome(script(plays)):
        case Err(fault=fault):
            assert [attempt.then for attempt in fault.attempts] == reasons
        case other:
            pytest.fail(repr(other))


def test_the_good_attempt_shows_the_usage_of_its_answer(runtime):
    usage = SimpleNamespace(
        input_tokens=1_000_000, output_tokens=0, cache_read_input_tokens=0, cache_creation_input_tokens=0
    )
    answer = SimpleNamespace(model="claude-haiku-4-5", usage=usage)
    match recover("claude", runtime=runtime).outcome(lambda: answer):
        case Ok(attempts=(one,)):
            assert (one.tokens, one.usd) == (1_000_000, 1.0)
        case other:
            pytest.fail(repr(other))


def test_an_unknown_cost_is_not_free(runtime):
    match recover("claude", runtime=runtime).outcome(lambda: "text"):
        case Ok(attempts=(one,)):
            assert (one.tokens, one.usd) == (None, None)
        case other:
            pytest.fail(repr(other))


def test_an_async_call_begins_when_it_is_awaited():
    """It uses the clock and the runtime of the moment it is awaited, not of the moment the coroutine was made."""

    async def slow() -> str:
        await asyncio.sleep(50)
        return "done"

    call = recover("claude", Policy(timeout=55, deadline=60)).call(slow)

    async def later() -> str:
        await asyncio.sleep(30)
        return await call

    assert run(later()) == "done"


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
