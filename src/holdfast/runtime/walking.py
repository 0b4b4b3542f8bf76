"""The walk down a fallback chain: which step is tried next, what is kept of those that failed, what surfaces in the end.

Written once for tasks and threads: the walk yields the calls to make and is sent what came of them.

Invariant: the error of every step is kept, the primary's first, and it is the primary's that is raised when all fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.events import Degraded
from holdfast.faults import Attempt, Fault, HoldfastError, InvalidError, Scope
from holdfast.policies.fallback import Ask, Skip, answerable, consider, meets
from holdfast.runtime import charging, reports
from holdfast.runtime.cache import Missing
from holdfast.runtime.chain import Step
from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, fault_of
from holdfast.runtime.plan import PLAN_ATTRIBUTE
from holdfast.runtime.results import discard

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.runtime.chain import Chain
    from holdfast.runtime.operation import Operation

__all__ = ["Call", "walk_down"]


class Call(msgspec.Struct, frozen=True):
    """What the driver must call next, and send its value (or throw its error) back to the walk."""

    fn: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _Walk:
    """One walk down the chain: what failed so far, and what comes next."""

    def __init__(self, op: Operation, chain: Chain, error: Exception) -> None:
        self.op = op
        self.chain = chain
        self.error: Exception | None = error
        self.primary = self.latest = fault_of(error)
        self.failed: list[dict[str, str]] = []

    def considered(self, step: Step) -> Any:
        op = self.op
        if op.budget is not None and op.budget.exhausted(op.plan.monotonic()) is not None:
            return Skip("the budget is spent")
        open_ = _is_open(step.fn)
        met = self._condition(step)
        return consider(met=met, needs=self.op.plan.needs, offers=step.offers, circuit_open=open_, consent=step.consent)  # fmt: skip

    def _condition(self, step: Step) -> bool:
        try:
            return meets(step.when, self.latest, self.primary)
        except Exception as error:  # noqa: BLE001 - a condition that raises is reported and skips its step (R25)
            reports.suppressed(self.op, error, f"the condition of fallback {step.name} raised")
            return False

    def question(self, step: Step) -> Call:
        """Ask whoever the runtime has for such questions; nobody there is a no."""
        self.give_time()
        return Call(self.op.plan.runtime.consent, (self.op.plan.name, step.name, self.latest), {})

    def begin(self, step: Step) -> None:
        op = self.op
        self.give_time()
        op.via = step.name
        op.last_resort = self.chain.ends_with(step)
        op.attempts += 1
        charging.begun(op)
        op.waited = 0.0
        reports.fell_back(op, self.chain.begins_with, step.name, self.latest, self.chain.told_as)
        if op.plan.watched:
            reports.attempt_started(op)

    def give_time(self) -> None:
        """Let what comes next take what is left of the deadline, and never less than one attempt may take.

        A callee that hangs uses up the whole deadline; that is when its fallbacks are wanted. What is around holds.
        """
        op = self.op
        now = op.attempt_started = op.plan.monotonic()
        least = op.plan.timeout or op.plan.deadline
        if op.deadline is not None and least is not None:
            ends = now + least if op.outer_deadline is None else min(now + least, op.outer_deadline)
            op.deadline = max(op.deadline, ends)

    def answered(self, value: object) -> None:
        now = self.op.plan.monotonic()
        charging.ended(self.op, value)
        if self.op.first_failure is None:
            self.op.first_failure = self.op.started
        if self.op.plan.watched:
            reports.attempt_ended(self.op, now, None)
        reports.recovered(self.op, now)

    def step_failed(self, step: Step, error: Exception) -> bool:
        """Keep a step's error and return True; False: a mistake in its code is raised, not taken for an outage (R74)."""
        fault = fault_of(error)
        op = self.op
        now = op.plan.monotonic()
        charging.ended(op, None)
        if op.plan.watched:
            reports.attempt_ended(op, now, fault)
        if self._is_mistake(error, fault):
            reports.failed(op, fault)
            return False
        self.latest = fault
        attempt = Attempt(
            number=op.attempts,
            code=fault.code,
            message=fault.message,
            started=op.wall(op.attempt_started),
            took=now - op.attempt_started,
            cause=fault.cause,
            via=step.name,
        )
        op.history = (*op.history, attempt)
        self.failed.append({"step": step.name, "code": fault.code, "message": fault.message})
        return True

    def answerable(self) -> bool:
        """Whether any step may answer what the primary failed with."""
        assert self.error is not None
        return answerable(self.primary) and not self._is_mistake(self.error, self.primary)

    def _is_mistake(self, error: Exception, fault: Fault) -> bool:
        """Whether it is a mistake in somebody's code; wrong arguments are a model's only where a tool was called."""
        if fault.code == "TOOL_INPUT_INVALID" and isinstance(error, TypeError):
            return Scope.TOOL not in self.op.plan.scopes
        return fault.code == "SYS_PROGRAMMING_ERROR"

    def skipped(self, step: Step, reason: str) -> None:
        self.failed.append({"step": step.name, "skipped": reason})

    def degraded(self, reason: str) -> None:
        op, runtime = self.op, self.op.plan.runtime
        op.via = reason
        op.degraded = True
        if runtime.bus.wants(Degraded):
            runtime.bus.emit(
                Degraded(at=runtime.clock.wall(), run=op.run, operation=op.plan.name, reason=reason, fault=self.primary)
            )

    def exhausted(self) -> Exception:
        """Return the primary's error, with what became of every step on its fault."""
        fault = msgspec.structs.replace(
            self.primary,
            attempts=self.op.history or self.primary.attempts,
            context={**self.primary.context, "fallbacks": self.failed} if self.failed else self.primary.context,
        )
        # The walk is on the way the error takes; if it kept the error, the error would keep itself alive.
        error, self.error = self.error, None
        assert error is not None
        error.__dict__[FAULT_ATTRIBUTE] = fault
        if isinstance(error, HoldfastError):
            error.fault = fault
        for told in self.failed:
            how = told.get("skipped") or f"{told['code']} {told['message']}"
            error.add_note(f"holdfast: fallback {told['step']}: {how}")
        reports.failed(self.op, fault)
        return error

    def notification(self) -> Fault:
        """Return what the user is told when nothing is left."""
        steps = [told["step"] for told in self.failed]
        context = {"name": self.op.plan.name, "steps": steps, "primary": self.primary.code}
        return Fault.of("SYS_FALLBACKS_EXHAUSTED", context=context, cause=self.primary.cause)


