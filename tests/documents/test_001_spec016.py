"""Document 001, SPEC-016: error recovery and resilience. In its order: each sample and each sentence, run."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from importlib import metadata
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import anthropic
import httpx2
import msgspec
import pytest
from documents_kit import Model, World, failing, http

from holdfast import Agent, HoldfastError, Ok, Policy, Session, fault_of, recover, tool
from holdfast.agents import FunctionAgent, Hooks, Roles, Validator
from holdfast.anthropic import recovering
from holdfast.config import load
from holdfast.documents.spec016 import (
    AGENT_CHAINS,
    AGENTS,
    DEFAULT_RETRY_CONFIG,
    PROVIDER_CHAINS,
    PROVIDERS,
    AgentExecutionContext,
    Backoff,
    CachedAnswers,
    CircuitBreakerConfig,
    CircuitOpenError,
    CircuitState,
    ClassifiedError,
    Degraded,
    ErrorCategory,
    Failed,
    Fallback,
    FallbackChain,
    FallbackStep,
    Recovered,
    RecoveryEvent,
    ResilienceManager,
    ResilienceMetrics,
    ResilienceOptions,
    Retry,
    RetryConfig,
    calculate_delay,
    classify_error,
    create_circuit_breaker,
    execute_with_recovery,
    spec016,
    with_fallback,
    with_retry,
    with_timeout,
)
from holdfast.events import Correction, HookEvent, UserNotified, write_document
from holdfast.faults import InvalidError
from holdfast.policies.circuit import PROVIDER, SPEC016
from holdfast.providers import Reply, ToolCall
from holdfast.runtime import MemoryCache
from holdfast.sinks import HookBadge, watch_hooks, watch_live
from holdfast.stores import MemoryStore
from holdfast.testing import FaultProvider, Midpoint, run
from holdfast.testing.provider.script import read_script
from holdfast.tools import Tool, Toolbox, edit_file, read_file

CLAUDE = ResilienceOptions(provider="claude", operation_type="llm-call")
BDD = CircuitBreakerConfig()
"""The circuit of the acceptance criteria: five failures in a row, whatever the volume, and one good probe."""


@pytest.fixture
def world() -> World:
    return World()


def claude_client(world: World, script: str) -> tuple[Any, FaultProvider]:
    """The recovering client of the Anthropic SDK, over a provider that fails by this script."""
    provider = FaultProvider(read_script(script), clock=world.clock)
    client = anthropic.AsyncAnthropic(
        base_url="http://provider.test", api_key="k", http_client=httpx2.AsyncClient(transport=provider.transport())
    )
    return recovering(client, runtime=world.runtime), provider


def message(client: Any) -> Any:
    asked = [{"role": "user", "content": "hi"}]
    return client.messages.create(model="claude-haiku-4-5", max_tokens=10, messages=asked)


# --- 0 and 1: research, vision, metrics ---


@pytest.mark.parametrize("error", [TimeoutError(), http(401), ValueError("odd"), KeyError("x")], ids=str)
def test_S1_1_no_error_is_silent_and_none_loops_for_ever(world, error):
    """Recovery is automatic: an error neither disappears nor is retried without end."""
    ask = failing(error)
    with pytest.raises(type(error)):
        world.manager.execute(ask, CLAUDE)
    assert 1 <= ask.calls <= 3
    (failed,) = world.of(Failed)
    assert failed.fault.code == fault_of(error).code


def test_S1_2_nine_of_ten_transient_errors_recover_and_within_30_seconds():
    """At least 90 % of the transient errors recover by themselves, typical ones in less than 30 s."""
    world, chance = World(), random.Random(16)
    transient = [http(503), http(429), TimeoutError(), ConnectionResetError(), http(500)]
    answered, longest = 0, 0.0
    for number in range(300):
        script = [chance.choice(transient) for _ in range(chance.choice((1, 1, 1, 2)))]
        began = world.now
        # Each provider its own: this is about the retries.
        options = ResilienceOptions(provider=f"p{number}", operation_type="llm-call")
        answered += isinstance(world.manager.outcome(failing(*script, None), options), Ok)
        longest = max(longest, world.now - began)
    assert answered / 300 >= 0.9
    assert longest < 30
    assert world.manager.get_metrics().successful_retries == answered


def test_S1_2_the_circuit_prevents_95_of_100_calls_to_a_service_that_is_down():
    """The circuit keeps more than 95 % of the calls from a service that is down."""
    world, ask = World(), failing(http(503))
    for _ in range(1000):
        with pytest.raises((httpx2.HTTPStatusError, CircuitOpenError)):
            world.manager.execute(ask, CLAUDE)
    assert ask.calls <= 50


def test_S1_3_layers_are_retry_then_fallback_with_the_circuit_around_each_attempt(world):
    """Layers: retry, then the fallback, then the circuit; a simpler agent answers in the end."""
    ask, other = failing(http(503)), failing(None)
    chain = FallbackChain(fallbacks=(FallbackStep(name="openai", operation=other),))
    options = ResilienceOptions(provider="claude", fallback_chain=chain)
    for _ in range(4):
        assert world.manager.execute(ask, options) == "answer"
    kinds = [type(event).__name__ for event in world.heard.events if isinstance(event, Retry | Fallback)]
    assert kinds[:3] == ["Retry", "Retry", "Fallback"]
    # Each attempt counted: the tenth opened it, and the fourth operation made no third attempt.
    assert (ask.calls, world.manager.get_circuit("claude").state) == (10, CircuitState.OPEN)


# --- 2: goals and non-goals ---


def test_S1_4_no_provider_takes_over_without_consent():
    """A provider is not switched without the user's consent; a configured fallback is the consent."""
    asked: list[str] = []

    def consent(operation: str, step: str, fault: Any) -> bool:
        asked.append(step)
        return False

    world = World(consent=consent)
    ask, other = failing(http(503)), failing(None)
    step = FallbackStep(name="openai", operation=other, consent="ask")
    options = ResilienceOptions(provider="claude", fallback_chain=FallbackChain(fallbacks=(step,)))
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(ask, options)
    assert (asked, other.calls) == (["openai"], 0)
    with pytest.raises(httpx2.HTTPStatusError):
        World().manager.execute(failing(http(503)), CLAUDE)


def test_S1_5_it_needs_no_resilience_library():
    """It is an implementation of its own, without dependencies for it."""
    required = [line for line in metadata.requires("holdfast") or () if "extra ==" not in line]
    assert [line.split(">")[0].split("=")[0].strip() for line in required] == ["msgspec"]
    program = "import sys, holdfast.documents.spec016; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) & {"tenacity", "stamina", "pybreaker", "backoff", "temporalio"} == set()


# --- 4.1: error classification ---

CATEGORIES = {
    "rate_limit", "timeout", "network", "unavailable",
    "auth", "invalid", "not_found", "overflow",
    "tool_error", "agent_crash", "validation",
}  # fmt: skip


def test_S1_6_the_categories_are_those_of_the_document_and_two_more():
    """Eleven categories: four are transient, four permanent, three are of agents."""
    assert {category.value for category in ErrorCategory} == CATEGORIES | {"unknown", "cancelled"}
    names = {
        "RATE_LIMIT": "rate_limit", "TIMEOUT": "timeout", "NETWORK": "network", "SERVICE_UNAVAILABLE": "unavailable",
        "AUTH_ERROR": "auth", "INVALID_REQUEST": "invalid", "NOT_FOUND": "not_found", "CONTEXT_OVERFLOW": "overflow",
        "TOOL_ERROR": "tool_error", "AGENT_CRASH": "agent_crash", "VALIDATION_FAILED": "validation",
    }  # fmt: skip
    assert {name: ErrorCategory[name].value for name in names} == names


