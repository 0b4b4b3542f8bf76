"""`ToolCalls`: runs the tool calls of one reply of a model, several at the same time.

    call ─▶ is it known? do its arguments fit? ─▶ may it run? ─▶ guards ─▶ a free place ─▶ the tool, as a durable step ─▶ result

Invariant: each call has one result, and the results are in the order of the calls. A call that fails, is denied, is cancelled or times out
has a typed result that the model can act on; it never ends the turn. A person is asked about one call at a time, in the order of the
calls, while calls that may run are running.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from holdfast import options
from holdfast.agents.approval import denied
from holdfast.agents.approver import Approver
from holdfast.agents.call_result import CallResult
from holdfast.agents.once import InSession
from holdfast.agents.usage_limit import is_parked
from holdfast.faults import AbortedError, Fault, HoldfastError, Partial
from holdfast.providers.messages import ToolCall
from holdfast.runtime.fault_of import fault_of, leave_fault
from holdfast.runtime.shield import wait_to_end
from holdfast.tools.toolbox import Answer, shown_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.agents.approval import Approval
    from holdfast.agents.approver import Granting
    from holdfast.agents.once import Once
    from holdfast.agents.validators import Validators
    from holdfast.sessions.session import Session
    from holdfast.tools.toolbox import Tool, Toolbox

__all__ = ["Execute", "Guard", "ToolCalls", "ends_run", "results_of"]

_CONCURRENCY = 8


Execute: TypeAlias = Callable[[ToolCall], Awaitable[CallResult]]
"""Runs one call and returns its result. It raises only cancellations."""
Guard: TypeAlias = Callable[[ToolCall], str | Awaitable[str | None] | None]
"""Looks at a call that may run. A text denies it: the model gets the text."""


class ToolCalls:
    """Runs the tool calls of a model's replies.

        results = await ToolCalls(toolbox).run(reply.calls)
        messages = [ToolResult(id=each.id, text=each.content, failed=each.is_error) for each in results]

    approval: what may run; by default the mode of the session that `run` gets.
    grant: finds a token for exactly one call; it wins over the mode.
    guards: look at each call that may run, before it runs. One that raises ends the run.
    concurrency: the most calls that run at the same time.
    expires: the seconds in which a person may answer; then the call is denied. By default a question waits.
    execute: runs one call; by default `Toolbox.answer`.
    validators: check a call before anybody is asked about it, and its result.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        approval: Approval | None = None,
        grant: Granting | None = None,
        guards: Iterable[Guard] = (),
        concurrency: int = _CONCURRENCY,
        expires: float | None = None,
        execute: Execute | None = None,
        validators: Validators | None = None,
    ) -> None:
        options.count("tool_calls.concurrency", concurrency)
        options.seconds("tool_calls.expires", expires, optional=True)
        self.toolbox = toolbox
        self.approval = approval
        self.grant = grant
        self.guards = tuple(guards)
        self.concurrency = concurrency
        self.expires = expires
        self.validators = validators
        self.execute: Execute = self._answer if execute is None else execute
        self._replies: list[_Reply] = []

    async def run(
        self,
        calls: Sequence[ToolCall],
        *,
        key: str = "",
        session: Session | None = None,
        steps: Once | None = None,
        returned: Callable[[CallResult], object] | None = None,
    ) -> list[CallResult]:
        """Run the calls of one reply; return their results in the order of the calls.

            results = await calls.run(reply.calls, key=f"reply {number}", session=session)

        `key` names the reply, the same in every run of the program; calls have the places `key.0`, `key.1` …. `session` asks people, and
        keeps their answers and the audit trail. With both, each call is a step of the session: a program that is killed and run again gets
        its result, and makes no unsafe call twice. `steps` makes the calls durable in another way. `returned` gets each result as soon as
        it is there; it may be async.

        Raises what the session raises: SESS_NO_INTERACTOR if a person must be asked and nobody is attached (the questions are kept, and the
        calls that may run have been run), failures of its store, and what a tool's library made to end the program: an exception that is
        no `Exception`. `fault_of(error).partial.payload["results"]` has the result of each call then. A cancellation ends all calls.
        """
        if steps is None and session is not None and key:
            steps = InSession(session, f"calls {key}", shown_result, None)
        reply = _Reply(self, session, steps, returned)
        self._replies.append(reply)
        try:
            return await reply.run([(f"{key}.{at}" if key else str(at), call) for at, call in enumerate(calls)])
        finally:
            self._replies.remove(reply)

    def cancel(self, id: str) -> bool:  # noqa: A002 - the protocol's own name
        """Cancel one call by its id; the others go on. Its result says that it was cancelled. Return whether it was running."""
        return sum(reply.cancel(id) for reply in self._replies) > 0

    async def _answer(self, call: ToolCall) -> CallResult:
        return CallResult.of(await self.toolbox.answer(call.name, call.arguments))


