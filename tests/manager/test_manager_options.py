"""What options do to an execution: time limits by kind of operation, the fallback chain, and checks."""

from __future__ import annotations

import asyncio

import pytest
from manager_kit import SECONDS, reset_by_peer

from holdfast import Circuit, Err, InvalidError, Ok, Policy
from holdfast.manager import CachedAnswers, ExecutionOptions, FallbackChain, FallbackStep, ResilienceManager
from holdfast.policies.profiles import PROFILES, SPEC016
from holdfast.profiles import policy_of
from holdfast.runtime.fallbacks.cache import MemoryCache
from holdfast.testing import Capture, run, script
from holdfast.views import category

# --- time limits (S1-20, C8) ---


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        (ExecutionOptions(operation_type="file-read"), 5),
        (ExecutionOptions(operation_type="tool-execution"), 120),
        (ExecutionOptions(operation_type="agent-spawn"), 300),
        (ExecutionOptions(operation_type="something-else"), 30),
        (ExecutionOptions(operation_type="file-read", timeout=2), 2),
        (ExecutionOptions(timeout=400), 400),
    ],
)
def test_S1_20_C8_the_limit_is_looked_up_by_the_kind_of_operation(manager, runtime, options, limit):
    began = runtime.clock.monotonic()

    async def hang() -> None:
        await asyncio.sleep(10_000)

    async def once() -> None:
        with pytest.raises(TimeoutError, match=rf"{limit}(\.0)? s"):
            await manager.execute(hang, ExecutionOptions(**{**_fields(options), "skip_retry": True}))

    run(once(), clock=runtime.clock)
    assert runtime.clock.monotonic() - began == pytest.approx(limit)


def _fields(options: ExecutionOptions) -> dict:
    return {name: getattr(options, name) for name in options.__struct_fields__}


@pytest.mark.parametrize("profile", ["holdfast", "spec016"])
@pytest.mark.parametrize("provider", ["claude", ""])
def test_FR27_S1_32_a_tool_that_takes_too_long_is_a_timeout_that_may_be_retried(runtime, profile, provider):
    runtime.configure(policy_of(PROFILES[profile]), {})
    ends = []

    async def hang() -> None:
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            ends.append(runtime.clock.monotonic())
            raise

    manager, began = ResilienceManager(runtime), runtime.clock.monotonic()
    options = ExecutionOptions(operation_type="tool-execution", provider=provider)
    outcome = run(manager.outcome_async(hang, options), clock=runtime.clock)
    assert isinstance(outcome, Err)
    assert isinstance(outcome.error, TimeoutError)
    classified = category.write(outcome.fault, literal=True)
    assert (classified["category"], classified["isRetryable"]) == ("timeout", True)
    assert classified["message"] == "Operation timed out after 120000ms"
    assert len(ends) == len(outcome.fault.attempts) == 3
    assert ends[0] - began == pytest.approx(120)


def test_FR27_the_only_attempt_is_late_by_its_own_limit_and_not_by_the_deadline(manager, runtime):
    runtime.configure(Policy(timeout=None, deadline=20, attempts=1), {})

    async def hang() -> None:
        await asyncio.sleep(10_000)

    outcome = run(manager.outcome_async(hang, ExecutionOptions(timeout=30, provider="claude")), clock=runtime.clock)
    assert isinstance(outcome, Err)
    assert (outcome.fault.code, len(outcome.fault.attempts)) == ("PROVIDER_TIMEOUT", 1)
    assert category.write(outcome.fault)["isRetryable"]


def test_the_limit_is_the_profiles(runtime):
    runtime.configure(Policy(profile="spec016", circuit=SPEC016.circuit), {})
    options = ExecutionOptions(operation_type="llm-call")
    assert options.applied_to(runtime.policy_for(options.target)).timeout == 60


# --- the fallback chain (S1-15, S1-16, N1-7) ---


def test_S1_16_steps_run_by_priority_and_only_for_their_faults(manager, runtime):
    heard = Capture()
    manager.on("fallback", heard)
    chain = FallbackChain(
        fallbacks=(
            FallbackStep(name="last", operation=lambda: "last", priority=2),
            FallbackStep(name="broken", operation=reset_by_peer, priority=1),
            FallbackStep(name="for auth only", operation=lambda: "auth", when="AUTH_FAILED"),
        )
    )
    outcome = manager.outcome(reset_by_peer, ExecutionOptions(skip_retry=True, fallback_chain=chain))
    assert isinstance(outcome, Ok)
    assert (outcome.value, outcome.via) == ("last", "last")
    assert [(event.from_, event.to) for event in heard] == [("primary", "broken"), ("primary", "last")]


