"""An agent that is killed at random points, again and again, and LangGraph's with its SQLite checkpointer beside it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_agents import (
    AFTER_EFFECT,
    ANSWER,
    ANSWERS,
    BEFORE_EFFECT,
    CONVERSATION,
    PAYMENTS,
    REQUEST,
    RESPONSE,
    Plan,
    World,
)
from crash_server import Server, serving

from holdfast.testing import FaultProvider, serve_in_thread

ANYWHERE = (REQUEST, RESPONSE, BEFORE_EFFECT, AFTER_EFFECT)
STORE = ("begun", "written", "committed", "calling pay", "called pay")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("crash_agents") as started:
        yield started


class Ended(NamedTuple):
    """A run with its kills."""

    kills: int
    requests: int
    repeated: int
    """Payments that were made again."""


def run_with_kills(server: Server, work: str, folder: Path, seed: int, points: tuple[str, ...], most: int) -> Ended:
    """Kill an agent up to `most` times at random points, then let it end."""
    chance = random.Random(seed)
    folder.mkdir()
    world = World(str(folder / "world.txt"))
    with serve_in_thread(CONVERSATION) as provider:
        plan = {"store": str(folder / "agent.db"), "world": str(world.path), "url": provider.url}
        kills = 0
        while kills < most:
            # Later points are rarer to be reached: most runs are killed early, some late.
            point, nth = chance.choice(points), chance.randint(1, 4)
            if _run(server, work, Plan(**plan, point=point, nth=nth)) == "done":
                break
            kills += 1
        else:
            assert _run(server, work, Plan(**plan)) == "done"
        return _checked(world, provider, kills)


def _run(server: Server, work: str, plan: Plan) -> str:
    (how,) = server.run(f"crash_agents:{work}", plan)
    assert how in ("done", "killed"), (how, plan)
    return how


def _checked(world: World, provider: FaultProvider, kills: int) -> Ended:
    """Check that the run ended with the right answer, and that all invoices are paid."""
    assert world.lines()[-1] == f"answer {ANSWER}"
    paid = world.payments()
    assert set(paid) == set(PAYMENTS)
    return Ended(kills, provider.counters.received, paid.total() - len(PAYMENTS))


def ours(server: Server, folder: Path, kills: int) -> list[Ended]:
    """Kill our agent so often in all, at most 8 times in one run."""
    runs: list[Ended] = []
    while (left := kills - sum(run.kills for run in runs)) > 0:
        number = len(runs)
        run = run_with_kills(server, "ours", folder / f"ours-{number}", number, ANYWHERE + STORE, min(left, 8))
        # A kill can cost the one request that was under way, and no answer that was stored is asked for again.
        assert run.requests <= ANSWERS + run.kills, run
        assert run.repeated == 0, run
        runs.append(run)
    return runs


def test_an_agent_killed_at_random_points_pays_each_invoice_once_and_each_answer_at_most_once_more_for_a_kill(
    server: Server, tmp_path: Path
):
    runs = ours(server, tmp_path, kills=12)
    assert sum(run.kills for run in runs) == 12


@pytest.mark.soak
def test_an_agent_killed_300_times_and_langgraph_beside_it(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    runs = ours(server, tmp_path, kills=300)
    theirs: list[Ended] = []
    with serving("crash_agents", "langchain.agents", "langchain_anthropic", "langgraph.checkpoint.sqlite.aio") as other:
        while sum(run.kills for run in theirs) < 100:
            number = len(theirs)
            folder = tmp_path / f"langgraph-{number}"
            theirs.append(run_with_kills(other, "langgraph", folder, number, ANYWHERE, 8))
    with capsys.disabled():
        for name, ended in (("holdfast", runs), ("langgraph", theirs)):
            kills, requests, repeated = (sum(column) for column in zip(*ended, strict=True))
            again = requests - ANSWERS * len(ended)
            line = f"{kills} kills in {len(ended)} runs: {repeated} payments repeated, {again} requests sent again"
            sys.stdout.write(f"\n{name}: {line}\n")
    assert sum(run.kills for run in runs) == 300
    # LangGraph stores a tool's result after the tool: killed between the two, it calls the tool again.
    assert sum(run.repeated for run in theirs) > 0
