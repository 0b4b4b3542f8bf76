"""How a step of a script is written: WHAT;option=value%CHANCE*TIMES, with steps between commas."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.faults import InvalidError

__all__ = ["Written", "read_option", "read_step", "split_steps"]

_STEP = re.compile(r"(?P<what>.+?)(?:%(?P<chance>100|[0-9]{1,2}))?(?:\*(?P<times>[1-9][0-9]{0,5}))?", re.DOTALL)


class Written(NamedTuple):
    """A step as it was written: what happens, with which chance, how often."""

    what: str
    chance: float
    times: int


def split_steps(text: str) -> list[str]:
    """Return the steps of a text."""
    return [step.strip() for step in text.split(",")]


def read_step(text: str) -> Written | None:
    """Take a step apart; None where there is none."""
    parts = _STEP.fullmatch(text.strip())
    return parts and Written(parts["what"], int(parts["chance"] or 100) / 100, int(parts["times"] or 1))


def read_option(path: str, text: str, what: str = "a header") -> tuple[str, str]:
    """Take NAME=VALUE apart."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise InvalidError.at(path, f"{what} as NAME=VALUE", text)
    return name.strip().lower(), value.strip()
