"""Runs a stage machine in forked processes that are killed after some seconds: see `workflow_worker`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from workflow_worker import serve

from holdfast import Session, Stage, StageMachine
from holdfast.tasks.stages import END, Go

WHOLE = ["f(d(a(start(g)) b() c([1]) [2]))", {"goal": "g", "of_b": [2], "of_c": [1]}]


def machine(notes: Path) -> StageMachine:
    async def act(work):
        # In one write, so that a kill leaves all of it or nothing.
        with notes.open("a") as file:
            file.write(f"{work.execution.rpartition('/')[2]}.{work.attempt}.{work.stage}\n")
        await asyncio.sleep(0)
        if (work.stage, work.attempt) in {("b", 1), ("e", 1), ("e", 2)}:
            raise ConnectionError(f"{work.stage} is down")
        return f"{work.stage}({work.prompt})"

    def setup(ctx):
        ctx[f"of_{ctx.stage}"] = [*ctx.get(f"of_{ctx.stage}", []), ctx.attempt]

    split = Go(stages=("a", "b", "c"), execution="parallel", join="d")
    return StageMachine(
        [
            Stage("start", act, body="{goal}", next=split),
            Stage("a", act, body="{start}"),
            Stage("b", act, setup=setup),
            Stage("c", act, body="{of_c}", setup=setup),
            Stage("d", act, body="{a} {b} {c} {of_b}"),
            Stage("e", act, next=lambda ctx: "f" if ctx.outcome == "fail" else END),
            Stage("f", act, body="{d}", next=END),
        ]
    )


async def work(folder: Path):
    async with Session.open("s", store=f"sqlite:{folder / 'work.db'}") as session:
        ended = await machine(folder / "notes").run(session, inputs={"goal": "g"})
        return [ended.value, ended.context]


if __name__ == "__main__":
    serve(work)
