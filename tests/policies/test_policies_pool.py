"""Which key is next: shares, rests and announced limits."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.classify.hints import AnnouncedLimit
from holdfast.faults import Fault, InvalidError
from holdfast.policies.decide import Retry
from holdfast.policies.pool import DENIED_REST_S, LIMITED_REST_S, LONGEST_REST_S, OVERTAKEN, PoolMachine


def turns(machine: PoolMachine, count: int, now: float = 0.0, **given) -> str:
    return "".join("abcdef"[machine.choose(now, **given)] for _ in range(count))


def test_keys_take_turns_by_weight_and_never_in_one_block():
    assert turns(PoolMachine([1, 1, 1]), 6) == "abcabc"
    assert turns(PoolMachine([3, 1]), 8) == "aabaaaba"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 4))
def test_over_a_round_each_key_gets_exactly_its_share(weights, rounds):
    machine = PoolMachine(weights)
    chosen = Counter(machine.choose(0.0) for _ in range(sum(weights) * rounds))
    assert [chosen[index] for index in range(len(weights))] == [weight * rounds for weight in weights]


def test_a_limited_key_rests_as_long_as_the_service_requested():
    machine = PoolMachine([1, 1])
    machine.limited(0, 0.0, requested=30.0)
    assert turns(machine, 3, now=29.9) == "bbb"
    assert "a" in turns(machine, 2, now=30.0)


def test_without_a_requested_delay_a_key_rests_longer_each_time_until_it_works():
    machine = PoolMachine([1])
    for rest in (LIMITED_REST_S, 2 * LIMITED_REST_S, 4 * LIMITED_REST_S):
        machine = _after(machine, rest)
    machine.succeeded(0, 900.0)
    machine.limited(0, 1000.0, None)
    assert machine.soonest(1000.0) == LIMITED_REST_S


def _after(machine: PoolMachine, rest: float) -> PoolMachine:
    now = 100.0 * rest
    machine.limited(0, now, None)
    assert machine.soonest(now) == rest
    return machine


def test_no_rest_is_longer_than_the_longest():
    machine = PoolMachine([1, 1])
    for _ in range(50):
        machine.denied(0, 0.0)
    assert turns(machine, 4, now=LONGEST_REST_S - 1) == "bbbb"
    assert "a" in turns(machine, 4, now=LONGEST_REST_S)


def test_if_all_keys_rest_the_soonest_is_used_and_nothing_is_counted():
    machine = PoolMachine([1, 1])
    machine.limited(0, 0.0, 30.0)
    machine.limited(1, 0.0, 10.0)
    assert turns(machine, 3, now=4.0) == "bbb"
    assert machine.soonest(4.0) == 6.0


def test_if_all_keys_were_denied_one_is_chosen_anyway():
    """The error of a denied key says what is wrong. Waiting for a revoked key would not help."""
    machine = PoolMachine([1, 1])
    machine.denied(1, 0.0)
    machine.denied(0, 1.0)
    assert turns(machine, 1, now=2.0) == "b"
    assert machine.soonest(2.0) is None
    assert machine.soonest(DENIED_REST_S + 5.0) == 0


def test_a_limited_key_is_chosen_before_a_denied_one():
    machine = PoolMachine([1, 1])
    machine.denied(0, 0.0)
    machine.limited(1, 0.0, 100.0)
    assert turns(machine, 1) == "b"


def test_a_key_whose_circuit_is_open_is_passed_over():
    machine = PoolMachine([1, 1])
    assert turns(machine, 3, shut=(0,)) == "bbb"
    assert turns(machine, 2, shut=(0, 1)) in ("aa", "bb")  # the circuit itself says no


def test_the_key_that_just_failed_comes_again_only_if_no_other_can():
    machine = PoolMachine([5, 1])
    assert turns(machine, 3, avoid=0) == "bbb"
    assert turns(machine, 1, avoid=0, shut=(1,)) == "a"


def test_a_key_whose_announced_calls_are_used_up_is_passed_over_until_its_reset():
    machine = PoolMachine([1, 1])
    machine.learn(0, AnnouncedLimit(100, 1, 20.0), 0.0)
    assert turns(machine, 4) == "abbb"
    assert machine.soonest(5.0, shut=(1,)) == 15.0
    assert "a" in turns(machine, 2, now=20.0)


def test_a_key_that_answers_rests_no_longer_for_what_was_before():
    machine = PoolMachine([1, 1])
    machine.limited(0, 10.0, 60.0)
    machine.succeeded(0, 9.0)  # it was sent before the limit was met
    assert machine._keys[0].wait(11.0) == 59.0
    machine.succeeded(0, 12.0)
    assert machine._keys[0].wait(13.0) == 0.0


def test_a_key_that_was_silent_is_asked_last_for_as_long_as_it_was_silent():
    machine = PoolMachine([1, 1])
    machine.ended(0, machine.sent(0, 0.0), 20.0)
    assert turns(machine, 3, now=39.9) == "bbb"
    assert turns(machine, 1, now=39.9, waits=(0.0, 0.1).__getitem__) == "a", (
        "it may be slow by chance, so it is better than a wait"
    )
    machine.heard(0, machine.sent(0, 39.9), good=True)
    assert "a" in turns(machine, 2, now=39.9)


def test_a_key_whose_line_is_long_is_not_ready():
    machine = PoolMachine([1, 1, 1])
    assert turns(machine, 3, waits=(0.5, 20.0, 0.0).__getitem__) == "ccc"
    assert turns(machine, 1, waits=(0.5, 20.0, 0.6).__getitem__) == "a"
    machine.limited(2, 0.0, requested=0.3)
    assert turns(machine, 1, waits=(0.5, 20.0, 0.0).__getitem__) == "c", "it is ready before the turn of the first"


def test_a_key_that_is_silent_while_others_answer_is_passed_over_and_then_rests():
    machine = PoolMachine([1, 1])
    silent = machine.sent(0, 0.0)
    for at in range(OVERTAKEN):
        assert turns(machine, 2, now=float(at)) == "ab"
        machine.heard(1, machine.sent(1, float(at)), good=True)
    assert turns(machine, 3, now=5.0) == "bbb"
    machine.ended(0, silent, 20.0)
    assert turns(machine, 3, now=39.9) == "bbb", "it rests for as long as it was silent"
    assert "a" in turns(machine, 2, now=40.0)
    machine.sent(0, 40.0)
    assert turns(machine, 3, now=41.0) == "bbb", "one request finds out whether it answers"


def test_failures_that_come_soon_overtake_nobody():
    machine = PoolMachine([1, 1])
    machine.sent(0, 0.0)
    for _ in range(9):
        machine.heard(1, machine.sent(1, 0.5), good=False)
    assert turns(machine, 4) == "abab"


def test_a_slow_answer_among_quick_ones_is_no_silence_once_the_key_answers_another():
    machine = PoolMachine([1, 1])
    machine.sent(0, 0.0)
    for _ in range(9):
        machine.heard(1, machine.sent(1, 1.0), good=True)
    machine.heard(0, machine.sent(0, 2.0), good=True)
    assert turns(machine, 4) == "abab"


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["limit", "deny", "use"]), st.floats(0, 5)), max_size=40))
def test_while_a_key_may_be_used_no_resting_key_is_chosen(steps):
    machine, now, rests = PoolMachine([1, 2, 3]), 0.0, [0.0, 0.0, 0.0]
    for key, what, passes in steps:
        now += passes
        if what == "limit":
            machine.limited(key, now, 7.0)
            rests[key] = max(rests[key], now + 7.0)
        elif what == "deny":
            machine.denied(key, now)
            rests[key] = max(rests[key], machine._keys[key].rests_until)
        chosen = machine.choose(now)
        if any(until <= now for until in rests):
            assert rests[chosen] <= now


@pytest.mark.parametrize("weights", [[0], [-1], [float("inf")], [True]])
def test_wrong_weights_are_invalid(weights):
    with pytest.raises(InvalidError, match=r"pool\.weights\[0\]"):
        PoolMachine(weights)


LIMITED = Fault.of("PROVIDER_RATE_LIMITED", retry_after=30.0)
DENIED = Fault.of("AUTH_TOKEN_REVOKED")


def after(fault, *, keys=3, moves=0, attempts=1, others=(), shut=()):
    """What a call does whose first key failed with `fault`; `others` are the rests of the other keys."""
    machine = PoolMachine([1] * keys)
    machine.failed(0, fault, 0.0)
    for index, rest in enumerate(others, 1):
        machine.limited(index, 0.0, rest)
    return machine.move_on(fault, 0.0, shut=shut, moves=moves, at_once=moves, attempts=attempts, allowed=3)


@pytest.mark.parametrize("fault", [LIMITED, DENIED])
def test_a_call_whose_key_failed_moves_to_a_ready_key_at_once_and_that_is_no_retry(fault):
    assert after(fault) == Retry(0.0, 3, "another-key")
    assert after(fault, moves=1, attempts=3) == Retry(0.0, 4, "another-key")


def test_each_other_key_is_worth_one_move():
    assert after(LIMITED, moves=2, attempts=3) == Retry(LIMITED_REST_S, 3, "requested")
    assert after(DENIED, moves=2, attempts=3) is None


def test_a_call_waits_for_the_first_key_that_is_ready_sooner_than_its_own():
    assert after(LIMITED, others=[9.0, 5.0]) == Retry(5.0, 3, "requested")
    assert after(LIMITED, others=[40.0, 50.0]) is None
    assert after(LIMITED, others=[9.0, 5.0], attempts=3) is None
    assert after(DENIED, others=[9.0, 5.0]) is None


def test_another_round_of_rejections_is_not_made_at_once():
    quick = Fault.of("PROVIDER_RATE_LIMITED", retry_after=0.05)
    assert after(quick, others=[0.0, 0.0], moves=2, attempts=3) is None
    assert after(LIMITED, others=[0.0, 0.0], moves=2, attempts=3) == Retry(LIMITED_REST_S, 3, "requested")


def test_a_key_behind_an_open_circuit_is_no_way_on():
    assert after(DENIED, keys=2, shut={1}) is None
