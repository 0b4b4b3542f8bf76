"""The decision machine: every reason to retry, repair, fall back or give up."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CODES, Backoff, Fault, Policy, Tries
from holdfast.policies.decide import (
    EFFECTS,
    LONGEST_WAIT_S,
    NEXT_PROBE_S,
    RETURN_SPREAD,
    Decider,
    Facts,
    GiveUp,
    Reason,
    Retry,
    RunRepair,
    can_fall_back,
    gives_up_at_once,
    may_resume,
)
from holdfast.policies.repair import Repair, Repairs
from holdfast.testing import Midpoint, Scripted, seeded

exact = partial(Policy, profile="stud", patience=None)
"""A policy with the numbers of the specifications, for a test that counts."""

RESET = Fault.of("CONN_RESET")
LIMITED = Fault.of("PROVIDER_RATE_LIMITED")


def facts(fault: Fault, policy: Policy | None = None, **known: Any) -> Facts:
    """Return facts in which nothing but the failure speaks against another call."""
    waits = bool((policy or exact()).wait_for_circuit)
    return Facts(**{"fault": fault, "now": 0.0, "rng": Midpoint(), "attempts": 1, "waits_for_circuit": waits, **known})


def decide(fault: Fault, policy: Policy | None = None, **known: Any) -> Any:
    """Return the first decision of an operation."""
    return Decider(policy or exact()).decide(facts(fault, policy, **known))


def waits(policy: Policy, *faults: Fault, deadline: float | None = None) -> list[float]:
    """Fail with one fault after the other; return the delays until the machine gives up."""
    decider = Decider(policy)
    out: list[float] = []
    now = 0.0
    for attempt, fault in enumerate(faults, 1):
        decision = decider.decide(facts(fault, policy, attempts=attempt, now=now, deadline=deadline))
        if not isinstance(decision, Retry):
            break
        out.append(decision.delay)
        now += decision.delay
    return out


def test_R1_three_attempts_are_two_waits() -> None:
    assert waits(exact(), *[RESET] * 9) == [1, 2]


def test_a_retry_waits_until_a_failure_of_a_moment_is_over() -> None:
    """A retry within the same moment would meet the same failure."""
    assert decide(RESET, Policy()).delay == 0.7
    assert decide(RESET, Policy(), lasts=1.0, rng=Scripted(0.0, 0.0)).delay == 1.0
    assert decide(RESET, Policy(), lasts=1.0, rng=Scripted(0.0, 0.5)).delay == 1.0 + RETURN_SPREAD / 2, (
        "not all at once"
    )
    assert decide(RESET, Policy(backoff=Backoff(initial=0.1, jitter=0.0)), lasts=1.0).delay == 0.1, "as somebody chose"
    chosen = Policy(per_code={"CONN_RESET": Tries(attempts=2, backoff=Backoff(initial=0.1, jitter=0.0))})
    assert decide(RESET, chosen, lasts=1.0).delay == 0.1
    requested = Fault.of("PROVIDER_RATE_LIMITED", retry_after=0.3)
    assert decide(requested, Policy(), lasts=1.0).delay == 0.3, "as the other side requested"


def test_S2_14_rate_limits_have_six_attempts_of_their_own() -> None:
    assert waits(exact(), *[LIMITED] * 9) == [5, 10, 20, 40, 80]


def test_each_schedule_counts_its_own_failures() -> None:
    """A rate limit after two blips starts at its first wait."""
    assert waits(exact(), RESET, RESET, LIMITED, LIMITED) == [1, 2, 5, 10]


def test_R2_what_is_permanent_is_given_up_at_once() -> None:
    assert decide(Fault.of("AUTH_FAILED")) == GiveUp(Reason.PERMANENT)


def test_R11_a_wait_that_would_end_at_the_deadline_is_not_begun() -> None:
    assert decide(RESET, deadline=1.0) == GiveUp(Reason.DEADLINE)
    assert decide(RESET, deadline=1.001) == Retry(1.0, 3)


def test_R11_used_up_attempts_are_told_before_the_deadline() -> None:
    assert decide(RESET, attempts=3, deadline=0.1) == GiveUp(Reason.ATTEMPTS)


def test_R29_what_the_other_side_asks_for_is_never_cut_short() -> None:
    asked = Fault.of("PROVIDER_RATE_LIMITED", retry_after=30.0)
    assert decide(asked) == Retry(30.0, 6, "requested")
    assert decide(asked, exact(backoff=Backoff(cap=1))) == Retry(30.0, 6, "requested")
    for draw in (0.0, 0.5, 0.999):
        delay = decide(asked, exact(spread=0.2), rng=Scripted(draw)).delay
        assert 30 <= delay <= 36


def test_R31_beyond_what_is_allowed_it_is_given_up_at_once() -> None:
    asked = Fault.of("PROVIDER_RATE_LIMITED", retry_after=901.0)
    assert decide(asked) == GiveUp(Reason.RETRY_AFTER)
    assert decide(asked, exact(max_retry_after=3600)) == Retry(901.0, 6, "requested")
    assert decide(asked, exact(max_retry_after=0)) == GiveUp(Reason.RETRY_AFTER)


def test_a_delay_that_no_sdk_reads_comes_after_the_attempts_of_the_plain_client() -> None:
    """Where it does not fit into the time of the call. Nobody named that time."""
    asked = Fault.of("PROVIDER_RATE_LIMITED", retry_after=300.0)
    known = {"bare_attempts": 3, "is_window_open": True, "deadline": 120.0}

    def delays(**more: Any) -> list[Any]:
        decider = Decider(Policy())
        made = [decider.decide(facts(asked, Policy(), attempts=at, **{**known, **more})) for at in (1, 2, 3, 4)]
        return [one.delay if isinstance(one, Retry) else one.reason for one in made]

    assert delays() == [300.0, 300.0, Reason.DEADLINE, Reason.DEADLINE]
    assert delays(only_we_read_delay=True) == [0.4375, 0.875, 300.0, Reason.DEADLINE]
    assert delays(only_we_read_delay=True, is_window_open=False)[2:] == [Reason.DEADLINE] * 2


def test_when_a_limit_is_back_says_nothing_about_an_outage() -> None:
    """A 529 may carry the headers of a limit that its call has used up. The plain client's attempts come first."""
    asked = Fault.of("PROVIDER_OVERLOADED", retry_after=60.0)
    known = {"bare_attempts": 3, "only_we_read_delay": True}
    made = [decide(asked, Policy(), attempts=attempts, **known) for attempts in (1, 2, 3)]
    assert [one.delay for one in made] == [0.4375, 0.875, 60.0]
    assert decide(asked, Policy(), bare_attempts=3).delay == 60.0


