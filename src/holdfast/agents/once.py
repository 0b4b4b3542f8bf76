"""Each request and each tool call of a run is made once: in a session they are durable steps, without one they are just made.

Invariant: after a crash the model gets the results that it got before. An unsafe tool call begins at most once. If nobody knows whether
it happened, its result says so, unless the tool's `verify` or a person knows.
"""

from __future__ import annotations

import logging
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.agents.approval import propose
from holdfast.agents.call_result import CallResult
from holdfast.agents.decide import Spent
from holdfast.agents.masks import masked_reply, masked_result
from holdfast.faults import AbortedError, Fault, HoldfastError, OutcomeUnknownError
from holdfast.once.doubt import OUTCOMES, UnsettledError
from holdfast.once.identity import IN_DOUBT, Identity, step_name
from holdfast.once.outcome import Found, Mark, must_not_repeat
from holdfast.providers.messages import Reply
from holdfast.runtime.failures.left_behind import LEFT_BEHIND
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.suppress import suppressed
from holdfast.runtime.tool import ToolContract
from holdfast.sessions.call import as_step
from holdfast.tools.toolbox import Answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.policies.decide import Effect
    from holdfast.providers.messages import ToolCall
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session
    from holdfast.tools.toolbox import Tool

__all__ = ["Answered", "Cut", "InSession", "Misread", "Once", "Overflowed", "RequestEnd"]


class _RequestEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="got"):
    pass


class Answered(_RequestEnd, frozen=True, kw_only=True, tag="reply"):
    """The model answered."""

    reply: Reply
    with_secrets: tuple[int, ...] = ()
    """The places of calls whose arguments held a secret. The stored reply has masks there."""
    unused: Spent | None = None
    """What answers cost that came before it and could not be used."""


class Overflowed(_RequestEnd, frozen=True, kw_only=True, tag="overflow"):
    """The conversation did not fit, and can be made shorter."""


class Cut(_RequestEnd, frozen=True, kw_only=True, tag="cut"):
    """The answer reached the limit of its tokens, and is asked for again with a higher one."""

    limit: int
    """The higher limit."""
    unused: Spent | None = None
    """What it cost, with the answers before it."""


class Misread(_RequestEnd, frozen=True, kw_only=True, tag="invalid"):
    """The answer could not be read, and the model can be asked again."""

    reason: str
    unused: Spent | None = None
    """What it cost, with the answers before it."""


RequestEnd: TypeAlias = Answered | Overflowed | Misread | Cut
"""How a request ended, as far as the loop can go on."""


_PROVIDERS_ID = 200
"""How many characters of a provider's id of a call are kept."""
_RESULT = Mark("holdfast.call")
"""Stands around the stored result of a call."""
_WITH_SECRET = {"answer": "an answer of the model", "result": "the result of a tool call"}
_UNANSWERED = frozenset({"SESS_NO_INTERACTOR", "SESS_INTERACTION_MISMATCH"})
"""Codes of a session that mean that a question has no answer."""


class Once:
    """Makes the requests and calls of one run. This one just makes them: a run without a session."""

    async def request(self, number: int, ask: Callable[[], Awaitable[RequestEnd]]) -> RequestEnd:
        """Make the request with this number, or return how it ended before."""
        del number
        return await ask()

    def call_id(self, place: str, call: ToolCall) -> str:
        """Return the provider's id: it is unique in the conversation, and there is no session."""
        del place
        return call.id

    async def has_begun(self, place: str) -> bool:
        """Whether the tool call at this place has begun, or has ended, in an earlier run of the program."""
        del place
        return False

    async def call(
        self, place: str, call: ToolCall, tool: Tool | None, run: Callable[[], Awaitable[CallResult]]
    ) -> CallResult:
        """Make the tool call at this place of the run, or return its result."""
        del place, call, tool
        return await run()


