"""Arguments of steps and inputs of turns have the same hash in every process, whatever the process's own seed of text hashes is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hashes_kit import TEXTS, hashes, pairs

from holdfast.sessions import codec

KIT = Path(__file__).with_name("hashes_kit.py")
KEPT = Path(__file__).with_name("fixtures") / "steady_hashes.json"
"""Hashes as the version before wrote them, of values that had the same hash in every process."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same program in two processes, one after the other."""
    place = str(tmp_path_factory.mktemp("hashes") / "s.db")
    return [in_process(seed, place) for seed in (1, 2)]


def in_process(seed: int, place: str) -> Any:
    env = {**os.environ, "PYTHONHASHSEED": str(seed)}
    ended = subprocess.run([sys.executable, str(KIT), place], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 9, ended.stderr
    return json.loads(ended.stdout)


def test_equal_values_have_the_same_hash_in_two_processes(runs: list[dict[str, Any]]) -> None:
    one, other = (run["hashes"] for run in runs)
    assert one.keys() == other.keys() == hashes().keys()
    assert [name for name in one if one[name] != other[name]] == []


def test_hashes_in_stored_logs_still_match(runs: list[dict[str, Any]]) -> None:
    kept = json.loads(KEPT.read_text())
    assert len(kept) > 20
    for run in runs:
        assert {name: run["hashes"][name] for name in kept} == kept


def test_values_that_differ_only_inside_of_a_set_have_different_hashes() -> None:
    def hash_of(value: Any) -> str:
        return codec.arguments_hash((value,), {}, "step")

    changed = pairs() - {frozenset({"a", "a1"})} | {frozenset({"a", "a2"})}
    assert hash_of(pairs()) != hash_of(changed)
    assert hash_of([pairs(), 1]) != hash_of([pairs(), 2])
    # Two pairs that are divided in another way.
    assert hash_of({frozenset("ab"), frozenset("cd")}) != hash_of({frozenset("ac"), frozenset("bd")})


def test_plain_values_keep_the_order_of_their_keys() -> None:
    given = {"zeta": {*TEXTS}, "alpha": [{"b": 1, "a": 2}]}
    assert list(codec.plain(given, "given")) == ["zeta", "alpha"]
    assert codec.plain(given, "given") == {"zeta": TEXTS, "alpha": [{"b": 1, "a": 2}]}


def test_steps_and_turns_with_sets_go_on_in_a_process_with_other_text_hashes(runs: list[dict[str, Any]]) -> None:
    assert [run["ran"] for run in runs] == [["outside", "inside"], []]
