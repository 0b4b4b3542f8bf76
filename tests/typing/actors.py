"""Actors keep the types of their methods. Checked, never run."""

from __future__ import annotations

from typing import assert_type

from holdfast import Actor, Err, Ok, Supervisor
from holdfast.actors import Group, Ref, VirtualActor, VirtualActors


class Notes:
    """What a review finds."""


class Coder(Actor, timeout=120, mailbox=200):
    def __init__(self, model: str) -> None:
        self.model = model

    async def review(self, diff: str, *, deep: bool = False) -> Notes:
        return Notes()

    async def forget(self) -> None: ...


class Room(VirtualActor):
    state: list[str]

    async def join(self, name: str) -> int:
        return len(self.state)


async def team_work() -> None:
    async with Supervisor("team") as team:
        coder = await team.start(Coder, "haiku", restart="transient", on={TimeoutError: "resume"})
        assert_type(coder, Ref[Coder])
        assert_type(await coder.ask(Coder.review, "diff", deep=True), Notes)
        assert_type(await coder.using(timeout=5).outcome(Coder.review, "diff"), Ok[Notes] | Err)
        coder.tell(Coder.forget)
        await coder.ask(Coder.review, 3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        await coder.ask(Room.join, "x")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        await coder.ask(Coder.review)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
        actor: Ref[Actor] = coder  # a ref of a subclass is a ref of its base
        del actor
        group: Group[Coder] = Group("coders")
        group.join(coder)
        assert_type(await group.ask_all(Coder.review, "diff"), list[Ok[Notes] | Err])


async def rooms() -> None:
    async with VirtualActors("sqlite:rooms.db") as rooms:
        lobby = rooms.get(Room, "lobby")
        assert_type(await lobby.ask(Room.join, "ann"), int)
        assert_type(await lobby.using(key="k").outcome(Room.join, "ann"), Ok[int] | Err)
        await lobby.ask(Room.join, 3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
