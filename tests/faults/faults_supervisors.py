"""Failures of supervisors: children that do not start, fail too often, do not exist, or have stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Fault, HoldfastError
from holdfast.actors import Child, Supervisor
from holdfast.testing import run


def _raised(work: Callable[[], Awaitable[Any]]) -> Fault:
    async def main() -> Fault:
        try:
            await work()
        except HoldfastError as error:
            return error.fault
        raise AssertionError("this was supposed to fail")

    return run(main())


async def _fail() -> None:
    raise KeyError("plan")


def children_fail_too_often() -> Fault:
    async def work() -> None:
        async with Supervisor("team", children=[_fail]):
            await asyncio.sleep(1)

    return _raised(work)


def child_does_not_start() -> Fault:
    async def work() -> None:
        async with Supervisor("team", children=[Child(_fail, ready=True)]):
            pass

    return _raised(work)


def child_is_not_there() -> Fault:
    async def work() -> None:
        async with Supervisor("team") as team:
            await team.terminate_child("coder")

    return _raised(work)


def supervisor_has_stopped() -> Fault:
    async def work() -> None:
        async with Supervisor("team") as team:
            await team.stop()
            await team.start(_fail)

    return _raised(work)


CASES = (
    ("ACTOR_MAX_RESTARTS", children_fail_too_often),
    ("ACTOR_NOT_FOUND", child_is_not_there),
    ("ACTOR_START_FAILED", child_does_not_start),
    ("ACTOR_STOPPED", supervisor_has_stopped),
)
