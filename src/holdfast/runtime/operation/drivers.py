"""The drivers: they make the calls and sleep, in a task or in a thread. An `Operation` says what happens next.

Invariant: both drivers are the same loop. Nothing is decided here.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast._lazy import lazy_module
from holdfast.faults import Fault
from holdfast.runtime.ambient import AMBIENT, priority_of
from holdfast.runtime.budgets.reserve import reserve, reserve_async
from holdfast.runtime.callables import has_one_shot
from holdfast.runtime.commands import TaskWait, ThreadWait, Waiting
from holdfast.runtime.event_loop import running_loop, runs_loop
from holdfast.runtime.failures.evidence import evidence_in
from holdfast.runtime.failures.left_behind import LEFT_BEHIND
from holdfast.runtime.fault_of import did_not_happen, pass_outcome
from holdfast.runtime.limits import Wheels, call_in_thread
from holdfast.runtime.operation import errors, reports
from holdfast.runtime.operation.answers import close_answer_async, fault_in, throw_away, throw_away_async
from holdfast.runtime.operation.facts import waits_until
from holdfast.runtime.operation.hedge import race
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.postconditions import NOT_VERIFIED, check, check_async, verify, verify_async
from holdfast.runtime.operation.repair import repair, repair_async
from holdfast.runtime.operation.responses import RESPONSES, FailedResponseError, failure_in_response, give_up_on
from holdfast.runtime.targets.limiter import CHECK_S
from holdfast.runtime.tool import CANNOT_TELL, NOT_HAPPENED, Happened, call_key

if TYPE_CHECKING:
    import asyncio
    import logging
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from contextvars import Token

    from holdfast.faults import DeadlineError
    from holdfast.runtime.ambient import Ambient
    from holdfast.runtime.callables import Request
    from holdfast.runtime.commands import PendingWait
    from holdfast.runtime.limits import TimeLimit
    from holdfast.runtime.operation.adapter import Abort
    from holdfast.runtime.operation.plan import Plan
    from holdfast.runtime.targets.limiter import Limiter, Seat
    from holdfast.runtime.tool import ToolContract, Verdict
else:
    asyncio = lazy_module("asyncio", globals())
    logging = lazy_module("logging", globals())

__all__ = [
    "acquire",
    "acquire_async",
    "begin_limit",
    "call_plainly",
    "call_plainly_async",
    "drive",
    "drive_async",
    "leave",
    "limited",
    "pause",
    "pause_async",
]


async def drive_async(  # noqa: C901, PLR0912 - the hot path: splitting it would cost a frame per call
    op: Operation,
    fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    begun: bool = False,  # noqa: FBT001, FBT002 - a keyword-only argument makes every call slower on Python 3.11
) -> Any:
    """Make the call until it succeeds or the operation gives up. `begun`: the first attempt is admitted already."""
    plan, token = op.plan, None
    try:
        token = AMBIENT.set(op)
        while True:
            limit = None
            try:
                if begun:
                    begun = False
                else:
                    if op.budget is not None and plan.limiter is None:
                        await reserve_async(op, args, kwargs)
                    op.admit()
                if plan.is_plain:
                    # This repeats `limited` without its frame, because nearly every call comes this way.
                    limit = begin_limit(op)
                    call = fn(*args, **kwargs)
                    if limit is None:
                        value = await call
                    else:
                        limit.call = call
                        value = await call
                        if limit.end():
                            await _reject_late(op, value)
                else:
                    value = await _attempt_async(op, fn, args, kwargs)
            except BaseException as error:
                if (delay := _failed_under_limit(op, limit, error, (args, kwargs))) is None:
                    raise
            else:
                # A class's name is compared first: every call comes this way, and few return a response.
                is_good = plan.accept is None and type(value).__name__ not in RESPONSES
                wrong = None if is_good else _failure_in(op, value)
                if wrong is None:
                    op.succeeded(value)
                    return value
                if (delay := _reject(op, wrong, (args, kwargs))) is None:
                    return give_up_on(value)
                await throw_away_async(op, value)
            await pause_async(op, delay)
            if op.due_repair is not None:
                args, kwargs = await repair_async(op, args, kwargs)
    except FailedResponseError as failed:
        return _returned(op, failed)
    finally:
        # If the coroutine was closed, the operation has not ended by itself. Tasks that it started must not stay in its
        # scope.
        if not op.over:
            op.end()
        leave(token)


def drive(  # noqa: C901, PLR0912 - as its twin above
    op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make the call until it succeeds or the operation gives up; the thread sleeps in between."""
    plan, token = op.plan, None
    try:
        token = AMBIENT.set(op)
        while True:
            try:
                if op.budget is not None and plan.limiter is None:
                    reserve(op, args, kwargs)
                op.admit()
                value = fn(*args, **kwargs) if plan.is_plain_sync else _attempt(op, fn, args, kwargs)
            except BaseException as error:
                delay = op.failed(error, None, (args, kwargs))
                if delay is None:
                    raise
            else:
                if hasattr(value, "__await__"):
                    if plan.off and not inspect.iscoroutine(value):
                        # A task or a future is handed on as it is: the caller of a plain call may do more with it than await it.
                        op.abandoned(None)
                        return value
                    # The function does not look async, but its result must be awaited: the call is not over yet (R23).
                    return _drive_awaitable(op, value, fn, args, kwargs)
                # A class's name is compared first: every call comes this way, and few return a response.
                is_good = plan.accept is None and type(value).__name__ not in RESPONSES
                wrong = None if is_good else _failure_in(op, value)
                if wrong is None:
                    op.succeeded(value)
                    return value
                if (delay := _reject(op, wrong, (args, kwargs))) is None:
                    return give_up_on(value)
                throw_away(op, value)
            pause(op, delay)
            if op.due_repair is not None:
                args, kwargs = repair(op, args, kwargs)
    except FailedResponseError as failed:
        return _returned(op, failed)
    finally:
        if not op.over:
            op.end()
        # Unlike a coroutine, a plain call ends in the context it began in: `leave` is not needed.
        if token is not None:
            AMBIENT.reset(token)