def test_a_tiny_delay_is_not_kept_to_after_other_keys_were_tried_at_once() -> None:
    asked = Fault.of("PROVIDER_RATE_LIMITED", retry_after=0.001)
    assert decide(asked, Policy(), bare_attempts=3, moves_on=True).delay == 0.001
    assert decide(asked, Policy(), bare_attempts=3, moves_on=True, has_moved=True).delay == 0.4375


def test_where_a_fallback_could_answer_a_call_waits_for_its_turn_only_for_a_moment() -> None:
    turn = Fault.of("SYS_RATE_LIMITED", retry_after=0.2)
    known = {"rejected": True, "before_another": 3, "waits_for_circuit": False}
    decider = Decider(Policy())
    assert decider.decide(facts(turn, Policy(), **known)).delay == 0.2
    assert decider.decide(facts(turn, Policy(), now=0.2, **known)) == GiveUp(Reason.CIRCUIT)


def test_the_attempts_that_a_client_makes_by_itself_do_not_use_up_the_time() -> None:
    decider, known = Decider(Policy()), {"bare_attempts": 41, "is_window_open": True}
    made = [decider.decide(facts(RESET, Policy(), attempts=number, **known)) for number in range(1, 42)]
    assert all(isinstance(one, Retry) for one in made[:40])
    assert made[40] == GiveUp(Reason.DEADLINE)


