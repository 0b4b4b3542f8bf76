"""One circuit by its name, for people and programs that read it or change it by hand (S1-13).

Invariant: a handle holds no state. Its circuit belongs to the runtime and is shared with every call to the name (S1-27).
Reading a circuit creates nothing: a circuit gets its settings from the first call, or from the first change by hand.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast.events import CircuitState
from holdfast.policies.circuit import BreakerMetrics, Circuit, Permit, Verdict
from holdfast.policies.policy import DEFAULT_CIRCUIT, DOCUMENT, DOCUMENT_CIRCUIT, INTERACTIVE
from holdfast.runtime.targets.target_state import TargetState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.faults import Code
    from holdfast.policies import Policy
    from holdfast.policies.target import Target
    from holdfast.runtime.runtime import Runtime

    P = ParamSpec("P")

__all__ = ["CircuitHandle", "policy_for"]

T = TypeVar("T")


def policy_for(runtime: Runtime, target: Target) -> Policy:
    """Return the configured policy of a target. The numbers of the documents hold for what is not configured."""
    policy = runtime.policy_for(target)
    if policy == INTERACTIVE:
        return DOCUMENT
    return policy.replace(circuit=DOCUMENT_CIRCUIT) if policy.circuit is DEFAULT_CIRCUIT else policy


class CircuitHandle:
    """The circuit of one name, such as `provider:claude`, `agent:builder` or `tool:bash`. Safe to use from any thread.

    `ResilienceManager.get_circuit` makes one:

        from holdfast.manager import ResilienceManager

        circuit = ResilienceManager().get_circuit("provider:claude")
        print(circuit.state, circuit.failures)
        circuit.reset()
    """

    __slots__ = ("_execute", "_runtime", "name", "target")

    def __init__(self, name: str, target: Target, runtime: Runtime, execute: Callable[..., Any]) -> None:
        self.name = name
        self.target = target
        self._runtime = runtime
        self._execute = execute

    @property
    def state(self) -> CircuitState:
        """Whether it is closed, open or half-open now."""
        state = self._runtime.registry.known(self.name)
        return CircuitState.CLOSED if state is None else state.circuit_state(self._runtime.clock.monotonic())

    @property
    def failures(self) -> int:
        """How many failed calls it counted."""
        return self.metrics().failures

    @property
    def successes(self) -> int:
        """How many successful calls it counted."""
        return self.metrics().successes

    @property
    def last_failure(self) -> float | None:
        """When it counted its last failure, in seconds of the wall clock; None if it counted none."""
        # Circuits keep monotonic times, which mean nothing to people.
        at = self.metrics().last_failure
        clock = self._runtime.clock
        return None if at is None else clock.wall() - (clock.monotonic() - at)

    def metrics(self) -> BreakerMetrics:
        """Return its counts and times."""
        state = self._runtime.registry.known(self.name)
        if state is None:
            # No call has used this name yet. The metrics of a new circuit are all zero; that circuit is not stored.
            return TargetState(self.name).metrics(self._runtime.clock.monotonic())
        return state.metrics(self._runtime.clock.monotonic())

    @overload
    def execute(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def execute(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def execute(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` once, without retries, and count how it ends; if `fn` is async, await the result.

        Raises `CircuitOpenError` without a call while the circuit is open. An error of `fn` passes through unchanged.
        """
        return self._execute(self, partial(fn, *args, **kwargs))

    def record_success(self) -> None:
        """Count a successful call that was made elsewhere. An open circuit ignores it."""
        self._record(Verdict.SUCCESS, None)

    def record_failure(self, code: Code | None = None) -> None:
        """Count a failed call that was made elsewhere. An open circuit ignores it."""
        self._record(Verdict.FAILURE, code)

    def reset(self) -> None:
        """Close it and forget the recent failures; totals stay."""
        self._change(TargetState.reset)

    def force_open(self) -> None:
        """Hold it open. It stays open until `release` is called as often as this was."""
        self._change(TargetState.force_open)

    def release(self) -> None:
        """Undo one `force_open`."""
        self._change(TargetState.release)

    def circuit_for(self, policy: Policy) -> Circuit | None:
        """Return the settings it has; the policy's if it has none yet."""
        state = self._runtime.registry.known(self.name)
        return policy.circuit if state is None or state.circuit is None else state.circuit

    def configure(self, circuit: Circuit) -> None:
        """Give it its settings, as a first call would. Raises `InvalidError` if it has others already."""
        policy = policy_for(self._runtime, self.target).replace(circuit=circuit)
        self._runtime.registry.get(self.name).serve(policy, self._runtime.clock.monotonic())

    def _record(self, verdict: Verdict, code: Code | None) -> None:
        now = self._runtime.clock.monotonic()
        state = self._serving(now)
        if state.rejects(now):
            # A probe's outcome must come from a call that the circuit admitted.
            return
        permit = state.admit(now, state.take_turn("normal"))
        if isinstance(permit, Permit):
            state.settle(permit, verdict, now, code)
        self._runtime.report_transitions(state)

    def _change(self, change: Callable[[TargetState, float], None]) -> None:
        now = self._runtime.clock.monotonic()
        state = self._serving(now)
        change(state, now)
        self._runtime.report_transitions(state)

    def _serving(self, now: float) -> TargetState:
        """Return the target's state. If no call has used the target yet, give it the settings that a first call would give it."""
        state = self._runtime.registry.get(self.name)
        if state.circuit is None:
            state.serve(policy_for(self._runtime, self.target), now)
        return state

    def __repr__(self) -> str:
        return f"<circuit {self.name}: {self.state}>"
