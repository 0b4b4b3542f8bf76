"""Supervisors (API.md, job 3) as a type checker sees them. Never run."""

from __future__ import annotations

from typing import assert_type

from holdfast import Actor, Backoff, Child, Outcome, Ref, Supervisor
from holdfast.actors import Handle, Pool
from holdfast.supervision import Exit


class Coder(Actor):
    def __init__(self, model: str) -> None:
        self.model = model

    async def review(self, diff: str) -> list[str]:
        return [diff]


async def poll(inbox: str, every: float) -> int:
    return len(inbox)


async def summarise(document: str) -> str:
    return document


async def team() -> None:
    async with Supervisor("team", strategy="rest_for_one", max_restarts=3, window=60) as team:
        coder = await team.start(
            Coder,
            "haiku",
            restart="transient",
            backoff=Backoff(initial=1, cap=30),
            on={"AUTH_FAILED": "escalate", TimeoutError: "resume"},
        )
        assert_type(coder, Ref[Coder])
        assert_type(await coder.ask(Coder.review, "diff"), list[str])
        poller = await team.start(poll, "inbox", 1.0, restart="permanent")
        assert_type(poller, Handle[int])
        assert_type(await poller.wait(), Exit)
        inner = await team.start(Supervisor("inner", children=[Child(poll, "inbox", 1.0), poll, Supervisor("third")]))
        assert_type(inner, Supervisor)
        async for outcome in team.map(summarise, ["a"], concurrency=2, timeout=5):
            assert_type(outcome, Outcome[str])
    async with Pool("pool", Coder, "haiku", size=4) as pool:
        ref: Ref[Coder] = pool.partition("key")
        assert_type(ref, Ref[Coder])


Supervisor("s", strategy="one_for_none")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
