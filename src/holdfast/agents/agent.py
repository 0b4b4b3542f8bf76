"""`Agent`: a model with tools in a loop. In a session every request and every tool call is a durable step."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast import options
from holdfast.agents.approval import unknown_names
from holdfast.agents.decide import Bounds, Completion
from holdfast.agents.feed import parts_of
from holdfast.agents.hooks import Hooks, hooks_of
from holdfast.agents.kind import is_agent
from holdfast.agents.loop import AgentLoop
from holdfast.agents.memory import messages_of, remember, runs_before, save, start
from holdfast.agents.models import model_of, opened
from holdfast.agents.names import take_names
from holdfast.agents.once import InSession, Once
from holdfast.agents.output import Output
from holdfast.agents.parts import Done, ToolReturned
from holdfast.agents.setup import RequestOptions, Setup
from holdfast.agents.subagent import tool_of
from holdfast.faults import Err, HoldfastError, InvalidError, Ok
from holdfast.faults.redaction import whole_characters
from holdfast.once.identity import KEPT
from holdfast.providers.messages import File, ToolSpec, User
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.tool import ToolContract, contract_of_call, declare_by_call
from holdfast.sessions.call import as_step
from holdfast.sessions.place import may_be_left_out
from holdfast.tools.toolbox import Toolbox, shown_result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence

    from holdfast.agents.approval import Approval
    from holdfast.agents.approver import Granting
    from holdfast.agents.compaction import Compact
    from holdfast.agents.feed import Feed
    from holdfast.agents.kind import AnyAgent
    from holdfast.agents.loop import Keep
    from holdfast.agents.parts import AgentPart
    from holdfast.agents.reply import AgentReply
    from holdfast.agents.usage_limit import OnLimit
    from holdfast.faults import Outcome
    from holdfast.policies import Policy
    from holdfast.providers.messages import Effort
    from holdfast.providers.model import Model
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session
    from holdfast.tasks.stages.act import StageTerms

__all__ = ["Agent", "Prompt"]

Prompt: TypeAlias = "str | Sequence[str | File]"
"""What an agent works on: a text, or texts with images and documents."""


class Agent:
    """A model with tools. It asks the model, runs the tools that the model calls, and goes on until there is an answer.

        from holdfast import Agent, Session, tool

        @tool(effect="unsafe")
        async def deploy(version: str) -> str: ...

        agent = Agent("releaser", ["claude-sonnet", "gpt-5"], [deploy], instructions="You release software.")
        reply = await agent.run("release 4.2")
        print(reply.text, reply.usd)

        async with Session.open("release-42") as session:        # survives a crash of the process
            reply = await agent.run("release 4.2", session=session)

    name: its name in messages and events, as a tool of another agent, and in a session, which finds its conversation by it: 1 to 64 of A-Z,
        a-z, 0-9, `_` and `-`. Two agents with one name and other instructions or tools in one session raise `InvalidError`.
    model: a name, a `Model`, or a list of them; if one fails, the next one answers.
    tools: functions with `@tool(effect=…)`, other tools, and agents. An agent among them works on what the model writes to it. A `Toolbox`
        is used as it is, with its own policy and its own place for large results.
    instructions: the system prompt.
    description: what another agent's model reads about this one, if it is among that agent's tools.
    max_turns, max_tool_calls: answers of the model, and tool calls, in one run; then TASK_LOOP_BOUND is raised.
    same_failure: how often the same call may fail in the same way. After that it is not run; if the model insists, TASK_HALTED is raised.
    no_progress: how many turns in a row may bring only results that the model has already seen; None: any number.
    output: the form of the answer: a type (msgspec, dataclass, TypedDict, pydantic) or a JSON Schema. `reply.data` is of that type.
        An answer of another form is asked for again, `reasks` times in a row, with what is wrong. So is a call whose arguments are no JSON.
    compact: what happens if the conversation is too long for the model: `"drop"` leaves older messages out, `"summarise"` lets the model
        summarise them, a function gets the messages and returns others, None raises PROVIDER_CONTEXT_OVERFLOW.
    alternatives: models that a person may choose from if the model lacks something that is needed, such as tool calls.
    hooks: functions that change requests, observe the run, and deny tool calls.
    concurrency: tool calls of one answer that run at the same time.
    max_output: tokens that one answer may have. Nothing of an answer that reaches this limit is used, and TASK_OUTPUT_EXHAUSTED is raised. By
        default it is 4,096, and an answer that reaches it is asked for again with four times as many, twice at most.
    temperature, thinking: as the provider has them. `thinking` is `"low"`, `"medium"`, `"high"` or a number of tokens.
    tool_choice: `"auto"`, `"required"`, `"none"` or the name of a tool: what the model must do until it has called a tool.
    server_tools: tools that run at the provider, such as `{"type": "web_search_20250305", "name": "web_search"}`, as its API has them.
    caching: whether the provider may keep the prompt in its cache, where it has to be asked.
    policy: how requests recover, for models that are given by name; otherwise the configured one.
    on_limit: what happens at a usage limit that says when it ends. In a session the run is parked: it goes on after that time, in this
        process or another one. `"wait"` waits, `"raise"` raises the provider's error, whose fault says until when. `"auto"` waits if the limit
        ends before the deadline of the budget around the run, and raises otherwise.
    approval: which tool calls run, as `Approval(mode="ask", envelope={"search", "deploy"})`; by default the mode of the session decides.
        It holds for the calls of the agents among the tools too, where they have none of their own. So do `grant` and `expires`.
    grant: a function of a call that returns the decision of a token for exactly this call (`"approve"`, `"deny"` or `"defer"`), or None. It
        wins over the mode.
    expires: the seconds in which a person may allow a call; after that it is denied, and the model gets that. By default a question waits. If
        nobody is attached, a question that expires waits for an answer through the store.

    Wrong options raise `InvalidError`.
    """

    name: str
    """Its name in messages and events, and as a tool of another agent."""
    description: str
    """What another agent's model reads about it."""

    @options.suggests
    def __init__(
        self,
        name: str,
        model: str | Model | Sequence[str | Model],
        tools: Iterable[Any] = (),
        *,
        instructions: str = "",
        description: str = "",
        max_turns: int = 20,
        max_tool_calls: int | None = None,
        same_failure: int = 3,
        no_progress: int | None = 5,
        output: Any = None,
        reasks: int = 2,
        compact: Compact = "drop",
        alternatives: Sequence[str | Model] = (),
        hooks: Hooks | Iterable[Hooks] | None = None,
        concurrency: int = 8,
        max_output: int | None = None,
        temperature: float | None = None,
        thinking: Effort | int | None = None,
        tool_choice: str = "auto",
        server_tools: Sequence[Mapping[str, Any]] = (),
        caching: bool = True,
        policy: Policy | None = None,
        on_limit: OnLimit = "auto",
        approval: Approval | None = None,
        grant: Granting | None = None,
        expires: float | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.name, self.description = name, description
        self._warned: set[str] = set()
        """The sessions whose list of tools has names that no tool has."""
        wanted = partial(model_of, policy=policy, runtime=runtime)
        options.flag("agent.caching", caching)
        for one in server_tools:
            if not isinstance(one, Mapping):
                raise InvalidError.at("agent.server_tools", "a list of tools, each as the provider's API has it", one)
        self._setup = Setup(
            name,
            wanted(model),
            tuple(wanted(one) for one in alternatives),
            *_kit(tools, runtime),
            instructions,
            _bounds(max_turns, max_tool_calls, same_failure, no_progress, reasks),
            None if output is None else Output(output),
            compact,
            hooks_of(hooks),
            concurrency,
            max_output,
            runtime or default_runtime(),
            RequestOptions(temperature, thinking, tool_choice, tuple(server_tools), caching),
            on_limit,
            approval,
            grant,
            expires,
        )

    @property
    def model(self) -> Model:
        """The model that answers, or the chain of models."""
        return self._setup.model

    def __repr__(self) -> str:
        return f"<agent {self.name} ({self._setup.model.name})>"

    def _effect_of_run(self, *_: Any, **__: Any) -> ToolContract | None:
        """Return what a step that is a whole run does to the world: what its tools do."""
        unsafe = ToolContract(effect="unsafe")
        is_unsafe = any(tool.contract.effect == "unsafe" for tool in self._setup.toolbox)
        return (
            unsafe if is_unsafe or any(contract_of_call(agent.run, (), {}) == unsafe for agent in self.agents) else None
        )

    @declare_by_call(_effect_of_run)
    async def run(self, prompt: Prompt, *, session: Session | None = None) -> AgentReply:
        """Work on the prompt and return the answer.

            reply = await agent.run("fix the tests", session=session)

        In a session the agent remembers its earlier runs there. A run is made once per session, however often the program is run again:
        what is stored of it is neither paid for nor done again, and a run that has ended returns its answer. A run that was cut off, or
        failed, goes on when it is called again. The same prompt for a second time in one opening of the session (`async with
        Session.open(…)`) is a second run. The next opening, also in the same process, returns the stored answers in order.
        Inside a `turn` block a run is made once per turn: a chat puts each message into a turn. `reply.usd` of a stored answer is what
        it cost then; `budget.spend().usd` is what this run paid.

        Raises `HoldfastError` with TASK_LOOP_BOUND or TASK_HALTED if the loop ends without an answer, PROVIDER_EMPTY_RESPONSE,
        PROVIDER_CONTENT_POLICY, PROVIDER_OUTPUT_INVALID or PROVIDER_CONTEXT_OVERFLOW if the model gives none, `BudgetError` if the
        budget around it is spent, and the provider's own error if its requests fail for good. `fault_of(error).partial.payload` has
        what there is: text, messages, turns, tool calls and cost.
        """
        return await self._start(prompt, session, None)

    def in_stage(self, terms: StageTerms) -> Agent:
        """Return this agent with the limits of a stage: its tools, its turns, the form of its result, its grants. `StageMachine` calls it.

        In a session it is the same agent: it remembers its earlier runs. Raises `InvalidError` if a tool has the name of the completion tool.
        """
        setup, agent = self._setup, copy.copy(self)
        specs = [each for each in setup.specs if terms.allowed_tools is None or each.name in terms.allowed_tools]
        completion = None
        if terms.completion is not None:
            completion = Completion(terms.completion_tool, terms.completion)
            if completion.tool in setup.toolbox:
                raise InvalidError.saying("stage.completion_tool", "a name that no tool has", repr(completion.tool))
            description = "Call this when the work is done, with its result. It ends your work."
            specs.append(ToolSpec(name=completion.tool, description=description, parameters=completion.schema))

        def seen(part: AgentPart) -> None:
            if isinstance(part, ToolReturned) and part.fault is not None:
                terms.failed(part.fault)

        agent._setup = msgspec.structs.replace(  # noqa: SLF001 - it is of this class
            setup,
            specs=tuple(specs),
            bounds=msgspec.structs.replace(setup.bounds, max_turns=terms.turn_cap),
            output=setup.output if completion is None else None,
            hooks=(*setup.hooks, Hooks(observer=seen)),
            grant=terms.grant or setup.grant,
            envelope=terms.allowed_tools,
            completion=completion,
            detail=terms.detail,
        )
        return agent

    async def outcome(self, prompt: Prompt, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Work on the prompt and return `Ok` or `Err`. It raises only cancellations.

        match await agent.outcome("fix the tests"):
            case Ok(value=reply): print(reply.text)
            case Err(fault=fault): print(fault.for_user(), fault.partial)
        """
        return await self._outcome(prompt, session)

    async def outcome_anew(self, prompt: Prompt, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Do the same as `outcome`, without the conversation of earlier runs. Agents call other agents so."""
        return await self._outcome(prompt, session, remembers=False)

    async def _outcome(self, prompt: Prompt, session: Session | None, *, remembers: bool = True) -> Outcome[AgentReply]:
        try:
            return Ok(await self._start(prompt, session, None, remembers=remembers))
        except Exception as error:  # noqa: BLE001 - any failure is the outcome
            return Err(self._setup.runtime.fault_of(error), error)

    @asynccontextmanager
    async def stream(
        self, prompt: Prompt, *, session: Session | None = None
    ) -> AsyncIterator[AsyncIterator[AgentPart]]:
        """Return the work in parts. The last part is `Done`, with the answer.

            async with agent.stream("fix the tests") as parts:
                async for part in parts:
                    match part:
                        case Text(text=text): print(text, end="")
                        case Retrying(line=line): print(line)
                        case Done(reply=reply): ...

        If an answer is cut after its first words, the request is made again: a `Retrying` part with `restarts_text` says that the text
        begins anew. Reading raises what `run` raises. Leaving the block early cancels the run.
        """

        async def work(feed: Feed) -> None:
            await self._start(prompt, session, feed)

        async with parts_of(self._setup.runtime, work, session) as parts:
            yield parts

    async def _start(
        self, prompt: Prompt, session: Session | None, feed: Feed | None, *, remembers: bool = True
    ) -> AgentReply:
        message = _user(prompt)
        async with opened(self._setup.model):
            if session is None:
                loop = AgentLoop(self._setup, message, Once(), feed=feed)
                reply = await loop.run()
            else:
                loop, reply = await self._in_session(message, session, feed, remembers=remembers)
        await loop.show_end(reply, lambda reply: Done(reply=reply))
        return reply

    @property
    def agents(self) -> tuple[AnyAgent, ...]:
        """The agents among its tools."""
        return tuple(self._setup.agents.values())

    @property
    def made_of(self) -> Hashable:
        """What tells it from another agent of the same name in a session. Its model may change."""
        return "agent", self._setup.system, tuple(tool.name for tool in self._setup.toolbox)

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of its tools, and of those of the agents among them."""
        names = {tool.name for tool in self._setup.toolbox}
        for agent in self.agents:
            names |= getattr(agent, "tool_names", frozenset())
        return frozenset(names)

    def _report_unknown_tools(self, session: Session) -> None:
        """Warn once per session about names in its list that no tool has. Such a tool would be denied, and nobody knew why."""
        # An error would be too much: the list may name the tools of another agent of the session.
        wrong = unknown_names(session.allowed_tools or (), self.tool_names)
        if wrong and session.id not in self._warned:
            self._warned.add(session.id)
            logging.getLogger("holdfast").warning(
                "session.allowed_tools: no tool of agent %s is named %s", self.name, wrong
            )

    async def _in_session(
        self, prompt: User, session: Session, feed: Feed | None, *, remembers: bool
    ) -> tuple[AgentLoop, AgentReply]:
        take_names(session, self)
        if remembers:
            self._report_unknown_tools(session)

        is_inside = may_be_left_out()

        async def work(run: str) -> tuple[AgentLoop, AgentReply] | HoldfastError:
            ended = await self._once(run, prompt, session, feed, remembers=remembers)
            if is_inside and remembers:
                # The step around it is not called again once its result is stored, and then this run would not be remembered again.
                await save(session)
            return ended

        ended = await session.numbered(f"agent {self.name}", _named(prompt), work)
        if isinstance(ended, HoldfastError):
            raise ended
        return ended

    async def _once(
        self, run: str, prompt: User, session: Session, feed: Feed | None, *, remembers: bool
    ) -> tuple[AgentLoop, AgentReply] | HoldfastError:
        keep = _keep(session, run)
        unseen, seen = list[str](), list[str]()
        if remembers:
            unseen = await keep("unseen", partial(_itself, start(session, self.name, run)))
            seen = runs_before(session, self.name, run, unseen)
        history = messages_of(session, self.name, seen)
        once = InSession(session, run, shown_result, self._setup.runtime)
        loop = AgentLoop(self._setup, prompt, once, history=history, session=session, feed=feed, keep=keep)
        try:
            reply = await loop.run()
        except HoldfastError as error:
            if not loop.is_decided:
                raise
            # Returned, so that the next call in this program is another run.
            return error
        if remembers:
            added = loop.messages if loop.is_shortened else loop.messages[len(history) :]
            remember(session, self.name, run, added, unseen=unseen, replaces=seen if loop.is_shortened else ())
        return loop, reply


def _named(prompt: User) -> str:
    """Return what tells a prompt from others in a session: its text, and what its files are."""
    if not prompt.files:
        return prompt.text
    return f"{prompt.text} [{sha256(msgspec.json.encode(prompt.files)).hexdigest()}]"


def _kit(tools: Iterable[Any], runtime: Runtime | None) -> tuple[Toolbox, dict[str, AnyAgent], tuple[ToolSpec, ...]]:
    """Return the tools, the agents among them, and how the model sees them."""
    given = options.listed("agent.tools", tools, "tools, such as functions with @tool(effect=…)")
    toolbox = (
        tools
        if isinstance(tools, Toolbox)
        else Toolbox([tool_of(tool) if is_agent(tool) else tool for tool in given], runtime=runtime)
    )
    specs = [
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.arguments.schema) for tool in toolbox
    ]
    return toolbox, {tool.name: tool for tool in given if is_agent(tool)}, tuple(specs)


def _bounds(turns: int, calls: int | None, same_failure: int, no_progress: int | None, reasks: int) -> Bounds:
    return Bounds(
        max_turns=turns, max_tool_calls=calls, same_failure=same_failure, no_progress=no_progress, reasks=reasks
    )


async def _itself(names: list[str]) -> list[str]:
    return names


def _keep(session: Session, run: str) -> Keep:
    """Return what stores something about a run as a step of its own."""

    async def keep(place: str, make: Callable[[], Awaitable[Any]]) -> Any:
        async def kept() -> Any:
            # An earlier message, the prompt for example, may hold a secret, which a store rejects.
            return session.storable(await make())

        return await session.keyed(f"{run}/{place}").step(as_step(kept, KEPT))

    return keep


def _user(prompt: Any) -> User:
    """Return a prompt as a message."""
    parts = [prompt] if isinstance(prompt, str) else list(prompt) if isinstance(prompt, (list, tuple)) else []
    texts = [part for part in parts if isinstance(part, str)]
    files = tuple(part for part in parts if isinstance(part, File))
    text = "\n\n".join(texts)
    if not text.strip() or len(texts) + len(files) < len(parts):
        raise InvalidError.at("agent.prompt", "a text that is not empty, or a list of texts and Files", prompt)
    return User(text=whole_characters(text), files=files)
