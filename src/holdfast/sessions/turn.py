"""One turn of a session: its steps, each run once.

Invariant: a step's name is its function's name and a counter: 1 for its first use in the turn, 2 for the second. The same
program therefore gives the same names after a crash, and the stored results are found by name.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast import options
from holdfast.faults import Err, Fault, HoldfastError, InvalidError, Ok, OutcomeUnknownError
from holdfast.runtime.tool import contract_of
from holdfast.sessions import codec
from holdfast.sessions.idempotency import keyed
from holdfast.sessions.journal import audit
from holdfast.sessions.log import StepEnded, StepStarted
from holdfast.sessions.scopes import Scope
from holdfast.sessions.steps import Drifted, Repeat, Return, Unknown, decide_step, needs_start

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from holdfast.faults import Outcome
    from holdfast.policies.decide import Effect
    from holdfast.sessions.journal import Journal
    from holdfast.stores import NewAudit

__all__ = ["SESSION_FAILURES", "Locks", "Turn", "name_of"]


class _Step(NamedTuple):
    name: str
    args: str
    """The hash of its arguments."""
    effect: Effect | None
    returns: Any
    """The declared type of its result."""


class Locks:
    """The locks that keep turns in order. They are made with the first turn, because most sessions are idle."""

    __slots__ = ("changing", "queue")

    def __init__(self) -> None:
        self.queue = asyncio.Lock()
        """Held by the turn that runs. Later turns wait for it in order."""
        self.changing = asyncio.Lock()
        """Held while a turn begins or ends, or the session's state changes."""


