"""An outage under a policy, in virtual time."""

from __future__ import annotations

import asyncio
import math
from random import Random

import pytest

from holdfast import BATCH, INTERACTIVE, PATIENT, Backoff, Circuit, InvalidError, Ok, Policy, Quota, Runtime, recover
from holdfast.policies.simulation import Outage, SimulationReport, simulate
from holdfast.testing import Midpoint, ScriptedHTTPError, VirtualClock, run

HARD = Policy(circuit=None, attempts=3, backoff=Backoff(initial=1, jitter=0))


def played(policy: Policy, seed: int = 1, **outage) -> SimulationReport:
    return simulate(policy, Outage(**outage), Random(seed))


def test_the_same_seed_gives_the_same_result():
    assert played(PATIENT) == played(PATIENT)
    assert played(PATIENT) != played(PATIENT, seed=2)


def test_without_an_outage_in_reach_every_operation_is_one_good_call():
    report = played(HARD, begins=1000, ends=1001)
    assert (report.calls, report.succeeded, report.hit) == (report.operations,) * 2 + (0,)
    assert report.recovered_share == 1
    assert 1000 < report.operations < 1400


def test_every_operation_ends_one_way_and_every_call_is_seen():
    report = played(Policy())
    assert report.succeeded + report.failed == report.operations
    assert sum(second.good for second in report.seconds) == report.succeeded
    assert sum(second.good + second.failed for second in report.seconds) == report.calls
    assert sum(second.failed for second in report.seconds) == report.wasted_calls
    assert 0 <= report.recovered <= report.hit <= report.operations


def test_retries_alone_multiply_an_outage():
    report = played(HARD, begins=10, ends=100)
    down = report.hit - report.recovered
    assert report.wasted_calls >= 3 * down
    assert report.blocked == 0


def test_a_circuit_spares_what_is_down():
    rejecting = HARD.replace(circuit=Circuit(), wait_for_circuit=False)
    without, with_circuit = played(HARD), played(rejecting)
    assert with_circuit.wasted_calls < without.wasted_calls / 20
    assert with_circuit.blocked_share > 0.3


def test_a_shorter_open_time_is_back_sooner():
    slow = played(Policy(circuit=Circuit(open_for=30)), ends=40)
    fast = played(Policy(circuit=Circuit(open_for=2)), ends=40)
    assert fast.time_to_recovery < slow.time_to_recovery <= 30.5


def test_who_waits_for_the_circuit_recovers():
    assert played(PATIENT).recovered_share > 0.95
    assert played(BATCH).recovered_share > 0.95


def test_R35_a_quota_bounds_the_retries():
    report = played(HARD.replace(retry_quota=Quota(share=0.1, floor=0)), begins=0, ends=1000)
    assert report.calls <= 1.1 * report.operations + 1


def test_S1_19_one_outcome_per_operation_opens_later():
    each, whole = (
        played(Policy(circuit=Circuit(rate=None), counts=counts), rate=1).wasted_calls
        for counts in ("attempt", "operation")
    )
    assert each < whole


def test_what_is_not_counted_opens_nothing():
    report = played(Policy(), code="PROVIDER_BAD_REQUEST")
    assert (report.blocked, report.recovered) == (0, 0)
    assert report.calls == report.operations


def test_an_outage_without_end_is_never_recovered_from():
    assert played(HARD, begins=0, ends=1e6).time_to_recovery is None


@pytest.mark.parametrize("kind", ["brownout", "blips", "flapping", "slow-return"])
def test_FR23_the_default_policy_recovers_from_every_kind(kind):
    report = played(INTERACTIVE, kind=kind, begins=5, ends=65, rate=2, duration=120)
    assert report.hit > 0
    assert report.recovered_share > 0.99
    assert report.failed <= 0.01 * report.operations


def test_a_brownout_has_its_share_of_bad_seconds():
    bad = Outage(begins=0, ends=1000, kind="brownout", share=0.3).bad_seconds(Random(1))
    assert 250 < len(bad) < 350
    assert Outage().bad_seconds(Random(1)) is None


def test_it_decides_as_the_runtime_does():
    """The same arrivals in earnest, in virtual time: as many calls, as many good answers."""
    outage = Outage(begins=5, ends=20, rate=2, duration=60)
    policy = Policy(
        attempts=3, circuit=Circuit(open_for=7), backoff=Backoff(initial=1, jitter=0), wait_for_circuit=False
    )
    clock = VirtualClock()
    recovering = recover("claude", policy, runtime=Runtime(clock=clock, rng=Midpoint()))
    calls = good = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        down = outage.begins <= clock.monotonic() < outage.ends
        await asyncio.sleep(outage.fails_in if down else outage.answers_in)
        if down:
            raise ScriptedHTTPError(503)

    async def operation(at: float) -> None:
        nonlocal good
        await asyncio.sleep(at)
        outcome = await recovering.outcome(call)
        good += isinstance(outcome, Ok)

    async def main() -> None:
        rng, at, begun = Random(3), 0.0, []
        while (at := at - math.log(1.0 - rng.random()) / outage.rate) < outage.duration:
            begun.append(operation(at))
        await asyncio.gather(*begun)

    run(main(), clock=clock)
    report = simulate(policy, outage, Random(3))
    assert (report.calls, report.succeeded) == (calls, good)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"begins": -1}, "outage.begins"),
        ({"begins": 60, "ends": 60}, r"outage.ends: expected after it begins \(60 s\)"),
        ({"rate": 0}, "outage.rate"),
        ({"rate": float("inf")}, "outage.rate"),
        ({"duration": 0}, "outage.duration"),
        ({"rate": 1e6, "duration": 100}, "outage.rate: expected at most 1,000,000 operations"),
    ],
)
def test_an_outage_that_makes_no_sense_is_refused(wrong, told):
    with pytest.raises(InvalidError, match=told):
        Outage(**wrong)