def walk_down(
    op: Operation, chain: Chain, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[Call, Any, Any]:
    """Walk down the chain after the primary failed with `error`, and return the first answer; raise if there is none.

    The driver must make each `Call` it is given and send the value, or throw the exception, back in.
    """
    walk = _Walk(op, chain, error)
    del error
    if not walk.answerable():
        raise walk.exhausted()
    for step in chain.steps:
        op.heed_abort()
        verdict = walk.considered(step)
        if isinstance(verdict, Ask) and not (yield from _consent(walk, step)):
            verdict = Skip("consent was not given")
        if isinstance(verdict, Skip):
            walk.skipped(step, verdict.reason)
            continue
        walk.begin(step)
        try:
            value = yield Call(step.fn, args, kwargs)
        except Exception as failure:
            if not walk.step_failed(step, failure):
                raise
        else:
            walk.answered(value)
            return value
    return (yield from _last_resorts(walk, args, kwargs))


def _consent(walk: _Walk, step: Step) -> Generator[Call, Any, bool]:
    """Ask the user; who asks in vain, or cannot ask, has no consent (R25)."""
    try:
        return _is_yes((yield walk.question(step)))
    except Exception as failure:  # noqa: BLE001 - whatever a callback of the user's raises
        reports.suppressed(walk.op, failure, f"asking for consent to fallback {step.name} raised")
        return False


def _is_yes(answer: object) -> bool:
    if hasattr(answer, "__await__"):
        # Any object is true; a question that was not even asked yet must not pass for a yes.
        discard(answer)
        raise InvalidError.saying("consent", "a plain function, as the call itself is", "an async function")
    return bool(answer)


def _last_resorts(walk: _Walk, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Generator[Call, Any, Any]:
    """The cache, a lesser answer, and when there is neither, telling somebody before the primary's error is raised."""
    chain = walk.chain
    kept = chain.recall(walk.op, args, kwargs)
    if kept is not Missing:
        walk.degraded("cached")
        return kept
    walk.give_time()
    if chain.lesser is not None:
        try:
            value = yield Call(chain.lesser, (walk.primary, *args), kwargs)
        except Exception as failure:
            if not walk.step_failed(Step(name="degraded", fn=chain.lesser), failure):
                raise
        else:
            walk.degraded("degraded")
            return value
    walk.give_time()
    if chain.tell is not None:
        try:
            yield Call(chain.tell, (walk.notification(),), {})
        except Exception as failure:  # noqa: BLE001 - the error to raise is the primary's (R25)
            reports.suppressed(walk.op, failure, "the notification of a failed chain raised")
    raise walk.exhausted()


def _is_open(fn: Any) -> bool:
    """Whether a step that is itself recovered would be refused by its circuit: then it need not be tried."""
    plan = getattr(fn, PLAN_ATTRIBUTE, None)
    return plan is not None and plan.fresh().refuses()
