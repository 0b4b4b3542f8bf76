"""Durable programs as users write them, killed at any moment: nothing happens twice, nothing that was shown changes, each one ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="programs are forked, and their ends are awaited as Linux does it"
)


def programs(*options: str) -> str:
    """Play programs in a process of their own: a process of tests has threads, and must not fork."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
    return done.stdout


def test_a_sample_of_programs_survives_its_kills():
    assert " 0 were wrong" in programs("--programs", "24", "--seed", "1", "--kills", "4", "--workers", "1")


@pytest.mark.soak
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_two_thousand_programs_survive_ten_thousand_kills(store: str):
    assert " 0 were wrong" in programs("--programs", "1000", "--seed", "1000", "--kills", "6", "--store", store)
