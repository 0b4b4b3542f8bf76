"""One turn of a session: its steps, each done once.

Invariant: a step's name is its function's and its n-th use in the turn, so the same program gives the same names after a crash.
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
from holdfast.runtime.fault_of import fault_of
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
    from holdfast.policies.effect import Effect
    from holdfast.sessions.journal import Journal
    from holdfast.stores import NewAudit

__all__ = ["NOT_THE_STEPS", "Locks", "Turn", "name_of"]


class _Step(NamedTuple):
    name: str
    args: str
    """The hash of its arguments."""
    effect: Effect | None
    returns: Any
    """The declared type of its result."""


class Locks:
    """What keeps turns in order. Made when the first is begun: most sessions are idle most of the time."""

    __slots__ = ("changing", "queue")

    def __init__(self) -> None:
        self.queue = asyncio.Lock()
        """Turns wait here, first come, first served."""
        self.changing = asyncio.Lock()
        """What begins or ends a turn, or changes the session's state, waits here for what does so already."""


class Turn:
    """What a session does between two checkpoints."""

    def __init__(self, journal: Journal, number: int, scope: Scope) -> None:
        self.number = number
        self.scope = scope
        self._journal = journal
        self._uses: dict[str, int] = {}

    def cancel(self) -> bool:
        """Cancel the turn and all it does; the session goes on."""
        return self.scope.cancel("user")

    def next_name(self, what: str) -> str:
        """Return the name of the next use of `what` in this turn: `make_plan#2`."""
        n = self._uses[what] = self._uses.get(what, 0) + 1
        return f"{what}#{n}"

    async def step(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do a step, or return what it returned when it was done."""
        return await self.perform(self.next_name(name_of(fn)), fn, args, kwargs)

    async def map(self, fn: Callable[..., Any], items: Iterable[Any], concurrency: int) -> AsyncIterator[Outcome[Any]]:
        """Do a step for each item, so many at once; yield how each ended, in the order of the items."""
        options.count("map.concurrency", concurrency)
        base = self.next_name(f"{name_of(fn)}[]")
        begun: deque[asyncio.Task[Outcome[Any]]] = deque()
        try:
            for n, item in enumerate(items):
                if len(begun) >= concurrency:
                    yield await begun.popleft()
                begun.append(asyncio.ensure_future(self._outcome(f"{base}/{n}", fn, item)))
            while begun:
                yield await begun.popleft()
        finally:
            await _stop(begun)

    async def _outcome(self, name: str, fn: Callable[..., Any], item: Any) -> Outcome[Any]:
        try:
            return Ok(await self.perform(name, fn, (item,), {}))
        except HoldfastError as error:
            if error.fault.code in NOT_THE_STEPS:
                raise
            return Err(error.fault, error)
        except Exception as error:  # noqa: BLE001 - how an item failed is its outcome
            return Err(fault_of(error), error)

    def may_have_happened(self, name: str) -> bool:
        """Whether a step may have happened and must not be repeated by itself."""
        return name in self._journal.memory.unknown()

    async def perform(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the step of this name, or return what it returned when it was done."""
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
                return codec.decode(bytes(result), step.returns, name)
            case Drifted():
                raise HoldfastError(Fault.of("SESS_STEP_DRIFT", context={"step": name, "turn": self.number}))
            case Unknown():
                raise self._unknown(name)
            case _:
                repeats = isinstance(decision, Repeat) and decision.unknown
        if needs_start(step.effect):
            await self._started(step, repeats=repeats)
        async with Scope("tool", parent=self.scope, name=name):
            return await self._run(step, partial(fn, *args, **kwargs))

    async def _run(self, step: _Step, call: Callable[[], Any]) -> Any:
        try:
            with keyed(self.key(step.name)):
                result = call()
                if inspect.isawaitable(result):
                    result = await result
        except Exception as error:
            await self._failed(step, error)
            raise
        try:
            stored = codec.encode_result(result, step.returns, step.name)
        except InvalidError as error:
            # It was done, and nobody will know what it returned.
            await self._failed(step, error, happened=True)
            raise
        await self._ended(step, stored)
        return result

    async def _started(self, step: _Step, *, repeats: bool) -> None:
        """Put on record that a step begins. One that begins a second time is told in the audit trail."""
        started = StepStarted(turn=self.number, step=step.name, args=step.args, effect=step.effect, repeats=repeats)
        told = (self._told("ToolInvocation", step, repeated=True),) if repeats else ()
        await self._journal.write(started, audit=told)

    async def _ended(self, step: _Step, stored: bytes) -> None:
        ended = StepEnded(turn=self.number, step=step.name, args=step.args, ok=True, result=msgspec.Raw(stored))
        told = (self._told("ToolInvocation", step, ok=True),) if step.effect == "unsafe" else ()
        await self._journal.write(ended, audit=told)

    async def _failed(self, step: _Step, error: Exception, *, happened: bool = False) -> None:
        """Put on record how it failed. Where an unsafe one may have happened, that is on record too."""
        fault = fault_of(error)
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
            await self._journal.write(ended, audit=(self._told("Fault", step, code=fault.code, unknown=unknown),))
        except HoldfastError as failure:
            error.add_note(f"and it could not be saved: {failure}")

    def _told(self, kind: str, step: _Step, **facts: Any) -> NewAudit:
        return audit(kind, self.key(step.name), step=step.name, effect=step.effect, **facts)

    def key(self, name: str) -> str:
        """The stable key of a step: what a keyed tool sends along, however often it is tried."""
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
        message = f"Step {name} was begun and its end is not known; it must not be repeated by itself"
        return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, context={"key": key, "step": name}))


NOT_THE_STEPS = frozenset({"SESS_STORE_UNAVAILABLE", "SESS_LEASE_LOST", "SESS_STEP_DRIFT"})
"""Failures of the session: no other step would fare better."""


async def _stop(tasks: deque[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _hash_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> str:
    """Return the hash of all a function is given, also what a partial holds of it."""
    while isinstance(fn, partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return codec.arguments_hash(args, kwargs, name)


def name_of(fn: Callable[..., Any]) -> str:
    """The function's qualified name. Without its module: that is `__main__` in one start and a package's in another."""
    fn = inspect.unwrap(getattr(fn, "func", fn))
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))
