"""Act: an agent or a function at work, within the limits of its stage.

Invariant: Act does not see the context. A tool that the stage does not allow is not called. A tool call that fails is a typed result, and
Assert sees it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError, OutcomeUnknownError
from holdfast.once.doubt import UnsettledError
from holdfast.once.outcome import Found, Mark, must_not_repeat
from holdfast.runtime.operation.postconditions import check_plain_call
from holdfast.runtime.tool import contract_of
from holdfast.sessions import codec
from holdfast.tasks.stages.grants import Grants, Proposal, digest_of
from holdfast.tasks.stages.stage import Detail
from holdfast.tools.schema import violations_of
from holdfast.tools.threads import call_function
from holdfast.tools.toolbox import Answer, Toolbox
from holdfast.workflow.stage_lifecycle import ActEnded

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.tool import ToolContract
    from holdfast.sessions.session import Session
    from holdfast.tasks.stages.stage import Stage
    from holdfast.tasks.workflows.durable import Keeper

__all__ = ["StageAgent", "StageTerms", "StageWork", "act_contract", "check_agent", "perform"]

_ANSWER = Mark("holdfast.call")
"""Stands around the stored answer of a tool."""


class StageTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent keeps to while it works for a stage."""

    allowed_tools: frozenset[str] | None
    turn_cap: int
    completion_tool: str
    completion: dict[str, Any] | None
    """The JSON Schema of the result; None: the last answer is the result."""
    grant: Callable[[Any], Any] | None
    """Returns the permission for one call: see `Agent`."""
    failed: Callable[[Fault], None]
    """Gets the fault of each tool call that failed."""
    detail: Detail


class StageAgent(Protocol):
    """An agent whose limits a stage can set. `Agent` is one."""

    def in_stage(self, terms: StageTerms) -> Any:
        """Return the agent with the limits of a stage."""
        ...


