"""Where in a program a step is called: the steps and parts around it, known by their values and never by an index or a path.

A step that is called inside of another one is counted apart from all others: if the outer one has a stored result, the inner one is not
called again, and nothing has drifted.

Tasks that run at the same time and make equal calls are told apart by the functions and arguments of their coroutines. That only decides
which of several equal calls is which: a call that is made by another task than before is the same call. Only an unsafe call of a task that values
tell from the one before is another call.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

__all__ = [
    "entered",
    "in_part",
    "in_step",
    "in_task",
    "may_have_moved",
    "parting",
    "place_entered",
    "task_of",
    "waits_for_its_task",
    "whom_of",
    "work_for_others",
]

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


# --- the places around a call, the outermost first, as the log has them ---


def entered(place: str, task: str, *, is_named: bool) -> str:
    """Return a place as one of those around a call: with whom the task works for that entered it, and whether the program named it with a key."""
    return f"{_NAMED if is_named else ''}{place}.{whom_of(task)}"


def place_entered(around: str) -> str:
    """Return the place alone."""
    return task_of(around).removeprefix(_NAMED)


def parting(one: list[str], other: list[str]) -> int:
    """Return in how many of the places around them two calls are together."""
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: place_entered(pair[0]) == place_entered(pair[1]), pairs)))


def may_have_moved(before: list[str], now: list[str]) -> bool:
    """Whether a call may be the equal one that was in other places, before the program was changed.

    Where the program named a place with a key, the key says which call is which.
    """
    together = parting(before, now)
    return not any(each.startswith(_NAMED) for each in (*before[together:], *now[together:]))


def waits_for_its_task(before: list[str], now: list[str], alive: AbstractSet[str]) -> bool:
    """Whether a task that values tell from this one is there in this run, and comes to the call in those places."""
    level = parting(before, now)
    pairs = list(zip(before, now, strict=False))[: level + 1]
    return any(work_for_others(one, other) and whom_of(one) in alive for one, other in pairs)


_NAMED = "="
"""Begins a place that the program named with a key."""


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGITS]