async def _drive_awaitable(
    op: Operation, first: Awaitable[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Await the result of a sync call, which is the first attempt. If the attempt fails, make the call again."""
    pending = [first]
    op.enter()

    async def await_or_call(*args: Any, **kwargs: Any) -> Any:
        if pending and op.charges is not None and op.charges.copied is None:
            # The call that made it could not wait for money, because its thread runs this event loop.
            await reserve_async(op, args, kwargs)
        value = pending.pop() if pending else fn(*args, **kwargs)
        return await value if hasattr(value, "__await__") else value

    return await drive_async(op, await_or_call, args, kwargs, begun=True)


def _failure_in(op: Operation, value: Any) -> Fault | FailedResponseError | None:
    """Return why an answer is none: `accept` rejects it, or it is a response that reports a failure."""
    if op.observation is not None:
        op.observation.looks_at(value, fault_in)
        return failure_in_response(op, value)
    return failure_in_response(op, value) if op.plan.accept is None else fault_in(op, value)


def _reject(op: Operation, wrong: Fault | FailedResponseError, request: Request) -> float | None:
    """Return the seconds to wait after a rejected answer; None: the caller gets the response, because nothing else would answer."""
    if isinstance(wrong, Fault):
        return op.unacceptable(wrong, None, request)
    delay = op.failed(wrong, None, request)
    if delay is None and op.has_fallbacks:
        # A copy: the driver's frame refers to the failure, and the cycle with a traceback would keep both alive.
        raise wrong.copy()
    return delay


def _returned(op: Operation, failed: FailedResponseError) -> Any:
    """Return the latest response, where no further attempt is made. A fallback answers in its place."""
    if op.has_fallbacks:
        raise failed
    return give_up_on(failed.response)


# --- plain calls ---


def call_plainly(plan: Plan, fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """Make the plain call of a plan that is off; in observe mode it is watched."""
    kwargs = kwargs or {}
    return fn(*args, **kwargs) if plan.bare else drive(Operation(plan), fn, args, kwargs)


async def call_plainly_async(
    plan: Plan, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    """The same as `call_plainly`, in a task."""
    kwargs = kwargs or {}
    return await (fn(*args, **kwargs) if plan.bare else drive_async(Operation(plan), fn, args, kwargs))


# --- one attempt ---


async def _attempt_async(
    op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make one async call, and settle its outcome if its tool declares how."""
    contract = op.plan.contract if op.plan.settles else None
    if contract is None:
        return await _limited_attempt_async(op, fn, args, kwargs)
    try:
        value = await _limited_attempt_async(op, fn, args, kwargs)
        await check_async(contract, value, args, kwargs)
    except Exception as error:
        if (reader := _reader(op, contract, error)) is None:
            raise
        try:
            verdict = await drive_async(reader, verify_async, (contract, call_key(), args, kwargs), {})
        except Exception as failure:  # noqa: BLE001 - `verify` is the user's and may raise anything
            verdict = _not_verified(op, failure)
        if isinstance(verdict, Happened):
            return verdict.result
        if verdict is NOT_HAPPENED:
            did_not_happen(error)
        raise
    return value


async def _limited_attempt_async(
    op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make one async call behind the target's limiter and with hedges, where the policy has them."""
    # Hedged calls run behind the limiter and inside the time limit, as a plain call does. Each added call
    # takes a place of its own in the limiter.
    if op.plan.hedge is not None and not has_one_shot(args, kwargs):
        fn, args, kwargs = race, (op, fn, args, kwargs), {}
    limiter = op.plan.limiter
    if limiter is None:
        return await limited(op, fn, args, kwargs)
    # The time limit starts after this wait, because the callee is not slow while the call waits for a place.
    seat = await acquire_async(op, limiter, args, kwargs)
    try:
        return await limited(op, fn, args, kwargs)
    finally:
        limiter.release(seat)


async def acquire_async(op: Operation, limiter: Limiter, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Seat:
    """Wait for a place and a start, and reserve what the call may cost; return the seat for `limiter.release`."""
    check = None if op.abort is None else op.raise_if_aborted
    report = partial(reports.waits_for_limiter, op, limiter.name)
    seat = await limiter.acquire_async(op.plan.runtime, waits_until(op), check, priority_of(op), op.plan, report)
    try:
        if op.charges is not None:
            # After the wait for a place: a call that has money set aside never waits for another call.
            await reserve_async(op, args, kwargs)
        op.call_starts()
    except BaseException:
        limiter.release(seat)
        raise
    return seat


def acquire(op: Operation, limiter: Limiter, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Seat:
    """The same as `acquire_async`, in a thread, which blocks during the waits."""
    check = None if op.abort is None else op.raise_if_aborted
    report = partial(reports.waits_for_limiter, op, limiter.name)
    seat = limiter.acquire(op.plan.runtime, waits_until(op), check, priority_of(op), op.plan, report)
    try:
        if op.charges is not None:
            reserve(op, args, kwargs)
        op.call_starts()
    except BaseException:
        limiter.release(seat)
        raise
    return seat


def _attempt(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make one sync call, and settle its outcome if its tool declares how."""
    contract = op.plan.contract if op.plan.settles else None
    if contract is None:
        return _limited_attempt(op, fn, args, kwargs)
    try:
        value = _limited_attempt(op, fn, args, kwargs)
        # A result that has to be awaited is checked by the async driver, which goes on with it.
        if not hasattr(value, "__await__"):
            check(contract, value, args, kwargs)
    except Exception as error:
        if (reader := _reader(op, contract, error)) is None:
            raise
        try:
            verdict = drive(reader, verify, (contract, call_key(), args, kwargs), {})
        except Exception as failure:  # noqa: BLE001 - `verify` is the user's and may raise anything
            verdict = _not_verified(op, failure)
        if isinstance(verdict, Happened):
            return verdict.result
        if verdict is NOT_HAPPENED:
            did_not_happen(error)
        raise
    return value


def _reader(op: Operation, contract: ToolContract, error: Exception) -> Operation | None:
    """Return an operation for `verify`, which is retried like a read; None if there is nothing to verify."""
    if contract.verify is None or op.plan.effect != "unsafe" or evidence_in(error, op.plan.runtime.fault_of(error)):
        return None
    if LEFT_BEHIND.runs(call_key()):
        # It looks too early: the call may still take effect.
        return None
    return Operation(op.plan.for_reads())


def _not_verified(op: Operation, failure: Exception) -> Verdict:
    reports.suppressed(op, failure, NOT_VERIFIED)
    return CANNOT_TELL


def _limited_attempt(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make one sync call behind the target's limiter and, with `threads`, in a thread that can be abandoned."""
    limiter = op.plan.limiter
    if limiter is None:
        return _call(op, fn, args, kwargs)
    seat = acquire(op, limiter, args, kwargs)
    try:
        return _call(op, fn, args, kwargs)
    finally:
        limiter.release(seat)


def _call(op: Operation, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    limit = op.limit() if op.plan.threads else None
    if limit is None:
        return fn(*args, **kwargs)
    done, value = call_in_thread(op.plan.runtime.abandoned_threads, limit, fn, args, kwargs, key=call_key())
    if not done:
        op.leave_running()
        raise errors.timed_out(op)
    return value


async def limited(
    op: Operation, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make one async call under its time limit."""
    limit = begin_limit(op)
    call = fn(*args, **kwargs)
    if limit is None:
        return await call
    limit.call = call
    try:
        value = await call
    except BaseException as error:
        if limit.ends_with(error):
            raise _late(op, error) from error
        raise
    if limit.end():
        await _reject_late(op, value)
    return value


def _late(op: Operation, cancelled: BaseException) -> DeadlineError:
    """Return what to raise for a call that our limit cancelled."""
    late = errors.timed_out(op)
    pass_outcome(cancelled, late)
    return late


async def _reject_late(op: Operation, value: Any) -> NoReturn:
    """Close the answer of a call that swallowed its cancellation, and raise: its time was over before it answered."""
    try:
        await close_answer_async(value)
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything
        reports.suppressed(op, error, "closing an answer that came too late failed")
    raise errors.timed_out(op)


def _failed_under_limit(op: Operation, limit: TimeLimit | None, error: BaseException, request: Request) -> float | None:
    """Handle a failure like `Operation.failed`. A cancellation by the time limit, if there is one, becomes our own error."""
    if limit is None:
        return op.failed(error, None, request)
    try:
        is_late = limit.ends_with(error)
    except asyncio.CancelledError as stop:
        op.stopped(stop)
        raise
    if not is_late:
        if op.around is not None and isinstance(error, asyncio.CancelledError) and limit.due:
            # An outer recovery with the same limit fired first. The callee was late too, so its circuit counts the
            # call.
            op.timed_out(errors.lateness(op, op.plan.monotonic()))
        return op.failed(error, None, request)
    late = _late(op, error)
    try:
        delay = op.failed(late, None, request)
        if delay is None:
            raise late from error
        return delay
    finally:
        # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
        del late


def begin_limit(op: Operation) -> TimeLimit | None:
    """Start the clock for the attempt just begun; None if it has no limit."""
    wheels = op.plan.wheels
    if wheels is None and op.observation is not None:
        op.observation.would_limit()
        return None
    if (
        op.attempts == 1
        and op.around is None
        and (not op.eventful or (op.attempt_started == op.started and op.adapter is None))
    ):
        # A first attempt that has not waited and has no outer scope has the whole limit, so all such attempts share one timer.
        return None if wheels is None else wheels.begin(op.attempt_started, op)
    seconds = op.limit()
    if seconds is None:
        return None
    if wheels is None:
        wheels = Wheels(seconds, op.plan.runtime.clock)
    if seconds == wheels.seconds:
        return wheels.begin(op.attempt_started, op)
    return wheels.begin_own(seconds, op)


# --- waits between attempts ---


async def pause_async(op: Operation, seconds: float) -> None:
    """Wait before the next attempt. A command ends the wait and may end the operation."""
    runtime = op.plan.runtime
    if seconds <= 0 or not runtime.waits:
        # No command can arrive in a wait of no length, so it is not registered.
        op.waited_for(0.0, None)
        await _yield_to_others(op)
        return
    wait = TaskWait(_waiting(op, seconds), runtime)
    with _commandable(op, wait):
        for part in _parts(op.abort, seconds):
            await wait.sleep(part)
            if wait.woken:
                break
    op.waited_for(wait.lasted(), wait.command, woken=wait.woken)


def pause(op: Operation, seconds: float) -> None:
    """Wait before the next attempt in a thread. A command ends the wait and may end the operation."""
    runtime = op.plan.runtime
    if seconds <= 0 or not runtime.waits:
        op.waited_for(0.0, None)
        return
    _warn_in_loop(op)
    wait = ThreadWait(_waiting(op, seconds), runtime)
    with _commandable(op, wait):
        for part in _parts(op.abort, seconds):
            wait.sleep(part)
            if wait.woken:
                break
    op.waited_for(wait.lasted(), wait.command, woken=wait.woken)


def _waiting(op: Operation, seconds: float) -> Waiting:
    """Return the wait that begins now, as `runtime.commands.waiting()` shows it."""
    until = op.plan.runtime.clock.wall() + seconds
    return Waiting(op.run, op.plan.name, op.attempts, until, op.failed_with is not None)


def _warn_in_loop(op: Operation) -> None:
    """Warn once per recovery if the thread that is about to sleep runs an event loop: every task of that loop stops."""
    if "loop" in op.plan.reported or not runs_loop():
        return
    op.plan.reported.add("loop")
    # In the log and not by `warnings`: where warnings are errors, this one would end a call in the middle of its recovery.
    logging.getLogger("holdfast").warning(
        "%s waits before its next attempt and blocks the event loop that its thread runs. "
        "Make the function async, or call it with `await asyncio.to_thread(…)`",
        op.plan.name or "a call",
    )


@contextmanager
def _commandable(op: Operation, wait: PendingWait) -> Iterator[None]:
    """Register the wait in this block for commands. If an exception cuts the wait short, stop the operation."""
    commands = wait.runtime.commands
    commands.register(wait)
    op.join(wait.wake)
    is_cut = True
    try:
        yield
        is_cut = False
    except BaseException as stop:
        op.stopped(stop)
        raise
    finally:
        op.leave(is_cut=is_cut)
        commands.unregister(wait)


def _parts(abort: Abort | None, seconds: float) -> Iterator[float]:
    """Cut a wait into parts that are short enough to notice the caller's signal. Once it is set, no part follows."""
    if abort is None:
        yield seconds
        return
    # The generator ends early when the signal is set: the next `admit` raises the error for it.
    left = seconds
    while left > 0 and not abort.is_set():
        yield min(left, CHECK_S)
        left -= CHECK_S


async def _yield_to_others(op: Operation) -> None:
    """Suspend once even where there is nothing to wait for, so that a loop of failures does not block the event loop."""
    try:
        running_loop()
        await asyncio.sleep(0)
    except BaseException as stop:
        op.stopped(stop)
        raise


# --- scopes ---


def leave(token: Token[Ambient | None] | None) -> None:
    """Leave an operation's scope. None: an exception came before it was entered, or its token was known; the operation is over then."""
    try:
        if token is not None:
            AMBIENT.reset(token)
    except ValueError:
        # The garbage collector closes a coroutine in another context, where there is nothing to reset.
        pass
