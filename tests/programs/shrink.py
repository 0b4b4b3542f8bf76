"""The smallest program that is still wrong in the same way: fewer parts, fewer starts, nothing odd, no edit."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.programs.program import Kill, Program, Start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["shrink"]

_MARKS = 60
_TRIES = 2
"""A kill meets a program of several tasks in another moment each time."""


def shrink(program: Program, is_wrong: Callable[[Program], bool], *, seconds: float = 60.0) -> Program:
    """Return a smaller program for which `is_wrong` holds too, as far as it gets in this time."""
    until = time.monotonic() + seconds
    smallest = program
    progress = True
    while progress and time.monotonic() < until:
        progress = False
        for smaller in _smaller(smallest):
            if time.monotonic() > until:
                break
            found = next((each for each in _rescheduled(smaller) if time.monotonic() < until and is_wrong(each)), None)
            if found is not None:
                smallest, progress = found, True
                break
    return smallest


def _smaller(program: Program) -> Iterator[Program]:
    if program.starts:
        yield replace(program, starts=())
    if len(program.starts) > 1:
        # One kill, at the first moment that does it.
        kept = [
            replace(start, kill=None)
            for start in program.starts
            if start.restore or start.back_up or start.behind or start.prune
        ]
        edited = any(start.edited for start in program.starts)
        if not kept:
            yield from (replace(program, starts=_one(number, edited=edited)) for number in range(1, _MARKS))
    for number in range(len(program.parts)):
        yield replace(program, parts=program.parts[:number] + program.parts[number + 1 :])
    if program.edit:
        yield replace(program, edit="", starts=tuple(replace(start, edited=False) for start in program.starts))
    if program.reopen:
        yield replace(program, reopen=False)
    if not program.attended:
        yield replace(program, attended=True)
    if any(start.clock for start in program.starts):
        yield replace(program, starts=tuple(replace(start, clock=0.0) for start in program.starts))
    if any(start.prune for start in program.starts):
        yield replace(program, starts=tuple(replace(start, prune=False) for start in program.starts))
    if any(start.slow for start in program.starts):
        yield replace(program, starts=tuple(replace(start, slow=False) for start in program.starts))
    for number, part in enumerate(program.parts):
        simpler = [replace(part, odd="")] if part.odd else []
        simpler += [replace(part, variant=part.variant % 60 % 6)] if part.variant > 5 else []
        for each in simpler:
            yield replace(program, parts=(*program.parts[:number], each, *program.parts[number + 1 :]))
    if len(program.starts) > 1:
        for number in range(len(program.starts)):
            yield replace(program, starts=program.starts[:number] + program.starts[number + 1 :])


def _one(mark: int, *, edited: bool) -> tuple[Start, ...]:
    start = Start(kill=Kill("mark", mark))
    return (start, Start(edited=True)) if edited else (start,)


def _rescheduled(program: Program) -> Iterator[Program]:
    """The same program, killed as before, and if it has lost a part also at other moments."""
    for _ in range(_TRIES if program.starts else 1):
        yield program
    if len(program.starts) == 1 and (kill := program.starts[0].kill) is not None and kill.how == "mark":
        for number in range(1, kill.n):
            yield replace(program, starts=(replace(program.starts[0], kill=Kill("mark", number)),))
