"""Failures of agents, made by real ones over a model of the application."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from holdfast import Agent, Fault, fault_of, tool
from holdfast.agents import Role
from holdfast.providers import Offers, Reply, Request, ToolCall
from holdfast.testing import run


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


def agent_ends_without_an_answer() -> Fault:
    """The stream of an agent in a role ends, and no answer was in it."""

    class Silent:
        name = "silent"
        is_streaming = True

        async def run(self, prompt: str, **_: Any) -> Any:
            raise NotImplementedError

        async def outcome(self, prompt: str, **_: Any) -> Any:
            raise NotImplementedError

        @asynccontextmanager
        async def stream(self, prompt: str, **_: Any) -> Any:
            async def nothing() -> Any:
                return
                yield

            yield nothing()

    async def main() -> Fault:
        try:
            async with Role("silent", Silent()).stream("go") as parts:
                async for _ in parts:
                    pass
        except Exception as error:
            return fault_of(error)
        raise AssertionError

    return run(main())


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
