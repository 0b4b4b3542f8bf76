"""Where in a program a step is called: the steps and parts around it, known by their values and never by an index or a path.

A step that is called inside of another one is counted apart from all others: if the outer one has a stored result, the inner one is not
called again, and nothing has drifted.

Tasks that run at the same time and make equal calls are told apart by the functions and arguments of their coroutines. That only decides
which of several equal calls is which: a call that is made by another task than before is the same call. Only an unsafe call of a task that values
tell from the one before is another call.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["in_part", "in_step", "in_task", "task_of", "whom_of", "work_for_others"]

_DIGITS = 16
_TASK_DIGITS = 8
"""Fewer, since it tells few tasks apart, and is in many entries of the log."""


def in_step(name: str) -> str:
    """Return the place of what is called inside of the step with this name."""
    return _digest(f"step {name}")


def in_part(key: str) -> str:
    """Return the place of what is called inside of the part of a program with this key."""
    return _digest(f"part {key}")


def in_task(around: str, fn: str, args: list[str], *, takes_work: bool = True) -> str:
    """Return what a task is known by that runs a function with these arguments; `around` is what the task that began it is known by.

    It is the task, then a dot and who it works for, if that is known: those around it whose arguments are values and who take no work from a
    queue. A worker of a pool works for nobody in particular.
    """
    known_as, whom = task_of(around), whom_of(around)
    task = _digest("\n".join(["task", known_as, fn, *args]))[:_TASK_DIGITS]
    if args and not takes_work:
        whom = _digest("\n".join(["whom", whom, fn, *args]))[:_TASK_DIGITS]
    return f"{task}.{whom}" if whom else task


def task_of(name: str) -> str:
    """Return the task alone. Earlier versions wrote only that."""
    return name.partition(".")[0]


def whom_of(name: str) -> str:
    """Return who a task works for; empty if nothing says so."""
    return name.partition(".")[2]


def work_for_others(one: str, other: str) -> bool:
    """Whether values tell two tasks apart: what one of them did is never what the other one does."""
    return bool(whom_of(one)) and bool(whom_of(other)) and whom_of(one) != whom_of(other)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGITS]
