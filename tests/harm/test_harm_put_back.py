"""The instrument is sensitive: bugs that Holdfast once had are put back one at a time, and a drawn world shows each of them.

A bug is put back by a patch of a small seam that brings its harm back, not its old code. A violation counts as found only if the
unchanged code does not show it in the same world. Some patches need a second change beside the bug itself; what that one
breaks alone (`CONTROLS`) does not count either.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.harm.oracle import harms
from benchmarks.harm.world import draw

from holdfast.faults import Schedule, Scope
from holdfast.integrations.clients.pool import KeyChoice
from holdfast.policies import pace
from holdfast.policies.circuit.machine import Breaker
from holdfast.policies.decide import TIME_LIMITS, Decider, GiveUp, Reason
from holdfast.policies.early import EarlyCalls
from holdfast.policies.models.usage import usage_of
from holdfast.policies.pace import Pace
from holdfast.runtime.budgets.charges import Charges
from holdfast.runtime.failures import shown_request
from holdfast.runtime.fallbacks import fallback
from holdfast.runtime.operation import facts, operation
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.streams.flow import Flow
from holdfast.runtime.targets.limiter import Limiter

Put = Callable[..., None]
"""`MonkeyPatch.setattr`."""


def wide_circuit(put: Put, counts: Callable[[Any], bool]) -> None:
    """Count such failures on the circuit of the whole provider, which holds back every call while it is open."""
    counted_on, obeys, holds_back = Plan._counted_on, Plan.obeys, Breaker.holds_back

    def counted(plan, fault, took):
        return plan.state if plan.scopes[0] is Scope.PROVIDER and counts(fault) else counted_on(plan, fault, took)

    put(Plan, "_counted_on", counted)
    put(Plan, "obeys", lambda plan, state: obeys(plan, state) or (plan.breaks and state is plan.state))
    put(Breaker, "holds_back", lambda self, tries: self.name.startswith("provider:") or holds_back(self, tries))


def nobody_is_early(put: Put) -> None:
    """Every call waits for its turn, whatever became of those that did not."""
    put(EarlyCalls, "may_start", lambda *_, **__: False)
    put(EarlyCalls, "longest_wait", lambda *_: float("inf"))


def xr1(put: Put) -> None:
    """A learned limit: four times the slowest of the answers so far, at least 10 s."""
    known = weakref.WeakKeyDictionary()
    limit_of, succeeded = operation.limit_of_attempt, Operation.succeeded

    def limit(op):
        times, given = known.get(op.plan.narrow, []), limit_of(op)
        if len(times) < 10:
            return given
        least, factor = (10.0, 4.0) if len(times) >= 50 else (60.0, 20.0)
        learned = max(least, factor * max(times))
        return learned if given is None else min(given, learned)

    def ended(op, value=None):
        known.setdefault(op.plan.narrow, []).append(op.plan.monotonic() - op.attempt_started)
        succeeded(op, value)

    put(operation, "limit_of_attempt", limit)
    put(Operation, "succeeded", ended)


def xr2_usage(put: Put) -> None:
    """Streams of OpenAI do not report their usage, and what reports none costs nothing."""
    put(KeyChoice, "request_usage", lambda _, dialect: dialect)
    charge = Charges._charge

    def free(self, answer, *, again):
        if usage_of(answer) is None:
            self.release()
        else:
            charge(self, answer, again=again)

    put(Charges, "_charge", free)


def xr2_reserve(put: Put) -> None:
    """Nothing is reserved."""
    put(Charges, "reserves", property(lambda _: False))


def xr3(put: Put) -> None:
    wide_circuit(put, lambda fault: fault.schedule is not Schedule.RATE_LIMIT and fault.code not in TIME_LIMITS)


def xr4(put: Put) -> None:
    ends = Flow.ends
    put(Flow, "ends", lambda flow: ends(flow) if flow.fresh else None)


def xr6(put: Put) -> None:
    acquire = Limiter.acquire_async
    put(
        Limiter,
        "acquire_async",
        lambda self, runtime, until, check, _, settings: acquire(self, runtime, until, check, settings=settings),
    )


def xr8(put: Put) -> None:
    """A recovery around a recovering client cuts it after 60 s, which nobody named."""
    narrow = Operation._narrow

    def cut(op, around):
        narrow(op, around)
        if isinstance(around, Operation) and around.adapter is None:
            ends = around.attempt_started + 60.0
            op.cut_at = ends if op.cut_at is None else min(ends, op.cut_at)

    put(Operation, "_narrow", cut)


def xr9_hedge(put: Put) -> None:
    look_up = Plan._look_up_limits

    def without(plan, runtime, policy):
        look_up(plan, runtime, policy)
        plan.hedge = None if plan.through_client else plan.hedge

    put(Plan, "_look_up_limits", without)


def xr9_post(put: Put) -> None:
    look_up = Plan.look_up

    def blind(plan):
        look_up(plan)
        plan.watches_requests = False

    put(Plan, "look_up", blind)


def wrapped_post(put: Put) -> None:
    """Only the outermost error shows a request."""
    put(shown_request, "exceptions_of", lambda error: iter((error,)))


def xr9_retry_after(put: Put) -> None:
    put(Decider, "_is_too_quick", lambda *_, **__: False)


def xr11(put: Put) -> None:
    put(fallback, "_LATE", frozenset())


def xr14(put: Put) -> None:
    """A burst opens at 100 calls a second, whatever is announced."""
    nobody_is_early(put)
    put(pace, "OPEN_PER_S", 100.0)
    put(pace, "OPEN_GROWTH", 0.7)
    put(Pace, "is_open", property(lambda _: False))


def xr15(put: Put) -> None:
    """Every limit is the key's."""
    nobody_is_early(put)
    look_up, counted_on, obeys = Plan._look_up_states, Plan._counted_on, Plan.obeys

    def key_of(plan):
        return next((state for state, scope in plan.other_states if scope is Scope.CREDENTIAL), None)

    def counted(plan, fault, took):
        state = counted_on(plan, fault, took)
        return key_of(plan) or state if fault.schedule is Schedule.RATE_LIMIT else state

    def look(plan, runtime, policy):
        look_up(plan, runtime, policy)
        plan.limited_state = key_of(plan) or plan.limited_state

    put(Plan, "_look_up_states", look)
    put(Plan, "_counted_on", counted)
    put(Plan, "obeys", lambda plan, state: obeys(plan, state) or (plan.breaks and state is key_of(plan)))