@pytest.mark.parametrize(
    ("error", "category", "retryable"),
    [
        (http(429), "rate_limit", True),
        (TimeoutError(), "timeout", True),
        (ConnectionResetError(), "network", True),
        (http(503), "unavailable", True),
        (http(401), "auth", False),
        (http(403), "auth", False),
        (http(400), "invalid", False),
        (http(404), "not_found", False),
        ("prompt is too long: 210000 tokens > 200000 maximum", "overflow", False),
        ("tool failed: grep", "tool_error", False),
        ("process crashed", "agent_crash", True),
        ("Validation failed: name is empty", "validation", False),
    ],
    ids=str,
)
def test_S1_6_S1_7_an_error_is_classified_with_what_to_do_about_it(error, category, retryable):
    """A ClassifiedError says its category, whether and when to retry, how often, and what the error was."""
    classified = classify_error(error)
    assert set(classified) == set(get_type_hints(ClassifiedError))
    assert (classified["category"], classified["isRetryable"]) == (category, retryable)
    assert (classified["maxRetries"] > 0) is retryable
    assert classified["message"]
    assert classify_error(http(503, **{"retry-after": "7"}))["suggestedDelay"] == 7000
    assert classify_error(ConnectionResetError("gone"))["originalError"] == {
        "name": "ConnectionResetError",
        "message": "gone",
    }


@pytest.mark.parametrize(("status", "category"), [(401, "auth"), (403, "auth"), (404, "not_found")])
@pytest.mark.parametrize(
    "words", ["rate limit exceeded", "Rate limit reached for requests", "overloaded, please try again later"]
)
def test_S1_6_N1_2_a_permanent_status_is_never_retried_whatever_its_words_promise(world, status, category, words):
    """401, 403 and 404 are permanent and not retried, whatever the words of the response promise."""
    error = http(status, **{"retry-after": "7"})
    error.args = (words,)
    classified = classify_error(error)
    assert (classified["category"], classified["isRetryable"], classified["suggestedDelay"]) == (category, False, 0)
    ask = failing(error)
    with pytest.raises(httpx2.HTTPStatusError):
        with_retry(ask, runtime=world.runtime)
    (failed,) = world.of(Failed)
    assert (ask.calls, failed.fault.category) == (1, category)
    wrapper = RuntimeError(words)
    wrapper.__cause__ = error
    ask = failing(wrapper)
    with pytest.raises(RuntimeError):
        with_retry(ask, runtime=world.runtime)
    assert (ask.calls, classify_error(wrapper)["category"]) == (1, category)
    # Where nothing is so exact, the words decide: this is what the profile switches off.
    plain = World("holdfast")
    ask = failing(error, None)
    assert with_retry(ask, runtime=plain.runtime) == "answer"
    assert ask.calls == 2


def test_S1_6_the_words_of_a_400_a_429_and_a_500_say_more_than_the_status():
    """400, 429 and 500 stand for several failures: their words tell a rate limit, an empty account and a wrong key apart."""

    def category(status: int, words: str) -> tuple[str, bool]:
        error = http(status)
        error.args = (words,)
        classified = classify_error(error)
        return classified["category"], classified["isRetryable"]

    assert category(400, "rate limit exceeded") == ("rate_limit", True)
    assert category(429, "You exceeded your current quota, please check your plan") == ("rate_limit", False)
    assert category(500, "invalid api key") == ("auth", False)


# --- 4.2: retry strategy ---


def test_S1_8_three_attempts_after_1_s_that_doubles_up_to_30_s_with_20_percent_jitter():
    """RetryConfig: 3 attempts, 1000 ms, at most 30000 ms, times 2, jitter 20 %."""
    backoff = DEFAULT_RETRY_CONFIG.backoff
    assert (DEFAULT_RETRY_CONFIG.attempts, backoff.initial, backoff.cap) == (3, 1.0, 30.0)
    assert (backoff.factor, backoff.jitter) == (2.0, 0.2)


