"""What a policy will do, told beforehand."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Backoff, Circuit, Policy, Tries
from holdfast.faults import CATALOG, Fault
from holdfast.policies.advice import advice
from holdfast.policies.decide import Decider, Facts, Retry
from holdfast.policies.outlook import Outlook, outlook
from holdfast.policies.policy import BATCH, INTERACTIVE, PATIENT, policy_of
from holdfast.policies.profiles import PROFILES

STUD = Policy(profile="stud")


def told(policy: Policy, what: str) -> Outlook:
    (found,) = (each for each in outlook(policy) if each.what == what)
    return found


def test_S1_8_the_transient_schedule():
    transient = told(STUD, "transient")
    assert transient.calls == 3
    assert [(wait.least, wait.most) for wait in transient.waits] == [(0.8, 1.2), (1.6, 2.4)]
    assert "PROVIDER_OVERLOADED" in transient.codes


def test_S2_14_the_schedule_of_a_profile_is_cut_only_by_a_time_that_somebody_names():
    assert (told(STUD, "rate_limit").calls, told(STUD, "rate_limit").reached) == (6, 5)
    assert told(STUD.replace(patience=120), "rate_limit").reached == 4
    assert told(policy_of(PROFILES["stud"]), "rate_limit").reached == 5


def test_where_no_number_limits_the_attempts_the_first_waits_are_listed():
    transient = told(INTERACTIVE.replace(timeout=60), "transient")
    assert (transient.calls, transient.seconds) == (None, 180)
    assert [wait.retry for wait in transient.waits] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Policy(attempts=3, timeout=10, patience=None, backoff=Backoff(initial=1, jitter=0)), 33),
        (Policy(attempts=3, timeout=10, deadline=20, backoff=Backoff(initial=1, jitter=0)), 20),
        (Policy(attempts=3, timeout=None, deadline=20), 20),
        (Policy(attempts=3, timeout=None, patience=None), None),
        (INTERACTIVE, None),
        (PATIENT, None),
        (BATCH, None),
    ],
)
def test_the_worst_case_in_time(policy, seconds):
    assert told(policy, "transient").seconds == seconds


def test_every_code_that_is_retried_is_told_once():
    policy = Policy(per_code={"AUTH_FAILED": Tries(attempts=2), "PROVIDER_OVERLOADED": Tries(attempts=4)})
    codes = [code for each in outlook(policy) for code in each.codes]
    retried = {entry.code for entry in CATALOG.values() if entry.retryable}
    assert sorted(codes) == sorted(retried | {"AUTH_FAILED"})
    assert told(policy, "PROVIDER_OVERLOADED").calls == 4


jitters = st.floats(0, 1) | st.sampled_from(["none", "full", "equal", "decorrelated"])
backoffs = st.builds(
    Backoff,
    initial=st.floats(0, 10),
    factor=st.floats(1, 4),
    cap=st.floats(10, 100),
    jitter=jitters,
    curve=st.sampled_from(["exponential", "linear", "fixed"]),
    steps=st.lists(st.floats(0, 10), max_size=4).map(tuple),
    jitter_after_cap=st.booleans(),
)


@given(backoffs, st.integers(1, 6), st.integers(0, 2**32))
def test_what_happens_is_within_what_was_told(backoff, attempts, seed):
    policy = Policy(attempts=attempts, backoff=backoff, patience=None)
    each = told(policy, "transient")
    decider, rng, waits = Decider(policy), Random(seed), []
    fault = Fault.of("PROVIDER_OVERLOADED")
    for call in range(1, 20):
        decision = decider.decide(Facts(fault=fault, now=0, rng=rng, attempts=call))
        if not isinstance(decision, Retry):
            break
        waits.append(decision.delay)
    assert call == each.calls
    assert len(waits) == len(each.waits)
    for wait, expected in zip(waits, each.waits, strict=True):
        assert expected.least - 1e-9 <= wait <= expected.most + 1e-9


# --- advice ---


def about(policy: Policy, level: str = "warning") -> list[str]:
    return [each.about for each in advice(policy) if each.level == level]


@pytest.mark.parametrize("policy", [INTERACTIVE, PATIENT, BATCH])
def test_our_own_policies_deserve_no_warning(policy):
    assert about(policy) == []


@pytest.mark.parametrize(
    ("policy", "warned"),
    [
        (Policy(patience=None), []),
        (Policy(attempts=9, backoff=Backoff(initial=30, cap=60), circuit=None), ["deadline"]),
        (Policy(timeout=5, deadline=20, profile="stud"), ["deadline"] * 2),
        (Policy(backoff=Backoff(jitter=0)), ["backoff.jitter"]),
        (Policy(backoff=Backoff(steps=(1, 2), jitter=0)), []),
        (Policy(attempts=4, circuit=Circuit(failures=2)), ["circuit.failures"]),
        (Policy(attempts=4, circuit=Circuit(failures=2), counts="operation"), []),
        (Policy(circuit=Circuit(open_for=200), wait_for_circuit=True), ["wait_for_circuit"]),
        (Policy(circuit=Circuit(open_for=200), wait_for_circuit=True, patience=None), []),
    ],
)
def test_what_is_suspicious_is_told(policy, warned):
    assert about(policy) == warned


@pytest.mark.parametrize(
    ("policy", "noted"),
    [(INTERACTIVE, True), (PATIENT, True), (Policy(timeout=60), False), (Policy(deadline=60), False)],
)
def test_XR1_that_nothing_of_ours_ends_a_call_that_hangs_is_noted(policy, noted):
    assert ("timeout" in about(policy, "note")) is noted


def test_C_hidden_retries_of_an_sdk_are_multiplied():
    (text,) = (each.text for each in advice(Policy(attempts=4)) if each.about == "attempts")
    assert "12 of them" in text
    assert about(Policy(attempts=1, circuit=None), "note") == []


def test_calls_that_do_not_fit_are_noted():
    assert "deadline" in about(Policy(attempts=3, timeout=60, deadline=120), "note")
    assert "circuit" in about(Policy(circuit=None), "note")
