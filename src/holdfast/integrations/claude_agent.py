"""`query` of the Claude Agent SDK that recovers: `recovering(query)`.

A query runs Claude Code, so it fails as Claude Code does: its messages are read by the reader of Claude Code's lines, and its failures
are decided where those of a `CommandAgent` are.

    failed, and no tool was called     the same query again
    failed after a tool call           resume=ID, with a prompt that says that the last run was interrupted
    the process died (in a session)    the same, by the next process: the ID is stored before a tool can be called

Invariant: a prompt is never given a second time to a new conversation if a tool may have run for it. Messages pass unchanged; only the
result of a run that failed and is made again is kept back.
"""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

import claude_agent_sdk as sdk
import msgspec
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKError, ResultMessage

from holdfast import options
from holdfast import options as checks
from holdfast.agents.command import DEFAULT_POLICY
from holdfast.agents.command_faults import CommandError, command_fault, is_lost, lost_conversation
from holdfast.agents.command_lines import FORMS
from holdfast.agents.command_run import AGAIN
from holdfast.agents.feed import parts_of
from holdfast.agents.names import take_names
from holdfast.agents.parts import Asking, FellBack, Retrying
from holdfast.agents.usage_limit import OnLimit, Parking
from holdfast.faults import Fault, InvalidError
from holdfast.policies.policy import INTERACTIVE
from holdfast.policies.target import Target
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.budgets.charges import take_back_attempt
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.tool import tool
from holdfast.tools.process_error import Finished

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

    from claude_agent_sdk import Message, Transport

    from holdfast.agents.command_lines import Report
    from holdfast.agents.feed import Feed
    from holdfast.policies.policy import Policy
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session

__all__ = ["QueryError", "QueryTimeoutError", "RecoveringQuery", "recovering"]

_FORM = FORMS["claude"]
_STDERR_CHARS = 8_192


class QueryError(CommandError, ClaudeSDKError):
    """A query failed for good. `error.fault` says why, `error.fault.partial` holds what arrived; `__cause__` is the SDK's error.

    except QueryError as error:
        print(error.fault.code, error.fault.context["session"], error.fault.partial)
    """


class QueryTimeoutError(QueryError, TimeoutError):
    """A query was stopped because no message came for `idle` seconds.

    except QueryTimeoutError as error:
        print(error.fault.context["timeout_s"])
    """

    code = "PROVIDER_STREAM_STALLED"


class _Query(Protocol):
    """`claude_agent_sdk.query`, or a function like it."""

    def __call__(
        self,
        *,
        prompt: str | AsyncIterable[dict[str, Any]],
        options: ClaudeAgentOptions | None = None,
        transport: Transport | None = None,
    ) -> AsyncIterator[Message]: ...


@options.suggests
def recovering(
    query: _Query = sdk.query,
    *,
    name: str = "claude-agent",
    policy: Policy | None = None,
    idle: float | None = None,
    if_lost: Literal["raise", "restart"] = "raise",
    on_limit: OnLimit = "auto",
    runtime: Runtime | None = None,
) -> RecoveringQuery:
    """Return a function like `query` whose runs recover.

        ask = recovering(query)
        async for message in ask(prompt="fix the tests", options=ClaudeAgentOptions(max_turns=20)):
            print(message)

    name: its name in circuits, events and sessions.
    policy: attempts and delays; by default two attempts.
    idle: seconds between two messages, after which the run is stopped. By default there is no limit: a tool or a person who is asked for
        a permission may take long.
    if_lost: what happens if a run was cut and Claude Code does not know its conversation any more: `OutcomeUnknownError` is raised, or
        with `"restart"` it begins anew, with a prompt that tells it to look first at what is done.
    on_limit: what happens at a usage limit that says when it ends: `"wait"` waits, `"raise"` raises, `"auto"` waits only if it ends
        before the deadline of the budget. In a session the run is parked, and goes on after that time.

    Wrong options raise `InvalidError`.
    """
    given: Any = query
    if not callable(given) or isinstance(given, RecoveringQuery):
        raise InvalidError.at("recovering.query", "claude_agent_sdk.query, which does not recover yet", query)
    checks.name("recovering.name", name)
    checks.seconds("recovering.idle", idle, optional=True)
    checks.one_of("recovering.if_lost", if_lost, ("raise", "restart"))
    checks.one_of("recovering.on_limit", on_limit, get_args(OnLimit))
    return RecoveringQuery(
        query,
        name=name,
        policy=policy,
        idle=idle,
        if_lost=if_lost,
        on_limit=on_limit,
        runtime=default_runtime() if runtime is None else runtime,
    )


