"""One circuit by name, for people and programs that look at it or take it in hand (S1-13).

Invariant: a handle holds no state. The circuit behind it is the runtime's, shared with every call to its name (S1-27), and
looking at it changes nothing: it gets its settings with the first call.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast.events import CircuitState
from holdfast.policies.circuit import Breaker, BreakerMetrics, Circuit, Permit, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.faults import Code
    from holdfast.policies import Policy
    from holdfast.policies.target import Target
    from holdfast.runtime.registry import TargetState
    from holdfast.runtime.runtime import Runtime

    P = ParamSpec("P")

__all__ = ["CircuitHandle"]

T = TypeVar("T")


class CircuitHandle:
    """The circuit `name`: `provider:claude`, `agent:builder`, `tool:bash`. Safe to use from any thread."""

    __slots__ = ("_execute", "_runtime", "name", "target")

    def __init__(self, name: str, target: Target, runtime: Runtime, execute: Callable[..., Any]) -> None:
        self.name = name
        self.target = target
        self._runtime = runtime
        self._execute = execute

    @property
    def state(self) -> CircuitState:
        state = self._runtime.registry.known(self.name)
        return CircuitState.CLOSED if state is None else state.circuit_state(self._runtime.clock.monotonic())

    @property
    def failures(self) -> int:
        """Calls that failed and were counted."""
        return self.metrics().failures

    @property
    def successes(self) -> int:
        """Calls that went well."""
        return self.metrics().successes

    @property
    def last_failure(self) -> float | None:
        """Wall clock of the last failure that was counted."""
        at = self.metrics().last_failure
        clock = self._runtime.clock
        return None if at is None else clock.wall() - (clock.monotonic() - at)

    def metrics(self) -> BreakerMetrics:
        """Return how it is doing, in numbers (N1-6)."""
        state = self._runtime.registry.known(self.name)
        if state is None:
            return Breaker(Circuit(), self.name).metrics(self._runtime.clock.monotonic())
        return state.metrics(self._runtime.clock.monotonic())

    @overload
    def execute(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def execute(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def execute(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` once if the circuit allows it, and count how it ends; await the result where `fn` is async."""
        return self._execute(self, partial(fn, *args, **kwargs))

    def record_success(self) -> None:
        """Count a call that was made elsewhere and went well. An open circuit takes no notice."""
        self._record(Verdict.SUCCESS, None)

    def record_failure(self, code: Code | None = None) -> None:
        """Count a call that was made elsewhere and failed. An open circuit takes no notice."""
        self._record(Verdict.FAILURE, code)

    def reset(self) -> None:
        """Close it and forget what led here; totals stay."""
        self._change(Breaker.reset)

    def force_open(self) -> None:
        """Hold it open until it is released as often."""
        self._change(Breaker.force_open)

    def release(self) -> None:
        """Take one `force_open` back."""
        self._change(Breaker.release)

    def circuit_for(self, policy: Policy) -> Circuit | None:
        """Return the settings it has, or else the policy's."""
        state = self._runtime.registry.known(self.name)
        return policy.circuit if state is None or state.circuit is None else state.circuit

    def _record(self, verdict: Verdict, code: Code | None) -> None:
        now = self._runtime.clock.monotonic()
        state = self._serving(now)
        if state.rejects(now):
            return
        permit = state.admit(now)
        if isinstance(permit, Permit):
            state.settle(permit, verdict, now, code)
        self._runtime.report_transitions(state)

    def _change(self, change: Callable[[Breaker, float], None]) -> None:
        now = self._runtime.clock.monotonic()
        state = self._serving(now)
        state.change_circuit(change, now)
        self._runtime.report_transitions(state)

    def _serving(self, now: float) -> TargetState:
        """Return the target's state, with the settings it would get from the first call."""
        state = self._runtime.registry.get(self.name)
        if state.circuit is None:
            state.serve(self._runtime.policy_for(self.target), now)
        return state

    def __repr__(self) -> str:
        return f"<circuit {self.name}: {self.state}>"
