"""MCP clients that recover: failed tool results are failures, and a dead session is replaced before the next attempt.

This module does not import the MCP SDK: it works with every object that has the SDK's methods.

Invariant: no attempt is made on a session that is known to be dead. A tool that is not declared harmless never runs twice.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from holdfast import options
from holdfast.classify import from_jsonrpc
from holdfast.events import MCPReconnectAttempt, MCPServerDisconnected, MCPServerReconnected
from holdfast.faults import Fault, HoldfastError, InvalidError, OutcomeUnknownError, Partial, Schedule
from holdfast.integrations.calls import Calls
from holdfast.integrations.mcp.connection import Connecting, McpConnection
from holdfast.policies.decide import EFFECTS
from holdfast.policies.profiles import HOLDFAST
from holdfast.policies.target import Target
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.fault_of import did_not_happen, fault_of, leave_account
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.suppress import suppressed
from holdfast.runtime.tool import ToolContract, declare_by_call
from holdfast.tools import Tool, Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

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
_RECONNECT = HOLDFAST.schedules[Schedule.TOOL_SERVER]
_RECONNECTS = (_RECONNECT.attempts or 6) - 1
"""Attempts to connect again: at once, then after 0.25 to 2 s. The schedule counts the call that failed, too."""
_MAX_TOOLS = 1024
_LONGEST_NAME = 64
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
"""The most tools that are remembered. A model may invent names, so memory must stay bounded."""


class ToolResultError(HoldfastError):
    """A tool answered with a result that is marked as an error.

    except ToolResultError as error:
        print(error.fault.code, error.result.content)
    """

    code = "TOOL_EXECUTION_FAILED"
    result: Any = None
    """The result as the server sent it."""


def _check_text(method: str, given: Any) -> None:
    """Raise `InvalidError` for a text that no JSON can hold. The SDK's transports end over it, with every other call on the connection."""
    try:
        msgspec.json.encode(given, enc_hook=str)
    except UnicodeEncodeError as error:
        raise InvalidError(
            Fault.of("TOOL_INPUT_INVALID", context={"reason": f"{method} was not sent: {error}"}, maybe_executed=False)
        ) from None
    except (TypeError, ValueError, OverflowError, RecursionError):
        return  # The SDK says what is wrong with it, to this call alone.


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
    # A plain value: events with this fault are written as JSON.
    dump = getattr(result, "model_dump", None)
    payload = {"content": content} if dump is None else dump(mode="json", by_alias=True, exclude_none=True)
    return msgspec.structs.replace(fault, partial=Partial(payload=payload))


