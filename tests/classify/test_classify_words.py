"""The files of words that the rules look for: a person can read them, and every group has a rule that uses it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import holdfast.classify
from holdfast.classify.words import Words
from holdfast.faults import CODES

HOME = Path(holdfast.classify.__file__).parent
FAMILIES = sorted(path.stem for path in (HOME / "words").glob("*.txt"))

every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
def test_the_lines_of_a_group_are_sorted_and_each_stands_there_once(family: str):
    for group, code, text in Words(family).rows:
        lines = text.split("\n")[:-1]
        lines = lines[:-1] if lines[-1] == "" else lines
        assert lines == sorted(set(lines), key=lambda line: (line.lower(), line)), f"{group} {code}"
        assert all(line == line.strip() != "" for line in lines), f"{group} {code}"


@every_family
def test_a_row_names_a_code_and_a_group_has_one_name(family: str):
    rows = Words(family).rows
    assert {code for _, code, _ in rows if code} <= set(CODES)
    tables = {name for name, code, _ in rows if code}
    groups = Counter(name for name, code, _ in rows if not code)
    assert groups.keys().isdisjoint(tables)
    assert set(groups.values()) <= {1}


@every_family
def test_every_group_is_used_by_the_rules_of_its_family(family: str):
    source = "".join(path.read_text(encoding="utf-8") for path in HOME.rglob(f"{family}.py"))
    used = set(re.findall(r'_LISTED(?:\[|\.\w+\()"([^"]+)"', source))
    used |= {f"{table}.{part}" for table in re.findall(r'_rows\("(\w+)"\)', source) for part in ("about", "happened")}
    assert used == {name for name, _, _ in Words(family).rows}


def test_a_family_without_a_file_is_an_error():
    with pytest.raises(OSError, match="nowhere"):
        Words("nowhere")


def test_a_number_of_the_system_may_be_written_as_its_name():
    numbers = Words("network").numbers("errnos")
    assert numbers[104] == "CONN_RESET"
    assert numbers[10054] == "CONN_RESET"
