"""Agents behind the manager: one outcome per operation, and who takes over (S1-17 to S1-19)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Backoff, CircuitOpenError, InvalidError, Runtime, Tries
from holdfast.events import AgentFallback
from holdfast.manager import AgentExecutionContext, ResilienceManager
from holdfast.profiles import AGENT_CHAINS, PROVIDER_CHAINS
from holdfast.testing import Capture, Midpoint, VirtualClock, run

BUILDER = AgentExecutionContext(agent_id="builder", retry=Tries(attempts=3, backoff=Backoff(initial=1, jitter=0)))


class Agents:
    """Agents of which some are down; keeps who was asked."""

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.asked: list[str] = []

    def __call__(self, name: str) -> str:
        self.asked.append(name)
        if name in self.down:
            raise ConnectionResetError(name)
        return f"by {name}"

    async def later(self, name: str) -> str:
        await asyncio.sleep(1)
        return self(name)


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(clock=VirtualClock(), rng=Midpoint(), enabled=True)


@pytest.fixture
def manager(runtime) -> ResilienceManager:
    return ResilienceManager(runtime)


@pytest.fixture
def heard(runtime) -> Capture:
    capture = Capture()
    runtime.on(capture)
    return capture


def test_S1_18_N1_7_the_documents_chains():
    assert AGENT_CHAINS == {
        "builder": ("builder-simple", "manual-mode"),
        "reviewer": ("reviewer-quick", "skip-review"),
        "planner": ("planner-simple", "no-plan"),
        "architect": ("architect-simple", "skip-design"),
        "scout": ("scout-quick", "skip-exploration"),
    }
    assert PROVIDER_CHAINS == {
        "claude": ("openai", "gemini", "cached"),
        "openai": ("claude", "gemini", "cached"),
        "gemini": ("claude", "openai", "cached"),
    }


def test_S1_19_an_agent_that_answers_needs_nobody(manager, heard):
    agents = Agents()
    assert manager.execute_agent(BUILDER, agents) == "by builder"
    assert agents.asked == ["builder"]
    assert heard.of(AgentFallback) == []


def test_S1_19_retries_first_then_the_chain_with_an_event_for_each(manager, heard):
    agents = Agents("builder", "builder-simple")
    assert manager.execute_agent(BUILDER, agents) == "by manual-mode"
    assert agents.asked == ["builder"] * 3 + ["builder-simple", "manual-mode"]
    told = [(event.from_, event.to) for event in heard.of(AgentFallback)]
    assert told == [("builder", "builder-simple"), ("builder", "manual-mode")]
    assert "fallback" not in heard.types
    assert "failed" not in heard.types
    heard.assert_recovered()


def test_S1_19_a_failed_operation_counts_once_however_often_it_was_tried(manager):
    for _ in range(4):
        manager.execute_agent(BUILDER, Agents("builder"))
    circuit = manager.get_circuit("agent:builder")
    assert (circuit.state, circuit.failures) == ("closed", 4)
    manager.execute_agent(BUILDER, Agents("builder"))
    assert (circuit.state, circuit.failures) == ("open", 5)


def test_S1_19_while_the_circuit_is_open_the_next_agent_takes_over_at_once(manager, runtime):
    manager.get_circuit("agent:builder").force_open()
    agents = Agents()
    assert manager.execute_agent(BUILDER, agents) == "by builder-simple"
    assert agents.asked == ["builder-simple"]
    assert runtime.clock.monotonic() == 0


def test_S1_19_with_nobody_to_take_over_an_open_circuit_names_the_agent(manager):
    manager.get_circuit("agent:builder").force_open()
    alone = AgentExecutionContext(agent_id="builder", fallback_agents=())
    with pytest.raises(CircuitOpenError) as caught:
        manager.execute_agent(alone, Agents())
    assert caught.value.circuit == "agent:builder"


def test_S1_19_when_all_fail_the_first_error_is_raised_and_somebody_is_told(manager, heard):
    told = []
    context = AgentExecutionContext(agent_id="builder", retry=Tries(attempts=1), notify=told.append)
    with pytest.raises(ConnectionResetError, match=r"^builder"):
        manager.execute_agent(context, Agents("builder", "builder-simple", "manual-mode"))
    assert [fault.code for fault in told] == ["SYS_FALLBACKS_EXHAUSTED"]
    assert told[0].context["steps"] == ["builder-simple", "manual-mode"]
    assert heard.types.count("failed") == 1


def test_S1_17_own_agents_take_over_where_they_are_named(manager):
    agents = Agents("mine")
    context = AgentExecutionContext(agent_id="mine", retry=Tries(attempts=1), fallback_agents=("other",))
    assert manager.execute_agent(context, agents) == "by other"


def test_S1_17_an_agent_has_its_limit_and_the_next_takes_over_after_it(manager, runtime):
    async def agents(name: str) -> str:
        if name == "builder":
            await asyncio.sleep(1000)
        return f"by {name}"

    context = AgentExecutionContext(agent_id="builder", retry=Tries(attempts=1), timeout=5)
    assert run(manager.execute_agent(context, agents), clock=runtime.clock) == "by builder-simple"
    assert runtime.clock.monotonic() == pytest.approx(5)


def test_S1_19_async_agents_do_the_same(manager, runtime, heard):
    agents = Agents("builder")
    assert run(manager.execute_agent(BUILDER, agents.later), clock=runtime.clock) == "by builder-simple"
    assert agents.asked == ["builder"] * 3 + ["builder-simple"]
    assert [event.to for event in heard.of(AgentFallback)] == ["builder-simple"]
    assert manager.get_metrics().fallbacks_used == 1
    assert manager.get_metrics().total_attempts == 4


def test_S1_25_switched_off_nobody_takes_over(manager, runtime):
    runtime.enabled = False
    agents = Agents("builder")
    with pytest.raises(ConnectionResetError):
        manager.execute_agent(BUILDER, agents)
    assert agents.asked == ["builder"]


def test_an_agent_needs_a_name():
    with pytest.raises(InvalidError, match=r"context.agent_id: expected the name of an agent, got ''"):
        AgentExecutionContext(agent_id="")
