"""How soon the generator finds a bug that is put back: `python -m tests.programs --put-back xd1 xk4`."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

import msgspec
from tests.programs.play import play
from tests.programs.program import draw
from tests.programs.put_back import BUGS

from holdfast.testing.crashtest.inside import forks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["BUGS", "Caught", "hunt"]

_CONTROLS = 3
"""How often the unchanged code plays a program that was wrong, before that counts."""


class Caught(msgspec.Struct):
    """The program that showed a bug."""

    number: int
    """How many programs were drawn."""
    seed: int
    wrong: str


def hunt(bug: str, seeds: Iterable[int], switches: list[str], place: Path, *, kills: int) -> Caught | None:
    """Draw programs until one is wrong with this bug, and only with it."""
    forks.preload(())
    left = list(seeds)
    for number, seed in enumerate(left, 1):
        wrong = _in_fork(bug, seed, switches, place, kills)
        if wrong and not any(_kind(seed, switches, place, kills) == wrong.split(":")[0] for _ in range(_CONTROLS)):
            return Caught(number, seed, wrong)
    return None


def _kind(seed: int, switches: list[str], place: Path, kills: int) -> str:
    story = play(draw(seed, switches, kills=kills), place)
    return story.wrong[0].kind if story.wrong else ""


def _in_fork(bug: str, seed: int, switches: list[str], place: Path, kills: int) -> str:
    """Play a program in a process that has the bug; return what was wrong."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            BUGS[bug](setattr)
            story = play(draw(seed, switches, kills=kills), place)
            os.write(writer, "; ".join(f"{each.kind}: {each.what}" for each in story.wrong).encode()[:4_000])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        wrong = said.read().decode()
    os.waitpid(pid, 0)
    return wrong
