"""Circuits by name: what a handle shows and changes, and who shares the circuit (S1-13, S1-22, S1-27)."""

from __future__ import annotations

import asyncio

import pytest
from manager_kit import CLAUDE, reset_by_peer

from holdfast import INTERACTIVE, PATIENT, Circuit, CircuitOpenError, InvalidError, Policy, Runtime, recover
from holdfast.events import CircuitState
from holdfast.manager import ExecutionOptions, ResilienceManager
from holdfast.policies.circuit import GRADED, PROVIDER
from holdfast.testing import Capture, VirtualClock, script


def fail_until_open(manager: ResilienceManager, times: int = 5) -> None:
    once = ExecutionOptions(provider="claude", skip_retry=True)
    for _ in range(times):
        with pytest.raises(ConnectionResetError):
            manager.execute(reset_by_peer, once)


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


def test_R62_a_circuit_forced_open_stays_open_until_it_is_released(manager, runtime):
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


def test_reading_a_circuit_creates_none(manager):
    assert manager.get_circuit("claude").state == "closed"
    assert manager.get_circuit("claude").metrics().total_calls == 0
    assert manager.get_circuit_states() == {}


def test_S1_27_circuits_are_shared_with_every_manager_and_every_recovery(manager, runtime):
    fail_until_open(manager)
    with pytest.raises(CircuitOpenError):
        ResilienceManager(runtime).execute(lambda: 1, CLAUDE)
    # A recovery waits for the open circuit, because nothing else would answer.
    opened = runtime.clock.monotonic()
    assert recover("claude", runtime=runtime).call(len, "x") == 1
    assert runtime.clock.monotonic() == opened + 30
    assert manager.get_circuit("claude").state == "closed"


@pytest.mark.parametrize("first", ["manager", "recovery"])
def test_a_manager_and_a_recovery_without_settings_share_the_circuit_of_the_first(manager, runtime, first):
    calls = {
        "manager": lambda: manager.execute(lambda: 1, CLAUDE),
        "recovery": lambda: recover("claude", runtime=runtime).call(len, "x"),
    }
    assert calls.pop(first)() == 1
    (second,) = calls.values()
    assert second() == 1
    expected = PROVIDER if first == "manager" else GRADED
    assert runtime.registry.get("provider:claude").circuit == expected
    # A reload that names no circuit changes neither.
    runtime.configure(INTERACTIVE, {})
    assert second() == 1
    assert manager.execute(lambda: 1, CLAUDE) == 1
    assert runtime.registry.get("provider:claude").circuit == expected


def test_each_name_has_its_own_configured_circuit_or_that_of_the_documents(manager, runtime):
    nine = Circuit(failures=9, rate=None)
    runtime.configure(PATIENT, {"provider:claude": Policy(circuit=nine)})
    assert manager.execute(lambda: 1, ExecutionOptions(provider="claude", agent="builder")) == 1
    assert runtime.registry.get("provider:claude").circuit == nine
    assert runtime.registry.get("agent:builder").circuit == PROVIDER


def test_a_handle_does_not_wait_for_its_circuit_whatever_is_configured(manager, runtime):
    runtime.configure(PATIENT, {})
    circuit = manager.get_circuit("claude")
    circuit.force_open()
    with pytest.raises(CircuitOpenError):
        circuit.execute(len, "x")
    assert runtime.clock.monotonic() == 0


def test_a_circuit_keeps_the_settings_that_another_recovery_brought(manager, runtime):
    recover("claude", Policy(circuit=Circuit(failures=2, rate=None)), runtime=runtime).call(len, "x")
    fail_until_open(manager, 2)
    assert manager.get_circuit("claude").state == "open"


def test_the_registry_is_bounded():
    manager = ResilienceManager(Runtime(clock=VirtualClock(), most_circuits=10))
    for number in range(50):
        manager.execute(lambda: 1, ExecutionOptions(provider=f"p{number}"))
    assert len(manager.get_circuit_states()) <= 10


def test_R62_a_full_registry_keeps_a_circuit_that_is_forced_open():
    manager = ResilienceManager(Runtime(clock=VirtualClock(), most_circuits=3))
    manager.get_circuit("held").force_open()
    for number in range(10):
        for _ in range(5):
            manager.get_circuit(f"p{number}").record_failure()
    assert manager.get_circuit("held").state == "open"


def test_a_full_registry_drops_the_circuits_idle_longest_and_open_ones_last():
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