def test_S1_9_the_delay_is_exponential_capped_and_then_jittered():
    """delay = min(initial × multiplier ^ attempt, max), then ± 20 %, never below 0."""
    assert [calculate_delay(attempt, rng=Midpoint()) for attempt in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    drawn = [calculate_delay(6) for _ in range(500)]
    assert 24 <= min(drawn) < 27
    assert 33 < max(drawn) <= 36
    assert calculate_delay(0, RetryConfig(backoff=Backoff(initial=0.0))) == 0


def test_S1_9_a_config_of_ones_own_is_capped_before_the_jitter_too():
    """cappedDelay + jitter: also with a RetryConfig of one's own, so that callers at the cap do not return together."""
    config = RetryConfig(attempts=9, backoff=Backoff(initial=1))
    assert max(calculate_delay(7, config) for _ in range(500)) > 30
    late: list[float] = []
    for seed in range(20):
        world = World(rng=random.Random(seed))
        with pytest.raises(httpx2.HTTPStatusError):
            with_retry(failing(http(503)), config, runtime=world.runtime)
        with pytest.raises(httpx2.HTTPStatusError):
            recover(
                "p",
                Policy(profile="spec016", patience=None, per_code={"PROVIDER_UNAVAILABLE": config}),
                runtime=world.runtime,
            ).call(failing(http(503)))
        late += [event.delay for event in world.of(Retry) if event.attempt >= 6]
    assert len(set(late)) == len(late) == 20 * 2 * 3
    assert 24 <= min(late) < 30 < max(late) <= 36


def test_S1_10_with_retry_retries_what_may_pass_and_raises_the_last_error(world):
    """withRetry: a permanent error is raised at once; a retryable one is retried after its delay; then the last error is raised."""
    assert with_retry(failing(http(503), http(503), None), runtime=world.runtime) == "answer"
    assert [(event.attempt, event.delay) for event in world.of(Retry)] == [(1, 1.0), (2, 2.0)]
    permanent, first, last = failing(http(401)), http(503), http(500)
    with pytest.raises(httpx2.HTTPStatusError) as raised:
        with_retry(permanent, runtime=world.runtime)
    assert (permanent.calls, raised.value.response.status_code) == (1, 401)
    began = world.now
    with pytest.raises(httpx2.HTTPStatusError) as raised:
        with_retry(failing(first, first, last), runtime=world.runtime)
    # Three calls, two delays: nothing is slept and nothing is announced after the last one.
    assert (raised.value, world.now - began, len(world.of(Retry))) == (last, 3.0, 4)


# --- 4.3: circuit breaker ---


def test_S1_11_closed_open_half_open_and_back(world):
    """Closed opens at the threshold, is half-open after its time, closes on a good probe and opens again on a bad one."""
    circuit = create_circuit_breaker("claude", BDD, runtime=world.runtime)
    for _ in range(5):
        circuit.record_failure()
    assert circuit.state is CircuitState.OPEN
    world.clock.advance(30)
    assert circuit.state is CircuitState.HALF_OPEN
    with pytest.raises(httpx2.HTTPStatusError):
        circuit.execute(failing(http(503)))
    assert circuit.state is CircuitState.OPEN
    world.clock.advance(60)
    assert circuit.execute(failing(None)) == "answer"
    assert circuit.state is CircuitState.CLOSED


def test_S1_12_the_documents_circuit_needs_ten_calls_and_two_good_probes():
    """CircuitBreakerConfig: 5 failures, 2 successes, 30000 ms, and at least 10 calls before it opens."""
    world = World()
    circuit = world.manager.get_circuit("claude")
    assert spec016.circuit == SPEC016
    for _ in range(9):
        circuit.record_failure()
    assert circuit.state is CircuitState.CLOSED
    circuit.record_failure()
    assert circuit.state is CircuitState.OPEN
    world.clock.advance(29.9)
    assert circuit.state is CircuitState.OPEN
    world.clock.advance(0.1)
    assert circuit.execute(failing(None)) == "answer"
    assert circuit.state is CircuitState.HALF_OPEN
    assert circuit.execute(failing(None)) == "answer"
    assert circuit.state is CircuitState.CLOSED


def test_S1_12_S1_17_ten_failures_in_a_row_open_it_however_far_apart(world):
    """failures >= threshold, at least 10 calls: of a service that is asked now and then, and of an agent that works for minutes, too."""
    circuit = world.manager.get_circuit("claude")
    for _ in range(10):
        assert circuit.state is CircuitState.CLOSED
        circuit.record_failure()
        world.clock.advance(20)
    assert circuit.state is CircuitState.OPEN

    async def crash(agent: str) -> str:
        await asyncio.sleep(200)
        raise ConnectionResetError

    builder = AgentExecutionContext(agent_id="builder", timeout=300, fallback_agents=())
    for _ in range(10):
        with pytest.raises(ConnectionResetError):
            run(world.manager.execute_agent(builder, crash), clock=world.clock)
    assert world.manager.get_circuit("builder").state is CircuitState.OPEN


def test_S1_13_a_circuit_has_a_name_a_state_counts_and_four_methods(world):
    """CircuitBreaker: name, state, failures, successes, lastFailure; execute, recordSuccess, recordFailure, reset."""
    circuit = world.manager.get_circuit("claude")
    assert (circuit.name, circuit.failures, circuit.last_failure) == ("provider:claude", 0, None)
    world.clock.advance(5)
    circuit.record_failure()
    circuit.record_success()
    assert circuit.execute(failing(None)) == "answer"
    assert (circuit.failures, circuit.successes, circuit.last_failure) == (1, 2, world.clock.wall())
    for _ in range(9):
        circuit.record_failure()
    assert circuit.state is CircuitState.OPEN
    circuit.reset()
    assert circuit.state is CircuitState.CLOSED
    # The recent failures are forgotten, the totals stay.
    circuit.record_failure()
    assert (circuit.state, circuit.failures, circuit.successes) == (CircuitState.CLOSED, 9, 2)


def test_S1_14_each_provider_and_each_agent_has_a_circuit(world):
    """One circuit for each provider (claude, openai, xai) and each agent (builder, reviewer, planner, error-analyzer)."""
    assert {"claude", "openai", "xai"} <= set(world.manager.provider_circuits) == set(PROVIDERS)
    assert {"builder", "reviewer", "planner", "error-analyzer"} <= set(world.manager.agent_circuits) == set(AGENTS)
    world.manager.provider_circuits["claude"].force_open()
    assert world.manager.get_circuit("claude").state is CircuitState.OPEN
    assert world.manager.provider_circuits["openai"].state is CircuitState.CLOSED
    assert world.manager.agent_circuits["builder"].state is CircuitState.CLOSED
    # A name alone: createCircuitBreaker('claude'), createCircuitBreaker('builder').
    for name, kind in (("xai", "provider"), ("builder", "agent"), ("error-analyzer", "agent")):
        create_circuit_breaker(name, runtime=world.runtime).force_open()
        assert world.manager.get_circuit_states()[f"{kind}:{name}"] is CircuitState.OPEN
    # And an agent of one's own, which has run.
    world.manager.execute_agent(AgentExecutionContext(agent_id="tester"), lambda agent: agent)
    assert world.manager.get_circuit("tester").name == "agent:tester"


# --- 4.4: fallback chain ---


def test_S1_15_secondary_then_cached_then_degraded_then_the_user(world):
    """Primary fails: the secondary; it fails: the cached response; it fails: degraded mode; it fails: the user is notified."""
    store, told = MemoryCache(), []

    def options(second: Any, *, ttl: float = 60.0, degraded: Any = None) -> ResilienceOptions:
        chain = FallbackChain(
            fallbacks=(FallbackStep(name="openai", operation=second),),
            cached=CachedAnswers(store=store, key="hi", ttl=ttl),
            degraded=degraded,
            notify=told.append,
        )
        return ResilienceOptions(fallback_chain=chain, skip_retry=True)

    down = failing(http(503))
    assert world.manager.execute(failing(None), options(down)) == "answer"
    assert world.manager.execute(down, options(lambda: "second")) == "second"
    assert world.manager.execute(down, options(down)) == "answer"
    assert [event.via for event in world.of(Degraded)] == ["cached"]
    world.clock.advance(61)
    assert world.manager.execute(down, options(down, degraded=lambda fault: "less")) == "less"
    assert told == []
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(down, options(down))
    assert [fault.code for fault in told] == ["SYS_FALLBACKS_EXHAUSTED"]


def test_S1_16_a_condition_looks_at_the_error_of_the_primary_and_each_step_is_announced(world):
    """withFallback: a step's condition gets the primary's error; each try is announced; failures go on to the next."""
    seen: list[Exception] = []

    def only_timeouts(error: Exception) -> bool:
        seen.append(error)
        return isinstance(error, TimeoutError)

    late, second, third, fourth = TimeoutError("late"), failing(http(429)), failing(None), failing(None)
    chain = FallbackChain(
        primary=failing(late),
        fallbacks=(
            FallbackStep(name="second", operation=second, condition=only_timeouts),
            # The second failed with a rate limit, and the primary did not.
            FallbackStep(name="third", operation=third, when="rate_limit"),
            FallbackStep(name="fourth", operation=fourth),
        ),
    )
    assert with_fallback(chain, runtime=world.runtime) == "answer"
    assert (seen, second.calls, third.calls, fourth.calls) == ([late], 1, 0, 1)
    assert [(event.to, event.from_) for event in world.of(Fallback)] == [("second", "primary"), ("fourth", "primary")]


def test_S1_16_degraded_is_announced_with_the_reason_and_else_the_primarys_error_is_raised(world):
    """withFallback: after the steps a degraded answer, announced with the primary's message; without one its error is raised."""
    step = FallbackStep(name="second", operation=failing(http(500)))
    first = ConnectionResetError("the line is cut")
    chain = FallbackChain(primary=failing(first), fallbacks=(step,), degraded=lambda fault: "less")
    assert with_fallback(chain, runtime=world.runtime) == "less"
    (degraded,) = world.of(Degraded)
    assert write_document(degraded) == {"type": "degraded", "reason": fault_of(first).message}
    with pytest.raises(ConnectionResetError) as raised:
        with_fallback(FallbackChain(primary=failing(first), fallbacks=(step,)), runtime=world.runtime)
    assert raised.value is first


def test_S1_16_the_degraded_answer_may_take_no_parameter(world):
    """degraded?: () => T: it needs no parameter, and may be async where the operation is."""
    assert (
        with_fallback(FallbackChain(primary=failing(http(503)), degraded=lambda: "less"), runtime=world.runtime)
        == "less"
    )

    async def down() -> str:
        raise http(503)

    chain = FallbackChain(primary=down, degraded=_soon)
    assert run(with_fallback(chain, runtime=world.runtime), clock=world.clock) == "soon"
    provider = FallbackChain.of_provider("claude", {}, degraded=lambda: "none")
    assert world.manager.execute(failing(http(503)), ResilienceOptions(fallback_chain=provider)) == "none"


@pytest.mark.parametrize("defect", [KeyError("x"), TypeError("x")], ids=str)
def test_S1_16_S1_19_a_defect_of_the_program_reaches_no_fallback(world, defect):
    """catch (primaryError): any error but a defect of the program itself, which a fallback would hide."""
    other = failing(None)
    chain = FallbackChain(primary=failing(defect), fallbacks=(FallbackStep(name="second", operation=other),))
    with pytest.raises(type(defect)):
        with_fallback(chain, runtime=world.runtime)
    ran: list[str] = []

    def execute(agent: str) -> str:
        ran.append(agent)
        raise defect

    with pytest.raises(type(defect)):
        world.manager.execute_agent("builder", execute)
    assert (other.calls, ran) == (0, ["builder"])


def test_S1_16_a_condition_that_raises_skips_its_step(world):
    """A condition is the program's own code: if it raises, its step is skipped, and the next one answers."""
    steps = (
        FallbackStep(name="odd", operation=failing(None), condition=lambda error: 1 / 0),
        FallbackStep(name="sound", operation=lambda: "sound", condition=lambda error: True),
    )
    chain = FallbackChain(primary=failing(http(503)), fallbacks=steps)
    assert with_fallback(chain, runtime=world.runtime) == "sound"


# --- 4.5: agent recovery patterns ---


def test_S1_17_the_context_of_an_agent_isolates_it(world):
    """AgentExecutionContext: the agent, its circuit, its retries, its time limit and who takes over."""
    context = AgentExecutionContext(
        agent_id="builder",
        circuit_breaker=CircuitBreakerConfig(failures=1, rate=None),
        retry=RetryConfig(attempts=2, backoff=Backoff(initial=1)),
        timeout=300,
        fallback_agents=("builder-simple",),
    )
    ran: list[str] = []

    def execute(agent: str) -> str:
        ran.append(agent)
        if agent == "builder":
            raise ConnectionResetError
        return agent

    assert world.manager.execute_agent(context, execute) == "builder-simple"
    assert ran == ["builder", "builder", "builder-simple"]
    states = world.manager.get_circuit_states()
    assert states["agent:builder"] is CircuitState.OPEN
    assert world.manager.execute_agent("reviewer", lambda agent: agent) == "reviewer"


def test_S1_17_the_context_limits_each_attempt_of_an_agent(world):
    """AgentExecutionContext.timeout: an attempt that takes longer is cancelled, retried, and then another agent takes over."""
    began: list[tuple[str, float]] = []
    stopped: list[float] = []

    async def execute(agent: str) -> str:
        began.append((agent, world.now))
        if agent == "builder":
            try:
                await asyncio.sleep(10_000)
            finally:
                stopped.append(world.now)
        return agent

    retry = RetryConfig(attempts=2, backoff=Backoff(initial=1))
    context = AgentExecutionContext(agent_id="builder", timeout=7, retry=retry, fallback_agents=("builder-simple",))
    assert run(world.manager.execute_agent(context, execute), clock=world.clock) == "builder-simple"
    assert (began, stopped) == ([("builder", 0.0), ("builder", 8.0), ("builder-simple", 15.0)], [7.0, 15.0])


def test_S1_18_complex_agents_hand_over_to_simple_ones():
    """Chains: builder → builder-simple → manual-mode; reviewer → reviewer-quick → skip-review; planner → planner-simple → no-plan."""
    expected = {
        "builder": ["builder-simple", "manual-mode"],
        "reviewer": ["reviewer-quick", "skip-review"],
        "planner": ["planner-simple", "no-plan"],
    }
    for first, others in expected.items():
        assert list(AGENT_CHAINS[first]) == others
        ran: list[str] = []

        def execute(agent: str, ran: list[str] = ran, last: str = others[-1]) -> str:
            ran.append(agent)
            if agent != last:
                raise ConnectionResetError
            return agent

        assert World().manager.execute_agent(first, execute) == others[-1]
        assert list(dict.fromkeys(ran)) == [first, *others]


def test_S1_19_an_open_circuit_hands_over_at_once_and_else_the_chain_is_walked(world):
    """executeWithRecovery: open circuit, then the fallback agent at once, else CircuitOpenError; a failure is counted once after the
    retries; then the chain; then the original error."""
    heard: list[dict[str, Any]] = []
    world.manager.on("agent-fallback", heard.append)
    original, ran = ConnectionResetError("builder"), []

    def execute(agent: str) -> str:
        ran.append(agent)
        raise original if agent == "builder" else TimeoutError(agent)

    with pytest.raises(ConnectionResetError) as raised:
        world.manager.execute_agent("builder", execute)
    assert raised.value is original
    assert ran == ["builder"] * 3 + ["builder-simple", "manual-mode"]
    assert heard == [
        {"type": "agent-fallback", "from": "builder", "to": "builder-simple"},
        {"type": "agent-fallback", "from": "builder", "to": "manual-mode"},
    ]
    # Three attempts, one failure.
    assert world.manager.get_circuit("agent:builder").failures == 1
    world.manager.get_circuit("agent:builder").force_open()
    ran.clear()
    assert world.manager.execute_agent("builder", lambda agent: ran.append(agent) or agent) == "builder-simple"
    assert ran == ["builder-simple"]
    with pytest.raises(CircuitOpenError, match="builder"):
        execute_with_recovery(
            AgentExecutionContext(agent_id="builder", fallback_agents=()), execute, runtime=world.runtime
        )
    assert execute_with_recovery("reviewer", lambda agent: agent, runtime=world.runtime) == "reviewer"


@pytest.mark.parametrize(
    "error", [http(401), http(400), ValueError("bad plan"), Exception("Tool execution failed"), KeyError("x")], ids=str
)
def test_S1_19_every_failed_run_of_an_agent_counts_whatever_the_reason(world, error):
    """catch { circuit.recordFailure() }: a run that ends in an error counts, also where the error is no sign of an outage."""
    context = AgentExecutionContext(agent_id="builder", fallback_agents=())
    for number in range(10):
        assert (number, world.manager.get_circuit("agent:builder").failures) == (number, number)
        with pytest.raises(type(error)):
            world.manager.execute_agent(context, lambda agent: failing(error)())
    assert world.manager.get_circuit("agent:builder").state is CircuitState.OPEN
    with pytest.raises(CircuitOpenError):
        world.manager.execute_agent(context, lambda agent: agent)
    # A provider's circuit counts what says that the provider is down, and its settings stay those of the profile.
    for _ in range(10):
        with pytest.raises(type(error)):
            world.manager.execute(failing(error), CLAUDE)
    assert world.manager.get_circuit("claude").state is CircuitState.CLOSED
    assert create_circuit_breaker("agent:builder", SPEC016, runtime=world.runtime).state is CircuitState.OPEN


# --- 4.6: timeouts ---


def test_S1_20_each_kind_of_operation_has_its_limit_and_the_error_names_it_in_ms():
    """Limits: 30000 ms, llm-call 60000, tool-execution 120000, file-read 5000, web-fetch 30000; the error says after how many ms."""
    limits = {"": 30, "llm-call": 60, "tool-execution": 120, "file-read": 5, "web-fetch": 30}
    for operation, seconds in limits.items():
        world = World()
        stopped: list[float] = []

        async def hang(world: World = world, stopped: list[float] = stopped) -> None:
            try:
                await asyncio.sleep(10_000)
            finally:
                stopped.append(world.now)

        options = ResilienceOptions(operation_type=operation, skip_retry=True)
        with pytest.raises(TimeoutError, match=f"Operation timed out after {seconds * 1000}ms"):
            run(world.manager.execute(hang, options), clock=world.clock)
        # It was really cancelled, at its limit.
        assert stopped == [seconds]


def test_S1_20_with_timeout_cancels_the_operation():
    """withTimeout raises TimeoutError('Operation timed out after 50ms'), and nothing runs on behind it."""
    world, ended = World(), []

    async def hang() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(world.now)

    with pytest.raises(TimeoutError, match="Operation timed out after 50ms"):
        run(with_timeout(hang, 50, runtime=world.runtime), clock=world.clock)
    assert ended == [pytest.approx(0.05)]
    assert run(with_timeout(_soon, 50, runtime=world.runtime), clock=world.clock) == "soon"
    with pytest.raises(InvalidError, match=r"with_timeout\.timeout_ms: expected a finite number > 0"):
        with_timeout(_soon, 0, runtime=world.runtime)


async def _soon() -> str:
    return "soon"


def test_S1_20_reading_a_file_with_the_bundled_tool_has_5_seconds(tmp_path):
    """file-read: 5000, also for the bundled tool that reads files: a pipe that nobody writes to is not waited for."""
    assert (_limit_of("spec016", read_file(tmp_path)), _limit_of("spec016", edit_file(tmp_path))) == (5, 120)
    assert (_limit_of("spec016", read_file(tmp_path, timeout=2)), _limit_of("bridge", read_file(tmp_path))) == (2, 10)


def _limit_of(profile: Any, bundled: Any) -> float:
    """Return after how many seconds a toolbox of the profile ends a bundled tool whose work hangs."""
    world, stopped = World(profile), []

    async def hang(**arguments: Any) -> None:
        try:
            await asyncio.sleep(10_000)
        finally:
            stopped.append(world.now)

    hanging = Tool(hang, msgspec.structs.replace(bundled.contract, retry=RetryConfig(attempts=1), input={}))
    with pytest.raises(HoldfastError):
        run(Toolbox([hanging], runtime=world.runtime).call(bundled.contract.name), clock=world.clock)
    return stopped[0]


def test_S1_20_a_limit_that_the_program_names_for_a_target_wins(tmp_path):
    """TimeoutConfig: a program changes a limit with `timeout` in [targets.NAME], which wins over the kind of operation."""
    (tmp_path / "holdfast.toml").write_text(
        'profile = "spec016"\n[targets.claude]\ntimeout = 2\n[targets.openai]\nattempts = 1\n'
        '[targets."tool:slow"]\ntimeout = 7\n[targets."tool:quick"]\nattempts = 1\n'
    )

    def took(operation: Any) -> float:
        world = World()
        load(tmp_path / "holdfast.toml").apply(world.runtime)
        stopped: list[float] = []

        async def hang() -> None:
            try:
                await asyncio.sleep(10_000)
            finally:
                stopped.append(world.now)

        with pytest.raises(TimeoutError):
            run(operation(world, hang), clock=world.clock)
        return stopped[0]

    def executed(**options: Any) -> Any:
        return lambda world, hang: world.manager.execute(hang, ResilienceOptions(skip_retry=True, **options))

    def called(name: str) -> Any:
        return lambda world, hang: Toolbox(
            [tool(effect="read", retry=RetryConfig(attempts=1), name=name)(hang)], runtime=world.runtime
        ).call(name)

    assert took(executed(provider="claude", operation_type="llm-call")) == 2
    assert took(executed(provider="claude", operation_type="llm-call", timeout=3)) == 3
    # A target that names something else keeps the limit of what is called there, or of the operation.
    assert took(executed(provider="openai")) == 60
    assert took(executed(provider="openai", operation_type="web-fetch")) == 30
    assert took(executed(provider="xai", operation_type="llm-call")) == 60
    assert (took(called("slow")), took(called("quick"))) == (7, 120)


# --- 4.7: recovery events ---


def test_S1_21_handlers_get_the_events_as_the_document_writes_them(world):
    """RecoveryEvent: retry, circuit-state-change, fallback, degraded, recovered, failed, with ClassifiedErrors and milliseconds."""
    heard: list[dict[str, Any]] = []
    names = ("retry", "circuit-state-change", "fallback", "degraded", "recovered", "failed")
    for name in names:
        world.manager.on(name, heard.append)
    assert {kind.__struct_config__.tag for kind in get_args(RecoveryEvent)} == {*names, "agent-fallback"}
    world.manager.execute(failing(http(503), None), CLAUDE)
    step = FallbackStep(name="openai", operation=failing(http(500)))
    chain = FallbackChain(fallbacks=(step,), degraded=lambda fault: "less")
    world.manager.execute(failing(http(503)), ResilienceOptions(skip_retry=True, fallback_chain=chain))
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(failing(http(503)), ResilienceOptions(retry=RetryConfig(attempts=1)))
    world.manager.get_circuit("claude").force_open()
    retry, recovered, fallback, degraded, failed, opened = heard
    assert (retry["type"], retry["attempt"], retry["delay"], retry["maxAttempts"]) == ("retry", 1, 1000.0, 3)
    assert retry["error"] == classify_error(http(503))
    assert (retry["error"]["category"], retry["error"]["isRetryable"]) == ("unavailable", True)
    assert recovered == {"type": "recovered", "after": 1000.0, "attempts": 2}
    assert fallback == {"type": "fallback", "from": "primary", "to": "openai"}
    assert (degraded["type"], degraded["reason"]) == ("degraded", retry["error"]["message"])
    assert (failed["type"], failed["exhausted"], failed["error"]["category"]) == ("failed", True, "unavailable")
    assert opened == {"type": "circuit-state-change", "circuit": "provider:claude", "from": "closed", "to": "open"}


def test_S1_21_in_other_profiles_handlers_get_records():
    """Without the profile, handlers get the typed records of Holdfast."""
    world, heard = World("holdfast"), []
    world.manager.on("retry", heard.append)
    world.manager.execute(failing(http(503), None), CLAUDE)
    assert [type(event) for event in heard] == [Retry]


# --- 4.8: the manager ---


def test_S1_22_the_manager_has_circuits_executions_metrics_and_events(world):
    """ResilienceManager: getCircuit, getCircuitStates, resetCircuit, resetAllCircuits, executeWithResilience, getMetrics, on."""
    manager = world.manager
    assert manager.execute(failing(None), CLAUDE) == "answer"
    assert manager.get_metrics().total_attempts == 1
    manager.get_circuit("claude").force_open()
    manager.get_circuit("claude").release()
    for _ in range(10):
        manager.get_circuit("agent:builder").record_failure()
    assert manager.get_circuit_states()["agent:builder"] is CircuitState.OPEN
    assert manager.reset_circuit("agent:builder")
    assert manager.get_circuit_states()["agent:builder"] is CircuitState.CLOSED
    assert not manager.reset_circuit("nobody")
    for name in ("a", "b"):
        for _ in range(10):
            manager.get_circuit(name).record_failure()
    assert manager.reset_all_circuits() >= 2
    assert set(manager.get_circuit_states().values()) == {CircuitState.CLOSED}
    heard: list[Any] = []
    subscription = manager.on("retry", heard.append)
    assert run(manager.execute_async(_soon, CLAUDE), clock=world.clock) == "soon"
    assert with_retry(failing(http(503), None), runtime=world.runtime) == "answer"
    subscription.cancel()
    assert with_retry(failing(http(503), None), runtime=world.runtime) == "answer"
    assert len(heard) == 1


def test_S1_23_the_metrics_count_what_their_names_say(world):
    """ResilienceMetrics: totalAttempts, successfulRetries, failedRetries, circuitOpens, fallbacksUsed, avgRecoveryTime."""
    manager = world.manager
    manager.execute(failing(None), CLAUDE)
    manager.execute(failing(http(503), None), CLAUDE)
    with pytest.raises(httpx2.HTTPStatusError):
        manager.execute(failing(http(503)), CLAUDE)
    chain = FallbackChain(fallbacks=(FallbackStep(name="openai", operation=failing(None)),))
    manager.execute(failing(http(401)), ResilienceOptions(provider="xai", fallback_chain=chain))
    for _ in range(10):
        manager.get_circuit("openai").record_failure()
    metrics = manager.get_metrics()
    assert isinstance(metrics, ResilienceMetrics)
    assert (metrics.total_attempts, metrics.successful_retries, metrics.failed_retries) == (8, 1, 1)
    assert (metrics.circuit_opens, metrics.fallbacks_used, metrics.avg_recovery_time) == (1, 1, 0.5)


# --- 5: questions ---


def test_S1_24_if_all_providers_fail_all_circuits_open_the_user_reads_it_and_may_try_again_by_hand():
    """All providers fail: their circuits open, the user sees a degraded message, and can try by hand later."""
    world, told = World(), []
    down, up = {"claude": True, "openai": True}, []

    def ask(name: str) -> Any:
        def call() -> str:
            if down[name]:
                raise http(503)
            up.append(name)
            return name

        return call

    def by_openai() -> str:
        return world.manager.execute(ask("openai"), ResilienceOptions(provider="openai", skip_retry=True))

    def answer() -> str:
        chain = FallbackChain.of_provider(
            "claude", {"openai": by_openai}, degraded=lambda fault: told.append(fault.for_user()) or told[-1]
        )
        return world.manager.execute(ask("claude"), ResilienceOptions(provider="claude", fallback_chain=chain))

    for _ in range(12):
        answer()
    states = world.manager.get_circuit_states()
    assert states["provider:claude"] is states["provider:openai"] is CircuitState.OPEN
    assert told[-1]
    assert "Traceback" not in told[-1]
    # By hand, later: the user resets the circuit and asks again, without waiting for the probe.
    down["claude"] = False
    assert answer() == told[-1]
    world.manager.reset_circuit("claude")
    assert answer() == "claude"


def test_S1_24_a_turn_that_failed_is_tried_again_by_hand():
    """A user may try again later: a turn that failed is run again with the same prompt, in the same session."""
    world = World()

    async def main() -> tuple[str, int]:
        store, model = MemoryStore(), Model("own/model", http(503), Reply(text="fine"))
        agent = Agent("helper", model, runtime=world.runtime)
        async with Session.open("s", store=store, runtime=world.runtime) as session:
            with pytest.raises(httpx2.HTTPStatusError):
                await agent.run("hello", session=session)
            reply = await agent.run("hello", session=session)
            return reply.text, model.calls

    text, calls = run(main(), clock=world.clock)
    assert (text, calls) == ("fine", 2)


def test_S1_25_RESILIENCE_ENABLED_false_makes_plain_calls(monkeypatch):
    """Retry can be switched off for debugging: RESILIENCE_ENABLED=false."""
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    world, ask = World(), failing(http(503))
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(ask, CLAUDE)
    assert (ask.calls, world.heard.events, world.now) == (1, [], 0)


@pytest.mark.parametrize("value", ["7", "Wed, 01 Jan 2025 00:00:07 GMT"])
def test_S1_26_the_delay_after_a_429_is_the_one_that_the_api_suggests(value):
    """Retry respects rate limits: after a 429 the delay is the one that the API suggests, exactly."""
    world = World()
    assert world.manager.execute(failing(http(429, **{"retry-after": value}), None), CLAUDE) == "answer"
    assert [event.delay for event in world.of(Retry)] == [pytest.approx(7.0)]
    assert world.now == pytest.approx(7.0)


def test_S1_26_the_suggested_delay_may_exceed_the_cap_of_the_curve_and_900_s_end_it():
    """The API's delay wins over the 30 s of the curve; above 900 s the call fails at once instead of sleeping."""
    world = World()
    assert world.manager.execute(failing(http(429, **{"retry-after": "900"}), None), CLAUDE) == "answer"
    assert world.now == 900.0
    ask = failing(http(429, **{"retry-after": "901"}), None)
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(ask, CLAUDE)
    assert (ask.calls, world.now) == (1, 900.0)


def test_S1_27_a_circuit_is_the_same_for_every_user_and_session(world):
    """Circuits are global: what fails for one user is open for all."""
    first, second = ResilienceManager(world.runtime), ResilienceManager(world.runtime)
    for _ in range(10):
        first.get_circuit("claude").record_failure()
    ask = failing(None)
    with pytest.raises(CircuitOpenError):
        second.execute(ask, CLAUDE)
    assert ask.calls == 0
    seen: list[CircuitState] = []
    thread = threading.Thread(target=lambda: seen.append(second.get_circuit("claude").state))
    thread.start()
    thread.join()
    assert seen == [CircuitState.OPEN]


# --- 6: acceptance criteria ---


def test_S1_28_a_503_of_the_real_client_is_retried_with_backoff_and_the_ui_counts():
    """Given a call to the Claude API that returns 503: it is retried, each time after a longer delay, and the UI shows
    "Retrying... (2/3)"."""
    world = World()
    client, provider = claude_client(world, "503, 503, ok")
    lines: list[str] = []
    with watch_live(lambda line: lines.append(line.text), world.runtime):
        assert run(message(client), clock=world.clock).content
    assert provider.counters.received == 3
    assert lines[:2] == ["Retrying... (2/3)", "Retrying... (3/3)"]
    assert [event.delay for event in world.of(Retry)] == [1.0, 2.0]
    assert len(world.of(Recovered)) == 1


def test_S1_29_five_errors_in_a_row_open_the_circuit_and_openai_answers():
    """Given five errors of the Claude API in a row: a new call finds the circuit open, fails at once, and OpenAI is asked."""
    world, claude, openai = World("holdfast"), failing(http(503)), failing(None)
    options = ResilienceOptions(provider="claude", circuit_breaker=PROVIDER, skip_retry=True)
    for _ in range(5):
        with pytest.raises(httpx2.HTTPStatusError):
            world.manager.execute(claude, options)
    assert world.manager.get_circuit("claude").state is CircuitState.OPEN
    began = world.now
    with pytest.raises(CircuitOpenError):
        world.manager.execute(claude, options)
    chain = FallbackChain.of_provider("claude", {"openai": openai})
    assert world.manager.execute(claude, ResilienceOptions(provider="claude", fallback_chain=chain)) == "answer"
    assert (claude.calls, openai.calls, world.now) == (5, 1, began)


def test_S1_30_after_30_seconds_the_next_call_is_a_probe_that_closes_it():
    """Given an open circuit: after 30 s it is half-open, the next call is a probe, and if it succeeds the circuit closes."""
    world = World("holdfast")
    options = ResilienceOptions(provider="claude", circuit_breaker=PROVIDER, skip_retry=True)
    for _ in range(5):
        with pytest.raises(httpx2.HTTPStatusError):
            world.manager.execute(failing(http(503)), options)
    world.clock.advance(30)
    assert world.manager.get_circuit("claude").state is CircuitState.HALF_OPEN
    assert world.manager.execute(failing(None), options) == "answer"
    assert world.manager.get_circuit("claude").state is CircuitState.CLOSED


def test_S1_31_a_builder_that_fails_is_followed_by_builder_simple_and_then_the_user_is_told():
    """Given a builder agent with an error: when its retries are used up, builder-simple is tried; if it fails, the user is notified."""
    world, ran, told = World(), [], []

    def agent(name: str, *, works: bool) -> FunctionAgent:
        async def work(prompt: str) -> str:
            ran.append(name)
            if not works:
                raise ConnectionResetError
            return f"{name} did it"

        return FunctionAgent(name, work)

    def roles(*, works: bool) -> Roles:
        agents = [agent("builder", works=False), agent("builder-simple", works=works)]
        # No settings: the profile names who stands behind a builder.
        return Roles(agents, {}, notify=told.append, runtime=world.runtime)

    reply = run(roles(works=True)["builder"].run("build"), clock=world.clock)
    assert (reply.text, ran) == ("builder-simple did it", ["builder"] * 3 + ["builder-simple"])
    assert told == []
    with pytest.raises(ConnectionResetError):
        run(roles(works=False)["builder"].run("build"), clock=world.clock)
    assert len(told) == len(world.of(UserNotified)) == 1


def test_S1_32_a_tool_call_that_takes_over_120_seconds_is_cancelled_and_is_retryable():
    """Given a tool call: over 120 s it is cancelled with a TimeoutError and classified as retryable."""
    world, began, stopped = World(), [], []

    @tool(effect="read")
    async def slow() -> str:
        began.append(world.now)
        try:
            await asyncio.sleep(1000)
        finally:
            stopped.append(world.now)
        return "late"

    answer = run(Toolbox([slow], runtime=world.runtime).answer("slow", {}), clock=world.clock)
    assert [end - start for start, end in zip(began, stopped, strict=True)] == [120.0] * 3
    assert (answer.is_error, answer.fault.code) == (True, "TOOL_TIMEOUT")
    retried = world.of(Retry)
    assert len(retried) == 2
    document = write_document(retried[0])["error"]
    assert (document["category"], document["isRetryable"]) == ("timeout", True)
    assert document["message"] == "Operation timed out after 120000ms"


# --- what the project of the document adds ---


@pytest.mark.parametrize(
    ("category", "retryable", "retries"),
    [
        ("rate_limit", True, 5), ("timeout", True, 3), ("network", True, 3), ("unavailable", True, 3),
        ("auth", False, 0), ("invalid", False, 0), ("not_found", False, 0), ("overflow", False, 0),
        ("tool_error", True, 2), ("agent_crash", True, 2), ("validation", False, 0), ("unknown", True, 1),
    ],
)  # fmt: skip
def test_N1_1_each_category_has_its_default_and_no_delay_that_would_replace_the_backoff(category, retryable, retries):
    """Defaults by category: whether it is retryable and how often."""
    from holdfast.views import category as view  # noqa: PLC0415

    document = view.write(view.of(ErrorCategory(category)))
    assert (document["category"], document["isRetryable"], document["maxRetries"]) == (category, retryable, retries)
    assert document["suggestedDelay"] == 0


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (400, "invalid"), (401, "auth"), (403, "auth"), (404, "not_found"), (408, "timeout"), (429, "rate_limit"),
        (500, "unavailable"), (502, "unavailable"), (503, "unavailable"), (504, "timeout"),
    ],
)  # fmt: skip
def test_N1_2_the_status_decides_before_any_word_also_from_the_cause(status, category):
    """The HTTP status is looked for on the error, its response and its causes, and wins over the words of the message."""
    assert classify_error(http(status))["category"] == category
    error = http(status)
    error.args = ("fetch failed, process died",)
    assert classify_error(error)["category"] == category
    wrapper = RuntimeError("the call failed")
    wrapper.__cause__ = error
    assert classify_error(wrapper)["category"] == category