class Turn:
    """One turn: what a session does between two checkpoints. `Session.turn` makes it.

    async with session.turn(user_message) as turn:
        await session.step(make_plan)
        print(turn.number)
    """

    def __init__(self, journal: Journal, number: int, scope: Scope) -> None:
        self.number = number
        """1, 2, 3 … in the session."""
        self.scope = scope
        """The scope that cancels the turn. Use it as the parent of your own scopes."""
        self._journal = journal
        self._uses: dict[str, int] = {}

    def cancel(self) -> bool:
        """Cancel the turn; the session goes on. Return whether the turn was running.

        The turn's block raises `AbortedError` with SESS_TURN_CANCELLED.
        """
        return self.scope.cancel("user")

    def next_name(self, what: str) -> str:
        """Return the name of the next use of `what` in this turn: `make_plan#2`."""
        n = self._uses[what] = self._uses.get(what, 0) + 1
        return f"{what}#{n}"

    async def step(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step, or return its stored result."""
        return await self.perform(self.next_name(name_of(fn)), fn, args, kwargs)

    async def map(self, fn: Callable[..., Any], items: Iterable[Any], concurrency: int) -> AsyncIterator[Outcome[Any]]:
        """Run a step for each item, `concurrency` at a time; yield the outcomes in the order of the items."""
        options.count("map.concurrency", concurrency)
        base = self.next_name(f"{name_of(fn)}[]")
        running: deque[asyncio.Task[Outcome[Any]]] = deque()
        try:
            for n, item in enumerate(items):
                # Wait for the oldest task: this keeps the order of the items, and bounds how many results are held.
                if len(running) >= concurrency:
                    yield await running.popleft()
                running.append(asyncio.ensure_future(self._outcome(f"{base}/{n}", fn, item)))
            while running:
                yield await running.popleft()
        finally:
            # The caller may leave the loop early, or an item may have raised.
            await _stop(running)

    async def _outcome(self, name: str, fn: Callable[..., Any], item: Any) -> Outcome[Any]:
        try:
            return Ok(await self.perform(name, fn, (item,), {}))
        except HoldfastError as error:
            if error.fault.code in SESSION_FAILURES:
                raise
            return Err(error.fault, error)
        except Exception as error:  # noqa: BLE001 - any failure of an item is its outcome
            return Err(self._journal.fault_of(error), error)

    def fault_of(self, error: Exception) -> Fault:
        """Return the fault of a step's exception, by the rules of the session's runtime."""
        return self._journal.fault_of(error)

    def may_have_happened(self, name: str) -> bool:
        """Whether a step may have happened and must not be repeated automatically."""
        return name in self._journal.memory.unknown()

    async def perform(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the step of this name, or return its stored result.

        Raise SESS_STEP_DRIFT if it was stored with other arguments, and `OutcomeUnknownError` if it may have happened.
        """
        # A task that runs longer than its turn must not write into the next turn.
        if not self._journal.memory.is_under_way(self.number):
            raise self._over()
        contract = contract_of(fn)
        step = _Step(
            name=name,
            args=_hash_of(fn, args, kwargs, name),
            effect=None if contract is None else contract.effect,
            returns=codec.result_type(fn),
        )
        decision = decide_step(self._journal.memory.steps.get(name), step.args, step.effect)
        match decision:
            case Return(result):
                # Decode it each time, because the caller may change the value it gets.
                return codec.decode(bytes(result), step.returns, name)
            case Drifted():
                raise HoldfastError(Fault.of("SESS_STEP_DRIFT", context={"step": name, "turn": self.number}))
            case Unknown():
                raise self._unknown(name)
            case _:
                repeats = isinstance(decision, Repeat) and decision.unknown
                if isinstance(decision, Repeat) and not decision.unknown:
                    self._journal.recorder.add(self._record("ToolInvocation", step, repeated=True, failed_before=True))
        # Before the step runs: after its effect it would be too late.
        codec.check_declared(step.returns, name)
        if needs_start(step.effect):
            await self._started(step, repeats=repeats)
        # The step has its own scope: cancelling the turn cancels the step first, with TOOL_CANCELLED.
        async with Scope("tool", parent=self.scope, name=name):
            return await self._run(step, partial(fn, *args, **kwargs))

    async def _run(self, step: _Step, call: Callable[[], Any]) -> Any:
        try:
            key = self.key(step.name)
            with keyed(key), self._journal.recorder.inside(self.number, step.name, key):
                result = call()
                if inspect.isawaitable(result):
                    result = await result
        # Do not catch a cancellation: the outcome of the step is then unknown, and its start is in the log.
        except Exception as error:
            await self._failed(step, error)
            raise
        try:
            await self._ended(step, codec.encode_result(result, step.returns, step.name))
        except InvalidError as error:
            # The step has happened, but its result cannot be stored. An unsafe step must not be repeated then.
            await self._failed(step, error, happened=True)
            error.add_note(self._unstored(step))
            raise
        return result

    def _unstored(self, step: _Step) -> str:
        if step.effect == "unsafe":
            key = self.key(step.name)
            return f"The step has run, and is not repeated: settle it with session.resolve({key!r}, happened=True, result=…)"
        return "The step has run, and its result is not stored: it runs again when it is called again"

    async def _started(self, step: _Step, *, repeats: bool) -> None:
        """Store that a step starts. A second start is recorded in the audit trail too."""
        started = StepStarted(turn=self.number, step=step.name, args=step.args, effect=step.effect, repeats=repeats)
        records = (self._record("ToolInvocation", step, repeated=True),) if repeats else ()
        await self._journal.write(started, audit=records)

    async def _ended(self, step: _Step, stored: bytes) -> None:
        ended = StepEnded(turn=self.number, step=step.name, args=step.args, ok=True, result=msgspec.Raw(stored))
        records = (self._record("ToolInvocation", step, ok=True),) if step.effect == "unsafe" else ()
        await self._journal.write(ended, audit=records)

    async def _failed(self, step: _Step, error: Exception, *, happened: bool = False) -> None:
        """Store how a step failed, and whether it may have happened nevertheless, if it is unsafe."""
        fault = self._journal.fault_of(error)
        happened = happened or fault.maybe_executed or isinstance(error, OutcomeUnknownError)
        unknown = step.effect == "unsafe" and happened
        ended = StepEnded(
            turn=self.number,
            step=step.name,
            args=step.args,
            ok=False,
            result=msgspec.Raw(msgspec.json.encode(fault.for_audit())),
            unknown=unknown,
        )
        try:
            await self._journal.write(ended, audit=(self._record("Fault", step, code=fault.code, unknown=unknown),))
        except HoldfastError as failure:
            # The caller must see the step's own error.
            error.add_note(f"and it could not be saved: {failure}")

    def _record(self, kind: str, step: _Step, **facts: Any) -> NewAudit:
        return audit(kind, self.key(step.name), step=step.name, effect=step.effect, **facts)

    def key(self, name: str) -> str:
        """Return the idempotency key of a step. It is the same in every attempt, also after a crash."""
        return f"{self._journal.session}/{self.number}/{name}"

    def _over(self) -> HoldfastError:
        if self._journal.failed is not None:
            return HoldfastError(self._journal.failed)
        message = f"Session '{self._journal.session}' takes no step: its turn {self.number} is over"
        return HoldfastError(
            Fault.of(
                "SESS_TURN_CONCURRENT", message, context={"session_id": self._journal.session, "turn": self.number}
            )
        )

    def _unknown(self, name: str) -> OutcomeUnknownError:
        key = self.key(name)
        message = f"Step {name} was started and its end is not known; it must not be repeated automatically"
        return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, context={"key": key, "step": name}))


SESSION_FAILURES = frozenset({"SESS_STORE_UNAVAILABLE", "SESS_LEASE_LOST", "SESS_STEP_DRIFT"})
"""Failures of the session itself. They are not the outcome of one item, because every other step would fail too."""


async def _stop(tasks: deque[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _hash_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> str:
    """Return the hash of all arguments of a function, including those that a partial holds."""
    # The arguments inside a partial affect the result too.
    while isinstance(fn, partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return codec.arguments_hash(args, kwargs, name)


def name_of(fn: Callable[..., Any]) -> str:
    """Return the function's qualified name.

    The module is left out, because the same module is `__main__` or has its real name, depending on how the program is started.
    """
    fn = inspect.unwrap(getattr(fn, "func", fn))
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))
