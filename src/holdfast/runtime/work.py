"""`Work`: the durable work (a session, its turn, a step) that a call belongs to. Its events name it, and its audit trail has them.

It stands apart from the ambient scope: writes to a store leave the deadline and budget of their caller, but still belong to its
session.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.events import Event

__all__ = ["WORK", "Work", "work_in_force"]


class Work:
    """The durable work that a call belongs to: a session, a turn of it, or a step of that turn. `with work:` is the block of a step or turn."""

    __slots__ = ("_token", "around", "key", "over", "record", "session", "step", "turn")

    def __init__(
        self,
        session: str,
        record: Callable[[Event, Work], None],
        *,
        turn: int = 0,
        step: str = "",
        key: str = "",
        around: Work | None = None,
    ) -> None:
        self.session = session
        self.turn = turn
        self.step = step
        self.key = key or session
        """What correlates its audit records: the step's key, or the session's id."""
        self.record = record
        """Called with each event inside. It must neither raise nor block, and it may be called in any thread."""
        self.around = around
        self.over = False
        """Whether it has ended; tasks that were started in it may go on."""

    def __enter__(self) -> None:
        self._token = WORK.set(self)

    def __exit__(self, *_: object) -> None:
        self.over = True
        WORK.reset(self._token)


WORK: ContextVar[Work | None] = ContextVar("holdfast_work", default=None)


def work_in_force() -> Work | None:
    """Return the innermost durable work around the caller that is not over."""
    work = WORK.get()
    while work is not None and work.over:
        work = work.around
    return work