class Answered(Exception):
    """An error of somebody's client, with the status in one of the places where clients put it."""


@pytest.mark.parametrize("place", ["status", "statusCode", "status_code"])
@pytest.mark.parametrize("on", ["the error", "its response", "its cause"])
def test_N1_2_the_status_is_looked_for_where_clients_put_it(place, on):
    """The status is looked up on status and statusCode, of the error, its response, and its causes."""
    error = Answered("process died")
    setattr(error, *(("response", SimpleNamespace(**{place: 404})) if on == "its response" else (place, 404)))
    if on == "its cause":
        cause, error = error, RuntimeError("process died")
        error.__cause__ = cause
    assert classify_error(error)["category"] == "not_found"


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("rate limit", "rate_limit"), ("too many requests", "rate_limit"), ("quota exceeded", "rate_limit"),
        ("claude overloaded", "unavailable"), ("timeout", "timeout"), ("timed out", "timeout"),
        ("deadline exceeded", "timeout"), ("ETIMEDOUT", "timeout"), ("network error", "network"), ("ECONNRESET", "network"),
        ("ECONNREFUSED", "network"), ("ENOTFOUND", "network"), ("socket hang up", "network"),
        ("connection refused", "network"), ("fetch failed", "network"), ("unauthorized", "auth"), ("authentication", "auth"),
        ("invalid api key", "auth"), ("permission denied", "auth"), ("context length", "overflow"),
        ("context window", "overflow"), ("context limit", "overflow"), ("max tokens", "overflow"), ("token limit", "overflow"),
        ("prompt is too long", "overflow"), ("tool failed", "tool_error"), ("tool error", "tool_error"),
        ("execution failed", "tool_error"), ("process died", "agent_crash"), ("process crashed", "agent_crash"),
        ("process killed", "agent_crash"), ("SIGTERM", "agent_crash"), ("SIGKILL", "agent_crash"),
        ("validation failed", "validation"), ("validation error", "validation"), ("validation hook failed", "validation"),
        ("invalid input", "invalid"),
        ("invalid request", "invalid"), ("invalid parameter", "invalid"),
    ],
)  # fmt: skip
def test_N1_3_words_of_foreign_errors_name_the_category(text, category):
    """At the boundary the words of a message name the category, where there is no status."""
    assert classify_error(text)["category"] == category
    assert classify_error(ConnectionError(text) if category == "network" else text.upper())["category"] == category


