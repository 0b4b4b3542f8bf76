"""The page about circuits lists what the code has: every option with its default, and every preset."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from holdfast.policies.circuit import Circuit, Rule, config

PAGE = (Path(__file__).parents[2] / "docs/reference/policies/circuit.md").read_text(encoding="utf-8")


def test_the_page_lists_every_option_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert rows == [(field.name, repr(field.default)) for field in msgspec.structs.fields(Circuit)]


def test_the_page_lists_every_preset():
    rows = re.findall(r"^\| `([A-Z0-9]+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(name for name, value in vars(config).items() if isinstance(value, Circuit))


def test_the_page_names_every_rule():
    assert re.search(
        ", ".join(f"`{rule}`" for rule in list(Rule)[:-1]) + f" or `{Rule.FORCED}`", PAGE.replace("\n", " ")
    )