class StageWork:
    """What a function that is the Act of a stage gets: `async def act(work): return {"files": await find(work.prompt)}`."""

    def __init__(
        self,
        stage: Stage,
        prompt: str,
        *,
        execution: str,
        attempt: int,
        keeper: Keeper,
        place: str,
        session: Session | None,
        tools: Toolbox,
    ) -> None:
        self.stage = stage.id
        self.prompt = prompt
        """The stage's body with its values, or what its `init` returned."""
        self.execution = execution
        """Identifies this execution of the stage, the same after a restart."""
        self.attempt = attempt
        self.session = session
        self.turns = 0
        """How many turns were counted with `turn`."""
        self.cap: HoldfastError | None = None
        """What `turn` raised at the stage's cap."""
        self.failures: list[Fault] = []
        """The faults of the tool calls that failed."""
        self._of = stage
        self._keeper = keeper
        self._place = place
        self._tools = tools
        self._uses: Counter[str] = Counter()
        """How often each tool was called with the same arguments."""
        self._grants = Grants(keeper, execution, attempt)

    def turn(self) -> None:
        """Count a turn of the work, before it is made. At the stage's cap it raises TASK_LOOP_BOUND: let it pass, Act ends with `cap_hit`.

        while not done:
            work.turn()
            done = await think()
        """
        if self.turns >= self._of.turn_cap:
            self.cap = _capped(self._of.turn_cap)
            raise self.cap
        self.turns += 1

    async def propose(self, tool: str, **arguments: Any) -> str | None:
        """Ask the stage's `grant` function for the permission to call a tool with exactly these arguments; return the grant, or None.

            if (grant := await work.propose("deploy", version="4.2")) is not None:
                answer = await work.call("deploy", version="4.2", grant=grant)

        A grant is for one call, in this attempt. It is None if the call was denied or deferred, or the stage has no `grant` function.
        """
        if self._of.grant is None:
            return None
        proposal = self._proposal(tool, arguments)
        decision = await self._grants.decide(proposal, self._of.grant)
        return proposal.token if decision == "approve" else None

    async def call(self, tool: str, *, grant: str | None = None, **arguments: Any) -> Answer:
        """Call a tool of the machine: its result, or the typed shape of its failure. In a session a call is made once.

            answer = await work.call("search", pattern="TODO")
            if answer.fault is not None: ...

        A tool that the stage does not allow, or whose grant is not valid (TASK_GRANT_INVALID, TASK_GRANT_CONSUMED, TASK_GRANT_EXPIRED), is
        not called, and the answer says so. If the stage has a `grant` function, every call needs a grant. An unsafe tool that may have
        happened raises `OutcomeUnknownError`: let it pass, the run goes on when a person has resolved it (`holdfast sessions resolve`).
        """
        proposal = self._proposal(tool, arguments)
        # It is known by its arguments, as a step is: neither another order of the calls nor a new one in front makes it another call.
        known = f"{proposal.digest[:16]}.{tool}"
        self._uses[known] += 1
        name = f"{self._place}/{self._uses[known]}/{known}"
        fault = await self._forbidden(proposal, grant, name)
        answer = await self._made(name, tool, arguments) if fault is None else Answer.failed(fault)
        if answer.fault is not None:
            self.failures.append(answer.fault)
        return answer

    async def _made(self, name: str, tool: str, arguments: dict[str, Any]) -> Answer:
        """Make a call, or return its stored answer."""
        contract = self._tools[tool].inside_step(arguments) if tool in self._tools else None
        effect = None if contract is None else contract.effect

        async def made() -> Any:
            answer = await self._tools.answer(tool, arguments)
            if answer.fault is not None and must_not_repeat(effect, answer.fault):
                # The call must not count as made: another attempt would make it again.
                raise UnsettledError(answer.fault, self._stored(Answer.not_made(answer.fault, tool)))
            return self._stored(answer)

        try:
            had = _ANSWER.read(await self._keeper.once(name, made, contract, arguments))
        except InvalidError as error:
            if effect != "unsafe":
                raise
            # The tool has run, and its result cannot be stored. Another attempt would run it again.
            raise OutcomeUnknownError(msgspec.structs.replace(error.fault, maybe_executed=True)) from error
        if isinstance(had, Found):
            content = had.result if isinstance(had.result, str) else msgspec.json.encode(had.result).decode()
            return Answer(content=content, value=had.result)
        if had["fault"] is not None:
            return Answer.failed(msgspec.convert(had["fault"], Fault))
        return Answer(content=had["content"], value=had["value"])

    def _stored(self, answer: Answer) -> dict[str, Any]:
        fault = msgspec.to_builtins(answer.fault)
        document = {"content": answer.content, "fault": fault, "value": _plain(answer.value)}
        # A result may hold a secret, which a store rejects.
        return _ANSWER.on(document if self.session is None else self.session.storable(document))

    async def _forbidden(self, proposal: Proposal, grant: str | None, name: str) -> Fault | None:
        allowed, tool = self._of.allowed_tools, proposal.tool
        if allowed is not None and tool not in allowed:
            message = f"{tool} was not run: the present stage does not allow this tool"
            return Fault.of("TOOL_APPROVAL_DENIED", message, context={"tool": tool})
        if self._of.grant is None and grant is None:
            return None
        if grant is None:
            message = (
                f"{tool} was not run: the stage has a grant function, and this call has no grant. Get one with work.propose(…), which "
                f"returns None if the call is not approved"
            )
            return Fault.of("TASK_GRANT_INVALID", message, context={"tool": tool})
        try:
            await self._grants.use(grant, proposal, by=name)
        except HoldfastError as error:
            if not error.fault.code.startswith("TASK_GRANT_"):
                raise
            return error.fault
        return None

    def _proposal(self, tool: str, arguments: dict[str, Any]) -> Proposal:
        plain = codec.plain(arguments, f"arguments of {tool}")
        digest = digest_of(plain)
        # A function has no ids for its calls, so the arguments identify the proposal.
        return Proposal(
            execution=self.execution, attempt=self.attempt, id=digest, tool=tool, digest=digest, arguments=plain
        )


def _plain(value: Any) -> Any:
    """Return the result of a tool as JSON values; None for what JSON cannot hold, which the text shows."""
    try:
        return codec.plain(value, "result")
    except InvalidError:
        return None


def is_function(act: Any) -> bool:
    """Whether Act is a function, and not an agent."""
    return not (hasattr(act, "run") and hasattr(act, "outcome"))


def check_agent(stage: Stage, tools: Toolbox) -> None:
    """Raise `InvalidError` if a stage has limits that its agent cannot keep. `tools` are those that functions call."""
    known = frozenset(tool.name for tool in tools) if is_function(stage.act) else getattr(stage.act, "tool_names", None)
    if known is not None and stage.allowed_tools is not None:
        for name in sorted(stage.allowed_tools - known):
            expected = f"names of tools of {'the machine' if is_function(stage.act) else repr(stage.act)}"
            hint = options.suggestion(name, sorted(known)) if known else "it has no tools"
            raise InvalidError.saying(f"stage {stage.id}: allowed_tools", expected, f"{name!r}; {hint}")
    agent: Any = stage.act
    if hasattr(agent, "in_stage"):
        # It says now what it would say in Act: that a tool has the name of the completion tool.
        nowhere: list[Fault] = []
        agent.in_stage(_limits(stage, nowhere.append))
        return
    if is_function(agent):
        return
    for name in ("allowed_tools", "completion", "grant"):
        if getattr(stage, name) is not None:
            expected = "an Agent, or a function of the work: nobody else can be limited so"
            raise InvalidError.saying(f"stage {stage.id}: {name}", expected, repr(stage.act))