@pytest.mark.parametrize("name", ["retry-after", "Retry-After", "RETRY-AFTER"])
@pytest.mark.parametrize("value", ["7", "Wed, 01 Jan 2025 00:00:07 GMT"])
def test_N1_4_retry_after_is_read_in_any_case_as_seconds_or_as_a_date(name, value):
    """Retry-After: seconds or an HTTP date, whatever the case of the header's name."""
    world = World()
    world.manager.execute(failing(http(429, **{name: value}), None), CLAUDE)
    assert world.now == pytest.approx(7.0)


def test_N1_5_an_abort_signal_is_checked_before_each_attempt_and_the_outcome_has_every_attempt(world):
    """A signal ends the retries; the safe variant returns the value or the errors of all attempts."""
    stop = threading.Event()

    def ask() -> str:
        stop.set()
        raise http(503)

    with pytest.raises(HoldfastError) as raised:
        world.manager.execute(ask, ResilienceOptions(abort=stop))
    assert raised.value.fault.code == "SYS_CANCELLED"
    outcome = world.manager.outcome(failing(http(503), http(500), None), CLAUDE)
    assert (isinstance(outcome, Ok), [attempt.code for attempt in outcome.attempts][:2]) == (
        True,
        ["PROVIDER_UNAVAILABLE", "PROVIDER_INTERNAL_ERROR"],
    )
    assert world.of(Retry)[-1].operation
    assert world.of(Retry)[-1].max_attempts == 3


