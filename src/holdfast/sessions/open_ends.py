"""What a part of a program must not end over as if it were done: a doubt inside of it, or a wait that it asked for.

Invariant: what is stored once (a step, a workflow, a turn with a key) is not stored as done while something inside of it is open, whatever its
code did with the error. It ends with that error, and goes on when the doubt is resolved or the wait is over.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.sessions.place import innermost, same_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from holdfast.sessions.journal import Journal
    from holdfast.sessions.place import Here

__all__ = ["check_done", "close", "handled", "leave_open", "waits_for"]


def leave_open(journal: Journal, name: str, error: Callable[[], Awaitable[Exception | None]]) -> None:
    """Something is open inside of all blocks around; `error` returns what they end with, or None once it is settled."""
    _leave_open(innermost(), _known_as(journal, name), error)


def waits_for(journal: Journal, name: str, error: Exception) -> Exception:
    """The running code waits for a time or a person. Return the error, to raise it."""

    async def waiting() -> Exception:
        return error

    if journal.waited is None:
        journal.waited = journal.heard
    leave_open(journal, name, waiting)
    return error


def close(journal: Journal, name: str) -> None:
    """It is settled for the running code."""
    around = innermost()
    while around is not None:
        if around.open is not None:
            around.open.pop(_known_as(journal, name), None)
        around = around.around


async def check_done(block: Here | None = None) -> None:
    """Raise if something is open inside of a block, by default of the innermost one around the running code."""
    block = innermost() if block is None else block
    for error in () if block is None or block.open is None else tuple(block.open.values()):
        if (found := await error()) is not None:
            raise found


@contextmanager
def handled(journal: Journal) -> Iterator[None]:
    """A block that knows what to do about each open end inside of it, if it ends well. Otherwise they belong to the blocks around."""
    block = same_place(journal)
    block.is_handled = True
    try:
        with block:
            yield
    except BaseException:
        for name, error in (block.open or {}).items():
            _leave_open(block.around, name, error)
        raise


def _leave_open(around: Here | None, name: str, error: Callable[[], Awaitable[Exception | None]]) -> None:
    while around is not None:
        around.open = {} if around.open is None else around.open
        around.open[name] = error
        around = None if around.is_handled else around.around


def _known_as(journal: Journal, name: str) -> str:
    return f"{id(journal)} {name}"
