"""A storm: every fault of the provider with every fault of a tool, for one agent and for five roles.

Each run ends in an answer or in a typed fault, never in a loop, and the requests that are reported are those that the server counted.
The long runs are `make soak`; `make test` has each fault once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from agents_kit import World

from holdfast import Budget, Err, Ok, tool
from holdfast.agents import Done, FunctionAgent, Hooks, Roles
from holdfast.events import AttemptStarted, UserNotified
from holdfast.faults import CATALOG
from holdfast.profiles import AGENT_CHAINS, SPEC016_ROLES
from holdfast.stores import MemoryStore
from holdfast.testing.provider import Turn
from holdfast.testing.provider.faults import ERRORS, FAULTS

PROVIDER = [*ERRORS, *FAULTS, "429;retry-after=7", "503;retry-after=2", "529"]
"""Every fault that the provider has."""
LESS = {"oversize": "oversize;bytes=200000", "drip": "drip;every=0.01"}
"""The same effect in less time."""
MOST_REQUESTS = 60
LONGEST_S = 4 * 3600.0


def _tool(name: str) -> Any:
    """Return a tool `work` that fails in one way."""

    @tool(effect="unsafe" if name == "unknown" else "read")
    async def work(n: int = 0) -> str:
        """Do the work."""
        if name in ("reset", "unknown"):
            raise ConnectionResetError("the tool's connection broke")
        if name == "missing-file":
            raise FileNotFoundError("/nowhere")
        if name == "defect":
            raise KeyError("a defect of the tool")
        if name == "hang":
            await asyncio.sleep(10_000)
        return "x" * 3_000_000 if name == "huge" else f"done {n}"

    return work


TOOL = [
    "ok",
    "reset",
    "unknown",
    "missing-file",
    "defect",
    "hang",
    "huge",
    "denied",
    "no-such-tool",
    "broken-arguments",
]
"""Every way in which a tool call ends badly, and one in which it does not."""


def calls_of(name: str) -> Turn:
    if name == "no-such-tool":
        return Turn(tool="wrk", arguments={"n": 1})
    return Turn(text="I do it.", tool="work", arguments='{"n": ' if name == "broken-arguments" else {"n": 1})


def guard(name: str) -> Hooks | None:
    return Hooks(guard=lambda _: "not today") if name == "denied" else None


def world_of(faults: str, *tools: str) -> World:
    return World(*(calls_of(name) for name in tools), "Done.", faults=faults)


def check_end(end: Any) -> str:
    """Return how a run ended; fail if it is neither an answer nor a typed fault."""
    if isinstance(end, Ok):
        assert end.value.text
        return "ok"
    assert isinstance(end, Err)
    fault = end.fault
    assert fault.code in CATALOG
    assert fault.code not in ("SYS_UNKNOWN", "SYS_PROGRAMMING_ERROR", "SYS_INTERNAL_ERROR"), end
    assert fault.for_user()
    return str(fault.code)


def check_counts(world: World, *others: World) -> None:
    """The requests that were reported are those that the servers counted."""
    attempts = [event for event in world.of(AttemptStarted) if event.operation.startswith(("anthropic", "openai"))]
    assert len(attempts) == sum(one.received for one in (world, *others))


def play(fault: str, name: str, *, when: str, model: str, streamed: bool) -> tuple[str, World]:
    """Let one agent work in one storm."""
    step = LESS.get(fault, fault)
    world = world_of({"first": step, "second": f"ok, {step}", "always": f"{step}*999"}[when], name)
    agent = world.agent(_tool(name), model=world.model(model), hooks=guard(name))

    async def work() -> Any:
        if not streamed:
            return await agent.outcome("do it")
        try:
            async with agent.stream("do it") as parts:
                (reply,) = [part.reply async for part in parts if isinstance(part, Done)]
        except Exception as error:
            return Err(world.runtime.fault_of(error), error)
        return Ok(reply)

    end = check_end(world.run(work()))
    check_counts(world)
    assert world.received <= MOST_REQUESTS
    assert world.runtime.clock.monotonic() <= LONGEST_S
    return end, world


CASES = [
    (fault, name, when, model, streamed)
    for fault in PROVIDER
    for name in TOOL
    for when in ("first", "second", "always")
    for model in ("claude-haiku-4-5", "gpt-5")
    for streamed in (False, True)
]


def sample(every: list[Any], most: int) -> list[Any]:
    """Return cases that have each fault of the provider and of a tool at least once, always the same ones."""
    chosen = []
    for number, fault in enumerate(PROVIDER):
        own = [case for case in every if case[0] == fault]
        # Coprime steps: neighbours differ in every other part, too.
        chosen.append(own[(number * 37) % len(own)])
    missing = [name for name in TOOL if name not in {case[1] for case in chosen}]
    chosen += [next(case for case in every if case[1] == name) for name in missing]
    return chosen[:most]


@pytest.mark.parametrize(("fault", "name", "when", "model", "streamed"), sample(CASES, 48))
def test_every_fault_ends_in_an_answer_or_a_typed_fault(fault, name, when, model, streamed):
    end, _ = play(fault, name, when=when, model=model, streamed=streamed)
    assert end == "ok" or end in CATALOG


@pytest.mark.soak
@pytest.mark.parametrize("fault", PROVIDER)
def test_every_fault_of_the_provider_with_every_fault_of_a_tool(fault):
    ends: Counter[str] = Counter()
    for case in CASES:
        if case[0] == fault:
            end, _ = play(*case[:2], when=case[2], model=case[3], streamed=case[4])
            ends[end] += 1
    assert sum(ends.values()) == len(TOOL) * 12


# --- five roles at once ---


ROLES = tuple(AGENT_CHAINS)


def storm_script(chance: random.Random, length: int = 200) -> str:
    steps = [LESS.get(fault, fault) for fault in PROVIDER]
    return ", ".join("ok" if chance.random() < 0.5 else chance.choice(steps) for _ in range(length))


def agents_of(worlds: dict[str, World], chance: random.Random) -> list[Any]:
    """Return for each role its agent, a simpler one with another provider, and a last one that works now and then."""
    agents: list[Any] = []
    for name, (simple, last) in AGENT_CHAINS.items():
        ways = [chance.choice(TOOL) for _ in range(3)]
        main, other = worlds[f"{name}/claude"], worlds[f"{name}/gpt"]
        agents.append(main.agent(*[_tool(ways[0])], name=name, hooks=guard(ways[0])))
        agents.append(other.agent(name=simple, model=other.model("gpt-5")))
        agents.append(FunctionAgent(last, _last_resort(works=chance.random() < 0.5)))
    return agents


def _last_resort(*, works: bool) -> Callable[[str], Any]:
    async def by_hand(prompt: str) -> str:
        if not works:
            raise TimeoutError("nobody is there")
        return f"by hand: {prompt}"

    return by_hand


def play_roles(seed: int, *, in_session: bool) -> Counter[str]:
    chance = random.Random(seed)
    first = World("Done.")
    worlds = {}
    for name in ROLES:
        for provider in ("claude", "gpt"):
            world = world_of(storm_script(chance), *(chance.choice(TOOL) for _ in range(chance.randrange(3))))
            world.runtime = first.runtime
            worlds[f"{name}/{provider}"] = world
    roles = Roles(agents_of(worlds, chance), {name: SPEC016_ROLES[name] for name in ROLES}, runtime=first.runtime)

    async def work() -> list[Any]:
        async def both() -> list[Any]:
            with Budget(attempts=2_000):
                ends = []
                # Three rounds, so that circuits that opened are met too.
                for number in range(3):
                    ends += await asyncio.gather(*(one_run(name, number) for name in ROLES))
            return ends

        async def one_run(name: str, number: int) -> Any:
            return await roles[name].outcome(f"task {number}", session=session)

        if not in_session:
            session = None
            return await both()
        async with first.session(MemoryStore(), mode="yolo") as session:
            return await both()

    ends = [check_end(end) for end in first.run(work())]
    assert len(ends) == 3 * len(ROLES)
    check_counts(first, *worlds.values())
    assert sum(world.received for world in worlds.values()) <= MOST_REQUESTS * len(ends)
    # One notification for each run that ended badly, and none for the others.
    assert len(first.of(UserNotified)) == sum(end != "ok" for end in ends)
    assert first.runtime.clock.monotonic() <= LONGEST_S
    return Counter(ends)


@pytest.mark.parametrize(("seed", "in_session"), [(1, False), (2, True)])
def test_five_roles_in_a_storm(seed, in_session):
    ends = play_roles(seed, in_session=in_session)
    assert ends["ok"] > 0
    assert set(ends) - {"ok"} <= set(CATALOG)


@pytest.mark.soak
@pytest.mark.parametrize("seeds", range(10))
def test_five_roles_in_many_storms(seeds):
    ends: Counter[str] = Counter()
    for seed in range(seeds * 20, seeds * 20 + 20):
        ends += play_roles(seed, in_session=bool(seed % 2))
    assert ends["ok"] > 0
    assert len(ends) > 1