def test_R31_how_long_to_wait_is_the_policys_to_say_although_the_classifier_would_not() -> None:
    """The classifier calls a failure whose wait is over 15 minutes not retryable."""
    judged = Fault.of("PROVIDER_RATE_LIMITED", retry_after=1800.0, retryable=False)
    assert decide(judged) == GiveUp(Reason.RETRY_AFTER)
    assert decide(judged, exact(max_retry_after=3600)) == Retry(1800.0, 6, "requested")
    short = Fault.of("PROVIDER_RATE_LIMITED", retry_after=18.0, retryable=False)
    assert decide(short, exact(max_retry_after=3600)) == GiveUp(Reason.PERMANENT)
    permanent = Fault.of("PROVIDER_BILLING", retry_after=1800.0, retryable=False)
    assert decide(permanent, exact(max_retry_after=3600)) == GiveUp(Reason.PERMANENT)


def test_R34_an_open_circuit_is_waited_for_only_by_the_patient() -> None:
    refused = Fault.of("CIRCUIT_OPEN", retry_after=20.0)
    assert decide(refused) == GiveUp(Reason.CIRCUIT)
    patient = exact(wait_for_circuit=True)
    assert decide(refused, patient, first_to_wait=True) == Retry(20.0, None, "circuit")
    assert decide(refused, patient, deadline=20.0) == GiveUp(Reason.DEADLINE)
    assert decide(Fault.of("CIRCUIT_OPEN"), patient, first_to_wait=True).delay == NEXT_PROBE_S


@pytest.mark.parametrize("retry_after", [20.0, 600.0, None])
def test_S1_1_an_outage_without_end_ends_for_the_patient_too(retry_after: float | None) -> None:
    refused = Fault.of("CIRCUIT_OPEN", retry_after=retry_after)
    waited = sum(waits(exact(wait_for_circuit=True), *[refused] * 9_999))
    assert LONGEST_WAIT_S / 2 < waited <= LONGEST_WAIT_S * (1 + RETURN_SPREAD)


def test_who_waits_for_a_circuit_returns_later_by_a_share_of_all_it_has_waited() -> None:
    """So a crowd that came over the length of an outage does not go out in the instant in which it ends."""
    refused = Fault.of("CIRCUIT_OPEN", retry_after=20.0)
    patient = exact(wait_for_circuit=True)
    delays = [decide(refused, patient, rng=Scripted(chance)).delay for chance in (0.0, 0.25, 0.9999)]
    assert delays == pytest.approx([20.0, 20.0 + 0.5 * RETURN_SPREAD * 20.0, 20.0 + RETURN_SPREAD * 20.0], rel=1e-4)
    first, second = waits(patient, refused, refused)
    assert (second - 20.0) / (first - 20.0) == pytest.approx((first + 20.0) / 20.0)
    assert decide(refused, patient.replace(spread=0.5), rng=Scripted(0.25)).delay == pytest.approx(25.0)


def test_an_operation_that_waits_for_a_circuit_and_was_its_probe_waits_on() -> None:
    policy = Policy(patience=None, wait_for_circuit=True)
    decider = Decider(policy)
    for attempts in range(1, 20):
        decision = decider.decide(facts(RESET, policy, attempts=attempts, first_to_wait=True, reopened_for=19.5))
        assert decision == Retry(19.5, None, "circuit")


def test_FR13_a_number_of_attempts_is_true_also_for_one_that_waits_for_a_circuit() -> None:
    policy = exact(attempts=3, wait_for_circuit=True)
    decider = Decider(policy)
    probes = [
        decider.decide(facts(RESET, policy, attempts=attempts, first_to_wait=True, reopened_for=19.5))
        for attempts in (1, 2, 3)
    ]
    assert probes == [Retry(19.5, 3, "circuit"), Retry(19.5, 3, "circuit"), GiveUp(Reason.ATTEMPTS)]


# --- the defaults ---


def test_by_default_what_passes_by_itself_is_retried_until_the_time_is_over() -> None:
    delays = waits(Policy(), *[RESET] * 99, deadline=120.0)
    assert delays[:7] == [0.7, 1.2, 1.8, 2.7, 4, 6, 8]
    assert set(delays[6:]) == {8.0}
    assert 112 < sum(delays) < 120
    limited = waits(Policy(), *[LIMITED] * 99, deadline=120.0)
    assert limited[:6] == pytest.approx([1, 1.6, 2.56, 4.096, 6.5536, 8])
    assert decide(RESET, Policy()).of is None


