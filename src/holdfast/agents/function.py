"""`FunctionAgent`: any function as an agent, so that it can have a role, be an understudy, or be a tool of another agent.

Invariant: in a session the function runs once per prompt, as a step does. Its reply is stored before `run` returns.
"""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.agents.names import take_names
from holdfast.agents.parts import Done, Text
from holdfast.agents.reply import AgentReply
from holdfast.faults import Err, InvalidError, Ok
from holdfast.runtime.callables import name_of
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.operation.postconditions import check_plain_call
from holdfast.runtime.tool import contract_of
from holdfast.sessions.call import as_step
from holdfast.tools.threads import call_function

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable

    from holdfast.agents.parts import AgentPart
    from holdfast.faults import Outcome
    from holdfast.sessions.session import Session

__all__ = ["FunctionAgent"]


class FunctionAgent:
    """A function of the prompt as an agent: plain or async, it returns a text or an `AgentReply`.

        from holdfast.agents import FunctionAgent

        by_hand = FunctionAgent("manual-mode", lambda prompt: f"Please do this by hand: {prompt}")
        reply = await by_hand.run("paint the door")

    A plain function runs in a thread, so that it does not block the event loop. Nothing can stop a thread: at a time limit, or if the run is
    cancelled, the function goes on in it. Make it async if it has a limit. With a session, the call is a step: it is done once, and
    its reply is stored. A function with a parameter `session` gets the session (or None) and makes its own steps instead. What the
    function does to the world is declared with `@tool(effect=…)`, as for any step.

    `run` raises what the function raises, and `InvalidError` if it returns anything else than a text or an `AgentReply`. A blank name, or
    anything that cannot be called, raises `InvalidError` too.
    """

    @options.suggests
    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        options.name("agent.name", name)
        if not callable(fn):
            raise InvalidError.at(f"agent {name}", "a function of the prompt", fn)
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise InvalidError.saying(
                f"agent {name}", "a function that returns a text or an AgentReply", "a generator function"
            )
        self.name = name
        self._fn = fn
        self._takes_session = _takes_session(fn)

    @property
    def made_of(self) -> Hashable:
        """What tells it from another agent of the same name in a session. A function that is defined again is the same function."""
        return "function", getattr(self._fn, "__code__", type(self._fn))

    async def run(self, prompt: str, *, session: Session | None = None) -> AgentReply:
        """Call the function and return its reply: `await by_hand.run("paint the door")`."""
        if self._takes_session:
            return await self._call(prompt, session=session)
        if session is None:
            return await self._call(prompt)
        take_names(session, self)
        return await session.step(self._step(session), prompt)

    async def outcome(self, prompt: str, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Call the function and return `Ok` or `Err`. It raises only cancellations."""
        try:
            return Ok(await self.run(prompt, session=session))
        except Exception as error:  # noqa: BLE001 - an outcome holds any failure
            return Err(fault_of(error), error)

    @asynccontextmanager
    async def stream(self, prompt: str, *, session: Session | None = None) -> AsyncIterator[AsyncIterator[AgentPart]]:
        """Return the reply in two parts: its text, then `Done`. A function has no more to show while it works."""
        parts = self._parts(prompt, session)
        try:
            yield parts
        finally:
            await parts.aclose()

    async def _parts(self, prompt: str, session: Session | None) -> AsyncGenerator[AgentPart, None]:
        reply = await self.run(prompt, session=session)
        if reply.text:
            yield Text(text=reply.text)
        yield Done(reply=reply)

    async def _call(self, prompt: str, **given: Any) -> AgentReply:
        value = await call_function(self._fn, (prompt,), given)
        return self._reply(await check_plain_call(self._fn, value, (prompt,), given))

    def _reply(self, value: Any) -> AgentReply:
        if isinstance(value, str):
            return AgentReply(text=value, agent=self.name)
        if isinstance(value, AgentReply):
            return value if value.agent else msgspec.structs.replace(value, agent=self.name)
        raise InvalidError.at(f"what agent {self.name} returns", "a text or an AgentReply", value)

    def _step(self, session: Session) -> Callable[[str], Any]:
        """Return the function that a session runs as a step. It has the agent's name and the function's contract."""

        async def call(prompt: str) -> AgentReply:
            reply = await self._call(prompt)
            # An answer that could not be stored would be asked for again with the next start.
            return msgspec.structs.replace(reply, text=session.storable(reply.text))

        # Two lambdas have the same name. Their steps must not be taken for each other, so the agent's name identifies them.
        return as_step(call, f"agent:{self.name}", contract_of(self._fn), returns=AgentReply)

    def __repr__(self) -> str:
        return f"FunctionAgent({self.name!r}, {name_of(self._fn)})"


def _takes_session(fn: Callable[..., Any]) -> bool:
    try:
        return "session" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        # Functions written in C may have no signature.
        return False
