"""`CommandActor`: a command-line agent that takes messages of the type `prompt` and returns Responses.

    claude = CommandActor("claude", CommandAgent(["claude", "-p", "--output-format", "stream-json", "--verbose"]))
    response = await claude.send(Message(id="m-1", type="prompt", payload="fix the tests"))

Invariant: `send` raises nothing but `CancelledError`, and no process of the agent is alive when it returns, or when the block of a stream
is left.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import msgspec

from holdfast import options
from holdfast.actors.messages import Message, MessageActor, Response, rejected
from holdfast.agents.command import DEFAULT_POLICY, USUAL_TOTAL, CommandAgent
from holdfast.agents.parts import Done
from holdfast.faults import Err, Fault, Ok
from holdfast.policies.profiles import ACTOR
from holdfast.views import response as view

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

    from holdfast.actors.bash import StreamEvent
    from holdfast.agents.feed import Feed
    from holdfast.agents.reply import AgentReply
    from holdfast.policies.policy import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["ClaudeActor", "CommandActor"]

_TIMEOUT_MS = ACTOR.timeout("claude") * 1000
_STREAM_TIMEOUT_MS = ACTOR.timeout("stream") * 1000
"""The usual limits, known by identity: a phase without time limits has none of them, but keeps one that somebody wrote."""


class _Work:
    """One prompt that is worked on."""

    def __init__(self) -> None:
        self.scope = asyncio.timeout(None)
        """Ends a call when it is rescheduled."""
        self.feed: Feed | None = None
        """The parts of a stream; None: nothing is streamed."""
        self.ended = asyncio.Event()
        self.is_cancelled = False

    async def cancel(self) -> None:
        """End it, and wait until its program has ended."""
        self.is_cancelled = True
        if self.feed is not None:
            await self.feed.stop()
            return
        if not self.scope.expired():
            self.scope.reschedule(asyncio.get_running_loop().time())
        await self.ended.wait()


class CommandActor(MessageActor):
    """Takes prompts for a command-line agent. The payload of a message is the prompt, or `{"prompt": …}` without other keys.

    async with MessageSupervisor() as supervisor:
        await supervisor.supervise(lambda: CommandActor("claude", CommandAgent(["claude", "-p"])))
        response = await supervisor.send("claude", Message(id="m-1", type="prompt", payload="fix the tests"))
        print(response["data"]["text"], response["metadata"]["costUsd"])
    """

    type: ClassVar[Literal["deterministic", "agent"]] = "agent"
    operation: ClassVar[str] = "command-line agent"
    """What the message of a timeout calls its work."""

    def __init__(self, id: str, agent: CommandAgent) -> None:  # noqa: A002 - the word of the specification
        super().__init__(id)
        self._agent = agent
        self._running: set[_Work] = set()

    @property
    def _streaming(self) -> CommandAgent:
        """The agent whose work is streamed."""
        return self._agent

    @classmethod
    def supported_types(cls) -> list[str]:
        """Return the types of messages that it handles."""
        return ["prompt"]

    async def send(self, message: Message) -> Response:
        """Let the agent work on the prompt of a message and return its Response: the reply is `data`.

        response = await claude.send(Message(id="m-1", type="prompt", payload="fix the tests"))
        """
        prompt = self._prompt(message)
        if not isinstance(prompt, str):
            return prompt
        clock = self._agent.runtime.clock
        began = clock.monotonic()
        with self._working() as work:
            try:
                async with work.scope:
                    outcome = await self._agent.outcome(prompt)
            except TimeoutError:
                # Nothing else raises here: a limit of the agent is an outcome.
                outcome = Err(Fault.of("SYS_CANCELLED", maybe_executed=True))
        milliseconds = round((clock.monotonic() - began) * 1000)
        if isinstance(outcome, Ok):
            return _answered(outcome.value, milliseconds)
        return _failed(self._late(outcome.fault, is_stream=False), milliseconds)

    async def cancel(self) -> int:
        """End the prompts that are worked on, with their programs; return how many there were. Their Responses say SYS_CANCELLED."""
        running = tuple(self._running)
        await asyncio.gather(*(work.cancel() for work in running))
        return len(running)

    async def stop(self) -> None:
        """Hook: end the prompts that are worked on."""
        await self.cancel()

    @contextmanager
    def _working(self) -> Iterator[_Work]:
        work = _Work()
        self._running.add(work)
        try:
            yield work
        finally:
            self._running.discard(work)
            work.ended.set()

    def _late(self, fault: Fault, *, is_stream: bool) -> Fault:
        """Return the fault of a call that a limit may have ended: the limit is that of the operation, and the failure is temporary."""
        if fault.code != "PROVIDER_STREAM_STALLED" or "limit" not in fault.context:
            return fault
        if is_stream:
            # The limit for everything ends our own attempts, but it is no reason against another prompt. What silence ended may be
            # held back, as the work may not be done twice.
            return msgspec.structs.replace(fault, retryable=fault.retryable or fault.context["limit"] == "timeout")
        context = {**fault.context, "operation": self.operation}
        return Fault.of(
            "TOOL_TIMEOUT", fault.message, context=context, maybe_executed=fault.maybe_executed, partial=fault.partial
        )

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

        def milliseconds() -> int:
            return round((clock.monotonic() - began) * 1000)

        with self._working() as work:
            try:
                async with self._streaming.stream(prompt) as parts:
                    work.feed = cast("Feed", parts)
                    async for part in parts:
                        if isinstance(part, Done):
                            yield self._event("result", {"response": _answered(part.reply, milliseconds())})
                            return
                        data = msgspec.to_builtins(part)
                        yield self._event(data.pop("type"), data)
            except asyncio.CancelledError:
                if not work.is_cancelled:
                    raise
                response = _failed(Fault.of("SYS_CANCELLED", maybe_executed=True), milliseconds())
            except Exception as error:  # noqa: BLE001 - any failure is the last event
                fault = self._late(self._agent.runtime.fault_of(error), is_stream=True)
                response = _failed(fault, milliseconds())
        yield self._event("error", {"response": response, "error": response.get("error")})

    def _event(self, kind: str, data: dict[str, Any]) -> StreamEvent:
        return {"type": kind, "data": data, "timestamp": self._agent.runtime.clock.wall()}

    def _prompt(self, message: Any) -> str | Response:
        """Return the prompt of a message, or the Response that rejects it."""
        if not isinstance(message, Message):
            return rejected()
        if message.type != "prompt":
            return self._unknown(message.type)
        match message.payload:
            case str(prompt) if prompt.strip():
                return prompt
            case {"prompt": str(prompt), **others} if prompt.strip() and not others:
                return prompt
        return rejected(message.payload, "prompt")


class _Claude(CommandAgent):
    """Claude Code with the numbers of document 004 where nothing is configured. Phases and policies act as on every agent."""

    _usual: ClassVar[Policy] = DEFAULT_POLICY.replace(
        profile=ACTOR.name,
        attempts=ACTOR.tries["claude"].attempts,
        backoff=ACTOR.tries["claude"].backoff,
        circuit=ACTOR.circuit,
    )
    _tries: ClassVar[str] = "claude"


class ClaudeActor(CommandActor):
    """Claude Code as an actor: `ClaudeActor("claude-1", model="haiku")`. It needs the program `claude`.

        async with MessageSupervisor() as supervisor:
            await supervisor.supervise(lambda: ClaudeActor("claude-1", model="haiku"))
            response = await supervisor.send("claude-1", create_message("prompt", "fix the tests"))

    model: which one; by default the program's own choice. command: the program, and arguments that come first.
    timeout_ms, stream_timeout_ms: the most time for a prompt (120,000), and for one that is streamed (300,000).
    A lost network is tried once more, after about 5 s. A policy for its name and a phase of the settings change these numbers: with
    `phase = 1` there is one attempt, no limit of 120 s and no circuit. Wrong options raise `InvalidError`. For more options make a
    `CommandActor`.
    """

    operation: ClassVar[str] = "Claude CLI call"

    @options.suggests
    def __init__(
        self,
        id: str,  # noqa: A002 - the word of the specification
        *,
        model: str | None = None,
        command: Sequence[str] = ("claude",),
        timeout_ms: float = _TIMEOUT_MS,
        stream_timeout_ms: float = _STREAM_TIMEOUT_MS,
        runtime: Runtime | None = None,
    ) -> None:
        options.name("claude.model", model, optional=True)
        options.seconds("claude.timeout_ms", timeout_ms)
        options.seconds("claude.stream_timeout_ms", stream_timeout_ms)
        arguments = ["-p", "--output-format", "stream-json", "--verbose", *(("--model", model) if model else ())]

        def agent(milliseconds: float) -> CommandAgent:
            is_usual = milliseconds is _TIMEOUT_MS or milliseconds is _STREAM_TIMEOUT_MS
            return _Claude(
                [*command, *arguments],
                form="claude",
                name=id,
                total=USUAL_TOTAL if is_usual else milliseconds / 1000,
                idle=None,
                start=None,
                runtime=runtime,
            )

        super().__init__(id, agent(timeout_ms))
        self._streamed = agent(stream_timeout_ms)

    @property
    def _streaming(self) -> CommandAgent:
        return self._streamed


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
