"""A program and what happens to it, both drawn from a seed: the parts, the edits between two runs, and when it is killed."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from tests.programs import (
    elements,  # noqa: F401 - it registers its parts
    elements_tasks,  # noqa: F401 - and so does this
    elements_ways,  # noqa: F401 - and this
    world,
)
from tests.programs.functions import FUNCTIONS
from tests.programs.part import ELEMENTS, ODD, Part, Style, indented, literal

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["EDITS", "EVENTS", "KNOWN", "SWITCHES", "Kill", "Program", "Start", "draw", "schedule"]

NAMES = [
    "ada",
    "bob",
    "cy",
    "dan",
    "eve",
    "fay",
    "gus",
    "hal",
    "ida",
    "jon",
    "kim",
    "leo",
    "mia",
    "ned",
    "ola",
    "pam",
    "quin",
    "rae",
    "sam",
    "tia",
    "uma",
    "vic",
    "wes",
    "xia",
    "yan",
    "zoe",
    "amy",
    "ben",
    "cal",
    "dot",
    "eli",
    "flo",
    "gil",
    "hub",
    "ivy",
    "jay",
    "kai",
    "lou",
    "moe",
    "nan",
    "oz",
    "pia",
    "rob",
    "sue",
    "ted",
    "una",
    "val",
    "wim",
    "yve",
    "zac",
]

_PAY = "(who: str, amount: int = 5)"
EDITS = {
    "rename": Style(variable="paid"),
    "keyword": Style(keyword=True),
    "spelled": Style(spelled=True),
    "reorder": Style(reorder=True),
    "insert": Style(insert=True),
    "wrap": Style(wrap=True),
    "move": Style(moved=True),
    "parameter": Style(typed=((_PAY, "(who: str, amount: int = 5, note: str = '')"),)),
    "renamed parameter": Style(typed=((f"{_PAY} -> str:", f"{_PAY.replace('who', 'whom')} -> str:\n    who = whom"),)),
}
"""How a program is changed between two of its runs. None of them changes what a call is for the person who typed it."""

_OFTEN = {"insert": 8, "wrap": 8, "move": 16}
"""Edits that are drawn more often than others, where they change something: few parts have items."""

_TURNS_WITHOUT_KEYS = ("turns", "turns_same", "turns_one_fails", "turn_loop")

EVENTS = {"disk": 0.4, "clock": 0.2, "restore": 0.1, "behind": 0.1, "prune": 0.2, "reopen": 0.25, "nobody": 0.25}
"""What happens to a program, and how often. disk: commits take milliseconds. clock: the wall clock jumps between two starts. restore: the store is set back to a backup. behind: the same under the running program.
prune: between two starts somebody drops what need not be kept. reopen: the program opens its session twice. nobody: no person is attached; questions and doubts are settled at the store, between two
starts."""

KNOWN: dict[str, str] = {}
"""The elements, odds, edits and events that are off in the sample of `make test`, each with the finding that must be fixed first."""

SWITCHES = (
    *ELEMENTS,
    *(f"odd:{odd}" for odd in ODD),
    *(f"edit:{edit}" for edit in EDITS),
    *(f"event:{event}" for event in EVENTS),
)

_EDITED = 0.5
"""How often a program is edited between two of its runs."""
_AGAIN = 0.3
"""How often each start is killed at the same effect."""
_WHOLE = 0.4
"""How often nobody kills the run before the edit."""
_PRUNED = 0.6
"""How often something is dropped before a start of a program that this happens to."""

_QUICK = "QUICK = Policy(attempts=3, backoff=Backoff(initial=0.001))"
_MODULE = """
import asyncio
import random
from uuid import uuid4


async def fetch(who: str) -> str:
    await asyncio.sleep(random.random() / 100)
    return f"{name} of {{who}}: {{uuid4().hex[:8]}}"
