"""How each library wraps a call: retries outside, then the circuit, then the time limit, as far as it has them.

A stack takes a function and returns it guarded, three attempts, no waiting between them; `failures` in a row open its circuit.
Where a library has no circuit or no limit, the driver's notes say so; nothing is added for it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Fn = Callable[..., Any]
    Stack = Callable[[Fn, int], Fn]

ATTEMPTS = 3
LIMIT_S = 60.0
NEVER = 10**9
"""Failures in a row that nobody will see: a circuit that stays closed."""


def bare(fn: Fn, _: int) -> Fn:
    return fn


def asyncio_timeout(fn: Fn, _: int) -> Fn:
    async def call() -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await fn()

    return call


# --- Holdfast ---


def _holdfast(fn: Fn, failures: int, runtime: Any) -> Fn:
    from holdfast import Circuit, recover
    from holdfast.policies.circuit import PROVIDER

    policy = _policy()
    if asyncio.iscoroutinefunction(fn):
        # The others limit a call, and the default does not. A blocking call cannot be limited.
        policy = policy.replace(timeout=LIMIT_S)
    if failures == NEVER:
        policy = policy.replace(circuit=Circuit(failures=NEVER, rate=None))
    else:
        # The others open after so many failures, and reject at once too. The default opens after failures in 12 seconds.
        policy = policy.replace(circuit=PROVIDER, wait_for_circuit=False)
    return recover("claude", policy, runtime=runtime)(fn)


def _policy() -> Any:
    from holdfast import INTERACTIVE

    return INTERACTIVE.replace(attempts=ATTEMPTS)


def holdfast(fn: Fn, failures: int) -> Fn:
    from holdfast import Runtime

    return _holdfast(fn, failures, Runtime(waits=False))


def holdfast_observing(fn: Fn, failures: int) -> Fn:
    from holdfast import Runtime
    from holdfast.events import Observed

    runtime = Runtime(waits=False, mode="observe")
    runtime.on(_listen, Observed)
    return _holdfast(fn, failures, runtime)


def holdfast_heard(fn: Fn, failures: int) -> Fn:
    from holdfast import Runtime

    runtime = Runtime(waits=False)
    runtime.on(_listen)
    return _holdfast(fn, failures, runtime)


def holdfast_traced(provider: str) -> Stack:
    def stack(fn: Fn, failures: int) -> Fn:
        from holdfast import Runtime
        from holdfast.sinks import trace_recoveries

        runtime = Runtime(waits=False)
        trace_recoveries(_provider(provider), runtime)
        return _holdfast(fn, failures, runtime)

    return stack


def two_spans(fn: Fn, _: int) -> Fn:
    from opentelemetry import trace

    tracer = _provider("recording").get_tracer("bench")

    async def call() -> Any:
        outer = tracer.start_span("outer")
        inner = tracer.start_span("inner", trace.set_span_in_context(outer))
        value = await fn()
        inner.end()
        outer.end()
        return value

    return call


def _provider(kind: str) -> Any:
    os.environ.pop("OTEL_SDK_DISABLED", None)  # the other parts of the benchmark set it
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    if kind == "no SDK":
        return trace.NoOpTracerProvider()
    return TracerProvider(sampler=ALWAYS_OFF) if kind == "not sampled" else TracerProvider()


def _listen(*_: Any, **__: Any) -> None:
    pass


def line_alone(_: Fn, failures: int) -> Fn:
    """The check of an open circuit that every call makes first, without building the error."""
    from time import monotonic

    from holdfast import Circuit
    from holdfast.policies.circuit import Verdict
    from holdfast.policies.queue import turn_of
    from holdfast.runtime.targets.registry import TargetState

    line, turn = TargetState("provider:claude"), turn_of(monotonic(), "normal")
    line.serve(_policy().replace(circuit=Circuit(failures=failures, open_for=3600, open_cap=3600)), monotonic())
    for _ in range(failures):
        line.settle(line.admit(monotonic(), turn), Verdict.FAILURE, monotonic(), "CONN_REFUSED")
    return lambda: line.admit(monotonic(), turn)


# --- the peers ---


def tenacity_stack(fn: Fn, failures: int) -> Fn:
    return tenacity_alone(aiobreaker(asyncio_timeout(fn, 0), failures), 0)


def tenacity_pybreaker(fn: Fn, failures: int) -> Fn:
    return tenacity_alone(pybreaker(fn, failures), 0)


def tenacity_alone(fn: Fn, _: int) -> Fn:
    import tenacity

    return tenacity.retry(stop=tenacity.stop_after_attempt(ATTEMPTS), wait=tenacity.wait_none(), reraise=True)(fn)


def stamina(fn: Fn, _: int) -> Fn:
    import stamina

    logging.getLogger("stamina").disabled = True
    return stamina.retry(
        on=ConnectionError, attempts=ATTEMPTS, timeout=LIMIT_S, wait_initial=0, wait_max=0, wait_jitter=0
    )(fn)


def backoff(fn: Fn, _: int, **hooks: Any) -> Fn:
    import backoff

    logger = {"logger": None}  # it would format a line for every failure
    options = {"interval": 0, "jitter": None, "max_tries": ATTEMPTS, **logger, **hooks}
    return backoff.on_exception(backoff.constant, ConnectionError, **options)(fn)


def backoff_heard(fn: Fn, _: int) -> Fn:
    return backoff(fn, 0, on_success=_listen)


def aiobreaker(fn: Fn, failures: int) -> Fn:
    from aiobreaker import CircuitBreaker

    return CircuitBreaker(fail_max=failures, timeout_duration=dt.timedelta(seconds=LIMIT_S))(fn)


def pybreaker(fn: Fn, failures: int) -> Fn:
    from pybreaker import CircuitBreaker

    return CircuitBreaker(fail_max=failures, reset_timeout=LIMIT_S)(fn)


def circuitbreaker(fn: Fn, failures: int) -> Fn:
    from circuitbreaker import CircuitBreaker

    return CircuitBreaker(failure_threshold=failures, recovery_timeout=int(LIMIT_S))(fn)


def pyresilience(fn: Fn, failures: int, **more: Any) -> Fn:
    from pyresilience import CircuitBreakerConfig, RetryConfig, resilient

    return resilient(
        retry=RetryConfig(max_attempts=ATTEMPTS, delay=0, jitter=False),
        circuit_breaker=CircuitBreakerConfig(failure_threshold=failures),
        **more,
    )(fn)


def pyresilience_limited(fn: Fn, failures: int, **more: Any) -> Fn:
    from pyresilience import TimeoutConfig

    return pyresilience(fn, failures, timeout=TimeoutConfig(seconds=LIMIT_S), **more)


def pyresilience_heard(fn: Fn, failures: int) -> Fn:
    return pyresilience_limited(fn, failures, listeners=[_listen])


def nopanic(fn: Fn, failures: int) -> Fn:
    from nopanic import circuit_breaker, retry

    # It knows a share of failures only; this one opens when all of `failures` calls have failed.
    breaker = circuit_breaker(failure_threshold=1.0, min_calls=failures, reset_timeout=LIMIT_S)
    return retry(attempts=ATTEMPTS, on=ConnectionError, backoff=0)(breaker(fn))


def nopanic_limited(fn: Fn, failures: int) -> Fn:
    from nopanic import timeout

    return nopanic(timeout(LIMIT_S)(fn), failures)


def hyx(fn: Fn, failures: int) -> Fn:
    from hyx.circuitbreaker import consecutive_breaker
    from hyx.retry import retry
    from hyx.timeout import timeout

    breaker = consecutive_breaker(failure_threshold=failures, recovery_time_secs=LIMIT_S)
    # What it calls attempts are the calls after the first.
    return retry(on=ConnectionError, attempts=ATTEMPTS - 1, backoff=0)(breaker(timeout(LIMIT_S)(fn)))


def redress_async(fn: Fn, failures: int, **hooks: Any) -> Fn:
    import redress

    retry = redress.AsyncRetry(**_redress_options(), attempt_timeout_s=LIMIT_S)
    breaker = redress.CircuitBreaker(failure_threshold=failures)
    return functools.partial(redress.AsyncPolicy(retry=retry, circuit_breaker=breaker).call, fn, **hooks)


def redress_heard(fn: Fn, failures: int) -> Fn:
    return redress_async(fn, failures, on_metric=_listen)


def redress_sync(fn: Fn, failures: int) -> Fn:
    import redress

    breaker = redress.CircuitBreaker(failure_threshold=failures)
    return functools.partial(
        redress.Policy(retry=redress.Retry(**_redress_options()), circuit_breaker=breaker).call, fn
    )


def _redress_options() -> dict[str, Any]:
    import redress

    return {
        "classifier": redress.default_classifier,
        "strategy": lambda _: 0.0,
        "max_attempts": ATTEMPTS,
        "deadline_s": LIMIT_S,
    }


RETRYING_ASYNC: dict[str, Stack] = {
    "holdfast": holdfast,
    "tenacity + asyncio.timeout + aiobreaker": tenacity_stack,
    "pyresilience": pyresilience_limited,
    "nopanic": nopanic_limited,
    "redress": redress_async,
    "hyx": hyx,
    "stamina": stamina,
    "tenacity": tenacity_alone,
    "backoff": backoff,
}
RETRYING_SYNC: dict[str, Stack] = {
    "holdfast": holdfast,
    "tenacity + pybreaker": tenacity_pybreaker,
    "pyresilience": pyresilience,
    "nopanic": nopanic,
    "redress": redress_sync,
    "stamina": stamina,
    "tenacity": tenacity_alone,
    "backoff": backoff,
}
ASYNC: dict[str, Stack] = {
    **RETRYING_ASYNC,
    "holdfast, observing": holdfast_observing,
    "asyncio.timeout": asyncio_timeout,
    "bare": bare,
}
SYNC: dict[str, Stack] = {
    **RETRYING_SYNC,
    "holdfast, observing": holdfast_observing,
    "pybreaker": pybreaker,
    "circuitbreaker": circuitbreaker,
    "bare": bare,
}
HEARD: dict[str, Stack] = {
    "holdfast": holdfast_heard,
    "pyresilience": pyresilience_heard,
    "redress": redress_heard,
    "backoff": backoff_heard,
}
TRACED: dict[str, Stack] = {
    "holdfast, no SDK": holdfast_traced("no SDK"),
    "holdfast, not sampled": holdfast_traced("not sampled"),
    "holdfast, recording": holdfast_traced("recording"),
    "two bare spans": two_spans,
}
REJECTING_ASYNC: dict[str, Stack] = {
    "holdfast": holdfast,
    "aiobreaker": aiobreaker,
    "pyresilience": pyresilience_limited,
    "nopanic": nopanic_limited,
    "redress": redress_async,
    "hyx": hyx,
}
REJECTING_SYNC: dict[str, Stack] = {
    "holdfast": holdfast,
    "holdfast, the circuit alone": line_alone,
    "pybreaker": pybreaker,
    "circuitbreaker": circuitbreaker,
    "pyresilience": pyresilience,
    "nopanic": nopanic,
    "redress": redress_sync,
}
