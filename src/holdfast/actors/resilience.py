"""Retries, time limits and a circuit around one operation that returns a Response, in the words of actors.

    response = await with_retry(lambda: notes.send(message), RetryConfig(max_attempts=3))
    rows = await with_timeout(query(), 5_000, "db")
    breaker = CircuitBreaker(CircuitBreakerConfig(failure_threshold=5))
    row = await breaker.execute(query)

`recover` does all of it for functions that raise. These are for functions that return what failed.

Invariant: retries and the circuit are those of `recover`; this module only translates. What is raised passes through unchanged, because
it is the supervisor's business.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast import options
from holdfast.faults import CircuitOpenError, Fault, HoldfastError, InvalidError, Schedule
from holdfast.policies.backoff import Backoff, Tries
from holdfast.policies.policy import Policy
from holdfast.policies.profiles import ACTOR
from holdfast.policies.target import Target
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import default_runtime
from holdfast.views import response as view

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.actors.messages import ErrorDocument, Response
    from holdfast.events import CircuitState
    from holdfast.runtime.runtime import Runtime

__all__ = [
    "CancellableOperation",
    "CircuitBreaker",
    "CircuitBreakerConfig",
    "OperationCancelledError",
    "OperationTimeoutError",
    "RetryConfig",
    "with_retry",
    "with_timeout",
]

T = TypeVar("T")

_TRIES = ACTOR.schedules[Schedule.TRANSIENT]
_COUNTED = re.compile(r"^Failed after \d+ attempts: ")
_NUMBERS = itertools.count(1)


class OperationTimeoutError(HoldfastError, TimeoutError):
    """An operation took longer than its limit. `error.fault.context` has its name and the seconds.

    except OperationTimeoutError as error:
        print(error.fault.context["operation"])
    """

    code = "TOOL_TIMEOUT"


class OperationCancelledError(HoldfastError):
    """Somebody called `cancel` of a `CancellableOperation`.

    except OperationCancelledError:
        print("as you wish")
    """

    code = "SYS_CANCELLED"


class RetryConfig(options.Options, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How often and when `with_retry` calls: `RetryConfig(max_attempts=2, initial_delay_ms=2000, max_delay_ms=5000)`.

    Wrong options raise `InvalidError`.
    """

    max_attempts: int = _TRIES.attempts or 1
    """Calls in all, the first included."""
    initial_delay_ms: float = _TRIES.backoff.initial * 1000
    max_delay_ms: float = _TRIES.backoff.cap * 1000
    backoff_multiplier: float = _TRIES.backoff.factor
    jitter: bool = True
    """Multiply each delay by 0.5 to 1.5, so that callers do not return at once. The limit comes after that."""

    def __post_init__(self) -> None:
        options.flag("retry.jitter", self.jitter)
        _ = self.tries

    @classmethod
    def of(cls, tries: Tries) -> RetryConfig:
        """Return the numbers of a profile in this form: `RetryConfig.of(actor.tries["claude"])`."""
        backoff = tries.backoff
        return cls(
            max_attempts=tries.attempts or 1,
            initial_delay_ms=backoff.initial * 1000,
            max_delay_ms=backoff.cap * 1000,
            backoff_multiplier=backoff.factor,
            jitter=backoff.jitter == "scaled",
        )

    @property
    def tries(self) -> Tries:
        """The same numbers as policies have them."""
        backoff = Backoff(
            initial=self.initial_delay_ms / 1000,
            factor=self.backoff_multiplier,
            cap=self.max_delay_ms / 1000,
            jitter="scaled" if self.jitter else "none",
        )
        return Tries(attempts=self.max_attempts, backoff=backoff)


class _ReturnedError(HoldfastError):
    """Carries a failed Response through a recovery."""

    def __init__(self, response: Response) -> None:
        super().__init__(view.read(response))
        self.response = response


async def with_retry(
    fn: Callable[[], Awaitable[Response]],
    config: RetryConfig | None = None,
    is_retryable: Callable[[ErrorDocument], bool] | None = None,
    *,
    name: str = "actor",
    runtime: Runtime | None = None,
) -> Response:
    """Call `fn` until its Response is a success or cannot be retried; return the last one.

        response = await with_retry(lambda: claude.send(message), RetryConfig(max_attempts=2))

    is_retryable: whether an error is worth another attempt; by default what it says itself. CIRCUIT_OPEN never is. name: what events
    call it.
    After the last attempt the message says how many there were: `Failed after 3 attempts: …`. What `fn` raises is not retried.
    """
    config = config or RetryConfig()
    attempts = 0

    async def attempt() -> Response:
        nonlocal attempts
        attempts += 1
        response = cast("Response", view.plain(cast("dict[str, Any]", await fn())))
        error = response.get("error")
        # An error that is a text has no type, and so nothing says that it passes.
        if response["success"] or not isinstance(error, dict):
            return response
        if not (error["retryable"] if is_retryable is None else is_retryable(error)):
            return response
        failure = _ReturnedError(response)
        if failure.fault.code == "CIRCUIT_OPEN":
            # Another call would be rejected too, and calls that are not made would not count as attempts.
            return response
        raise failure

    tries = config.tries
    policy = Policy(attempts=tries.attempts, backoff=tries.backoff, patience=None, circuit=None)
    around = recover(
        Target(service=name),
        policy,
        retry_on=_ReturnedError,
        never_retry=_is_raised,
        effect="idempotent",
        runtime=runtime,
    )
    try:
        return cast("Response", await around.call(attempt))
    except _ReturnedError as last:
        response, error = last.response, last.response["error"]
        # Once: a retry inside of this one may have counted its own attempts.
        message = f"Failed after {attempts} attempts: {_COUNTED.sub('', error['message'])}"
        return cast("Response", {**response, "error": {**error, "message": message}})


