"""The five scenarios of document 001, as they are written there (S1-28 to S1-32), with plain callables."""

from __future__ import annotations

import asyncio

import pytest
from recover_kit import Always, Flaky, World

from holdfast import CircuitOpenError, DeadlineError, Fault, Policy, fault_of
from holdfast.events import CircuitState, CircuitStateChange, Fallback, Recovered, Retry
from holdfast.testing import ScriptedHTTPError, script


class Claude:
    """A provider that fails as its script says, and counts its calls."""

    def __init__(self, steps: str) -> None:
        self.script = script(steps)

    async def __call__(self, question: str) -> str:
        return await self.script.acall(question)

    @property
    def calls(self) -> int:
        return self.script.calls


def unavailable() -> ScriptedHTTPError:
    return ScriptedHTTPError(503)


def test_S1_28_retry_on_a_transient_error() -> None:
    # Given a call to Claude API
    world = World()
    claude = Claude("503, 503, ok:hello")
    ask = world.recover("claude")(claude)

    # When the API returns 503
    answer = world.run(ask("hi"))

    # Then it is retried up to 3 times, each with exponential backoff
    assert answer == "hello"
    assert claude.calls == 3
    assert world.waits() == [1, 2]
    # And the UI shows "Retrying... (2/3)"
    assert [event.text for event in world.of(Retry)] == ["Retrying... (2/3)", "Retrying... (3/3)"]
    assert len(world.of(Recovered)) == 1


def test_S1_28_it_is_retried_three_times_and_no_more() -> None:
    world = World()
    claude = Claude("503*9")
    with pytest.raises(ScriptedHTTPError):
        world.run(world.recover("claude")(claude)("hi"))
    assert claude.calls == 3


@pytest.mark.parametrize("openai_is_configured", [True, False])
def test_S1_29_the_circuit_opens_after_repeated_failures(openai_is_configured: bool) -> None:
    # Given 5 consecutive errors from Claude
    world = World()
    claude = Claude("503*5, ok:never called")
    ask = world.recover("claude", Policy(attempts=1))(claude)
    for _ in range(5):
        with pytest.raises(ScriptedHTTPError):
            world.run(ask("hi"))
    assert world.circuit_state("provider:claude") is CircuitState.OPEN
    if openai_is_configured:
        ask.fallback(name="openai")(Claude("ok:from openai"))

    # When a new call is made
    before = world.now
    if openai_is_configured:
        # Then it fails immediately, and the fallback is attempted
        assert world.run(ask("hi")) == "from openai"
        assert [event.to for event in world.of(Fallback)] == ["openai"]
    else:
        with pytest.raises(CircuitOpenError):
            world.run(ask("hi"))
    assert claude.calls == 5
    assert world.now == before


def test_S1_30_the_circuit_recovers() -> None:
    # Given an open circuit
    world = World()
    claude = Claude("503*5, ok:back")
    ask = world.recover("claude", Policy(attempts=1))(claude)
    for _ in range(5):
        with pytest.raises(ScriptedHTTPError):
            world.run(ask("hi"))

    # When 30 seconds pass
    world.clock.advance(29.999)
    with pytest.raises(CircuitOpenError):
        world.run(ask("hi"))
    world.clock.advance(0.001)

    # Then it becomes half-open, the next call is a probe, and its success closes the circuit
    assert world.circuit_state("provider:claude") is CircuitState.HALF_OPEN
    assert world.run(ask("hi")) == "back"
    assert world.circuit_state("provider:claude") is CircuitState.CLOSED
    assert [event.to for event in world.of(CircuitStateChange)] == ["open", "half-open", "closed"]


@pytest.mark.parametrize("simple_works", [True, False])
def test_S1_31_an_agent_falls_back_to_a_simpler_one(simple_works: bool) -> None:
    # Given the builder agent fails
    world = World()
    builder = Always(unavailable)
    notified: list[Fault] = []
    build = world.recover("agent:builder", Policy(counts="operation"))(builder.acall)

    @build.fallback(name="builder-simple")
    async def simple(task: str) -> str:
        if not simple_works:
            raise unavailable()
        return f"a simple {task}"

    build.notify(notified.append)

    # When its retries are exhausted, then builder-simple is tried
    if simple_works:
        assert world.run(build("house")) == "a simple house"
        assert notified == []
    else:
        # And if it fails, the user is notified; what surfaces is the builder's own error
        with pytest.raises(ScriptedHTTPError) as failed:
            world.run(build("house"))
        assert failed.value is builder.raised[-1]
        assert [fault.code for fault in notified] == ["SYS_FALLBACKS_EXHAUSTED"]
        assert notified[0].for_user()
    assert builder.calls == 3
    assert [event.to for event in world.of(Fallback)] == ["builder-simple"]
    assert world.state("agent:builder")._breaker.failures == 1


def test_S1_32_a_tool_that_takes_too_long_is_cancelled() -> None:
    # Given a tool call
    world = World()
    cancelled: list[float] = []

    async def bash() -> None:
        try:
            await Flaky(takes=1000).acall()
        except asyncio.CancelledError:
            cancelled.append(world.now)
            raise

    # When it takes more than 120 seconds
    with pytest.raises(TimeoutError) as failed:
        world.run(world.recover("tool:bash", Policy(timeout=120, patience=None)).call(bash))

    # Then it is cancelled with a TimeoutError, which is classified as retryable
    assert cancelled == [120]
    assert isinstance(failed.value, DeadlineError)
    assert "120 s" in str(failed.value)
    assert fault_of(failed.value).category == "timeout"
    assert Fault.of(fault_of(failed.value).code).retryable
