"""The clients in Python and JavaScript decide the same: a table of cases, and random scripts, run through both machines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from machine_scripts import in_node, in_python, random_script

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "client_cases.json").read_text(encoding="utf-8"))
SCRIPTS = 20_000 if os.environ.get("HOLDFAST_SOAK") else 80


def contains(found: Any, expected: Any) -> bool:
    """Whether `found` has everything that is expected, and perhaps more fields."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(contains(found.get(key), value) for key, value in expected.items())
    if isinstance(expected, float):
        return isinstance(found, int | float) and abs(found - expected) < 1e-9
    return bool(found == expected)


def check(case: dict[str, Any], done: list[dict[str, Any]]) -> None:
    assert len(done) == len(case["steps"])
    for number, (step, found) in enumerate(zip(case["steps"], done, strict=True), 1):
        where = f"step {number} ({step['do']}) did {json.dumps(found)}"
        if "raised" in step:
            assert found == {"raised": step["raised"]}, where
            continue
        effects = found.get("effects", [])
        assert len(effects) == len(step["effects"]), where
        for effect, expected in zip(effects, step["effects"], strict=True):
            assert contains(effect, expected), f"{where}, expected {json.dumps(expected)}"
        assert found["status"] == step.get("status", found["status"]), where


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_python_client_does_what_the_table_says(case: dict[str, Any]) -> None:
    check(case, in_python(case))


@pytest.fixture(scope="module")
def done_in_node() -> list[list[dict[str, Any]]]:
    return in_node(CASES)


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: CASES[place]["name"])
def test_the_javascript_client_does_what_the_table_says(place: int, done_in_node: list[list[dict[str, Any]]]) -> None:
    check(CASES[place], done_in_node[place])


def test_both_clients_do_the_same_in_random_scripts() -> None:
    """Every effect, status, time, position and fault, after every step."""
    scripts = [random_script(seed) for seed in range(SCRIPTS)]
    for seed, (script, in_javascript) in enumerate(zip(scripts, in_node(scripts), strict=True)):
        found = json.loads(json.dumps(in_python(script)))
        for number, (here, there) in enumerate(zip(found, in_javascript, strict=True)):
            assert here == there, f"seed {seed}, step {number}: {json.dumps(script['steps'][number])}"