def _is_raised(error: Exception) -> bool:
    return not isinstance(error, _ReturnedError)


async def with_timeout(work: Awaitable[T], timeout_ms: float | None = None, operation: str = "operation") -> T:
    """Return the result of `work`; cancel it after `timeout_ms` and raise `OperationTimeoutError`, which names the operation.

        rows = await with_timeout(query(), 5_000, "load the plan")
        rows = await with_timeout(query(), operation="db")  # the limit of the profile `actor` for databases

    A `TimeoutError` that the work raises passes through unchanged. Wrong options raise `InvalidError`.
    """
    options.seconds("timeout_ms", timeout_ms, optional=True)
    seconds = ACTOR.timeout(operation) if timeout_ms is None else timeout_ms / 1000
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        text = f'Operation "{operation}" timed out after {_milliseconds(seconds)}ms'
        raise _late(text, operation, seconds) from None


class CancellableOperation(Generic[T]):
    """One operation with a time limit, which others can cancel.

        operation = CancellableOperation()
        text = await operation.execute(lambda cancelled: read(cancelled), 120_000)

    `fn` gets an event that is set as soon as the operation is cancelled or late. Then it is cancelled for real: it runs its `finally`
    blocks and ends.
    """

    def __init__(self) -> None:
        self._cancelled = asyncio.Event()
        self._limit: asyncio.Timeout | None = None
        self._is_late = False

    async def execute(self, fn: Callable[[asyncio.Event], Awaitable[T]], timeout_ms: float) -> T:
        """Return what `fn` returns. Raises `OperationTimeoutError` when it is late, `OperationCancelledError` after `cancel`."""
        options.seconds("timeout_ms", timeout_ms)
        if self._limit is not None:
            raise InvalidError.saying("operation", "one call of execute at a time", "a second one")
        if self._cancelled.is_set():
            raise OperationCancelledError.because()
        limit = self._limit = asyncio.timeout(None)
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._expire)
        try:
            async with limit:
                return await fn(self._cancelled)
        except TimeoutError:
            if not limit.expired():
                raise
            if self._is_late:
                text = f"Operation cancelled after {_milliseconds(timeout_ms / 1000)}ms"
                raise _late(text, "operation", timeout_ms / 1000) from None
            raise OperationCancelledError.because() from None
        finally:
            timer.cancel()
            self._limit = None

    def cancel(self) -> None:
        """Cancel the operation. One that has not begun will not begin."""
        self._cancelled.set()
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _expire(self) -> None:
        self._is_late = True
        self.cancel()


class CircuitBreakerConfig(options.Options, frozen=True, kw_only=True, repr_omit_defaults=True):
    """When a `CircuitBreaker` opens and closes: `CircuitBreakerConfig(failure_threshold=5, success_threshold=2, timeout=60_000)`.

    Wrong options raise `InvalidError`.
    """

    failure_threshold: int = ACTOR.circuit.failures or 1
    """Failures in a row that open it."""
    success_threshold: int = ACTOR.circuit.successes
    """Successes that close it when it is half-open. A failure opens it again."""
    timeout: float = ACTOR.circuit.open_for * 1000
    """Milliseconds that it stays open before it lets a probe through."""

    def __post_init__(self) -> None:
        options.count("circuit.failure_threshold", self.failure_threshold)
        options.count("circuit.success_threshold", self.success_threshold)
        options.seconds("circuit.timeout", self.timeout)


class CircuitBreaker:
    """A circuit of its own around an operation.

        breaker = CircuitBreaker(CircuitBreakerConfig(failure_threshold=5))
        row = await breaker.execute(query)
        print(breaker.state)

    name: what events call it, `service:NAME`. Breakers of one name share one circuit.

    Wrong options raise `InvalidError`.
    """

    @options.suggests
    def __init__(
        self, config: CircuitBreakerConfig | None = None, *, name: str | None = None, runtime: Runtime | None = None
    ) -> None:
        config = config or CircuitBreakerConfig()
        options.name("circuit.name", name, optional=True)
        self.target = Target(service=name or f"breaker-{next(_NUMBERS)}")
        circuit = ACTOR.circuit.replace(
            failures=config.failure_threshold, successes=config.success_threshold, open_for=config.timeout / 1000
        )
        policy = Policy(attempts=1, circuit=circuit, patience=None, wait_for_circuit=False)
        self._runtime = default_runtime() if runtime is None else runtime
        self._recovery = recover(self.target, policy, runtime=self._runtime)

    async def execute(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Call `fn` once. Raises `CircuitOpenError` without a call while the circuit is open; what `fn` raises passes through."""

        async def once() -> T:
            return await fn()

        try:
            return await self._recovery.call(once)
        except CircuitOpenError as error:
            if error.circuit != self.target.names[0][1]:
                raise
            raise CircuitOpenError(_said("Circuit breaker is OPEN", error.fault)) from None

    @property
    def state(self) -> CircuitState:
        """`closed`, `open` or `half-open`, now."""
        return self._runtime.registry.get(self.target.names[0][1]).circuit_state(self._runtime.clock.monotonic())


def _said(words: str, fault: Fault) -> Fault:
    return Fault.of(fault.code, f"{words}: {fault.message}", retry_after=fault.retry_after, context=fault.context)


def _late(text: str, operation: str, seconds: float) -> OperationTimeoutError:
    context: dict[str, Any] = {"operation": operation, "timeout_s": seconds}
    return OperationTimeoutError(Fault.of("TOOL_TIMEOUT", text, maybe_executed=True, context=context))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:g}"
