"""The retry decision as arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CODES, Backoff, Fault, Policy, Tries
from holdfast.policies.effect import EFFECTS
from holdfast.policies.retry import LONGEST_CIRCUIT_WAIT_S, NEXT_PROBE_S, RETURN_SPREAD, Again, GiveUp, Reason, Retrying
from holdfast.testing import Midpoint, Scripted, seeded

RESET = Fault.of("CONN_RESET")
LIMITED = Fault.of("PROVIDER_RATE_LIMITED")


def decide(
    fault: Fault,
    policy: Policy | None = None,
    *,
    attempts: int = 1,
    deadline: float | None = None,
    effect: Any = None,
    rng: Any = None,
    prompt: bool = False,
) -> Any:
    retrying = Retrying(policy or Policy())
    retrying.attempts = attempts
    return retrying.decide(fault, now=0.0, deadline=deadline, rng=rng or Midpoint(), effect=effect, prompt=prompt)


def waits(policy: Policy, *faults: Fault, deadline: float | None = None) -> list[float]:
    """Fail with one fault after the other; return the waits until it gives up."""
    retrying = Retrying(policy)
    out: list[float] = []
    now = 0.0
    for fault in faults:
        retrying.attempts += 1
        decision = retrying.decide(fault, now=now, deadline=deadline, rng=Midpoint(), effect=None)
        if isinstance(decision, GiveUp):
            break
        out.append(decision.delay)
        now += decision.delay
    return out


def test_R1_three_attempts_are_two_waits() -> None:
    assert waits(Policy(), *[RESET] * 9) == [1, 2]


def test_S2_14_rate_limits_have_six_attempts_of_their_own() -> None:
    assert waits(Policy(), *[LIMITED] * 9) == [5, 10, 20, 40, 80]


def test_each_schedule_counts_its_own_failures() -> None:
    """A rate limit after two blips starts at its first wait."""
    assert waits(Policy(), RESET, RESET, LIMITED, LIMITED) == [1, 2, 5, 10]


def test_R2_what_is_permanent_is_given_up_at_once() -> None:
    assert decide(Fault.of("AUTH_FAILED")) == GiveUp(Reason.PERMANENT)


def test_R11_a_wait_that_would_end_at_the_deadline_is_not_begun() -> None:
    assert decide(RESET, deadline=1.0) == GiveUp(Reason.DEADLINE)
    assert decide(RESET, deadline=1.001) == Again(1.0, 3)


def test_R11_used_up_attempts_are_told_before_the_deadline() -> None:
    assert decide(RESET, attempts=3, deadline=0.1) == GiveUp(Reason.ATTEMPTS)


def test_R29_what_the_other_side_asks_for_is_never_cut_short() -> None:
    asked = Fault.of("PROVIDER_RATE_LIMITED", retry_after=30.0)
    assert decide(asked) == Again(30.0, 6, asked=True)
    assert decide(asked, Policy(backoff=Backoff(cap=1))) == Again(30.0, 6, asked=True)
    for draw in (0.0, 0.5, 0.999):
        delay = decide(asked, Policy(spread=0.2), rng=Scripted(draw)).delay
        assert 30 <= delay <= 36


def test_R31_beyond_what_is_allowed_it_is_given_up_at_once() -> None:
    asked = Fault.of("PROVIDER_RATE_LIMITED", retry_after=901.0)
    assert decide(asked) == GiveUp(Reason.RETRY_AFTER)
    assert decide(asked, Policy(max_retry_after=3600)) == Again(901.0, 6, asked=True)
    assert decide(asked, Policy(max_retry_after=0)) == GiveUp(Reason.RETRY_AFTER)


def test_R31_how_long_to_wait_is_the_policys_to_say_although_the_classifier_would_not() -> None:
    """The classifier calls a failure whose wait is over 15 minutes not retryable."""
    judged = Fault.of("PROVIDER_RATE_LIMITED", retry_after=1800.0, retryable=False)
    assert decide(judged) == GiveUp(Reason.RETRY_AFTER)
    assert decide(judged, Policy(max_retry_after=3600)) == Again(1800.0, 6, asked=True)
    short = Fault.of("PROVIDER_RATE_LIMITED", retry_after=18.0, retryable=False)
    assert decide(short, Policy(max_retry_after=3600)) == GiveUp(Reason.PERMANENT)
    permanent = Fault.of("PROVIDER_BILLING", retry_after=1800.0, retryable=False)
    assert decide(permanent, Policy(max_retry_after=3600)) == GiveUp(Reason.PERMANENT)


def test_R34_an_open_circuit_is_waited_for_only_by_the_patient() -> None:
    refused = Fault.of("CIRCUIT_OPEN", retry_after=20.0)
    assert decide(refused) == GiveUp(Reason.CIRCUIT)
    patient = Policy(wait_for_circuit=True)
    assert decide(refused, patient, prompt=True) == Again(20.0, 2, asked=True)
    assert decide(refused, patient, deadline=20.0) == GiveUp(Reason.DEADLINE)
    assert decide(Fault.of("CIRCUIT_OPEN"), patient, prompt=True).delay == NEXT_PROBE_S


@pytest.mark.parametrize("retry_after", [20.0, 600.0, None])
def test_S1_1_an_outage_without_end_ends_for_the_patient_too(retry_after: float | None) -> None:
    refused = Fault.of("CIRCUIT_OPEN", retry_after=retry_after)
    waited = sum(waits(Policy(wait_for_circuit=True), *[refused] * 9_999))
    assert LONGEST_CIRCUIT_WAIT_S / 2 < waited <= LONGEST_CIRCUIT_WAIT_S * (1 + RETURN_SPREAD)


def test_who_waits_for_a_circuit_returns_later_by_a_share_of_all_it_has_waited() -> None:
    """So a crowd that came over the length of an outage does not go out in the instant in which it ends."""
    refused = Fault.of("CIRCUIT_OPEN", retry_after=20.0)
    patient = Policy(wait_for_circuit=True)
    delays = [decide(refused, patient, rng=Scripted(chance)).delay for chance in (0.0, 0.25, 0.9999)]
    assert delays == pytest.approx([20.0, 20.0 + 0.5 * RETURN_SPREAD * 20.0, 20.0 + RETURN_SPREAD * 20.0], rel=1e-4)
    first, second = waits(patient, refused, refused)
    assert (second - 20.0) / (first - 20.0) == pytest.approx((first + 20.0) / 20.0)
    assert decide(refused, patient.replace(spread=0.5), rng=Scripted(0.25)).delay == pytest.approx(25.0)


def test_who_waits_for_a_circuit_and_is_its_probe_waits_on_as_the_others_do() -> None:
    retrying = Retrying(Policy(wait_for_circuit=True))
    for retrying.attempts in range(1, 20):
        decision = retrying.decide(
            RESET, now=0.0, deadline=None, rng=Midpoint(), effect=None, prompt=True, reopened=19.5
        )
        assert decision == Again(19.5, retrying.attempts + 1, asked=True)
    plain = [
        retrying.decide(RESET, now=0.0, deadline=None, rng=Midpoint(), effect=None)
        for retrying.attempts in (20, 21, 22)
    ]
    assert [isinstance(decision, Again) for decision in plain] == [True, True, False], "then it has all its attempts"
    assert isinstance(decide(RESET, Policy()), Again)


def test_no_call_is_lost_because_it_returned_later_than_it_might() -> None:
    refused = Fault.of("CIRCUIT_OPEN", retry_after=20.0)
    decision = decide(refused, Policy(wait_for_circuit=True), deadline=21.0, rng=Scripted(0.999))
    assert 20.0 < decision.delay <= 20.5


@pytest.mark.parametrize("effect", [*EFFECTS, None])
def test_S2_10_the_unknown_is_repeated_only_where_that_is_harmless(effect: Any) -> None:
    decision = decide(Fault.of("SYS_UNKNOWN", retryable=True, maybe_executed=False), effect=effect)
    if effect in ("read", "idempotent", "keyed"):
        assert isinstance(decision, Again)
        assert decision.of == 2
    else:
        assert decision == GiveUp(Reason.UNKNOWN)


def test_an_unsafe_call_that_may_have_happened_is_never_repeated_whatever_the_policy_says() -> None:
    for policy in (Policy(), Policy(attempts=9), Policy(per_code={"CONN_RESET": Tries(attempts=9)})):
        assert decide(RESET, policy, effect="unsafe") == GiveUp(Reason.UNSAFE)
    refused = Fault.of("CONN_REFUSED", maybe_executed=False)
    assert isinstance(decide(refused, effect="unsafe"), Again)


def test_numbers_for_a_code_win_over_all_others_and_make_it_retryable() -> None:
    own = Tries(attempts=2, backoff=Backoff(initial=7, jitter=0))
    policy = Policy(attempts=9, per_code={"AUTH_FAILED": own})
    assert decide(Fault.of("AUTH_FAILED"), policy) == Again(7.0, 2)
    assert decide(Fault.of("AUTH_FAILED"), policy, attempts=2) == GiveUp(Reason.ATTEMPTS)


def test_decorrelated_jitter_knows_the_last_wait() -> None:
    policy = Policy(backoff=Backoff(initial=1, cap=100, jitter="decorrelated"), attempts=9)
    assert waits(policy, *[RESET] * 4) == [2, 3.5, 5.75, 9.125]


@given(
    code=st.sampled_from(sorted(CODES)),
    retryable=st.booleans(),
    asked=st.one_of(st.none(), st.floats(0, 1e5)),
    attempts=st.integers(1, 12),
    left=st.one_of(st.none(), st.floats(0, 1e4)),
    effect=st.sampled_from([*EFFECTS, None]),
    executed=st.booleans(),
    policy=st.sampled_from([Policy(), Policy(deadline=None, wait_for_circuit=True), Policy(profile="spec016"), Policy(attempts=5, spread=0.2)]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_whatever_fails_the_laws_hold(
    code: Any, retryable: bool, asked: Any, attempts: int, left: Any, effect: Any, executed: bool, policy: Policy, seed: int
) -> None:  # fmt: skip
    fault = Fault.of(code, retryable=retryable, retry_after=asked, maybe_executed=executed)
    decision = decide(fault, policy, attempts=attempts, deadline=left, effect=effect, rng=seeded(seed))
    if isinstance(decision, Again):
        assert 0 <= decision.delay <= max(policy.max_retry_after * 1.2, 160)
        assert left is None or decision.delay < left
        assert not (effect == "unsafe" and executed)
        assert code == "CIRCUIT_OPEN" or asked is None or decision.delay >= asked
        assert code == "CIRCUIT_OPEN" or attempts < decision.of
    same = decide(fault, policy, attempts=attempts, deadline=left, effect=effect, rng=seeded(seed))
    assert same == decision


def _decisions(policy: Policy, *codes: str) -> list[str]:
    retrying = Retrying(policy)
    told = []
    for number, code in enumerate(codes, 1):
        retrying.attempts = number
        decision = retrying.decide(Fault.of(code), now=0.0, deadline=None, rng=Midpoint(), effect=None)
        told.append(f"{decision.delay:g}/{decision.of}" if isinstance(decision, Again) else str(decision.reason))
    return told


def test_a_blip_after_a_rate_limit_has_all_its_tries():
    blip, limit = "PROVIDER_OVERLOADED", "PROVIDER_RATE_LIMITED"
    assert _decisions(Policy(), limit, blip, blip, blip) == ["5/6", "1/6", "2/6", "attempts"]
    assert _decisions(Policy(), blip, blip, limit) == ["1/3", "2/3", "5/6"]


def test_the_largest_number_bounds_the_whole():
    codes = ["PROVIDER_RATE_LIMITED", "PROVIDER_OVERLOADED"] * 3
    assert _decisions(Policy(), *codes)[-1] == "attempts"
    assert "attempts" not in _decisions(Policy(), *codes[:5])


def test_attempts_that_were_given_count_every_call_whatever_failed():
    assert _decisions(Policy(attempts=2), "PROVIDER_RATE_LIMITED", "PROVIDER_OVERLOADED") == ["5/2", "attempts"]
