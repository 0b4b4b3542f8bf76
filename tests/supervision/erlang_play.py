"""Random trees of supervisors and crash sequences, played on our supervisor and on Erlang/OTP's own.

`sequence(seed)` makes one, `play_ours` plays it in virtual time, `play_erlang` plays many on one Erlang node. Both return, for each step,
what happened and the state of the tree afterwards.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import HoldfastError, InvalidError
from holdfast.actors import (
    Child,
    ChildNotFoundError,
    ChildStoppedError,
    GaveUpError,
    StartError,
    Supervisor,
    ready,
)
from holdfast.testing import run

DRIVER = Path(__file__).with_name("holdfast_play.erl")
AFTER_WINDOW_MS = 3300
"""Longer than the short window and the whole second by which Erlang rounds it."""
SHORT_WINDOW_S, LONG_WINDOW_S = 2, 60


class Worker(NamedTuple):
    name: str
    restart: str
    shutdown: str | int
    significant: bool
    failing: tuple[int, ...]
    """Which of its starts fail."""


class Nested(NamedTuple):
    restart: str
    significant: bool
    tree: Tree


class Tree(NamedTuple):
    name: str
    strategy: str
    max_restarts: int
    window: int
    auto: str
    children: tuple[Worker | Nested, ...]


class Sequence(NamedTuple):
    number: int
    tree: Tree
    steps: tuple[tuple[Any, ...], ...]


# Making them


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = iter("abcdefghijklmnopqrstuvw")
        self.trees = 0
        self.parents: dict[str, str] = {}
        self.window = self.random.choice([LONG_WINDOW_S, LONG_WINDOW_S, LONG_WINDOW_S, SHORT_WINDOW_S])

    def tree(self, depth: int = 0, *, never_gives_up: bool = False) -> Tree:
        chance = self.random
        name = f"s{self.trees}"
        self.trees += 1
        strategy = chance.choice(["one_for_one", "one_for_all", "rest_for_one", "rest_for_one"])
        if depth == 0 and chance.random() < 0.1:
            strategy = "simple_one_for_one"
        auto = chance.choice(["never", "never", "any_significant", "all_significant"])
        if strategy == "simple_one_for_one":
            auto = "never"
        # A transient supervisor that gives up is where we differ from Erlang on purpose.
        limit = 1000 if never_gives_up else chance.choice([0, 1, 1, 2, 3, 5, 8])
        count = 1 if strategy == "simple_one_for_one" else chance.randint(1, 4)
        children = tuple(self.child(name, depth, strategy, auto) for _ in range(count))
        return Tree(name, strategy, limit, self.window, auto, children)

    def child(self, parent: str, depth: int, strategy: str, auto: str) -> Worker | Nested:
        chance = self.random
        restart = chance.choice(["permanent", "permanent", "transient", "temporary"])
        significant = auto != "never" and restart != "permanent" and chance.random() < 0.6
        if depth < 2 and strategy != "simple_one_for_one" and chance.random() < 0.3:
            tree = self.tree(depth + 1, never_gives_up=restart == "transient")
            self.parents[tree.name] = parent
            return Nested(restart, significant, tree)
        failing = tuple(sorted(chance.sample(range(1 if chance.random() < 0.05 else 2, 7), chance.randint(1, 3))))
        name = next(self.names)
        self.parents[name] = parent
        return Worker(
            name,
            restart,
            chance.choice(["brutal_kill", "infinity", 5000, 5000]),
            significant,
            failing if chance.random() < 0.25 else (),
        )

    def steps(self, tree: Tree) -> tuple[tuple[Any, ...], ...]:
        chance = self.random
        dynamic = tree.strategy == "simple_one_for_one"
        names = list("mnop") if dynamic else [name for name in self.parents if not name.startswith("s")]
        steps: list[tuple[Any, ...]] = [("spawn", tree.name, name) for name in names] if dynamic else []
        sleeps = 2 if self.window == SHORT_WINDOW_S else 0
        for _ in range(chance.randint(2, 12)):
            steps.append(self.step(names, dynamic=dynamic))
            if sleeps and chance.random() < 0.3:
                sleeps -= 1
                steps.append(("sleep", AFTER_WINDOW_MS))
        return (*steps, ("stop",))

    def step(self, names: list[str], *, dynamic: bool) -> tuple[Any, ...]:
        chance = self.random
        if not names:
            return ("send", ("none",), "crash")
        victim = chance.choice(names)
        draw = chance.random()
        if draw < 0.15:
            # Several at the same moment, of one supervisor.
            siblings = [name for name in names if dynamic or self.parents[name] == self.parents[victim]]
            victims = tuple(chance.sample(siblings, min(len(siblings), chance.randint(1, 3))))
            return ("send", victims, "crash")
        if draw < 0.65:
            return ("send", (victim,), "crash")
        if draw < 0.8 or dynamic:
            return ("send", (victim,), "finish")
        child = chance.choice(list(self.parents))
        return (chance.choice(["terminate", "terminate", "restart", "delete"]), self.parents[child], child)


def sequence(seed: int) -> Sequence:
    """Make one sequence. The same seed makes the same one."""
    maker = _Maker(seed)
    tree = maker.tree()
    return Sequence(seed, tree, maker.steps(tree))


# Ours


class _Ours:
    def __init__(self, played: Sequence) -> None:
        self.log: list[str] = []
        self.starts: Counter[str] = Counter()
        self.orders: dict[str, asyncio.Future[str]] = {}
        self.supervisors: dict[str, Supervisor] = {}
        self.played = played

    def supervisor(self, tree: Tree) -> Supervisor:
        children = [self.child(child) for child in tree.children]
        supervisor = self.supervisors[tree.name] = Supervisor(
            tree.name,
            strategy=tree.strategy,  # type: ignore[arg-type]
            max_restarts=tree.max_restarts,
            window=tree.window,
            auto_shutdown=tree.auto,  # type: ignore[arg-type]
            children=children,
        )
        return supervisor

    def child(self, spec: Worker | Nested) -> Child:
        if isinstance(spec, Nested):
            supervisor = self.supervisor(spec.tree)
            return Child(supervisor, id=spec.tree.name, restart=spec.restart, significant=spec.significant)  # type: ignore[arg-type]
        shutdown = {"brutal_kill": "brutal", "infinity": float("inf"), 5000: 5.0}[spec.shutdown]
        is_copy = self.played.tree.strategy == "simple_one_for_one"
        return Child(
            self.worker,
            *((spec.failing, shutdown) if is_copy else (spec.failing, shutdown, spec.name)),
            id=spec.name,
            restart=spec.restart,  # type: ignore[arg-type]
            shutdown=shutdown,  # type: ignore[arg-type]
            significant=spec.significant,
            ready=True,
        )

    async def worker(self, failing: tuple[int, ...], shutdown: float | str, name: str) -> None:
        self.starts[name] += 1
        if self.starts[name] in failing:
            self.log.append(f"fail {name}")
            raise RuntimeError("planned")
        self.log.append(f"start {name}")
        order = self.orders[name] = asyncio.get_running_loop().create_future()
        ready()
        try:
            what = await order
        except asyncio.CancelledError:
            # Erlang's brutal kill runs no code of the child.
            if shutdown != "brutal":
                self.log.append(f"stop {name}")
            raise
        self.log.append(f"{'end' if what == 'finish' else what} {name}")
        if what == "crash":
            raise RuntimeError("crash")

    async def play(self) -> list[str]:
        root = self.supervisor(self.played.tree)
        over = asyncio.Event()
        owner = asyncio.ensure_future(self.own(root, over))
        shown = [await self.settled(root)]
        for step in self.played.steps:
            if step[0] == "sleep":
                await asyncio.sleep(step[1] / 1000)
                continue
            if step[0] == "stop":
                over.set()
                await owner
            else:
                await self.step(step)
            shown.append(await self.settled(root))
        return shown

    async def own(self, root: Supervisor, over: asyncio.Event) -> None:
        try:
            async with root:
                await over.wait()
        except StartError:
            self.log.append("start failed")
        except GaveUpError:
            pass

    async def step(self, step: tuple[Any, ...]) -> None:
        kind, where, *what = step
        if kind == "send":
            for name in where:
                order = self.orders.get(name)
                if order is not None and not order.done():
                    order.set_result(what[0])
            return
        supervisor = self.supervisors[where]
        try:
            if kind == "spawn":
                await supervisor.spawn(what[0], id=what[0])
            else:
                await getattr(supervisor, f"{kind}_child")(what[0])
        except ChildStoppedError:
            pass
        except ChildNotFoundError:
            self.log.append("not_found")
        except StartError:
            self.log.append("start failed")
        except InvalidError as error:
            self.log.append("restarting" if "restarting" in str(error) else "running")

    async def settled(self, root: Supervisor) -> str:
        # Virtual time moves only when nothing else can happen.
        await asyncio.sleep(0.001)
        state = " ".join(sorted(await self.state(root)))
        log, self.log = self.log, []
        return f"{','.join(log)}[{state}]"

    async def state(self, supervisor: Supervisor) -> list[str]:
        try:
            children = await supervisor.which_children()
        except HoldfastError:
            return ["dead"]
        found = []
        for info in children:
            name = "copy" if supervisor.rules.is_dynamic else info.id
            found.append(name + {"running": "+", "stopped": "-", "restarting": "~"}[info.state])
            if info.is_supervisor and info.state == "running":
                found += await self.state(info.ref)
        return found


def comparable(played: Sequence, shown: list[str]) -> list[str]:
    """Sort the events of a step where their order is open: copies of a template stop at the same time."""
    if played.tree.strategy != "simple_one_for_one":
        return shown
    parts = [step.split("[", 1) for step in shown]
    return [f"{','.join(sorted(events.split(',')))}[{state}" for events, state in parts]


def play_ours(played: Sequence) -> list[str]:
    """Play a sequence on our supervisor, in virtual time."""
    return run(_Ours(played).play())


# Erlang's


def has_erlang() -> bool:
    return shutil.which("erl") is not None and shutil.which("erlc") is not None


def play_erlang(sequences: list[Sequence], folder: Path) -> dict[int, list[str] | None]:
    """Play sequences on one Erlang node. A sequence that was too slow for its window has no result."""
    subprocess.run(["erlc", "-o", folder, DRIVER], check=True, timeout=60)
    given, written = folder / "sequences", folder / "played"
    given.write_text("".join(_term(one) + ".\n" for one in sequences), encoding="utf-8")
    # One scheduler: with several, the node measures its own threads.
    command = ["erl", "-noshell", "+S", "1:1", "-pa", folder, "-run", "holdfast_play", "main", given, written]
    subprocess.run(command, check=True, timeout=60 + len(sequences))
    found: dict[int, list[str] | None] = {}
    for line in written.read_text(encoding="utf-8").splitlines():
        number, mark, steps = line.split(";")
        found[int(number)] = None if mark == "slow" else steps.split("|")
    return found


def _term(value: Any) -> str:
    """Write a value as an Erlang term; texts are atoms."""
    match value:
        case Sequence():
            steps = ["stop" if step == ("stop",) else _term(_step(step)) for step in value.steps]
            return f"{{{value.number}, {_term(value.tree)}, [{', '.join(steps)}]}}"
        case Tree():
            children = ", ".join(map(_term, value.children))
            head = ", ".join(map(_term, value[:-1]))
            return f"{{sup, {head}, [{children}]}}"
        case Worker():
            return f"{{worker, {', '.join(map(_term, value[:-1]))}, {_term(list(value.failing))}}}"
        case Nested():
            return f"{{nested, {', '.join(map(_term, value))}}}"
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(_term, value))}]"
        case tuple():
            return f"{{{', '.join(map(_term, value))}}}"
        case _:
            return str(value)


def _step(step: tuple[Any, ...]) -> tuple[Any, ...]:
    return ("send", list(step[1]), step[2]) if step[0] == "send" else step
