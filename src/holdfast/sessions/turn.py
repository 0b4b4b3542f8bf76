"""The turns of a session: `TurnRunner` runs them, one after the other.

Invariant: the beginning and the end of a turn run to completion even if their caller is cancelled, and no other turn begins or ends
meanwhile. A turn whose block raised ends as `failed` when the next turn begins. If the program ends first, the turn stays in flight
and can be continued.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec

from holdfast import options
from holdfast.events import SessionTurnEnd, SessionTurnStart, StepNotReplayed
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.once.doubt import call_text
from holdfast.once.identity import turn_key
from holdfast.once.records import StepEnded, is_bound, is_doubtful
from holdfast.once.replay import is_later
from holdfast.runtime.lineage import REQUEST
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.shield import run_to_end
from holdfast.sessions import codec, openings
from holdfast.sessions.journal import VERSION, IdleLock, audit, entries_of
from holdfast.sessions.lifecycle import cancelled, first_turn_began
from holdfast.sessions.log import (
    ContextSaved,
    SessionMemory,
    StepAccepted,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
    read_entry,
)
from holdfast.sessions.open_ends import check_done
from holdfast.sessions.place import same_place
from holdfast.sessions.repeated_turns import DROPPED, EqualTurnSteps, FinishedSteps
from holdfast.sessions.scopes import Scope
from holdfast.sessions.siblings import attempts_around
from holdfast.sessions.step_runner import StepRunner
from holdfast.sessions.steps import anew, stored_step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from holdfast.once.records import StepEntry
    from holdfast.once.replay import Attempts
    from holdfast.sessions.journal import Journal

__all__ = ["BY_CRASH", "Turn", "TurnRunner", "Unfinished"]

T = TypeVar("T")

BY_CRASH = "crash"
"""Why a turn is abandoned with `on_crash="abandon"`. It is stored, so it never changes."""

Unfinished: TypeAlias = Literal["continue", "retry", "abandon"]
"""What becomes of a turn that failed or was cut off."""


class Turn:
    """One turn: what a session does between two checkpoints. `Session.turn` makes it.

    async with session.turn(user_message) as turn:
        await session.step(make_plan)
        print(turn.number)
    """

    def __init__(self, steps: StepRunner, given: Any) -> None:
        self.number = steps.turn
        """1, 2, 3 … in the session."""
        self.input = given
        """What the turn was started with, also if it is continued with `session.turn()`."""
        self.scope = steps.scope
        """The scope that cancels the turn. Use it as the parent of your own scopes."""
        self.steps = steps
        """Runs its steps. Use `Session.step` instead."""

    @property
    def replayed(self) -> bool:
        """Whether the turn ended before this run of the program, and its steps only return what they returned."""
        return isinstance(self.steps, FinishedSteps)

    def cancel(self) -> bool:
        """Cancel the turn; the session goes on. Return whether the turn was running.

        The turn's block raises `AbortedError` with SESS_TURN_CANCELLED.
        """
        return self.scope.cancel("user")


class _KeyedTurn(NamedTuple):
    """What the program says about which turn it means."""

    key: str
    """As the log has it; empty if it has none."""
    again: bool


class TurnRunner:
    """Runs the turns of a session, and knows which turn a step belongs to. A `Session` has one."""

    __slots__ = (
        "_activate",
        "_before",
        "_cut",
        "_cut_run",
        "_done",
        "_earlier",
        "_failed",
        "_finished",
        "_journal",
        "_left_alone",
        "_left_in",
        "_made",
        "_outside",
        "_queue",
        "_run",
        "_scope",
        "_threads",
        "_turn",
        "changing",
        "context",
        "resumed",
    )

    def __init__(
        self, journal: Journal, scope: Scope, *, threads: bool, activate: Callable[[], Awaitable[None]]
    ) -> None:
        self.context: dict[str, Any] = {}
        """What `Session.context` is. The end of a turn saves it, or sets it back to what it was."""
        self.resumed = False
        """Whether the session existed before, and no turn or step has begun since it was opened."""
        self._journal = journal
        self._scope = scope
        """The session's scope. Cancelling it cancels the turn."""
        self._threads = threads
        """Whether plain functions run in a thread as steps."""
        self._activate = activate
        """Makes a session that was only created active. The first turn or step calls it."""
        self._queue = IdleLock()
        """Held by the turn that runs. Later turns wait for it in order."""
        self.changing = IdleLock()
        """Held while a turn begins or ends, or the session's state changes."""
        self._turn: Turn | None = None
        """The turn whose block runs now."""
        self._outside: StepRunner | None = None
        """Runs the steps outside of any `turn` block."""
        self._left_alone: int | None = None
        """The number of a turn that began here and has not ended, although its block is not running."""
        self._left_in: Attempts | None = None
        """The attempts of recoveries around that turn."""
        self._run = 0
        """The number of the first turn of this run of the program, or of the run that it continues; 0 before the first turn."""
        self._cut: int | None = None
        """The number of the turn that an earlier run left unfinished, until this run comes to it."""
        self._cut_run = 0
        """The number of the first turn of that earlier run."""
        self._finished: deque[SessionMemory] | None = None
        """The turns of that run which ended well and were not repeated yet, each as it ended. They are read when they are needed."""
        self._done: dict[int, SessionMemory] | None = None
        """The turns with a key that had ended well when the first of them was repeated, until a turn that is not repeated begins."""
        self._earlier: list[SessionMemory] | None = None
        """The turns that did what must not happen twice, each as it ended. They are read when they are needed."""
        self._failed: list[SessionMemory] = []
        """The turns of this run that did what must not happen twice, and then did not end well, each as it ended."""
        self._made: set[int] = set()
        """The numbers of the turns that this opening has begun, continued or repeated."""
        journal.running = self.running
        self._before = openings.Openings()
        """What this run of the program did in earlier openings of the session."""

    def load(self) -> None:
        """Take over what the session's log holds, after it was read."""
        self.restore_context()
        self._cut = self.in_flight
        # Earlier versions did not store which turns belong to one run. Such a turn is a run of its own.
        self._cut_run = self._journal.memory.run or self._cut or 0
        self._before = openings.take(self._journal)
        self._run = self._before.run

    @property
    def in_flight(self) -> int | None:
        """The number of the turn that has begun and not ended, or None."""
        memory = self._journal.memory
        return memory.turn if memory.in_flight else None

    @asynccontextmanager
    async def turn(
        self, given: Any, unfinished: Unfinished | None, key: str | None, *, again: bool
    ) -> AsyncIterator[Turn]:
        """Run a turn: see `Session.turn`."""
        options.name("turn.key", key, optional=True)
        options.flag("turn.again", again)
        known_as = _KeyedTurn(turn_key(key) if key else "", again)
        if unfinished is not None:
            options.one_of("turn.unfinished", unfinished, get_args(Unfinished))
        self._journal.recorder.check_loop()
        if _TURN.get() is not None and _TURN.get() is self._turn:
            raise self._busy("a turn of it is running here already")
        attempts = attempts_around()
        # The lock is fair: turns run in the order of their calls.
        async with self._queue:
            if unfinished is None and not key and (self._is_left_by_recover(given, attempts) or self._is_parked(given)):
                unfinished = "continue"
            turn = await self.in_order(partial(self._begin, given, unfinished, known_as))
            self._left_alone = self._left_in = None
            token = _TURN.set(turn)
            # A process that resumes the turn has no request of its own.
            request = REQUEST.set(REQUEST.get() or self._journal.memory.request)
            self._turn = turn
            # Such a turn stores nothing. What the program has set before it is not its own.
            before = deepcopy(self.context) if key and turn.replayed else None
            try:
                async with turn.scope:
                    with self._journal.recorder.inside(turn.number), same_place(self._journal) as block:
                        self._report(turn)
                        yield turn
                        if key and not turn.replayed:
                            # It ends once for good.
                            await check_done(block)
            except BaseException as error:
                self._left_in = None if turn.replayed else attempts
                await self._turn_failed(turn)
                self._report(turn, "cancelled" if self._report_cancelled(turn, error) else "failed")
                raise
            else:
                await self._turn_done(turn)
                self._report(turn, "ok")
            finally:
                self._turn = None
                _TURN.reset(token)
                REQUEST.reset(request)
                if before is not None:
                    self._set_context(before)

    def _report(self, turn: Turn, outcome: str = "") -> None:
        """Emit the event of the start of a turn, or of its end. A turn that only repeats what is stored has none."""
        if turn.replayed:
            return
        runtime = self._journal.runtime or default_runtime()
        at, number = runtime.clock.wall(), turn.number
        with self._journal.recorder.inside(number):
            runtime.bus.emit(
                SessionTurnEnd(at=at, number=number, outcome=outcome)
                if outcome
                else SessionTurnStart(at=at, number=number)
            )

    def _report_cancelled(self, turn: Turn, error: BaseException) -> bool:
        """Report who cancelled a turn, for the audit trail. Return whether it was cancelled.

        If its task was, the turn stays in flight: the next run continues it.
        """
        with self._journal.recorder.inside(turn.number):
            return cancelled(turn.scope, error, self._journal.runtime)

    def _is_left_by_recover(self, given: Any, attempts: Attempts) -> bool:
        """Whether `recover` around the turn that failed makes its next attempt: it is the same turn, and nothing is done again."""
        if self._left_in is None or not is_later(attempts, self._left_in):
            return False
        return given is None or _hash_of(given) == self._journal.memory.given

    def _is_parked(self, given: Any) -> bool:
        """Whether a run that is parked left the turn here, and this is the same turn: it goes on, and nothing is done again."""
        memory = self._journal.memory
        if self._left_alone is None or self._left_alone != self.in_flight:
            return False
        parked = any(run.turn == memory.turn for run in memory.parked.values())
        return parked and (given is None or _hash_of(given) == memory.given)

    @property
    def current(self) -> Turn | None:
        """The turn of this session that the running code is in. It may be over, if the code is a task that outlived it."""
        turn = _TURN.get()
        return turn if turn is not None and turn.scope.parent is self._scope else None

    async def steps(self) -> StepRunner:
        """Return what runs a step that is called here: the steps of the turn around it, or the steps outside of turns."""
        begun = self.begun_steps
        return begun if begun is not None else await self.in_order(self._begin_outside)

    @property
    def begun_steps(self) -> StepRunner | None:
        """The same, without waiting; None if the steps outside of turns were not begun yet."""
        self._journal.recorder.check_loop()
        turn = self.current
        if turn is not None:
            # Also if that turn is over: a task that outlived its turn must not write into another turn or the session.
            return turn.steps
        self._used_again()
        return self._outside

    def _used_again(self) -> None:
        """The first turn or step of a session that was resumed begins."""
        if self.resumed:
            self.resumed = False
            first_turn_began(self._journal.session, self._journal.runtime)

    def running(self) -> set[str]:
        """Return the steps that run now, as in `SessionMemory.unknown`."""
        running = self._outside.running() if self._outside is not None else set()
        return running | self._turn.steps.running() if self._turn is not None else running

    async def rerun(self, key: str) -> tuple[str, ...]:
        """Forget a step and those stored after it: see `Session.rerun`."""
        known = stored_step(self._journal.memory, self._journal.session, key)
        if not known.turn or self._journal.memory.steps.get(known.step) is not known:
            steps = await self.in_order(self._begin_outside)
        elif self._turn is not None and self._turn.number == known.turn:
            steps = self._turn.steps
        else:
            raise self._busy(f'turn {known.turn} is not running: `session.turn(unfinished="retry")` begins it anew')
        return tuple(steps.key(name) for name in await steps.forget(key))

    async def _begin_outside(self) -> StepRunner:
        await self._activate()
        # Another task may have made it while this one waited for the lock.
        if self._outside is None:
            self._outside = StepRunner(self._journal, 0, self._scope, threads=self._threads, called=self._before.steps)
        return self._outside

    async def _begin(self, given: Any, unfinished: Unfinished | None, known: _KeyedTurn) -> Turn:
        """Start a turn, continue the turn that is not finished, or return one with a key that was finished before."""
        if self._journal.is_behind:
            # Somebody wrote just before the last turn ended. Until that is read, the turn seems to go on.
            await self._journal.catch_up()
        memory = self._journal.memory
        stored = codec.plain(given, "turn.given")
        known_by = _hash_of(stored)
        if (replayed := await self._repeat(given, known_by, unfinished, known.key)) is not None:
            return replayed
        if known.key:
            unfinished = await self._meet_keyed(known.key, unfinished)
        if unfinished == "abandon":
            await self.end("abandoned", "another turn took its place")
        elif unfinished is None:
            await self.end_left_alone()
        if not memory.in_flight:
            await self._start_turn(stored, known_by, known)
        elif given is not None and known_by != memory.given:
            raise self._busy_with_another_input()
        elif unfinished == "retry":
            await self._begin_anew()
        scope = Scope("turn", parent=self._scope)
        # With `unfinished` the program says that it means this turn.
        steps = await self._steps_of_turn(known_by if unfinished is None else "", scope)
        if self._cut == memory.turn:
            self._continue_run(memory.turn, means_it=unfinished is not None and not known.key)
        self._used_again()
        self._cut = self._finished = self._done = None
        # The caller may have been cancelled while the turn began. Until it has the turn, the turn counts as left alone.
        self._left_alone = memory.turn
        self._made.add(memory.turn)
        return Turn(steps, memory.input)

    def _continue_run(self, turn: int, *, means_it: bool) -> None:
        """Make this run the one that was cut. If that turn was given up, another run begins with the next turn."""
        self._run = self._cut_run
        if means_it:
            # The program goes on where that run was, and has made its earlier turns.
            self._made.update(range(self._cut_run, turn))

    async def _repeat(self, given: Any, known_by: str, unfinished: Unfinished | None, key: str) -> Turn | None:
        """Return a turn that was finished before, if the program means it."""
        keyed = self._journal.memory.keyed
        if key in keyed:
            return await self._repeat_keyed(keyed[key], given, known_by)
        return await self._replay(known_by) if unfinished is None and not key else None

    async def _meet_keyed(self, key: str, unfinished: Unfinished | None) -> Unfinished | None:
        """Make way for a turn with this key that is not finished, whichever turn is in flight; return what becomes of it."""
        memory = self._journal.memory
        if memory.in_flight and memory.key == key:
            return unfinished or "continue"
        if memory.in_flight and memory.key and unfinished is None:
            # Its steps are kept: it goes on when the program comes to it.
            await self.end("failed", "another turn took its place")
        return unfinished

    async def _repeat_keyed(self, number: int, given: Any, known_by: str) -> Turn:
        """Return a turn with a key that has ended well: its steps return what they returned."""
        memory = await self._done_turn(number)
        if memory is None:
            # A turn whose part of the log was dropped has no steps any more, and runs none.
            memory = SessionMemory(turn=number, in_flight=True, given=known_by, ended=DROPPED, version=VERSION)
        if given is not None and memory.given != known_by:
            raise InvalidError.saying("turn.key", f"the input that turn {number} of this key had", "another input")
        self.resumed = False
        return self._repeated(memory)

    async def _done_turn(self, number: int) -> SessionMemory | None:
        """Return a turn that has ended well, as it ended."""
        if self._done is None:
            # A program that is run again makes many of them. Read the log once for all, but not what others may still settle.
            found = await _ended_turns(self._journal, 1, self._journal.memory.last + 1)
            self._done = {each.turn: each for each in found if not any(map(is_doubtful, each.steps.values()))}
        done = self._done.pop(number, None)
        if done is None:
            found = await _ended_turns(self._journal, number, number + 1)
            done = found[0] if found else None
        return done

    async def _replay(self, known_by: str) -> Turn | None:
        """Return the next turn of the run that was cut, if the program begins from its start and has come to that turn."""
        if known_by == self._journal.memory.given or not await self._is_next_finished(known_by):
            # A turn with the input of the cut one is the cut one: a loop that keeps its place in the context goes on there.
            return None
        assert self._finished
        self.resumed, self._run = False, self._cut_run
        return self._repeated(self._finished.popleft())

    def _repeated(self, memory: SessionMemory) -> Turn:
        """Return a turn that has ended well, for a program that makes it once more."""
        self._made.add(memory.turn)
        steps = FinishedSteps(self._journal, memory, Scope("turn", parent=self._scope), threads=self._threads)
        return Turn(steps, memory.input)

    async def _is_next_finished(self, known_by: str) -> bool:
        """Whether the next turn to repeat has this input."""
        if self._cut is None or self._cut != self.in_flight:
            return False
        if self._finished is None:
            found = await _ended_turns(self._journal, self._cut_run, self._cut)
            finished = [turn for turn in found if not turn.key]
            left = [turn for turn in finished if turn.turn not in self._before.turns]
            self._finished = deque(left if left and left[0].given == known_by else finished)
        return bool(self._finished) and self._finished[0].given == known_by

    async def _steps_of_turn(self, given: str, scope: Scope) -> StepRunner:
        """Return the steps of the turn in flight, for a program that may mean an earlier turn with the same input."""
        memory = self._journal.memory
        # Turns of the run that was cut: the program may be about to repeat them.
        is_next = bool(given) and await self._is_next_finished(given)
        same_run = [turn for turn in self._finished or () if turn.given == given] if is_next else []
        if not same_run and (memory.again or memory.turn == 1):
            return StepRunner(self._journal, memory.turn, scope, threads=self._threads)
        return EqualTurnSteps(self._journal, memory.turn, scope, same_run, self._equal_turns, threads=self._threads)

    async def _equal_turns(self) -> list[SessionMemory]:
        """Return the turns with the input of the turn in flight that this run of the program has not made, or not to a good end."""
        memory = self._journal.memory
        if memory.again:
            return []
        if self._earlier is None:
            found = await _ended_turns(self._journal, 1, memory.last + 1, only_well=False)
            self._earlier = [turn for turn in found if any(map(is_bound, turn.steps.values()))]
        earlier = [turn for turn in self._earlier if turn.turn not in self._made]
        return [
            turn
            for turn in (*earlier, *self._failed)
            # Two keys are two turns, whatever their inputs are.
            if turn.given == memory.given and not (turn.key and memory.key)
        ]

    async def accept(self, key: str, *, again: bool) -> None:
        """Let a stored step stand for other calls, or say that those are meant: see `Session.accept`."""
        journal = self._journal
        known = await self._finished_step(key) or stored_step(journal.memory, journal.session, key)
        record = audit("Approval", key, step=known.step, accepted=not again)
        await journal.write(StepAccepted(turn=known.turn, step=known.step, again=again), audit=(record,))

    async def _finished_step(self, key: str) -> StepEntry | None:
        """Return the step with this key of a turn that has ended; None if there is none."""
        after = key.removeprefix(f"{self._journal.session}/")
        number, _, name = after.partition("/")
        if not number.isdigit() or int(number) == self.in_flight:
            return None
        turns = await _ended_turns(self._journal, int(number), int(number) + 1, only_well=False)
        return turns[0].steps.get(name) if turns else None

    async def end_well(self) -> None:
        """End a turn that failed here, and report the unsafe steps outside of turns that this run of the program has not called."""
        if self._outside is not None:
            self._report_not_called(self._outside)
        await self.end_left_alone()

    def _report_not_called(self, steps: StepRunner) -> None:
        """Report each unsafe step that an earlier run did and this one has not called, at the end of a run that ended well."""
        runtime, session = self._journal.runtime or default_runtime(), self._journal.session
        for name, known in steps.not_called():
            key = steps.key(name)
            with self._journal.recorder.inside(steps.turn, name, key):
                runtime.bus.emit(
                    StepNotReplayed(at=runtime.clock.wall(), operation=call_text(known), key=key, session=session)
                )

    def keep_run(self) -> None:
        """The opening has ended well: the next one may go on with this run of the program."""
        steps = self._before.steps if self._outside is None else self._outside.called()
        openings.keep(
            self._journal, openings.Openings(steps=steps, run=self._run, turns=self._before.turns | self._made)
        )

    async def _turn_done(self, turn: Turn) -> None:
        if turn.replayed:
            # The context is already what the turn, and those after it, made of it.
            self.restore_context()
        else:
            self._report_not_called(turn.steps)
            await self.in_order(partial(self.end, "ok"))

    async def _begin_anew(self) -> None:
        """Forget what the turn in flight has done. Unsafe steps that happened, or may have, stay done."""
        forgotten, record = anew(self._journal.memory, self._journal.session)
        await self._journal.write(forgotten, audit=(record,))
        self.restore_context()

    async def _start_turn(self, given: Any, known_by: str, known: _KeyedTurn) -> None:
        memory = self._journal.memory
        cut = memory.cut.get(known.key)
        number = max(memory.turn, memory.last) + 1 if cut is None else cut.turn
        self._run = self._run or number
        started = TurnStarted(
            turn=number,
            input=given,
            given=known_by,
            run=self._run,
            key=known.key,
            again=known.again,
            request=REQUEST.get(),
        )
        record = audit("Turn", self._journal.session, turn=started.turn, event="started")
        await self._activate()
        # What was set before the turn is saved with its start: it stays even if the turn fails.
        await self._journal.save(self.context, started, checkpoint=False, audit=(record,))

    async def end_left_alone(self) -> None:
        """End a turn that failed here. The caller holds `changing`."""
        if self._left_alone is not None and self._left_alone == self.in_flight:
            await self.end("failed", "an exception left it")

    async def end(self, outcome: TurnOutcome, reason: str = "") -> None:
        """End the turn in flight. It may have ended already, through `abandon`. The caller holds `changing`."""
        number = self.in_flight
        if number is not None:
            ended = TurnEnded(turn=number, outcome=outcome, reason=reason)
            if not _may_come_again(ended) and (done := _what_it_did(self._journal.memory)) is not None:
                self._failed.append(done)
            elif outcome == "ok" and self._failed:
                # A turn with a key went on.
                self._failed = [turn for turn in self._failed if turn.turn != number]
            record = audit("Turn", self._journal.session, turn=number, event="ended", outcome=outcome, reason=reason)
            # Store the end and the context in one commit. Without the turn's context the application would repeat the work.
            await self._journal.save(self.context if outcome == "ok" else None, ended, audit=(record,))
            if outcome != "ok":
                self.restore_context()
        self._left_alone = None

    def restore_context(self) -> None:
        """Set the context to what is stored. The application may hold the dict, so it stays the same object."""
        self._set_context(self._stored_context())

    def _set_context(self, values: dict[str, Any]) -> None:
        self.context.clear()
        self.context.update(values)

    async def save_context_of(self, names: Iterable[str]) -> None:
        """Store these values of the context, and leave the others as they are stored."""
        kept = {name: self.context[name] for name in names if name in self.context}
        await self._journal.save({**self._stored_context(), **kept}, checkpoint=False)

    def _stored_context(self) -> dict[str, Any]:
        # A copy: the application changes what it gets.
        stored = msgspec.json.decode(msgspec.json.encode(self._journal.memory.context))
        context = codec.restored(stored, "session.context")
        return context if isinstance(context, dict) else {}

    async def _turn_failed(self, turn: Turn) -> None:
        """End a turn that was cancelled. A turn that failed ends when the next turn begins, or stays in flight."""
        if isinstance(turn.steps, FinishedSteps) and self._finished is not None:
            # The program may make the turn once more, for example in the next attempt of a recovery.
            self._finished.appendleft(turn.steps.finished)
            self.restore_context()
        # Nothing can be written any more, or the turn was abandoned inside its own block.
        if self._journal.failed is not None or self.in_flight != turn.number:
            return
        self._left_alone = turn.number
        # The context belongs to the turn, which has not ended well.
        self.restore_context()
        if turn.scope.reason is not None:
            await self.in_order(partial(self.end, "cancelled", str(turn.scope.reason)))

    async def in_order(self, change: Callable[[], Awaitable[T]]) -> T:
        """Change the turn or the state. Changes run one after the other, and to their end even if the caller is cancelled."""
        self._journal.recorder.check_loop()

        async def whole() -> T:
            async with self.changing:
                return await change()

        return await run_to_end(whole())

    def _busy_with_another_input(self) -> HoldfastError:
        number, session = self._journal.memory.turn, self._journal.session
        return self._busy(
            f"turn {number} is not finished and had another input. Continue it with `session.turn()`, begin it anew with "
            '`session.turn(unfinished="retry")`, or give it up with `session.turn(…, unfinished="abandon")` or '
            f"`holdfast sessions abandon {session}`. Turns with a key, `session.turn(…, key=…)`, come in any order"
        )

    def _busy(self, why: str) -> HoldfastError:
        session = self._journal.session
        message = f"Session '{session}' cannot start a turn: {why}"
        return HoldfastError(Fault.of("SESS_TURN_CONCURRENT", message, context={"session_id": session}))


