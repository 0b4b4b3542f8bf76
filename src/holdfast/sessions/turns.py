"""One turn of a session: its steps, each done once.

Invariant: a step's name is its function's and its n-th use in the turn, so the same program gives the same names after a crash.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Err, Fault, HoldfastError, Ok, OutcomeUnknownError
from holdfast.policies import options
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.tool import contract_of
from holdfast.sessions import codec
from holdfast.sessions.deciding import Drifted, Repeat, Return, Unknown, decide_step, needs_start
from holdfast.sessions.keyed import keyed
from holdfast.sessions.log import StepEnded, StepStarted
from holdfast.sessions.saving import audit
from holdfast.sessions.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from holdfast.faults import Outcome
    from holdfast.policies.effect import Effect
    from holdfast.sessions.saving import Journal

__all__ = ["Turn"]


class Turn:
    """What a session does between two checkpoints."""

    def __init__(self, journal: Journal, number: int, parent: Scope) -> None:
        self.number = number
        self.scope = Scope("turn", parent=parent, name=str(number))
        self._journal = journal
        self._uses: dict[str, int] = {}

    def cancel(self) -> bool:
        """Cancel the turn and all it does; the session goes on."""
        return self.scope.cancel("user")

    def next_name(self, what: str) -> str:
        """Return the name of the next use of `what` in this turn: `module.function#2`."""
        n = self._uses[what] = self._uses.get(what, 0) + 1
        return f"{what}#{n}"

    async def step(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do a step, or return what it returned when it was done."""
        return await self._perform(self.next_name(_name_of(fn)), fn, args, kwargs)

    async def map(self, fn: Callable[..., Any], items: Iterable[Any], concurrency: int) -> AsyncIterator[Outcome[Any]]:
        """Do a step for each item, so many at once; yield how each ended, in the order of the items."""
        options.count("map.concurrency", concurrency)
        base = self.next_name(f"{_name_of(fn)}[]")
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
            return Ok(await self._perform(name, fn, (item,), {}))
        except HoldfastError as error:
            if error.fault.code in _NOT_THE_ITEMS:
                raise
            return Err(error.fault, error)
        except Exception as error:  # noqa: BLE001 - how an item failed is its outcome
            return Err(fault_of(error), error)

    async def _perform(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        contract = contract_of(fn)
        effect = None if contract is None else contract.effect
        hashed = codec.arguments_hash(args, kwargs, name)
        decision = decide_step(self._journal.memory.steps.get(name), hashed, effect)
        match decision:
            case Return(result):
                return codec.decode(bytes(result), codec.result_type(fn), name)
            case Drifted():
                raise HoldfastError(Fault.of("SESS_STEP_DRIFT", context={"step": name, "turn": self.number}))
            case Unknown():
                raise self._unknown(name)
            case _:
                repeats = isinstance(decision, Repeat) and decision.unknown
        if needs_start(effect):
            await self._begin(name, hashed, effect, repeats=repeats)
        async with Scope("tool", parent=self.scope, name=name):
            return await self._run(name, hashed, effect, fn, args, kwargs)

    async def _begin(self, name: str, hashed: str, effect: Effect | None, *, repeats: bool) -> None:
        """Put on record that a step begins. One that begins a second time is told in the audit trail."""
        started = StepStarted(turn=self.number, step=name, args=hashed, effect=effect, repeats=repeats)
        told = () if not repeats else (audit("ToolInvocation", self.key(name), step=name, repeated=True, effect=effect),)
        await self._journal.write(started, audit=told)

    async def _run(
        self,
        name: str,
        hashed: str,
        effect: Effect | None,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        type_ = codec.result_type(fn)
        try:
            with keyed(self.key(name)):
                result = fn(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = await result
            codec.check_stable(result, type_, name)
            stored = codec.encode(result, name)
        except Exception as error:
            await self._failed(name, hashed, effect, error)
            raise
        await self._ended(name, hashed, effect, stored)
        return result

    async def _ended(self, name: str, hashed: str, effect: Effect | None, stored: bytes) -> None:
        ended = StepEnded(turn=self.number, step=name, args=hashed, ok=True, result=msgspec.Raw(stored))
        told = (audit("ToolInvocation", self.key(name), step=name, ok=True),) if effect == "unsafe" else ()
        await self._journal.write(ended, audit=told)

    async def _failed(self, name: str, hashed: str, effect: Effect | None, error: Exception) -> None:
        fault = fault_of(error)
        # Whatever an unsafe function raises after it began, it may have done its work: only the fault can say it has not.
        unknown = effect == "unsafe" and (fault.maybe_executed or isinstance(error, OutcomeUnknownError))
        told = msgspec.json.encode(fault.for_audit())
        ended = StepEnded(
            turn=self.number, step=name, args=hashed, ok=False, result=msgspec.Raw(told), unknown=unknown
        )
        record = audit("Fault", self.key(name), step=name, code=fault.code, unknown=unknown)
        try:
            await self._journal.write(ended, audit=(record,))
        except HoldfastError as failure:
            error.add_note(f"and it could not be saved: {failure}")

    def key(self, name: str) -> str:
        """The stable key of a step: what a keyed tool sends along, however often it is tried."""
        return f"{self._journal.session}/{self.number}/{name}"

    def _unknown(self, name: str) -> OutcomeUnknownError:
        key = self.key(name)
        message = f"Step {name} was begun and its end is not known; it must not be repeated by itself"
        return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, context={"key": key, "step": name}))


_NOT_THE_ITEMS = frozenset({"SESS_STORE_UNAVAILABLE", "SESS_LEASE_LOST", "SESS_STEP_DRIFT"})
"""Failures of the session: no other item would fare better."""


async def _stop(tasks: deque[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _name_of(fn: Callable[..., Any]) -> str:
    fn = inspect.unwrap(getattr(fn, "func", fn))
    module = getattr(fn, "__module__", None) or ""
    return f"{module}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