def test_N1_6_failures_that_are_older_than_a_minute_do_not_open_it_and_one_probe_is_let_through(world):
    """Failures count for 60 s; one call probes a half-open circuit; any failure there opens it again; a state can be forced."""
    circuit = world.manager.get_circuit("provider:claude")
    for _ in range(9):
        circuit.record_failure()
    circuit.record_success()
    world.clock.advance(61)
    for _ in range(5):
        circuit.record_failure()
    assert circuit.state is CircuitState.CLOSED
    circuit.record_success()
    for _ in range(6):
        circuit.record_failure()
    assert circuit.state is CircuitState.OPEN
    world.clock.advance(30)
    rejected: list[bool] = []

    def probe() -> str:
        try:
            circuit.execute(failing(None))
        except CircuitOpenError:
            rejected.append(True)
        raise http(503)

    with pytest.raises(httpx2.HTTPStatusError):
        circuit.execute(probe)
    assert (rejected, circuit.state) == ([True], CircuitState.OPEN)
    metrics = circuit.metrics()
    assert metrics.total_calls >= metrics.failures > 0
    assert {"gemini"} <= set(PROVIDERS)
    assert {"scout", "architect"} <= set(AGENTS)


def test_N1_7_the_chains_of_providers_and_agents_are_used(world):
    """Spawning an agent has 300 s. Providers: claude → openai, gemini, cached, and so on; architect and scout have understudies too."""
    assert spec016.timeout("agent-spawn") == 300
    asked: list[str] = []

    def down(name: str) -> Any:
        def ask() -> str:
            asked.append(name)
            raise http(503)

        return ask

    store = MemoryCache()
    # xai, which only the document itself names, comes last.
    assert PROVIDER_CHAINS == {
        "claude": ("openai", "gemini", "xai", "cached"),
        "openai": ("claude", "gemini", "xai", "cached"),
        "gemini": ("claude", "openai", "xai", "cached"),
        "xai": ("claude", "openai", "gemini", "cached"),
    }
    assert set(PROVIDER_CHAINS) == set(PROVIDERS)
    for provider, order in PROVIDER_CHAINS.items():
        asked.clear()
        cached = CachedAnswers(store=store, key=provider)
        # In any order: the table knows who is next.
        others = {name: down(name) for name in sorted(order, reverse=True) if name != "cached"}
        chain = FallbackChain.of_provider(provider, others, cached=cached)
        options = ResilienceOptions(provider=provider, fallback_chain=chain, skip_retry=True)
        assert world.manager.execute(lambda provider=provider: f"by {provider}", options) == f"by {provider}"
        outcome = world.manager.outcome(down(provider), options)
        assert (outcome.unwrap(), outcome.via) == (f"by {provider}", "cached")
        assert (*asked, "cached") == (provider, *order)
    assert (AGENT_CHAINS["architect"], AGENT_CHAINS["scout"]) == (
        ("architect-simple", "skip-design"),
        ("scout-quick", "skip-exploration"),
    )
    with pytest.raises(HoldfastError, match="openai"):
        FallbackChain.of_provider("claude", {"mistral": down("mistral")})


