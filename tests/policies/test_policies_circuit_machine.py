"""The breaker: permits, generations, growing open times, manual control, transitions."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from circuit_bench import CLOSED, FAILURE, HALF_OPEN, OPEN, START, SUCCESS, Bench

from holdfast.events import CircuitState
from holdfast.policies.circuit import (
    GRADED,
    PROVIDER,
    Breaker,
    Circuit,
    Permit,
    Rule,
    Transition,
    Verdict,
)
from holdfast.policies.circuit.machine import TRANSITIONS_KEPT


@pytest.mark.parametrize("first", list(Verdict))
@pytest.mark.parametrize("second", list(Verdict))
def test_a_permit_is_settled_exactly_once(first, second):
    bench = Bench(PROVIDER)
    permit = bench.permit()
    bench.end(permit, first)
    before = bench.metrics
    bench.end(permit, second)
    assert bench.metrics == before
    assert before.total_calls == 1


def test_a_probe_is_settled_exactly_once():
    bench = Bench(Circuit(successes=2)).bad(5).wait(30.0)
    probe = bench.permit()
    bench.end(probe, SUCCESS)
    bench.end(probe, SUCCESS)
    assert bench.state is HALF_OPEN


def test_an_outcome_of_an_earlier_closed_time_is_only_a_total():
    """CLOSED, OPEN, HALF_OPEN and CLOSED again: a call that began before must not count after that."""
    bench = Bench(Circuit(failures=5, rate=None))
    late = [bench.permit() for _ in range(20)]
    bench.bad(5).wait(30.0).good()
    for permit in late:
        bench.end(permit, FAILURE)
    assert bench.state is CLOSED
    assert bench.metrics.consecutive_failures == 0
    assert bench.metrics.window_calls == 0
    assert bench.metrics.failures == 25


def test_a_late_success_of_an_earlier_closed_time_neither_ends_a_streak_nor_counts_as_a_call():
    bench = Bench(Circuit(failures=5, rate=None))
    late = bench.permit()
    bench.bad(5).wait(30.0).good().bad(4)
    bench.end(late, SUCCESS)
    assert bench.metrics.window_calls == 4
    assert bench.metrics.successes == 2
    assert bench.bad().state is OPEN


def test_a_success_ends_a_streak():
    bench = Bench(Circuit(failures=5, rate=None)).bad(4).good().bad(4)
    assert bench.state is CLOSED
    assert bench.bad().state is OPEN


def test_the_open_time_grows_with_each_bad_probe_up_to_its_cap():
    bench = Bench(Circuit(open_for=10.0, open_growth=2.0, open_cap=60.0)).bad(5)
    times = []
    for _ in range(5):
        until = bench.rejection().retry_at
        assert until is not None
        times.append(until - bench.now)
        bench.now = until
        bench.bad()
    assert times == [10.0, 20.0, 40.0, 60.0, 60.0]


def between_probes(bench: Bench, probes: int, *, took: float = 0.0) -> list[float]:
    """Let this many bad probes through, each as soon as possible; return the seconds between their starts."""
    began = []
    for _ in range(probes):
        while bench.state is OPEN:
            bench.now = bench.rejection().retry_at or bench.now
        began.append(bench.now)
        bench.bad(took=took)
    return [after - before for before, after in pairwise(began)]


def test_after_a_bad_probe_the_next_comes_sooner_than_the_first_did():
    bench = Bench(Circuit()).bad(5)
    assert bench.rejection().retry_at == bench.now + 30.0
    assert between_probes(bench, 4) == [20.0, 20.0, 20.0]


def test_a_long_bad_probe_does_not_delay_the_next():
    assert between_probes(Bench(Circuit()).bad(5), 4, took=15.0) == [20.0, 20.0, 20.0]


def test_after_a_probe_that_hung_for_longer_than_the_circuit_reopens_the_next_may_go_at_once():
    bench = Bench(Circuit()).bad(5).wait(30.0).bad(took=60.0)
    assert bench.state is HALF_OPEN
    assert bench.taken()[-1].until == bench.now
    bench.permit()


def test_the_time_between_probes_grows_from_reopen_for_up_to_the_cap():
    growing = Circuit(open_for=30.0, reopen_for=10.0, open_growth=2.0, open_cap=70.0)
    assert between_probes(Bench(growing).bad(5), 5) == [20.0, 40.0, 70.0, 70.0]


@pytest.mark.parametrize("reopen_for", [None, 45.0])
def test_the_time_between_probes_is_never_longer_than_the_first_opening_unless_it_grows(reopen_for):
    assert between_probes(Bench(Circuit(reopen_for=reopen_for)).bad(5), 3) == [30.0, 30.0]


def open_time_after(bench: Bench, seconds: float) -> float:
    """Let a call fail with a requested delay; return how long the circuit then stays open."""
    bench.breaker.settle(bench.permit(), FAILURE, bench.now, "PROVIDER_RATE_LIMITED", requested=seconds)
    until = bench.rejection().retry_at
    assert until is not None
    return until - bench.now


@pytest.mark.parametrize(("requested", "open_for"), [(12.0, 12.0), (0.0, 1.0), (300.0, 300.0), (9_000.0, 600.0)])
def test_it_stays_open_as_long_as_the_service_requests(requested, open_for):
    assert open_time_after(Bench(Circuit(failures=1)), requested) == open_for
    assert open_time_after(Bench(Circuit()).bad(5).wait(30.0), requested) == open_for


def test_a_requested_delay_does_not_lengthen_the_time_between_later_probes():
    bench = Bench(Circuit(failures=1))
    bench.wait(open_time_after(bench, 300.0)).bad()
    assert bench.rejection().retry_at == bench.now + 20.0


def test_closing_resets_the_open_time():
    bench = Bench(Circuit(open_for=10.0, open_growth=3.0)).bad(5).wait(10.0).bad().wait(30.0).good().bad(5)
    assert bench.rejection().retry_at == bench.now + 10.0


def test_ten_thousand_bad_probes_do_not_overflow_the_open_time():
    bench = Bench(Circuit(open_for=1.0, open_growth=1e300, open_cap=2.0)).bad(5)
    for _ in range(10_000):
        bench.wait(2.0).bad()
    assert bench.rejection().retry_at == bench.now + 2.0


@pytest.mark.parametrize("probes", [1, 2, 5])
@pytest.mark.parametrize("seed", range(10))
def test_the_half_open_limit_holds_under_any_interleaving(probes, seed):
    rng = random.Random(seed)
    bench = Bench(Circuit(probes=probes, successes=1_000)).bad(5).wait(30.0)
    out: list[Permit] = []
    for _ in range(500):
        if out and rng.random() < 0.4:
            bench.end(out.pop(rng.randrange(len(out))), rng.choice([SUCCESS, Verdict.IGNORED, Verdict.CANCELLED]))
        elif len(out) == probes:
            bench.rejection()
        else:
            out.append(bench.permit())
    assert bench.state is HALF_OPEN


def test_probes_out_when_it_reopens_do_not_hold_places_the_next_time():
    bench = Bench(Circuit(probes=2)).bad(5).wait(30.0)
    bench.permit()
    bench.end(bench.permit(), FAILURE)
    bench.wait(30.0)
    bench.permit()
    bench.permit()
    bench.rejection()


def test_transitions_say_from_to_when_why_and_until_and_are_taken_once():
    bench = Bench(PROVIDER).bad(5).wait(30.0).good()
    assert bench.taken() == (
        Transition(
            from_=CLOSED, to=OPEN, at=START, reason="PROVIDER_OVERLOADED", until=START + 30.0, rule=Rule.FAILURES
        ),
        Transition(from_=OPEN, to=HALF_OPEN, at=START + 30.0),
        Transition(from_=HALF_OPEN, to=CLOSED, at=START + 30.0),
    )
    assert bench.taken() == ()
    assert bench.breaker.pending == ()


def test_transitions_nobody_takes_do_not_pile_up():
    bench = Bench(PROVIDER).bad(5)
    for _ in range(100):
        bench.wait(30.0).bad()
    waiting = bench.taken()
    assert len(waiting) == TRANSITIONS_KEPT
    assert waiting[-1].at == bench.now


def test_looking_at_the_state_changes_nothing():
    bench = Bench(PROVIDER).bad(5).wait(30.0)
    bench.taken()
    assert bench.state is HALF_OPEN
    assert bench.metrics.state is HALF_OPEN
    assert bench.changes() == []


def test_a_disabled_circuit_lets_everything_through_uncounted():
    bench = Bench(Circuit(mode="disabled")).bad(50)
    assert bench.state is CLOSED
    assert bench.metrics.total_calls == 0


def test_disabling_an_open_circuit_closes_it_and_enabling_makes_it_count_again():
    bench = Bench(PROVIDER).bad(5)
    bench.breaker.disable(bench.now)
    assert bench.breaker.held
    assert bench.bad(50).state is CLOSED
    bench.breaker.enable(bench.now)
    assert not bench.breaker.held
    assert bench.bad(5).state is OPEN


def test_a_call_from_before_disabling_cannot_open_it():
    bench = Bench(PROVIDER)
    permits = [bench.permit() for _ in range(10)]
    bench.breaker.disable(bench.now)
    for permit in permits:
        bench.end(permit, FAILURE)
    assert bench.state is CLOSED


def test_metrics_only_counts_and_never_opens():
    bench = Bench(Circuit(mode="metrics-only")).bad(50)
    assert bench.state is CLOSED
    assert bench.metrics.failures == 50
    assert bench.metrics.failure_rate == 1.0
    bench.breaker.reconfigure(PROVIDER, bench.now)
    assert bench.bad().state is OPEN


def test_a_forced_open_circuit_rejects_every_call_until_it_is_configured_otherwise():
    bench = Bench(Circuit(mode="forced-open"))
    assert bench.wait(1e6).rejection().rule is Rule.FORCED
    bench.breaker.release(bench.now)
    bench.breaker.reset(bench.now)
    bench.rejection()
    assert bench.changes() == []
    bench.breaker.reconfigure(PROVIDER, bench.now)
    assert bench.changes() == [(OPEN, CLOSED)]
    assert bench.good().state is CLOSED


def test_a_half_open_circuit_that_gets_fewer_probes_lets_fewer_run():
    bench = Bench(Circuit(failures=3, rate=None, probes=2, successes=2)).bad(3).wait(30)
    bench.permit()
    bench.breaker.reconfigure(Circuit(failures=3, rate=None, probes=1), bench.now)
    assert bench.rejection()


def test_holding_open_is_stronger_than_disabling():
    bench = Bench(PROVIDER)
    bench.breaker.disable(bench.now)
    bench.breaker.force_open(bench.now)
    bench.rejection()
    bench.breaker.release(bench.now)
    bench.good()
    assert bench.metrics.total_calls == 0


def test_a_surplus_release_changes_nothing():
    bench = Bench(PROVIDER)
    bench.breaker.release(bench.now)
    bench.breaker.force_open(bench.now)
    bench.rejection()


def test_holding_open_what_is_open_is_no_change_but_ends_its_timer():
    bench = Bench(PROVIDER).bad(5)
    bench.taken()
    bench.breaker.force_open(bench.now)
    assert bench.changes() == []
    assert bench.wait(30.0).rejection().retry_at is None
    assert bench.metrics.opens == 1
    assert bench.metrics.open_until is None


def test_a_call_that_was_out_when_it_was_held_open_does_not_count():
    bench = Bench(PROVIDER).bad(4)
    late = bench.permit()
    bench.breaker.force_open(bench.now)
    bench.breaker.release(bench.now)
    bench.end(late, FAILURE)
    assert bench.state is CLOSED
    assert bench.metrics.consecutive_failures == 0


def test_reset_closes_forgets_and_takes_back_force_open_and_disable():
    bench = Bench(PROVIDER).bad(5)
    bench.breaker.force_open(bench.now)
    bench.breaker.disable(bench.now)
    bench.breaker.reset(bench.now)
    assert bench.state is CLOSED
    assert not bench.breaker.held
    assert bench.metrics.window_calls == 0
    assert bench.metrics.failures == 5
    assert bench.bad(4).state is CLOSED


def test_reset_of_a_closed_circuit_forgets_without_an_event():
    bench = Bench(PROVIDER).bad(4)
    bench.breaker.reset(bench.now)
    assert bench.changes() == []
    assert bench.bad(4).state is CLOSED


def test_R87_idle_since_is_when_a_permit_was_last_requested():
    breaker = Breaker(PROVIDER)
    assert breaker.idle_since < 0
    breaker.admit(7.0)
    assert breaker.idle_since == 7.0
    breaker.force_open(8.0)
    breaker.admit(9.0)
    assert breaker.idle_since == 9.0


def test_a_reading_of_the_time_from_just_before_is_harmless():
    """Threads read the clock before they wait for the lock, so a later call may bring an earlier time."""
    bench = Bench(Circuit(failures=None, rate=0.5, volume=10)).good(4).wait(6.0).bad(2).wait(-4.0).bad(1).wait(4.0)
    assert bench.metrics.window_calls == 7
    assert bench.metrics.failure_rate == 3 / 7


def test_S1_2_of_the_calls_with_a_fallback_one_looks_again_at_a_time():
    breaker = Breaker(GRADED, "claude")
    for second in range(3):
        breaker.settle(breaker.admit(float(second)), Verdict.FAILURE, float(second), first=second > 0)
    assert breaker.makes_way(3.0) is None
    assert breaker.makes_way(3.1).retry_at == 23.0, "the first one may hang"
    assert breaker.makes_way(23.0) is None
    breaker.settle(breaker.admit(23.0), Verdict.SUCCESS, 24.0)
    assert breaker.makes_way(24.0) is None


def test_one_request_that_fails_again_and_again_sends_no_other_to_the_fallback():
    breaker = Breaker(GRADED, "claude")
    for second in range(9):
        breaker.settle(breaker.admit(float(second)), Verdict.FAILURE, float(second), first=not second)
    breaker.makes_way(9.0)
    assert breaker.makes_way(9.1) is None


def open_graded(first_failures: int) -> Breaker:
    breaker = Breaker(GRADED, "claude")
    for second in range(12):
        permit = breaker.admit(float(second))
        assert isinstance(permit, Permit)
        breaker.settle(permit, Verdict.FAILURE, float(second), first=second < first_failures)
    assert breaker.recorded_state is CircuitState.OPEN
    return breaker


def test_XR3_a_graded_circuit_never_holds_back_the_attempts_of_the_plain_client():
    breaker = open_graded(12)
    assert [isinstance(breaker.admit(11.1, tries), Permit) for tries in (0, 0, 1, 2, 3, 9)] == [True] * 4 + [False] * 2


def test_a_good_answer_to_a_first_attempt_shows_that_the_service_is_back():
    breaker = open_graded(12)
    first = breaker.admit(11.5, 0)
    assert isinstance(first, Permit)
    breaker.settle(first, Verdict.SUCCESS, 11.9)
    assert breaker.state(11.9) is CircuitState.HALF_OPEN
    assert isinstance(breaker.admit(11.9, 5), Permit)


def test_an_answer_that_began_while_it_was_open_counts_although_a_probe_is_due_since():
    breaker = open_graded(12)
    early = breaker.admit(11.5, 0)
    assert isinstance(early, Permit)
    late = breaker.admit(13.0, 5)
    assert isinstance(late, Permit)
    breaker.settle(early, Verdict.SUCCESS, 13.5)
    assert breaker.room(13.5) > 0


def test_XR7_a_service_that_takes_only_so_many_calls_is_not_overrun_when_it_returns():
    breaker, now = open_graded(12), 100.0
    first = breaker.admit(now, 5)
    assert isinstance(first, Permit)
    breaker.settle(first, Verdict.SUCCESS, now)
    most = 0
    for _ in range(300):
        now += 1.0
        permits = [permit for _ in range(200) if isinstance(permit := breaker.admit(now, 5), Permit)]
        most = max(most, len(permits))
        for number, permit in sorted(enumerate(permits), reverse=True):  # a rejection comes sooner than an answer
            breaker.settle(permit, Verdict.SUCCESS if number < 20 else Verdict.FAILURE, now + 0.5)
        if breaker.recorded_state is CircuitState.CLOSED:
            break
    assert most <= 64


def test_a_failure_of_a_service_that_answers_most_calls_lasts_for_a_moment():
    assert Bench(GRADED).bad().breaker.failure_lasts(1000.0) == 0.0, "nothing is known about it"
    bench = Bench(GRADED).good(3).bad()
    assert bench.breaker.failure_lasts(bench.now) == 1.0
    bench.wait(1.0).bad()
    assert bench.breaker.failure_lasts(bench.now) == 0.0, "two bad moments, and no answer in between"
    bench.wait(1.0).good().bad(2)
    assert bench.breaker.failure_lasts(bench.now) == 0.0, "half of the calls failed"
    bench.wait(1.0).good(4).bad()
    assert bench.breaker.failure_lasts(bench.now) == 1.0
    assert bench.wait(70.0).bad().breaker.failure_lasts(bench.now) == 0.0, "the good calls are too long ago"
    other = Bench(PROVIDER).good(3).bad()
    assert other.breaker.failure_lasts(other.now) == 0.0, "a circuit with exact numbers"


def test_a_graded_circuit_lets_retries_wait_for_a_moment_after_a_failure_of_another_call():
    bench = Bench(GRADED).bad()
    failed = bench.now
    bench.wait(0.3)
    rejection = bench.breaker.rests(bench.now, since=0.0)
    assert rejection is not None
    assert (rejection.rule, rejection.retry_at) == (Rule.PACE, failed + 1.0)
    assert bench.breaker.rests(bench.now, since=failed) is None, "its own failure"
    bench.wait(0.3)
    assert bench.breaker.rests(bench.now, since=0.0) is None
    bench.bad().good()
    assert bench.breaker.rests(bench.now, since=0.0) is None, "an answer came since"
    other = Bench(PROVIDER).bad()
    assert other.breaker.rests(other.now, since=0.0) is None
    held = Bench(GRADED).bad()
    held.breaker.force_open(held.now)
    assert held.breaker.rests(held.now, since=0.0) is None, "the circuit itself says what to wait for"
