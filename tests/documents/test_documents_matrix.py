"""The matrix of the documents: what counts as a test of a statement, and what the check finds."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "documents.py"))


def proofs(source: str):
    return SCRIPT["proofs"](source, "test_x.py")


def test_the_page_is_what_the_tests_say():
    assert SCRIPT["main"](["--check"]) == 0, "run python scripts/documents.py"


def test_a_test_names_the_ids_that_it_proves_and_its_first_line_is_the_sentence():
    (proof,) = proofs('async def test_S0_21_N0_4_a_2_b():\n    """It says so.\n\n    More."""\n    assert run()\n')
    assert proof.ids == ("S0-21", "N0-4")
    assert proof.sentence == "It says so."


@pytest.mark.parametrize(
    "source",
    [
        'def test_S0_1_x():\n    """S."""\n    run()\n',
        'import pytest\n@pytest.mark.skip\ndef test_S0_1_x():\n    """S."""\n    assert run()\n',
        'import pytest\n@pytest.mark.xfail(reason="x")\ndef test_S0_1_x():\n    """S."""\n    assert run()\n',
        'def test_x_S0_1():\n    """S."""\n    assert run()\n',
    ],
    ids=["asserts-nothing", "skipped", "may-fail", "no-id"],
)
def test_a_test_that_cannot_fail_or_does_not_run_proves_nothing(source):
    assert proofs(source) == []


def test_the_check_names_every_gap():
    titles = SCRIPT["statements"]("# a\nS0-1 one\nS0-3 three\n")
    found = proofs("def test_S0_1_N0_9_x():\n    assert run()\n")
    wrong = SCRIPT["problems"](titles, found)
    assert wrong == [
        "S0-3 has no test that asserts it: three",
        "S0-2 is missing in ids.txt",
        "test_x.py: test_S0_1_N0_9_x names N0-9, which ids.txt lacks",
        "test_x.py: test_S0_1_N0_9_x has no docstring with the document's sentence",
    ]


@pytest.mark.parametrize("line", ["S0-1", "S5-1 five", "one S0-1", "S0-1 once\nS0-1 twice"])
def test_a_line_that_is_no_statement_is_an_error(line):
    with pytest.raises(ValueError, match=r"ids\.txt:"):
        SCRIPT["statements"](line)


def test_the_page_shows_the_statements_in_order_with_their_tests():
    titles = SCRIPT["statements"]("N1-1 n\nS1-10 ten | or more\nS1-2 two\n")
    found = proofs('def test_S1_2_N1_1_S1_10_it_is_so():\n    """It is so."""\n    assert run()\n')
    page = SCRIPT["matrix"](titles, found)
    assert [line.split(" ")[1] for line in page.splitlines() if line.startswith("| ")][1:] == ["S1-2", "S1-10", "N1-1"]
    assert "| S1-10 | ten \\| or more | It is so. (`it_is_so`) |" in page
