"""Calls of a framework's own: what it raises to steer itself (interrupts, handoffs, words for the model) passes through.

Such an exception is no failure. Nobody retries it, no circuit counts it, no fallback answers it, and no event tells of one.

Invariant: what was raised inside comes out as the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.callables import is_async
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.fallback import Chain, drive_chain, drive_chain_async
from holdfast.runtime.operation import Operation
from holdfast.runtime.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.policies import Effect, Policy
    from holdfast.policies.target import Aim
    from holdfast.runtime.runtime import Runtime

__all__ = ["Calls", "PassingOperation", "Signal"]


class Signal(BaseException):
    """Carries an exception that is no failure past everything that answers failures; never seen outside."""

    def __init__(self, raised: Exception) -> None:
        super().__init__(raised)
        self.raised = raised


class PassingOperation(Operation):
    """An operation that may end by a signal."""

    calls: Calls | None = None
    """What it was begun by."""
    told: Callable[[Any], Any] | None = None
    """What makes of an answer one that says in a known form what it used."""

    def succeeded(self, value: object = None) -> None:
        super().succeeded(value if self.told is None or self.budget is None else self.told(value))

    def stopped(self, error: BaseException) -> None:
        if not isinstance(error, Signal):
            super().stopped(error)
            return
        self._passed()


class Calls:
    """How calls to one target recover. `passing` are the exceptions that are no failures."""

    def __init__(
        self,
        aim: Aim | None,
        policy: Policy | None = None,
        *,
        passing: tuple[type[Exception], ...] = (),
        effect: Effect | None = None,
        fn: Any = None,
        told: Callable[[Any], Any] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        # What `fn` declares about itself (`@tool`) wins.
        self._plan = Plan(aim, policy, effect=effect, runtime=runtime).of(fn)
        self.passing = passing
        self.told = told

    @property
    def plan(self) -> Plan:
        """The plan to use now."""
        self._plan = self._plan.fresh()
        return self._plan

    def begin(self) -> PassingOperation:
        """Return the operation of a call that begins now."""
        op = PassingOperation(self.plan)
        op.calls = self
        op.told = self.told
        return op

    def within(self) -> bool:
        """Whether an attempt of these calls is under way here: what it calls itself is a part of it."""
        around = AMBIENT.get()
        return isinstance(around, PassingOperation) and around.calls is self and not around.over

    def chain(self, fn: Callable[..., Any], others: Sequence[tuple[str, Callable[..., Any]]]) -> Chain | None:
        """Return the named `others` as what to try when `fn` has failed for good."""
        if not others:
            return None
        chain = Chain(fn)
        for name, other in others:
            chain.fallback(self.carrying(other), name=name)
        return chain

    def call(self, fn: Callable[..., Any], /, *args: Any, chain: Chain | None = None) -> Any:
        """Make the call, and what else it takes."""
        if self.plan.off:
            return fn(*args)
        op = self.begin()
        try:
            if chain is None:
                return drive(op, self.carrying(fn), args, {})
            return drive_chain(op, chain, self.carrying(fn), args, {})
        except Signal as signal:
            raised = signal.raised
        try:
            raise raised
        finally:
            del raised  # an exception in a frame that it passes through keeps itself alive

    async def acall(self, fn: Callable[..., Awaitable[Any]], /, *args: Any, chain: Chain | None = None) -> Any:
        """The same in a task."""
        if self.plan.off:
            return await fn(*args)
        op = self.begin()
        call = drive_async(op, self.carrying(fn), args, {})
        try:
            return await (call if chain is None else drive_chain_async(op, chain, call, args, {}))
        except Signal as signal:
            raised = signal.raised
        try:
            raise raised
        finally:
            del raised  # ditto

    def carrying(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return `fn` with its signals carried."""
        passing = self.passing
        if not passing:
            return fn
        if is_async(fn):

            async def carried_async(*args: Any, **kwargs: Any) -> Any:
                try:
                    return await fn(*args, **kwargs)
                except passing as raised:
                    raise Signal(raised) from None

            return carried_async

        def carried(*args: Any, **kwargs: Any) -> Any:
            try:
                return fn(*args, **kwargs)
            except passing as raised:
                raise Signal(raised) from None

        return carried
