"""Supervisors (API.md, job 3) as a type checker sees them. Never run."""

from __future__ import annotations

from functools import partial
from typing import Any, assert_type

from holdfast import Actor, Backoff, Child, Outcome, Ref, Supervisor
from holdfast.actors import Handle, Host, Place, Pool
from holdfast.supervision import Exit
from holdfast.tools import Finished, run


class Coder(Actor):
    def __init__(self, model: str) -> None:
        self.model = model

    async def review(self, diff: str) -> list[str]:
        return [diff]


async def poll(inbox: str, every: float) -> int:
    return len(inbox)


async def tick(every: float = 1.0, *, loud: bool = False) -> None: ...


async def fetch(*urls: str) -> list[str]:
    return list(urls)


async def summarise(document: str) -> str:
    return document


class Workers(Supervisor):
    """A supervisor of one's own."""


class Local(Actor):
    """Its instances take no arguments."""


def own_host(child: Child, place: Place) -> Host:
    raise NotImplementedError


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
        team.map(summarise, [3])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    async with Pool("pool", Coder, "haiku", size=4) as pool:
        ref: Ref[Coder] = pool.partition("key")
        assert_type(ref, Ref[Coder])


async def every_kind_of_child(team: Supervisor) -> None:
    assert_type(await team.start(tick), Handle[None])
    assert_type(await team.start(tick, 2.0), Handle[None])
    assert_type(await team.start(fetch, "a", "b", id="fetch"), Handle[list[str]])
    assert_type(await team.start(partial(poll, "inbox"), 1.0), Handle[int])
    assert_type(await team.start(partial(Coder, "haiku")), Ref[Coder])
    assert_type(await team.start(Local, restart="temporary"), Ref[Local])
    assert_type(await team.start(Workers, "workers"), Workers)
    assert_type(await team.start(Workers("workers")), Workers)
    assert_type(await team.start(["redis-server"], restart="transient"), Handle[Finished])
    assert_type(await team.start(run(["redis-server"])), Handle[Finished])
    assert_type(await team.start(Child(poll, "inbox"), 1.0), Any)
    assert_type(await team.start("anything", 3, host=own_host), Any)


async def wrong_arguments(team: Supervisor) -> None:
    await team.start(poll, 3, 1.0)  # type: ignore[arg-type, call-arg] # pyright: ignore[reportArgumentType, reportCallIssue]
    await team.start(poll, "inbox")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType, reportCallIssue]
    await team.start(poll, "inbox", 1.0, 3)  # type: ignore[arg-type, call-arg] # pyright: ignore[reportArgumentType, reportCallIssue]
    await team.start(Coder)  # type: ignore[arg-type, call-arg] # pyright: ignore[reportArgumentType, reportCallIssue]
    await team.start(Coder, 3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType, reportCallIssue]
    await team.start(Local, "haiku")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType, reportCallIssue]
    await team.start(poll, "inbox", 1.0, restart="sometimes")  # type: ignore[call-arg, call-overload] # pyright: ignore[reportArgumentType, reportCallIssue]
    await team.start(poll, "inbox", 1.0, retsart="transient")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]


Supervisor("s", strategy="one_for_none")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