class RecoveringQuery:
    """What `recovering` returns: call it as `query` is called. A wrong option raises `InvalidError`.

    async for message in ask(prompt="fix the tests", session=session):
        print(message)
    """

    made_of = ("claude-agent-sdk",)
    """What tells it from another agent of the same name in a session."""

    @options.suggests
    def __init__(
        self,
        query: _Query,
        *,
        name: str,
        policy: Policy | None,
        idle: float | None,
        if_lost: str,
        on_limit: OnLimit,
        runtime: Runtime,
    ) -> None:
        self.query = query
        self.name = name
        self.idle = idle
        self.if_lost = if_lost
        self.on_limit: OnLimit = on_limit
        self.runtime = runtime
        self.target = Target(agent=name, service="agent-sdk")
        self._policy = policy

    @property
    def policy(self) -> Policy:
        """The policy of its runs: as given, as configured for its name, or two attempts."""
        chosen = self._policy or self.runtime.policy_for(self.target)
        return DEFAULT_POLICY if chosen is INTERACTIVE and self._policy is None else chosen

    async def __call__(
        self,
        *,
        prompt: str | AsyncIterable[dict[str, Any]],
        options: ClaudeAgentOptions | None = None,
        transport: Transport | None = None,
        session: Session | None = None,
    ) -> AsyncGenerator[Message]:
        """Yield the messages of a query.

        In a session the run is done once: if it is complete, only its stored `ResultMessage` comes. A prompt that is not a text, and a
        `transport`, can be used only once, so such a query is not repeated, and cannot be a step of a session.

        Raises `QueryError` if the query failed for good, after its last message.
        """
        run = _Run(self, prompt, options or ClaudeAgentOptions(), transport, session)
        async with parts_of(self.runtime, run.make) as parts:
            async for part in parts:
                # A reader of messages has no use for our own parts; events report the same.
                if not isinstance(part, (Retrying, FellBack, Asking)):
                    yield cast("Message", part)

    def __repr__(self) -> str:
        return f"recovering({self.query!r}, name={self.name!r})"