def test_S1_15_cached_then_degraded_then_notified_with_the_first_error(manager, runtime):
    store = MemoryCache()
    notified = []

    def options(**more) -> ExecutionOptions:
        cached = CachedAnswers(store=store, key="q", ttl=60)
        return ExecutionOptions(
            skip_retry=True, fallback_chain=FallbackChain(cached=cached, notify=notified.append, **more)
        )

    assert manager.execute(lambda: "fresh", options()) == "fresh"
    assert manager.execute(reset_by_peer, options()) == "fresh"
    runtime.clock.advance(61)
    assert manager.execute(reset_by_peer, options(degraded=lambda fault: fault.code)) == "CONN_RESET"
    assert notified == []
    with pytest.raises(ConnectionResetError):
        manager.execute(reset_by_peer, options())
    assert [fault.code for fault in notified] == ["SYS_FALLBACKS_EXHAUSTED"]


def test_S1_24_all_providers_down_the_user_gets_a_lesser_answer_and_may_retry_later(manager, runtime):
    def ask(provider: str) -> str:
        return manager.execute(reset_by_peer, ExecutionOptions(provider=provider, skip_retry=True))

    chain = FallbackChain(
        fallbacks=tuple(
            FallbackStep(name=name, operation=lambda name=name: ask(name)) for name in ("openai", "gemini")
        ),
        degraded=lambda fault: fault.for_user(),
    )
    options = ExecutionOptions(provider="claude", skip_retry=True, fallback_chain=chain)
    shown = [manager.execute(reset_by_peer, options) for _ in range(5)]
    assert set(manager.get_circuit_states().values()) == {"open"}
    assert all(shown)
    runtime.clock.advance(31)
    assert manager.execute(lambda: "back", options) == "back"


# --- checks ---


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"timeout": 0}, "options.timeout: expected a finite number of seconds > 0 or None, got 0"),
        ({"timeout": float("nan")}, "options.timeout"),
        ({"retry": 3}, "options.retry: expected a Tries or None, got 3"),
        ({"circuit_breaker": "provider"}, "options.circuit_breaker: expected a Circuit or None, got 'provider'"),
        ({"fallback_chain": []}, "options.fallback_chain: expected a FallbackChain or None, got list"),
        ({"abort": True}, r"options.abort: expected a signal with is_set\(\)"),
        ({"skip_retry": True, "retry": SECONDS}, "options.retry: expected None beside skip_retry"),
        ({"circuit_breaker": Circuit()}, "options.circuit_breaker: expected a provider or an agent beside it"),
        (
            {"provider": "x", "skip_circuit_breaker": True, "circuit_breaker": Circuit()},
            "options.circuit_breaker: expected None",
        ),
    ],
)
def test_wrong_options_are_rejected_where_they_are_written(wrong, message):
    with pytest.raises(InvalidError, match=message):
        ExecutionOptions(**wrong)


def test_an_operation_with_a_provider_and_an_agent_may_skip_the_circuits_of_both(manager):
    options = ExecutionOptions(provider="claude", agent="builder", skip_circuit_breaker=True, retry=SECONDS)
    asked = script("503, ok")
    manager.execute(asked, options)
    assert asked.calls == 2
    assert manager.get_circuit("claude").failures == manager.get_circuit("agent:builder").failures == 0


def test_S1_16_words_of_a_step_are_compared_with_the_operations_own_failure(manager):
    steps = (
        FallbackStep(name="limited", operation=script("429")),
        FallbackStep(name="for-limits", operation=script("ok"), when="rate_limit"),
        FallbackStep(name="for-overload", operation=lambda: "by the third", when="unavailable"),
    )
    options = ExecutionOptions(fallback_chain=FallbackChain(fallbacks=steps), skip_retry=True)
    assert manager.execute(script("503"), options) == "by the third"


@pytest.mark.parametrize(
    "given", [{"provider": "mistral", "others": {}}, {"provider": "claude", "others": {"mistral": len}}]
)
def test_a_chain_of_providers_takes_only_those_of_the_table(given):
    with pytest.raises(InvalidError, match="fallback_chain"):
        FallbackChain.of_provider(**given)


def test_a_circuit_has_the_settings_that_it_is_asked_for_with(manager):
    circuit = manager.get_circuit("claude", Circuit(failures=2, rate=None))
    circuit.record_failure()
    circuit.record_failure()
    assert circuit.state == "open"
    with pytest.raises(InvalidError, match="circuit"):
        manager.get_circuit("claude", Circuit(failures=3, rate=None))
