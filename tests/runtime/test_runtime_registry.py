"""The registry of targets: one state per name, used through its methods only."""

from __future__ import annotations

import pytest

from holdfast import Circuit, Fault, InvalidError, Policy, Quota
from holdfast.events import CircuitState
from holdfast.policies.circuit import Permit, Rejection, Verdict
from holdfast.policies.queue import QueueTurn
from holdfast.runtime.targets.registry import Registry, TargetState

OPENS_AT_ONCE = Policy(circuit=Circuit(failures=1, open_for=10))


def state_with(policy: Policy) -> TargetState:
    state = TargetState("provider:claude")
    state.serve(policy, now=0.0)
    return state


TURN = QueueTurn("normal", 0, 0)


def open_circuit(state: TargetState) -> None:
    permit = state.admit(0.0, TURN)
    assert isinstance(permit, Permit)
    assert state.settle(permit, Verdict.FAILURE, 0.0), "the circuit changed"


def test_FR9_an_open_circuit_never_hands_out_a_rejection_as_a_permit() -> None:
    state = state_with(OPENS_AT_ONCE)
    assert isinstance(state.admit_if_closed(0.0), Permit)
    open_circuit(state)
    assert state.admit_if_closed(1.0) is None
    assert isinstance(state.admit(1.0, TURN), Rejection)


def test_the_circuit_is_read_and_changed_through_methods_only() -> None:
    state = state_with(OPENS_AT_ONCE)
    assert state.is_closed
    assert state.rejects_until is None
    open_circuit(state)
    assert (state.rejects_until, state.rejects(9.9), state.rejects(10.0)) == (10.0, True, False)
    assert [change.to for change in state.take_transitions()] == [CircuitState.OPEN]
    state.reset(1.0)
    assert state.circuit_state(1.0) is CircuitState.CLOSED
    state.force_open(1.0)
    assert state.is_held
    assert state.rejects_until == float("inf")


def test_only_the_first_caller_that_waits_must_return_at_once() -> None:
    state = state_with(OPENS_AT_ONCE)
    open_circuit(state)
    rejection = state.admit(1.0, TURN)
    assert isinstance(rejection, Rejection)
    assert [state.is_first_to_wait(rejection) for _ in range(3)] == [True, False, False]


def test_a_failed_probe_is_the_first_to_wait_for_the_next_one() -> None:
    state = state_with(OPENS_AT_ONCE)
    open_circuit(state)
    probe = state.admit(10.0, TURN)
    assert isinstance(probe, Permit)
    assert probe.probe
    state.settle(probe, Verdict.FAILURE, 10.5)
    left = state.reopened_for(10.5)
    assert left is not None
    assert left > 0
    rejection = state.admit(11.0, TURN)
    assert isinstance(rejection, Rejection)
    assert not state.is_first_to_wait(rejection)


def test_the_fault_of_a_rejection_is_kept_for_all_callers() -> None:
    state = state_with(OPENS_AT_ONCE)
    open_circuit(state)
    rejection = state.admit(1.0, TURN)
    assert isinstance(rejection, Rejection)
    assert state.fault_of(rejection) is None
    fault = Fault.of("CIRCUIT_OPEN")
    state.keep_fault(rejection, fault)
    assert state.fault_of(rejection) is fault
    state.reset(2.0)
    open_circuit(state)
    other = state.admit(3.0, TURN)
    assert isinstance(other, Rejection)
    assert state.fault_of(other) is None


def test_a_target_without_a_quota_grants_every_retry() -> None:
    assert state_with(Policy()).withdraw_retry(0.0)
    state = state_with(Policy(retry_quota=Quota(share=0, floor=1)))
    assert [state.withdraw_retry(0.0) for _ in range(2)] == [True, False]
    state.return_retries(0.0, 1)
    assert state.withdraw_retry(0.0)


def test_R86_two_policies_that_disagree_about_one_name_are_a_mistake_until_a_reload() -> None:
    state = state_with(OPENS_AT_ONCE)
    other = Policy(circuit=Circuit(failures=7))
    with pytest.raises(InvalidError, match="what it already has"):
        state.serve(other, 0.0)
    state.renew()
    assert not state.has_current_circuit
    state.serve(other, 0.0)
    assert state.circuit == other.circuit


def test_a_full_registry_drops_idle_closed_targets_first() -> None:
    evictions: list[int] = []
    registry = Registry(10, lambda: evictions.append(1))
    opened = registry.get("opened")
    opened.serve(OPENS_AT_ONCE, 0.0)
    open_circuit(opened)
    for number in range(9):
        registry.get(f"n{number}").admit(float(number + 1), TURN)
    registry.get("one too many")
    assert evictions == [1]
    assert registry.known("opened") is opened, "an open circuit is knowledge"
    assert registry.known("n0") is None
    assert registry.opens() == 1


def test_a_state_without_a_name_is_not_found() -> None:
    registry = Registry(10, lambda: None)
    state = registry.unnamed("function:answer")
    assert list(registry) == []
    lock = state._lock
    registry.after_fork()
    assert state._lock is not lock, "but a fork replaces its lock"


def test_a_permit_that_is_given_back_while_this_thread_holds_the_lock_is_settled_later() -> None:
    """The garbage collector may close a dropped stream in the middle of any change of a circuit."""
    state = state_with(Policy(circuit=Circuit(failures=1, open_for=10, probes=1)))
    open_circuit(state)
    probe = state.admit(10.0, TURN)
    assert isinstance(probe, Permit)

    with state._lock:
        # If `settle` waited for the lock, the test would never end.
        assert not state.settle(probe, Verdict.IGNORED, 11.0)
        assert state._breaker.ignored == 0, "a change that is half done must not be changed from within"
    assert isinstance(state.admit(11.0, TURN), Permit), "the place of the probe is free again"
    assert state.metrics(11.0).ignored == 1


def test_a_forked_worker_forgets_the_calls_that_wait_in_its_parent() -> None:
    state = state_with(Policy())
    woken: list[str] = []
    state.join(TURN, lambda: woken.append("a call of the parent"))
    state.after_fork()
    permit = state.admit_if_closed(0.0)
    assert permit is not None
    state.succeed(permit, 1.0)
    assert woken == []


def test_a_circuit_that_is_no_longer_graded_has_no_pace() -> None:
    state = state_with(Policy())
    state.expect_limits()
    assert state.admit_if_closed(0.0) is None, "calls are counted"
    state.renew()
    state.serve(Policy(circuit=Circuit()), 0.0)
    assert isinstance(state.admit_if_closed(0.0), Permit)
