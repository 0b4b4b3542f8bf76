"""Each document's policy, and document 004's phases (S4-16)."""

from __future__ import annotations

import pytest

from holdfast import INTERACTIVE, InvalidError, profiles
from holdfast.policies.profiles import PROFILES
from holdfast.profiles import phase, policy_of


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_offered_by_its_name_and_its_policy_has_its_numbers(name):
    profile = getattr(profiles, name)
    policy = policy_of(profile)
    assert profile is PROFILES[name]
    assert (policy.profile, policy.circuit) == (name, profile.circuit)


def test_the_policies_of_the_documents():
    assert policy_of(profiles.holdfast) is INTERACTIVE
    assert policy_of(profiles.spec016).timeout == 30
    assert policy_of(profiles.bridge).timeout == 10
    assert policy_of(profiles.task).deadline == 300


def test_S4_16_phase_1_only_classifies():
    policy = phase(1).policy
    assert (policy.attempts, policy.circuit, policy.timeout, policy.deadline) == (1, None, None, None)


def test_S4_16_phase_2_adds_limits_and_retries():
    policy = phase(2).policy
    assert (policy.attempts, policy.circuit, policy.timeout) == (None, None, 30)
    assert not phase(2).supervision


def test_S4_16_phase_3_adds_supervision_and_phase_4_circuits():
    assert phase(3).supervision
    assert phase(3).policy == phase(2).policy
    assert phase(4).policy.circuit == profiles.actor.circuit
    assert phase(4).supervision


@pytest.mark.parametrize("number", [0, 5, True, "2", None])
def test_S4_16_there_are_four_phases(number):
    with pytest.raises(InvalidError, match="phase: expected a number from 1 to 4"):
        phase(number)
