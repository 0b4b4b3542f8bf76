"""The attempts of one call or block, and what happens between them: a driver of `Operation` with tenacity's rules.

Whatever is the user's (hooks, conditions, waits, the sleep) is called here once for both worlds: `advance` yields what it
returned, and whoever runs the steps sends it back, awaited first in a task.

Invariant: a hook that raises changes nothing; cancellation is never swallowed; every attempt is settled exactly once.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.compat.tenacity.durations import seconds
from holdfast.compat.tenacity.state import RetryAction, RetryCallState, TryAgain
from holdfast.compat.tenacity.stops import most_attempts, why_stopped
from holdfast.faults import AbortedError, Fault, HoldfastError, InvalidError, OutcomeUnknownError, Partial
from holdfast.policies.retry import Again, GiveUp, Reason
from holdfast.runtime import errors
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.drivers import begin_limit, leave
from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, GAVE_UP_IN
from holdfast.runtime.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from contextvars import Token
    from types import TracebackType

    from holdfast.compat.tenacity.retrying import BaseRetrying
    from holdfast.compat.tenacity.state import Board, Future
    from holdfast.policies.retry import Decision
    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.limits import Limit
    from holdfast.runtime.plan import Plan

__all__ = ["AttemptManager", "Rounds", "Steps", "run", "run_async"]

Steps: TypeAlias = "Generator[Any, Any, Any]"
"""Yields what the user's functions return, and takes it back."""


