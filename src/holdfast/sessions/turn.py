"""One turn of a session, and the locks that keep turns in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.sessions.step_runner import StepRunner

if TYPE_CHECKING:
    from holdfast.sessions.journal import Journal
    from holdfast.sessions.scopes import Scope

__all__ = ["Locks", "Turn"]


class Locks:
    """The locks that keep turns in order. They are made with the first turn, because most sessions are idle."""

    __slots__ = ("changing", "queue")

    def __init__(self) -> None:
        self.queue = asyncio.Lock()
        """Held by the turn that runs. Later turns wait for it in order."""
        self.changing = asyncio.Lock()
        """Held while a turn begins or ends, or the session's state changes."""


class Turn:
    """One turn: what a session does between two checkpoints. `Session.turn` makes it.

    async with session.turn(user_message) as turn:
        await session.step(make_plan)
        print(turn.number)
    """

    def __init__(self, journal: Journal, number: int, scope: Scope, *, threads: bool = False) -> None:
        self.number = number
        """1, 2, 3 … in the session."""
        self.input = journal.memory.input
        """What the turn was started with, also if it is continued with `session.turn()`."""
        self.scope = scope
        """The scope that cancels the turn. Use it as the parent of your own scopes."""
        self.steps = StepRunner(journal, number, scope, threads=threads)
        """Runs its steps. Use `Session.step` instead."""

    def cancel(self) -> bool:
        """Cancel the turn; the session goes on. Return whether the turn was running.

        The turn's block raises `AbortedError` with SESS_TURN_CANCELLED.
        """
        return self.scope.cancel("user")
