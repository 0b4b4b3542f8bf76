"""A hundred thousand circuits fit into memory: 1.5 KB each at most (a sample of them, counted exactly)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from circuit_bench import FAILURE, SUCCESS

from holdfast.policies.circuit import PROVIDER, Breaker, Permit

SAMPLE = 500
LIMIT = 1536


def fresh(breaker: Breaker, start: float) -> None:
    """Never called."""


def busy(breaker: Breaker, start: float) -> None:
    """Called in every part of its window, so often that Python does not share the numbers between breakers."""
    for part in range(30):
        for call in range(300):
            now = start + 3.0 * part
            permit = breaker.admit(now)
            assert isinstance(permit, Permit)
            breaker.settle(permit, FAILURE if call == 7 else SUCCESS, now + 0.25, code="PROVIDER_OVERLOADED")


def opened(breaker: Breaker, start: float) -> None:
    """Open, with its longest text."""
    busy(breaker, start)
    for _ in range(5):
        now = start + 120.0
        permit = breaker.admit(now)
        assert isinstance(permit, Permit)
        breaker.settle(permit, FAILURE, now + 0.25, code="PROVIDER_OVERLOADED", text="x" * 100)
    breaker.take_transitions()


@pytest.mark.parametrize("life", [fresh, busy, opened])
def test_a_breaker_with_its_window_and_name_takes_no_more_than_1536_bytes(life: Callable[[Breaker, float], None]):
    life(Breaker(PROVIDER, "warm up what is made once"), 0.0)
    kept: list[Breaker] = []
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(SAMPLE if life is fresh else SAMPLE // 50):
            kept.append(Breaker(PROVIDER, f"provider:claude:{number:06d}"))
            life(kept[-1], 1000.0 + number / 7)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(kept) <= LIMIT
