"""`ResilienceManager`: execution, abort, events and the switch (S1-22, N1-8, N1-9)."""

from __future__ import annotations

import asyncio
import threading

import pytest
from manager_kit import CLAUDE, SECONDS, reset_by_peer

from holdfast import Circuit, CircuitOpenError, Err, InvalidError, Ok, Policy, Runtime
from holdfast.events import Event, Retry
from holdfast.manager import (
    EVENT_NAMES,
    AbortedError,
    ExecutionOptions,
    FallbackChain,
    FallbackStep,
    ResilienceManager,
)
from holdfast.testing import Capture, VirtualClock, run, script

# --- execution (S1-22, N1-8) ---


def test_N1_9_backoff_grows_and_recovery_is_an_event(manager, runtime):
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


def test_execute_async_takes_any_function_that_returns_an_awaitable(manager, runtime):
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


def test_N1_8_skip_circuit_breaker_neither_consults_nor_counts(manager):
    circuit = manager.get_circuit("claude")
    circuit.force_open()
    alone = ExecutionOptions(provider="claude", skip_circuit_breaker=True, skip_retry=True)
    assert manager.execute(lambda: 1, alone) == 1
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, alone)
    assert (circuit.failures, circuit.successes, circuit.metrics().rejected) == (0, 0, 0)


def test_N1_8_an_execution_may_bring_circuit_settings(manager):
    options = ExecutionOptions(provider="claude", skip_retry=True, circuit_breaker=Circuit(failures=1, rate=None))
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, options)
    with pytest.raises(CircuitOpenError):
        manager.execute(lambda: 1, options)


def test_agent_and_provider_have_a_circuit_each(manager):
    options = ExecutionOptions(agent="builder", provider="claude", skip_retry=True)
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, options)
    assert manager.get_circuit_states() == {"agent:builder": "closed", "provider:claude": "closed"}


def test_operations_without_a_target_share_no_circuit(manager):
    for _ in range(20):
        with pytest.raises(ConnectionResetError):
            manager.execute(reset_by_peer)
    assert manager.execute(lambda: 1) == 1


# --- abort (N1-5, N1-9) ---


def test_N1_9_an_abort_is_a_cancellation_and_not_a_timeout(manager, runtime):
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


def test_after_an_abort_no_fallback_is_called(manager, runtime):
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


# --- the switch (S1-25) and settings ---


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


def test_changed_settings_are_used_from_the_next_call(manager, runtime):
    assert manager.execute(script("503, ok:hello"), CLAUDE) == "hello"
    runtime.configure(Policy(attempts=1), {})
    with pytest.raises(Exception, match="503"):
        manager.execute(script("503, ok"), CLAUDE)


def test_S1_8_without_settings_an_operation_has_three_attempts_and_waits_for_no_circuit(manager, runtime):
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, CLAUDE)
    assert (manager.get_metrics().total_attempts, runtime.clock.monotonic()) == (3, 1 + 2)
    limited = script("429*9")
    with pytest.raises(Exception, match="429"):
        manager.execute(limited, ExecutionOptions(provider="openai"))
    assert (limited.calls, runtime.clock.monotonic()) == (6, 3 + 5 + 10 + 20 + 40 + 80)


def test_configured_numbers_win_over_those_of_the_documents(manager, runtime):
    runtime.configure(Policy(patience=60), {})
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, ExecutionOptions(provider="claude", skip_circuit_breaker=True))
    assert manager.get_metrics().total_attempts > 3
    assert 50 < runtime.clock.monotonic() < 60
