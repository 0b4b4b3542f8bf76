"""Holdfast is never worse than the plain twin: a fixed sample of worlds, and many in `make soak`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from benchmarks.harm.oracle import harms
from benchmarks.harm.world import draw

SAMPLE = range(1, 241)
"""Seeds that `make test` plays: under a minute."""
SOAK = range(100_001, 130_001)
STEP = 24


@pytest.mark.parametrize("first", SAMPLE[::STEP])
def test_no_world_of_the_sample_is_worse_than_its_twin(first: int):
    _check(range(first, first + STEP))


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK[::1000])
def test_no_world_of_many_is_worse_than_its_twin(first: int):
    _check(range(first, first + 1000))


def _check(seeds: Iterable[int]) -> None:
    bad = {seed: [str(one) for one in found] for seed in seeds if (found := harms(draw(seed)))}
    lines = [f"seed {seed}: {line}" for seed, found in bad.items() for line in found]
    assert not bad, "\n".join([*lines, f"look at one: python -m benchmarks harm --seed {min(bad)} --shrink"])
