"""Random programs over a session: steps of every effect in parallel and in turns, retries, cancellations, questions.

A program is a tree that follows from its seed. Whoever runs it writes down in a file what really happened in the world: each step's
beginning, its effect, and that the program has its result. The file survives a kill of the process.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Policy, Runtime, recover, tool
from holdfast.faults import HoldfastError, OutcomeUnknownError
from holdfast.runtime.runtime import use_runtime
from holdfast.runtime.tool import call_key
from holdfast.sessions import Session
from holdfast.stores import Store, open_store
from holdfast.stores.failpoints import FAILPOINTS

BEFORE_EFFECT, AFTER_EFFECT, ACKNOWLEDGED = "before the effect", "after the effect", "acknowledged"
POINTS = (BEFORE_EFFECT, AFTER_EFFECT, ACKNOWLEDGED)
EFFECTS = ("idempotent", "keyed", "read", "unsafe", "unsafe", "plain")
SESSION = "program"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    store: str
    world: str
    session: str = SESSION
    point: str | None = None
    nth: int = 1
    after: float | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a program."""

    kind: str
    """step, again, cancel, question, retry, seq, par, map, turn."""
    label: str = ""
    effect: str = "plain"
    inside: tuple[Node, ...] = ()


def program_of(seed: int) -> Node:
    """Return the program of a seed."""
    chance = random.Random(seed)
    labels = (f"n{number}" for number in range(10_000))

    def leaf() -> Node:
        label = next(labels)
        kind = chance.choices(("step", "again", "cancel", "question", "map"), (10, 2, 2, 1, 1))[0]
        return Node(kind=kind, label=label, effect=chance.choice(EFFECTS))

    def tree(depth: int, *, turns: bool) -> Node:
        if not depth or chance.random() < 0.2:
            return leaf()
        kinds = ["seq", "seq", "par", "retry"] + (["turn", "turn"] if turns else [])
        kind = chance.choice(kinds)
        label = next(labels)
        # Turns run one at a time, and not inside each other.
        inner = turns and kind == "seq"
        inside = tuple(tree(depth - 1, turns=inner) for _ in range(chance.randint(1, 3 if kind != "seq" else 4)))
        return Node(kind=kind, label=label, inside=inside)

    return Node(kind="seq", label="all", inside=tuple(tree(3, turns=True) for _ in range(chance.randint(2, 4))))


def answer_to(label: str) -> bool:
    return sum(map(ord, label)) % 2 == 0


