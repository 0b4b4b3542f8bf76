"""What the fault proxy decides, without a socket: the steps of one direction, and toxics as text."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.faults import InvalidError
from holdfast.testing import Midpoint, Scripted
from holdfast.testing.proxy import (
    Bandwidth,
    BlackHole,
    HalfOpen,
    Jitter,
    Latency,
    Limit,
    Reset,
    Slicing,
    toxic_of,
)
from holdfast.testing.proxy.flow import ByteFlow, ConnectionEnd, FlowStep
from holdfast.testing.proxy.toxics import address_of


def down(rng=None) -> ByteFlow:
    return ByteFlow("down", rng or Midpoint())


def steps(flow: ByteFlow, toxics, size: int) -> list[FlowStep]:
    taken = []
    while size:
        taken.append(flow.step(toxics, size))
        size -= taken[-1].size
        if taken[-1].end:
            break
    return taken


def test_without_toxics_everything_passes_at_once():
    assert steps(down(), (), 1000) == [FlowStep(0.0, 1000)]
    assert down().delay(()) == 0


def test_latency_and_jitter_add_up():
    assert down().delay((Latency(seconds=0.1), Latency(seconds=0.2), Jitter(seconds=0.4))) == pytest.approx(0.5)


def test_jitter_is_drawn_anew_for_each_chunk():
    flow = down(Scripted(0.0, 0.25, 0.75))
    assert [flow.delay((Jitter(seconds=1),)) for _ in range(2)] == [0.25, 0.75]


def test_slicing_cuts_anywhere():
    assert steps(down(), (Slicing(size=4, pause=0.1),), 10) == [FlowStep(0.1, 4), FlowStep(0.1, 4), FlowStep(0.1, 2)]


def test_bandwidth_takes_the_time_of_its_bytes():
    taken = steps(down(), (Bandwidth(rate=1000),), 500)
    assert sum(step.pause for step in taken) == pytest.approx(0.5)
    assert max(step.size for step in taken) == 20  # it drips, so that switching it off is noticed soon


def test_the_narrowest_bandwidth_counts():
    taken = steps(down(), (Bandwidth(rate=1000), Bandwidth(rate=10)), 5)
    assert sum(step.pause for step in taken) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("toxic", "end"),
    [
        (Reset(after=7), ConnectionEnd.RESET),
        (Limit(after=7), ConnectionEnd.CLOSE),
        (HalfOpen(after=7), ConnectionEnd.HANG),
    ],
)
def test_a_connection_ends_at_the_exact_byte(toxic, end):
    flow = down()
    assert steps(flow, (toxic,), 5) == [FlowStep(0.0, 5)]
    assert steps(flow, (toxic,), 5) == [FlowStep(0.0, 2, end=end)]
    assert flow.passed == 7


def test_an_ending_after_no_bytes_comes_before_the_first():
    assert down().step((Reset(),), 0) == FlowStep(0.0, 0, end=ConnectionEnd.RESET)
    assert down().step((Reset(after=1),), 0).end is None


def test_the_nearest_ending_wins_and_at_the_same_byte_the_more_abrupt_one():
    assert down().step((Limit(after=3), Reset(after=3)), 9).end is ConnectionEnd.RESET
    assert down().step((Limit(after=2), Reset(after=3)), 9) == FlowStep(0.0, 2, end=ConnectionEnd.CLOSE)


def test_a_black_hole_swallows_and_counts_nothing_as_passed():
    flow = down()
    assert flow.step((BlackHole(), Reset()), 9) == FlowStep(0.0, 9, lost=True)
    assert flow.passed == 0
    assert flow.swallows((BlackHole(),))
    assert not flow.swallows((BlackHole(direction="up"),))


def test_a_toxic_concerns_its_direction_only():
    flow = down()
    assert flow.step((Reset(direction="up"),), 9) == FlowStep(0.0, 9)
    assert flow.step((Reset(direction="down"),), 9).end is ConnectionEnd.RESET
    assert flow.delay((Latency(seconds=1, direction="up"),)) == 0


def test_a_share_of_the_connections_is_drawn_by_the_seed():
    def affected(seed: int) -> list[bool]:
        return [ByteFlow("up", Random(f"{seed}:{n}")).step((Reset(share=0.3),), 1).end is not None for n in range(1000)]

    assert affected(1) == affected(1)
    assert affected(1) != affected(2)
    assert 250 < sum(affected(1)) < 350


# --- toxics as text ---


@pytest.mark.parametrize(
    ("words", "toxic"),
    [
        ("latency=0.05", Latency(seconds=0.05)),
        ("jitter=2;direction=down", Jitter(seconds=2, direction="down")),
        ("bandwidth=1000;share=0.5", Bandwidth(rate=1000, share=0.5)),
        ("slicing=10; pause=0.1", Slicing(size=10, pause=0.1)),
        ("reset", Reset()),
        ("reset=100", Reset(after=100)),
        ("limit=0", Limit(after=0)),
        ("half-open=3;direction=up", HalfOpen(after=3, direction="up")),
        ("black-hole", BlackHole()),
    ],
)
def test_toxics_can_be_written_as_text(words, toxic):
    assert toxic_of(words) == toxic
    assert words.startswith(toxic.name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("latncy=1", "toxic: expected one of bandwidth, black-hole, half-open, jitter, latency, limit, reset, slicing, got 'latncy'"),
        ("latency", "latency.seconds: expected a value, got nothing"),
        ("latency=soon", "latency.seconds: expected float, got str"),
        ("latency=-1", "latency.seconds: expected a finite number of seconds ≥ 0, got -1.0"),
        ("latency=nan", "latency.seconds: expected a finite number of seconds ≥ 0, got nan"),
        ("reset=1.5", "reset.after: expected int, got str"),
        ("black-hole=1", "toxic black-hole: expected no value, got '1'"),
        ("limit=1;size=2", "toxic limit: expected one of direction, share, after, got 'size'"),
        ("limit=1;direction=left", "limit.direction: expected"),
        ("limit=1;share=2", "limit.share: expected a number above 0 to 1, got 2.0"),
        ("slicing=0", "slicing.size: expected a whole number ≥ 1, got 0"),
        ("bandwidth=0", "bandwidth.rate: expected a whole number ≥ 1, got 0"),
    ],
)  # fmt: skip
def test_bad_text_raises_with_expected_found_and_place(words, message):
    with pytest.raises(InvalidError) as caught:
        toxic_of(words)
    assert caught.value.fault.message.startswith(message)


def test_a_toxic_made_in_code_is_checked_too():
    with pytest.raises(InvalidError, match=r"reset\.after: expected a whole number ≥ 0, got -1"):
        Reset(after=-1)
    with pytest.raises(InvalidError, match=r"latency\.direction: expected one of both, down, up, got 'left'"):
        Latency(seconds=1, direction="left")


def test_addresses():
    assert address_of("to", "localhost:80") == ("localhost", 80)
    assert address_of("to", "[::1]:443") == ("::1", 443)
    assert address_of("to", ("h", 0)) == ("h", 0)
    assert address_of("to", "ws://127.0.0.1:3000/ws") == ("127.0.0.1", 3000)
    assert address_of("to", "https://[::1]/v1") == ("::1", 443)
    assert address_of("to", "http://example.org") == ("example.org", 80)


@pytest.mark.parametrize(
    "given",
    [
        "localhost",
        ":80",
        "h:",
        "h:http",
        "h:65536",
        "h:-1",
        "http://",
        "ftp://h",
        "http://h:99999",
        ("h", "80"),
        ("h",),
        80,
        None,
    ],
)
def test_bad_addresses_raise_invalid_error(given):
    with pytest.raises(InvalidError, match="to: expected HOST:PORT"):
        address_of("to", given)