"""


@dataclass(frozen=True)
class Kill:
    """When a start is killed. mark: at the n-th commit, effect or shown result; point: at the n-th step of a write; world: at the n-th
    thing outside, an effect or a shown result; before, after: the n-th effect; delay: after n ms."""

    how: str
    n: int


@dataclass(frozen=True)
class Start:
    """One start of a program."""

    kill: Kill | None = None
    edited: bool = False
    clock: float = 0.0
    """By so many seconds the wall clock is wrong."""
    back_up: bool = False
    restore: bool = False
    slow: bool = False
    """Each commit takes a while."""
    prune: bool = False
    """Before it, what need not be kept is dropped from the store."""
    behind: tuple[int, int] | None = None
    """Under the running program the store is set back, to what it was at one mark, at a later one."""


@dataclass(frozen=True)
class Program:
    """A durable program as a user writes one, and the starts that are made of it. After these it is started until it ends."""

    seed: int
    parts: tuple[Part, ...]
    starts: tuple[Start, ...] = ()
    edit: str = ""
    reopen: bool = False
    attended: bool = True
    """Whether a person is attached."""

    def calls(self) -> Counter[tuple[str, str]]:
        """Return how often each effect may happen at most."""
        total: Counter[tuple[str, str]] = Counter()
        for part in self.parts:
            total.update(part.calls())
            if self.edit == "insert" and part.element.inserts:
                total["pay", f"new {part.who[0]}"] += 1
        return total

    def may_refuse(self, message: str, done: set[tuple[str, str]]) -> bool:
        """Whether a typed refusal that says this, and names the way on, is an allowed end, after these effects.

        It must be about a part that may refuse, or that the edit has changed, if it names anybody.
        """
        if "set back" in message:
            return self.restored()
        if "holdfast sessions prune" in message:
            return any(start.prune for start in self.starts)
        words = set(re.findall(r"\w+", message))
        edited = self.edit != "" and any(start.edited for start in self.starts)
        return any(
            part.element.may_refuse == "later"
            or (part.element.may_refuse == "first" and not done & part.calls().keys())
            or (edited and self._may_drift(part, message))
            for part in [part for part in self.parts if not words.isdisjoint(part.who)] or self.parts
        )

    def _may_drift(self, part: Part, message: str) -> bool:
        """Whether this part has another call after the edit, which nobody can tell from a changed one, or comes before others."""
        style = EDITS[self.edit]
        functions = "\n".join(FUNCTIONS[name] for name in part.element.functions)
        return (
            style.reorder
            or style.functions(functions) != functions
            or (style.insert and f"new {part.who[0]}" in message and self._is_before_others(part))
        )

    def _is_before_others(self, part: Part) -> bool:
        """Whether a new item of this part comes before calls of its function that nobody makes meanwhile: it is no `map`, or not the last."""
        later = self.parts[self.parts.index(part) + 1 :]
        is_map = re.search(r"\bmap\b", "\n".join(part.lines(EDITS[self.edit])))
        return not is_map or any(set(part.element.whats) & set(other.element.whats) for other in later)

    def restored(self) -> bool:
        """Whether the store is set back."""
        return any(start.restore or start.behind for start in self.starts)

    def modules(self) -> dict[str, str]:
        """Return the files beside the program."""
        used = any(part.kind == "modules" for part in self.parts)
        return {f"{name}.py": _MODULE.format(name=name).lstrip() for name in ("billing", "mail")} if used else {}

    def source(
        self, *, edited: bool = False, store: str = "sqlite:work.db", session: str = "work", whole: bool = False
    ) -> str:
        """Return the program as Python. `whole`: with what it meets outside, so that it can be pasted and run."""
        style = EDITS.get(self.edit, Style()) if edited else Style()
        parts = list(self.parts)
        if style.reorder:
            parts.reverse()
        outside = (
            inspect.getsource(world).replace("from __future__ import annotations\n", "")
            if whole
            else ("from tests.programs.world import Bank, Model, Person, find, say\n")
        )
        blocks = [parts] if not self.reopen else [parts[: len(parts) // 2], parts[len(parts) // 2 :]]
        agents = any("Agent(" in line for part in parts for line in part.lines(style))
        options = (', mode="yolo"' if agents else "") + (", interactors=[Person()]" if self.attended else "")
        main = ["async def main():"]
        for block in blocks:
            main.append(f'    async with Session.open("{session}", store="{store}"{options}) as session:')
            body = [line for part in block for line in part.lines(style)] or ["pass"]
            main += indented(body, 2)
        odd = ", ".join(f"{part.who[0]}={literal(part.odd)}" for part in parts if part.odd)
        return (
            "import asyncio\nimport random\nfrom uuid import uuid4\n\n"
            f"from holdfast import {_IMPORTS}\nfrom holdfast.tools import Toolbox\n{outside}"
            + "".join(f"import {name[:-3]}\n" for name in self.modules())
            + f"\nbank = Bank({odd})\n{_QUICK}\n\n"
            + style.functions("\n".join(FUNCTIONS[name] for name in _functions(parts)))
            + "\n\n"
            + "\n".join(main)
            + "\n\n\nasyncio.run(main())\n"
        )


_IMPORTS = "Agent, Backoff, Err, Policy, Session, Stage, StageMachine, Workflow, recover, tool"


def _functions(parts: Iterable[Part]) -> list[str]:
    used = {name for part in parts for name in part.element.functions}
    return [name for name in FUNCTIONS if name in used]


def draw(seed: int, switches: Iterable[str] = SWITCHES, *, kills: int = 5, starts: bool = True) -> Program:
    """Draw a program from what is switched on. The same seed and switches draw the same one."""
    on = set(switches)
    rng = Random(seed)
    kinds = [kind for kind in ELEMENTS if kind in on]
    names = iter(rng.sample(NAMES, len(NAMES)))
    weights = [ELEMENTS[kind].weight for kind in kinds]
    drawn = rng.choices(kinds, weights, k=rng.choice((1, 2, 2, 3, 3, 4, 5)))
    drawn = next(([kind] for kind in drawn if ELEMENTS[kind].alone), drawn)
    parts = tuple(_part(rng, kind, names, on) for kind in drawn)
    edits = [edit for edit in EDITS if f"edit:{edit}" in on]
    if any(part.kind in _TURNS_WITHOUT_KEYS for part in parts):
        # A turn without a key may be meant anew, and with another call than an earlier turn of its words.
        edits = [edit for edit in edits if not EDITS[edit].typed]
    happens = {event: f"event:{event}" in on and rng.random() < often for event, often in EVENTS.items()}
    program = Program(
        seed=seed, parts=parts, reopen=happens["reopen"] and len(parts) > 1, attended=not happens["nobody"]
    )
    if rng.random() < _EDITED:
        program = replace(program, edit=_edit(rng, program, edits))
    if not starts:
        return program
    program = schedule(program, rng, kills, clock=happens["clock"], restore=happens["restore"])
    if happens["prune"]:
        program = replace(
            program, starts=tuple(replace(start, prune=rng.random() < _PRUNED) for start in program.starts)
        )
    if happens["disk"]:
        program = replace(program, starts=tuple(replace(start, slow=True) for start in program.starts))
    return _set_back(program, rng) if happens["behind"] and not happens["restore"] and program.starts else program


def _edit(rng: Random, program: Program, edits: list[str]) -> str:
    """Return an edit that changes something in this program, if there is one."""
    before = program.source()
    fitting = [edit for edit in edits if replace(program, edit=edit).source(edited=True) != before]
    return rng.choices(fitting, [_OFTEN.get(edit, 1) for edit in fitting])[0] if fitting else ""


def _set_back(program: Program, rng: Random) -> Program:
    """Set the store back under one of the starts, which is not killed."""
    starts = list(program.starts)
    number = rng.randrange(len(starts))
    saved = rng.randrange(2, 8)
    starts[number] = replace(starts[number], kill=None, behind=(saved, saved + rng.randrange(1, 8)))
    return replace(program, starts=tuple(starts))


def _part(rng: Random, kind: str, names: Iterable[str], on: set[str]) -> Part:
    element = ELEMENTS[kind]
    who = tuple(next(iter(names)) for _ in range(element.names))
    odds = [odd for odd in element.odd if f"odd:{odd}" in on]
    odd = rng.choice(odds) if odds and rng.random() < element.oddly else ""
    return Part(kind, who, odd, rng.randrange(60))


def schedule(program: Program, rng: Random, kills: int, *, clock: bool = False, restore: bool = False) -> Program:
    """Return the program with other starts."""
    size = 2 + sum(program.calls().values())
    starts = []
    for number in range(kills):
        how = rng.choice(("mark", "mark", "mark", "point", "delay"))
        first = number == 0
        n = {
            "mark": rng.randrange(1, 6 * size + 8),
            "point": rng.randrange(1, 25 * size + (40 if first else 0)),
            "delay": rng.randrange(1, 20 + 15 * size),
        }[how]
        starts.append(Start(kill=Kill(how, n)))
    if rng.random() < _AGAIN:
        # It dies again and again at one effect: those before it are done.
        again = [
            Kill("before", rng.randrange(1, size)),
            *(Kill(rng.choice(("before", "after", "after")), 1) for _ in starts),
        ]
        starts = [replace(start, kill=kill) for start, kill in zip(starts, again, strict=False)]
    edited = rng.randrange(1, kills + 1) if program.edit and kills else kills + 1
    starts = [replace(start, edited=number >= edited) for number, start in enumerate(starts)]
    if edited <= kills and rng.random() < _WHOLE:
        starts[edited - 1] = replace(starts[edited - 1], kill=None)
    if edited <= kills:
        starts.append(Start(edited=True))
    if clock:
        starts = [replace(start, clock=rng.choice((0, -86_400, 3_600, 86_400 * 400))) for start in starts]
    if restore and kills > 2:
        saved = rng.randrange(1, kills - 1)
        starts[saved] = replace(starts[saved], back_up=True)
        later = rng.randrange(saved + 1, kills)
        starts[later] = replace(starts[later], restore=True)
    return replace(program, starts=tuple(starts))
