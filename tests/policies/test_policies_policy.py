"""`Policy`: checked when it is built, changed by `replace`, and resolved from the most specific option down."""

from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast import BATCH, INTERACTIVE, PATIENT, Backoff, Circuit, Fault, Hedge, InvalidError, Policy, Quota, Tries

SECONDS = [-1, 0, math.nan, math.inf, "5", True]
COUNTS = [-1, 0, 1.5, "3", True, math.nan]


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        *(("attempts", bad) for bad in COUNTS),
        *(("timeout", bad) for bad in SECONDS),
        *(("deadline", bad) for bad in SECONDS),
        *(("concurrency", bad) for bad in COUNTS),
        *(("per_second", bad) for bad in SECONDS),
        *(("max_retry_after", bad) for bad in (-1, math.nan, math.inf, "5", None)),
        *(("spread", bad) for bad in (-0.1, 1.1, math.nan, "x", None, True)),
        *(("profile", bad) for bad in ("unknown", None, 5)),
        *(("counts", bad) for bad in ("call", None)),
        *(("backoff", bad) for bad in (5, "exponential", Tries())),
        *(("circuit", bad) for bad in (True, 5, "provider")),
        *(("retry_quota", bad) for bad in (0.1, "x")),
        *(("hedge", bad) for bad in (1.0, True)),
        *(("wait_for_circuit", bad) for bad in ("yes", 1, 0)),
        *(("per_code", bad) for bad in (5, "CONN_RESET", None, ["CONN_RESET"])),
    ],
)
def test_R71_wrong_options_fail_with_what_was_expected_what_came_and_where(option: str, bad: Any) -> None:
    with pytest.raises(InvalidError, match=rf"policy\.{option}") as failed:
        Policy(**{option: bad})
    assert "expected" in str(failed.value)
    assert isinstance(failed.value, ValueError)


def test_R71_contradictory_pairs_fail() -> None:
    with pytest.raises(InvalidError, match=r"policy\.timeout"):
        Policy(timeout=10, deadline=5)
    with pytest.raises(InvalidError, match=r"policy\.waiting"):
        Policy(waiting=5)
    with pytest.raises(InvalidError, match=r"policy\.timeout"):
        Policy(timeout=60.0).replace(deadline=5)


def test_a_deadline_alone_needs_no_timeout_beside_it() -> None:
    assert Policy(deadline=5).window == Policy().replace(deadline=5).window == 5


def test_R71_zero_where_it_means_something() -> None:
    assert Policy(concurrency=1, waiting=0).waiting == 0
    assert Policy(max_retry_after=0).max_retry_after == 0
    assert Policy(spread=0).spread == 0


def test_a_code_that_does_not_exist_is_named_with_its_neighbours() -> None:
    with pytest.raises(InvalidError, match="CONN_RESET"):
        Policy(per_code={"CONN_RESETT": Tries()})  # type: ignore[dict-item]
    with pytest.raises(InvalidError, match=r"per_code\[CONN_RESET\]"):
        Policy(per_code={"CONN_RESET": 3})  # type: ignore[dict-item]


def test_unknown_options_are_invalid_also_in_replace() -> None:
    with pytest.raises(InvalidError, match="did you mean `attempts=4`"):
        Policy(retries=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidError, match="did you mean `attempts=4`"):
        Policy().replace(retries=3)  # type: ignore[call-arg]


def test_replace_changes_some_options_and_checks_all() -> None:
    policy = Policy(attempts=5, timeout=10)
    other = policy.replace(attempts=None, patience=None)
    assert (other.attempts, other.timeout, other.deadline) == (None, 10, None)
    assert policy.attempts == 5
    with pytest.raises(InvalidError):
        policy.replace(attempts=0)


def test_it_is_a_value_with_a_repr_to_paste() -> None:
    policy = Policy(
        attempts=5,
        backoff=Backoff(initial=2),
        circuit=Circuit(failures=3),
        retry_quota=Quota(share=0.2),
        hedge=Hedge(after=1),
        per_code={"CONN_RESET": Tries(attempts=2)},
    )
    assert eval(repr(policy)) == policy
    assert repr(Policy()) == "Policy()"
    assert policy == policy.replace()


def test_the_three_policies_that_users_see() -> None:
    assert Policy() == INTERACTIVE
    assert (INTERACTIVE.timeout, INTERACTIVE.deadline, INTERACTIVE.patience) == (None, None, 120)
    assert (PATIENT.timeout, BATCH.timeout) == (None, None)
    assert INTERACTIVE.wait_for_circuit is None
    assert (PATIENT.deadline, PATIENT.patience, PATIENT.wait_for_circuit) == (None, 3600, True)
    assert (BATCH.patience, BATCH.priority) == (3600, "low")
    assert BATCH.spread > 0


@pytest.mark.parametrize(
    ("policy", "code", "attempts", "first"),
    [
        (Policy(), "CONN_RESET", None, 0.7),
        (Policy(profile="stud"), "CONN_RESET", 3, 1),
        (Policy(attempts=7), "CONN_RESET", 7, 0.7),
        (Policy(attempts=7), "PROVIDER_RATE_LIMITED", 7, 1),
        (Policy(attempts=7, profile="stud"), "PROVIDER_RATE_LIMITED", 7, 5),
        (Policy(backoff=Backoff(initial=9), profile="stud"), "PROVIDER_RATE_LIMITED", 6, 9),
        (Policy(attempts=7), "SYS_UNKNOWN", 2, 1),
        (Policy(attempts=1), "SYS_UNKNOWN", 1, 1),
        (Policy(attempts=7, per_code={"SYS_UNKNOWN": Tries(attempts=4)}), "SYS_UNKNOWN", 4, 1),
        (Policy(profile="spec016"), "PROVIDER_RATE_LIMITED", 3, 1),
        (Policy(profile="task"), "CONN_RESET", 1, 1),
        (Policy(profile="task", attempts=3), "CONN_RESET", 3, 1),
    ],
)
def test_resolution_call_over_code_over_profile(policy: Policy, code: Any, attempts: int, first: float) -> None:
    tries = policy.tries(Fault.of(code))
    assert (tries.attempts, tries.backoff.wait(1)) == (attempts, first)
