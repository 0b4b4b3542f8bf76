"""`BashActor`: takes messages of the type `exec` with a shell command, and returns Responses.

    bash = BashActor("bash", timeout=30)
    response = await bash.send(Message(id="m-1", type="exec", payload="git status"))

    async with bash.stream(Message(id="m-2", type="exec", payload="npm test")) as events:
        async for event in events: ...

It is no sandbox: the command may do what the program's user may do.

Invariant: `send` raises nothing but `CancelledError`. When it returns, or when the block of a stream is left, no process of the command
is alive.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Required, TypedDict, cast

import msgspec

from holdfast import options
from holdfast.actors.messages import Message, MessageActor, Response, rejected
from holdfast.faults import Fault, Partial
from holdfast.policies.profiles import ACTOR
from holdfast.runtime.runtime import default_runtime
from holdfast.tools.process import run
from holdfast.tools.process_error import Finished, ProcessError
from holdfast.views import response as view

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType
    from typing import Self

    from holdfast.runtime.runtime import Runtime
    from holdfast.tools.process import Process, Run

__all__ = ["BashActor", "BashStream", "StreamEvent", "create_bash_actor"]


_KEYS = ("command", "timeoutMs")
_LONGEST_REASON = 4_096
"""The most characters of a command's own words in an error. All of them are in `data`."""


class StreamEvent(TypedDict, total=False):
    """One piece of a stream: `{"type": "stdout", "data": {"text": …}, "timestamp": …}`; the last is `result` or `error`."""

    type: Required[str]
    data: Required[dict[str, Any]]
    timestamp: Required[float]
    """Wall clock, seconds since the epoch."""