class InSession(Once):
    """Makes each request and each call a step of the session. Its key is the run's key and its place, so it stays small."""

    def __init__(self, session: Session, run: str, show: Callable[[Tool, Any], str], runtime: Runtime | None) -> None:
        self._session = session
        self._runtime = runtime
        self._run = run
        self._show = show
        """Returns a tool's result as the text that the model gets."""

    async def request(self, number: int, ask: Callable[[], Awaitable[RequestEnd]]) -> RequestEnd:
        """Make the request as a step, or return what is stored about it."""

        async def request() -> dict[str, Any]:
            return msgspec.to_builtins(self._storable(await ask()))  # type: ignore[no-any-return] # a struct becomes a dict

        stored = await self._session.keyed(f"{self._run}/{number}").step(as_step(request, "request"))
        ended: RequestEnd = msgspec.convert(stored, RequestEnd)
        return ended

    def _storable(self, ended: RequestEnd) -> RequestEnd:
        """Return how a request ended, without secrets. An answer that could not be stored would be paid for again."""
        storable = self._session.storable
        match ended:
            case Answered(reply=reply):
                masked, places = masked_reply(reply, storable)
                if masked is reply:
                    return ended
                self._report_mask("answer")
                return msgspec.structs.replace(ended, reply=masked, with_secrets=places)
            case Misread(reason=reason):
                return msgspec.structs.replace(ended, reason=storable(reason))
            case Overflowed() | Cut():
                return ended

    def _report_mask(self, what: str) -> None:
        self._session.audit("Integrity", event="secret-masked", content=what, run=self._run)
        logging.getLogger("holdfast").warning(
            "session %s: a secret of this program was in %s of a run, and was masked",
            self._session.id,
            _WITH_SECRET[what],
        )

    def call_id(self, place: str, call: ToolCall) -> str:
        """Return the provider's id with what tells this run and place apart: another agent's provider may give the same ids."""
        return f"{call.id[:_PROVIDERS_ID]}-{sha256(f'{self._run}/{place}'.encode()).hexdigest()[:8]}"

    async def has_begun(self, place: str) -> bool:
        """Whether the log has a start or an end of the call."""
        return await self._session.keyed(f"{self._run}/{place}").has_begun()

    async def call(
        self, place: str, call: ToolCall, tool: Tool | None, run: Callable[[], Awaitable[CallResult]]
    ) -> CallResult:
        """Make the call as a step, or return its stored result."""
        key = f"{self._run}/{place}"
        has_begun = await self.has_begun(place)
        # A tool that was removed or changed since its call began cannot say whether that happened.
        effect = tool.contract.effect if tool is not None else "unsafe" if has_begun else None
        in_doubt = self._session.keyed(f"{key}{IN_DOUBT}")
        # Once the model knows that the outcome is unknown, it acts on that. What is found out later must not change the past.
        if effect == "unsafe" and (known := await in_doubt.stored()) is not None:
            return _restored(known)
        if effect == "unsafe" and not has_begun and (doubt := self._session.doubts.about(call.name, call.arguments)):
            return _restored(await in_doubt.step(_kept, self._stored(_unknown(_same_call(call, doubt), call.name))))

        async def inside() -> CallResult:
            # What the tool itself does in the session, another agent for example, belongs to this call.
            with self._session.part(key):
                return await run()

        made = _as_step(call, tool, effect, inside, self._stored)
        # The model gets the answer, and acts on a doubt.
        with self._session.doubts.handled():
            return await self._made(key, call, tool, made)

    async def _made(self, key: str, call: ToolCall, tool: Tool | None, made: Callable[..., Any]) -> CallResult:
        """Make the call as a step. If its outcome is unknown, that is the result."""
        step, in_doubt = self._session.keyed(key), self._session.keyed(f"{key}{IN_DOUBT}")
        while True:
            try:
                stored = await step.step(made, **call.arguments)
                break
            except OutcomeUnknownError as error:
                # The error of the tool itself does not name the step. Only here, because finding it reads all steps of the turn.
                end = f"/{step_name(Identity('', '', key), 1)}"
                doubts = [doubt for doubt in self._session.unknown if doubt == error.key or doubt.endswith(end)]
                doubt = doubts[0] if doubts else ""
                if not await self._is_settled(doubt, call):
                    result = _unknown(error, call.name, self._session.doubts.command(error.key))
                    known = await in_doubt.step(_kept, self._stored(result))
                    # The answer to a question that was put in an earlier run of the program would change nothing any more.
                    await self._session.doubts.withdraw_questions(doubt, "the model knows that the outcome is unknown")
                    return _restored(known)
        return _restored(stored, str if tool is None else partial(self._show, tool))

    def _stored(self, result: CallResult) -> dict[str, Any]:
        """Return a result as it is stored."""
        masked = masked_result(result, self._session.storable)
        if masked is not result:
            self._report_mask("result")
        return _RESULT.on(msgspec.to_builtins(masked))

    async def _is_settled(self, key: str, call: ToolCall) -> bool:
        """Ask a person whether an unsafe call happened, if somebody is there. Return whether the person knows."""
        session = self._session
        # A thread that still runs may take effect after the person has looked.
        if not session.is_attended or not key or LEFT_BEHIND.runs(key):
            return False
        proposal = propose(call.name, call.arguments, key, process_redactor())
        made = f"{call.name}({proposal.details['arguments'][:300]})"
        # An answer is about this start of the call. If it starts again and is cut again, that is another question.
        details = {**proposal.details, "start": session.doubts.start(key)}
        prompt = f"{made} was started and its end is not known. Did it happen?"
        try:
            happened = OUTCOMES[await session.select(prompt, tuple(OUTCOMES), details=details)]
            result = None
            if happened and key in session.unknown:
                prompt = f"What was the result of {made}? Leave it empty if it has none"
                result = await session.ask(prompt, details=details) or None
        except Exception as error:
            if not _is_unanswered(error):
                raise
            self._report(error, call)
            return key not in session.unknown
        # Somebody else may have resolved it meanwhile. That has answered the question too.
        if happened is not None and key in session.unknown:
            await session.resolve(key, happened=happened, result=result)
        return key not in session.unknown

    def _report(self, error: Exception, call: ToolCall) -> None:
        """Report why nobody has answered what became of a call. A no is an answer, and needs no report."""
        if isinstance(error, HoldfastError) and error.fault.code == "TOOL_APPROVAL_DENIED":
            return
        why = "; ".join(getattr(error, "__notes__", ())) or type(error).__name__
        reason = f"the outcome of {call.name} stays unknown: {why}"
        fault = suppressed(error, reason, runtime=self._runtime)
        logging.getLogger("holdfast").error("%s: %s", reason, process_redactor().text(fault.message))


