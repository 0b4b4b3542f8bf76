"""The manager, profiles and settings as a type checker sees them. Checked by mypy strict and basedpyright, never run."""

from __future__ import annotations

import threading
from typing import assert_type

from holdfast import Circuit, Ok, Outcome, Policy
from holdfast.config import Config, LiveConfig, load
from holdfast.events import CircuitState, Event
from holdfast.manager import AgentExecutionContext, ExecutionOptions, ResilienceManager, ResilienceMetrics
from holdfast.profiles import phase, policy_of, spec016


def ask() -> str:
    return "hello"


async def ask_later() -> int:
    return 1


async def run_agent(name: str) -> list[str]:
    return [name]


async def executions_keep_their_types(manager: ResilienceManager) -> None:
    options = ExecutionOptions(provider="claude", abort=threading.Event(), circuit_breaker=Circuit())
    assert_type(manager.execute(ask, options), str)
    assert_type(await manager.execute(ask_later), int)
    assert_type(await manager.execute_async(lambda: ask_later()), int)  # noqa: PLW0108
    assert_type(manager.outcome(ask), Outcome[str])
    assert_type(await manager.outcome_async(ask_later), Outcome[int])
    assert_type(manager.execute_agent(AgentExecutionContext(agent_id="builder"), len), int)
    assert_type(await manager.execute_agent(AgentExecutionContext(agent_id="builder"), run_agent), list[str])
    async for event in manager.events():
        assert_type(event, Event)


def circuits_and_counts(manager: ResilienceManager) -> None:
    circuit = manager.get_circuit("claude")
    assert_type(circuit.state, CircuitState)
    assert_type(circuit.execute(int, "3"), int)
    assert_type(manager.get_circuit_states(), dict[str, CircuitState])
    assert_type(manager.get_metrics(), ResilienceMetrics)
    manager.execute(ask, timeout=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def settings() -> Config:
    assert_type(phase(2).policy, Policy)
    assert_type(policy_of(spec016), Policy)
    assert_type(LiveConfig().config, Config)
    return load("holdfast.toml")


def an_outcome_is_matched(manager: ResilienceManager) -> str:
    match manager.outcome(ask):
        case Ok(value=value, via=via):
            return value + via
        case other:
            return other.fault.code