def act_contract(stage: Stage, work: StageWork) -> ToolContract | None:
    """Return what a function declares about its effect; its `verify` gets the work. The calls of an agent are steps of their own."""
    contract = contract_of(stage.act) if is_function(stage.act) else None
    if contract is None or (verify := contract.verify) is None:
        return contract

    def found(key: str) -> Any:
        return verify(key, work)

    return msgspec.structs.replace(contract, verify=found)


async def perform(stage: Stage, work: StageWork, runtime: Runtime) -> ActEnded:
    """Let the agent or the function work; return what became of it. Raises what ends the attempt."""
    try:
        if is_function(stage.act):
            value = codec.plain(await _called(stage.act, work, runtime), f"stage {stage.id}: what act returns")
            ended = ActEnded(value=value, turns=work.turns)
        else:
            ended = await _agent(stage, work)
    except HoldfastError as error:
        # An agent that a function runs has bounds of its own: they are no cap of the stage.
        if not (error is work.cap if is_function(stage.act) else _is_cap(error.fault)):
            raise
        partial = error.fault.partial
        had = partial.payload if partial is not None else None
        text = str(had.get("text", "")) if isinstance(had, dict) else ""
        return ActEnded(cap_hit=True, text=text, turns=stage.turn_cap, failures=tuple(work.failures))
    _check_form(stage, ended.value)
    return msgspec.structs.replace(ended, failures=tuple(work.failures))


async def _called(act: Any, work: StageWork, runtime: Runtime) -> Any:
    # A cancelled run leaves a plain function behind in its thread; a run that goes on there waits for its end.
    name = "" if work.session is None else f"{work.session.id} {work.execution} {work.attempt}"
    value = await call_function(act, (work,), {}, runtime=runtime, name=name)
    return await check_plain_call(act, value, (work,), {})


async def _agent(stage: Stage, work: StageWork) -> ActEnded:
    agent: Any = stage.act
    if hasattr(agent, "in_stage"):
        agent = agent.in_stage(_terms(stage, work))
    reply = await agent.run(work.prompt, session=work.session)
    data = getattr(reply, "data", None)
    value = reply.text if data is None else codec.plain(data, f"stage {stage.id}: what its agent returns")
    return ActEnded(value=value, text=reply.text, turns=getattr(reply, "turns", 0))


def _terms(stage: Stage, work: StageWork) -> StageTerms:
    grants = work._grants  # noqa: SLF001 - the work of this module

    async def granted(call: Any) -> Any:
        arguments = codec.plain(call.arguments, f"arguments of {call.name}")
        proposal = Proposal(
            execution=work.execution,
            attempt=work.attempt,
            id=call.id,
            tool=call.name,
            digest=digest_of(arguments),
            arguments=arguments if isinstance(arguments, dict) else {},
        )
        assert stage.grant is not None
        decision = await grants.decide(proposal, stage.grant)
        if decision == "approve":
            await grants.use(proposal.token, proposal, by=call.id)
        return decision

    return _limits(stage, work.failures.append, None if stage.grant is None else granted)


def _limits(stage: Stage, failed: Callable[[Fault], None], grant: Callable[[Any], Any] | None = None) -> StageTerms:
    return StageTerms(
        allowed_tools=stage.allowed_tools,
        turn_cap=stage.turn_cap,
        completion_tool=stage.completion_tool,
        completion=stage.completion_schema,
        grant=grant,
        failed=failed,
        detail=stage.detail,
    )


def _check_form(stage: Stage, value: Any) -> None:
    """Raise if a result does not have the form of the stage's completion."""
    if (schema := stage.completion_schema) is None:
        return
    violations = violations_of(schema, value) if isinstance(value, dict) else ["expected an object"]
    if violations:
        raise InvalidError.saying(
            f"stage {stage.id}: its result", "a result that fits its completion", violations[0], "TASK_OUTPUT_INVALID"
        )


def _capped(cap: int) -> HoldfastError:
    message = f"The stage used all its {cap} turns"
    return HoldfastError(Fault.of("TASK_LOOP_BOUND", message, context={"limit": cap, "unit": "turns"}))


def _is_cap(fault: Fault) -> bool:
    """Whether an agent has used all its turns."""
    return fault.code == "TASK_LOOP_BOUND" and fault.context.get("unit") in {"turns", "model turns"}