def test_by_default_the_waits_alone_end_it_where_nothing_reads_the_clock() -> None:
    """A test that skips the waits does not loop for ever."""
    decider, policy = Decider(Policy()), Policy()
    decisions = [decider.decide(facts(RESET, policy, attempts=attempts)) for attempts in range(1, 99)]
    assert GiveUp(Reason.DEADLINE) in decisions[:25]


def test_without_a_deadline_an_hour_of_waiting_is_the_end() -> None:
    policy = Policy(patience=None)
    decider = Decider(policy)
    decisions = [decider.decide(facts(RESET, policy, attempts=attempts)) for attempts in range(1, 999)]
    assert GiveUp(Reason.PATIENCE) in decisions
    assert sum(d.delay for d in decisions if isinstance(d, Retry)) <= LONGEST_WAIT_S


def test_three_attempts_are_made_before_a_fallback_answers() -> None:
    assert [decide(RESET, Policy(), before_another=3).of, decide(LIMITED, Policy(), before_another=3).of] == [3, 3]
    assert decide(RESET, Policy(), attempts=3, before_another=3) == GiveUp(Reason.ATTEMPTS)


def test_a_call_waits_for_its_turn_and_only_briefly_before_a_fallback() -> None:
    soon, late = (Fault.of("SYS_RATE_LIMITED", retry_after=seconds) for seconds in (3.0, 50.0))
    patient = Policy(wait_for_circuit=True)
    assert decide(late, patient, rejected=True) == Retry(50.0, None, "turn")
    assert decide(soon, rejected=True) == Retry(3.0, None, "turn")
    assert decide(late, rejected=True, before_another=3) == GiveUp(Reason.CIRCUIT)
    assert decide(late, Policy(wait_for_circuit=False), rejected=True) == GiveUp(Reason.CIRCUIT)
    assert decide(late, Policy(attempts=1), rejected=True) == Retry(0.0, None, "turn", at_once=True)


def test_XR16_what_was_learned_never_refuses_a_call_that_was_not_made() -> None:
    late = Fault.of("SYS_RATE_LIMITED", retry_after=500.0)
    decider = Decider(Policy(wait_for_circuit=True))

    def at(now: float, **known: Any) -> Any:
        facts = {"attempts": 0, "waits_for_circuit": True, "rejected": True, "deadline": 120.0, **known}
        return decider.decide(Facts(fault=late, now=now, rng=Midpoint(), **facts))

    first = at(0.0)
    assert 100 < first.delay < 120
    assert not first.at_once
    assert at(first.delay) == Retry(0.0, None, "turn", at_once=True)
    assert at(first.delay) == GiveUp(Reason.DEADLINE), "once"


def test_a_call_that_is_woken_before_its_last_turn_goes_on_waiting_for_it() -> None:
    late = Fault.of("SYS_RATE_LIMITED", retry_after=500.0)
    decider = Decider(Policy(wait_for_circuit=True))

    def at(now: float) -> Any:
        known = {"attempts": 0, "waits_for_circuit": True, "rejected": True, "deadline": 120.0, "limited_for": 1.0}
        return decider.decide(Facts(fault=late, now=now, rng=Midpoint(), **known))

    last = at(0.0).delay
    for now in range(100):
        assert at(float(now)) == Retry(last - now, None, "turn")
    assert at(last) == GiveUp(Reason.DEADLINE), "the limit was seen just now"


@pytest.mark.parametrize("known", [{"limited_for": 5.0}, {"attempts": 1}])
def test_it_is_given_up_if_the_limit_was_seen_just_now_or_by_this_call(known: dict[str, Any]) -> None:
    late = Fault.of("SYS_RATE_LIMITED", retry_after=500.0)
    decider = Decider(Policy(wait_for_circuit=True))
    facts = {"attempts": 0, "waits_for_circuit": True, "rejected": True, "deadline": 120.0, **known}
    assert isinstance(decider.decide(Facts(fault=late, now=0.0, rng=Midpoint(), **facts)), Retry)
    assert decider.decide(Facts(fault=late, now=119.0, rng=Midpoint(), **facts)) == GiveUp(Reason.DEADLINE)


