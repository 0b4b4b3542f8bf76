"""Failures of agents, made by real ones over a model of the application."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Agent, Fault, tool
from holdfast.providers import Offers, Reply, Request, ToolCall


class _Model:
    name = "own/model"
    offers = Offers(streaming=False)

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)

    async def exchange(self, request: Request) -> Reply:
        del request
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]

    def stream(self, request: Request, *, after_first: str = "raise") -> Any:
        raise NotImplementedError


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "nothing new"


def _calls(name: str, **arguments: Any) -> Reply:
    return Reply(calls=(ToolCall(id="1", name=name, arguments=arguments),), stop="tools")


def _ended(agent: Agent) -> Fault:
    return asyncio.run(agent.outcome("go")).fault  # type: ignore[union-attr, unused-ignore]


def agent_makes_no_progress() -> Fault:
    return _ended(Agent("a", _Model(_calls("look")), [look]))


def agent_never_ends() -> Fault:
    return _ended(Agent("a", _Model(_calls("look")), [look], max_turns=2))


def answer_is_cut() -> Fault:
    return _ended(Agent("a", _Model(Reply(text="Half of", stop="length"))))


def subagent_fails() -> Fault:
    child = Agent("child", _Model(Reply()))
    seen: list[Any] = []
    parent = Agent("parent", _Model(_calls("child", prompt="go"), Reply(text="Done.")), [child])

    async def main() -> Fault:
        async with parent.stream("go") as parts:
            seen.extend([part async for part in parts])
        return next(part.fault for part in seen if getattr(part, "fault", None) is not None)

    return asyncio.run(main())