def test_N1_8_an_execution_has_all_the_options_and_errors_are_counted_by_category(world):
    """Options: a name, a provider, an agent, retries, a circuit, a limit, a kind, a chain, what to skip, a signal."""
    options = ResilienceOptions(
        operation_name="summary",
        provider="claude",
        agent="builder",
        retry=RetryConfig(attempts=2, backoff=Backoff(initial=1)),
        timeout=5,
        operation_type="llm-call",
        skip_circuit_breaker=True,
    )
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(failing(http(503)), options)
    assert [event.operation for event in world.of(Retry)] == ["summary"]
    assert world.manager.get_circuit("claude").failures == 0
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(failing(http(401)), ResilienceOptions(skip_retry=True))
    assert world.manager.get_metrics().errors_by_category == {"unavailable": 2, "auth": 1}


def test_N1_9_the_defects_of_that_implementation_are_not_here(world):
    """Its delays replaced the backoff, it retried an open circuit, it never said recovered or exhausted, and it counted wrongly."""
    heard: dict[str, list[Any]] = {"retry": [], "recovered": [], "failed": []}
    for name, events in heard.items():
        world.manager.on(name, events.append)
    world.manager.execute(failing(http(503), http(503), None), CLAUDE)
    assert [event["delay"] for event in heard["retry"]] == [1000.0, 2000.0]
    assert [event["attempts"] for event in heard["recovered"]] == [3]
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(failing(http(503)), CLAUDE)
    assert heard["failed"][-1]["exhausted"]
    world.manager.get_circuit("claude").force_open()
    retries = len(heard["retry"])
    with pytest.raises(CircuitOpenError):
        world.manager.execute(failing(None), CLAUDE)
    assert len(heard["retry"]) == retries
    world.manager.execute(failing(None), ResilienceOptions(provider="openai"))
    assert world.manager.get_metrics().successful_retries == 1
    assert classify_error(asyncio.CancelledError())["category"] == "cancelled"


