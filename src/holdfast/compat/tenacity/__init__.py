"""tenacity's API on Holdfast's runtime: change the import, keep the code.

    from holdfast.compat.tenacity import retry, stop_after_attempt, wait_exponential

    @retry(stop=stop_after_attempt(5), wait=wait_exponential(max=30), reraise=True)
    def fetch(): ...

Each call is a recovery without a circuit and without limits of its own. It emits the usual events. An enclosing budget
or deadline applies. `fault_of(error)` lists every attempt. `HOLDFAST_ENABLED=false` turns it into a plain call. The
arguments decide whether and when to retry, not the classifier. tenacity itself is never imported.

The differences are on purpose (the numbers are tenacity's issues):

- #93   One object may serve any number of threads and tasks: no state of a call is kept on it. `statistics` shows the call
        that began last; each call has its own numbers in `retry_state.statistics`.
- #720  A recursive call has its own count of attempts.
- #529  Cancellation, KeyboardInterrupt, SystemExit and GeneratorExit are never retried, whatever a condition returns.
- #657  A partial of an async function and an object with an async `__call__` are awaited; `AsyncRetrying` awaits any awaitable
        result. A generator function raises `InvalidError`: its body would run outside the attempt.
- #423  `stop_after_delay` and `stop_before_delay` work as in tenacity. No wait goes beyond an enclosing deadline
        (`Budget(seconds=…)`, another recovery), whatever `stop` returns.
- A hook, condition, `stop` or `wait` that raises does not change the outcome of the call. Its error is logged
  once. If a condition, `stop` or `wait` raises, no further attempt is made. Only `retry_error_callback` may raise,
  because it produces the outcome.
- Impossible delays (negative, NaN) raise `InvalidError` when they are written. Even very many attempts cause no
overflow.
- Arguments are given by name. Clock and random source are the runtime's, so tests run in virtual time (`holdfast.testing`).
"""

from __future__ import annotations

from holdfast.compat.tenacity.after import after_log, after_nothing
from holdfast.compat.tenacity.attempts import AttemptManager
from holdfast.compat.tenacity.before import before_log, before_nothing
from holdfast.compat.tenacity.before_sleep import before_sleep_log, before_sleep_nothing
from holdfast.compat.tenacity.nap import sleep, sleep_using_event
from holdfast.compat.tenacity.retrier import AsyncRetrying, BaseRetrying, Retried, Retrying, retry
from holdfast.compat.tenacity.retry import (
    retry_all,
    retry_always,
    retry_any,
    retry_base,
    retry_if_exception,
    retry_if_exception_cause_type,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_exception_message,
    retry_if_not_exception_type,
    retry_if_not_result,
    retry_if_result,
    retry_never,
    retry_unless_exception_type,
)
from holdfast.compat.tenacity.state import Future, RetryAction, RetryCallState, RetryError, TryAgain
from holdfast.compat.tenacity.stop import (
    stop_after_attempt,
    stop_after_delay,
    stop_all,
    stop_any,
    stop_base,
    stop_before_delay,
    stop_never,
    stop_when_event_set,
)
from holdfast.compat.tenacity.wait import (
    wait_base,
    wait_chain,
    wait_combine,
    wait_exception,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_full_jitter,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)

__all__ = [
    "AsyncRetrying",
    "AttemptManager",
    "BaseRetrying",
    "Future",
    "Retried",
    "RetryAction",
    "RetryCallState",
    "RetryError",
    "Retrying",
    "TryAgain",
    "after_log",
    "after_nothing",
    "before_log",
    "before_nothing",
    "before_sleep_log",
    "before_sleep_nothing",
    "retry",
    "retry_all",
    "retry_always",
    "retry_any",
    "retry_base",
    "retry_if_exception",
    "retry_if_exception_cause_type",
    "retry_if_exception_message",
    "retry_if_exception_type",
    "retry_if_not_exception_message",
    "retry_if_not_exception_type",
    "retry_if_not_result",
    "retry_if_result",
    "retry_never",
    "retry_unless_exception_type",
    "sleep",
    "sleep_using_event",
    "stop_after_attempt",
    "stop_after_delay",
    "stop_all",
    "stop_any",
    "stop_base",
    "stop_before_delay",
    "stop_never",
    "stop_when_event_set",
    "wait_base",
    "wait_chain",
    "wait_combine",
    "wait_exception",
    "wait_exponential",
    "wait_exponential_jitter",
    "wait_fixed",
    "wait_full_jitter",
    "wait_incrementing",
    "wait_none",
    "wait_random",
    "wait_random_exponential",
]
