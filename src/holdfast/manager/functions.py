"""The functions of SPEC-016, for programs that are written with them. They recover as `ResilienceManager` does, on the default runtime.

Invariant: they hold no machinery of their own. Each is a manager's execution with one part of its options.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from holdfast import options
from holdfast.faults import InvalidError, Schedule
from holdfast.manager.manager import ResilienceManager
from holdfast.manager.options import AgentExecutionContext, ExecutionOptions, FallbackChain
from holdfast.policies.profiles import SPEC016
from holdfast.runtime.fault_of import fault_of, permanent_by_status
from holdfast.views import category

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.clock import Rng
    from holdfast.manager.circuit import CircuitHandle
    from holdfast.policies.backoff import Tries
    from holdfast.policies.circuit import Circuit
    from holdfast.runtime.runtime import Runtime
    from holdfast.views.category import ClassifiedError

__all__ = [
    "DEFAULT_RETRY_CONFIG",
    "calculate_delay",
    "classify_error",
    "create_circuit_breaker",
    "execute_with_recovery",
    "with_fallback",
    "with_retry",
    "with_timeout",
]

T = TypeVar("T")

DEFAULT_RETRY_CONFIG: Tries = SPEC016.schedules[Schedule.TRANSIENT]
"""Three calls, 1 and 2 s apart, each ±20 %."""

_MS = 1000


def classify_error(error: Any) -> ClassifiedError:
    """Return the ClassifiedError of any failure: an exception, an HTTP response, a text.

        from holdfast.manager import classify_error

        classify_error(TimeoutError())["category"]      # "timeout"

    It is the category view of `fault_of(error)`, except that a 401, 403 or 404 is permanent whatever its words promise.
    """
    return cast("ClassifiedError", category.write(permanent_by_status(fault_of(error), error, SPEC016.permanent)))


def calculate_delay(attempt: int, config: Tries = DEFAULT_RETRY_CONFIG, *, rng: Rng | None = None) -> float:
    """Return the seconds to wait after a failed attempt: capped, then with jitter. Attempts are counted from 0: 1, 2, 4 … s, each ±20 %.

        calculate_delay(2)      # 3.2 to 4.8

    Raises `InvalidError` for a negative attempt.
    """
    options.count("calculate_delay.attempt", attempt, least=0)
    return config.jittered_after_cap().backoff.delay(attempt + 1, rng or random.Random())  # noqa: S311 - jitter, not secrets


@overload
def with_retry(
    operation: Callable[[], Coroutine[Any, Any, T]], config: Tries = ..., *, runtime: Runtime | None = None
) -> Coroutine[Any, Any, T]: ...
@overload
def with_retry(operation: Callable[[], T], config: Tries = ..., *, runtime: Runtime | None = None) -> T: ...
def with_retry(
    operation: Callable[[], Any], config: Tries = DEFAULT_RETRY_CONFIG, *, runtime: Runtime | None = None
) -> Any:
    """Call `operation` until it succeeds, as often as `config` says; if it is async, await the result.

    A failure that a retry cannot help is raised at once; after the last attempt its error is raised.

        answer = await with_retry(ask_claude)
    """
    return ResilienceManager(runtime).execute(operation, ExecutionOptions(retry=config))


@overload
def with_timeout(
    operation: Callable[[], Coroutine[Any, Any, T]], timeout_ms: float, *, runtime: Runtime | None = None
) -> Coroutine[Any, Any, T]: ...
@overload
def with_timeout(operation: Callable[[], T], timeout_ms: float, *, runtime: Runtime | None = None) -> T: ...
def with_timeout(operation: Callable[[], Any], timeout_ms: float, *, runtime: Runtime | None = None) -> Any:
    """Call `operation` once; if it is async, await the result. It is cancelled after this many milliseconds.

    Raises `DeadlineError`, which is a `TimeoutError`. A plain function runs in a thread, which is left behind at the limit.

        answer = await with_timeout(ask_claude, 60_000)
    """
    options.above_zero("with_timeout.timeout_ms", timeout_ms)
    limited = ExecutionOptions(timeout=timeout_ms / _MS, skip_retry=True, threads=True)
    return ResilienceManager(runtime).execute(operation, limited)


def with_fallback(chain: FallbackChain, *, runtime: Runtime | None = None) -> Any:
    """Call the chain's `primary` once, and what stands behind it until something answers; if it is async, await the result.

    Raises the error of the primary if nothing answers, and `InvalidError` for a chain without a primary.

        answer = await with_fallback(FallbackChain(primary=ask_claude, fallbacks=(FallbackStep(name="openai", operation=ask_openai),)))
    """
    if chain.primary is None:
        raise InvalidError.at("with_fallback.chain", "a FallbackChain with a primary", None)
    return ResilienceManager(runtime).execute(chain.primary, ExecutionOptions(fallback_chain=chain, skip_retry=True))


@overload
def execute_with_recovery(
    agent: AgentExecutionContext | str, run: Callable[[str], Coroutine[Any, Any, T]], *, runtime: Runtime | None = None
) -> Coroutine[Any, Any, T]: ...
@overload
def execute_with_recovery(
    agent: AgentExecutionContext | str, run: Callable[[str], T], *, runtime: Runtime | None = None
) -> T: ...
def execute_with_recovery(
    agent: AgentExecutionContext | str, run: Callable[[str], Any], *, runtime: Runtime | None = None
) -> Any:
    """Call `run` with an agent's name, with retries, its time limit and its circuit; then with the names of those that take over.

    It is `ResilienceManager.execute_agent` for programs that keep no manager. If all fail, the first agent's error is raised.

        result = await execute_with_recovery("builder", lambda name: agents[name].run(task))
    """
    return ResilienceManager(runtime).execute_agent(agent, run)


def create_circuit_breaker(
    name: str, config: Circuit | None = None, *, runtime: Runtime | None = None
) -> CircuitHandle:
    """Return the circuit of a name, such as `"claude"` or `"agent:builder"`: the whole program shares it.

    config: its settings. By default those that are configured, else those of the runtime's profile.

        circuit = create_circuit_breaker("claude")
        answer = await circuit.execute(ask_claude)
    """
    return ResilienceManager(runtime).get_circuit(name, config)