class Rounds:
    """One call or block. After each `advance` either `over` is true or an attempt has begun: make it, say how it ended."""

    def __init__(
        self,
        retrying: BaseRetrying,
        plan: Plan,
        board: Board,
        fn: Callable[..., Any] | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.op = Operation(plan)
        self.state = RetryCallState(retrying, fn, args, kwargs or {})
        self.over = False
        self.answer: Any = None
        """What it came to."""
        self.error: BaseException | None = None
        """Or what it ended in."""
        self._retrying = retrying
        self._board = board
        board.show(self.state)

    def advance(self) -> Steps:
        """Look at how the last attempt ended, wait where another one is due, and begin it."""
        try:
            if self.state.outcome is not None:
                yield from self._look()
            elif self.op.attempts:
                self._end(error=InvalidError.saying("attempt", "`with attempt:` around the block", "no `with`"))
                self.op.abandoned(None)
            if not self.over:
                yield from self._begin()
        except BaseException as stop:
            self.over = True
            if isinstance(stop, Exception):
                self.op.abandoned(stop)
            else:
                self.op.stopped(stop)
            raise

    def leave(self) -> None:
        """The caller has left the loop: by `return` in a block that went well, or in some other way."""
        if self.over:
            return
        self.over = True
        outcome = self.state.outcome
        if outcome is None or outcome.failed:
            self.op.abandoned(None)
        else:
            self.op.succeeded(outcome.result())

    def stopped(self, stop: BaseException) -> None:
        """Cancelled, interrupted: not a failure, and not to be retried."""
        self.over = True
        self.op.stopped(stop)

    def _begin(self) -> Steps:
        try:
            self.op.admit()
        except HoldfastError as refused:
            # The budget or the deadline around: no attempt is made, and what they say is what surfaces.
            self.op.failed(refused)
            self._end(error=refused)
            return
        yield from self._tell("before", self._retrying.before)

    def _look(self) -> Steps:
        outcome = self.state.outcome
        assert outcome is not None
        retrying = self._retrying
        explicit = isinstance(outcome.exception(), TryAgain)
        if not explicit and not (yield from self._ask("retry", retrying.retry, otherwise=False)):
            self._accept(outcome)
            return
        yield from self._tell("after", retrying.after)
        self._board.note(self.state, delay_since_first_attempt=self.state.seconds_since_start or 0.0)
        decision = yield from self._decide()
        delay = self._settle(outcome, decision)
        if delay is None:
            yield from self._give_up(outcome)
        else:
            yield from self._rest(delay)

    def _accept(self, outcome: Future) -> None:
        """No other attempt is wanted: what the last one came to is the answer."""
        error = outcome.exception()
        if error is None:
            self._end(answer=outcome.result())
            self.op.succeeded(self.answer)
        else:
            self.op.failed(error, GiveUp(Reason.UNWANTED))
            self._end(error=error)

    def _decide(self) -> Steps:
        state, retrying = self.state, self._retrying
        wait = yield from self._ask("wait", retrying.wait, otherwise=None)
        try:
            state.upcoming_sleep = seconds("what wait returned", wait)
        except InvalidError as senseless:
            if wait is not None:
                self._complain("wait", retrying.wait, senseless)
            return GiveUp(Reason.UNWANTED)
        if (yield from self._ask("stop", retrying.stop, otherwise=True)):
            return GiveUp(why_stopped(retrying.stop, state))
        return Again(state.upcoming_sleep, most_attempts(retrying.stop, state.attempt_number))

    def _settle(self, outcome: Future, decision: Decision) -> float | None:
        """Tell the operation; it may know a reason not to go on. Return the seconds to wait, or None to give up."""
        error = outcome.exception()
        if error is not None:
            return self.op.failed(error, decision)
        fault = Fault.of(
            "PROVIDER_OUTPUT_INVALID", "The result asked for another call", partial=Partial(payload=outcome.result())
        )
        try:
            return self.op.rejected(fault, decision)
        except OutcomeUnknownError:
            raise
        except HoldfastError as refused:
            self.error = refused
            return None

    def _give_up(self, outcome: Future) -> Steps:
        retrying = self._retrying
        if retrying.retry_error_callback is not None:
            self._end(answer=(yield retrying.retry_error_callback(self.state)))
            return
        told_on = outcome.exception() or self.error
        failure = retrying.retry_error_cls(outcome)
        failure.__cause__ = outcome.exception()
        if told_on is not None:
            # Whoever asks for the fault of this error gets every attempt.
            kept = (FAULT_ATTRIBUTE, GAVE_UP_IN)
            failure.__dict__.update({name: told_on.__dict__[name] for name in kept if name in told_on.__dict__})
        self._end(error=failure.behind() if retrying.reraise else failure)

    def _rest(self, delay: float) -> Steps:
        state, board = self.state, self._board
        state.next_action = RetryAction(delay)
        state.idle_for += delay
        board.note(state, idle_for=state.idle_for, attempt_number=state.attempt_number + 1)
        yield from self._tell("before_sleep", self._retrying.before_sleep)
        state.prepare_for_next_attempt()
        yield self._retrying.rest(self.op.plan.runtime, delay)

    def _end(self, *, answer: Any = None, error: BaseException | None = None) -> None:
        self.over = True
        self.answer, self.error = answer, error

    # --- what is the user's ---

    def _ask(self, what: str, fn: Callable[[RetryCallState], Any], *, otherwise: Any) -> Steps:
        try:
            return (yield fn(self.state))
        except Exception as broken:  # noqa: BLE001 - what the call came to is not changed by it (R25)
            self._complain(what, fn, broken)
            return otherwise

    def _tell(self, what: str, hook: Callable[[RetryCallState], Any] | None) -> Steps:
        if hook is not None:
            yield from self._ask(what, hook, otherwise=None)

    def _complain(self, what: str, hook: object, broken: Exception) -> None:
        runtime = self.op.plan.runtime
        runtime.bus.hook_raised(hook, f"`{what}` of a retry", broken, at=runtime.clock.wall(), run=self.op.run)


class AttemptManager:
    """One attempt at a block: `with attempt:`. A failure inside is kept for the next round, where there can be one."""

    def __init__(self, retry_state: RetryCallState, rounds: Rounds | None = None, *, limited: bool = False) -> None:
        self._rounds = rounds
        self._limited = limited
        self._limit: Limit | None = None
        self._token: Token[Ambient | None] | None = None
        self.retry_state = retry_state

    def __enter__(self) -> None:
        if self._rounds is None:
            return
        op = self._rounds.op
        self._token = AMBIENT.set(op)
        # Only in a task can a deadline around cut the attempt short.
        self._limit = begin_limit(op) if self._limited else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        error = self._left(error)
        if error is None:
            if self.retry_state.outcome is None:
                self.retry_state.set_result(None)
            return False
        rounds = self._rounds
        if not isinstance(error, Exception) or isinstance(error, AbortedError):
            if rounds is not None:
                rounds.stopped(error)
            return False
        self.retry_state.set_exception((type(error), error, trace))
        return rounds is not None

    def _left(self, error: BaseException | None) -> BaseException | None:
        """Leave the scope of the attempt; return what it failed with, which is ours where our limit cut it short."""
        if self._token is not None:
            leave(self._token)
        if self._rounds is None or self._limit is None or not self._limit.end():
            return error
        if not isinstance(error, asyncio.CancelledError):
            return error
        late = errors.timed_out(self._rounds.op)
        late.__cause__ = error
        return late

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, trace)


def run(steps: Steps) -> None:
    """Run the steps in a thread: everything the user's functions returned is an answer already."""
    try:
        answer = next(steps)
        while True:
            answer = steps.send(answer)
    except StopIteration:
        return


async def run_async(steps: Steps) -> None:
    """Run the steps in a task: what is awaitable is awaited."""
    try:
        answer = next(steps)
        while True:
            if inspect.isawaitable(answer):
                try:
                    answer = await answer
                except BaseException as error:  # noqa: BLE001 - the steps know whose function it was
                    answer = steps.throw(error)
                    continue
            answer = steps.send(answer)
    except StopIteration:
        return
