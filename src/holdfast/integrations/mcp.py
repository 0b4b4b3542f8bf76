"""MCP clients that recover: failed tool results are failures, and a dead session is replaced before the next attempt.

A session must be left in the task that entered it, so a task of its own holds each connection. This module does not import
the MCP SDK: it works with every object that has the SDK's methods.

Invariant: no attempt is made on a session that is known to be dead. A tool that is not declared harmless never runs twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from holdfast import options
from holdfast.classify import from_jsonrpc
from holdfast.faults import HoldfastError, InvalidError, OutcomeUnknownError, Partial
from holdfast.integrations.calls import Calls
from holdfast.policies.decide import EFFECTS
from holdfast.policies.target import Target
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from holdfast.faults import Fault
    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveringSession", "ToolFailures", "ToolResultError", "recovering", "tool_fault"]

ToolFailures = Literal["return", "raise"]
"""What a failed tool result does when recovery has given up: it is returned as the server sent it, or it raises."""

_READS = frozenset(
    {
        "complete",
        "get_prompt",
        "list_prompts",
        "list_resource_templates",
        "list_resources",
        "list_tools",
        "read_resource",
        "send_ping",
    }
)
"""Calls that change nothing."""
_DEAD = frozenset(
    {
        "TOOL_CONNECTION_LOST",
        "TOOL_SESSION_EXPIRED",
        "CONN_RESET",
        "CONN_REFUSED",
        "CONN_UNREACHABLE",
        "PROVIDER_STREAM_CUT",
    }
)
"""Failures after which a session answers nothing more."""
_MAX_TOOLS = 1024
"""The most tools that are remembered. A model may invent names, so memory must stay bounded."""


class ToolResultError(HoldfastError):
    """A tool answered with a result that is marked as an error.

    except ToolResultError as error:
        print(error.fault.code, error.result.content)
    """

    code = "TOOL_EXECUTION_FAILED"

    @property
    def result(self) -> Any:
        """The result as the server sent it."""
        return None if self.fault.partial is None else self.fault.partial.payload


def tool_fault(result: Any) -> Fault | None:
    """Return the failure that a tool result reports, or None for a good result.

    It is an `accept` for functions of your own that call a tool:

        @recover("tool:search", accept=tool_fault)
        async def search(query): return await session.call_tool("search", {"query": query})
    """
    # Version 1 of the SDK calls it `isError`.
    if not (getattr(result, "is_error", False) or getattr(result, "isError", False)):
        return None
    texts = (getattr(block, "text", None) for block in getattr(result, "content", None) or ())
    content = [{"type": "text", "text": text} for text in texts if isinstance(text, str)]
    fault = from_jsonrpc({"jsonrpc": "2.0", "id": 1, "result": {"isError": True, "content": content}})
    return msgspec.structs.replace(fault, partial=Partial(payload=result))


def recovering(
    connect: Callable[[], AbstractAsyncContextManager[Any]],
    *,
    policy: Policy | None = None,
    name: str = "mcp",
    effects: Mapping[str, Effect] | None = None,
    tool_failures: ToolFailures = "return",
    runtime: Runtime | None = None,
) -> RecoveringSession:
    """Return a session whose calls recover, and which connects again after the server died or forgot the session.

        async with recovering(lambda: Client("https://example.com/mcp"), effects={"search": "read"}) as session:
            result = await session.call_tool("search", {"query": "fjords"})

    `connect` returns a new connection each time: an async context manager around an object with the SDK's methods, such as
    `mcp.Client` or an initialised `ClientSession`. `name` is the server's name in circuits and events. `effects` maps the
    name of a tool to what a call does to the world. A tool without a declared effect counts as `unsafe`: it is repeated
    only if it surely did not run. A result that is marked as an error is a failure: it is retried where that may help, and
    counted. When it is final, `tool_failures="return"` returns it as the SDK does; `"raise"` raises `ToolResultError`.

    Calls raise the SDK's own exceptions, `OutcomeUnknownError` if an unsafe tool may have run, and `CircuitOpenError`,
    `DeadlineError` or `BudgetError` where no call was made. Raises `InvalidError` for options that are not valid.
    """
    if not callable(connect):
        raise InvalidError.at("recovering.connect", "a function that returns a new connection", connect)
    if not name.strip():
        raise InvalidError.at("recovering.name", "a name such as 'github'", name)
    options.one_of("recovering.tool_failures", tool_failures, get_args(ToolFailures))
    for tool, effect in (effects or {}).items():
        options.one_of(f"recovering.effects.{tool}", effect, EFFECTS)
    return RecoveringSession(
        connect,
        policy=policy,
        name=name,
        effects=dict(effects or {}),
        tool_failures=tool_failures,
        runtime=runtime,
    )


class RecoveringSession:
    """A session that recovers. It has the calls of the SDK's session; everything else is that of the present session."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        policy: Policy | None,
        name: str,
        effects: dict[str, Effect],
        tool_failures: ToolFailures,
        runtime: Runtime | None,
    ) -> None:
        self._connect = connect
        self._name = name
        self._policy = policy
        self._runtime = runtime
        self._effects = effects
        self._tool_failures = tool_failures
        # A policy that is not valid must raise here, where the user wrote it, and not at the first call.
        self._reads = Calls(name, policy, effect="read", runtime=runtime)
        self._tools: dict[str, Calls] = {}
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._left: set[_Connection] = set()
        """Connections that are being closed. A retry does not wait until a dead server has let go."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._drop(self._connection)
        for connection in tuple(self._left):
            await connection.close()
            self._left.discard(connection)

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
        """Call a tool, with retries where its effect allows them.

            result = await session.call_tool("search", {"query": "fjords"})

        Raises the same errors as every other call; see `recovering` for results that are marked as errors.
        """

        async def attempt() -> Any:
            result = await self._attempt("call_tool", (name, arguments), more)
            if (fault := tool_fault(result)) is not None:
                raise ToolResultError(fault)
            return result

        try:
            return await self._calls_of_tool(name).acall(attempt)
        except (ToolResultError, OutcomeUnknownError) as error:
            # The server has answered, so the caller gets its answer even where it does not say whether the tool ran.
            failed = error.__cause__ if isinstance(error, OutcomeUnknownError) else error
            if self._tool_failures == "return" and isinstance(failed, ToolResultError):
                return failed.result
            raise

    def __getattr__(self, name: str) -> Any:
        if name in _READS:

            async def recovered(*args: Any, **kwargs: Any) -> Any:
                return await self._reads.acall(self._attempt, name, args, kwargs)

            return recovered
        connection = self.__dict__.get("_connection")
        if name.startswith("_") or connection is None or connection.session is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} while it is not connected")
        return getattr(connection.session, name)

    def _calls_of_tool(self, tool: str) -> Calls:
        known = self._tools.get(tool)
        if known is None:
            if len(self._tools) >= _MAX_TOOLS:
                self._tools.clear()
            target = Target(tool=f"{self._name}/{tool}", provider=self._name)
            effect = self._effects.get(tool, "unsafe")
            known = self._tools[tool] = Calls(target, self._policy, effect=effect, runtime=self._runtime)
        return known

    async def _attempt(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        connection = await self._connected()
        try:
            return await getattr(connection.session, method)(*args, **kwargs)
        except Exception as error:
            if connection.over or fault_of(error).code in _DEAD:
                self._drop(connection)
            raise

    async def _connected(self) -> _Connection:
        """Return the present connection, or a new one where there is none or it has ended."""
        # One call connects, and calls that come meanwhile use its connection.
        async with self._connecting:
            connection = self._connection
            if connection is not None and connection.over:
                self._drop(connection)
            if self._connection is None:
                self._connection = await _Connection.opened(self._connect)
            return self._connection

    def _drop(self, connection: _Connection) -> None:
        """Use the connection no more."""
        # Another call on the same connection may have failed and dropped it before.
        if self._connection is connection:
            self._connection = None
            self._left = {each for each in self._left if not each.over} | {connection}
            connection.leave()


class _Connection:
    """One connection and the task that holds it."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.session: Any = None
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(connect))

    @classmethod
    async def opened(cls, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> _Connection:
        """Return a connection that is ready. Raises what connecting raises."""
        connection = cls(connect)
        try:
            # Shielded: a caller that is cancelled must not leave a future behind that nobody may set.
            connection.session = await asyncio.shield(connection._ready)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def over(self) -> bool:
        """Whether the task that holds it has ended."""
        return self._task.done()

    def leave(self) -> None:
        """Let the task leave the session. What a dead session raises when it is left is not the caller's concern."""
        self._leave.set()
        if not self._ready.done():
            self._task.cancel()

    async def close(self) -> None:
        """Leave the session, and wait until it has ended."""
        self.leave()
        await asyncio.wait([self._task])

    async def _hold(self, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        try:
            async with connect() as session:
                self._ready.set_result(session)
                await self._leave.wait()
        except BaseException as error:
            if self._ready.done():
                # The connection ended by itself. The next attempt notices that and connects again.
                return
            if not isinstance(error, Exception):
                self._ready.cancel()
                raise
            self._ready.set_exception(error)
