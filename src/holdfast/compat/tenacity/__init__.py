"""tenacity's words on Holdfast's runtime: change the import, keep the code.

    from holdfast.compat.tenacity import retry, stop_after_attempt, wait_exponential

    @retry(stop=stop_after_attempt(5), wait=wait_exponential(max=30), reraise=True)
    def fetch(): ...

Underneath runs a recovery without circuit and without limits of its own: its events are read like all others, a budget or
deadline around it holds, `fault_of(error)` tells every attempt, `HOLDFAST_ENABLED=false` makes it a plain call. Whether and
when to try again is what the arguments say, not what the classifier says. tenacity itself is never imported.

Where it differs on purpose (the numbers are tenacity's issues):

- #93   One object may serve any number of threads and tasks: nothing about a call is kept on it. `statistics` shows the
        call that began last; each call has its own in `retry_state.statistics`.
- #720  A call inside itself counts for itself.
- #529  Cancellation, KeyboardInterrupt, SystemExit and GeneratorExit are never retried, whatever a condition says.
- #657  A partial of an async function, an object with an async `__call__`, and for `AsyncRetrying` anything that returns an
        awaitable are awaited. A generator function is refused: its body would run outside.
- #423  `stop_after_delay` and `stop_before_delay` mean what they mean there. A deadline around (`Budget(seconds=…)`, another
        recovery) is never slept past, whatever `stop` says.
- A hook, condition, `stop` or `wait` that raises does not change what the call came to: it is told once in the log, and
  where it had to decide, no further attempt is made. Only `retry_error_callback` may raise: its word is the last.
- Delays that make no sense (negative, NaN) are refused where they are written; very many attempts overflow nothing.
- Arguments are given by name. Time and chance are the runtime's, so tests run in virtual time (`holdfast.testing`).
"""

from __future__ import annotations

from holdfast.compat.tenacity.conditions import (
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
from holdfast.compat.tenacity.decorator import Retried, retry
from holdfast.compat.tenacity.hooks import (
    after_log,
    after_nothing,
    before_log,
    before_nothing,
    before_sleep_log,
    before_sleep_nothing,
    sleep_using_event,
)
from holdfast.compat.tenacity.retrying import AsyncRetrying, BaseRetrying, Retrying
from holdfast.compat.tenacity.rounds import AttemptManager
from holdfast.compat.tenacity.state import Future, RetryAction, RetryCallState, RetryError, TryAgain
from holdfast.compat.tenacity.stops import (
    stop_after_attempt,
    stop_after_delay,
    stop_all,
    stop_any,
    stop_base,
    stop_before_delay,
    stop_never,
    stop_when_event_set,
)
from holdfast.compat.tenacity.waits import (
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
