"""An integration proposes a decision to the operation. Deadline, budget, quota and unsafe effects still overrule it."""

from __future__ import annotations

import pytest

from holdfast import Budget, HoldfastError, OutcomeUnknownError, Policy, Quota, Runtime
from holdfast.faults import Fault
from holdfast.policies.decide import GiveUp, Reason, Retry
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import Plan
from holdfast.testing import VirtualClock, use_runtime


@pytest.fixture(autouse=True)
def runtime():
    with use_runtime(Runtime(clock=VirtualClock())) as runtime:
        yield runtime


def begun(policy=None, **options):
    op = Operation(Plan("shop", policy, **options))
    op.admit()
    return op


def test_a_proposal_wins_over_the_policy():
    op = begun()
    assert op.failed(KeyError("a programming error"), Retry(2.5, 9)) == 2.5
    op.admit()
    assert op.failed(TimeoutError("worth a retry"), GiveUp(Reason.UNWANTED)) is None
    assert (op.attempts, op.reason) == (2, Reason.UNWANTED)


def test_a_proposal_decides_about_an_unacceptable_answer_too():
    op = begun()
    assert op.unacceptable(Fault.of("PROVIDER_OUTPUT_INVALID"), Retry(1.0, 9)) == 1.0
    op.admit()
    with pytest.raises(HoldfastError):
        op.unacceptable(Fault.of("PROVIDER_OUTPUT_INVALID"), GiveUp(Reason.ATTEMPTS))


def test_a_proposed_wait_never_ends_after_the_deadline():
    op = begun(Policy(timeout=None, deadline=10.0))
    assert op.failed(TimeoutError(), Retry(9.9, 9)) == 9.9
    op.admit()
    assert op.failed(TimeoutError(), Retry(10.0, 9)) is None
    assert op.reason is Reason.DEADLINE


def test_a_spent_budget_and_a_spent_quota_overrule_a_proposed_retry():
    with Budget(attempts=1):
        op = begun()
        assert op.failed(TimeoutError(), Retry(1.0, 9)) is None
        assert op.reason is Reason.BUDGET
    assert AMBIENT.get() is None
    op = begun(Policy(retry_quota=Quota(share=0, floor=0)))
    assert op.failed(TimeoutError(), Retry(1.0, 9)) is None
    assert op.reason is Reason.QUOTA


def test_a_proposal_never_repeats_an_unsafe_call_that_may_have_happened():
    op = begun(effect="unsafe")
    with pytest.raises(OutcomeUnknownError):
        op.failed(TimeoutError("sent, no answer"), Retry(1.0, 9))