def test_no_call_is_lost_because_it_returned_later_than_it_might() -> None:
    refused = Fault.of("CIRCUIT_OPEN", retry_after=20.0)
    decision = decide(refused, exact(wait_for_circuit=True), deadline=21.0, rng=Scripted(0.999))
    assert 20.0 < decision.delay <= 20.5


@pytest.mark.parametrize("effect", [*EFFECTS, None])
def test_S2_10_the_unknown_is_repeated_only_where_that_is_harmless(effect: Any) -> None:
    decision = decide(Fault.of("SYS_UNKNOWN", retryable=True, maybe_executed=False), effect=effect)
    if effect in ("read", "idempotent", "keyed"):
        assert isinstance(decision, Retry)
        assert decision.of == 2
    else:
        assert decision == GiveUp(Reason.UNKNOWN)


def test_an_unsafe_call_that_may_have_happened_is_never_repeated_whatever_the_policy_says() -> None:
    for policy in (exact(), exact(attempts=9), exact(per_code={"CONN_RESET": Tries(attempts=9)})):
        assert decide(RESET, policy, effect="unsafe") == GiveUp(Reason.UNSAFE)
    refused = Fault.of("CONN_REFUSED", maybe_executed=False)
    assert isinstance(decide(refused, effect="unsafe"), Retry)
    inside = Fault.of("CIRCUIT_OPEN", maybe_executed=True)
    assert decide(inside, exact(wait_for_circuit=True), effect="unsafe") == GiveUp(Reason.UNSAFE)


def test_numbers_for_a_code_win_over_all_others_and_make_it_retryable() -> None:
    own = Tries(attempts=2, backoff=Backoff(initial=7, jitter=0))
    policy = exact(attempts=9, per_code={"AUTH_FAILED": own})
    assert decide(Fault.of("AUTH_FAILED"), policy) == Retry(7.0, 2)
    assert decide(Fault.of("AUTH_FAILED"), policy, attempts=2) == GiveUp(Reason.ATTEMPTS)


def test_decorrelated_jitter_knows_the_last_wait() -> None:
    policy = exact(backoff=Backoff(initial=1, cap=100, jitter="decorrelated"), attempts=9)
    assert waits(policy, *[RESET] * 4) == [2, 3.5, 5.75, 9.125]


