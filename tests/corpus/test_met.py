"""The blind parts of `met/`: no rule is written from them, so they show how the classifier does at first sight.

The scores are floors, not goals: a rule that makes them fall is too narrow or too eager. The test counts and names nothing,
because whoever reads its output writes the rules.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.classify import from_record, read_record

HERE = Path(__file__).parent / "met"
FLOORS = {"blind_seventh.jsonl": (0.83, 5)}
"""The share that is right, and how many lines are retried against their label, at most."""


def _lines(name: str) -> list[tuple[dict[str, Any], Any]]:
    raw = (HERE / name).read_bytes().splitlines()
    return [(json.loads(line), from_record(read_record(line))) for line in raw if line.strip()]


def _right(expect: dict[str, Any], fault: Any) -> bool:
    delay = expect["delay_s"]
    return (
        fault.category.value in {expect["category"], *expect.get("alt_categories", ())}
        and fault.retryable is expect["retryable"]
        and (
            delay is None
            or (fault.retry_after is not None and abs(fault.retry_after - delay) <= max(0.1, 0.02 * delay))
        )
    )


@pytest.mark.parametrize("name", FLOORS)
def test_a_blind_part_does_not_fall_under_its_floor(name: str):
    judged = _lines(name)
    share, most = FLOORS[name]
    assert len(judged) >= 90
    assert sum(_right(line["expect"], fault) for line, fault in judged) >= share * len(judged)
    assert sum(fault.retryable and not line["expect"]["retryable"] for line, fault in judged) <= most


@pytest.mark.parametrize("name", FLOORS)
def test_no_verdict_of_a_blind_part_contradicts_itself(name: str):
    odd = [
        fault.code
        for _, fault in _lines(name)
        if fault.retryable and fault.code.startswith(("AUTH_", "PROVIDER_BILLING"))
    ]
    assert odd == []


@pytest.mark.parametrize(
    ("name", "bound", "below"),
    [
        ("open.jsonl", 102, False),
        ("open_aside.jsonl", 102, True),
        ("open_fifth.jsonl", 128, False),
        ("open_fifth_aside.jsonl", 128, True),
        ("open_sixth.jsonl", 128, False),
        ("open_sixth_aside.jsonl", 128, True),
        ("open_seventh.jsonl", 128, False),
        ("blind_seventh.jsonl", 128, True),
    ],
)
def test_the_hash_of_the_id_decides_what_is_put_aside(name: str, bound: int, below: bool):
    for raw in (HERE / name).read_text().splitlines():
        first = hashlib.sha256(json.loads(raw)["id"].encode()).digest()[0]
        assert (first < bound) is below
