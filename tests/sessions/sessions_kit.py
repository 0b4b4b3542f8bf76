"""What the tests of sessions share: functions to be done once, and a store that can be made to fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import tool
from holdfast.faults import HoldfastError
from holdfast.sessions import Session, openings
from holdfast.stores import Commit, MemoryStore, Receipt
from holdfast.stores.errors import unavailable


class Done(list[Any]):
    """What was really done."""


class Crash(BaseException):
    """The process dies here: nothing above may handle it."""


class FailingStore(MemoryStore):
    """A memory store whose commits fail while `failing` says so."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.failing: Callable[[Commit], bool] = lambda _: False
        self.tried: list[Commit] = []

    async def commit(self, commit: Commit) -> Receipt:
        self.tried.append(commit)
        if self.failing(commit):
            raise unavailable("the disk is full")
        return await super().commit(commit)


async def killed(store: MemoryStore, work: Callable[[Session], Awaitable[object]], **options: Any) -> None:
    """Work in a session that ends as a killed process does: without leaving it."""
    next_run()
    session = Session.open("s", store=store, **options)
    await session.__aenter__()
    try:
        await work(session)
    except Crash:
        pass
    else:
        raise AssertionError("the work was to be killed")
    await dies(session)


def next_run() -> None:
    """What comes now is another run of the program, as if another process made it."""
    openings._KEPT.clear()


async def dies(session: Session) -> None:
    """What a dead process leaves: nothing is written any more, and its lease runs out."""
    kept = session._keeper.forget(session.id)
    assert kept is not None
    await session._store.acquire(session.id, kept.lease.owner, 0.0)


def code_of(error: BaseException) -> str:
    assert isinstance(error, HoldfastError), error
    return error.fault.code


@tool(effect="idempotent")
def square(n: int) -> int:
    return n * n
