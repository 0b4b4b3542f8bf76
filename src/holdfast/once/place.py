"""Where in a program a step is called: the steps and parts around it, known by their values and never by an index or a path.

A step that is called inside of another one is counted apart from all others: if the outer one has a stored result, the inner one is not
called again, and nothing has drifted.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["in_part", "in_step"]

_DIGITS = 16


def in_step(name: str) -> str:
    """Return the place of what is called inside of the step with this name."""
    return _digest(f"step {name}")


def in_part(key: str) -> str:
    """Return the place of what is called inside of the part of a program with this key."""
    return _digest(f"part {key}")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGITS]
