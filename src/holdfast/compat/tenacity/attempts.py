"""The attempts of one call or block, and the steps between them: a driver of `Operation` with tenacity's rules.

Hooks, conditions, waits and the sleep are the user's functions, sync or async. `CallAttempts.advance` is a generator, so that it
is written once for sync and async: it yields what a user's function returned.

Invariant: a hook that raises changes nothing; cancellation is never swallowed; every attempt is settled exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.compat.tenacity.state import RetryAction, RetryCallState, TryAgain
from holdfast.compat.tenacity.stop import most_attempts, why_stopped
from holdfast.compat.tenacity.wait import seconds
from holdfast.faults import AbortedError, Fault, HoldfastError, InvalidError, OutcomeUnknownError, Partial
from holdfast.policies.decide import GiveUp, Reason, Retry
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, GAVE_UP_IN
from holdfast.runtime.operation import errors
from holdfast.runtime.operation.drivers import begin_limit, leave
from holdfast.runtime.operation.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token
    from types import TracebackType

    from holdfast._steps import Steps
    from holdfast.compat.tenacity.state import Future, RetryObject, Statistics
    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.limits import TimeLimit
    from holdfast.runtime.operation.plan import Plan

__all__ = ["AttemptManager", "CallAttempts"]


class CallAttempts:
    """The attempts of one call or block.

    After each `advance`, either `over` is true or a new attempt has begun. The caller must then run the attempt inside
    an `AttemptManager`.
    """

    def __init__(
        self,
        retrying: RetryObject,
        plan: Plan,
        statistics: Statistics,
        fn: Callable[..., Any] | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        # Each call is one operation, so it has the same events, budget and history as any other recovery.
        self.op = Operation(plan)
        self.state = RetryCallState(retrying, fn, args, kwargs or {})
        self.over = False
        self.answer: Any = None
        """What the call returns, once it is over."""
        self.error: BaseException | None = None
        """What the call raises instead, once it is over."""
        self._retrying = retrying
        self._statistics = statistics
        statistics.show(self.state)

    def advance(self) -> Steps[Any]:
        """Judge the last attempt. If another attempt is due, wait and begin it."""
        try:
            if self.state.outcome is not None:
                yield from self._judge()
            elif self.op.attempts:
                self._end(error=InvalidError.saying("attempt", "`with attempt:` around the block", "no `with`"))
                self.op.abandoned(None)
            if not self.over:
                yield from self._begin()
        except BaseException as stop:
            # The operation is settled here too. Otherwise no event would report its end.
            self.over = True
            if isinstance(stop, Exception):
                self.op.abandoned(stop)
            else:
                self.op.stopped(stop)
            raise

    def leave(self) -> None:
        """Settle the operation when the caller leaves the loop by `return`, by `break` or by an error."""
        if self.over:
            return
        self.over = True
        outcome = self.state.outcome
        if outcome is None or outcome.failed:
            self.op.abandoned(None)
        else:
            self.op.succeeded(outcome.result())

    def stopped(self, stop: BaseException) -> None:
        """End without another attempt: the call was cancelled or interrupted, which is not a failure."""
        self.over = True
        self.op.stopped(stop)

    def _begin(self) -> Steps[Any]:
        try:
            self.op.admit()
        except HoldfastError as rejected:
            # An enclosing budget or deadline allows no attempt. The user sees its error, not a RetryError.
            self.op.failed(rejected)
            self._end(error=rejected)
            return
        yield from self._run_hook("before", self._retrying.before)

    def _judge(self) -> Steps[Any]:
        outcome = self.state.outcome
        assert outcome is not None
        retrying = self._retrying
        # TryAgain overrides the condition, as in tenacity.
        explicit = isinstance(outcome.exception(), TryAgain)
        if not explicit and not (yield from self._evaluate("retry", retrying.retry, otherwise=False)):
            self._accept(outcome)
            return
        yield from self._run_hook("after", retrying.after)
        self._statistics.record(self.state, delay_since_first_attempt=self.state.seconds_since_start or 0.0)
        decision = yield from self._decide()
        delay = self._settle(outcome, decision)
        if delay is None:
            yield from self._give_up(outcome)
        else:
            yield from self._rest(delay)

    def _accept(self, outcome: Future) -> None:
        """End with the result or the error of the last attempt, because the condition requests no further attempt."""
        error = outcome.exception()
        if error is None:
            self._end(answer=outcome.result())
            self.op.succeeded(self.answer)
        else:
            self.op.failed(error, GiveUp(Reason.UNWANTED))
            self._end(error=error)

    def _decide(self) -> Steps[Any]:
        state, retrying = self.state, self._retrying
        # This comes before `stop`, as in tenacity, because `stop_before_delay` reads `upcoming_sleep`.
        wait = yield from self._evaluate("wait", retrying.wait, otherwise=None)
        try:
            state.upcoming_sleep = seconds("what wait returned", wait)
        except InvalidError as invalid:
            # None means that `wait` raised. That error is already in the log.
            if wait is not None:
                self._report("wait", retrying.wait, invalid)
            if not isinstance(wait, (int, float)):
                return GiveUp(Reason.UNWANTED)
            # A time that is over gives a negative wait, and arithmetic may give NaN: the next attempt follows at once.
            state.upcoming_sleep = 0.0
        if (yield from self._evaluate("stop", retrying.stop, otherwise=True)):
            return GiveUp(why_stopped(retrying.stop, state))
        return Retry(state.upcoming_sleep, most_attempts(retrying.stop, state.attempt_number))

    def _settle(self, outcome: Future, decision: Retry | GiveUp) -> float | None:
        """Settle the attempt. Return the seconds to wait, or None to give up. The operation itself may also give up."""
        error = outcome.exception()
        if error is not None:
            return self.op.failed(error, decision)
        # A result has no exception, but events and budgets need a fault for the attempt.
        fault = Fault.of(
            "PROVIDER_OUTPUT_INVALID", "The result calls for another attempt", partial=Partial(payload=outcome.result())
        )
        try:
            return self.op.unacceptable(fault, decision)
        except OutcomeUnknownError:
            # The error must reach the user, because a retry of this call could repeat an effect.
            raise
        except HoldfastError as rejected:
            self.error = rejected
            return None

    def _give_up(self, outcome: Future) -> Steps[Any]:
        retrying = self._retrying
        if retrying.retry_error_callback is not None:
            self._end(answer=(yield retrying.retry_error_callback(self.state)))
            return
        source = outcome.exception() or self.error
        failure = retrying.retry_error_cls(outcome)
        failure.__cause__ = outcome.exception()
        if source is not None:
            # `fault_of` reads these attributes. Without them the RetryError would hide the history of the attempts.
            kept = (FAULT_ATTRIBUTE, GAVE_UP_IN)
            failure.__dict__.update({name: source.__dict__[name] for name in kept if name in source.__dict__})
        self._end(error=(outcome.underlying() or failure) if retrying.reraise else failure)

    def _rest(self, delay: float) -> Steps[Any]:
        state = self.state
        state.next_action = RetryAction(delay)
        state.idle_for += delay
        self._statistics.record(state, idle_for=state.idle_for, attempt_number=state.attempt_number + 1)
        yield from self._run_hook("before_sleep", self._retrying.before_sleep)
        state.prepare_for_next_attempt()
        yield self._retrying.rest(delay)

    def _end(self, *, answer: Any = None, error: BaseException | None = None) -> None:
        self.over = True
        self.answer, self.error = answer, error

    # --- the user's functions ---

    def _evaluate(self, option: str, fn: Callable[[RetryCallState], Any], *, otherwise: Any) -> Steps[Any]:
        try:
            return (yield fn(self.state))
        except Exception as broken:  # noqa: BLE001 - a broken hook must not change the call's outcome (R25)
            self._report(option, fn, broken)
            return otherwise

    def _run_hook(self, option: str, hook: Callable[[RetryCallState], Any] | None) -> Steps[Any]:
        if hook is not None:
            yield from self._evaluate(option, hook, otherwise=None)

    def _report(self, option: str, hook: object, broken: Exception) -> None:
        runtime = self.op.plan.runtime
        runtime.bus.hook_raised(hook, f"`{option}` of a retry", broken, at=runtime.clock.wall(), run=self.op.run)


class AttemptManager:
    """One attempt to run a block. `with attempt:` catches the block's error if another attempt is possible.

    For example:
        for attempt in Retrying(stop=stop_after_attempt(3)):
            with attempt:
                fetch()

    Cancellation, KeyboardInterrupt and SystemExit always pass through.
    """

    def __init__(
        self, retry_state: RetryCallState, attempts: CallAttempts | None = None, *, limited: bool = False
    ) -> None:
        self._attempts = attempts
        self._limited = limited
        self._limit: TimeLimit | None = None
        self._token: Token[Ambient | None] | None = None
        self.retry_state = retry_state

    def __enter__(self) -> None:
        if self._attempts is None:
            return
        op = self._attempts.op
        # Recoveries inside the block find this recovery and do not multiply its attempts.
        self._token = AMBIENT.set(op)
        # An enclosing deadline can end only a task, because a thread cannot be cancelled.
        self._limit = begin_limit(op) if self._limited else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        error = self._close(error)
        if error is None:
            if self.retry_state.outcome is None:
                self.retry_state.set_result(None)
            return False
        attempts = self._attempts
        # Cancellation, interrupts and an abort by the user are never retried, whatever the condition returns.
        if not isinstance(error, Exception) or isinstance(error, AbortedError):
            if attempts is not None:
                attempts.stopped(error)
            return False
        self.retry_state.set_exception((type(error), error, trace))
        return attempts is not None

    def _close(self, error: BaseException | None) -> BaseException | None:
        """Leave the attempt's scope and return its error.

        If our time limit cancelled the block, the error is our timeout.
        """
        if self._token is not None:
            leave(self._token)
        if self._attempts is None or self._limit is None:
            return error
        # A block that swallowed the cancellation and ended later has no error, but it was late.
        if not (self._limit.end() if error is None else self._limit.ends_with(error)):
            return error
        timeout = errors.timed_out(self._attempts.op)
        timeout.__cause__ = error
        return timeout

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, trace)