def _is_unanswered(error: Exception) -> bool:
    """Whether an error means that nobody answered: not that the turn was cancelled, and not that the session failed."""
    if isinstance(error, AbortedError):
        return False
    code = error.fault.code if isinstance(error, HoldfastError) else ""
    return not code.startswith("SESS_") or code in _UNANSWERED


def _same_call(call: ToolCall, doubt: str) -> OutcomeUnknownError:
    """Return the error of an unsafe call while it is not known whether the same call happened before."""
    message = f"{call.name} was not run: the same call was started before, and nobody knows yet whether it happened"
    return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, context={"key": doubt}))


def _as_step(
    call: ToolCall,
    tool: Tool | None,
    effect: Effect | None,
    run: Callable[[], Awaitable[CallResult]],
    stored: Callable[[CallResult], dict[str, Any]],
) -> Callable[..., Any]:
    """Return the call as the function of a step, under the tool's name and with its effect."""

    async def made(**_: Any) -> Any:
        result = await run()
        fault = result.fault
        if fault is not None and must_not_repeat(effect, fault) and not fault.ended_itself:
            # The step must not count as done: somebody may find out what became of it.
            raise UnsettledError(fault, stored(CallResult.of(Answer.not_made(fault, call.name))))
        return stored(result)

    contract = None if effect is None else ToolContract(effect=effect)
    # The toolbox checks results itself, and so does the tool's recovery with its time limit.
    return as_step(made, call.name, contract if tool is None else tool.inside_step(call.arguments))


async def _kept(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    return stored


def _restored(stored: Any, show: Callable[[Any], str] = str) -> CallResult:
    known = _RESULT.read(stored)
    return CallResult(content=show(known.result)) if isinstance(known, Found) else msgspec.convert(known, CallResult)


def _unknown(error: OutcomeUnknownError, tool: str, resolve: str = "") -> CallResult:
    # The error of a step names the step, which the model does not know.
    fault = msgspec.structs.replace(error.fault, context={**error.fault.context, "tool": tool})
    if "step" in error.fault.context:
        # The error of a step says that it runs again once somebody knows that it did not happen. This call does not: the model acts on
        # what it knows now.
        message = (
            f"{tool} was started and its end is not known, so it is not repeated. Find out whether it happened, and say so in a new "
            f"prompt; for the record: `{resolve} --happened` or `--not-happened`"
        )
        fault = msgspec.structs.replace(fault, message=message)
    shown = fault.for_model(redactor=process_redactor())
    return CallResult(content=msgspec.json.encode(shown).decode(), is_error=True, fault=fault)
