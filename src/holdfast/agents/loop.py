"""The loop of an agent: compose a request, send it, run the tools that the model calls, and go on with their results.

    compose ─▶ transform ─▶ send ─▶ reply ─▶ decide ─┬▶ Finish
       ▲                                             ├▶ guard ─▶ tools ─┐
       └─────────────────────────────────────────────┴──────────────────┘

`decide.py` decides what follows; this module performs it. `once.py` makes each request and each call once.

Invariant: every request that is sent has a result for each tool call, in order. Every fault that ends a run holds what there is so far.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.agents.approver import working_for
from holdfast.agents.call_result import CallResult
from holdfast.agents.compaction import Compaction, Summary, can_compact, compacted
from holdfast.agents.conversation import CallIds, is_valid, summary_prompt, with_own_ids
from holdfast.agents.decide import (
    LEAST_OUTPUT,
    AskAgain,
    ContinueAnswer,
    Decision,
    EndRun,
    FinishRun,
    RunRecord,
    RunTools,
    after_invalid,
    after_reply,
    before_request,
    is_asked_again,
    raised_limit,
    unusable,
)
from holdfast.agents.feed import Followed
from holdfast.agents.hooks import guards_of
from holdfast.agents.meter import RequestMeter
from holdfast.agents.models import listed_names
from holdfast.agents.once import Answered, Cut, Misread, Once, Overflowed, RequestEnd
from holdfast.agents.parts import Compacted, Text, ToolCalled, ToolReturned
from holdfast.agents.reply import AgentReply
from holdfast.agents.subagent import answer_of_agent
from holdfast.agents.tool_calls import ToolCalls, results_of
from holdfast.agents.usage_limit import Parking
from holdfast.agents.validators import Validators
from holdfast.events import Retry, SuppressedError
from holdfast.faults import AbortedError, BudgetError, Category, Fault, HoldfastError, InvalidError, Scope
from holdfast.policies.models.capabilities import able
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.providers.messages import Message, Reply, Request, ToolResult, User
from holdfast.providers.model import check_offers
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.fault_of import leave_fault
from holdfast.runtime.secrets import process_redactor
from holdfast.tools.toolbox import Answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.agents.feed import Feed
    from holdfast.agents.parts import AgentPart
    from holdfast.agents.setup import Setup
    from holdfast.providers.messages import ToolCall
    from holdfast.providers.model import Model
    from holdfast.runtime.budgets.budget import Budget
    from holdfast.sessions.session import Session

__all__ = ["AgentLoop", "Keep"]

Keep: TypeAlias = "Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]"
"""Returns what is stored at a place of the run; without it makes it and stores it."""

_OVERFLOWS = frozenset({"PROVIDER_CONTEXT_OVERFLOW", "PROVIDER_REQUEST_TOO_LARGE"})
_REJECTED = frozenset({"PROVIDER_BAD_REQUEST", "PROVIDER_CONTEXT_OVERFLOW", "PROVIDER_REQUEST_TOO_LARGE"})
_NO_SUMMARY = Fault.of("PROVIDER_EMPTY_RESPONSE", "The model answered with no summary")
_MISSING = frozenset({"PROVIDER_CAPABILITY_MISSING", "PROVIDER_MISSING_STREAMING", "PROVIDER_MISSING_TOOL_CALLING"})


class AgentLoop:
    """One run of an agent."""

    def __init__(
        self,
        setup: Setup,
        prompt: User,
        once: Once,
        *,
        history: Sequence[Message] = (),
        session: Session | None = None,
        feed: Feed | None = None,
        keep: Keep | None = None,
    ) -> None:
        self._setup = setup = setup.under_caller()
        self._keep = _made if keep is None else keep
        self._once = once
        self._session = session
        self._feed = feed
        observers = [hooks.observer for hooks in setup.hooks if hooks.observer is not None]
        self._observers = observers
        self._followed = Followed(setup.runtime) if observers else None
        self._is_watched = feed is not None or bool(observers)
        self.messages: list[Message] = [*history, prompt]
        self._call_ids = CallIds()
        self._prompt_at = len(history)
        """The place of the request that this run is about."""
        self._compaction: Compaction | None = None
        """Made, and not yet stored."""
        self.is_decided = False
        """Whether the run ended by a decision of its own. It would end in the same way if it were continued."""
        self.is_shortened = False
        """Whether the conversation is not what it was, with messages added, but was made shorter."""
        self._record = RunRecord()
        self._model = setup.model
        validators = [one for hooks in setup.hooks for one in hooks.validators]
        self._validators = Validators(validators, setup.runtime) if validators else None
        self._calls = ToolCalls(
            setup.toolbox,
            validators=self._validators,
            approval=setup.terms.approval_in(session),
            grant=setup.grant,
            expires=setup.expires,
            guards=guards_of(setup.hooks),
            concurrency=setup.concurrency,
            execute=self._execute,
        )
        self._requests = 0
        self._meter = RequestMeter(setup.runtime)
        self._begun = ""
        """The text before a pause of the provider."""
        self._limit = setup.asked.least_output(setup.max_output)
        """Tokens that the next answer may have."""
        self._cut: Fault | None = None
        """Why the last answer was cut; None: it was not."""
        self._shortened_at = -1
        """The number of turns when the conversation was last made shorter."""
        self._has_asked_for_credentials = False
        self._parking = Parking(setup.name, session, setup.on_limit, setup.runtime, self._emit)
        self._shown = False
        """Whether the text of the last answer was emitted piece by piece."""

    async def run(self) -> AgentReply:
        """Run to the end, and return the answer. What it raises has a fault with what there is so far."""
        try:
            with nullcontext() if self._followed is None else self._followed.following():
                return await self._run()
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            await self._show_followed()
            self._leave_partial(error)
            raise

    async def _run(self) -> AgentReply:
        bounds, record = self._setup.bounds, self._record
        while True:
            decision = before_request(record, bounds) or await self._turn()
            if isinstance(decision, FinishRun) and self._validators is not None:
                decision = await self._validated(decision, self._validators)
            match decision:
                case RunTools(calls=calls):
                    self._begun = ""
                    record.add_calls(calls)
                    await self._run_tools(decision)
                case FinishRun():
                    if self._setup.completion is not None:
                        self._close_calls()
                    return self._answer(decision)
                case ContinueAnswer(text=text):
                    self._begun += text
                case AskAgain(text=text):
                    record.reasks += 1
                    self.messages.append(User(text=text))
                case EndRun(fault=fault):
                    self._close_calls()
                    self.is_decided = True
                    raise HoldfastError(fault)

    async def _validated(self, finish: FinishRun, validators: Validators) -> Decision:
        """Return the answer as its validators correct it, or what follows because one of them rejects it."""
        text, reason = await validators.at_stop(finish.text)
        if reason:
            return after_invalid(reason, self._record, self._setup.bounds)
        return msgspec.structs.replace(finish, text=text)

    def _answer(self, finish: FinishRun) -> AgentReply:
        record = self._record
        return AgentReply(
            text=self._begun + finish.text,
            data=finish.data,
            turns=record.turns,
            tool_calls=record.tool_calls,
            usage=record.usage,
            usd=record.usd,
            model=record.model,
            session="" if self._session is None else self._session.id,
            messages=tuple(self.messages[self._prompt_at :]),
            agent=self._setup.name,
        )

    async def _turn(self) -> Decision | None:
        """Make one request, and return what follows; None: it is to be made again, in another form."""
        setup, record = self._setup, self._record
        self._requests += 1
        ended = await self._ended_request()
        match ended:
            case Answered(reply=reply, with_secrets=places, unused=unused):
                self._cut = None
                record.add_unused(unused)
                record.add_reply(reply)
                if unusable(reply) is None:
                    self.messages.append(reply.message)
                if self._is_watched:
                    await self._show_text(reply)
                check = None if setup.output is None else setup.output.value
                return after_reply(reply, record, setup.bounds, check, completion=setup.completion, with_secrets=places)
            case Misread(reason=reason, unused=unused):
                record.add_unused(unused)
                record.turns += 1
                return after_invalid(reason, record, setup.bounds)
            case Cut(limit=limit, unused=unused):
                record.add_unused(unused)
                record.turns += 1
                self._cut = unusable(Reply(stop="length"), self._limit)
                self._limit = limit
                return None
            case Overflowed():
                await self._compact()
                return None

    async def _ended_request(self) -> RequestEnd:
        while True:
            self._shown = False
            await self._parking.check()
            try:
                return await self._once.request(self._requests, self._request)
            except Exception as error:
                is_over = await self._parking.goes_on(error)
                if not is_over and not await self._is_remedied(self._setup.runtime.fault_of(error)):
                    raise

    # --- requests ---

    async def _request(self) -> RequestEnd:
        """Send one request. Failures that the loop can handle by itself are returned; the others are raised."""
        bounds, record = self._setup.bounds, self._record
        request = await self._compose()
        budget = _open_budget(self._model)
        meter = self._meter
        try:
            # Reserved before the request, so that agents that run side by side do not take the same turn.
            with nullcontext() if budget is None else budget.turn():
                reply = await meter.charged(self._model, request, lambda: self._send(request), budget)
        except Exception as error:
            fault = self._setup.runtime.fault_of(error)
            if fault.code in _OVERFLOWS and self._can_shorten():
                # Before the overflow is stored: if this fails, a later run asks again.
                self._compaction = await self._compacted()
                return Overflowed()
            if is_asked_again(fault, record, bounds):
                # The answer had no part at all, so there is none to store.
                return Answered(reply=Reply(), unused=meter.unused(None))
            if fault.code == "PROVIDER_OUTPUT_INVALID" and record.reasks < bounds.reasks:
                return Misread(reason=str(fault.context.get("reason", fault.message)), unused=meter.unused(None))
            record.add_unused(meter.unused(None))
            if self._cut is not None and fault.code in _REJECTED:
                # The provider rejects the higher limit, which nobody asked for. What the user must know is the limit that was reached.
                raise HoldfastError(self._cut) from error
            raise
        unused = meter.unused(reply)
        reply = with_own_ids(reply, self._call_ids.of(self.messages))
        fault_in_reply = unusable(reply, request.max_output)
        if fault_in_reply is not None and (cut := self._raised(reply, request, fault_in_reply, meter)) is not None:
            return cut
        if fault_in_reply is not None and not is_asked_again(fault_in_reply, record, bounds):
            # It is raised here and not stored, so that a later run asks again.
            record.add_unused(unused)
            record.add_reply(reply)
            self.messages.append(reply.message)
            self._close_calls()
            raise HoldfastError(fault_in_reply)
        return Answered(reply=reply, unused=unused)

    def _raised(self, reply: Reply, request: Request, fault: Fault, meter: RequestMeter) -> Cut | None:
        """Ask again, with a higher limit, for an answer that has reached its limit. A limit that the application gave is kept."""
        if self._setup.max_output is not None or request.max_output != self._limit:
            return None
        limit = raised_limit(reply, request.max_output, self._record, self._setup.bounds)
        if limit is None:
            return None
        runtime = self._setup.runtime
        why = f"the answer may now have {limit} tokens"
        at = runtime.clock.wall()
        runtime.bus.emit(
            Retry(at=at, operation=self._setup.name, attempt=1, max_attempts=None, delay=0, fault=fault, why=why)
        )
        return Cut(limit=limit, unused=meter.unused(None))

    async def _compose(self) -> Request:
        setup = self._setup
        request = Request(
            messages=tuple(self.messages),
            system=setup.system,
            tools=setup.specs,
            max_output=self._limit,
            schema=None if setup.output is None else setup.output.schema,
            accepts_invalid=True,
            **setup.asked.fields(has_called=self._record.tool_calls > 0),
        )
        for hooks in setup.hooks:
            if hooks.transform is not None:
                changed = hooks.transform(request)
                request = await changed if inspect.isawaitable(changed) else changed
                if not isinstance(request, Request):
                    raise InvalidError.at("hooks.transform", "a function that returns a Request", request)
        return request

    async def _send(self, request: Request) -> Reply:
        feed, model = self._feed, self._model
        # A model that cannot stream is asked for the whole answer, so streaming is never needed.
        check_offers(model, request, self._setup.runtime)
        if feed is None or model.offers.streaming is False:
            return await model.exchange(request)
        feed.begin_request()
        if self._followed is not None:
            self._followed.begin_request()
        reply: Reply | None = None
        async with model.stream(request, after_first="restart") as parts:
            async for part in parts:
                if isinstance(part, Reply):
                    reply = part
                elif part:
                    self._shown = True
                    await self._emit(Text(text=part))
        if reply is None:
            raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended without a complete answer"))
        return reply

    async def _show_text(self, reply: Reply) -> None:
        if reply.text and not self._shown:
            await self._emit(Text(text=reply.text))

    async def _is_remedied(self, fault: Fault) -> bool:
        """Ask a person about a request that failed, if one can help. Return whether to make it again."""
        session = self._session
        if session is None or not session.is_attended:
            return False
        if fault.category is Category.AUTH and fault.scope is not Scope.TOOL and not self._has_asked_for_credentials:
            self._has_asked_for_credentials = True
            prompt = f"{self._model.name} did not accept its credentials: {fault.message}. Renew them, then say yes."
            code = None if session.sign_in is None else await session.sign_in(fault)
            url, user_code = ("", "") if code is None else (code.url, code.user_code)
            return await session.authenticate(process_redactor().text(prompt), url=url, user_code=user_code)
        if fault.code in _MISSING:
            return await self._is_replaced(fault)
        return False

    async def _is_replaced(self, fault: Fault) -> bool:
        """Let a person choose another model, if there is one that can do what is needed."""
        assert self._session is not None
        others = {model.name: model for model in self._setup.alternatives if model is not self._model}
        needs = (await self._compose()).wants(streamed=False)
        choices = able(needs, {name: model.offers for name, model in others.items()})
        if not choices:
            return False
        chosen = await self._session.select(f"{fault.message}. Which model instead?", choices)
        self._model = others[chosen]
        return True

    # --- tools ---

    async def _run_tools(self, decision: RunTools) -> None:
        record = self._record
        # What people see of a call has one id. The conversation keeps the provider's.
        own = [
            msgspec.structs.replace(call, id=self._once.call_id(f"{self._requests}.{place}", call))
            for place, call in enumerate(decision.calls)
        ]
        if self._is_watched:
            for call in own:
                # A copy: the arguments of a call that is to be run must stay as they are approved.
                await self._emit(ToolCalled(id=call.id, name=call.name, arguments=copy.deepcopy(call.arguments)))
        run = [call for place, call in enumerate(own) if place not in decision.blocked]
        record.tool_calls += len(run)
        try:
            results: Sequence[CallResult] = await self._calls.run(
                run,
                key=str(self._requests),
                session=self._session,
                steps=self._once,
                returned=self._show_result if self._is_watched else None,
            )
        except BaseException as error:
            # One call ends the run. What the others did is in the conversation that the error holds.
            if (ended := results_of(error)) is not None:
                await self._add_results(decision, own, ended)
            raise
        await self._add_results(decision, own, results)

    async def _add_results(self, decision: RunTools, own: Sequence[ToolCall], results: Sequence[CallResult]) -> None:
        record, ran = self._record, iter(results)
        for place, call in enumerate(decision.calls):
            fault = decision.blocked.get(place)
            result = next(ran) if fault is None else await self._blocked(own[place], fault)
            text = result.content + self._details(result.fault)
            self.messages.append(ToolResult(id=call.id, text=text, failed=result.is_error))
            record.add_result(call, result.content, result.fault, is_run=fault is None)
            if result.is_agent:
                record.add_spend(result.usage, result.usd)
        record.end_turn()

    def _details(self, fault: Fault | None) -> str:
        """Return what the model gets of a failure beside its typed shape: nothing, if the stage does not allow it for debugging."""
        if fault is None or self._setup.detail == "typed":
            return ""
        shown = fault.for_audit(redactor=process_redactor())
        return "\n" + msgspec.json.encode({"details": shown}, enc_hook=str).decode()

    async def _blocked(self, call: ToolCall, fault: Fault) -> CallResult:
        content = Answer.failed(fault).content
        result = CallResult(id=call.id, name=call.name, content=content, is_error=True, fault=fault)
        if self._is_watched:
            await self._show_result(result)
        return result

    async def _show_result(self, result: CallResult) -> None:
        await self._emit(
            ToolReturned(
                id=result.id,
                name=result.name,
                content=result.content,
                is_error=result.is_error,
                fault=result.fault,
            )
        )

    async def _execute(self, call: ToolCall) -> CallResult:
        """Call a tool, or let an agent work; whatever becomes of it is a result."""
        agent = self._setup.agents.get(call.name)
        # An agent that a function runs is the function's own: what the function may do was decided with its call.
        with working_for(None if agent is None else self._setup.terms):
            if agent is not None:
                return await answer_of_agent(agent, self._setup.toolbox[call.name], call, self._session)
            return CallResult.of(await self._setup.toolbox.answer(call.name, call.arguments))

    def _close_calls(self) -> None:
        """Give each open call a result, so that what is kept of the conversation can be sent."""
        if is_valid(self.messages):
            return
        last = self.messages[-1]
        done = "" if self._setup.completion is None else self._setup.completion.tool
        for call in getattr(last, "calls", ()):
            is_done = call.name == done
            text = "Accepted." if is_done else "The call was not run: the run ended before it."
            self.messages.append(ToolResult(id=call.id, text=text, failed=not is_done))

    # --- conversations that are too long ---

    def _can_shorten(self) -> bool:
        # If the model has not answered since the last time, making it even shorter would lose the rest.
        if self._setup.compact is None or self._shortened_at == self._record.turns:
            return False
        return can_compact(self._setup.compact, self.messages, self._prompt_at)

    async def _compacted(self) -> Compaction:
        try:
            return await compacted(self._setup.compact, self.messages, self._prompt_at, self._summary)
        except HoldfastError as error:
            self.is_decided = error.fault.code == "PROVIDER_CONTEXT_OVERFLOW"
            raise

    async def _compact(self) -> None:
        """Go on with the shorter conversation that is stored, or with the one that was just made."""
        before = len(self.messages)

        async def make() -> Any:
            return msgspec.to_builtins(self._compaction or await self._compacted())

        made = msgspec.convert(await self._keep(f"{self._requests}/compacted", make), Compaction)
        self._compaction = None
        self.messages, self._prompt_at = list(made.messages), made.prompt
        self.is_shortened = True
        self._shortened_at = self._record.turns
        summary = made.summary
        if summary is not None and summary.is_answered:
            self._record.add_spend(summary.usage, summary.usd)
        if self._is_watched:
            fault = None if summary is None else summary.fault
            await self._emit(Compacted(before=before, after=len(self.messages), fault=fault))

    async def _summary(self, dropped: Sequence[Message]) -> Summary:
        """Ask the model for a summary. Without one, the messages are just left out, and an event says so."""
        runtime = self._setup.runtime
        request = Request(
            messages=(User(text=summary_prompt(dropped)),), max_output=self._setup.max_output or LEAST_OUTPUT
        )
        budget = _open_budget(self._model)
        cost: dict[str, Any] = {}
        try:
            meter = RequestMeter(runtime)
            reply = await meter.charged(self._model, request, lambda: self._model.exchange(request), budget)
        except Exception as error:
            fault: Fault | None = runtime.fault_of(error)
            if isinstance(error, BudgetError | AbortedError):
                raise
        else:
            cost = {"usage": reply.usage, "usd": LIST_PRICES.cost(reply.model, reply.usage), "is_answered": True}
            fault = unusable(reply)
            if fault is None and reply.text.strip():
                return Summary(text=reply.text, **cost)
        fault = fault or _NO_SUMMARY
        reason = "messages of an agent's conversation were left out without a summary"
        runtime.bus.emit(SuppressedError.of(fault, reason, at=runtime.clock.wall()))
        return Summary(fault=msgspec.structs.replace(fault, partial=None), **cost)

    # --- what others see ---

    async def _emit(self, part: AgentPart) -> None:
        await self._show_followed()
        for masked in (part,) if self._feed is None else self._feed.masked(part):
            await self._show(masked)
            if self._feed is not None:
                await self._feed.put(masked)

    async def _show_followed(self) -> None:
        """Show the observers the retries and fallbacks that have happened since the last part."""
        if self._followed is not None:
            for part in self._followed.take():
                await self._show(part)

    async def _show(self, part: AgentPart) -> None:
        for observer in self._observers:
            await self._observe(observer, part)
        if self._followed is not None:
            self._followed.note(part)

    async def _observe(self, observer: Callable[[Any], object], part: AgentPart) -> None:
        try:
            seen = observer(part)
            if inspect.isawaitable(seen):
                await seen
        except Exception as error:  # noqa: BLE001 - an observer never breaks a run
            runtime = self._setup.runtime
            runtime.bus.hook_raised(observer, "an agent's observer", error, at=runtime.clock.wall())

    async def show_end(self, reply: AgentReply, done: Callable[[AgentReply], AgentPart]) -> None:
        """Emit the last part."""
        if self._is_watched:
            await self._emit(done(reply))

    def _leave_partial(self, error: BaseException) -> None:
        """Leave on the error what there is so far."""
        fault = self._setup.runtime.fault_of(error)
        given = fault.partial.payload if fault.partial is not None and isinstance(fault.partial.payload, str) else ""
        partial_ = self._record.partial(self.messages, given)
        leave_fault(error, msgspec.structs.replace(fault, partial=partial_))


async def _made(place: str, make: Callable[[], Awaitable[Any]]) -> Any:
    del place
    return await make()


def _open_budget(model: Model) -> Budget | None:
    """Return the budget around the run, if there is one. Raise `BudgetError` if it is spent, or cannot know what the model costs."""
    ambient = in_force(AMBIENT.get())
    budget = None if ambient is None else ambient.budget
    if budget is not None:
        # All of a chain: that its last model has no price would otherwise be found out when the others have failed.
        for name in listed_names(model):
            budget.check(name)
    return budget
