"""Agents behind the manager: one outcome per operation, and which agent takes over (S1-17 to S1-19)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Backoff, CircuitOpenError, InvalidError, Tries, fault_of
from holdfast.events import AgentFallback
from holdfast.manager import AgentExecutionContext
from holdfast.profiles import AGENT_CHAINS, PROVIDER_CHAINS
from holdfast.testing import Capture, run

BUILDER = AgentExecutionContext(agent_id="builder", retry=Tries(attempts=3, backoff=Backoff(initial=1, jitter=0)))


class Agents:
    """Agents of which some are down; records which were called."""

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.called: list[str] = []

    def __call__(self, name: str) -> str:
        self.called.append(name)
        if name in self.down:
            raise ConnectionResetError(name)
        return f"by {name}"

    async def later(self, name: str) -> str:
        await asyncio.sleep(1)
        return self(name)


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
        "claude": ("openai", "gemini", "xai", "cached"),
        "openai": ("claude", "gemini", "xai", "cached"),
        "gemini": ("claude", "openai", "xai", "cached"),
        "xai": ("claude", "openai", "gemini", "cached"),
    }


def test_S1_19_an_agent_that_answers_needs_no_other(manager, heard):
    agents = Agents()
    assert manager.execute_agent(BUILDER, agents) == "by builder"
    assert agents.called == ["builder"]
    assert heard.of(AgentFallback) == []


def test_S1_19_retries_first_then_the_chain_with_an_event_for_each(manager, heard):
    agents = Agents("builder", "builder-simple")
    assert manager.execute_agent(BUILDER, agents) == "by manual-mode"
    assert agents.called == ["builder"] * 3 + ["builder-simple", "manual-mode"]
    taken_over = [(event.from_, event.to) for event in heard.of(AgentFallback)]
    assert taken_over == [("builder", "builder-simple"), ("builder", "manual-mode")]
    assert "fallback" not in heard.types
    assert "failed" not in heard.types
    heard.assert_recovered()


def test_S1_19_a_failed_operation_counts_once_however_many_attempts_it_took(manager):
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
    assert agents.called == ["builder-simple"]
    assert runtime.clock.monotonic() == 0


def test_S1_19_without_other_agents_an_open_circuit_names_the_agent(manager):
    manager.get_circuit("agent:builder").force_open()
    alone = AgentExecutionContext(agent_id="builder", fallback_agents=())
    with pytest.raises(CircuitOpenError) as caught:
        manager.execute_agent(alone, Agents())
    assert caught.value.circuit == "agent:builder"


def test_S1_19_when_all_fail_the_first_error_is_raised_and_notify_is_called(manager, heard):
    notified = []
    context = AgentExecutionContext(agent_id="builder", retry=Tries(attempts=1), notify=notified.append)
    with pytest.raises(ConnectionResetError, match=r"^builder"):
        manager.execute_agent(context, Agents("builder", "builder-simple", "manual-mode"))
    assert [fault.code for fault in notified] == ["SYS_FALLBACKS_EXHAUSTED"]
    assert notified[0].context["steps"] == ["builder-simple", "manual-mode"]
    assert heard.types.count("failed") == 1


def test_S1_17_named_agents_take_over(manager):
    agents = Agents("mine")
    context = AgentExecutionContext(agent_id="mine", retry=Tries(attempts=1), fallback_agents=("other",))
    assert manager.execute_agent(context, agents) == "by other"


def test_S1_17_the_next_agent_takes_over_at_the_time_limit(manager, runtime):
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
    assert agents.called == ["builder"] * 3 + ["builder-simple"]
    assert [event.to for event in heard.of(AgentFallback)] == ["builder-simple"]
    assert manager.get_metrics().fallbacks_used == 1
    assert manager.get_metrics().total_attempts == 4


def test_S1_25_switched_off_no_agent_takes_over(manager, runtime):
    runtime.enabled = False
    agents = Agents("builder")
    with pytest.raises(ConnectionResetError):
        manager.execute_agent(BUILDER, agents)
    assert agents.called == ["builder"]


def test_an_agent_needs_a_name():
    with pytest.raises(InvalidError, match=r"context.agent_id: expected the name of an agent, got ''"):
        AgentExecutionContext(agent_id="")


@pytest.mark.parametrize("context", ["reviewer", AgentExecutionContext(agent_id="reviewer")])
@pytest.mark.parametrize("form", ["sync", "async"])
def test_FR29_an_agent_that_the_program_does_not_have_hides_no_error(manager, runtime, context, form):
    def fails() -> None:
        raise ConnectionResetError("the real error")

    known = {"reviewer": fails}

    async def review(name: str) -> None:
        known[name]()

    with pytest.raises(ConnectionResetError, match="the real error") as failed:
        if form == "async":
            run(manager.execute_agent(context, review), clock=runtime.clock)
        else:
            manager.execute_agent(context, lambda name: known[name]())
    fault = fault_of(failed.value)
    assert fault.code == "CONN_RESET"
    assert [step["step"] for step in fault.context["fallbacks"]] == ["reviewer-quick", "skip-review"]
    assert any("reviewer-quick" in note for note in failed.value.__notes__)


def test_FR29_a_defect_of_the_first_agent_is_still_raised_at_once(manager):
    called = []

    def run_agent(name: str) -> None:
        called.append(name)
        raise AttributeError(name)

    with pytest.raises(AttributeError, match="reviewer"):
        manager.execute_agent("reviewer", run_agent)
    assert called == ["reviewer"]


def test_an_agent_is_named_or_described(manager):
    with pytest.raises(InvalidError, match=r"execute_agent\.context: expected an AgentExecutionContext"):
        manager.execute_agent(5, str)
    with pytest.raises(InvalidError, match="agent_id"):
        manager.execute_agent("", str)
