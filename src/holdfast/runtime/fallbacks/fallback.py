"""Fallbacks: another function, the cache or a degraded answer when a call has failed for good, and a notification.

A `Chain` is configured once, on the decorated function. `drive_chain` makes the call and, when it has failed for good, walks
down the chain. The walk is written once for tasks and threads: it yields the calls to make and receives their results.

Invariant: the error of every step is kept, the primary's first, and the primary's error is raised when all fail. A step
that can never work, such as an async fallback of a plain function, is rejected when it is added.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.events import AgentFallback, Degraded, Fallback
from holdfast.faults import AbortedError, DeadlineError, Fault, InvalidError, Scope
from holdfast.policies.decide import Ask, Skip, can_fall_back, decide_fallback, leaves_outcome_unknown
from holdfast.policies.fallback import Consent, When, checked_when, meets
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.budgets.charges import is_budget_spent
from holdfast.runtime.callables import name_of, used_up
from holdfast.runtime.failures.evidence import in_doubt
from holdfast.runtime.failures.shown_request import is_wrong_arguments, unsafe_in_doubt
from holdfast.runtime.fallbacks.cache import CacheStore, MemoryCache, Missing, key_of
from holdfast.runtime.fallbacks.step_parameters import (
    check_parameters,
    check_step,
    notification_takes_self,
    place_of_fault,
    with_fault,
)
from holdfast.runtime.fault_of import add_note, leave_fault
from holdfast.runtime.operation import errors, reports
from holdfast.runtime.operation.answers import close_answer
from holdfast.runtime.operation.drivers import drive, leave, limited
from holdfast.runtime.operation.facts import is_fallback_time_over
from holdfast.runtime.operation.plan import PLAN_ATTRIBUTE
from holdfast.runtime.operation.responses import FailedResponseError, give_up_on
from holdfast.runtime.tool import contract_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

    from holdfast.faults import Code
    from holdfast.policies.decide import Effect, Take
    from holdfast.runtime.operation.operation import Operation

__all__ = [
    "CacheStore",
    "Chain",
    "ChainStep",
    "Consent",
    "When",
    "drive_chain",
    "drive_chain_async",
    "meets_condition",
]


_LATE: frozenset[Code] = frozenset({DeadlineError.code, "PROVIDER_TIMEOUT", "TOOL_TIMEOUT", "SYS_TIMEOUT"})
"""Failures of a step that a time limit ended."""

LAST_RESORT_S = 5.0
"""Seconds that a degraded answer, and a notification, have at least, also after fallbacks that hung."""


# --- the chain, as it is configured ---


class ChainStep(msgspec.Struct, frozen=True, kw_only=True):
    """One function of the chain, with the condition for calling it."""

    name: str
    fn: Any
    when: Any = None
    offers: frozenset[str] | None = None
    consent: Any = "configured"
    condition: Callable[[Exception], object] | None = None
    """A condition of the error of the call itself, beside `when`. It is asked when that call has failed for good."""


class Chain:
    """The fallbacks of one function, in order: steps, cache, degraded answer, notification."""

    def __init__(self, fn: Callable[..., Any], name: str = "", *, of_method: bool | None = None) -> None:
        self.configured = False
        """At least one step, cache, degraded answer or notification was added."""
        self.event: type[Fallback | AgentFallback] = Fallback
        """The kind of event that reports a step."""
        self.primary_name = "primary"
        """The name of the call itself in events."""
        self.judges_primary = False
        """The codes and categories of a step are compared with the failure of the call itself, and not with the latest one too."""
        self.answers_defects = False
        """A defect of a step, such as a `KeyError`, is one more failed step. Otherwise it surfaces at once."""
        self.asks: Callable[[str, str, Fault], Any] | None = None
        """Asks a person for consent, instead of the runtime's `consent` function. It has no time limit of its own."""
        self.fn = fn
        self._fn_name = name or name_of(fn)
        self.steps: tuple[ChainStep, ...] = ()
        self.of_method = bool(of_method)
        """The function is a method or a class method: its first argument is the object or the class."""
        self._is_decorated = of_method is not None
        # Other chains are made for each call, where reading signatures would cost too much.
        self.degraded_answer: Callable[..., Any] | None = None
        self._fault_place = 0
        self.notification: Callable[..., object] | None = None
        self._notifies_with_self = False
        self._ttl = 0.0
        self._store: CacheStore | None = None
        self._key: Callable[..., str] | None = None

    # Users call these methods on the decorated function: `answer.fallback`, `answer.cached` …

    def fallback(
        self,
        fn: Any = None,
        /,
        *,
        when: When | None = None,
        name: str = "",
        offers: frozenset[str] | None = None,
        consent: Consent = "configured",
    ) -> Any:
        """Add a function to call when this one has failed for good. Fallbacks are called in the order they are added.

        `when` limits it to codes or categories (`"rate_limit"`), or is a plain function of the latest and the first fault. If
        that function raises, the fallback is skipped, and the defect is reported once. `offers`
        names its capabilities, which must cover `needs` of `recover`. With `consent="ask"` the runtime's `consent` function
        must agree each time. A fallback with a `@recover` of its own is skipped while its circuit is open. If all fail, the
        first error is raised. Wrong options raise `InvalidError`, and so do an async fallback for a function that is not
        async and a fallback that cannot take the same arguments. A fallback of a method gets `self` first.

            @answer.fallback(when="rate_limit")
            async def by_openai(question): ...
        """
        if fn is None:
            return lambda later: self.fallback(later, when=when, name=name, offers=offers, consent=consent)
        check_step("fallback", fn, self.fn)
        when = checked_when(f"fallback {name or name_of(fn)}: when", when)
        options.one_of("fallback.consent", consent, ("configured", "ask"))
        options.names("fallback.offers", offers, optional=True)
        if not isinstance(name, str):
            raise InvalidError.at("fallback.name", "a name", name)
        if self._is_decorated:
            check_parameters("fallback", fn, self.fn)
        step = ChainStep(name=name or name_of(fn).rpartition(".")[2], fn=fn, when=when, offers=offers, consent=consent)
        self.steps = (*self.steps, step)
        self.configured = True
        return fn

    def judge(self, condition: Callable[[Exception], object]) -> None:
        """Give the step that was added last a condition of the error of the call itself."""
        *others, last = self.steps
        self.steps = (*others, msgspec.structs.replace(last, condition=condition))

    def seen_by(self, step: ChainStep, latest: Fault, primary: Fault) -> Fault:
        """Return the failure that the codes and categories of a step are compared with, beside that of the call itself."""
        return primary if self.judges_primary and not callable(step.when) else latest

    def cached(self, ttl: float, *, key: Callable[..., str] | None = None, store: CacheStore | None = None) -> None:
        """Answer with the last good answer to the same call when every fallback has failed.

        The answer must be younger than `ttl` seconds. `key` is a function of the call's arguments that names the call; without
        it, arguments must be plain JSON values. `store` keeps the answers, by default the memory of this process. The cache
        of a method needs a `key`, because `self` is an argument too. Wrong options raise `InvalidError`.

            answer.cached(ttl=600)
            ask.cached(ttl=600, key=lambda self, question: question)  # in the body of a class
        """
        options.seconds("cached.ttl", ttl)
        if key is not None and not callable(key):
            raise InvalidError.at("cached.key", "a function of the call's arguments that returns a text", key)
        if key is not None and self._is_decorated:
            check_parameters("cached.key", key, self.fn)
        if key is None and self.of_method:
            raise InvalidError.saying(
                f"cached of {self._fn_name}",
                "key=, a function of the call's arguments, because one of them is the object of the method",
                "none",
            )
        if store is not None and not (callable(getattr(store, "get", None)) and callable(getattr(store, "put", None))):
            raise InvalidError.at("cached.store", "a CacheStore, with `get` and `put`", store)
        self._ttl, self._key = ttl, key
        self._store = MemoryCache() if store is None else store
        self.configured = True

    def degraded(self, fn: Any) -> Any:
        """Set the function that answers when everything else has failed; it gets the fault, then the call's arguments.

        For a method it gets `self`, then the fault, then the arguments. If its first parameter is named `fault` or annotated
        as `Fault`, it gets the fault first there too. An async function for a plain one raises `InvalidError`, and so does a
        function whose parameters do not fit.

            @answer.degraded
            def sorry(fault, question):
                return fault.for_user()

            @ask.degraded  # in the body of a class
            def ask_less(self, fault, question): ...
        """
        check_step("degraded", fn, self.fn)
        self._fault_place = place_of_fault("degraded", fn, self.fn, of_method=self.of_method)
        self.degraded_answer = fn
        self.configured = True
        return fn

    def with_fault(self, fault: Fault, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the degraded function."""
        return with_fault(self._fault_place, fault, args)

    def notify(self, fn: Any) -> Any:
        """Set the function that is called with the fault when everything has failed; the first error is raised afterwards.

        Beside a method it may take `self`, then the fault. If it raises itself, that is reported as a `SuppressedError`
        event. An async function for a plain one raises `InvalidError`, and so does a function with other parameters.

            @answer.notify
            def page_someone(fault): ...
        """
        check_step("notify", fn, self.fn)
        if self._is_decorated:
            self._notifies_with_self = notification_takes_self(fn, self.fn, of_method=self.of_method)
        self.notification = fn
        self.configured = True
        return fn

    def notified(self, fault: Fault, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the notification."""
        return (*args[:1], fault) if self._notifies_with_self else (fault,)

    def names(self) -> tuple[str, ...]:
        """Return the names of the fallbacks, in the order they are called."""
        return tuple(step.name for step in self.steps)

    # The cache.

    def keep(self, op: Operation, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep a good answer for later. A cache that fails does not fail the call (S2-10)."""
        if self._store is None:
            return
        try:
            key = key_of(self._key, self._fn_name, args, kwargs)
            if key is None:
                self._warn_without_key(op)
            else:
                self._store.put(key, value, op.plan.monotonic(), self._ttl)
        except Exception as error:  # noqa: BLE001 - the store and the key function are the user's
            reports.suppressed(op, error, "the cache of a fallback failed")

    def _warn_without_key(self, op: Operation) -> None:
        """Warn once about a cache that can keep nothing."""
        where = f"cached of {self._fn_name}"
        error = InvalidError.saying(where, "arguments that can be written as JSON, or key=", "others: nothing is kept")
        runtime = op.plan.runtime
        runtime.bus.hook_raised(self, where, error, at=runtime.clock.wall(), run=op.run)

    def recall(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the answer kept for this very call, or `Missing`."""
        try:
            return self._kept(op, args, kwargs)
        except Exception as error:  # noqa: BLE001 - the store and the key function are the user's
            reports.suppressed(op, error, "the cache of a fallback failed")
            return Missing

    def has_kept(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether `recall` would return an answer now."""
        try:
            return self._kept(op, args, kwargs) is not Missing
        except Exception:  # noqa: BLE001 - `recall` reports it, once for each call
            return False

    def _kept(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._store is None:
            return Missing
        key = key_of(self._key, self._fn_name, args, kwargs)
        return Missing if key is None else self._store.get(key, op.plan.monotonic())


# --- the walk down the chain ---


def meets_condition(op: Operation, name: str, when: When | None, latest: Fault, primary: Fault) -> bool:
    """Return whether a fallback's condition is met. If it raises, that is reported once, and its fallback is skipped (R25)."""
    try:
        return meets(when, latest, primary)
    except Exception as error:  # noqa: BLE001 - the condition is the user's
        runtime = op.plan.runtime
        runtime.bus.hook_raised(when, f"the condition of fallback {name}", error, at=runtime.clock.wall(), run=op.run)
        return False


def _meets_error(op: Operation, step: ChainStep, error: Exception | None) -> bool:
    """Whether the condition of the call's own error is met. None: that call may still recover, so nobody is asked yet."""
    if step.condition is None:
        return True
    if error is None:
        return False
    try:
        return bool(step.condition(error))
    except Exception as raised:  # noqa: BLE001 - the condition is the user's
        runtime, where = op.plan.runtime, f"the condition of fallback {step.name}"
        runtime.bus.hook_raised(step.condition, where, raised, at=runtime.clock.wall(), run=op.run)
        return False


def _decide_step(
    op: Operation, step: ChainStep, latest: Fault, primary: Fault, *, used_up: bool, error: Exception | None = None
) -> Take | Ask | Skip:
    return decide_fallback(
        condition_met=meets_condition(op, step.name, step.when, latest, primary) and _meets_error(op, step, error),
        needs=op.plan.needs,
        offers=step.offers,
        circuit_open=_is_open(step.fn),
        consent=step.consent,
        budget_spent=is_budget_spent(op),
        arguments_used_up=used_up,
        time_over=is_fallback_time_over(op),
    )


class _Untried:
    """What is left of a chain for one call: the steps that were not tried yet, and the kept answer.

    A degraded answer does not count among what could answer: a real one is worth some more attempts.
    """

    __slots__ = ("_args", "_chain", "_kwargs", "_primary", "_steps")

    def __init__(self, chain: Chain, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._chain, self._args, self._kwargs = chain, args, kwargs
        self._steps = chain.steps
        self._primary: Fault | None = None

    @property
    def has_last_resort(self) -> bool:
        return self.has_lesser_answer or self._chain.notification is not None

    @property
    def has_lesser_answer(self) -> bool:
        return self._chain.degraded_answer is not None

    def tried(self, step: ChainStep, primary: Fault) -> None:
        """Leave out this step, which is called now, and those before it. `primary` is the failure of the call itself."""
        self._steps, self._primary = self._steps[self._steps.index(step) + 1 :], primary

    def could_answer(self, op: Operation, fault: Fault) -> bool:
        primary = self._primary or fault
        # Arguments that can be read only once need no check: the call is not repeated with them either.
        seen = self._chain.seen_by
        decisions = (_decide_step(op, step, seen(step, fault, primary), primary, used_up=False) for step in self._steps)
        could = any(not isinstance(decision, Skip) for decision in decisions)
        return could or self._chain.has_kept(op, self._args, self._kwargs)


class _Call(msgspec.Struct, frozen=True):
    """What the driver must call next. The driver sends the value, or throws the error, back into the walk."""

    fn: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    is_limited: bool = True
    """Whether the call has the time limit of an attempt. A person may take longer."""


class _Stopped:
    """A walk that ended with a `StopIteration`, which the driver raises: a generator cannot raise one (PEP 479)."""

    def __init__(self, error: StopIteration) -> None:
        self._error: StopIteration | None = error

    def take_error(self) -> StopIteration:
        """Return the error and forget it: it must not be kept alive by a frame that it passes through."""
        error, self._error = self._error, None
        assert error is not None
        return error


def _surface(error: Exception) -> _Stopped:
    """Raise the error with which a walk ends. Python would make a `RuntimeError` of `StopIteration`: return that one."""
    try:
        if not isinstance(error, StopIteration):
            raise error
        return _Stopped(error)
    finally:
        # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
        del error


class _Walk:
    """One walk down the chain: what failed so far, and what comes next."""

    def __init__(self, op: Operation, chain: Chain, untried: _Untried, error: Exception) -> None:
        self.op = op
        self.untried = untried
        self.chain = chain
        self.error: Exception | None = error
        self.primary = self.latest = op.plan.runtime.fault_of(error)
        self.latest_name = chain.primary_name
        """Who failed with the latest fault."""
        self.failed: list[dict[str, str]] = []
        self.was_cut = False
        """A deadline passed in the latest step."""

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Generator[_Call, Any, Any]:
        """Return the first answer; raise the primary's error if no step answers."""
        if not self._may_be_answered():
            return _surface(self._exhausted())
        for step in self.chain.steps:
            # The caller's abort signal is checked before the step is reported, so that no fallback begins after an abort.
            _check_abort(self.op)
            seen, spent = self.chain.seen_by(step, self.latest, self.primary), used_up(args, kwargs)
            decision = _decide_step(self.op, step, seen, self.primary, used_up=spent, error=self.error)
            if isinstance(decision, Ask) and not (yield from self._consent(step)):
                decision = Skip("consent was not given")
            if isinstance(decision, Skip):
                self.failed.append({"step": step.name, "skipped": decision.reason})
                continue
            chain = self.chain
            reports.fell_back(
                self.op, chain.primary_name, step.name, self.latest, kind=chain.event, failed=self.latest_name
            )
            self.untried.tried(step, self.primary)
            self.op.begin_step(step.name)
            try:
                value = yield _Call(step.fn, args, kwargs)
            except Exception as failure:  # noqa: BLE001 - the next step may answer, and else it surfaces
                if self._must_surface(step, failure):
                    return _surface(failure)
            else:
                self.op.step_answered(value)
                return value
        return (yield from self._last_resorts(args, kwargs))

    def _consent(self, step: ChainStep) -> Generator[_Call, Any, bool]:
        """Return whether the user consents. Without a `consent` function, or if it raises, the answer is no (R25)."""
        # A hanging primary has used up the deadline, and the user needs some time to answer.
        self.op.extend_deadline()
        asks = self.chain.asks
        consent = self.op.plan.runtime.consent if asks is None else asks
        try:
            return _is_yes((yield _Call(consent, (self.op.plan.name, step.name, self.latest), {}, asks is None)))
        except Exception as failure:
            if self.op.passes(failure):
                self.op.failed(failure)
                raise
            reports.suppressed(self.op, failure, f"asking for consent to fallback {step.name} raised")
            return False

    def _last_resorts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Generator[_Call, Any, Any]:
        """Answer from the cache, or with a degraded answer; else notify and raise the primary's error."""
        # The cached answer comes first: it was a good answer once, and the degraded one never was.
        chain = self.chain
        kept = chain.recall(self.op, args, kwargs)
        if kept is not Missing:
            self._degraded("cached")
            return kept
        self.op.extend_deadline(LAST_RESORT_S)
        if chain.degraded_answer is not None:
            try:
                value = yield _Call(chain.degraded_answer, chain.with_fault(self.primary, args), kwargs)
            except Exception as failure:  # noqa: BLE001 - the error to raise is the primary's, unless the caller stopped
                step = ChainStep(name="degraded", fn=chain.degraded_answer)
                if self._must_surface(step, failure, answers_defects=True):
                    return _surface(failure)
                if _is_defect(self.latest):
                    self._report_defect(step, failure)
            else:
                self._degraded("degraded")
                return value
        self.op.extend_deadline(LAST_RESORT_S)
        if chain.notification is not None:
            try:
                yield _Call(chain.notification, chain.notified(self._exhausted_fault(), args), {})
            except Exception as failure:  # noqa: BLE001 - the error to raise is the primary's (R25)
                reports.suppressed(self.op, failure, "the notification of a failed chain raised")
        return _surface(self._exhausted())

    def _may_be_answered(self) -> bool:
        """Whether a fallback may answer the failure of the primary at all."""
        plan, error = self.op.plan, self._primary_error()
        try:
            return self._can_fall_back(error, self.primary, plan.effect) and unsafe_in_doubt(error, plan) is None
        finally:
            # Its traceback refers to this frame.
            del error

    def _report_defect(self, step: ChainStep, error: Exception) -> None:
        """Name the degraded function that is broken, in the log and in the note on the primary's error."""
        runtime, name = self.op.plan.runtime, name_of(step.fn)
        self.failed[-1]["step"] = f"{step.name} ({name})"
        what = f"the degraded function {name}"
        runtime.bus.hook_raised(step.fn, what, error, at=runtime.clock.wall(), run=self.op.run)

    def _must_surface(self, step: ChainStep, error: Exception, *, answers_defects: bool = False) -> bool:
        """Keep a step's error. Return True to raise it: no other step may answer a defect or a caller's abort (R74).

        A step that may have happened and must not happen twice raises `OutcomeUnknownError`.
        """
        if self.op.passes(error):
            self.op.failed(error)
            return True
        fault = self.op.plan.runtime.fault_of(error)
        contract = contract_of(step.fn)
        effect = None if contract is None else contract.effect
        if in_doubt(error, fault, contract) and not is_wrong_arguments(error, fault):
            fault = msgspec.structs.replace(fault, maybe_executed=True)
        answers_defects = answers_defects or self.chain.answers_defects
        goes_on = self._can_fall_back(error, fault, effect) or (answers_defects and _is_defect(fault))
        goes_on = goes_on and unsafe_in_doubt(error, self.op.plan) is None
        self.op.step_failed(fault, remember=goes_on)
        if not goes_on:
            reports.failed(self.op, fault)
            if leaves_outcome_unknown(effect, fault):
                raise errors.outcome_unknown(self.op, fault) from error
            return True
        self.latest, self.latest_name = fault, step.name
        # Looked at here: the last resorts get some more time.
        self.was_cut = fault.code in _LATE and errors.is_cut(self.op)
        self.failed.append({"step": step.name, "code": fault.code, "message": fault.message})
        return False

    def _can_fall_back(self, error: Exception, fault: Fault, effect: Effect | None) -> bool:
        wrong_arguments = isinstance(error, TypeError) and Scope.TOOL not in self.op.plan.scopes
        if fault.code == "SYS_PROGRAMMING_ERROR" and (_is_about_data(error) or self._is_named(error)):
            return not leaves_outcome_unknown(effect, fault)
        return can_fall_back(fault, effect=effect, wrong_arguments=wrong_arguments)

    def _is_named(self, error: Exception) -> bool:
        """Whether `retry_on` names the error: then it is no defect, whatever its class."""
        overrides, op = self.op.plan.overrides, self.op
        return overrides is not None and overrides.of(error, op.plan.runtime, op.run) is True

    def _degraded(self, via: str) -> None:
        op, runtime = self.op, self.op.plan.runtime
        op.degrade(via)
        if runtime.bus.wants(Degraded):
            event = Degraded(
                at=runtime.clock.wall(),
                run=op.run,
                operation=op.plan.name,
                reason=self.primary.message,
                fault=self._primary_with_steps(),
                via=via,
            )
            runtime.bus.emit(event)

    def _primary_error(self) -> Exception:
        assert self.error is not None
        return self.error

    def _exhausted(self) -> Exception:
        """Return the primary's error. Its fault lists how every step ended.

        If a deadline passed in a fallback, that is what the caller must know: return a `DeadlineError`, whose cause is the
        primary's error.
        """
        fault = self._primary_with_steps()
        # The error's traceback refers to this walk. If the walk kept the error, the cycle would keep both alive.
        error = self._primary_error()
        self.error = None
        if self.was_cut and fault.code != DeadlineError.code:
            late = errors.deadline_passed(self.op)
            context = {**late.fault.context, **fault.context, "primary": fault.code}
            fault = msgspec.structs.replace(late.fault, context=context, attempts=fault.attempts)
            late.__cause__, error = error, late
        leave_fault(error, fault)
        for record in self.failed:
            how = record.get("skipped") or f"{record['code']} {record['message']}"
            add_note(error, f"holdfast: fallback {record['step']}: {how}")
        reports.failed(self.op, fault)
        return error

    def _primary_with_steps(self) -> Fault:
        """Return the fault of the call itself, with how every step ended."""
        return msgspec.structs.replace(
            self.primary,
            attempts=self.op.history or self.primary.attempts,
            context={**self.primary.context, "fallbacks": self.failed} if self.failed else self.primary.context,
        )

    def _exhausted_fault(self) -> Fault:
        """Return the fault for the notification that nothing is left to try."""
        steps = [record["step"] for record in self.failed]
        context = {"name": self.op.plan.name, "steps": steps, "primary": self.primary.code}
        return Fault.of("SYS_FALLBACKS_EXHAUSTED", context=context, cause=self.primary.cause)


def _is_defect(fault: Fault) -> bool:
    return fault.code in ("SYS_PROGRAMMING_ERROR", "TOOL_INPUT_INVALID")


def _is_about_data(error: Exception) -> bool:
    """Whether it may tell of data as well as of a defect: parsers raise `ValueError`, and look-ups a plain `LookupError`."""
    return isinstance(error, ValueError) or type(error) is LookupError


def _is_yes(answer: object) -> bool:
    if hasattr(answer, "__await__"):
        # An async `consent` returns a coroutine object. It counts as true, although the user has not seen the question.
        close_answer(answer)
        raise InvalidError.saying("consent", "a plain function, as the call itself is", "an async function")
    return bool(answer)


def _is_open(fn: Any) -> bool:
    """Whether the step's own circuit would reject the call, so that calling the step is pointless."""
    plan = getattr(fn, PLAN_ATTRIBUTE, None)
    return plan is not None and plan.fresh().rejects()


# --- the drivers of a chain ---


def _check_abort(op: Operation) -> None:
    """Raise `AbortedError` if the caller's signal was set between two fallbacks."""
    try:
        op.raise_if_aborted()
    except AbortedError as error:
        op.stopped(error)
        raise


async def drive_chain_async(
    op: Operation, chain: Chain, call: Awaitable[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Await the call; when it has failed for good, walk down the chain."""
    untried = _Untried(chain, args, kwargs)
    op.expect_fallbacks(untried)
    if op.plan.off:
        return await call
    try:
        value = await call
    except AbortedError:
        # The caller or a person stopped the call, so no fallback may go on with it.
        raise
    except Exception as error:
        if op.passes(error):
            raise
        try:
            return await _walk_async(op, _Walk(op, chain, untried, error).run(args, kwargs))
        except FailedResponseError as failure:
            # A plain call would have returned it.
            return give_up_on(failure.response)
    chain.keep(op, value, args, kwargs)
    return value


def drive_chain(op: Operation, chain: Chain, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make the call; when it has failed for good, walk down the chain."""
    untried = _Untried(chain, args, kwargs)
    op.expect_fallbacks(untried)
    if op.plan.off:
        return drive(op, fn, args, kwargs)
    try:
        value = drive(op, fn, args, kwargs)
    except AbortedError:
        raise
    except Exception as error:
        if op.passes(error):
            raise
        try:
            return _walk(op, _Walk(op, chain, untried, error).run(args, kwargs))
        except FailedResponseError as failure:
            return give_up_on(failure.response)
    if hasattr(value, "__await__"):
        return drive_chain_async(op, chain, value, args, kwargs)
    chain.keep(op, value, args, kwargs)
    return value


async def _walk_async(op: Operation, walk: Generator[_Call, Any, Any]) -> Any:
    """Make the calls of a walk in a task; a step has the time limit of an attempt."""
    with _Scope(op, walk):
        # `return` in the walk arrives as `StopIteration`, and an error that the walk raises surfaces from `throw` or `send`.
        try:
            call = next(walk)
            while True:
                try:
                    value = await (limited(op, _awaited, (call,), {}) if call.is_limited else _awaited(call))
                except Exception as failure:  # noqa: BLE001 - the walk decides
                    call = walk.throw(failure)
                else:
                    call = walk.send(value)
        except StopIteration as end:
            return end.value


def _walk(op: Operation, walk: Generator[_Call, Any, Any]) -> Any:
    """Make the calls of a walk in a thread."""
    with _Scope(op, walk):
        try:
            call = next(walk)
            while True:
                try:
                    value = call.fn(*call.args, **call.kwargs)
                except Exception as failure:  # noqa: BLE001 - the walk decides
                    call = walk.throw(failure)
                else:
                    call = walk.send(value)
        except StopIteration as end:
            answer = end.value
    if isinstance(answer, _Stopped):
        # Only here: a coroutine cannot raise `StopIteration` at all, so no walk in a task ends with one.
        raise answer.take_error()
    return answer


class _Scope:
    """Puts the operation's scope in force while its fallbacks are called, and closes the walk however it ends."""

    # This is no `@contextmanager`: that one sets an attribute of the exception that passes, and an immutable exception raises.

    def __init__(self, op: Operation, walk: Generator[_Call, Any, Any]) -> None:
        self._op = op
        self._walk = walk

    def __enter__(self) -> None:
        self._op.enter()
        self._token = AMBIENT.set(self._op)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            # The walk has already reported an end by an `Exception`.
            if error is not None and not isinstance(error, Exception):
                self._op.stopped(error)
        finally:
            self._walk.close()
            self._op.end()
            leave(self._token)


async def _awaited(call: _Call) -> Any:
    value = call.fn(*call.args, **call.kwargs)
    return await value if inspect.isawaitable(value) else value