def xr16(put: Put) -> None:
    """A learned pace rises with calls alone, and a call whose turn comes too late is rejected unsent."""
    nobody_is_early(put)
    put(pace, "CROWD_S", float("inf"))
    put(Pace, "surpassed", lambda _: None)
    put(Decider, "_go_at_once", lambda _: GiveUp(Reason.DEADLINE))


def xr17(put: Put) -> None:
    put(facts, "least_attempts_of", lambda _: 1)


def xr18(put: Put) -> None:
    """A caller's own limit counts on the provider's circuit."""
    wide_circuit(put, lambda fault: fault.code in TIME_LIMITS)


def nobody_counts(put: Put) -> None:
    """Calls obey the provider's circuit, which counts no more than it does now."""
    wide_circuit(put, lambda _: False)


CONTROLS: dict[Any, Any] = {xr3: nobody_counts, xr18: nobody_counts}

SHOWN = [
    (xr1, 52, "answered"),
    (xr2_usage, 4, "budget"),
    (xr2_reserve, 4, "budget"),
    (xr3, 155, "answered"),
    (xr4, 125, "deadline"),
    (xr6, 295, "p50"),
    (xr8, 45, "answered"),
    (xr9_hedge, 60, "p95"),
    (xr9_post, 114, "effects"),
    (wrapped_post, 114, "effects"),
    (xr9_retry_after, 21, "flood"),
    (xr11, 191, "error"),
    (xr14, 28, "p50"),
    (xr15, 25, "p50"),
    (xr16, 79, "answered"),
    (xr17, 8, "answered"),
    (xr18, 204, "p95"),
]
"""A seed that shows the bug, and a bound that it breaks there."""


def shown(seed: int, patch: Any = None) -> set[tuple[str, str]]:
    with pytest.MonkeyPatch.context() as context:
        if patch is not None:
            patch(context.setattr)
        return {(one.bound, one.where) for one in harms(draw(seed))}


@pytest.mark.parametrize(("bug", "seed", "bound"), SHOWN, ids=[bug.__name__ for bug, _, _ in SHOWN])
def test_a_bug_that_is_put_back_is_found(bug: Any, seed: int, bound: str):
    known = shown(seed) | (shown(seed, CONTROLS[bug]) if bug in CONTROLS else set())
    assert bound in {name for name, _ in shown(seed, bug) - known}


@pytest.mark.soak
@pytest.mark.parametrize(("bug", "seed", "bound"), SHOWN, ids=[bug.__name__ for bug, _, _ in SHOWN])
def test_a_bug_that_is_put_back_is_found_within_500_worlds(bug: Any, seed: int, bound: str):
    """The hunt itself, without the known seed."""
    assert any(
        found - shown(number) - (shown(number, CONTROLS[bug]) if bug in CONTROLS else set())
        for number in range(1, 501)
        if (found := shown(number, bug))
    )
