"""A world: fifty neighbours with their work, and one member with what it does. Pure data, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

NEIGHBOURS = 50

SHAPES = {
    "bridge": ("memory", "sqlite", "household"),
    "tools": ("shared", "own"),
    "actors": ("flat", "nested", "by-child", "pool", "virtual"),
    "agents": ("alone", "session"),
    "sessions": ("sqlite",),
}
"""How the neighbours of a room live together."""

JOBS = {
    "bridge": ("echo", "ask", "long", "return", "list", "hook", "events", "new", "mishap", "twice"),
    "tools": ("read", "search", "edit", "sync", "async", "many"),
    "actors": ("ask", "slow", "tell", "fail"),
    "agents": ("answer", "tool", "stream", "file"),
    "sessions": ("step", "turn", "map", "read", "reopen"),
}

# fmt: off
ACTS = {
    "bridge": (
        # of a client with a token that is right
        "pings", "messages", "joins", "creates", "big-frames", "odd-frames", "binary", "deep", "resumes", "returns", "deaf", "replays",
        "snapshots", "lists", "titles", "impostor", "answers", "meddles", "observer", "connections", "acks", "slow-frames", "own-sse",
        # of somebody without one
        "wrong-tokens", "silent", "half-header", "half-body", "no-websocket", "pairs", "wrong-http", "wrong-hooks", "half-frames",
        # of a hook, and over HTTP
        "hooks", "hook-sessions", "hook-batches", "http", "tickets", "errors", "posts",
        # of the agent of one session
        "raises", "hangs", "huge", "chatters", "exits", "fatal", "questions", "interrupts", "surrogates", "tasks", "swallows", "cancels",
        "recursion", "memory", "huge-question", "notifies",
    ),
    "tools": (
        "slow-pattern", "bad-pattern", "wrong-path", "cycle", "surrogate", "huge", "exits", "hangs", "hangs-async", "swallows",
        "garbage", "deep", "wrong-arguments", "program-flood", "program-hangs", "program-leaves", "sick-disk", "retries", "same-service",
        "raises-base", "recursion", "generator", "huge-error", "odd-text", "edits", "closed-loop", "big-file", "no-return", "prints",
    ),
    "actors": (
        "crashes", "crashes-start", "foreign", "missing-file", "denied", "http-401", "http-404", "hangs", "floods", "exits", "interrupts",
        "cancels", "leaves", "swallows", "wrong-arguments", "circle", "recursion", "huge", "config", "stopping", "watches", "tells-late",
        "timeouts", "lease", "budget", "fills", "deadline", "unprintable",
    ),
    "agents": (
        "revoked", "limited", "quota", "overloaded", "hangs", "cuts", "html", "malformed", "greedy", "cancels", "budget", "overflow",
        "bad-tool", "exits-tool", "endless", "refuses", "long-wait", "silence", "loops",
    ),
    "sessions": (
        "huge", "many", "transaction", "stopped", "stopped-reader", "leases", "same", "raises", "cancels", "killed", "unstorable", "questions",
        "long-log", "commits", "closes",
    ),
}
# fmt: on
"""What one member does. Each room has a function for each of its words."""


@dataclass(frozen=True)
class Act:
    """One thing that the member does over and over, at this strength from 1 to 3."""

    kind: str
    strength: int = 1


@dataclass(frozen=True)
class World:
    """What fifty neighbours do, and what one member does meanwhile."""

    seed: int
    room: str
    shape: str
    acts: tuple[Act, ...]
    jobs: tuple[str, ...]
    """One for each round of each neighbour; neighbour n begins with the n-th."""
    neighbours: int = NEIGHBOURS
    rounds: int = 3

    def work_of(self, who: int) -> list[str]:
        """Return the jobs of a neighbour, in their order."""
        return [self.jobs[(who + turn) % len(self.jobs)] for turn in range(self.rounds)]

    def rng(self, purpose: str) -> random.Random:
        """Return the chance of a part of this world."""
        return random.Random(f"{self.seed} {purpose}")

    def __repr__(self) -> str:
        said = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
        return f"World({', '.join(said)})"


def draw(seed: int, rooms: tuple[str, ...] = tuple(ACTS)) -> World:
    """Draw a world. Rooms take turns, so that every fifth world is one of the same room."""
    rng = random.Random(f"neighbours {seed}")
    room = rooms[seed % len(rooms)]
    kinds = rng.sample(ACTS[room], rng.choice((1, 1, 2, 3)))
    return World(
        seed=seed,
        room=room,
        shape=rng.choice(SHAPES[room]),
        acts=tuple(Act(kind, rng.choice((1, 2, 3))) for kind in kinds),
        jobs=tuple(rng.sample(JOBS[room], rng.randint(2, len(JOBS[room])))),
    )
