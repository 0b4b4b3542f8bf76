"""What type checkers must accept of agents, and what they must reject."""

from __future__ import annotations

from typing import assert_type

from holdfast import Agent, Err, Ok, Session, tool
from holdfast.agents import AgentReply, AnyAgent, Done, Hooks, Retrying, Text, ToolCalled
from holdfast.faults import Outcome
from holdfast.providers import Request, ToolCall


@tool(effect="read")
async def look(path: str) -> str:
    return path


def loud(request: Request) -> Request:
    return request


async def quiet(request: Request) -> Request:
    return request


async def deny(call: ToolCall) -> str | None:
    return call.name


agent = Agent(
    "a", ["claude-sonnet", "gpt-5"], [look], hooks=[Hooks(transform=loud, guard=deny), Hooks(transform=quiet)]
)
parent: AnyAgent = Agent("b", "claude-sonnet", [agent], max_turns=5, compact=None)
Agent("c", "claude-sonnet", compact=lambda messages: messages[-3:])
Agent("d", 4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent("e", "claude-sonnet", max_turns="many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def use(session: Session) -> None:
    assert_type(await agent.run("go", session=session), AgentReply)
    outcome = await agent.outcome("go")
    assert_type(outcome, Outcome[AgentReply])
    match outcome:
        case Ok(value=reply):
            assert_type(reply, AgentReply)
        case Err(fault=fault):
            assert fault.partial
    async with agent.stream("go") as parts:
        async for part in parts:
            match part:
                case Text(text=text):
                    assert_type(text, str)
                case ToolCalled(name=name):
                    assert_type(name, str)
                case Retrying(restarts_text=restarts):
                    assert_type(restarts, bool)
                case Done(reply=done):
                    assert_type(done, AgentReply)
                case _:
                    pass
