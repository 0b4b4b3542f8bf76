"""`AnyAgent`: what every kind of agent can do, so that roles, tools and servers take any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from holdfast.agents.parts import AgentPart
    from holdfast.agents.reply import AgentReply
    from holdfast.faults import Outcome
    from holdfast.sessions.session import Session

__all__ = ["AnyAgent"]


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
