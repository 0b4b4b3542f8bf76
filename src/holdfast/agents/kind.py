"""`AnyAgent`: what every kind of agent can do, so that roles, tools and servers take any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from holdfast.agents.parts import AgentPart
    from holdfast.agents.reply import AgentReply
    from holdfast.faults import Outcome
    from holdfast.sessions.session import Session

__all__ = ["AnyAgent", "check_agent", "is_agent"]

_VERBS = ("run", "outcome", "stream")


class AnyAgent(Protocol):
    """An agent of any kind: `Agent`, `CommandAgent`, `FunctionAgent`, or a role."""

    @property
    def name(self) -> str:
        """Its name in messages, circuits and events."""
        ...

    async def run(self, prompt: str, *, session: Session | None = None) -> AgentReply:
        """Work on the prompt and return the answer, or raise."""
        ...

    async def outcome(self, prompt: str, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Work on the prompt and return `Ok` or `Err`. It raises only cancellations."""
        ...

    def stream(
        self, prompt: str, *, session: Session | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[AgentPart]]:
        """Return the work in parts: `async with agent.stream(prompt) as parts`. The last part is `Done`."""
        ...


def is_agent(given: Any) -> TypeGuard[AnyAgent]:
    """Whether something is an agent: it has a name, and can `run`, `outcome` and `stream`."""
    # A class has the same attributes as its objects, and is none.
    return (
        not isinstance(given, type)
        and isinstance(getattr(given, "name", None), str)
        and all(callable(getattr(given, verb, None)) for verb in _VERBS)
    )


def check_agent(path: str, given: Any) -> None:
    """Raise `InvalidError` if something that must be an agent is none. `path` is the option that it was given as."""
    if not is_agent(given):
        raise InvalidError.at(path, "an agent: an Agent, a CommandAgent, a FunctionAgent or a Role", given)
