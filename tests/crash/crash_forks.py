"""A process that forks while its store is open, and is killed while the child lives."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

import msgspec
from crash_disks import append, make

from holdfast.faults import HoldfastError
from holdfast.stores import SqliteStore


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    answer: str
    enough: str
    """The child lives until this is there."""
    point: str | None = None
    nth: int = 1
    after: float | None = None


async def parent(plan: Plan) -> None:
    async with SqliteStore(plan.store) as store:
        await make(store, "s")
        if not os.fork():
            child(plan, store)
        wait_for(plan.answer)
        await append(store, "s", 10)


def wait_for(path: str) -> None:
    end = time.monotonic() + 20
    while not Path(path).exists() and time.monotonic() < end:
        time.sleep(0.002)


def child(plan: Plan, store: SqliteStore) -> NoReturn:
    try:
        # It never waits for anything: what it cannot do raises at once.
        append(store, "s", 20).send(None)
        outcome = "it waits"
    except HoldfastError as error:
        outcome = error.fault.message
    whole = Path(f"{plan.answer}.part")
    whole.write_text(outcome)
    whole.rename(plan.answer)
    wait_for(plan.enough)
    os._exit(0)
