"""The instrument is sensitive: bugs that Holdfast once had are put back one at a time, and a drawn world shows each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.neighbours.storm_bugs import BUGS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="plays are forked, and measured as Linux does it")

SHOWN = {
    "xt3_exit": 9,
    "xt3_beside": 37,
    "xt3_words": 21,
    "xt5": 9,
    "xt6": 50,
    "xt6_scripts": 59,
    "xt7_threads": 33,
    "xb6": 22,
    "xb6_exit": 64,
    "xb6_task": 3,
    "xb7_readers": 252,
    "xb7_lockout": 62,
    "xb7_requests": 56,
    "xj1_wedge": 3,
    "xj1_growing": 16,
}
"""A seed, in the worlds of the bug's room, that shows the bug."""
QUICK = ("xt5",)


def hunted(bug: str, first: int, worlds: int) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.neighbours.storm",
        "--put-back",
        bug,
        "--first",
        str(first),
        "--worlds",
        str(worlds),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4_000:]


@pytest.mark.parametrize("bug", QUICK)
def test_a_bug_that_is_put_back_is_found(bug: str):
    hunted(bug, SHOWN[bug], 1)


@pytest.mark.soak
@pytest.mark.parametrize("bug", SHOWN)
def test_each_bug_that_is_put_back_is_found(bug: str):
    hunted(bug, SHOWN[bug], 1)


def test_every_bug_has_its_world():
    assert set(SHOWN) == set(BUGS)
