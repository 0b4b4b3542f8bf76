"""The numbers of each document under its name (REQUIREMENTS part 8), their policies, and the phases of document 004 (S4-16)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import INTERACTIVE, InvalidError, Policy, Tries, profiles
from holdfast.faults import CATALOG, Fault, Schedule
from holdfast.policies.profiles import ACTOR, BRIDGE, HOLDFAST, PROFILES, SPEC016, STUD, TASK, Profile
from holdfast.profiles import phase, policy_of
from holdfast.testing import Midpoint, seeded


def waits(profile: Profile, schedule: Schedule) -> list[float]:
    tries = profile.schedules[schedule]
    return [tries.backoff.delay(retry, Midpoint()) for retry in range(1, tries.attempts)]


@pytest.mark.parametrize(
    ("profile", "schedule", "expected"),
    [
        pytest.param(SPEC016, Schedule.TRANSIENT, [1, 2], id="S1-8"),
        pytest.param(SPEC016, Schedule.RATE_LIMIT, [1, 2], id="S1-8 rate limits too"),
        pytest.param(SPEC016, Schedule.TOOL, [1, 2], id="C7 tools too"),
        pytest.param(STUD, Schedule.RATE_LIMIT, [5, 10, 20, 40, 80], id="S2-14"),
        pytest.param(STUD, Schedule.TRANSIENT, [1, 2], id="S2-15"),
        pytest.param(STUD, Schedule.TOOL, [], id="S2-16"),
        pytest.param(STUD, Schedule.STORE, [2, 4], id="S2-17"),
        pytest.param(BRIDGE, Schedule.RECONNECT, [1, 2, 5, 10, 30], id="S0-5"),
        pytest.param(BRIDGE, Schedule.CONNECT, [1, 2, 5, 10], id="S0-12"),
        pytest.param(TASK, Schedule.TRANSIENT, [], id="C30"),
        pytest.param(TASK, Schedule.ONCE, [], id="C30 nothing else"),
        pytest.param(ACTOR, Schedule.TRANSIENT, [1, 2], id="S4-9"),
        pytest.param(HOLDFAST, Schedule.ONCE, [1], id="an unknown failure, once"),
        pytest.param(HOLDFAST, Schedule.NONE, [], id="never"),
    ],
)
def test_part_9_waits_of_each_schedule(profile: Profile, schedule: Schedule, expected: list[float]) -> None:
    assert waits(profile, schedule) == expected


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
@pytest.mark.parametrize("attempts", [None, 7])
def test_FM3_C30_a_search_for_context_is_tried_once_more_under_every_profile(
    profile: Profile, attempts: int | None
) -> None:
    fault = Fault.of("TASK_CONTEXT_MATCHING_FAILED")
    assert fault.retryable
    assert Policy(profile=profile.name, attempts=attempts).tries(fault).attempts == 2


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        (ACTOR.tries["claude"], [5]),
        (ACTOR.tries["claude-send"], [2]),
        (BRIDGE.tries["recovery"], [1, 2, 3, 4]),
    ],
    ids=["S4-10 phase 2", "S4-10 send", "S0-29"],
)
def test_FM3_part_8_the_operations_that_have_their_own_tries(tries: Tries, expected: list[float]) -> None:
    assert [tries.backoff.delay(retry, Midpoint()) for retry in range(1, tries.attempts)] == expected


def test_FM3_part_8_the_other_numbers_of_the_documents() -> None:
    assert (ACTOR.tries["claude"].backoff.cap, ACTOR.tries["claude-send"].backoff.cap) == (10, 5)
    limits = BRIDGE.limits
    assert (limits["session_grace_s"], limits["replay_age_s"], limits["replay_bytes"]) == (300, 1800, 102_400)
    assert (limits["heartbeat_s"], limits["pong_s"], limits["event_queue"]) == (15, 10, 1000)
    assert (ACTOR.limits["restarts"], ACTOR.limits["restart_window_s"]) == (3, 60)
    assert (TASK.limits["loop_iterations"], TASK.limits["depth"], TASK.limits["resource_warning"]) == (5, 5, 0.8)


def test_FM3_C4_the_actor_curve_is_jittered_before_the_cap() -> None:
    backoff, rng = ACTOR.schedules[Schedule.TRANSIENT].backoff, seeded(4)
    # The curve is at 16 s before the fifth retry. Half of it is still 8 s; a capped curve would give 5 s.
    draws = [backoff.delay(5, rng) for _ in range(2000)]
    assert 8 <= min(draws) < 8.2
    assert max(draws) == 10
    assert [backoff.shortest(5), backoff.longest(5), backoff.shortest(1), backoff.longest(1)] == [8, 10, 0.5, 1.5]


@pytest.mark.parametrize(("profile", "share"), [(SPEC016, 0.2), (STUD, 0.2), (ACTOR, 0.5)])
def test_part_9_jitter_stays_in_its_share(profile: Profile, share: float) -> None:
    backoff, rng = profile.schedules[Schedule.TRANSIENT].backoff, seeded(9)
    draws = [backoff.delay(2, rng) for _ in range(2000)]
    assert all(2 * (1 - share) <= draw <= 2 * (1 + share) for draw in draws)
    assert max(draws) - min(draws) > 2 * share


def test_S2_17_S0_5_some_schedules_have_no_jitter() -> None:
    for profile, schedule in ((STUD, Schedule.STORE), (BRIDGE, Schedule.RECONNECT), (BRIDGE, Schedule.CONNECT)):
        backoff = profile.schedules[schedule].backoff
        assert backoff.delay(1, seeded(1)) == backoff.wait(1)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_profile_answers_every_schedule(profile: Profile) -> None:
    assert set(profile.schedules) == set(Schedule)
    assert PROFILES[profile.name] is profile
    assert {entry.schedule for entry in CATALOG.values()} <= set(profile.schedules)


@pytest.mark.parametrize(
    ("profile", "names", "seconds"),
    [
        (SPEC016, ("llm-call",), 60),
        (SPEC016, ("tool-execution",), 120),
        (SPEC016, ("file-read",), 5),
        (SPEC016, ("web-fetch",), 30),
        (SPEC016, ("unheard-of",), 30),
        (SPEC016, (), 30),
        (BRIDGE, ("bash",), 300),
        (BRIDGE, ("read_file",), 10),
        (BRIDGE, ("edit_file",), 30),
        (BRIDGE, ("search",), 60),
        (BRIDGE, ("nothing", "search", "bash"), 60),
        (ACTOR, ("claude",), 120),
        (ACTOR, ("bash",), 30),
        (TASK, ("anything",), 300),
    ],
)
def test_S1_20_S0_23_limits_by_the_most_specific_name_known(profile: Profile, names: Any, seconds: float) -> None:
    assert profile.timeout(*names) == seconds


@pytest.mark.parametrize(
    ("profile", "failures", "open_for", "reopening", "successes"),
    [
        (BRIDGE, 5, 60, 60, 1),
        (SPEC016, 5, 30, 30, 2),
        (STUD, 5, 30, 20, 1),
        (HOLDFAST, 12, 1, 1, 1),
        (ACTOR, 5, 60, 60, 2),
    ],
)
def test_S1_12_the_circuits_of_the_documents(
    profile: Profile, failures: int, open_for: float, reopening: float, successes: int
) -> None:
    circuit = profile.circuit
    assert (circuit.failures, circuit.open_for, circuit.successes) == (failures, open_for, successes)
    assert circuit.first_reopening() == reopening


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_offered_by_its_name_and_its_policy_has_its_numbers(name):
    profile = getattr(profiles, name)
    policy = policy_of(profile)
    assert profile is PROFILES[name]
    assert (policy.profile, policy.circuit) == (name, profile.circuit)


def test_the_policies_of_the_documents():
    assert policy_of(profiles.holdfast) is INTERACTIVE
    assert policy_of(profiles.spec016).timeout == 30
    assert policy_of(profiles.spec016, "llm-call").timeout == 60
    assert policy_of(profiles.bridge).timeout == 10
    assert policy_of(profiles.task).timeout == 300


@pytest.mark.parametrize("name", sorted(set(PROFILES) - {"holdfast"}))
def test_the_policy_of_a_document_limits_attempts_and_no_time_and_waits_for_no_circuit(name):
    policy = policy_of(PROFILES[name])
    assert (policy.deadline, policy.window, policy.waits) == (None, None, False)


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