async def _ended_turns(journal: Journal, first: int, before: int, *, only_well: bool = True) -> list[SessionMemory]:
    """Return the turns from `first` to the one before `before` that ended well, each as the memory when it ended.

    With `only_well=False` also those that failed or were cut off, with what certainly happened there: the session itself knows the doubts.
    A turn whose beginning was dropped from the log is left out.
    """
    if first >= before:
        return []
    memory, started = SessionMemory(version=VERSION), set[int]()
    ended: dict[int, SessionMemory] = {}
    well = set[int]()
    oldest = (await journal.store.session(journal.session)).oldest
    async for entry in entries_of(journal.store, journal.session, oldest - 1):
        match body := read_entry(journal.session, entry):
            case TurnStarted(turn=turn):
                started.add(turn)
            case TurnEnded(turn=turn, outcome="ok") if turn in started and first <= turn < before:
                # The end of a turn makes new dicts, so this shallow copy keeps the turn's own.
                ended[turn] = msgspec.structs.replace(memory)
                well.add(turn)
            case TurnEnded(turn=turn) if not (only_well or _may_come_again(body)) and first <= turn < before:
                if turn in started and (done := _what_it_did(memory)) is not None:
                    ended[turn] = done
            case StepEnded(turn=turn) if turn in well:
                # Somebody resolved it after its turn had ended.
                ended[turn].apply(body, entry.id)
            case _:
                pass
        # The context is not needed, and its changes do not fit a log whose beginning was dropped.
        if body is not None and not isinstance(body, ContextSaved):
            memory.apply(body, entry.id)
    return list(ended.values())


def _may_come_again(ended: TurnEnded) -> bool:
    """Whether a turn with the same input may do again what this one did: it ended well, or somebody gave it up and so wants another."""
    return ended.outcome == "ok" or (ended.outcome == "abandoned" and ended.reason != BY_CRASH)


def _what_it_did(memory: SessionMemory) -> SessionMemory | None:
    """Return a turn that does not end well, with the unsafe steps that certainly happened in it; None if there are none."""
    steps = {name: entry for name, entry in memory.steps.items() if is_bound(entry) and not is_doubtful(entry)}
    return msgspec.structs.replace(memory, steps=steps) if steps else None


def _hash_of(given: Any) -> str:
    """Return the hash of a turn's input."""
    return codec.arguments_hash((codec.plain(given, "turn.given"),), {}, "turn.given")


_TURN: ContextVar[Turn | None] = ContextVar("holdfast_turn", default=None)
"""The turn that the running code belongs to."""
