"""One run of a workflow: performs what the machine asks for.

Invariant: when a run ends, nothing that it started is still running. Which items of `map` run at the same time has no influence on the
result: if one of them stops the others, its number is stored before the program goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError, OutcomeUnknownError
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.budgets.budget import Budget
from holdfast.runtime.failures.evidence import in_doubt
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions.later import is_waiting
from holdfast.tasks.workflows.durable import (
    Ended,
    all_or_first_failure,
    constant,
    ends_the_run,
    plain_result,
    shown_value,
    unsettled,
)
from holdfast.tasks.workflows.observation import BindingKept, CallEnded, CallStarted, Logged, WaitStarted
from holdfast.workflow.requests import Bound, CallRequest, Escalate, Later, Log, Parallel, WaitRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session
    from holdfast.tasks.workflows.durable import Keeper
    from holdfast.tasks.workflows.observation import Observation
    from holdfast.tasks.workflows.registered import Registered
    from holdfast.workflow.machine import Machine
    from holdfast.workflow.requests import BudgetScope, Request

__all__ = ["WorkflowRun"]

_MOST_FINISHED = 100
"""Finished items of a `map` that its failure shows."""
_LOG = logging.getLogger("holdfast")


class _StrandFailed(Exception):  # noqa: N818 - it never leaves this module
    """A strand of `map` failed, and stops the others."""

    def __init__(self, strand: Machine, index: int) -> None:
        super().__init__(index)
        self.strand = strand
        self.index = index


class WorkflowRun:
    """Drives a machine to its end."""

    def __init__(
        self,
        machine: Machine,
        registered: Registered,
        keeper: Keeper,
        *,
        session: Session | None,
        runtime: Runtime,
        concurrency: int,
        observe: Callable[[Observation], object] | None,
    ) -> None:
        self._machine = machine
        self._registered = registered
        self._keeper = keeper
        self._session = session
        self._runtime = runtime
        self._concurrency = concurrency
        self._observe = observe
        self._budgets = _Budgets(runtime)
        self._checkpoints: dict[str, int] = {}
        self._cut: list[tuple[str, CallRequest]] = []
        """Unsafe calls that were cancelled, each with its strand: they may have happened."""
        self._raised: dict[int, Exception] = {}
        """The exceptions that the program does not handle, by the identities of their faults, which the machine keeps."""

    async def finish(self) -> Any:
        """Run to the end and return the value; raise `WorkflowError` if it failed."""
        machine = self._machine
        try:
            await self._drive(machine)
        finally:
            self._budgets.close()
        if (bound := machine.unsaved()) is not None:
            await self._bound(machine, bound)
        if machine.failure is not None:
            raise machine.error() from self._raised.get(id(machine.failure.fault))
        return machine.value

    async def _drive(self, machine: Machine) -> None:
        request = machine.run()
        while request is not None:
            request = await self._perform(machine, request)

    async def _perform(self, machine: Machine, request: Request) -> Request | None:
        """Perform a request and return the next one."""
        match request:
            case CallRequest():
                return await self._call(machine, request)
            case Bound():
                await self._bound(machine, request)
            case Log():
                text = process_redactor().text(request.text)
                _LOG.info("workflow: %s", text)
                self._tell(Logged(text=text, position=request.position))
            case WaitRequest():
                await self._wait(machine, request.seconds)
            case Later():
                name = f"{machine.path}later/{machine.number('later')}"
                self._tell(WaitStarted(seconds=request.seconds))
                await self._keeper.wait_later(name, request)
            case Escalate():
                name = f"{machine.path}operator/{machine.number('operator')}"
                return machine.resume(await self._keeper.ask_operator(name, request))
            case Parallel():
                return await self._parallel(machine, request)
            case _:
                # A long evaluation lets others run, and can be cancelled here.
                await asyncio.sleep(0)
        return machine.resume()

    async def _call(self, machine: Machine, call: CallRequest) -> Request | None:
        strand = machine.path
        facts: dict[str, Any] = {"kind": call.kind, "name": call.name, "position": call.position, "strand": strand}
        self._tell(CallStarted(expression=process_redactor().text(call.expression), **facts))

        async def make() -> Ended:
            return await self._make(machine, call)

        whole = self._registered.whole(call)
        try:
            ended = await self._keeper.call(strand, whole, self._registered.contract(call), make)
        except Exception as error:
            if ends_the_run(error) or is_waiting(error):
                raise
            fault = self._runtime.fault_of(error)
            self._raised[id(fault)] = error
            ended = Ended(fault=fault)
        if ended.fault is not None:
            text = process_redactor().text(ended.fault.message)
            self._tell(CallEnded(ok=False, stored=ended.stored, text=text, **facts))
            return machine.fail(ended.fault, whole)
        self._tell(CallEnded(ok=True, stored=ended.stored, text=shown_value(call.name, ended.value, 200), **facts))
        return machine.resume(ended.value)

    async def _make(self, machine: Machine, call: CallRequest) -> Ended:
        """Make a call. A failure that the program handles is an outcome like any other; another one is raised."""

        async def perform() -> Any:
            return plain_result(await self._registered.perform(call, self._session), call.name)

        try:
            return Ended(value=await self._budgets.within(call.scopes, perform))
        except asyncio.CancelledError:
            contract = self._registered.contract(call)
            if contract is not None and contract.effect == "unsafe":
                self._cut.append((machine.path, call))
            raise
        except Exception as error:
            if ends_the_run(error):
                raise
            fault = self._runtime.fault_of(error)
            if not machine.will_catch(fault):
                raise
            if in_doubt(error, fault, self._registered.contract(call)):
                # `retry` would make it again, and `fallback` something like it.
                raise unsettled(call, fault) from error
            return Ended(fault=fault)

    async def _bound(self, machine: Machine, bound: Bound) -> None:
        number = self._checkpoints.get(machine.path, 0)
        self._checkpoints[machine.path] = number + 1
        await self._keeper.bound(machine.path, number, bound)
        for binding in bound.bindings:
            text = shown_value(binding.name, binding.value, 200)
            self._tell(BindingKept(name=binding.name, text=text, position=binding.position, strand=machine.path))

    async def _wait(self, machine: Machine, seconds: float) -> None:
        async def wait() -> None:
            self._tell(WaitStarted(seconds=seconds))
            await asyncio.sleep(seconds)

        # A delay that is over is not waited for again after a restart.
        await self._keeper.once(f"{machine.path}wait/{machine.number('wait')}", wait)

    async def _parallel(self, machine: Machine, request: Parallel) -> Request | None:
        results: dict[int, Any] = {}
        failed_before = await self._stopped_by(request)
        todo = iter(range(request.count) if failed_before is None else (failed_before,))
        waiting: list[HoldfastError] = []
        # What an earlier run has cut is looked up by its own item. A stored failure of another item must not come before that.
        in_doubt_before = bool(self._keeper.doubts())
        has_failed = False

        async def work() -> None:
            nonlocal has_failed
            for index in todo:
                if has_failed and in_doubt_before:
                    return
                strand = request.strand(index)
                try:
                    await self._drive(strand)
                except HoldfastError as error:
                    if not is_waiting(error):
                        raise
                    # An item that waits in the store does not stop the others.
                    waiting.append(error)
                    continue
                if strand.failure is None:
                    results[index] = strand.value
                elif request.collect:
                    results[index] = strand.failure.value()
                else:
                    has_failed = True
                    strand.failure.details.setdefault("finished_items", _shown(results))
                    raise _StrandFailed(strand, index)

        limit = min(request.limit or self._concurrency, self._concurrency, request.count)
        try:
            workers = [work() for _ in range(limit)]
            await all_or_first_failure(workers, _StrandFailed, stops_others=not in_doubt_before)
        except _StrandFailed as stopped:
            return await self._stopped(machine, request, stopped)
        if waiting:
            raise min(waiting, key=lambda error: error.fault.context.get("parked_until", float("inf")))
        return machine.resume([results.get(index) for index in range(request.count)])

    async def _stopped(self, machine: Machine, request: Parallel, stopped: _StrandFailed) -> Request | None:
        """Let the map fail as its item did. Raise `OutcomeUnknownError` if that stopped an unsafe call: `retry` would make it again."""
        if machine.will_catch_strand(stopped.strand):
            for strand, call in self._cut:
                if strand.startswith(request.path):
                    reason = "another item of the map failed, which stopped it"
                    raise OutcomeUnknownError(unsettled(call, Fault.of("SYS_CANCELLED", reason)).fault)
            await self._keeper.once(f"{request.path}/stopped-by", constant(stopped.index))
        return machine.fail_strand(stopped.strand)

    async def _stopped_by(self, request: Parallel) -> int | None:
        """Return the item whose failure stopped this map in an earlier run, and was handled, or None."""
        if request.collect:
            return None
        found = await self._keeper.stored(f"{request.path}/stopped-by")
        return found if isinstance(found, int) else None

    def _tell(self, observation: Observation) -> None:
        if self._observe is not None:
            self._observe(observation)


def _shown(results: dict[int, Any]) -> dict[str, str]:
    return {str(index): shown_value("item", results[index]) for index in sorted(results)[:_MOST_FINISHED]}


class _Budgets:
    """The budgets of `with-budget` that time or money limits."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._deadlines: dict[str, float] = {}
        self._open: dict[str, tuple[contextvars.Context, Budget]] = {}

    async def within(self, scopes: tuple[BudgetScope, ...], perform: Callable[[], Awaitable[Any]]) -> Any:
        """Perform something inside of these budgets."""
        seconds = [scope for scope in scopes if scope.seconds is not None]
        if not seconds and not any(scope.usd is not None or scope.tokens is not None for scope in scopes):
            return await perform()
        task = asyncio.get_running_loop().create_task(_as_coroutine(perform), context=self._context(scopes))
        now = asyncio.get_running_loop().time()
        ends = [(self._deadlines.setdefault(scope.id, now + (scope.seconds or 0.0)), scope) for scope in seconds]
        if not ends:
            return await _whole(task)
        end, scope = min(ends, key=lambda pair: pair[0])
        timeout = asyncio.timeout_at(end)
        try:
            async with timeout:
                return await _whole(task)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise _out_of_time(scope.seconds or 0.0) from None

    def _context(self, scopes: tuple[BudgetScope, ...]) -> contextvars.Context:
        """Return the context of the caller, with the budgets of money and tokens in force."""
        outer = contextvars.copy_context()
        inmost: contextvars.Context | None = None
        for scope in scopes:
            if scope.usd is None and scope.tokens is None:
                continue
            if scope.id not in self._open:
                budget = Budget(usd=scope.usd, tokens=scope.tokens, runtime=self._runtime)
                context = outer.copy()
                context.run(budget.__enter__)
                self._open[scope.id] = context, budget
            outer = inmost = self._open[scope.id][0]
        found = contextvars.copy_context()
        if inmost is not None:
            found.run(AMBIENT.set, inmost[AMBIENT])
        return found

    def close(self) -> None:
        """Leave all budgets."""
        for context, budget in reversed(self._open.values()):
            context.run(budget.__exit__, None, None, None)


async def _as_coroutine(perform: Callable[[], Awaitable[Any]]) -> Any:
    return await perform()


async def _whole(task: asyncio.Task[Any]) -> Any:
    """Wait for a task; if the caller is cancelled, cancel the task and wait for its end."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise


def _out_of_time(seconds: float) -> HoldfastError:
    message = f"The budget of {seconds:g} seconds is used"
    return HoldfastError(Fault.of("TASK_TIMEOUT", message, context={"timeout_s": seconds}))