class QueryBegun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A query has begun: the id of its conversation, or its result if it had none."""

    session: str = ""
    result: dict[str, Any] | None = None


class _Live:
    """A query that was made, and what is known about it."""

    def __init__(self, agent: RecoveringQuery, run: _Run, prompt: Any, given: ClaudeAgentOptions) -> None:
        self._stderr = ""
        self._show_stderr = given.stderr
        # Without a function of ours what Claude Code prints there is lost, and often it is the only reason.
        given = dataclasses.replace(given, stderr=self._on_stderr)
        self.messages = agent.query(prompt=prompt, options=given, transport=run.transport)
        self.began = asyncio.get_running_loop().time()
        self.reader = _FORM.reader()
        self.is_command = isinstance(prompt, str) and prompt.lstrip().startswith("/")
        self.result: ResultMessage | None = None
        """The latest result; the first one that is an answer stays."""
        self.is_answered = False
        self.held: ResultMessage | None = None
        """A result that was not shown yet."""
        self.error: Exception | None = None
        self.stopped: Fault | None = None
        self.finished: Finished | None = None

    @property
    def report(self) -> Report:
        return self.reader.report

    @property
    def stderr(self) -> str:
        return self._stderr

    @property
    def _has_answer(self) -> bool:
        return self.report.failure is None and bool((self.report.answer or "").strip())

    def _on_stderr(self, line: str) -> None:
        self._stderr = f"{self._stderr}\n{line.rstrip()}"[-_STDERR_CHARS:].lstrip("\n")
        if self._show_stderr is not None:
            self._show_stderr(line)

    def take(self, message: Message) -> None:
        """Note what a message says."""
        if not isinstance(message, ResultMessage):
            self.reader.read_object(_line(message))
        elif not self.is_answered:
            # A turn of a background task may bring another result. It does not change the answer.
            self.result = message
            self.report.failure = None
            line = _line(message)
            if not line["result"] and (self.is_command or message.deferred_tool_use is not None):
                line["result"] = message.subtype
            self.reader.read_object(line)
            self.is_answered = self._has_answer

    def ended(self, error: Exception | None) -> None:
        """Note how the query ended."""
        self.error = error
        if error is None:
            self.finished = self._finished(0, "")
            return
        if isinstance(error, sdk.ResultError) and not self.report.ended:
            self.reader.read_object({"type": "result", **error.data})
        if isinstance(error, sdk.CLINotFoundError):
            self.stopped = Fault.of("TOOL_COMMAND_NOT_FOUND", str(error))
            return
        if isinstance(error, sdk.CLIJSONDecodeError):
            self.stopped = Fault.of("PROVIDER_MALFORMED_RESPONSE", str(error))
        # The SDK's own text of a failed process only refers to stderr.
        text = "" if isinstance(error, sdk.ProcessError) else str(error)
        self.finished = self._finished(getattr(error, "exit_code", None) or 1, text)

    def silent(self, idle: float) -> None:
        """Note that no message came for too long."""
        message = f"No message came for {idle:g} s"
        self.stopped = Fault.of("PROVIDER_STREAM_STALLED", message, context={"limit": "idle", "timeout_s": idle})
        self.finished = self._finished(-15, "")

    def _finished(self, exit_code: int, text: str) -> Finished:
        took = asyncio.get_running_loop().time() - self.began
        return Finished(command=("claude",), exit_code=exit_code, stdout="", stderr=self._stderr or text, took=took)


class _Run:
    """One run of a query."""

    def __init__(
        self,
        agent: RecoveringQuery,
        prompt: Any,
        options: ClaudeAgentOptions,
        transport: Transport | None,
        session: Session | None,
    ) -> None:
        self._agent = agent
        self._prompt = prompt
        self._options = options
        self.transport = transport
        self._session = session
        self._is_once = transport is not None or not isinstance(prompt, str)
        """Whether it can be made only once."""
        self._feed: Feed | None = None
        self._key = ""
        self._live: _Live | None = None
        """The query that `begin` has made and `finish` reads."""
        self._begun: QueryBegun | None = None
        """What `begin` returned, without a session."""
        self._conversation = ""
        self._operation: Operation | None = None
        self._failed: ResultMessage | None = None
        """The result of the last query, if it failed. It is shown if no other query follows."""
        self._has_seen_all = False
        """Whether this process has read the run from its beginning."""
        self._worked = False
        """Whether a tool call was seen."""
        self._runs = 0

    async def make(self, feed: Feed) -> None:
        """Make the run, with retries, and show its messages."""
        self._feed = feed
        if self._session is None:
            await self._recovered("")
            return
        if self._is_once:
            found = "a transport" if self.transport is not None else "a prompt that is not a text"
            raise InvalidError.saying(
                "query.session", "a text as prompt, and no transport: they can be repeated", found
            )
        take_names(self._session, cast("Any", self._agent))
        result = await self._session.numbered(f"agent {self._agent.name}", self._prompt, self._recovered)
        # Shown when it is stored, so that nobody acts on a result that the next process does not know.
        await self._show(_result_of(result))

    async def _recovered(self, key: str) -> dict[str, Any]:
        self._key = key
        agent = self._agent
        policy = agent.policy.replace(attempts=1) if self._is_once else agent.policy
        recovery = recover(agent.target, policy, runtime=agent.runtime)
        parking = Parking(agent.name, self._session, "raise" if self._is_once else agent.on_limit, agent.runtime)
        while True:
            await parking.check()
            try:
                result: dict[str, Any] = await recovery.call(self._attempt)
            except Exception as error:
                if not await parking.goes_on(error):
                    if self._failed is not None:
                        await self._show(self._failed)
                    raise
            else:
                return result
            finally:
                await self._stop()

    async def _attempt(self) -> dict[str, Any]:
        around = AMBIENT.get()
        self._operation = around if isinstance(around, Operation) else None
        if self._operation is not None:
            # Each query is charged by itself: an attempt may make none, if the session has its result.
            take_back_attempt(self._operation)
        name = self._agent.name
        if self._session is not None:
            begun = await self._session.keyed(f"{self._key}/begin").step(self.begin, name, self._prompt)
        else:
            begun = self._begun = self._begun or await self.begin(name, self._prompt)
        result: dict[str, Any]
        if begun.result is not None:
            result = begun.result
        elif self._session is not None:
            result = await self._session.keyed(f"{self._key}/finish").step(self.finish, name, begun.session)
        else:
            result = await self.finish(name, begun.session)
        if self._operation is not None and self._operation.charges is not None:
            self._operation.charges.remember(result)
        return result

    # --- the two steps. Their names and arguments are stored, so they never change. ---

    @tool(effect="unsafe")
    async def begin(self, agent: str, prompt: Any) -> QueryBegun:
        """Make the query and return the id of its conversation, or its result if it had none."""
        del agent
        self._has_seen_all = True
        live = self._start(prompt, self._options)
        try:
            while await self._read(live):
                if live.report.session and not live.report.ended:
                    self._live = live
                    return QueryBegun(session=live.report.session)
        finally:
            # A query that has an id goes on while the id is stored.
            if self._live is not live:
                await _close(live)
        return QueryBegun(result=await self._conclude(live))

    async def finish(self, agent: str, conversation: str) -> dict[str, Any]:
        """Read the rest of the query, or make another one that goes on."""
        del agent
        live, self._live = self._live, None
        if live is not None:
            await self._read_to_end(live)
        elif self._may_repeat:
            live = await self._made(self._prompt, self._options)
        else:
            live = await self._resumed(self._conversation or conversation)
        return await self._conclude(live)

    @property
    def _may_repeat(self) -> bool:
        """Whether the same query may be made again: nothing was done, and nobody else goes on with the first conversation."""
        # In a session the next process resumes the stored id, so all work must be in that conversation. An id that the user has chosen
        # is taken once the first query has used it.
        return self._session is None and not self._worked and self._options.session_id is None

    # --- queries ---

    async def _resumed(self, conversation: str) -> _Live:
        again = AGAIN.replace("{prompt}", self._prompt)
        whole = {
            "continue_conversation": False,
            "session_id": None,
            "resume_session_at": None,
            "resume_drops_turn": None,
        }
        more = {"resume": conversation, "fork_session": False}
        live = await self._made(again, _replaced(self._options, whole | more))
        if not is_lost(live.report, _FORM, live.stderr):
            return live
        # Claude Code saves a conversation some time after it has begun to work, so a lost one proves nothing. Only who has read every
        # message of it knows that no tool was called.
        if not (self._has_seen_all and not self._worked) and self._agent.if_lost != "restart":
            raise lost_conversation(self._agent.name, conversation, made_by="recovering") from live.error
        return await self._made(again, _replaced(self._options, {"session_id": None}))

    async def _made(self, prompt: str, options: ClaudeAgentOptions) -> _Live:
        live = self._start(prompt, options)
        await self._read_to_end(live)
        return live

    def _start(self, prompt: Any, options: ClaudeAgentOptions) -> _Live:
        self._failed = None
        self._runs += 1
        around = in_force(self._operation)
        if around is not None and around.budget is not None:
            around.budget.attempt_begun(again=self._runs > 1)
        return _Live(self._agent, self, prompt, options)

    async def _read_to_end(self, live: _Live) -> None:
        try:
            while await self._read(live):
                pass
        finally:
            await _close(live)

    async def _read(self, live: _Live) -> bool:
        """Read a message and show it, or note how the query ended and return False."""
        try:
            async with asyncio.timeout(self._agent.idle):
                message = await anext(live.messages)
        except StopAsyncIteration:
            live.ended(None)
            return False
        except Exception as error:
            if isinstance(error, TimeoutError) and self._agent.idle is not None:
                live.silent(self._agent.idle)
                return False
            # The SDK raises a bare Exception if Claude Code does not answer at its start.
            if isinstance(error, ClaudeSDKError) or type(error) is Exception:
                live.ended(error)
                return False
            raise
        held, live.held = live.held, None
        if held is not None:
            await self._show(held)
        live.take(message)
        if message is not live.result:
            await self._show(message)
        elif not live.is_answered:
            # It is shown if nothing comes after it.
            live.held = live.result
        elif self._session is None:
            await self._show(message)
        return True

    async def _show(self, message: Message) -> None:
        assert self._feed is not None
        await self._feed.put(cast("Any", message))

    async def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await _close(live)

    # --- the end ---

    async def _conclude(self, live: _Live) -> dict[str, Any]:
        """Return the result of a query that has ended. Raises why it has no result."""
        report = live.report
        self._conversation = report.session or self._conversation
        self._worked = self._worked or report.worked
        around = in_force(self._operation)
        if around is not None and around.budget is not None:
            around.budget.attempt_ended(report, again=self._runs > 1)
            around.budget.charge(turns=report.turns)
        fault = self._fault(live)
        if fault is not None:
            self._failed = live.held
            raise (QueryTimeoutError if "limit" in fault.context else QueryError)(fault) from live.error
        assert live.result is not None
        kept = {name: value for name, value in dataclasses.asdict(live.result).items() if value is not None}
        return kept if self._session is None else self._session.storable(kept)

    def _fault(self, live: _Live) -> Fault | None:
        agent = self._agent
        now = agent.runtime.clock.wall()
        fault = command_fault(live.report, _FORM, live.finished, live.stopped, agent=agent.name, resumes=True, now=now)
        if fault is None or not (self._is_once and fault.retryable and fault.maybe_executed):
            return fault
        why = "it called a tool, and a prompt that is not a text, or a transport, can be used only once"
        return msgspec.structs.replace(fault, message=f"{fault.message} (it is not made again: {why})", retryable=False)


async def _close(live: _Live) -> None:
    """End a query and wait until its program has ended."""
    # Closing the SDK's generator leaves the one inside it to the garbage collector, and the program with it. Cancelled while it waits
    # for a message, it ends both, and that can be waited for.
    with suppress(Exception):
        async with asyncio.timeout(0):
            while True:
                await anext(live.messages)


def _replaced(options: ClaudeAgentOptions, changes: dict[str, Any]) -> ClaudeAgentOptions:
    """Return the options with changes, as far as this version of the SDK knows them."""
    known = {field.name for field in dataclasses.fields(options)}
    return dataclasses.replace(options, **{name: value for name, value in changes.items() if name in known})


def _result_of(kept: dict[str, Any]) -> ResultMessage:
    """Return a result that was stored, perhaps by another version of the SDK."""
    known = {field.name for field in dataclasses.fields(ResultMessage)}
    found = {name: value for name, value in kept.items() if name in known}
    if (deferred := found.get("deferred_tool_use")) is not None:
        found["deferred_tool_use"] = sdk.DeferredToolUse(**deferred)
    return ResultMessage(**found)


# --- messages as Claude Code prints them ---


def _line(message: Message) -> dict[str, Any]:
    """Return a message of the SDK as the line of Claude Code that it was, as far as its reader looks at it."""
    match message:
        case ResultMessage():
            line = dataclasses.asdict(message)
            if not message.result and message.structured_output is not None:
                line["result"] = msgspec.json.encode(message.structured_output).decode()
            return {"type": "result", **line}
        case sdk.SystemMessage():
            return {**message.data, "type": "system", "subtype": message.subtype}
        case sdk.AssistantMessage():
            return _spoken(message) | {"is_api_error_message": message.error is not None}
        case sdk.StreamEvent():
            return {"type": "stream_event", **dataclasses.asdict(message)}
        case sdk.RateLimitEvent():
            info = message.rate_limit_info
            limit = {"status": info.status, "resetsAt": info.resets_at}
            return {"type": "rate_limit_event", "rate_limit_info": limit, "session_id": message.session_id}
        case _:
            return {}


def _spoken(message: sdk.AssistantMessage) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, sdk.TextBlock):
            blocks.append({"type": "text", "text": block.text})
        elif isinstance(block, sdk.ToolUseBlock):
            blocks.append({"type": "tool_use", "id": block.id, "name": block.name, "input": block.input})
    return {
        "type": "assistant",
        "message": {"id": message.message_id, "content": blocks},
        "parent_tool_use_id": message.parent_tool_use_id,
        "session_id": message.session_id,
    }
