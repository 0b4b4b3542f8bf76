"""Backoff and tries: their numbers, their bounds, and which options are invalid."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Backoff, Fault, InvalidError, Policy, Tries
from holdfast.testing import Midpoint, Scripted, seeded

SECONDS = st.floats(0, 1e6, allow_nan=False)
JITTERS = st.one_of(st.floats(0, 1), st.sampled_from(["none", "full", "equal", "decorrelated"]))


def delays(backoff: Backoff, count: int, rng: Any = None) -> list[float]:
    rng = rng or Midpoint()
    out: list[float] = []
    for retry in range(1, count + 1):
        out.append(backoff.delay(retry, rng, out[-1] if out else 0.0))
    return out


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        pytest.param(Backoff(), [1, 2, 4, 8, 16, 30, 30], id="S1-9"),
        pytest.param(Backoff(initial=5, cap=160), [5, 10, 20, 40, 80, 160], id="S2-14"),
        pytest.param(Backoff(initial=2, curve="linear"), [2, 4, 6, 8], id="S2-17"),
        pytest.param(Backoff(initial=3, curve="fixed"), [3, 3, 3], id="fixed"),
        pytest.param(Backoff(steps=(1, 2, 5, 10, 30)), [1, 2, 5, 10, 30, 30], id="S0-5"),
        pytest.param(Backoff(initial=0), [0, 0, 0], id="R71 at once"),
        pytest.param(Backoff(initial=0, cap=0), [0, 0], id="R71 nothing"),
        pytest.param(Backoff(factor=1), [1, 1, 1], id="factor 1"),
        pytest.param(Backoff(jitter="full"), [0.5, 1, 2], id="full jitter in the middle"),
        pytest.param(Backoff(jitter="equal"), [0.75, 1.5, 3], id="equal jitter in the middle"),
        pytest.param(Backoff(jitter="decorrelated"), [2, 3.5, 5.75], id="decorrelated in the middle"),
    ],
)
def test_S1_9_the_curves(backoff: Backoff, waits: list[float]) -> None:
    assert delays(backoff, len(waits)) == waits


@pytest.mark.parametrize("jitter", [0, 0.2, 1.0, "none", "full", "equal", "decorrelated"])
@pytest.mark.parametrize("retry", [1, 64, 1024, 5000, 10**9])
def test_R5_however_often_no_overflow_no_infinity_nothing_negative(jitter: Any, retry: int) -> None:
    delay = Backoff(jitter=jitter).delay(retry, seeded(1), 30.0)
    assert 0 <= delay <= 30
    assert math.isfinite(delay)


def test_R5_far_out_the_delay_is_the_cap() -> None:
    assert Backoff(jitter=0).delay(5000, Midpoint()) == 30
    assert Backoff(jitter=0, curve="linear").delay(5000, Midpoint()) == 30
    assert Backoff(jitter=0, factor=1e300, cap=1e300).delay(5000, Midpoint()) == 1e300


@pytest.mark.parametrize("jitter", [0.2, 1.0, "full", "equal", "decorrelated"])
def test_R6_the_cap_holds_after_the_jitter_in_ten_thousand_draws(jitter: Any) -> None:
    rng, backoff = seeded(6), Backoff(jitter=jitter, cap=10)
    previous = 0.0
    for draw in range(10_000):
        previous = backoff.delay(draw % 8 + 1, rng, previous)
        assert 0 <= previous <= 10


def test_R7_jitter_is_bounded_reproducible_and_not_constant() -> None:
    backoff = Backoff(initial=10, jitter=0.2)
    first, second = ([backoff.delay(1, rng) for _ in range(1000)] for rng in (seeded(7), seeded(7)))
    assert first == second
    assert all(8 <= delay <= 12 for delay in first)
    assert len(set(first)) > 900
    assert min(first) < 8.1
    assert max(first) > 11.9


def test_S1_9_spec016_jitters_after_the_cap_and_may_exceed_it() -> None:
    backoff = Backoff(jitter=0.2, jitter_after_cap=True)
    assert backoff.delay(9, Scripted(0.999999)) == pytest.approx(36, abs=0.001)
    assert backoff.delay(9, Scripted(0)) == 24


def test_no_jitter_draws_no_chance() -> None:
    for jitter in (0, "none"):
        assert Backoff(jitter=jitter).delay(2, Scripted()) == 2


@given(
    initial=SECONDS,
    factor=st.floats(1, 1e6),
    more=SECONDS,
    jitter=JITTERS,
    curve=st.sampled_from(["exponential", "linear", "fixed"]),
    retry=st.integers(1, 100_000),
    seed=st.integers(0, 1000),
    previous=SECONDS,
)
def test_R5_R6_whatever_is_built_every_delay_is_finite_and_within_bounds(
    initial: float, factor: float, more: float, jitter: Any, curve: Any, retry: int, seed: int, previous: float
) -> None:
    backoff = Backoff(initial=initial, factor=factor, cap=initial + more, jitter=jitter, curve=curve)
    delay = backoff.delay(retry, seeded(seed), min(previous, backoff.cap))
    assert 0 <= delay <= backoff.cap
    assert delay <= backoff.longest(retry) * (1 + 1e-9)
    assert backoff.wait(retry) <= backoff.cap


@given(retry=st.integers(1, 50))
def test_without_jitter_no_wait_is_shorter_than_the_one_before(retry: int) -> None:
    for backoff in (Backoff(), Backoff(curve="linear"), Backoff(steps=(1, 2, 5))):
        assert backoff.wait(retry) <= backoff.wait(retry + 1)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"initial": -1}, r"backoff\.initial"),
        ({"initial": math.nan}, r"backoff\.initial"),
        ({"initial": math.inf}, r"backoff\.initial"),
        ({"initial": "1"}, r"backoff\.initial"),
        ({"initial": True}, r"backoff\.initial"),
        ({"initial": None}, r"backoff\.initial"),
        ({"factor": 0.5}, r"backoff\.factor"),
        ({"factor": math.inf}, r"backoff\.factor"),
        ({"cap": -1}, r"backoff\.cap"),
        ({"cap": math.inf}, r"backoff\.cap"),
        ({"initial": 10, "cap": 5}, r"backoff\.cap"),
        ({"cap": 0}, r"backoff\.cap"),
        ({"jitter": 1.5}, r"backoff\.jitter"),
        ({"jitter": -0.1}, r"backoff\.jitter"),
        ({"jitter": True}, r"backoff\.jitter"),
        ({"jitter": "some"}, r"backoff\.jitter"),
        ({"curve": "cubic"}, r"backoff\.curve"),
        ({"steps": "123"}, r"backoff\.steps"),
        ({"steps": (1, -2)}, r"backoff\.steps\[1\]"),
        ({"steps": (1, 60)}, r"backoff\.steps\[1\]"),
        ({"jitter_after_cap": 1}, r"backoff\.jitter_after_cap"),
    ],
)
def test_R71_wrong_options_are_invalid(options: Any, where: str) -> None:
    with pytest.raises(InvalidError, match=where) as failed:
        Backoff(**options)
    assert "expected" in str(failed.value)
    assert "got" in str(failed.value)


def test_unknown_options_are_invalid() -> None:
    with pytest.raises(InvalidError, match="max_delay"):
        Backoff(max_delay=5)  # type: ignore[call-arg]


def test_it_is_a_value_with_a_repr_to_paste() -> None:
    backoff = Backoff(initial=2, jitter="full")
    assert eval(repr(backoff)) == backoff
    assert repr(Backoff()) == "Backoff()"
    assert msgspec.json.decode(msgspec.json.encode(backoff), type=Backoff) == backoff
    with pytest.raises(AttributeError):
        backoff.initial = 3  # type: ignore[misc]


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3"])
def test_R71_tries_count_calls_and_there_is_at_least_one(attempts: Any) -> None:
    with pytest.raises(InvalidError, match=r"tries\.attempts"):
        Tries(attempts=attempts)


def test_R71_tries_need_a_backoff() -> None:
    with pytest.raises(InvalidError, match=r"tries\.backoff"):
        Tries(backoff=5)  # type: ignore[arg-type]


def test_steps_of_a_list_are_a_value_like_those_of_a_tuple() -> None:
    steps: Any = [1.0, 2.0]  # TOML has lists only
    backoff = Backoff(steps=steps)
    steps.append(3.0)
    assert backoff == Backoff(steps=(1.0, 2.0))
    assert Policy(backoff=backoff).tries(Fault.of("CONN_RESET")).backoff is backoff
