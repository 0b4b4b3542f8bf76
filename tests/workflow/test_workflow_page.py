"""The reference page of the language says what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from workflow_support import value_of

from holdfast.workflow import Operators, check_program, read
from holdfast.workflow.frames import SPECIAL
from holdfast.workflow.primitives import PRIMITIVES

SCRIPT = Path(__file__).parents[2] / "scripts" / "workflow_reference.py"


def test_the_page_is_written_from_the_code():
    written = runpy.run_path(str(SCRIPT))
    assert written["PAGE"].read_text(encoding="utf-8") == written["page"](), "run python scripts/workflow_reference.py"


def test_every_form_and_primitive_is_on_the_page():
    page = runpy.run_path(str(SCRIPT))["page"]()
    missing = [name for name in (*SPECIAL, *PRIMITIVES) if f"({name}" not in page and f"`{name}`" not in page]
    assert missing == []


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_the_example_of_a_primitive_is_a_program(name):
    example = (PRIMITIVES[name].run.__doc__ or "").partition("): ")[0].partition("), ")[0] + ")"
    names = frozenset(
        (
            "a",
            "b",
            "status",
            "ready",
            "found",
            "value",
            "x",
            "name",
            "documents",
            "items",
            "more",
            "result",
            "text",
            "lines",
            "details",
        )
    )
    assert check_program(read(example), Operators(), inputs=names) == []


def test_the_examples_of_numbers_have_the_values_that_are_told():
    assert value_of("(list (- 10 1 2) (- 5) (/ 6 4) (mod 7 3) (range 3) (range 1 4))") == [
        7,
        -5,
        1.5,
        1,
        [0, 1, 2],
        [1, 2, 3],
    ]