def test_N1_10_hooks_show_as_badges_toasts_and_a_history_beside_the_recoveries(world):
    """Hook events: triggered, passed, failed, corrected, with badges, toasts and a history; recoveries appear in the same place, all
    within 200 ms."""

    def spaced(checked: Any) -> Any:
        before = checked.call.arguments
        text = before["text"]
        if text == "bad":
            return "it cannot be mended"
        return (
            None
            if "=" not in text or " = " in text
            else Correction(before=before, after={**before, "text": text.replace("=", " = ")})
        )

    given: list[str] = []

    @tool(effect="idempotent")
    def write_text(file_path: str, text: str) -> str:
        given.append(text)
        return "written"

    calls = tuple(
        ToolCall(id=str(place), name="write_text", arguments={"file_path": "a.py", "text": text})
        for place, text in enumerate(("x=1", "ok", "bad"))
    )
    model = Model("own/model", Reply(calls=calls), Reply(text="fine"))
    checks = [
        Validator(name="style", check=spaced, on="PreToolUse"),
        Validator(name="late", check=lambda checked: None, on="PreToolUse"),
    ]
    agent = Agent("writer", model, [write_text], hooks=Hooks(validators=checks), runtime=world.runtime)
    changes: list[Any] = []
    began = time.perf_counter()
    with watch_hooks(changes.append, world.runtime):
        run(agent.run("write"), clock=world.clock)
        world.manager.execute(failing(http(503), None), CLAUDE)
    assert time.perf_counter() - began < 5
    assert sorted(given) == ["ok", "x = 1"]
    by_call = {
        call: [
            change.badge
            for change in changes
            if isinstance(change.event, HookEvent) and change.event.call.endswith(call)
        ]
        for call in {change.event.call for change in changes if isinstance(change.event, HookEvent)}
    }
    assert {badge for badges in by_call.values() for badge in badges} == set(HookBadge)
    documents = [write_document(change.event) for change in changes]
    kinds = {document["type"] for document in documents}
    assert {"hook_triggered", "hook_passed", "hook_failed", "hook_corrected", "retry", "recovered"} <= kinds
    (corrected,) = (document for document in documents if document["type"] == "hook_corrected")
    assert (corrected["hookType"], corrected["validator"], corrected["filePath"], corrected["exitCode"]) == (
        "PreToolUse",
        "style",
        "a.py",
        2,
    )
    assert corrected["correction"]["after"]["text"] == "x = 1"
    toasts = {change.toast.badge: change.toast.seconds for change in changes if change.toast is not None}
    assert toasts == {HookBadge.PASSED: 2.0, HookBadge.CORRECTED: 5.0, HookBadge.FAILED: None}
    # Delivered while it happens: the event reaches its reader before the emitter goes on.
    seen: list[float] = []
    with watch_hooks(lambda change: seen.append(time.perf_counter()), world.runtime):
        sent = time.perf_counter()
        world.runtime.bus.emit(HookEvent(at=0.0, what="passed", hook="Stop", validator="style"))
    assert seen[0] - sent < 0.2