@options.suggests
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
    """A session that recovers. It has the calls of the SDK's session; everything else is that of the present session.

    `recovering` makes one: `async with recovering(connect) as session: await session.call_tool("search", {"q": "kelp"})`.
    """

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
        self.name = name
        """The server's name in circuits, events and toolboxes."""
        self._policy = policy
        self._runtime = runtime
        self._effects = effects
        self._tool_failures = tool_failures
        # A policy that is not valid must raise here, where the user wrote it, and not at the first call.
        self._reads = Calls(name, policy, effect="read", runtime=runtime)
        self._tools: dict[str, Calls] = {}
        self._connection: McpConnection | None = None
        self._connecting: Connecting | None = None
        self._is_lost = False
        """There was a connection, and the server has gone."""
        self._reconnects = 0
        """How often it was tried to connect again, since the server has gone."""
        self._left: set[McpConnection | Connecting] = set()
        """Connections that are being closed. A retry does not wait until a dead server has let go."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for open_one in (self._connecting, self._connection):
            if open_one is not None:
                self._drop(open_one)
        self._is_lost = False
        for connection in tuple(self._left):
            await connection.close()
            self._left.discard(connection)

    def _effect_of_call(self, name: str, *_: Any, **__: Any) -> ToolContract:
        """Return what a step that calls this tool by its name does to the world."""
        return ToolContract(effect=self._effects.get(name, "unsafe"))

    @declare_by_call(_effect_of_call)
    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
        """Call a tool, with retries where its effect allows them.

            result = await session.call_tool("search", {"query": "fjords"})

        Raises the same errors as every other call; see `recovering` for results that are marked as errors.
        """
        try:
            return await self._calls_of_tool(name).acall(self._call_once, name, arguments, more)
        except (ToolResultError, OutcomeUnknownError) as error:
            # The server has answered, so the caller gets its answer even where it does not say whether the tool ran.
            failed = error.__cause__ if isinstance(error, OutcomeUnknownError) else error
            if self._tool_failures == "return" and isinstance(failed, ToolResultError):
                return failed.result
            raise

    async def toolbox(self, *, prefix: str = "", policy: Policy | None = None) -> Toolbox:
        """Return the server's tools as a toolbox: the schemas for a model, and calls that recover.

            toolbox = await session.toolbox()
            reply = client.messages.create(…, tools=toolbox.schemas())
            answer = await toolbox.answer(call.name, call.input)

        prefix: before each tool's name, so that tools of several servers have different names. Raises what listing the tools raises.
        """
        tools = await self.tools(prefix=prefix)
        # The server's name is part of the circuits: two servers may have tools of one name.
        return Toolbox(tools, policy=policy or self._policy, prefix=f"{self.name}/", runtime=self._runtime)

    async def tools(self, *, prefix: str = "") -> list[Tool]:
        """Return the server's tools, for a `Toolbox` that has others too.

        toolbox = Toolbox([*await session.tools(prefix="git_"), read_file(".")])

        A tool that cannot be used, or is listed a second time, is left out with a warning; the others stay. Two whose names become equal
        for a model, such as `files.read` and `files_read`, get different ones.
        """
        found: dict[str, Tool] = {}
        names: set[str] = set()
        cursor: str | None = None
        while True:
            listed = await self._reads.acall(self._list_page, cursor)
            for one in listed.tools:
                self._add_tool(one, prefix, found, names)
            cursor = getattr(listed, "next_cursor", None) or getattr(listed, "nextCursor", None)
            if not cursor or len(names) >= _MAX_TOOLS:
                return list(found.values())

    def _add_tool(self, listed: Any, prefix: str, found: dict[str, Tool], names: set[str]) -> None:
        """Add a listed tool under a name that is free."""
        reason = f"tool {listed.name!r} of the MCP server {self.name} is left out"
        if not listed.name or listed.name in names:
            suppressed(InvalidError.saying("mcp.tools", "tools with names, all different", repr(listed.name)), reason)
            return
        names.add(listed.name)
        # MCP allows names such as `files.read`, which the providers of models reject.
        name = shown = _UNFIT.sub("_", f"{prefix}{listed.name}")[:_LONGEST_NAME]
        number = 1
        while shown in found:
            number += 1
            shown = f"{name[: _LONGEST_NAME - 1 - len(str(number))]}_{number}"
        try:
            found[shown] = self._as_tool(listed, shown)
        except InvalidError as error:
            suppressed(error, reason)

    async def _list_page(self, cursor: str | None) -> Any:
        if cursor is None:
            return await self._attempt("list_tools", (), {})
        listing = (await self._connected()).session.list_tools
        if "cursor" in inspect.signature(listing).parameters:
            return await self._attempt("list_tools", (), {"cursor": cursor})
        from mcp.types import PaginatedRequestParams  # noqa: PLC0415 - a program with such a session has the SDK

        return await self._attempt("list_tools", (), {"params": PaginatedRequestParams(cursor=cursor)})

    def _as_tool(self, listed: Any, name: str) -> Tool:
        schema = getattr(listed, "input_schema", None) or getattr(listed, "inputSchema", None)

        async def call(**arguments: Any) -> Any:
            # One attempt: the toolbox recovers, and two loops would multiply their attempts.
            return _value_of(await self._call_once(listed.name, arguments, {}))

        contract = ToolContract(
            effect=self._effects.get(listed.name, "unsafe"),
            name=name,
            description=listed.description or "",
            input=schema or {"type": "object", "properties": {}},
        )
        return Tool(call, contract)

    async def _call_once(self, name: str, arguments: dict[str, Any] | None, more: dict[str, Any]) -> Any:
        result = await self._attempt("call_tool", (name, arguments), more)
        if (fault := tool_fault(result)) is not None:
            error = ToolResultError(fault)
            error.result = result
            raise error
        return result

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
            target = Target(tool=f"{self.name}/{tool}", provider=self.name)
            effect = self._effects.get(tool, "unsafe")
            known = self._tools[tool] = Calls(target, self._policy, effect=effect, runtime=self._runtime)
        return known

    async def _attempt(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _check_text(method, (args, kwargs))
        connection = await self._connected()
        try:
            return await getattr(connection.session, method)(*args, **kwargs)
        except Exception as error:
            fault = fault_of(error)
            if connection.over or fault.code in _DEAD:
                self._lose(connection, fault)
            raise

    async def _connected(self) -> McpConnection:
        """Return the present connection, or a new one if it has ended or was never made."""
        connection = self._connection
        if connection is not None and connection.over:
            self._lose(connection, None)
        if self._connection is not None:
            return self._connection
        connecting = self._connecting
        if connecting is None or connecting.over:
            # Calls that come meanwhile use its connection.
            run = getattr(AMBIENT.get(), "run", "") or ""
            connecting = self._connecting = Connecting(self._made(run), self.name)
        try:
            return await connecting.wait()
        except BaseException as error:
            # Whatever failed or was cancelled, the call itself was not sent.
            did_not_happen(error)
            if isinstance(error, Exception) and self._reconnects:
                _forbid_retry(error, self._reconnects)
            elif connecting.over and not connecting.closed:
                self._drop(connecting)
            raise

    async def _made(self, run: str) -> McpConnection:
        """Make the connection, for all calls that wait. `run` is that of the first one."""
        self._reconnects = 0
        connection = await (self._reconnected(run) if self._is_lost else McpConnection.opened(self._connect))
        self._is_lost, self._connection = False, connection
        return connection

    async def _reconnected(self, run: str) -> McpConnection:
        """Connect again: at once, then after ever longer delays. A failure that cannot pass ends it."""
        runtime, began = self._events, time.monotonic()
        while True:
            self._reconnects = attempt = self._reconnects + 1
            delay = _RECONNECT.backoff.delay(attempt, runtime.rng)
            attempts = {"attempt": attempt, "max_attempts": _RECONNECTS}
            self._emit(MCPReconnectAttempt, run, **attempts, delay=round(delay, 3))
            if runtime.waits and delay > 0:
                await asyncio.sleep(delay)
            try:
                connection = await McpConnection.opened(self._connect)
            except Exception as error:
                if attempt >= _RECONNECTS or _is_final(fault_of(error)):
                    raise
            else:
                self._emit(MCPServerReconnected, run, attempts=attempt, after=round(time.monotonic() - began, 3))
                return connection

    def _lose(self, connection: McpConnection, fault: Fault | None) -> None:
        """Use the connection no more, and tell that the server has gone."""
        # Another call on the same connection may have failed and dropped it before.
        if self._connection is connection:
            self._is_lost = True
            run = getattr(AMBIENT.get(), "run", "") or ""
            self._emit(MCPServerDisconnected, run, fault=fault)
            self._drop(connection)

    def _drop(self, connection: McpConnection | Connecting) -> None:
        if connection is self._connection:
            self._connection = None
        if connection is self._connecting:
            self._connecting = None
        self._left = {each for each in self._left if not each.closed} | {connection}
        connection.leave()

    @property
    def _events(self) -> Runtime:
        return default_runtime() if self._runtime is None else self._runtime

    def _emit(self, kind: Any, run: str, **facts: Any) -> None:
        runtime = self._events
        runtime.bus.emit(kind(at=runtime.clock.wall(), run=run, server=self.name, **facts))


def _is_final(fault: Fault) -> bool:
    """Whether connecting again cannot help: the key is wrong, the program is missing. A crash at the start may pass."""
    return not fault.retryable and fault.code != "TOOL_EXECUTION_FAILED"


def _forbid_retry(error: Exception, attempts: int) -> None:
    """Let the call around give up: everything that could be tried was tried."""
    around = AMBIENT.get()
    run = getattr(around, "run", None)
    if run:
        fault = msgspec.structs.replace(fault_of(error), retryable=False, maybe_executed=False)
        leave_account(error, fault, f"holdfast: gave up after {attempts} attempts to reconnect", run)


def _value_of(result: Any) -> Any:
    """Return the result of a tool as a value: its structured content, or its text, or its blocks."""
    structured = getattr(result, "structured_content", None)
    if structured is None:
        structured = getattr(result, "structuredContent", None)
    if structured is not None:
        # The SDK's servers wrap what is not an object.
        return structured["result"] if set(structured) == {"result"} else structured
    blocks = getattr(result, "content", None) or ()
    texts = [getattr(block, "text", None) for block in blocks]
    if all(isinstance(text, str) for text in texts):
        return "\n".join(text for text in texts if text)
    return [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]
