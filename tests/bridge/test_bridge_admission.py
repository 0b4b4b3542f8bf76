"""How many sockets an address may hold, and how fast a client may send."""

from __future__ import annotations

import pytest

from holdfast.bridge.access.admission import Admission, MessagePace, Strangers
from holdfast.bridge.settings import BridgeSettings


@pytest.fixture
def admission() -> Admission[str]:
    return Admission(
        BridgeSettings(max_unauthenticated=6, max_unauthenticated_per_address=3, max_connections_per_address=2)
    )


def test_the_oldest_stranger_of_an_address_makes_room_for_the_newest(admission):
    assert [admission.opened(name, "192.0.2.7") for name in "abc"] == [None] * 3
    assert admission.opened("d", "192.0.2.7") == "a"
    assert admission.opened("e", "192.0.2.7") == "b"
    assert admission.opened("x", "192.0.2.8") is None


def test_when_all_places_are_taken_the_address_with_most_strangers_loses_one(admission):
    for name in ("a1", "a2", "a3"):
        admission.opened(name, "192.0.2.1")
    for number in range(3):
        admission.opened(f"b{number}", f"192.0.2.{10 + number}")
    assert admission.opened("new", "192.0.2.99") == "a1"


def test_addresses_of_one_IPv6_network_count_together(admission):
    for number in range(3):
        admission.opened(f"s{number}", f"2001:db8::{number}")
    assert admission.opened("s3", "2001:db8::ffff") == "s0"


def test_whoever_authenticates_is_no_stranger_and_counts_by_address(admission):
    for name in ("a", "b", "c"):
        admission.opened(name, "192.0.2.7")
        fault = admission.authenticated(name)
        assert (fault is None) == (name != "c")
    assert fault.code == "CONN_LIMIT"
    assert [admission.opened(f"s{number}", "192.0.2.7") for number in range(3)] == [None] * 3
    admission.closed("a")
    assert admission.authenticated("s0") is None


def test_a_client_that_comes_back_takes_the_place_of_its_older_socket(admission):
    for name in ("a", "b"):
        admission.opened(name, "192.0.2.7")
        admission.authenticated(name)
    admission.opened("a again", "192.0.2.7")
    assert admission.authenticated("a again", replaces="a") is None
    admission.closed("a")
    admission.opened("c", "192.0.2.7")
    assert admission.authenticated("c").code == "CONN_LIMIT"


def test_a_socket_whose_bytes_wait_unread_does_not_make_room():
    unread = {"a", "b"}
    strangers = Strangers[str](BridgeSettings(max_unauthenticated=3), lambda each: each not in unread)
    assert [strangers.add(name, "192.0.2.7") for name in "abc"] == [None] * 3
    assert strangers.add("d", "192.0.2.7") == "c"
    unread |= {"d"}
    # All of them have said something that was not read yet. The server is slow, so nobody goes.
    assert strangers.add("e", "192.0.2.7") is None
    assert len(strangers) == 4


def test_a_socket_of_which_much_is_held_takes_more_places():
    strangers = Strangers[str](BridgeSettings(max_unauthenticated=4), lambda _: True)
    assert [strangers.add(name, "192.0.2.7") for name in "ab"] == [None] * 2
    assert strangers.holds("b", "192.0.2.7", 8_000) is None
    assert strangers.holds("b", "192.0.2.7", 30_000) == "a"
    assert len(strangers) == 4
    assert strangers.remove("b", "192.0.2.7")
    assert not strangers.remove("b", "192.0.2.7")
    assert len(strangers) == 0


def test_what_is_gone_is_forgotten(admission):
    for number in range(100):
        admission.opened(f"s{number}", f"10.0.0.{number}")
        admission.authenticated(f"s{number}")
        admission.closed(f"s{number}")
    assert (admission._known, len(admission._strangers), admission._by_address) == ({}, 0, {})


def test_a_client_that_sends_too_fast_is_slowed_down_to_its_rate():
    pace = MessagePace(60)
    now = 0.0
    for _ in range(180):
        now += pace.wait(now)
    assert now == pytest.approx(120.0, abs=1.0)
    assert pace.wait(now + 60) == 0.0
