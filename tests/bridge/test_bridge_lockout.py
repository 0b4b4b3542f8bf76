"""Who guesses tokens waits longer and longer; who shares nothing with them does not."""

from __future__ import annotations

import pytest

from holdfast.bridge.access.lockout import Lockout, LockoutLimits, address_group
from holdfast.faults import InvalidError


def guess(lockout: Lockout, peer: str, now: float, token_id: str = "") -> bool:
    """One wrong token, if it would be compared."""
    if lockout.wait(peer, token_id, now):
        return False
    lockout.wrong(peer, token_id, now)
    return True


@pytest.mark.parametrize(("pace", "most"), [(5, 130), (55, 500), (60, 1440)])
def test_B85_guesses_of_a_day_from_one_address_are_few_at_any_pace(pace, most):
    lockout = Lockout()
    compared = sum(guess(lockout, "127.0.0.1", float(second)) for second in range(0, 86_400, pace))
    # Who is never locked guesses once a minute. Who is faster guesses once in a quarter of an hour.
    assert compared <= most


def test_a_person_who_mistypes_now_and_then_is_never_locked():
    lockout = Lockout()
    assert all(guess(lockout, "192.0.2.7", second * 60.0) for second in range(500))


def test_the_lock_is_a_first_one_again_after_a_quiet_hour():
    lockout = Lockout(LockoutLimits(attempts=1))
    now = 0.0
    for _ in range(6):
        while not lockout.wrong("192.0.2.7", "", now):
            pass
        now += lockout.wait("192.0.2.7", "", now)
    assert lockout.wait("192.0.2.7", "", now - 0.5) == 0.5
    now += 3600
    while not lockout.wrong("192.0.2.7", "", now):
        pass
    assert lockout.wait("192.0.2.7", "", now) == 1


def test_a_right_token_does_not_buy_more_guesses():
    lockout = Lockout()
    for _ in range(10):
        lockout.right("127.0.0.1", "phone")
        assert guess(lockout, "127.0.0.1", 0.0)
    lockout.right("127.0.0.1", "phone")
    guess(lockout, "127.0.0.1", 0.0)
    assert lockout.wait("127.0.0.1", "phone", 0.0) > 0


def test_B85_many_addresses_meet_the_limit_over_all_and_known_ones_go_on():
    lockout = Lockout()
    lockout.right("192.0.2.7", "phone")
    compared = sum(guess(lockout, f"10.0.{number // 256}.{number % 256}", 0.0) for number in range(5000))
    assert compared == 201
    assert lockout.wait("203.0.113.9", "", 0.0) == 1
    assert lockout.wait("192.0.2.7", "phone", 0.0) == 0


def test_guesses_at_one_token_from_many_addresses_lock_it_for_strangers_only():
    lockout = Lockout()
    lockout.right("192.0.2.7", "phone")
    compared = sum(guess(lockout, f"10.0.0.{number}", 0.0, "phone") for number in range(100))
    assert compared == 21
    assert lockout.wait("203.0.113.9", "phone", 0.0) == 1
    assert lockout.wait("203.0.113.9", "tablet", 0.0) == 0
    assert lockout.wait("192.0.2.7", "phone", 0.0) == 0


def test_what_is_remembered_is_bounded():
    lockout = Lockout(LockoutLimits(remembered=100))
    for number in range(5000):
        lockout.wrong(f"10.0.{number // 256}.{number % 256}", f"id {number}", number * 1.0)
        lockout.right(f"10.1.{number // 256}.{number % 256}", f"id {number}")
    assert len(lockout._addresses) == len(lockout._tokens) == 100
    assert len(lockout._known) == 200


@pytest.mark.parametrize(
    ("peer", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::/64"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(peer, group):
    assert address_group(peer) == group


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"refill": 0}, {"first": -1}, {"longest": "1"}, {"overall": True}])
def test_wrong_limits_are_named(wrong):
    with pytest.raises(InvalidError, match=next(iter(wrong))):
        LockoutLimits(**wrong)
