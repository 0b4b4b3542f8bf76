"""`ResilienceManager`: document 001's methods and what its implementation got wrong (S1-22, N1-8, N1-9)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import Backoff, Circuit, CircuitOpenError, Err, InvalidError, Ok, Policy, Runtime, Tries, recover
from holdfast.events import CircuitState, Event, Retry
from holdfast.faults import Category
from holdfast.manager import (
    EVENT_NAMES,
    AbortedError,
    CachedAnswers,
    ExecutionOptions,
    FallbackChain,
    FallbackStep,
    ResilienceManager,
)
from holdfast.policies.profiles import SPEC016
from holdfast.runtime.cache import MemoryCache
from holdfast.testing import Capture, Midpoint, VirtualClock, run, script

CLAUDE = ExecutionOptions(provider="claude")
SECONDS = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, jitter=0))


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(clock=VirtualClock(), rng=Midpoint(), enabled=True)


@pytest.fixture
def manager(runtime) -> ResilienceManager:
    return ResilienceManager(runtime)


def reset_by_peer() -> None:
    raise ConnectionResetError("gone")


def fail_until_open(manager: ResilienceManager, times: int = 5) -> None:
    once = ExecutionOptions(provider="claude", skip_retry=True)
    for _ in range(times):
        with pytest.raises(ConnectionResetError):
            manager.execute(reset_by_peer, once)


# --- circuits (S1-13, S1-22) ---


def test_S1_13_a_circuit_has_its_name_state_and_counts(manager, runtime):
    circuit = manager.get_circuit("provider:claude")
    assert (circuit.name, circuit.state, circuit.failures, circuit.successes) == ("provider:claude", "closed", 0, 0)
    assert circuit.last_failure is None
    manager.execute(lambda: 1, CLAUDE)
    runtime.clock.advance(7)
    circuit.record_failure("PROVIDER_OVERLOADED")
    failed_at = runtime.clock.wall()
    runtime.clock.advance(3)
    circuit.record_success()
    assert (circuit.failures, circuit.successes, circuit.last_failure) == (1, 2, failed_at)
    assert "provider:claude: closed" in repr(circuit)


def test_S1_13_recorded_failures_open_it_and_reset_closes_it(manager):
    heard = Capture()
    manager.on("circuit-state-change", heard)
    circuit = manager.get_circuit("claude")
    for _ in range(5):
        circuit.record_failure("PROVIDER_OVERLOADED")
    assert circuit.state is CircuitState.OPEN
    circuit.record_success()
    assert circuit.successes == 0
    assert circuit.metrics().rejected == 0
    with pytest.raises(CircuitOpenError):
        circuit.execute(len, "x")
    circuit.reset()
    assert circuit.execute(len, "x") == 1
    assert [(change.from_, change.to) for change in heard] == [("closed", "open"), ("open", "closed")]


def test_S1_13_execute_calls_once_and_counts(manager):
    circuit = manager.get_circuit("tool:bash")
    failing = script("503, 503, ok")
    with pytest.raises(Exception, match="503"):
        circuit.execute(failing)
    assert (circuit.failures, circuit.successes) == (1, 0)

    async def double(x: int) -> int:
        return 2 * x

    assert asyncio.run(circuit.execute(double, 4)) == 8
    assert circuit.successes == 1


def test_R62_a_hand_holds_it_open_until_it_lets_go(manager, runtime):
    circuit = manager.get_circuit("claude")
    circuit.force_open()
    runtime.clock.advance(10_000)
    with pytest.raises(CircuitOpenError, match="until it is released"):
        manager.execute(lambda: 1, CLAUDE)
    circuit.release()
    assert manager.execute(lambda: 1, CLAUDE) == 1


def test_S1_22_states_of_all_and_reset_of_one_and_all(manager):
    fail_until_open(manager)
    manager.get_circuit("agent:builder").force_open()
    manager.execute(lambda: 1, ExecutionOptions(provider="openai"))
    assert manager.get_circuit_states() == {
        "provider:claude": "open",
        "agent:builder": "open",
        "provider:openai": "closed",
    }
    assert manager.reset_circuit("claude") is True
    assert manager.reset_circuit("nobody") is False
    assert manager.get_circuit("claude").state == "closed"
    assert manager.get_circuit("agent:builder").state == "open"
    assert manager.reset_all_circuits() == 3
    assert set(manager.get_circuit_states().values()) == {"closed"}


def test_looking_at_a_circuit_makes_none(manager):
    assert manager.get_circuit("claude").state == "closed"
    assert manager.get_circuit("claude").metrics().total_calls == 0
    assert manager.get_circuit_states() == {}


def test_S1_27_circuits_are_shared_with_every_manager_and_every_recovery(manager, runtime):
    fail_until_open(manager)
    with pytest.raises(CircuitOpenError):
        ResilienceManager(runtime).execute(lambda: 1, CLAUDE)
    with pytest.raises(CircuitOpenError):
        recover("claude", runtime=runtime).call(len, "x")


def test_the_circuit_somebody_else_configured_holds(manager, runtime):
    recover("claude", Policy(circuit=Circuit(failures=2, rate=None)), runtime=runtime).call(len, "x")
    fail_until_open(manager, 2)
    assert manager.get_circuit("claude").state == "open"


def test_the_registry_is_bounded():
    manager = ResilienceManager(Runtime(clock=VirtualClock(), most_circuits=10))
    for number in range(50):
        manager.execute(lambda: 1, ExecutionOptions(provider=f"p{number}"))
    assert len(manager.get_circuit_states()) <= 10


def test_R62_a_full_registry_keeps_the_circuit_that_somebody_holds_open():
    manager = ResilienceManager(Runtime(clock=VirtualClock(), most_circuits=3))
    manager.get_circuit("held").force_open()
    for number in range(10):
        for _ in range(5):
            manager.get_circuit(f"p{number}").record_failure()
    assert manager.get_circuit("held").state == "open"


def test_a_full_registry_drops_what_was_quiet_longest_and_the_open_ones_last():
    clock = VirtualClock()
    manager = ResilienceManager(Runtime(clock=clock, most_circuits=4))
    for _ in range(5):
        manager.get_circuit("broken").record_failure()
    for name in ("a", "b", "c"):
        clock.advance(1)
        manager.get_circuit(name).record_success()
    manager.get_circuit("a").record_success()
    manager.get_circuit("d").record_success()
    names = {name.rpartition(":")[2] for name in manager.get_circuit_states()}
    assert names == {"broken", "a", "c", "d"}


def test_a_circuit_needs_a_name(manager):
    with pytest.raises(InvalidError, match="circuit: expected a name"):
        manager.get_circuit("")


# --- execute (S1-22, N1-8) ---


def test_N1_9_backoff_grows_and_recovered_is_told(manager, runtime):
    heard = Capture()
    runtime.on(heard)
    failing = script("503, 503, ok:hello")
    options = ExecutionOptions(provider="claude", operation_name="ask", retry=SECONDS)
    assert manager.execute(failing, options) == "hello"
    assert [event.delay for event in heard.of(Retry)] == [1, 2]
    assert heard.assert_recovered(attempts=3).operation == "ask"


def test_execute_is_async_for_async_operations(manager, runtime):
    failing = script("503, ok:hello")
    assert run(manager.execute(failing.acall, CLAUDE), clock=runtime.clock) == "hello"


def test_execute_async_takes_whatever_gives_something_to_await(manager, runtime):
    failing = script("503, ok:hello, ok:again")
    assert run(manager.execute_async(lambda: failing.acall("q"), CLAUDE), clock=runtime.clock) == "hello"
    with pytest.raises(InvalidError, match=r"execute: expected an async function, or execute_async, got a plain"):
        manager.execute(lambda: failing.acall("q"), CLAUDE)


def test_an_outcome_says_who_answered_and_every_attempt(manager, runtime):
    match manager.outcome(script("503, ok:hello"), CLAUDE):
        case Ok(value="hello", via="primary", attempts=attempts):
            assert [attempt.code for attempt in attempts] == ["PROVIDER_UNAVAILABLE", None]
        case other:
            pytest.fail(repr(other))
    match run(manager.outcome_async(script("401").acall, CLAUDE), clock=runtime.clock):
        case Err(fault=fault):
            assert fault.code == "AUTH_FAILED"
        case other:
            pytest.fail(repr(other))


def test_N1_8_skip_retry_calls_once(manager):
    failing = script("503, ok")
    with pytest.raises(Exception, match="503"):
        manager.execute(failing, ExecutionOptions(provider="claude", skip_retry=True))
    assert failing.calls == 1


def test_N1_8_skip_circuit_breaker_neither_asks_it_nor_tells_it(manager):
    circuit = manager.get_circuit("claude")
    circuit.force_open()
    alone = ExecutionOptions(provider="claude", skip_circuit_breaker=True, skip_retry=True)
    assert manager.execute(lambda: 1, alone) == 1
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, alone)
    assert (circuit.failures, circuit.successes, circuit.metrics().rejected) == (0, 0, 0)


def test_N1_8_a_circuit_of_its_own(manager):
    options = ExecutionOptions(provider="claude", skip_retry=True, circuit_breaker=Circuit(failures=1, rate=None))
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, options)
    with pytest.raises(CircuitOpenError):
        manager.execute(lambda: 1, options)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        (ExecutionOptions(operation_type="file-read"), 5),
        (ExecutionOptions(operation_type="tool-execution"), 120),
        (ExecutionOptions(operation_type="agent-spawn"), 300),
        (ExecutionOptions(operation_type="something-else"), 30),
        (ExecutionOptions(operation_type="file-read", timeout=2), 2),
        (ExecutionOptions(timeout=400), 400),
    ],
)
def test_S1_20_C8_the_limit_is_looked_up_by_the_kind_of_operation(manager, runtime, options, limit):
    began = runtime.clock.monotonic()

    async def hang() -> None:
        await asyncio.sleep(10_000)

    async def once() -> None:
        with pytest.raises(TimeoutError, match=rf"{limit}(\.0)? s"):
            await manager.execute(hang, ExecutionOptions(**{**_fields(options), "skip_retry": True}))

    run(once(), clock=runtime.clock)
    assert runtime.clock.monotonic() - began == pytest.approx(limit)


def _fields(options: ExecutionOptions) -> dict:
    return {name: getattr(options, name) for name in options.__struct_fields__}


def test_the_limit_is_the_profiles(runtime):
    runtime.configure(Policy(profile="spec016", circuit=SPEC016.circuit), {})
    options = ExecutionOptions(operation_type="llm-call")
    assert options.applied_to(runtime.policy_for(options.target)).timeout == 60


def test_agent_and_provider_have_a_circuit_each(manager):
    options = ExecutionOptions(agent="builder", provider="claude", skip_retry=True)
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, options)
    assert manager.get_circuit_states() == {"agent:builder": "closed", "provider:claude": "closed"}


def test_operations_that_name_nobody_share_no_circuit(manager):
    for _ in range(20):
        with pytest.raises(ConnectionResetError):
            manager.execute(reset_by_peer)
    assert manager.execute(lambda: 1) == 1


# --- abort (N1-5, N1-9) ---


def test_N1_9_an_abort_is_a_cancellation_and_no_timeout(manager, runtime):
    heard = Capture()
    runtime.on(heard)
    abort = threading.Event()
    abort.set()
    failing = script("ok")
    with pytest.raises(AbortedError) as caught:
        manager.execute(failing, ExecutionOptions(provider="claude", abort=abort))
    assert failing.calls == 0
    assert caught.value.fault.code == "SYS_CANCELLED"
    assert not isinstance(caught.value, TimeoutError)
    assert heard.types == ["cancelled"]
    assert manager.get_metrics().errors_by_category == {}


def test_N1_5_an_abort_ends_the_wait_in_a_thread(manager, runtime):
    abort = threading.Event()

    class Ringing(VirtualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.monotonic() >= 3:
                abort.set()

    runtime.clock = Ringing()
    with pytest.raises(AbortedError) as caught:
        manager.execute(script("429;retry-after=60, ok"), ExecutionOptions(provider="claude", abort=abort))
    assert runtime.clock.monotonic() == pytest.approx(3, abs=0.1)
    assert [attempt.code for attempt in caught.value.fault.attempts] == ["PROVIDER_RATE_LIMITED"]
    assert manager.get_circuit("claude").metrics().cancelled == 0


def test_N1_5_an_abort_ends_the_wait_in_a_task(manager, runtime):
    async def main() -> None:
        abort = asyncio.Event()
        asyncio.get_running_loop().call_later(3, abort.set)
        with pytest.raises(AbortedError):
            await manager.execute(
                script("429;retry-after=60, ok").acall, ExecutionOptions(provider="claude", abort=abort)
            )

    run(main(), clock=runtime.clock)
    assert runtime.clock.monotonic() == pytest.approx(3, abs=0.1)


def test_an_abort_that_is_never_set_changes_nothing(manager, runtime):
    options = ExecutionOptions(provider="claude", abort=threading.Event(), retry=SECONDS)
    assert manager.execute(script("503, 503, ok:hello"), options) == "hello"
    assert runtime.clock.monotonic() == pytest.approx(3)


def test_after_an_abort_no_fallback_is_tried(manager, runtime):
    heard = Capture()
    runtime.on(heard)
    abort = threading.Event()

    def fail() -> str:
        abort.set()
        raise ConnectionResetError

    chain = FallbackChain(fallbacks=(FallbackStep(name="other", operation=lambda: "other"),))
    with pytest.raises(AbortedError):
        manager.execute(fail, ExecutionOptions(skip_retry=True, abort=abort, fallback_chain=chain))
    assert heard.types == ["attempt-started", "attempt-ended", "cancelled"]


# --- the chain (S1-15, S1-16, N1-7) ---


def test_S1_16_steps_are_tried_by_priority_and_only_where_they_fit(manager, runtime):
    heard = Capture()
    manager.on("fallback", heard)
    chain = FallbackChain(
        fallbacks=(
            FallbackStep(name="last", operation=lambda: "last", priority=2),
            FallbackStep(name="broken", operation=reset_by_peer, priority=1),
            FallbackStep(name="for auth only", operation=lambda: "auth", when="AUTH_FAILED"),
        )
    )
    outcome = manager.outcome(reset_by_peer, ExecutionOptions(skip_retry=True, fallback_chain=chain))
    assert isinstance(outcome, Ok)
    assert (outcome.value, outcome.via) == ("last", "last")
    assert [(event.from_, event.to) for event in heard] == [("primary", "broken"), ("primary", "last")]


def test_S1_15_cached_then_degraded_then_told_and_the_first_error(manager, runtime):
    store = MemoryCache()
    told = []

    def options(**more) -> ExecutionOptions:
        cached = CachedAnswers(store=store, key="q", ttl=60)
        return ExecutionOptions(
            skip_retry=True, fallback_chain=FallbackChain(cached=cached, notify=told.append, **more)
        )

    assert manager.execute(lambda: "fresh", options()) == "fresh"
    assert manager.execute(reset_by_peer, options()) == "fresh"
    runtime.clock.advance(61)
    assert manager.execute(reset_by_peer, options(degraded=lambda fault: fault.code)) == "CONN_RESET"
    assert told == []
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, options())
    assert [fault.code for fault in told] == ["SYS_FALLBACKS_EXHAUSTED"]


def test_S1_24_all_providers_down_the_user_gets_a_lesser_answer_and_may_try_again_later(manager, runtime):
    def ask(provider: str) -> str:
        return manager.execute(reset_by_peer, ExecutionOptions(provider=provider, skip_retry=True))

    chain = FallbackChain(
        fallbacks=tuple(
            FallbackStep(name=name, operation=lambda name=name: ask(name)) for name in ("openai", "gemini")
        ),
        degraded=lambda fault: fault.for_user(),
    )
    options = ExecutionOptions(provider="claude", skip_retry=True, fallback_chain=chain)
    shown = [manager.execute(reset_by_peer, options) for _ in range(5)]
    assert set(manager.get_circuit_states().values()) == {"open"}
    assert all(shown)
    runtime.clock.advance(31)
    assert manager.execute(lambda: "back", options) == "back"


# --- metrics (S1-23, N1-9) ---


def test_S1_23_counts_mean_what_their_names_say(manager, runtime):
    manager.execute(lambda: 1, CLAUDE)
    manager.execute(script("503, ok"), ExecutionOptions(provider="claude", retry=SECONDS))
    with pytest.raises(Exception, match="503"):
        manager.execute(script("503, 503, 503"), ExecutionOptions(provider="claude", retry=SECONDS))
    with pytest.raises(Exception, match="401"):
        manager.execute(script("401"), CLAUDE)
    chain = FallbackChain(fallbacks=(FallbackStep(name="other", operation=lambda: 2),))
    manager.execute(script("401"), ExecutionOptions(provider="claude", fallback_chain=chain))
    metrics = manager.get_metrics()
    assert metrics.total_attempts == 1 + 2 + 3 + 1 + 2
    assert metrics.successful_retries == 1
    assert metrics.failed_retries == 1
    assert metrics.fallbacks_used == 1
    assert metrics.circuit_opens == 0
    assert metrics.avg_recovery_time == pytest.approx((1 + 0) / 2)
    assert metrics.errors_by_category == {Category.UNAVAILABLE: 4, Category.AUTH: 2}


def test_S1_23_circuit_opens_are_counted_also_of_circuits_that_have_gone():
    manager = ResilienceManager(Runtime(clock=VirtualClock(), most_circuits=3))
    for number in range(10):
        for _ in range(5):
            manager.get_circuit(f"p{number}").record_failure()
    assert len(manager.get_circuit_states()) <= 3
    assert manager.get_metrics().circuit_opens == 10
    assert ResilienceManager(manager._runtime).get_metrics().circuit_opens == 0


def test_N1_8_the_average_is_over_the_last_hundred(manager, runtime):
    def recovering_in(seconds: float) -> None:
        calls = iter(("fail", "answer"))

        def operation() -> None:
            if next(calls) == "fail":
                raise ConnectionResetError

        tries = Tries(attempts=2, backoff=Backoff(initial=seconds, jitter=0, cap=100))
        manager.execute(operation, ExecutionOptions(retry=tries))

    recovering_in(100)
    for _ in range(100):
        recovering_in(2)
    assert manager.get_metrics().avg_recovery_time == pytest.approx(2)


def test_S1_23_counts_are_exact_under_50_threads():
    runtime = Runtime(waits=False)
    manager = ResilienceManager(runtime)
    options = ExecutionOptions(retry=Tries(attempts=2, backoff=Backoff(initial=0)))

    def work(_: int) -> None:
        for _ in range(20):
            manager.execute(script("503, ok"), options)

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    metrics = manager.get_metrics()
    assert (metrics.total_attempts, metrics.successful_retries, metrics.failed_retries) == (2000, 1000, 0)
    assert metrics.errors_by_category == {Category.UNAVAILABLE: 1000}


def test_a_cancelled_operation_has_not_failed(manager, runtime):
    async def main() -> None:
        task = asyncio.create_task(manager.execute(script("503, 503, ok").acall, CLAUDE))
        await asyncio.sleep(2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main(), clock=runtime.clock)
    assert (manager.get_metrics().total_attempts, manager.get_metrics().failed_retries) == (2, 0)


# --- events (S1-21, S1-22) ---


def test_S1_21_every_name_of_the_document_can_be_listened_to(manager):
    for name in ("retry", "circuit-state-change", "fallback", "degraded", "recovered", "failed", "agent-fallback"):
        assert name in EVENT_NAMES
        manager.on(name, print).cancel()
    with pytest.raises(InvalidError, match=r"on: expected one of .*retry.*, got 'retrry'"):
        manager.on("retrry", print)


def test_S1_22_events_can_be_iterated_over(manager, runtime):
    async def main() -> list[Event]:
        seen: list[Event] = []

        async def read() -> None:
            async for event in manager.events():
                seen.append(event)
                if event.__struct_config__.tag == "recovered":
                    return

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        await manager.execute(script("503, ok").acall, CLAUDE)
        await reader
        return seen

    kinds = [event.__struct_config__.tag for event in run(main(), clock=runtime.clock)]
    assert kinds[-1] == "recovered"
    assert "retry" in kinds


# --- off (S1-25) and bad input ---


def test_S1_25_switched_off_the_operation_is_called_once_with_its_raw_error_and_no_events(monkeypatch):
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    runtime = Runtime(clock=VirtualClock())
    manager = ResilienceManager(runtime)
    heard = Capture()
    runtime.on(heard)
    failing = script("503, ok, ok, ok")
    chain = FallbackChain(degraded=lambda fault: "lesser")
    with pytest.raises(Exception, match="503") as caught:
        manager.execute(failing, ExecutionOptions(provider="claude", fallback_chain=chain))
    assert failing.calls == 1
    assert not getattr(caught.value, "__notes__", [])
    assert heard.types == []
    assert manager.outcome(failing).attempts == ()
    assert asyncio.run(manager.execute(failing.acall)) is None
    runtime.enabled = True
    assert manager.execute(script("503, ok:on"), CLAUDE) == "on"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"timeout": 0}, "options.timeout: expected a finite number of seconds > 0 or None, got 0"),
        ({"timeout": float("nan")}, "options.timeout"),
        ({"retry": 3}, "options.retry: expected a Tries or None, got 3"),
        ({"circuit_breaker": "provider"}, "options.circuit_breaker: expected a Circuit or None, got 'provider'"),
        ({"fallback_chain": []}, "options.fallback_chain: expected a FallbackChain or None, got list"),
        ({"abort": True}, r"options.abort: expected a signal with is_set\(\)"),
        ({"skip_retry": True, "retry": SECONDS}, "options.retry: expected None beside skip_retry"),
        ({"circuit_breaker": Circuit()}, "options.circuit_breaker: expected a provider or an agent beside it"),
        (
            {"provider": "x", "skip_circuit_breaker": True, "circuit_breaker": Circuit()},
            "options.circuit_breaker: expected None",
        ),
    ],
)
def test_wrong_options_are_refused_where_they_are_written(wrong, told):
    with pytest.raises(InvalidError, match=told):
        ExecutionOptions(**wrong)


def test_settings_that_change_are_taken_on(manager, runtime):
    assert manager.execute(script("503, ok:hello"), CLAUDE) == "hello"
    runtime.configure(Policy(attempts=1), {})
    with pytest.raises(Exception, match="503"):
        manager.execute(script("503, ok"), CLAUDE)
