"""Durations as tenacity takes them: seconds, or a timedelta."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any, TypeAlias

from holdfast.faults import InvalidError

__all__ = ["MAX_WAIT", "Duration", "seconds"]

Duration: TypeAlias = float | timedelta

MAX_WAIT = sys.maxsize / 2
"""As good as for ever, and still a number that can be slept."""


def seconds(path: str, value: Any) -> float:
    """Return a duration in seconds; refuse what nobody can wait for."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0:
        raise InvalidError.at(path, "seconds ≥ 0 or a timedelta", value)
    return min(float(number), MAX_WAIT)
