"""Retries: which failures, how often, and after which delay."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
from recover_kit import Always, Flaky, World, reset, settled

from holdfast import (
    BATCH,
    Backoff,
    Circuit,
    CircuitOpenError,
    DeadlineError,
    Fault,
    HoldfastError,
    Policy,
    Runtime,
    Tries,
    fault_of,
    recover,
    tool,
)
from holdfast.events import (
    AttemptEnded,
    AttemptStarted,
    Failed,
    Recovered,
    Retry,
    RetryDenied,
    SuppressedError,
)
from holdfast.testing import ScriptedHTTPError, script, seeded

HALF_A_MINUTE = Backoff(initial=30, factor=1, jitter=0)
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


@pytest.mark.parametrize(
    ("policy", "calls", "limit"),
    [
        (Policy(attempts=10, backoff=HALF_A_MINUTE), 4, "within patience=120 s; raise it for more attempts"),
        (
            Policy(attempts=10, backoff=HALF_A_MINUTE, patience=45),
            2,
            "within patience=45 s; raise it for more attempts",
        ),
        (
            Policy(attempts=10, backoff=HALF_A_MINUTE, deadline=61),
            3,
            "within deadline=61 s; raise it for more attempts",
        ),
    ],
)
def test_R11_the_note_names_the_limit_that_left_no_time_for_all_attempts(
    policy: Policy, calls: int, limit: str
) -> None:
    world = World(defaults=True)
    work = Always(reset)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a", policy).call(work)
    assert work.calls == calls
    assert f"no time is left for another attempt {limit}." in failed.value.__notes__[0]


def test_R11_the_note_does_not_blame_the_policy_for_the_limit_of_the_scope_around() -> None:
    world = World()
    work = Always(reset)

    def outside() -> Any:
        return world.recover("inner", Policy(attempts=10, backoff=HALF_A_MINUTE)).call(work)

    with pytest.raises(ConnectionResetError) as failed:
        world.recover("outer", Policy(timeout=None, deadline=40, attempts=1)).call(outside)
    assert work.calls == 2
    notes = "".join(failed.value.__notes__)
    assert "no time is left for another attempt before the deadline of the scope around it." in notes
    assert "patience=" not in notes


def test_R11_a_wait_that_would_pass_the_deadline_is_not_begun() -> None:
    world = World()
    work = Always(reset)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a", Policy(timeout=1, deadline=1, backoff=Backoff(initial=1, jitter=0))).call(work)
    assert (work.calls, world.now) == (1, 0)
    assert [event.because for event in world.of(RetryDenied)] == ["SYS_DEADLINE_EXCEEDED"]
    assert "no time is left" in failed.value.__notes__[0]
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
    decorated = recover("a", Policy(attempts=3, circuit=OFTEN), runtime=runtime)
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
        world.run(world.recover("a", Policy(timeout=None, deadline=5)).call(work.acall))
    assert failed.value.fault.code == "SYS_DEADLINE_EXCEEDED"
    assert (work.calls, world.now) == (0, 5)


# --- delays ---


def test_R29_retry_after_is_slept_exactly_and_spread_only_adds() -> None:
    world = World()
    world.recover("a").call(script("429;retry-after=30, ok"))
    assert world.waits() == [30]
    for seed in range(50):
        other = World(rng=seeded(seed))
        other.recover("a", Policy(spread=0.2)).call(script("429;retry-after=30, ok"))
        assert 30 <= other.waits()[0] <= 36
        assert other.of(Retry)[0].requested


@pytest.mark.parametrize(
    ("policy", "seconds", "reason"),
    [(Policy(), 200, "no time is left"), (Policy(patience=None), 901, "longer wait"), (BATCH, 2000, "longer wait")],
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
        pytest.param(failing(429), Policy(patience=None), [5, 10, 20, 40, 80], id="S2-14 rate limit"),
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
