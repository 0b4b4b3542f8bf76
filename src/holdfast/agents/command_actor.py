"""`CommandActor`: a command-line agent that takes messages of the type `prompt` and returns Responses.

    claude = CommandActor("claude", CommandAgent(["claude", "-p", "--output-format", "stream-json", "--verbose"]))
    response = await claude.send(Message(id="m-1", type="prompt", payload="fix the tests"))

Invariant: `send` raises nothing but `CancelledError`, and no process of the agent is alive when it returns, or when the block of a stream
is left.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import msgspec

from holdfast.actors.messages import Message, MessageActor, Response
from holdfast.agents.parts import Done
from holdfast.faults import Fault, Ok
from holdfast.views import response as view

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from holdfast.actors.bash import StreamEvent
    from holdfast.agents.command import CommandAgent
    from holdfast.agents.reply import AgentReply

__all__ = ["CommandActor"]


class CommandActor(MessageActor):
    """Takes prompts for a command-line agent. The payload of a message is the prompt, or `{"prompt": …}`.

    async with MessageSupervisor() as supervisor:
        await supervisor.supervise(lambda: CommandActor("claude", CommandAgent(["claude", "-p"])))
        response = await supervisor.send("claude", Message(id="m-1", type="prompt", payload="fix the tests"))
        print(response["data"]["text"], response["metadata"]["costUsd"])
    """

    type: ClassVar[Literal["deterministic", "agent"]] = "agent"

    def __init__(self, id: str, agent: CommandAgent) -> None:  # noqa: A002 - the word of the specification
        super().__init__(id)
        self._agent = agent

    @classmethod
    def supported_types(cls) -> list[str]:
        """Return the types of messages that it handles."""
        return ["prompt"]

    async def receive(self, message: Message) -> Response:
        """Do the same as `send`: that is what a supervisor calls."""
        return await self.send(message)

    async def send(self, message: Message) -> Response:
        """Let the agent work on the prompt of a message and return its Response: the reply is `data`.

        response = await claude.send(Message(id="m-1", type="prompt", payload="fix the tests"))
        """
        prompt = self._prompt(message)
        if not isinstance(prompt, str):
            return prompt
        began = self._agent.runtime.clock.monotonic()
        outcome = await self._agent.outcome(prompt)
        milliseconds = round((self._agent.runtime.clock.monotonic() - began) * 1000)
        if isinstance(outcome, Ok):
            return _answered(outcome.value, milliseconds)
        return _failed(outcome.fault, milliseconds)

    @asynccontextmanager
    async def stream(self, message: Message) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        """Return the work as events: one for each part, and at last `result` or `error` with the whole Response.

        async with claude.stream(Message(id="m-2", type="prompt", payload="fix the tests")) as events:
            async for event in events:
                print(event["type"], event["data"])
        """
        events = self._events(message)
        try:
            yield events
        finally:
            await events.aclose()

    async def _events(self, message: Message) -> AsyncGenerator[StreamEvent, None]:
        prompt = self._prompt(message)
        if not isinstance(prompt, str):
            yield self._event("error", {"response": prompt, "error": prompt.get("error")})
            return
        clock = self._agent.runtime.clock
        began = clock.monotonic()
        try:
            async with self._agent.stream(prompt) as parts:
                async for part in parts:
                    if isinstance(part, Done):
                        response = _answered(part.reply, round((clock.monotonic() - began) * 1000))
                        yield self._event("result", {"response": response})
                        return
                    data = msgspec.to_builtins(part)
                    yield self._event(data.pop("type"), data)
        except Exception as error:  # noqa: BLE001 - any failure is the last event
            fault = self._agent.runtime.fault_of(error)
            response = _failed(fault, round((clock.monotonic() - began) * 1000))
            yield self._event("error", {"response": response, "error": response.get("error")})

    def _event(self, kind: str, data: dict[str, Any]) -> StreamEvent:
        return {"type": kind, "data": data, "timestamp": self._agent.runtime.clock.wall()}

    def _prompt(self, message: Any) -> str | Response:
        """Return the prompt of a message, or the Response that rejects it."""
        if not isinstance(message, Message):
            return _rejected()
        if message.type != "prompt":
            return self._unknown(message.type)
        match message.payload:
            case str(prompt) | {"prompt": str(prompt)} if prompt.strip():
                return prompt
        return _rejected()


def _rejected() -> Response:
    return cast("Response", view.write(Fault.of("PROTO_INVALID_MESSAGE"), literal=True))


def _answered(reply: AgentReply, milliseconds: int) -> Response:
    metadata = {"durationMs": milliseconds, "costUsd": reply.usd, "sessionId": reply.session or None}
    return {"success": True, "data": msgspec.to_builtins(reply), "metadata": _given(metadata)}


def _failed(fault: Fault, milliseconds: int) -> Response:
    metadata = {
        "durationMs": milliseconds,
        "costUsd": fault.context.get("usd"),
        "sessionId": fault.context.get("session"),
    }
    return cast("Response", view.write(fault, literal=True, metadata=_given(metadata)))


def _given(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return what is known. An unknown cost is not 0."""
    return {name: value for name, value in metadata.items() if value is not None}
