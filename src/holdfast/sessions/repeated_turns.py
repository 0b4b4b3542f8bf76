"""The steps of turns that the program may have made before: they return what they returned, or do not happen a second time."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import Fault, HoldfastError
from holdfast.once.identity import Identity, key_of, suffix
from holdfast.once.outcome import InDoubt, Repeat, Return, decide_step
from holdfast.once.place import in_step
from holdfast.once.records import StepEnded, is_bound
from holdfast.runtime.callables import is_async
from holdfast.sessions import codec
from holdfast.sessions.call import check_function
from holdfast.sessions.idempotency import keyed
from holdfast.sessions.place import inside, known_as
from holdfast.sessions.siblings import until_free
from holdfast.sessions.step_runner import StepRunner
from holdfast.sessions.steps import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.once.outcome import StepDecision
    from holdfast.once.records import StepEntry
    from holdfast.once.replay import Use
    from holdfast.sessions.call import Call
    from holdfast.sessions.journal import Journal
    from holdfast.sessions.log import SessionMemory
    from holdfast.sessions.scopes import Scope

__all__ = ["DROPPED", "EqualTurnSteps", "FinishedSteps"]

DROPPED = "dropped"
"""How a turn has ended whose part of the log was dropped: well, and that is all that is known."""

T = TypeVar("T")


class EqualTurnSteps(StepRunner):
    """The steps of a turn, where earlier turns may have had the same input.

    A program that runs from its start again may mean one of those turns. An unsafe step that they did must not happen again unless the
    program says which turn it means.
    """

    def __init__(
        self,
        journal: Journal,
        turn: int,
        scope: Scope,
        same_run: Iterable[SessionMemory],
        earlier_runs: Callable[[], Awaitable[list[SessionMemory]]],
        *,
        threads: bool,
    ) -> None:
        super().__init__(journal, turn, scope, threads=threads)
        self._same_run = tuple(same_run)
        """Turns of the run that was cut in this one, which the program has not repeated yet."""
        self._earlier_runs = earlier_runs

    async def _decide(self, call: Call, use: Use) -> StepDecision:
        # Also if this turn has it: what it returned may not be what the earlier turn returned.
        if (done := self._done_in(self._same_run, call)) is not None:
            raise self._perhaps_repeated(call, done, _MEANS_CUT)
        if use.name in self._memory.steps_of(self.turn):
            return await super()._decide(call, use)
        if (done := self._done_in(await self._earlier_runs(), call)) is not None:
            after = suffix(done.turn, done.step)
            if after in self._memory.accepted and isinstance(done, StepEnded) and done.ok:
                return Return(done.result)
            raise self._perhaps_repeated(call, done, _MEANS_NEW.format(key=key_of(self._journal.session, after)))
        return await super()._decide(call, use)

    def _done_in(self, turns: Iterable[SessionMemory], call: Call) -> StepEntry | None:
        """Return what one of these turns did that this call would do again."""
        for turn in turns:
            for entry in turn.steps.values():
                if is_bound(entry) and call.is_of(entry, turn.turn, self.turn):
                    return entry
        return None

    def _perhaps_repeated(self, call: Call, done: StepEntry, what_to_do: str) -> HoldfastError:
        session, turn = self._journal.session, done.turn
        message = (
            f"{call.name}{shown(call.args, call.kwargs)} does not run: turn {turn} of session '{session}' has done it, and this turn "
            f"{self.turn} has the same input. So the program may be repeating turn {turn}. {what_to_do}"
        )
        context = {
            "session_id": session,
            "turn": self.turn,
            "done_in": turn,
            "key": key_of(session, suffix(turn, done.step)),
        }
        return HoldfastError(Fault.of("SESS_STEP_DRIFT", message, context=context))


_MEANS_CUT = (
    "Give each turn a key, `session.turn(…, key=…)`, or an input of its own. If it means the turn that is not finished: "
    '`session.turn(…, unfinished="continue")`'
)
_MEANS_NEW = (
    "If it is meant anew: `session.turn(…, again=True)`. If what that turn did stands for this call: `await session.accept({key!r})`. "
    'A loop that makes a failed turn once more: `session.turn(…, unfinished="continue")`. '
    "A turn with a key, `session.turn(…, key=…)`, is done once per session, however often the program is run"
)


class FinishedSteps(StepRunner):
    """The steps of a turn that has ended well, for a program that runs from its start again: they return what they returned.

    Nothing is written, and no step runs that may have had an effect.
    """

    def __init__(self, journal: Journal, memory: SessionMemory, scope: Scope, *, threads: bool) -> None:
        self.finished = memory
        """What was known when the turn ended."""
        super().__init__(journal, memory.turn, scope, threads=threads)

    @property
    def _memory(self) -> SessionMemory:
        return self.finished

    async def question(self, kind: str, args: str, ask: Callable[[str], Awaitable[T]]) -> T:
        """Return the answer that the question got."""
        del ask
        identity = known_as(self._journal, Identity(f"?{kind}", args))
        use = self._taken(self._questions, identity)
        raised = self._memory.questions.get(use.name)
        answered = None if raised is None else self._memory.answers.get(raised.id)
        if answered is None:
            raise self._not_stored(f"the question {use.name}")
        # The answers of a turn are what `ask` returns: see `QuestionBroker`.
        found: Any = (answered, answered.value)
        await until_free(use)
        with use:
            return found  # type: ignore[no-any-return] # `ask` returns such a pair

    async def _once(self, call: Call, use: Use) -> Any:
        name = use.name
        known = self._memory.steps.get(name)
        if known is not None:
            check_function(call, known)
        match decide_step(known, call.effect):
            case Return(result):
                return codec.decode(bytes(result), call.returns, call.name)
            case InDoubt():
                raise self._unknown(name)
            case Repeat() if call.effect != "unsafe":
                # It failed then. It has no result, so the program has to see it fail once more, or go another way.
                step = self._step_of(call, use)
                self._begin(in_step(name))
                work = self._journal.recorder.inside(self.turn, step.name, step.key)
                with keyed(step.key), work, inside(self._journal, use):
                    return await self._unstored(call)
            case _:
                raise self._not_stored(f"{call.name}{shown(call.args, call.kwargs)}")

    async def _unstored(self, call: Call) -> Any:
        """Call the function of a step, and store nothing."""
        in_thread = self._threads and not is_async(call.fn)
        called = asyncio.to_thread if in_thread else _called
        result = await called(call.fn, *call.args, **call.kwargs)
        return await result if inspect.isawaitable(result) else result

    def _not_stored(self, what: str) -> HoldfastError:
        session, cut = self._journal.session, self._journal.memory.turn
        message = f"{what} does not run: turn {self.turn} of session '{session}' has ended without it, and the program repeats that turn "
        if self.finished.ended == DROPPED:
            message = (
                f"{what} does not run: turn {self.turn} of session '{session}' has ended, and what its steps returned was dropped "
                f"by `holdfast sessions prune`. If it means a new turn: another `key=`"
            )
        elif self.finished.key:
            message += "because it has the same key. If it means a new turn: another `key=`"
        else:
            message += (
                f"because turn {cut} is not finished. If the program was changed or means turn {cut}: "
                f'`session.turn(…, unfinished="continue")`. If it means a new turn: `unfinished="abandon"` gives up turn {cut}'
            )
        context = {"session_id": session, "turn": self.turn}
        return HoldfastError(Fault.of("SESS_STEP_DRIFT", message, context=context))


async def _called(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)