class _Reply:
    """The calls of one reply while they run."""

    def __init__(
        self,
        calls: ToolCalls,
        session: Session | None,
        steps: Once | None,
        returned: Callable[[CallResult], object] | None,
    ) -> None:
        self._calls = calls
        self._steps = steps
        self._returned = returned
        self._approver = Approver(session, approval=calls.approval, grant=calls.grant, expires=calls.expires)
        self._free = asyncio.Semaphore(calls.concurrency)
        self._tasks: dict[asyncio.Task[CallResult], ToolCall] = {}
        self._cancelled: set[asyncio.Task[CallResult]] = set()
        """Calls that were cancelled one by one."""
        self._owner: asyncio.Task[object] | None = None
        """The task that waits for the calls. If it is cancelled, so are they."""

    async def run(self, calls: Sequence[tuple[str, ToolCall]]) -> list[CallResult]:
        self._owner = asyncio.current_task()
        tasks = [asyncio.ensure_future(self._one(place, call)) for place, call in calls]
        self._tasks = dict(zip(tasks, (call for _, call in calls), strict=True))
        try:
            if tasks:
                # Also after an error: a call that was cut off in the middle would leave its outcome unknown.
                await asyncio.wait(tasks)
        finally:
            self._cancelled.clear()
            # Most replies come here with all calls ended, and then there is nothing to wait for.
            if all(task.done() for task in tasks):
                _look_at(tasks)
            else:
                await wait_to_end(_stop(tasks))
        error = _error_of(tasks)
        if error is not None:
            ended = [_ended(task, call) for task, call in self._tasks.items()]
            partial = Partial(payload={"results": msgspec.to_builtins(ended)})
            leave_fault(error, msgspec.structs.replace(fault_of(error), partial=partial))
            raise error
        return [task.result() for task in tasks]

    def cancel(self, id_: str) -> bool:
        running = [task for task, call in self._tasks.items() if call.id == id_ and not task.done()]
        for task in running:
            self._cancelled.add(task)
            task.cancel()
        return bool(running)

    async def _one(self, place: str, call: ToolCall) -> CallResult:
        running = _Running(place, call)
        try:
            result = await self._result(running)
            await self._end_own_cancellation()
        except asyncio.CancelledError:
            if not self._is_alone():
                self._approver.audit(call, event="cancelled")
                raise
            result = await self._was_cancelled(running)
        except AbortedError as error:
            # Only if the scope of this one call was cancelled. If a scope around it was, the turn ends.
            if error.fault.code != "TOOL_CANCELLED" or error.fault.context.get("reason") == "parent":
                raise
            result = await self._was_cancelled(running)
        result = msgspec.structs.replace(result, id=call.id, name=call.name)
        if self._returned is not None:
            seen = self._returned(result)
            if inspect.isawaitable(seen):
                await seen
        return result

    async def _end_own_cancellation(self) -> None:
        """Raise the caller's cancellation, if there is one. One that only this call's tool left behind must not take its result."""
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if not self._is_alone():
                    raise
            else:
                self._is_alone()

    def _is_alone(self) -> bool:
        """Whether only this call is cancelled: by `cancel`, or by its tool, which may cancel the task that it runs in."""
        task = asyncio.current_task()
        assert task is not None
        if task in self._cancelled:
            self._cancelled.discard(task)
            task.uncancel()
        elif self._owner is None or not self._owner.cancelling():
            # Nobody else cancels the task of a call: its owner is cancelled first, and the end of the loop cancels both.
            while task.cancelling():
                task.uncancel()
        return not task.cancelling()

    async def _was_cancelled(self, running: _Running) -> CallResult:
        call, tool = running.call, running.tool if running.began else None
        self._approver.audit(call, event="cancelled", began=running.began)
        effect = None if tool is None else tool.contract.effect
        fault = Fault.of("TOOL_CANCELLED", maybe_executed=effect == "unsafe", context={"tool": call.name})
        return await self._step(running.place, call, tool, _returning(_failed(fault)))

    async def _step(
        self, place: str, call: ToolCall, tool: Tool | None, run: Callable[[], Awaitable[CallResult]]
    ) -> CallResult:
        return await (run() if self._steps is None else self._steps.call(place, call, tool, run))

    async def _result(self, running: _Running) -> CallResult:
        place, call = running.place, running.call
        fault = self._misfit(running)
        if fault is None:
            # Also of a call that has begun: what it was corrected to is not stored.
            rejected = await self._checked(running)
            if self._steps is None or not await self._steps.has_begun(place):
                # A validator may have corrected its arguments.
                changed = rejected or (None if self._calls.validators is None else self._misfit(running))
                fault = changed or await self._forbidden(running)
        if fault is not None:
            return await self._step(place, call, None, _returning(_failed(fault)))
        async with self._free:
            running.began = True
            call = running.call
            try:
                return await self._step(place, call, running.tool, lambda: self._executed(call))
            except Exception as error:
                fault = fault_of(error)
                # A cancelled scope, a failure of the session, a limit that an agent among the tools waits for: they end the run.
                if isinstance(error, AbortedError) or ends_run(fault):
                    raise
                return _failed(fault)

    async def _executed(self, call: ToolCall) -> CallResult:
        """Run a call, and have its result checked: what validators correct is what is stored and what the model gets."""
        result, validators = await self._calls.execute(call), self._calls.validators
        if validators is None or result.is_error:
            return result
        content, reason = await validators.after(call, result.content)
        if not reason:
            return msgspec.structs.replace(result, content=content)
        # The call was made. The model gets its result too, or it would repeat what has happened.
        fault = Fault.of("TOOL_OUTPUT_MALFORMED", context={"tool": call.name, "reason": reason})
        failed = Answer.failed(fault).content
        return msgspec.structs.replace(result, content=f"{failed}\n{reason}\n{content}", is_error=True, fault=fault)

    def _misfit(self, running: _Running) -> Fault | None:
        """Return why a call cannot run at all. Nobody is asked about such a call."""
        call = running.call
        if call.mistake:
            return Fault.of("TOOL_INPUT_INVALID", context={"tool": call.name, "reason": call.mistake})
        try:
            tool = running.tool = self._calls.toolbox[call.name]
            tool.arguments.read(call.arguments)
        except HoldfastError as error:
            return error.fault
        return None

    async def _checked(self, running: _Running) -> Fault | None:
        """Correct a call as its validators want, or return why one of them rejects it."""
        if self._calls.validators is None:
            return None
        running.call, reason = await self._calls.validators.before(running.call)
        return denied(running.call.name, reason) if reason else None

    async def _forbidden(self, running: _Running) -> Fault | None:
        """Return why a call may not run: nobody approved it, or a guard denies it."""
        assert running.tool is not None
        approved = await self._approver.approve(running.call, running.tool.contract.effect, running.place)
        if isinstance(approved, Fault):
            return approved
        running.call = approved
        for guard in self._calls.guards:
            reason = guard(running.call)
            if inspect.isawaitable(reason):
                reason = await reason
            if reason is not None:
                self._approver.audit(running.call, event="decided", verdict="deny", by="guard", reason=reason)
                return denied(running.call.name, reason)
        return None