@given(
    code=st.sampled_from(sorted(CODES)),
    retryable=st.booleans(),
    asked=st.one_of(st.none(), st.floats(0, 1e5)),
    attempts=st.integers(1, 12),
    left=st.one_of(st.none(), st.floats(0, 1e4)),
    effect=st.sampled_from([*EFFECTS, None]),
    executed=st.booleans(),
    policy=st.sampled_from([exact(), exact(patience=None, wait_for_circuit=True), exact(profile="spec016"), exact(attempts=5, spread=0.2)]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_whatever_fails_the_laws_hold(
    code: Any, retryable: bool, asked: Any, attempts: int, left: Any, effect: Any, executed: bool, policy: Policy, seed: int
) -> None:  # fmt: skip
    fault = Fault.of(code, retryable=retryable, retry_after=asked, maybe_executed=executed)
    decision = decide(fault, policy, attempts=attempts, deadline=left, effect=effect, rng=seeded(seed))
    if isinstance(decision, Retry):
        assert 0 <= decision.delay <= max(policy.max_retry_after * 1.2, 160)
        assert left is None or decision.delay < left
        assert not (effect == "unsafe" and executed)
        assert code == "CIRCUIT_OPEN" or asked is None or decision.delay >= asked
        assert code == "CIRCUIT_OPEN" or decision.of is None or attempts < decision.of
    same = decide(fault, policy, attempts=attempts, deadline=left, effect=effect, rng=seeded(seed))
    assert same == decision


def _decisions(policy: Policy, *codes: str) -> list[str]:
    decider = Decider(policy)
    written = []
    for number, code in enumerate(codes, 1):
        decision = decider.decide(facts(Fault.of(code), policy, attempts=number))
        written.append(f"{decision.delay:g}/{decision.of}" if isinstance(decision, Retry) else str(decision.reason))
    return written


def test_a_blip_after_a_rate_limit_has_all_its_tries():
    blip, limit = "PROVIDER_OVERLOADED", "PROVIDER_RATE_LIMITED"
    assert _decisions(exact(), limit, blip, blip, blip) == ["5/6", "1/6", "2/6", "attempts"]
    assert _decisions(exact(), blip, blip, limit) == ["1/3", "2/3", "5/6"]


def test_the_largest_number_bounds_the_whole():
    codes = ["PROVIDER_RATE_LIMITED", "PROVIDER_OVERLOADED"] * 3
    assert _decisions(exact(), *codes)[-1] == "attempts"
    assert "attempts" not in _decisions(exact(), *codes[:5])


def test_attempts_that_were_given_count_every_call_whatever_failed():
    assert _decisions(exact(attempts=2), "PROVIDER_RATE_LIMITED", "PROVIDER_OVERLOADED") == ["5/2", "attempts"]


# --- every reason, in the order in which the machine looks for it ---

OVERFLOW = Fault.of("PROVIDER_CONTEXT_OVERFLOW")
NO_RETRY_LEFT: dict[str, Any] = {"withdraw_retry": lambda: False}


@pytest.mark.parametrize(
    ("reason", "fault", "policy", "known"),
    [
        (Reason.PERMANENT, Fault.of("AUTH_FAILED"), exact(), {}),
        (Reason.ATTEMPTS, RESET, exact(attempts=2), {"attempts": 2}),
        (Reason.DEADLINE, RESET, exact(), {"deadline": 1.0}),
        (Reason.RETRY_AFTER, Fault.of("PROVIDER_RATE_LIMITED", retry_after=901.0), exact(), {}),
        (Reason.UNSAFE, RESET, exact(), {"effect": "unsafe"}),
        (Reason.UNKNOWN, Fault.of("SYS_UNKNOWN", retryable=True), exact(), {}),
        (Reason.UNDECLARED, RESET, exact(), {"is_tool": True}),
        (Reason.RUNNING, RESET, exact(), {"is_running": True}),
        (Reason.RUNNING, RESET, exact(), {"is_running": True, "override": True}),
        (Reason.RUNNING, RESET, exact(), {"is_running": True, "proposal": Retry(1.0, 3)}),
        (Reason.ONE_SHOT, RESET, exact(), {"arguments_used_up": lambda: True}),
        (Reason.CIRCUIT, Fault.of("CIRCUIT_OPEN", retry_after=5.0), exact(), {}),
        (Reason.CIRCUIT, RESET, exact(), {"open_until": 30.0}),
        (Reason.MAKES_WAY, RESET, exact(), {"makes_way_until": 30.0}),
        (Reason.FULL, Fault.of("SYS_BULKHEAD_FULL"), exact(), {"is_full": True}),
        (Reason.UNWANTED, RESET, exact(), {"override": False}),
        (Reason.COMMANDED, RESET, exact(), {"final": Reason.COMMANDED}),
        (Reason.UNREPAIRED, RESET, exact(), {"final": Reason.UNREPAIRED}),
        (Reason.PARTIAL, RESET, exact(), {"final": Reason.PARTIAL}),
        (Reason.NESTED, RESET, exact(), {"nested": True}),
        (Reason.NOT_REPEATABLE, RESET, exact(), {"proposal": GiveUp(Reason.NOT_REPEATABLE)}),
        (Reason.QUOTA, RESET, exact(), NO_RETRY_LEFT),
        (Reason.BUDGET, RESET, exact(), {"budget_spent": True}),
        (Reason.POISON, Fault.of("PROVIDER_INTERNAL_ERROR"), Policy(), {"attempts": 3, "is_poison": True}),
        (Reason.PATIENCE, Fault.of("CIRCUIT_OPEN", retry_after=3601.0), exact(wait_for_circuit=True), {}),
    ],
)
def test_each_reason_to_give_up_follows_from_its_facts(
    reason: Reason, fault: Fault, policy: Policy, known: Any
) -> None:
    assert decide(fault, policy, **known) == GiveUp(reason)


def test_every_reason_has_a_case_above() -> None:
    cases = test_each_reason_to_give_up_follows_from_its_facts.pytestmark[0].args[1]
    assert {case[0] for case in cases} == set(Reason)


def test_the_quota_is_asked_last_because_asking_takes_a_retry_from_it() -> None:
    asked: list[bool] = []

    def withdraw() -> bool:
        asked.append(True)
        return True

    for known in ({"budget_spent": True}, {"open_until": 30.0}, {"deadline": 0.5}, {"nested": True}):
        assert isinstance(decide(RESET, withdraw_retry=withdraw, **known), GiveUp)
    assert asked == []
    assert isinstance(decide(RESET, withdraw_retry=withdraw), Retry)
    assert asked == [True]


def test_FR2_waiting_for_a_circuit_takes_nothing_from_the_quota() -> None:
    rejected = Fault.of("CIRCUIT_OPEN", retry_after=5.0)
    waiting = exact(wait_for_circuit=True)
    assert decide(rejected, waiting, first_to_wait=True, **NO_RETRY_LEFT) == Retry(5.0, None, "circuit")


def test_a_circuit_that_admits_a_probe_by_then_does_not_end_the_retries() -> None:
    assert isinstance(decide(RESET, open_until=1.0), Retry), "the delay is 1 s, so the probe is due"
    assert decide(RESET, open_until=1.001) == GiveUp(Reason.CIRCUIT)
    waiting = exact(wait_for_circuit=True)
    assert isinstance(decide(RESET, waiting, open_until=30.0), Retry)


def test_an_override_retries_what_the_classifier_would_not() -> None:
    assert decide(Fault.of("AUTH_FAILED"), override=True) == Retry(1.0, 3)


def test_a_proposal_replaces_the_schedule_and_not_the_protections() -> None:
    proposal = Retry(2.5, 9)
    assert decide(Fault.of("AUTH_FAILED"), proposal=proposal) == proposal
    assert decide(RESET, proposal=GiveUp(Reason.ATTEMPTS)) == GiveUp(Reason.ATTEMPTS)
    assert decide(RESET, proposal=proposal, effect="unsafe") == GiveUp(Reason.UNSAFE)
    assert decide(RESET, proposal=proposal, deadline=2.5) == GiveUp(Reason.DEADLINE)
    assert decide(RESET, proposal=proposal, budget_spent=True) == GiveUp(Reason.BUDGET)
    assert decide(RESET, proposal=proposal, open_until=30.0) == GiveUp(Reason.CIRCUIT)
    assert decide(RESET, proposal=proposal, **NO_RETRY_LEFT) == GiveUp(Reason.QUOTA)


def test_a_repair_wins_over_a_retry_as_often_as_it_may_be_used() -> None:
    compact = Repair.of(("compact",), "compact", times=2)
    decider = Decider(exact(), Repairs([compact]))
    decisions = [decider.decide(facts(OVERFLOW)) for _ in range(3)]
    assert decisions == [RunRepair(0), RunRepair(0), GiveUp(Reason.PERMANENT)]


@pytest.mark.parametrize("known", [{"deadline": 0.0}, {"budget_spent": True}, {"final": Reason.PARTIAL}])
def test_no_repair_is_run_where_nothing_more_may_be_called(known: Any) -> None:
    decider = Decider(exact(), Repairs([Repair.of(("compact",), "compact", times=1)]))
    assert isinstance(decider.decide(facts(OVERFLOW, **known)), GiveUp)


def test_each_retry_says_why_it_waits_as_long_as_it_does() -> None:
    waiting = exact(wait_for_circuit=True)
    assert decide(RESET).why == "backoff"
    assert decide(Fault.of("PROVIDER_RATE_LIMITED", retry_after=7.0)).why == "requested"
    assert decide(Fault.of("CIRCUIT_OPEN", retry_after=7.0), waiting).why == "circuit"
    assert decide(RESET, proposal=Retry(2.0, 3, "another-key")).why == "another-key"


@pytest.mark.parametrize("after_first", ["raise", "continue", "restart"])
def test_a_broken_stream_resumes_as_its_caller_chose_and_never_inside_a_tool_call(after_first: Any) -> None:
    assert may_resume(after_first, inside_tool_call=False) == (after_first != "raise")
    assert not may_resume(after_first, inside_tool_call=True)


def test_an_operation_rejected_before_its_first_call_ends_unless_it_waits() -> None:
    assert gives_up_at_once(waits=False)
    assert not gives_up_at_once(waits=True)


def test_no_fallback_answers_what_may_have_happened_or_a_defect() -> None:
    timeout = Fault.of("TOOL_TIMEOUT", maybe_executed=True)
    assert can_fall_back(timeout)
    assert can_fall_back(timeout, effect="idempotent")
    assert not can_fall_back(timeout, effect="unsafe")
    arguments = Fault.of("TOOL_INPUT_INVALID")
    assert can_fall_back(arguments)
    assert not can_fall_back(arguments, wrong_arguments=True)


INTERNAL = Fault.of("PROVIDER_INTERNAL_ERROR")


def attempts_until_given_up(fault: Fault, policy: Policy | None = None, *, is_poison: bool = True) -> int:
    decider = Decider(policy or Policy())
    for attempts in range(1, 40):
        known = facts(fault, policy or Policy(), attempts=attempts, bare_attempts=3, is_poison=is_poison)
        if isinstance(decider.decide(known), GiveUp):
            return attempts
    return 40


def test_poison_is_given_up_but_never_before_the_plain_client():
    assert attempts_until_given_up(INTERNAL) == 3
    assert attempts_until_given_up(INTERNAL, is_poison=False) > 20
    assert decide(INTERNAL, Policy(), attempts=3, bare_attempts=3, is_poison=True) == GiveUp(Reason.POISON)


def test_only_a_failure_that_a_request_can_cause_is_given_up_so():
    assert attempts_until_given_up(RESET) > 20
    assert attempts_until_given_up(Fault.of("PROVIDER_OVERLOADED")) > 20
    assert attempts_until_given_up(Fault.of("PROVIDER_INTERNAL_ERROR", retry_after=2.0)) > 20
    assert attempts_until_given_up(INTERNAL, Policy(attempts=12)) == 12


def test_XR9_a_requested_delay_of_zero_names_no_time() -> None:
    """The SDKs wait as without the header, and a retry at once would meet the same outage."""
    hinted = Fault.of("PROVIDER_OVERLOADED", retry_after=0.0)
    unhinted = Fault.of("PROVIDER_OVERLOADED")
    assert waits(Policy(), *[hinted] * 20, deadline=120.0) == waits(Policy(), *[unhinted] * 20, deadline=120.0)


@pytest.mark.parametrize("requested", [0.001, 0.2])
def test_XR9_a_tiny_requested_delay_is_kept_to_once(requested: float) -> None:
    """A tiny delay in each answer must not send more requests than no header at all."""
    hinted = Fault.of("PROVIDER_RATE_LIMITED", retry_after=requested)
    unhinted = waits(Policy(), *[LIMITED] * 20, deadline=120.0)
    delays = waits(Policy(), *[hinted] * 500, deadline=120.0)
    assert delays[0] == requested
    assert sum(delays[:2]) == pytest.approx(sum(unhinted[:2])), "what the first one saved is made up for"
    assert len(delays) <= len(unhinted)


def test_XR9_a_requested_delay_of_a_second_is_always_kept_to() -> None:
    assert waits(exact(), *[Fault.of("PROVIDER_RATE_LIMITED", retry_after=1.0)] * 9) == [1.0] * 5


def test_XR9_a_backoff_that_somebody_chose_as_short_allows_it() -> None:
    quick = exact(backoff=Backoff(initial=0.1, factor=1, jitter=0.0))
    assert waits(quick, *[Fault.of("PROVIDER_RATE_LIMITED", retry_after=0.1)] * 9) == [0.1] * 5
