"""Nobody is harmed by a hostile or unlucky neighbour: a fixed sample of worlds, and many in `make soak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.neighbours.storm_world import ACTS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="plays are forked, and measured as Linux does it")

SAMPLE = {"actors": 4, "agents": 1, "tools": 1, "sessions": 1, "bridge": 1}
"""Worlds of each room that `make test` plays: 20 s in all, on a machine that does nothing else."""
SOAK = 120
"""Worlds of each room that `make soak` plays: an hour."""


def worlds(*options: str) -> str:
    """Play worlds in a process of their own: a process of tests has threads, and must not fork."""
    command = [sys.executable, "-m", "tests.neighbours.storm", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.parametrize("room", SAMPLE)
def test_a_sample_of_neighbours_keeps_what_it_has(room: str):
    assert ", 0 with harm" in worlds("--rooms", room, "--worlds", str(SAMPLE[room]), "--first", "1")


@pytest.mark.soak
@pytest.mark.parametrize("room", ACTS)
def test_neighbours_keep_what_they_have_in_many_worlds(room: str):
    assert ", 0 with harm" in worlds("--rooms", room, "--worlds", str(SOAK), "--first", "1000", "--shrink")