class BashActor(MessageActor):
    """Runs shell commands. The payload of a message is the command, or `{"command": …, "timeoutMs": …}`, without other keys.

        async with MessageSupervisor() as supervisor:
            await supervisor.supervise(lambda: BashActor("bash", cwd="repo"))
            response = await supervisor.send("bash", Message(id="m-1", type="exec", payload="make test"))
            print(response["data"]["stdout"])

    timeout: seconds that a command may take (30). stream_timeout: seconds that a stream may take (300). idle: seconds that a stream may
    be silent; by default any time.
    cwd, env: the directory and more variables. Variables that hold secrets are not passed on.
    output_cap: bytes of output after which a command is stopped (1 MiB).

    Wrong options raise `InvalidError`.
    """

    @options.suggests
    def __init__(
        self,
        id: str,  # noqa: A002 - the word of the specification
        *,
        timeout: float = ACTOR.timeout("bash"),
        stream_timeout: float = ACTOR.timeout("stream"),
        idle: float | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        output_cap: int = 1_048_576,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(id)
        options.seconds("bash.timeout", timeout)
        options.seconds("bash.stream_timeout", stream_timeout)
        options.seconds("bash.idle", idle, optional=True)
        options.count("bash.output_cap", output_cap)
        self._timeout, self._stream_timeout, self._idle = timeout, stream_timeout, idle
        self._cwd, self._env, self._output_cap = cwd, env, output_cap
        self._runtime = default_runtime() if runtime is None else runtime
        self._running: set[Process] = set()

    @classmethod
    def supported_types(cls) -> list[str]:
        """Return the types of messages that it handles."""
        return ["exec"]

    async def send(self, message: Message) -> Response:
        """Run the command of a message and return its Response, with `stdout`, `stderr` and `exitCode` in `data`.

        response = await bash.send(Message(id="m-1", type="exec", payload="sleep 10"))
        """
        command = self._command(message)
        if not isinstance(command, tuple):
            return command
        text, seconds = command
        try:
            async with self._run(text, seconds or self._timeout) as process:
                self._running.add(process)
                try:
                    finished = await process.finished()
                finally:
                    self._running.discard(process)
        except ProcessError as error:
            return _failed(error, text)
        return {"success": True, "data": _data(finished), "metadata": {"durationMs": _ms(finished)}}

    def stream(self, message: Message) -> BashStream:
        """Run the command of a message and return its output as it comes. Use it with `async with`.

        async with bash.stream(Message(id="m-2", type="exec", payload="npm test")) as events:
            async for event in events:
                print(event["type"], event["data"])
        """
        return BashStream(self, self._command(message), self._runtime)

    async def cancel(self) -> int:
        """End all commands under way; return how many there were. Their Responses say that they were cancelled."""
        running = tuple(self._running)
        await asyncio.gather(*(process.stop() for process in running))
        return len(running)

    async def stop(self) -> None:
        """Hook: end all commands under way."""
        await self.cancel()

    def _command(self, message: Message) -> tuple[str, float | None] | Response:
        """Return the command of a message and its own time limit, or the Response that rejects the message."""
        if not isinstance(message, Message):
            return rejected()
        if message.type != "exec":
            return self._unknown(message.type)
        payload = message.payload if isinstance(message.payload, dict) else {"command": message.payload}
        match payload:
            # A limit under another name would be read past, and the command would run on.
            case {"command": str(command)} if command.strip() and "\0" not in command and payload.keys() <= {*_KEYS}:
                given = payload.get("timeoutMs")
                if given is None:
                    return command, None
                if isinstance(given, (int, float)) and not isinstance(given, bool) and given > 0:
                    return command, given / 1000
        return rejected(payload, *_KEYS)

    def _run(self, command: str, timeout: float, idle: float | None = None) -> Run:
        return run(
            ["bash", "-c", command],
            timeout=timeout,
            idle=idle,
            cwd=self._cwd,
            env=self._env,
            output_cap=self._output_cap,
        )


def create_bash_actor(id: str, timeout: float = ACTOR.timeout("bash") * 1000) -> BashActor:  # noqa: A002 - the word of the specification
    """Return a Bash actor whose commands may take `timeout` milliseconds: `create_bash_actor("bash", timeout=100)`.

    Raises `InvalidError` for a limit that is no positive number: there is no command without one.
    """
    options.above_zero("bash.timeout", timeout)
    return BashActor(id, timeout=timeout / 1000)


class BashStream:
    """The output of one command as it comes. The last event is `result` or `error`, and holds the whole Response.

    Leaving the block ends the command, also after `break`.
    """

    def __init__(self, actor: BashActor, command: tuple[str, float | None] | Response, runtime: Runtime) -> None:
        self._actor, self._command, self._runtime = actor, command, runtime
        self._run: Run | None = None
        self._process: Process | None = None

    async def __aenter__(self) -> AsyncIterator[StreamEvent]:
        actor, command = self._actor, self._command
        if isinstance(command, tuple):
            self._run = actor._run(command[0], command[1] or actor._stream_timeout, actor._idle)  # noqa: SLF001 - one module
            try:
                self._process = await self._run.__aenter__()
            except ProcessError as error:
                self._run, self._command = None, _failed(error, command[0])
            else:
                actor._running.add(self._process)  # noqa: SLF001
        return self._events()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._actor._running.discard(self._process)  # noqa: SLF001 - one module
        if self._run is not None:
            await self._run.__aexit__(kind, error, trace)

    async def _events(self) -> AsyncIterator[StreamEvent]:
        process, command = self._process, self._command
        if process is None or not isinstance(command, tuple):
            rejected: Any = command
            yield self._event("error", {"response": rejected, "error": rejected["error"]})
            return
        try:
            async for chunk in process:
                yield self._event(chunk.stream, {"text": chunk.text})
            finished = await process.finished()
        except ProcessError as error:
            response = _failed(error, command[0], stream=True)
            yield self._event("error", {"response": response, "error": response.get("error")})
        else:
            yield self._event("result", {"response": {"success": True, "data": _data(finished)}})

    def _event(self, kind: str, data: dict[str, Any]) -> StreamEvent:
        return {"type": kind, "data": data, "timestamp": self._runtime.clock.wall()}

    def __aiter__(self) -> Self:
        raise TypeError(
            "use `async with bash.stream(…) as events` and iterate over `events`: leaving the block ends the command"
        )


def _failed(error: ProcessError, command: str, *, stream: bool = False) -> Response:
    fault = error.fault
    finished = error.finished
    context = {**fault.context, "operation": command}
    if stream and fault.code == "TOOL_TIMEOUT" and finished is not None:
        # A stream that is cut by its limit has a code of its own.
        limit = {"limit_s": fault.context.get("timeout_s"), "duration_ms": _ms(finished)}
        fault = Fault.of("PROVIDER_STREAM_STALLED", context={**context, **limit}, maybe_executed=True)
    else:
        text = fault.message
        if finished is not None and error.ended_itself:
            # What the command says itself, as the specification has it.
            text = finished.stderr.strip()[-_LONGEST_REASON:] or f"Exit code {finished.exit_code}"
        fault = msgspec.structs.replace(fault, message=text, context=context)
    if finished is not None:
        fault = msgspec.structs.replace(fault, partial=Partial(payload=_data(finished)))
    metadata = {"durationMs": _ms(finished)} if finished is not None else None
    return cast("Response", view.write(fault, literal=True, metadata=metadata))


def _data(finished: Finished) -> dict[str, Any]:
    data: dict[str, Any] = {"stdout": finished.stdout, "stderr": finished.stderr, "exitCode": finished.exit_code}
    return {**data, "truncated": True} if finished.truncated else data


def _ms(finished: Finished) -> int:
    return round(finished.took * 1000)
