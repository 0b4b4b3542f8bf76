"""What a manager counts (S1-23, N1-9)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from manager_kit import CLAUDE, SECONDS

from holdfast import Backoff, Runtime, Tries
from holdfast.faults import Category
from holdfast.manager import ExecutionOptions, FallbackChain, FallbackStep, ResilienceManager
from holdfast.testing import VirtualClock, run, script


def test_S1_23_counts_mean_what_their_names_say(manager, runtime):
    manager.execute(lambda: 1, CLAUDE)
    manager.execute(script("503, ok"), ExecutionOptions(provider="claude", retry=SECONDS))
    with pytest.raises(Exception, match="503"):
        manager.execute(script("503, 503, 503"), ExecutionOptions(provider="claude", retry=SECONDS))
    with pytest.raises(Exception, match="401"):
        manager.execute(script("401"), CLAUDE)
    chain = FallbackChain(fallbacks=(FallbackStep(name="other", operation=lambda: 2),))
    manager.execute(script("401"), ExecutionOptions(provider="claude", fallback_chain=chain))
    metrics = manager.get_metrics()
    assert metrics.total_attempts == 1 + 2 + 3 + 1 + 2
    assert metrics.successful_retries == 1
    assert metrics.failed_retries == 1
    assert metrics.fallbacks_used == 1
    assert metrics.circuit_opens == 0
    assert metrics.avg_recovery_time == pytest.approx((1 + 0) / 2)
    assert metrics.errors_by_category == {Category.UNAVAILABLE: 4, Category.AUTH: 2}


def test_S1_23_opens_of_dropped_circuits_are_counted_too():
    manager = ResilienceManager(Runtime(clock=VirtualClock(), most_circuits=3))
    for number in range(10):
        for _ in range(5):
            manager.get_circuit(f"p{number}").record_failure()
    assert len(manager.get_circuit_states()) <= 3
    assert manager.get_metrics().circuit_opens == 10
    assert ResilienceManager(manager._runtime).get_metrics().circuit_opens == 0


def test_N1_8_the_average_is_over_the_last_hundred(manager, runtime):
    def recovering_in(seconds: float) -> None:
        calls = iter(("fail", "answer"))

        def operation() -> None:
            if next(calls) == "fail":
                raise ConnectionResetError

        tries = Tries(attempts=2, backoff=Backoff(initial=seconds, jitter=0, cap=100))
        manager.execute(operation, ExecutionOptions(retry=tries))

    recovering_in(100)
    for _ in range(100):
        recovering_in(2)
    assert manager.get_metrics().avg_recovery_time == pytest.approx(2)


def test_S1_23_counts_are_exact_under_50_threads():
    runtime = Runtime(waits=False)
    manager = ResilienceManager(runtime)
    options = ExecutionOptions(retry=Tries(attempts=2, backoff=Backoff(initial=0)))

    def work(_: int) -> None:
        for _ in range(20):
            manager.execute(script("503, ok"), options)

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    metrics = manager.get_metrics()
    assert (metrics.total_attempts, metrics.successful_retries, metrics.failed_retries) == (2000, 1000, 0)
    assert metrics.errors_by_category == {Category.UNAVAILABLE: 1000}


def test_a_cancelled_operation_has_not_failed(manager, runtime):
    async def main() -> None:
        task = asyncio.create_task(manager.execute(script("503, 503, ok").acall, CLAUDE))
        await asyncio.sleep(2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main(), clock=runtime.clock)
    assert (manager.get_metrics().total_attempts, manager.get_metrics().failed_retries) == (2, 0)
