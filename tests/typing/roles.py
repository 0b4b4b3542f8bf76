"""Roles and functions are agents for type checkers too, and their answers are typed. Checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_type

from holdfast import Circuit, Fault, Outcome, Session, Tries
from holdfast.agents import AgentPart, AgentReply, AnyAgent, FunctionAgent, Role, Roles
from holdfast.profiles import SPEC016_ROLES, RoleSettings


async def build(prompt: str) -> str:
    return prompt


async def tell(fault: Fault) -> None: ...


coder = FunctionAgent("coder", build)
by_hand: AnyAgent = FunctionAgent("manual-mode", lambda prompt: AgentReply(text=prompt))
builder = Role(
    "builder",
    coder,
    understudies=[by_hand],
    circuit=Circuit(failures=3),
    timeout=300,
    retry=Tries(attempts=2),
    consent="ask",
    notify=tell,
)
anybody: AnyAgent = builder
nested = Role("outer", builder, understudies=(anybody, coder))
roles = Roles([coder, by_hand], {"builder": RoleSettings(agent="coder"), "planner": SPEC016_ROLES["planner"]})


async def work(session: Session) -> None:
    assert_type(await builder.run("x", session=session), AgentReply)
    assert_type(await roles["builder"].outcome("x"), Outcome[AgentReply])
    assert_type(await session.notify("x"), int)
    async with builder.stream("x", session=session) as parts:
        assert_type(parts, AsyncIterator[AgentPart])
        async for part in parts:
            assert_type(part, AgentPart)


Role("builder", build)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
Role("builder", coder, consent="maybe")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