class _Running:
    """One call: how far it is."""

    __slots__ = ("began", "call", "place", "tool")

    def __init__(self, place: str, call: ToolCall) -> None:
        self.place = place
        self.call = call
        self.tool: Tool | None = None
        self.began = False
        """Whether its tool may have been called."""


def ends_run(fault: Fault) -> bool:
    """Whether a failure is not the result of one call: the session failed or waits for a person, or a run is parked."""
    return fault.code.startswith("SESS_") or is_parked(fault)


def _failed(fault: Fault) -> CallResult:
    return CallResult.of(Answer.failed(fault))


def _returning(result: CallResult) -> Callable[[], Awaitable[CallResult]]:
    async def run() -> CallResult:
        return result

    return run


async def _stop(tasks: Sequence[asyncio.Task[CallResult]]) -> None:
    """Cancel the calls that still run, and wait for their end."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
    _look_at(tasks)


def _error_of(tasks: Sequence[asyncio.Task[CallResult]]) -> BaseException | None:
    """Return the first error. If it is that nobody could be asked, it is the one that names all open questions."""
    if any(task.cancelled() for task in tasks):
        return None
    errors = [error for task in tasks if (error := task.exception()) is not None]
    unasked = [each for each in errors if isinstance(each, HoldfastError) and each.fault.code == "SESS_NO_INTERACTOR"]
    if unasked and unasked[0] is errors[0]:
        return max(unasked, key=lambda each: len(each.fault.context.get("open", ())))
    return errors[0] if errors else None


def _ended(task: asyncio.Task[CallResult], call: ToolCall) -> CallResult:
    """Return the result of a call beside one that raised. What raised has one, too: the conversation can be sent."""
    error = task.exception()
    result = task.result() if error is None else _failed(fault_of(error))
    return msgspec.structs.replace(result, id=call.id, name=call.name, fault=None)


def results_of(error: BaseException) -> list[CallResult] | None:
    """Return the results of the calls that `ToolCalls.run` left on what it raised; None: it left none."""
    partial = fault_of(error).partial if getattr(error, "__dict__", None) else None
    results = partial.payload.get("results") if partial is not None and isinstance(partial.payload, dict) else None
    return None if results is None else msgspec.convert(results, list[CallResult])


def _look_at(tasks: Sequence[asyncio.Task[CallResult]]) -> None:
    """Look at each error, or asyncio would report that nobody has seen it. The first one is raised."""
    for task in tasks:
        if not task.cancelled():
            task.exception()