class World:
    """What really happened, as lines of a file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.begun = Counter(line[1] for line in read_world(path) if line[0] == "begin")

    def note(self, what: str, label: str, key: str = "") -> None:
        if what == "begin":
            self.begun[label] += 1
        os.write(self._file, msgspec.json.encode((what, label, key)) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_world(path: str) -> list[tuple[str, str, str]]:
    file = Path(path)
    if not file.exists():
        return []
    *whole, _ = file.read_bytes().split(b"\n")
    return [msgspec.json.decode(line, type=tuple[str, str, str]) for line in whole]


def value_of(label: str, given: int) -> int:
    return (sum(map(ord, label)) * 31 + given * 7) % 10_007


class Machine:
    """Runs a program in a session."""

    def __init__(self, session: Session, world: World) -> None:
        self.session = session
        self.world = world
        self.started: dict[str, asyncio.Event] = {}
        self._functions = functions_of(self)

    async def run(self, node: Node, given: int = 0) -> Any:
        match node.kind:
            case "seq":
                return [await self.run(part, given + number) for number, part in enumerate(node.inside)]
            case "par":
                return await gathered([self.run(part, given + number) for number, part in enumerate(node.inside)])
            case "turn":
                return await self._turn(node, given)
            case "retry":
                return await self._retry(node, given)
            case "question":
                return await self.session.approve(f"May {node.label}?")
            case "map":
                fn = self._functions["idempotent"]
                items = [[node.label, given + number] for number in range(3)]
                return [outcome.unwrap() async for outcome in self.session.map(of_pair(fn), items, concurrency=2)]
            case "cancel":
                return await self._cancelled(node, given)
            case "again":
                # It fails before it does anything, the first time that it ever begins.
                try:
                    return await self._step(node, given)
                except ValueError:
                    return await self._step(node, given)
            case _:
                return await self._step(node, given)

    async def _step(self, node: Node, given: int) -> int:
        fails = node.kind == "again"
        result = await self.session.step(self._functions[node.effect], node.label, given, fails)
        self.world.note("ack", node.label)
        FAILPOINTS.reach(ACKNOWLEDGED)
        return int(result)

    async def _turn(self, node: Node, given: int) -> Any:
        kept = self.session.context
        if node.label not in kept:
            async with self.session.turn(node.label):
                kept[node.label] = [await self.run(part, given + n) for n, part in enumerate(node.inside)]
        return kept[node.label]

    async def _retry(self, node: Node, given: int) -> Any:
        attempts = 0

        @recover(f"retry-{node.label}", Policy(attempts=3, circuit=None), effect="idempotent")
        async def whole() -> Any:
            nonlocal attempts
            attempts += 1
            results = [await self.run(part, given + number) for number, part in enumerate(node.inside)]
            if attempts == 1:
                raise ConnectionError("connection reset by peer")
            return results

        return await whole()

    async def _cancelled(self, node: Node, given: int) -> int:
        """Cancel a step once it has begun, and call it again. A step that is stored does not begin, and returns."""
        begun = self.started[node.label] = asyncio.Event()
        task = asyncio.ensure_future(self._step(node, given))
        waiting = asyncio.ensure_future(begun.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return await self._step(node, given)


async def gathered(parts: list[Any]) -> list[Any]:
    """Wait for all parts, also if one of them raises; then raise the first error."""
    results = await asyncio.gather(*parts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def of_pair(fn: Callable[..., Any]) -> Callable[..., Any]:
    @tool(effect="idempotent")
    async def item(pair: list[Any]) -> int:
        return int(await fn(pair[0], pair[1], False))

    return item


def functions_of(machine: Machine) -> dict[str, Callable[..., Any]]:
    async def work(label: str, given: int, fails: bool) -> int:
        world = machine.world
        first = not world.begun[label]
        world.note("begin", label, call_key())
        if fails and first:
            raise ValueError("not yet")
        FAILPOINTS.reach(BEFORE_EFFECT)
        if label in machine.started:
            machine.started[label].set()
        await asyncio.sleep(0)
        world.note("did", label, call_key())
        FAILPOINTS.reach(AFTER_EFFECT)
        await asyncio.sleep(0)
        return value_of(label, given)

    @tool(effect="idempotent")
    async def idempotent(label: str, given: int, fails: bool) -> int:
        return await work(label, given, fails)

    @tool(effect="keyed")
    async def keyed(label: str, given: int, fails: bool) -> int:
        return await work(label, given, fails)

    @tool(effect="read")
    async def read(label: str, given: int, fails: bool) -> int:
        return await work(label, given, fails)

    @tool(effect="unsafe")
    async def unsafe(label: str, given: int, fails: bool) -> int:
        return await work(label, given, fails)

    async def plain(label: str, given: int, fails: bool) -> int:
        return await work(label, given, fails)

    found = (idempotent, keyed, read, unsafe, plain)
    return {fn.__name__: fn for fn in found}


@asynccontextmanager
async def opened(url: str) -> Any:
    async with open_store(url) as store:
        yield store


async def execute(store: Store, session: str, seed: int, world: World) -> Any:
    """Run a program, or what is left of it; return its result. Raise what a person has to settle."""
    async with Session.open(session, store=store) as open_:
        return await Machine(open_, world).run(program_of(seed))


async def perform(plan: Plan) -> None:
    """Run the program of a plan in this process. Its result, or that it waits for somebody, is in the world."""
    world = World(plan.world)
    with use_runtime(Runtime(waits=False)):
        async with open_store(plan.store) as store:
            try:
                result = await execute(store, plan.session, plan.seed, world)
            except OutcomeUnknownError as error:
                world.note("unknown", error.fault.context["key"])
            except HoldfastError as error:
                if error.fault.code != "SESS_NO_INTERACTOR":
                    raise
                world.note("asks", "")
            else:
                world.note("result", msgspec.json.encode(result).decode())
