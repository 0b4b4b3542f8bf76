"""Where in a program a step is called: the steps and parts around it, known by their values and never by an index or a path.

A step that is called inside of another one is counted apart from all others: if the outer one has a stored result, the inner one is not
called again, and nothing has drifted.

Tasks that run at the same time and make equal calls are told apart by the functions and arguments of their coroutines. That only decides
which of several equal calls is which: a call that is made by another task than before is the same call.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["in_part", "in_step", "in_task"]

_DIGITS = 16
_TASK_DIGITS = 8
"""Fewer, since it tells few tasks apart, and is in many entries of the log."""


def in_step(name: str) -> str:
    """Return the place of what is called inside of the step with this name."""
    return _digest(f"step {name}")


def in_part(key: str) -> str:
    """Return the place of what is called inside of the part of a program with this key."""
    return _digest(f"part {key}")


def in_task(around: str, fn: str, args: list[str]) -> str:
    """Return what a task is known by that runs a function with these arguments; `around` is what the task that began it is known by."""
    return _digest("\n".join(["task", around, fn, *args]))[:_TASK_DIGITS]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGITS]
