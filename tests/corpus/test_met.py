"""How the parts of `met/` were split: the hash of a line's id decided what was put aside, so nobody could choose."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "met"


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
        ("open_seventh_aside.jsonl", 128, True),
        ("open_tenth.jsonl", 128, False),
        ("blind_tenth.jsonl", 128, True),
        ("open_eleventh.jsonl", 128, False),
        ("blind_eleventh.jsonl", 128, True),
        ("open_twelfth.jsonl", 128, False),
        ("blind_twelfth.jsonl", 128, True),
        ("open_thirteenth.jsonl", 128, False),
        ("blind_thirteenth.jsonl", 128, True),
        ("open_fourteenth.jsonl", 128, False),
        ("blind_fourteenth.jsonl", 128, True),
        ("open_fifteenth.jsonl", 128, False),
        ("blind_fifteenth.jsonl", 128, True),
        ("open_sixteenth.jsonl", 128, False),
        ("blind_sixteenth.jsonl", 128, True),
    ],
)
def test_the_hash_of_the_id_decides_what_is_put_aside(name: str, bound: int, below: bool):
    for raw in (HERE / name).read_text().splitlines():
        first = hashlib.sha256(json.loads(raw)["id"].encode()).digest()[0]
        assert (first < bound) is below
