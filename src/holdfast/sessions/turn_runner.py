"""Runs the turns of a session, one after the other.

Invariant: the beginning and the end of a turn run to completion even if their caller is cancelled, and no other turn begins or ends
meanwhile. A turn whose block raised ends as `failed` when the next turn begins. If the program ends first, the turn stays in flight
and can be continued.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.shield import run_to_end
from holdfast.sessions import codec
from holdfast.sessions.doubts import anew
from holdfast.sessions.journal import audit
from holdfast.sessions.log import TurnEnded, TurnOutcome, TurnStarted
from holdfast.sessions.questions.methods import QuestionMethods
from holdfast.sessions.scopes import Scope
from holdfast.sessions.step_runner import StepRunner, attempts_around
from holdfast.sessions.steps import is_later
from holdfast.sessions.turn import Locks, Turn
from holdfast.stores import SessionState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.questions.question import Interactor
    from holdfast.sessions.steps import Attempts

__all__ = ["TurnRunner"]

T = TypeVar("T")

Unfinished: TypeAlias = Literal["continue", "retry", "abandon"]
"""What becomes of a turn that failed or was cut off."""


class TurnRunner(QuestionMethods):
    """The part of a session that runs turns; `Session` is the class to use."""

    __slots__ = (
        "_left_alone",
        "_left_in",
        "_locks",
        "_outside",
        "_scope",
        "_state",
        "_threads",
        "_turn",
        "context",
        "id",
        "resumed",
    )

    def __init__(self, session: str, mode: str, interactors: Iterable[Interactor], runtime: Runtime | None) -> None:
        super().__init__(mode, interactors, runtime)
        self.id = session
        """The session's id, as it was given to `Session.open`."""
        self.context: dict[str, Any] = {}
        """Values of the application that survive a restart: plain values, values of the standard library such as
        dates, and objects of classes that are registered with `storable`. They are saved with each checkpoint."""
        self.resumed = False
        """Whether the session existed before, and no turn has begun since it was opened."""
        self._scope = Scope("session", name=session)
        self._state = SessionState.CREATED
        self._threads = False
        """Whether plain functions run in a thread as steps."""
        self._locks: Locks | None = None
        self._turn: Turn | None = None
        """The turn whose block runs now."""
        self._outside: StepRunner | None = None
        """Runs the steps outside of any `turn` block."""
        self._left_alone: int | None = None
        """The number of a turn that began here and has not ended, although its block is not running."""
        self._left_in: Attempts | None = None
        """The attempts of recoveries around that turn."""

    @property
    def in_flight(self) -> int | None:
        """The number of the turn that has begun and not ended, or None."""
        memory = self._journal.memory
        return memory.turn if memory.in_flight else None

    @asynccontextmanager
    async def turn(self, given: Any = None, *, unfinished: Unfinished | None = None) -> AsyncIterator[Turn]:
        """Run a turn. Turns run one after the other, in the order of these calls.

            async with session.turn(user_message) as turn:
                plan = await session.step(make_plan, user_message)

        `given` is the turn's input, anything JSON can hold; `Turn.input` has it. If the block ends well, the turn ends and the context
        is saved. If it raises, the turn is unfinished, and the context is again what it was. `unfinished` says what becomes of such a
        turn, or of one that a crash cut off:

        - `"continue"` continues it: its stored steps are not repeated. `given` must be None or the same as before.
        - `"retry"` begins it anew: its steps run again, except unsafe ones that happened, or may have. `given` as before.
        - `"abandon"` gives it up and starts a new turn.
        - None: a turn that failed in this process has `failed`, and a new turn starts. One that was cut off earlier is continued.

        Raises SESS_TURN_CONCURRENT inside another turn of the session, and if a turn that is to be continued had another input.
        """
        if unfinished is not None:
            options.one_of("turn.unfinished", unfinished, get_args(Unfinished))
        if _TURN.get() is not None and _TURN.get() is self._turn:
            raise self._busy("a turn of it is running here already")
        attempts = attempts_around()
        # An asyncio.Lock is fair: turns run in the order of their calls.
        async with self._lock.queue:
            if unfinished is None and self._is_left_by_recover(given, attempts):
                unfinished = "continue"
            turn = await self._in_order(partial(self._begin, given, unfinished))
            self._left_alone = self._left_in = None
            token = _TURN.set(turn)
            self._turn = turn
            try:
                async with turn.scope:
                    with self._journal.recorder.inside(turn.number):
                        yield turn
            except BaseException:
                self._left_in = attempts
                await self._turn_failed(turn)
                raise
            else:
                await self._end_turn("ok")
            finally:
                self._turn = None
                _TURN.reset(token)

    def _is_left_by_recover(self, given: Any, attempts: Attempts) -> bool:
        """Whether `recover` around the turn that failed makes its next attempt: it is the same turn, and nothing is done again."""
        if self._left_in is None or not is_later(attempts, self._left_in):
            return False
        return given is None or _hash_of(given) == self._journal.memory.given

    async def abandon(self, reason: str = "abandoned") -> None:
        """Give up the turn in flight: `await session.abandon("the user changed their mind")`.

        The results it stored stay in the log, but the next turn starts afresh.
        """
        await self._end_turn("abandoned", reason)

    async def _steps(self) -> StepRunner:
        """Return what runs a step that is called here: the steps of the turn around it, or the steps outside of turns."""
        turn = _TURN.get()
        if turn is not None and turn.scope.parent is self._scope:
            # Also if that turn is over: a task that outlived its turn must not write into another turn or the session.
            return turn.steps
        self.resumed = False
        if self._outside is not None:
            return self._outside
        return await self._in_order(self._begin_outside)

    async def _begin_outside(self) -> StepRunner:
        await self._activate()
        # Another task may have made it while this one waited for the lock.
        outside = self._outside = self._outside or StepRunner(self._journal, 0, self._scope, threads=self._threads)
        return outside

    async def _activate(self) -> None:
        if self._state is SessionState.CREATED:
            await self._go(SessionState.ACTIVE, "session_active", "first use")

    async def _begin(self, given: Any, unfinished: Unfinished | None) -> Turn:
        """Start a turn, or continue the turn that is not finished."""
        memory = self._journal.memory
        stored = codec.plain(given, "turn.given")
        known_by = _hash_of(stored)
        if unfinished == "abandon":
            await self._end("abandoned", "another turn took its place")
        elif unfinished is None:
            await self._end_left_alone()
        if not memory.in_flight:
            await self._start_turn(stored, known_by)
        elif given is not None and known_by != memory.given:
            raise self._busy(
                f"turn {memory.turn} is not finished and had another input. Continue it with `session.turn()`, begin it anew with "
                '`session.turn(unfinished="retry")`, or give it up with `session.turn(…, unfinished="abandon")` or '
                f"`holdfast sessions abandon {self.id}`"
            )
        elif unfinished == "retry":
            await self._begin_anew()
        self.resumed = False
        # The caller may have been cancelled while the turn began. Until it has the turn, the turn counts as left alone.
        self._left_alone = memory.turn
        return Turn(self._journal, memory.turn, Scope("turn", parent=self._scope), threads=self._threads)

    async def _begin_anew(self) -> None:
        """Forget what the turn in flight has done. Unsafe steps that happened, or may have, stay done."""
        forgotten, record = anew(self._journal.memory, self.id)
        await self._journal.write(forgotten, audit=(record,))
        self._restore_context()

    async def _start_turn(self, given: Any, known_by: str) -> None:
        started = TurnStarted(turn=self._journal.memory.turn + 1, input=given, given=known_by)
        record = audit("Turn", self.id, turn=started.turn, event="started")
        await self._activate()
        # What was set before the turn is saved with its start: it stays even if the turn fails.
        await self._journal.save(self.context, started, checkpoint=False, audit=(record,))

    async def _end_left_alone(self) -> None:
        if self._left_alone is not None and self._left_alone == self.in_flight:
            await self._end("failed", "an exception left it")

    async def _end_turn(self, outcome: TurnOutcome, reason: str = "") -> None:
        await self._in_order(partial(self._end, outcome, reason))

    async def _end(self, outcome: TurnOutcome, reason: str = "") -> None:
        """End the turn in flight. It may have ended already, through `abandon`."""
        number = self.in_flight
        if number is not None:
            record = audit("Turn", self.id, turn=number, event="ended", outcome=outcome, reason=reason)
            ended = TurnEnded(turn=number, outcome=outcome, reason=reason)
            # Store the end and the context in one commit. Without the turn's context the application would repeat the work.
            await self._journal.save(self.context if outcome == "ok" else None, ended, audit=(record,))
            if outcome != "ok":
                self._restore_context()
        self._left_alone = None

    def _restore_context(self) -> None:
        """Set the context to what is stored. The application may hold the dict, so it stays the same object."""
        # A copy: the application changes what it gets.
        stored = msgspec.json.decode(msgspec.json.encode(self._journal.memory.context))
        context = codec.restored(stored, "session.context")
        self.context.clear()
        self.context.update(context if isinstance(context, dict) else {})

    async def _turn_failed(self, turn: Turn) -> None:
        """End a turn that was cancelled. A turn that failed ends when the next turn begins, or stays in flight."""
        # Nothing can be written any more, or the turn was abandoned inside its own block.
        if self._journal.failed is not None or self.in_flight != turn.number:
            return
        self._left_alone = turn.number
        # The context belongs to the turn, which has not ended well.
        self._restore_context()
        if turn.scope.reason is not None:
            await self._end_turn("cancelled", str(turn.scope.reason))

    async def _dismissed(self, steps: StepRunner) -> None:
        if steps.turn:
            steps.scope.cancel("user")
            # If the caller is the turn's own task, the cancellation is raised at this await.
            await asyncio.sleep(0)

    async def _in_order(self, change: Callable[[], Awaitable[T]]) -> T:
        """Change the turn or the state. Changes run one after the other, and to their end even if the caller is cancelled."""

        async def whole() -> T:
            async with self._lock.changing:
                return await change()

        return await run_to_end(whole())

    @property
    def _lock(self) -> Locks:
        if self._locks is None:
            self._locks = Locks()
        return self._locks

    def _busy(self, why: str) -> HoldfastError:
        message = f"Session '{self.id}' cannot start a turn: {why}"
        return HoldfastError(Fault.of("SESS_TURN_CONCURRENT", message, context={"session_id": self.id}))

    @abstractmethod
    async def _go(self, to: SessionState, type_: str, reason: str) -> None:
        """Change the session's state."""


def _hash_of(given: Any) -> str:
    """Return the hash of a turn's input."""
    return codec.arguments_hash((codec.plain(given, "turn.given"),), {}, "turn.given")


_TURN: ContextVar[Turn | None] = ContextVar("holdfast_turn", default=None)
"""The turn that the running code belongs to."""
