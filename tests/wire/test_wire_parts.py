"""The small machines of the protocol: phases, close codes, positions and gaps, the ring, the outbox, reconnecting, heartbeats."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.faults import HoldfastError, InvalidError
from holdfast.wire.close import CloseCode, close_reason, reconnects
from holdfast.wire.heartbeat import HeartbeatWatch
from holdfast.wire.messages import FROM_CLIENT
from holdfast.wire.outbox import AckResult, Outbox, Outgoing
from holdfast.wire.phases import CLIENT_MESSAGES, ConnectionPhase, check_sequence
from holdfast.wire.position import Gap, GoOn, Position, Reach, resume
from holdfast.wire.reconnect import BRIDGE, LINEAR, Exhausted, NextAttempt, Reconnect, Schedule
from holdfast.wire.replay import Ring, RingMessage


class Half:
    """Chance that is always in the middle: jitter changes nothing."""

    def random(self) -> float:
        return 0.5


# --- phases ---


@pytest.mark.parametrize(
    ("phase", "received"),
    [
        (ConnectionPhase.UNAUTHENTICATED, "session_join"),
        (ConnectionPhase.UNAUTHENTICATED, "health_check"),
        (ConnectionPhase.HEALTHY, "session_message"),
        (ConnectionPhase.AUTHENTICATED, "auth"),
        (ConnectionPhase.AWAITING_ACK, "session_join"),
    ],
)
def test_S0_16_a_message_out_of_sequence_names_what_was_expected(phase: ConnectionPhase, received: str) -> None:
    fault = check_sequence(received, phase)
    assert fault is not None
    assert fault.code == "PROTO_SEQUENCE_ERROR"
    assert fault.context["received"] == received
    assert fault.context["phase"] == phase.value
    assert received not in fault.context["expected"]


def test_B10_an_unknown_type_lists_the_known_ones() -> None:
    fault = check_sequence("sesion_message", ConnectionPhase.JOINED)
    assert fault is not None
    assert fault.code == "PROTO_UNKNOWN_TYPE"
    assert "session_message" in fault.context["supported"]


def test_every_message_that_a_client_may_send_has_a_payload() -> None:
    assert set(FROM_CLIENT) == CLIENT_MESSAGES


# --- close codes ---


@pytest.mark.parametrize(
    ("code", "comes_back"),
    [(1006, True), (1012, True), (1013, True), (4000, True), (4499, True), (4500, False), (4502, True), (4504, True), (4999, False), (1000, False), (1009, False)],
)  # fmt: skip
def test_B61_the_range_of_a_close_code_decides(code: int, comes_back: bool) -> None:
    assert reconnects(code) is comes_back


def test_the_reason_of_a_close_fits_into_its_frame() -> None:
    assert len(close_reason("ü" * 200).encode()) <= 123
    assert CloseCode.SLOW == 4001


# --- positions ---


@pytest.mark.parametrize(
    ("after", "reach", "id_there", "expected"),
    [
        (0, (1, 0), None, GoOn(0)),
        (8, (1, 10), None, GoOn(8)),
        (10, (1, 10), None, GoOn(10)),
        (10, (11, 10), None, GoOn(10)),  # nothing is held any more, and nothing is missing
        (4, (5, 10), None, GoOn(4)),
        (3, (5, 10), None, "evicted"),
        (11, (1, 10), None, "ahead"),
        (8, (1, 10), "other", "diverged"),
        (8, (1, 10), "m8", GoOn(8)),
    ],
)
def test_B33_to_B41_where_a_client_can_go_on(after: int, reach: Any, id_there: str | None, expected: Any) -> None:
    oldest, top = reach
    found = resume(Position(epoch="k", offset=after, id="m8"), Reach(epoch="k", oldest=oldest, top=top), id_there)
    assert (found.reason if isinstance(found, Gap) else found) == expected


def test_another_epoch_and_messages_that_were_too_old_are_gaps() -> None:
    reach = Reach(epoch="k", oldest=5, top=10, has_expired=True)
    assert isinstance(other := resume(Position(epoch="j", offset=9), reach), Gap)
    assert other.reason == "epoch"
    assert isinstance(old := resume(Position(epoch="k", offset=1), reach), Gap)
    assert (old.reason, old.fault.code) == ("expired", "SESS_GAP")
    assert old.payload(snapshot=9)["snapshot_offset"] == 9


# --- ring ---


def held(offset: int, size: int = 10, at: float = 0.0) -> RingMessage:
    return RingMessage(offset, f"m{offset}", f"2026-01-01T00:00:{offset:02d}.000Z", b"x" * size, at)


def test_S0_26_the_oldest_are_dropped_until_it_fits() -> None:
    ring = Ring(epoch="k", max_bytes=30)
    for offset in range(1, 6):
        ring.append(held(offset), 0.0)
    assert [message.offset for message in ring] == [3, 4, 5]
    assert ring.size == 30


def test_S0_26_what_is_too_old_is_dropped_also_when_it_is_read() -> None:
    ring = Ring(epoch="k", max_age=100)
    ring.append(held(1, at=0), 0)
    ring.append(held(2, at=60), 60)
    assert ring.read(0, 101) is None
    assert [message.offset for message in ring.read(1, 101) or ()] == [2]
    assert ring.reach(200).has_expired
    assert ring.read(2, 1000) == []


def test_a_message_larger_than_the_ring_is_kept_out_and_leaves_no_hole() -> None:
    ring = Ring(epoch="k", max_bytes=30)
    ring.append(held(1), 0)
    ring.append(held(2, size=31), 0)
    assert (len(ring), ring.size, ring.oldest, ring.top) == (0, 0, 3, 2)
    ring.append(held(3), 0)
    assert ring.read(1, 0) is None
    assert [message.offset for message in ring.read(2, 0) or ()] == [3]


def test_B51_older_clients_ask_by_time_and_get_the_same_millisecond_too() -> None:
    ring = Ring(epoch="k")
    for offset in (1, 2, 3):
        ring.append(held(offset), 0)
    found, is_complete = ring.since("2026-01-01T00:00:02.000Z", 0)
    assert ([message.offset for message in found], is_complete) == ([2, 3], True)
    assert ring.since(None, 0)[1]
    small = Ring(epoch="k", max_bytes=10)
    for offset in (1, 2, 3):
        small.append(held(offset), 0)
    assert small.since("2026-01-01T00:00:01.000Z", 0) == ([held(3)], False)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 50)), max_size=60), st.integers(1, 100), st.floats(1, 100))
def test_the_ring_has_no_holes_and_counts_exactly(steps: list[tuple[int, float]], most: int, age: float) -> None:
    ring, now = Ring(epoch="k", max_bytes=most, max_age=age), 0.0
    for offset, (size, pause) in enumerate(steps, 1):
        now += pause
        ring.append(held(offset % 60, size, now)._replace(offset=offset), now)
        offsets = [message.offset for message in ring]
        assert offsets == list(range(ring.oldest, ring.top + 1))
        assert ring.size == sum(len(message.frame) for message in ring) <= most
        for after in range(offset + 1):
            found = ring.read(after, now)
            if found is None:
                assert after < ring.oldest - 1
            else:
                assert [message.offset for message in found] == list(range(after + 1, ring.top + 1))


# --- outbox ---


def outgoing(number: int, **options: Any) -> Outgoing:
    return Outgoing(f"m{number}", "s", b"x" * 10, **options)


def test_B57_everything_unacknowledged_is_sent_again_in_order() -> None:
    outbox = Outbox(window=2)
    for number in range(4):
        outbox.add(outgoing(number))
    assert [message.id for message in outbox.to_send({"s"}, 0.0)] == ["m0", "m1"]
    assert outbox.to_send({"s"}, 0.0) == []
    assert [each.message.id for each in outbox.acked([AckResult(id="m0", status="stored", offset=4)])] == ["m0"]
    assert [message.id for message in outbox.to_send({"s"}, 0.0)] == ["m2"]
    outbox.disconnected()
    assert outbox.to_send({"other"}, 0.0) == []
    assert [message.id for message in outbox.to_send({"s"}, 0.0)] == ["m1", "m2"]
    assert outbox.acked([AckResult(id="m0", status="duplicate")]) == []


@pytest.mark.parametrize("limit", [{"max_count": 2}, {"max_bytes": 25}])
def test_a_full_outbox_raises_and_drops_nothing(limit: dict[str, int]) -> None:
    outbox = Outbox(**limit)
    outbox.add(outgoing(1))
    outbox.add(outgoing(2))
    with pytest.raises(HoldfastError, match="The outbox is full: 2 messages"):
        outbox.add(outgoing(3))
    assert [message.id for message in outbox] == ["m1", "m2"]


def test_what_has_expired_is_not_sent_but_what_is_sent_may_be_stored() -> None:
    outbox = Outbox(window=1)
    outbox.add(outgoing(1, expires_at=10))
    outbox.add(outgoing(2, expires_at=10))
    outbox.to_send({"s"}, 0.0)
    assert [message.id for message in outbox.expired(11)] == ["m2"]
    assert "m1" in outbox


# --- reconnecting ---


def delays(schedule: Schedule, *, until: float = 400.0, rng: Any = None, **options: Any) -> list[float]:
    reconnect, now, found = Reconnect(schedule, lost_at=0.0), 0.0, []
    while now < until:
        match reconnect.next(now, rng or Half(), **options):
            case NextAttempt(delay=delay):
                found.append(delay)
                now += max(delay, 0.001)
            case Exhausted():
                return found
    return found


def test_S0_5_the_documented_schedule_is_exact_and_ends() -> None:
    assert delays(BRIDGE) == [1, 2, 5, 10, 30]
    assert sum(delays(BRIDGE)) == 48
    reconnect = Reconnect(BRIDGE, lost_at=0)
    for _ in range(5):
        reconnect.next(0, Half())
    ended = reconnect.next(0, Half())
    assert isinstance(ended, Exhausted)
    assert ended.fault.code == "CONN_RECONNECT_EXHAUSTED"


def test_S0_29_the_linear_schedule_has_its_own_message() -> None:
    assert delays(LINEAR) == [0, 1, 2, 3, 4]
    reconnect = Reconnect(LINEAR, lost_at=0)
    *_, ended = (reconnect.next(0, Half()) for _ in range(6))
    assert isinstance(ended, Exhausted)
    assert ended.fault.message == "Max retries exceeded"


def test_ours_goes_on_until_the_server_has_given_the_session_up() -> None:
    found = delays(Schedule())
    assert found[:6] == [1, 2, 5, 10, 30, 30]
    assert 270 <= sum(found) <= 330


def test_S0_12_after_timeouts_the_address_changes() -> None:
    reconnect = Reconnect(lost_at=0)
    found = [reconnect.next(0, Half(), timed_out=True) for _ in range(5)]
    assert [(each.delay, each.address) for each in found if isinstance(each, NextAttempt)] == [
        (1, "resolve"),
        (2, "cached"),
        (5, "resolve"),
        (10, "resolve"),
        (20, "resolve"),
    ]


def test_a_device_that_woke_up_connects_at_once() -> None:
    assert Reconnect(lost_at=0).next(0, Half(), is_awake=True) == NextAttempt(1, 0.0, "resolve")


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, 2**32))
def test_jitter_stays_within_its_share(seed: int) -> None:
    for delay, plain in zip(delays(Schedule(), rng=random.Random(seed)), (1, 2, 5, 10, 30), strict=False):
        assert 0.8 * plain <= delay <= 1.2 * plain


def test_wrong_schedules_say_what_is_wrong() -> None:
    with pytest.raises(InvalidError, match=r"reconnect\.delays"):
        Schedule(delays=())


# --- heartbeats ---


def test_N0_6_silence_is_asked_about_and_then_the_other_side_is_dead() -> None:
    beat = HeartbeatWatch(0.0)
    assert beat.check(14.9) is None
    assert beat.check(15) == "ping"
    assert beat.check(24.9) is None
    assert beat.check(25) == "dead"


def test_any_byte_is_a_sign_of_life() -> None:
    beat = HeartbeatWatch(0.0)
    beat.check(15)
    beat.received(20)
    assert beat.check(25) is None
    assert beat.check(35) == "ping"


def test_a_side_that_slept_asks_first_and_does_not_wait_long() -> None:
    beat = HeartbeatWatch(0.0)
    beat.check(15)
    assert beat.check(3600) == "ping"
    assert beat.check(3602.9) is None
    assert beat.check(3603) == "dead"
