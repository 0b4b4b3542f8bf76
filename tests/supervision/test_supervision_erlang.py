"""Our supervisor beside Erlang/OTP's: random trees and crash sequences give the same events, step by step.

Two differences are wanted. A supervisor that gave up has failed, so a transient one is restarted; and our window is exact, where
Erlang counts whole seconds. So the trees below have no transient supervisor that can give up, and no crash near the edge of a window.
"""

from __future__ import annotations

import os
import warnings

import pytest
from erlang_play import Nested, Sequence, Tree, Worker, comparable, has_erlang, play_erlang, play_ours, sequence

SAMPLE, ALL = 150, 2_000
REPEATS = 5
"""How often a sequence is played that took longer than its window, because the machine was busy."""


@pytest.fixture(autouse=True)
def erlang():
    if not has_erlang():
        warnings.warn("Erlang/OTP is missing, so nothing is compared with it: scripts/have-erlang", stacklevel=1)
        pytest.skip("Erlang/OTP is missing: run scripts/have-erlang (Debian: apt-get install erlang-base)")


def compare(seeds, folder):
    left = [sequence(seed) for seed in seeds]
    for _ in range(REPEATS):
        theirs = play_erlang(left, folder)
        for played in left:
            shown = theirs[played.number]
            if shown is not None:
                assert comparable(played, play_ours(played)) == comparable(played, shown), played
        left = [played for played in left if theirs[played.number] is None]
        if not left:
            return
    pytest.fail(f"this machine is too busy: {len(left)} sequences took longer than their window each time")


def test_a_sample_of_sequences_is_the_same_in_erlang(tmp_path):
    compare(range(SAMPLE), tmp_path)


@pytest.mark.soak
@pytest.mark.skipif("HOLDFAST_SOAK" not in os.environ, reason="minutes: make soak")
def test_two_thousand_sequences_are_the_same_in_erlang(tmp_path):
    compare(range(10_000, 10_000 + ALL), tmp_path)


def leaf(name, *, restart="permanent"):
    return Worker(name, restart, 5000, significant=False, failing=())


def test_A33_a_transient_supervisor_that_gives_up_is_where_we_differ(tmp_path):
    inner = Tree("s1", "one_for_one", 0, 60, "never", (leaf("b"),))
    tree = Tree("s0", "one_for_one", 3, 60, "never", (leaf("a"), Nested("transient", significant=False, tree=inner)))
    played = Sequence(1, tree, (("send", ("b",), "crash"), ("stop",)))
    theirs = play_erlang([played], tmp_path)[1]
    assert theirs == ["start a,start b[a+ b+ s1+]", "crash b[a+ s1-]", "stop a[dead]"]
    assert play_ours(played) == ["start a,start b[a+ b+ s1+]", "crash b,start b[a+ b+ s1+]", "stop b,stop a[dead]"]
