"""What a fleet decides together, in virtual time: pace, fair starts, when waiting helps, who looks whether a target is back."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policies.fleet_world import Limit, World, fleet_of

from holdfast.policies.fleet import (
    AHEAD_S,
    GONE_S,
    PROBE_LEASE_S,
    FleetReport,
    FleetTarget,
    MetLimit,
    restored,
    stored,
    tell,
)

SOAK = bool(os.environ.get("HOLDFAST_SOAK"))


def held(**changes):
    """A target where calls wait: five in a row were rejected."""
    target = FleetTarget(epoch=1)
    for _ in range(6):
        tell(target, FleetReport(process="a", limited=(MetLimit(),)), 0.0)
    assert target.gate.is_held
    for name, value in changes.items():
        setattr(target.pace, name, value)
    return target


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("names_pause", [False, True])
def test_a_fleet_uses_a_limit_that_nobody_told_it(count, names_pause):
    world = World(Limit(1.0, 2.0, names_pause=names_pause), fleet_of(count), offered=2.0)
    world.run(900)
    assert world.accepted >= 0.95 * 900
    assert world.share <= 0.04
    assert world.jain >= 0.98


def test_a_faster_limit_is_used_whole():
    world = World(Limit(10.0, 20.0), fleet_of(8), offered=20.0)
    world.run(300)
    assert world.accepted >= 0.97 * 3000
    assert world.share <= 0.02


def test_no_start_is_used_twice():
    world = World(Limit(5.0, 5.0), fleet_of(6), offered=10.0)
    world.run(200)
    assert len(world.used) == len(set(world.used)) > 500


@pytest.mark.parametrize("share", [0.05, 0.2, 0.3, 0.5])
def test_a_service_that_rejects_at_random_holds_nobody_up_for_long(share):
    with_it = World(Limit(100.0, 200.0, random_share=share), fleet_of(8), offered=10.0)
    with_it.run(600)
    assert with_it.accepted >= 0.85 * 6000 * (1 - share**6)


def test_a_fleet_below_its_limit_is_left_alone():
    world = World(Limit(10.0, 20.0), fleet_of(8), offered=8.0)
    world.run(300)
    assert world.share < 0.01
    assert world.messages / 300 < 6


def test_calls_of_people_do_not_wait_behind_batch_work():
    people, batch = fleet_of(1, "high"), fleet_of(7, "low")
    world = World(Limit(10.0, 20.0), people + batch, offered=16.0)
    # It comes rarely: its own queue would otherwise be what is measured.
    world.run(300)
    waits = sorted(people[0].waits[10:])
    others = sorted(wait for process in batch for wait in process.waits[10:])
    assert waits[int(0.95 * len(waits))] < 1.5
    assert others[len(others) // 2] > 2 * waits[len(waits) // 2]
    assert min(process.answered for process in batch) > 50


@settings(max_examples=2000 if SOAK else 60, deadline=None)
@given(st.integers(0, 10**6))
def test_starts_never_exceed_the_pace(seed):
    rng = random.Random(seed)
    target = held(top=rng.choice([0.5, 3.0, 40.0]), weight=100.0, pause=0.0)
    given_at, fastest, now = [], 0.0, 0.0
    for _ in range(200):
        now += rng.expovariate(20.0)
        answer = tell(target, FleetReport(process=rng.choice("abc"), waiting={"normal": rng.randrange(5)}), now)
        given_at += [now + start.at for start in answer.starts]
        fastest = max(fastest, answer.per_second)
        assert all(0 <= start.at <= AHEAD_S + 1e-9 for start in answer.starts)
    # Late ones come at once, but at most those of the time that starts are given ahead.
    given_at.sort()
    for number, first in enumerate(given_at):
        within = sum(at <= first + 1.0 for at in given_at[number:])
        assert within <= 1 + (1.0 + 4 * AHEAD_S + 0.3) * fastest


def test_calls_that_were_under_way_do_not_cut_the_pace_again():
    target = held(top=10.0, weight=100.0, pause=0.0, started=50)
    target.pace.cut_at = target.pace.since = target.pace.next = -5.0
    numbers = [start.number for start in tell(target, FleetReport(process="a", waiting={"normal": 9}), 1.0).starts]
    tell(target, FleetReport(process="a", limited=(MetLimit(numbers[0]),)), 1.1)
    top = target.pace.top
    for number in numbers[1:]:
        tell(target, FleetReport(process="a", limited=(MetLimit(number),)), 1.2)
    assert target.pace.top == top


def test_a_cut_takes_back_what_has_not_begun():
    target = held(top=100.0, weight=100.0, pause=0.0, started=50)
    target.pace.cut_at = target.pace.since = target.pace.next = -5.0
    numbers = [start.number for start in tell(target, FleetReport(process="a", waiting={"normal": 9}), 1.0).starts]
    answer = tell(target, FleetReport(process="b", limited=(MetLimit(numbers[0]),)), 1.0)
    assert answer.void >= numbers[-1]


def test_a_process_that_dies_with_a_start_does_not_block_the_others():
    target = held(top=10.0, weight=100.0, pause=0.0)
    tell(target, FleetReport(process="dead", waiting={"high": 100}), 0.3)
    got = 0
    for tick in range(1, 100):
        got += len(tell(target, FleetReport(process="b", waiting={"low": 5}), 0.3 + tick * 0.05).starts)
    assert got > 30
    tell(target, FleetReport(process="b"), 6.0 + GONE_S)
    assert set(target.members) == {"b"}


def test_what_the_engine_forgot_the_first_one_seeds_and_the_others_do_not_add():
    target = FleetTarget(epoch=2)
    first = tell(target, FleetReport(process="a", seed=12.0), 0.0)
    assert first.is_held
    assert tell(target, FleetReport(process="b", seed=12.0), 0.01).per_second == pytest.approx(
        first.per_second, rel=0.1
    )


def test_one_process_alone_opens_its_circuit_and_several_need_two():
    target = FleetTarget(epoch=1)
    assert tell(target, FleetReport(process="a", is_away=True, wants_probe=True), 0.0).hold_for > 0
    target = FleetTarget(epoch=1)
    tell(target, FleetReport(process="b"), 0.0)
    # One poisoned node finds what nobody else does.
    assert tell(target, FleetReport(process="a", is_away=True, wants_probe=True), 0.0).hold_for == 0
    assert tell(target, FleetReport(process="b", is_away=True, wants_probe=True), 0.1).hold_for > 0


@settings(max_examples=2000 if SOAK else 100, deadline=None)
@given(st.integers(0, 10**6))
def test_there_is_never_more_than_one_probe_owner(seed):
    rng = random.Random(seed)
    target, now = FleetTarget(epoch=1), 0.0
    owner: dict[str, tuple[int, float]] = {}
    for _ in range(300):
        now += rng.expovariate(3.0)
        name = rng.choice("abcd")
        number = owner.get(name, (0, 0.0))[0]
        report = FleetReport(
            process=name,
            is_away=rng.random() < 0.9,
            wants_probe=rng.random() < 0.8,
            probe_failed=number if rng.random() < 0.3 else 0,
            answered=rng.random() < 0.02,
        )
        answer = tell(target, report, now)
        owner.pop(name, None)
        if answer.probe:
            owner[name] = (answer.probe, now)
        if answer.returns and report.answered:
            owner.clear()
        alive = [each for each, (_, since) in owner.items() if now - since < PROBE_LEASE_S]
        current = [each for each in alive if owner[each][0] == target.circuit.probes and target.circuit.owner]
        assert len(current) <= 1
        assert answer.probe <= target.circuit.probes


def test_an_outcome_of_an_older_probe_changes_nothing():
    target = FleetTarget(epoch=1)
    for name in "ab":
        tell(target, FleetReport(process=name, is_away=True, wants_probe=True), 0.0)
    first = tell(target, FleetReport(process="a", is_away=True, wants_probe=True), 20.0).probe
    assert first == 1
    # The owner is killed: another one looks when its time is over.
    late = 20.0 + PROBE_LEASE_S
    second = tell(target, FleetReport(process="b", is_away=True, wants_probe=True), late).probe
    assert second == 2
    tell(target, FleetReport(process="a", is_away=True, wants_probe=True, probe_failed=first), late + 1)
    assert target.circuit.owner == "b"


def test_all_hear_of_a_return():
    target = FleetTarget(epoch=1)
    for name in "ab":
        tell(target, FleetReport(process=name, is_away=True), 0.0)
    tell(target, FleetReport(process="a", answered=True), 5.0)
    answer = tell(target, FleetReport(process="b", is_away=True, wants_probe=True), 5.1)
    assert (answer.returns, answer.hold_for) == (1, 0)


def test_what_another_version_wrote_is_read_or_forgotten():
    target = held()
    assert restored(stored(target, 5.0), 6.0)[0] == target
    assert restored(b"\xff nonsense", 6.0)[0].epoch == 6000
    assert restored(None, 6.0)[0].epoch == 6000


def test_an_engines_clock_that_jumps_back_stops_nobody():
    raw = stored(held(), 1_000_000.0)
    target, now = restored(raw, 10.0)
    assert (target.pace, now) == (None, 10.0)
    assert restored(raw, 999_999.9)[1] == 1_000_000.0
